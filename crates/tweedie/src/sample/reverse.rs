//! The reverse process: from pure noise to tokens. Predict, let the sampler choose and add less noise, and again. Nothing waits for
//! the device: a step queues its work and goes on.

use tweedie_engine::Tensor;

use super::addresses::Addresses;
use super::denoise::{At, Denoise, TokenTimes, predict};
use super::limits::Limits;
use super::running_mean::{running_mean, shares_of_mean};
use super::sampler::Sampler;
use super::state::{Asked, Batch, Clean, Prediction, State, scalars};
use super::{Projection, guidance_at, planned_steps};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::process::{Process, Times};

/// What is to be sampled, by what.
pub(super) struct Reverse<'a> {
    pub denoiser: &'a dyn Denoise,
    pub projection: &'a Projection,
    pub process: &'a Process,
    pub sampler: &'a dyn Sampler,
    pub config: &'a SampleConfig,
    pub addresses: &'a Addresses,
    /// Tokens per example.
    pub tokens: usize,
    pub limits: &'a Limits,
    /// Tell of every step, with this many of the most likely tokens; otherwise numbers come with the last step alone.
    pub trace: Option<usize>,
    /// Choose tokens at the last step too.
    pub choose_last: bool,
}

impl Reverse<'_> {
    /// Sample; `each` sees every step, with the tokens it came to (but for the last step where none are wanted), and may stop with an
    /// error.
    pub fn sample(&self, mut each: impl FnMut(&Prediction, Option<&Clean>) -> Result<()>) -> Result<()> {
        let Reverse { denoiser, projection, process, sampler, config, addresses, limits, .. } = *self;
        let (examples, vocab, per_token_time) =
            (addresses.examples.len(), projection.weight().width(), denoiser.per_token_time());
        if examples == 0 || self.tokens == 0 {
            return Err(Error::Input("there is nothing to sample".into()));
        }
        config.check_running_mean(self.tokens)?;
        let batch = Batch { projection, process, addresses, tokens: self.tokens, limits };
        let mut state = State::start(&batch, config.start, per_token_time)?;
        let steps = sampler.steps(planned_steps(process, config, per_token_time, (self.tokens, vocab))?);
        check_steps(&steps, process.steps())?;
        denoiser.prepare(&self.times_shown(&steps.iter().map(|at| at.t).collect::<Vec<_>>()))?;
        let mut mean = None;
        let all_times: Vec<usize> = (1..=process.steps()).collect();
        for (i, &at) in steps.iter().enumerate() {
            interrupt::check()?;
            let last = at.s == 0;
            state.begin(i, steps.len(), last);
            let w = guidance_at(config, i, steps.len());
            let (u, own) = (state.noisy().clone(), state.token_times(&all_times));
            let when = At { t: at.t, tokens: own.as_ref().map(|(which, times)| TokenTimes { which, times }) };
            let logits = |pairs| if pairs { denoiser.logits_of_pairs(&u, when) } else { denoiser.logits(&u, when) };
            let (logits, guidance) = predict(w, || denoiser.guided(&u, when, w), logits)?;
            self.check_logits(&logits, guidance.is_some(), vocab)?;
            let (logits, guidance) = match config.running_mean {
                true => (&*mean.insert(self.with_step(i, &logits, guidance, mean.as_ref())?), None),
                false => (&logits, guidance),
            };
            let (words, fixed) = (addresses.words.later(i as u32), state.fixed().cloned());
            let asked = Asked {
                tokens: self.tokens,
                words: Some((&words, &addresses.examples)),
                banned: limits.banned(),
                fixed: fixed.as_ref(),
                numbers: last || sampler.reads_log_probs() || self.trace.is_some(),
                top: self.trace.unwrap_or(0),
                last,
            };
            let prediction = Prediction { t: at.t, logits, guidance, examples, vocab, asked };
            if last && !self.choose_last {
                return each(&prediction, None);
            }
            sampler.step(&mut state, &prediction, at)?;
            let taken = match state.taken.take() {
                Some(taken) => taken,
                None => prediction.argmax()?, // a sampler that left the vectors as they are
            };
            each(&prediction, Some(&taken))?;
        }
        Ok(())
    }

    /// The mean of the logits of steps 0 to `i`, guided, from that of the steps before.
    fn with_step(&self, i: usize, logits: &Tensor, guidance: Option<f32>, before: Option<&Tensor>) -> Result<Tensor> {
        let device = logits.device();
        let weight = guidance.map(|w| scalars(&device, [w as f64])).transpose()?;
        running_mean(logits, weight.as_ref(), before, &scalars(&device, shares_of_mean(i))?)
    }

    /// A denoiser may be anybody's: what it returns must be a row of logits for each token, or two of them as `pairs`.
    fn check_logits(&self, logits: &Tensor, pairs: bool, vocab: usize) -> Result<()> {
        let examples = self.addresses.examples.len() * if pairs { 2 } else { 1 };
        match *logits.shape() {
            [b, n, v] if b == examples && n == self.tokens && v >= vocab => Ok(()),
            _ => {
                let want = [examples, self.tokens, vocab];
                Err(Error::Input(format!("a denoiser's logits must be {want:?}, they are {:?}", logits.shape())))
            }
        }
    }

    /// All times that the network will be told: those of the steps, and the first where tokens are clean.
    fn times_shown(&self, times: &[usize]) -> Vec<usize> {
        let clean = self.denoiser.per_token_time() && (self.limits.clean.is_some() || self.config.commits());
        times.iter().copied().chain(clean.then_some(Process::FIRST)).collect()
    }
}

/// A sampler may be anybody's: its steps are at times of the process, and the last one ends at 0.
fn check_steps(steps: &[Times], most: usize) -> Result<()> {
    let Some((last, before)) = steps.split_last() else {
        return Err(Error::Input("a sampler needs at least one step".into()));
    };
    let trained = |t: usize| (1..=most).contains(&t);
    match before.iter().find(|at| !trained(at.t) || !trained(at.s)) {
        Some(at) => Err(Error::Input(format!("{at:?}: the times of a sampler's steps lie in 1 to {most}"))),
        None if !trained(last.t) || last.s != 0 => {
            Err(Error::Input(format!("{last:?}: the last step of a sampler goes from 1 to {most} to time 0")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
