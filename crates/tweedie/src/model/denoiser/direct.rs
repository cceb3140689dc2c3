//! The direct path (`model.denoiser.direct`): the encoder's output beside the features that the head reads.

use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{Tape, Tensor, Var};

use super::Denoiser;
use crate::error::{Error, Result};
use crate::model::context::Context;
use crate::model::layers::{Ids, Pass};

impl Denoiser {
    /// What the direct path leads to the head, \[B, 1, width\]: of several class tokens the mean.
    pub(super) fn direct_path(&self, tape: &Tape, encoded: &Var) -> Result<Var> {
        Ok(match (self.cond_tokens, self.direct_tokens) {
            (1, _) => encoded.clone(),
            (_, n) => tokens::mean_tokens(tape, encoded, 0..n)?,
        })
    }

    /// `features` \[B, 1, d\] and behind them what the direct path leads to the head, where there is one.
    pub(super) fn join_direct(&self, tape: &Tape, features: Var, context: &Context) -> Result<Var> {
        match (self.config.direct, &context.direct) {
            (false, _) => Ok(features),
            (true, Some(direct)) => join_features(tape, &features, direct),
            (true, None) => Err(Error::Input("this context belongs to a model without a direct path".into())),
        }
    }

    /// What the head reads of the direct path alone: features that are 0, and `direct` \[B, 1, width\] behind them.
    pub fn direct_alone(&self, tape: &Tape, direct: &Var) -> Result<Var> {
        let shape = [direct.shape()[0], 1, self.config.width];
        let nothing = Tensor::zeros(&direct.value().device(), &shape, direct.value().dtype())?;
        join_features(tape, &tape.constant(nothing), direct)
    }

    /// As [`Denoiser::head`], where a loss may move what reads the blocks alone: no gradient reaches what the direct path says of its own, W·c and
    /// the bias.
    pub fn head_of_blocks(&self, p: &Pass, ids: &Ids) -> Result<(Var, Var)> {
        let (w, bias) = self.head(p, ids);
        let (v, d) = (w.shape()[0], self.config.width);
        let path = w.value().width() - d;
        // As tokens of a width that both are multiples of.
        let width = gcd(d, path);
        let parts = |w: &Var| elementwise::reshape(p.tape, w, &[v, (d + path) / width, width]);
        let of_blocks = tokens::slice(p.tape, &parts(&w)?, 0..d / width)?;
        let fixed = p.tape.constant(w.value().clone());
        let of_path = tokens::slice(p.tape, &parts(&fixed)?, d / width..(d + path) / width)?;
        let both = tokens::concat(p.tape, &[&of_blocks, &of_path])?;
        Ok((elementwise::reshape(p.tape, &both, &[v, d + path])?, p.tape.constant(bias.value().clone())))
    }
}

/// Features \[B, 1, d\] and \[B, 1, e\] as one, \[B, 1, d + e\].
fn join_features(tape: &Tape, x: &Var, y: &Var) -> Result<Var> {
    let (b, d, e) = (x.shape()[0], x.value().width(), y.value().width());
    // As tokens of a width that both are multiples of.
    let width = gcd(d, e);
    let tokens = |x: &Var, d: usize| elementwise::reshape(tape, x, &[b, d / width, width]);
    let both = tokens::concat(tape, &[&tokens(x, d)?, &tokens(y, e)?])?;
    Ok(elementwise::reshape(tape, &both, &[b, 1, d + e])?)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}
