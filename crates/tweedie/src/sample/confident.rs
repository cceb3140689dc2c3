//! The commit order of TDD: at each step the most confident tokens are committed, as the masked twin does it, and a network with per-token
//! time is shown them next to clean. A committed token stays, or with `sample.correction` may be taken back: the network, which is asked
//! of every token at every step, then finds it unlikely beside those that were committed since.

use tweedie_engine::ops::choose::FREE;
use tweedie_engine::ops::unmask::{Masked, Reveal, remask, unmask};
use tweedie_engine::{DType, Device, Tensor};

use super::limits::Limits;
use super::sampler::Sampler;
use super::shares::{Shares, shares};
use super::state::{Clean, Prediction, State, scalars};
use crate::error::Result;
use crate::process::Times;

/// Commits the most confident tokens at each step, as many at every step but at least one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Confident {
    /// Tokens are drawn, not the most likely ones.
    pub drawn: bool,
    /// How far tokens that are not committed yet go along the steps: 0 not at all and 1 as others do (`sample.uncommitted`).
    pub uncommitted: f32,
    /// The share of committed tokens that a step takes back (`sample.correction`).
    pub correction: f32,
}

impl Confident {
    /// What step `i` of `count` commits and takes back.
    pub fn shares(&self, i: usize, count: usize) -> Shares {
        shares(Times { t: count - i, s: count - i - 1 }, count, self.correction)
    }
}

impl Sampler for Confident {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let clean = if self.drawn { prediction.draw()? } else { prediction.argmax()? };
        let clean = state.commit(clean, self)?;
        state.renoise(&clean, at.s)
    }

    fn steps(&self, planned: Vec<Times>) -> Vec<Times> {
        let last = planned.len().saturating_sub(1);
        let at = |i: usize| planned[((self.uncommitted * i as f32).round() as usize).min(last)].t;
        (0..planned.len()).map(|i| Times { t: at(i), s: if i < last { at(i + 1) } else { 0 } }).collect()
    }

    fn is_capturable(&self) -> bool {
        true
    }
}

/// What is committed so far.
pub(super) struct Committed {
    /// [`FREE`] where a token is open; fixed tokens are committed from the start.
    state: Masked,
    /// The same places as 0 where open and 1 where not.
    flags: Tensor,
    ones: Tensor,
}

impl Committed {
    pub fn new(device: &Device, (b, n): (usize, usize), limits: &Limits) -> Result<Committed> {
        let all = |x: u32| Tensor::from_u32(device, &[b, n], vec![x; b * n]);
        let tokens = match &limits.fixed {
            Some(fixed) => fixed.reshape(&[b, n])?,
            None => all(FREE)?,
        };
        let flags = limits.clean.as_ref().map_or_else(|| all(0), |c| Ok(c.0.clone()))?;
        let state = Masked { tokens, log_prob: Tensor::zeros(device, &[b, n], DType::F32)? };
        Ok(Committed { state, flags, ones: all(1)? })
    }

    /// Committed tokens, or [`FREE`]: u32 \[B, N\].
    pub fn tokens(&self) -> &Tensor {
        &self.state.tokens
    }

    /// Which are committed, u32 \[B, N\].
    pub fn flags(&self) -> &Tensor {
        &self.flags
    }

    /// Log-probability of each token in the prediction that committed it; 0 for fixed and open ones. f32 \[B·N\].
    pub fn log_prob(&self) -> Result<Tensor> {
        Ok(self.state.log_prob.reshape(&[self.flags.len()])?)
    }

    /// Commit the most confident of `chosen` among the open ones, and take back those of the ones committed before that are the least
    /// likely by the present prediction; `fixed` tokens stay.
    pub fn commit(&mut self, chosen: &Clean, shares: Shares, fixed: Option<&Tensor>) -> Result<()> {
        let sure = &chosen.numbers()?.log_prob;
        let share = scalars(&self.flags.device(), [shares.commit])?;
        // The same places are open in both and the same are the surest.
        let before = self.state.clone();
        let flags_before = Masked { tokens: self.flags.clone(), log_prob: before.log_prob.clone() };
        let flags = unmask(&flags_before, (&self.ones, sure), 0, &share, Reveal::Confident)?;
        self.flags = flags.tokens.clone();
        self.state = unmask(&before, (chosen.ids(), sure), FREE, &share, Reveal::Confident)?;
        if shares.free > 0.0 {
            let share = scalars(&self.flags.device(), [shares.free])?;
            let now = sure.reshape(self.flags.shape())?;
            let [before, flags_before] = [before, flags_before].map(|b| Masked { log_prob: now.clone(), ..b });
            self.flags = remask(&flags, &flags_before, fixed, 0, &share, Reveal::Confident)?.tokens;
            self.state = remask(&self.state, &before, fixed, FREE, &share, Reveal::Confident)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_tokens_go_part_of_the_way() {
        let times = |all: &[(usize, usize)]| all.iter().map(|&(t, s)| Times { t, s }).collect::<Vec<_>>();
        let steps = times(&[(1000, 750), (750, 500), (500, 250), (250, 0)]);
        let taken = |uncommitted, steps: &[Times]| {
            Confident { drawn: false, uncommitted, correction: 0.0 }.steps(steps.to_vec())
        };
        assert_eq!(taken(1.0, &steps), steps);
        assert_eq!(taken(0.0, &steps), times(&[(1000, 1000), (1000, 1000), (1000, 1000), (1000, 0)]));
        assert_eq!(taken(0.5, &steps), times(&[(1000, 750), (750, 750), (750, 500), (500, 0)]));
        assert_eq!(taken(0.5, &steps[3..]), times(&[(250, 0)]));
        assert_eq!(taken(0.5, &[]), []);
    }
}
