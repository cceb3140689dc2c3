//! The direct path (`model.denoiser.direct`): the encoder's output beside the features that the head reads.

use std::ops::Range;

use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{Tape, Var};

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

    /// Weight and bias of what the direct path says alone, W·c: the shape of the twin's head.
    pub fn head_of_path(&self, p: &Pass, ids: &Ids) -> Result<(Var, Var)> {
        let (w, bias) = self.head(p, ids);
        Ok((self.columns(p.tape, &w)?.1, bias))
    }

    /// As [`Denoiser::head`], where a loss may move what reads the blocks alone: no gradient reaches what the direct path says of its own, W·c and
    /// the bias.
    pub fn head_of_blocks(&self, p: &Pass, ids: &Ids) -> Result<(Var, Var)> {
        let (w, bias) = self.head(p, ids);
        let of_blocks = self.columns(p.tape, &w)?.0;
        let (fixed, bias) = (p.tape.constant(w.value().clone()), p.tape.constant(bias.value().clone()));
        let of_path = self.columns(p.tape, &fixed)?.1;
        let v = w.shape()[0];
        let as_token = |w: &Var| elementwise::reshape(p.tape, w, &[v, 1, w.value().width()]);
        let both = join_features(p.tape, &as_token(&of_blocks)?, &as_token(&of_path)?)?;
        Ok((elementwise::reshape(p.tape, &both, w.shape())?, bias))
    }

    /// The columns of the head's weight that read the blocks, \[V, d\], and those that read the path.
    fn columns(&self, tape: &Tape, w: &Var) -> Result<(Var, Var)> {
        let (v, d) = (w.shape()[0], self.config.width);
        let path = w.value().width() - d;
        // As tokens of a width that both are multiples of.
        let width = gcd(d, path);
        let tokens = elementwise::reshape(tape, w, &[v, (d + path) / width, width])?;
        let part = |range: Range<usize>, d: usize| {
            Ok::<_, Error>(elementwise::reshape(tape, &tokens::slice(tape, &tokens, range)?, &[v, d])?)
        };
        Ok((part(0..d / width, d)?, part(d / width..(d + path) / width, path)?))
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
