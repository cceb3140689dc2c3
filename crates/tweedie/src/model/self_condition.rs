//! Self-conditioning: the denoiser reads its own first prediction beside the noisy tokens (Analog Bits, arXiv 2208.04202). Both passes see
//! the same y_t, so a bound on the likelihood stays one, and a step depends on nothing but its input.

use tweedie_engine::ops::choose::{Choose, choose};
use tweedie_engine::ops::elementwise;
use tweedie_engine::ops::linear::linear;
use tweedie_engine::{ParamId, Tape, Var};

use super::context::{Context, Input};
use super::denoiser::Denoiser;
use super::evidence;
use super::layers::{Ids, Pass};
use crate::error::{Error, Result};

impl Denoiser {
    /// `y` \[B, N, d\], which was read of `input`, with what `weight` \[d, V\] reads of the probabilities that a first pass over `y` gives; no gradient goes through that pass.
    pub(super) fn add_own_prediction(
        &self,
        p: &Pass,
        ids: &Ids,
        (input, y): (&Input, &Var),
        time: &Var,
        context: &Context,
        weight: ParamId,
    ) -> Result<Var> {
        let tape = Tape::inference();
        let first = Pass::inference(&tape, p.params, p.dtype);
        let features = self.through_blocks(&first, ids, &tape.constant(y.value().clone()), time, context)?;
        let mut logits = self.logits(&first, ids, &features)?;
        if let (Input::Evidence(e), Some(prior)) = (input, self.prior()) {
            logits = evidence::add(&first, ids, &logits, &tape.constant(e.value().clone()), prior)?;
        }
        let &[b, n, v] = logits.shape() else { return Err(Error::Input("logits are not [B, N, V]".into())) };
        let chosen = choose(logits.value(), &Choose { probabilities: true, ..Choose::argmax(n) })?;
        let Some(probabilities) = chosen.probabilities else {
            return Err(Error::Input("there are no probabilities of the first prediction".into()));
        };
        let own = p.tape.constant(probabilities.reshape(&[b, n, v])?.cast(p.dtype)?);
        let own = linear(p.tape, &own, &p.tape.param(p.params, weight), None, None, None)?;
        Ok(elementwise::add(p.tape, y, &own)?)
    }
}
