//! Tokens settled one after another, the surest first, as the masked twin does it: a settled token stays, and a network that
//! knows is shown it next to clean.

use tweedie_engine::ops::choose::{Chosen, FREE};
use tweedie_engine::ops::unmask::{Masked, Reveal, unmask};
use tweedie_engine::{DType, Device, Tensor};

use super::Step;
use super::limits::Limits;
use super::walk::scalars;
use crate::error::Result;

/// The steps of tokens that are not settled yet: `guesses` is how far they go along `steps`, 0 not at all and 1 as others do.
pub(super) fn open_steps(steps: &[Step], guesses: f32) -> Vec<Step> {
    let last = steps.len().saturating_sub(1);
    let at = |i: usize| steps[((guesses * i as f32).round() as usize).min(last)].0;
    (0..steps.len()).map(|i| (at(i), if i < last { at(i + 1) } else { 0 })).collect()
}

pub(super) struct Settled {
    /// [`FREE`] where a token is open; given tokens are settled from the start.
    state: Masked,
    /// The same places as 0 where open and 1 where not.
    flags: Tensor,
    ones: Tensor,
}

impl Settled {
    pub fn new(device: &Device, (b, n): (usize, usize), limits: &Limits) -> Result<Settled> {
        let all = |x: u32| Tensor::from_u32(device, &[b, n], vec![x; b * n]);
        let tokens = match &limits.given {
            Some(given) => given.reshape(&[b, n])?,
            None => all(FREE)?,
        };
        let flags = limits.known.as_ref().map_or_else(|| all(0), |k| Ok(k.0.clone()))?;
        let state = Masked { tokens, log_prob: Tensor::zeros(device, &[b, n], DType::F32)? };
        Ok(Settled { state, flags, ones: all(1)? })
    }

    /// Settled tokens, or [`FREE`]: u32 \[B, N\].
    pub fn tokens(&self) -> &Tensor {
        &self.state.tokens
    }

    /// Which are settled, u32 \[B, N\].
    pub fn flags(&self) -> &Tensor {
        &self.flags
    }

    /// Log-probability of each token in the prediction that settled it; 0 for given and open ones. f32 \[B·N\].
    pub fn log_prob(&self) -> Result<Tensor> {
        Ok(self.state.log_prob.reshape(&[self.flags.len()])?)
    }

    /// Settle the surest of `chosen` at step `i` of `count`: as many at every step, but at least one.
    pub fn settle(&mut self, chosen: &Chosen, i: usize, count: usize) -> Result<()> {
        let sure = &chosen.numbers()?.log_prob;
        let share = scalars(&self.flags.device(), [1.0 / (count - i) as f64])?;
        // The same places are open in both and the same are the surest.
        let flags = Masked { tokens: self.flags.clone(), log_prob: self.state.log_prob.clone() };
        self.flags = unmask(&flags, (&self.ones, sure), 0, &share, Reveal::Confident)?.tokens;
        self.state = unmask(&self.state, (&chosen.tokens, sure), FREE, &share, Reveal::Confident)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_tokens_go_part_of_the_way() {
        let steps = [(1000, 750), (750, 500), (500, 250), (250, 0)];
        assert_eq!(open_steps(&steps, 1.0), steps);
        assert_eq!(open_steps(&steps, 0.0), [(1000, 1000), (1000, 1000), (1000, 1000), (1000, 0)]);
        assert_eq!(open_steps(&steps, 0.5), [(1000, 750), (750, 750), (750, 500), (500, 0)]);
        assert_eq!(open_steps(&steps[3..], 0.5), [(250, 0)]);
    }
}
