//! The masked twin's sampler: all tokens start masked, and each step reveals some of them for good.

use tweedie_engine::ops::choose::{Choose, Chosen, How, choose};
use tweedie_engine::ops::unmask::{Masked, Reveal, remask, unmask};
use tweedie_engine::{DType, Device, Tensor};

use super::addresses::Addresses;
use super::denoise::predict;
use super::guidance_at;
use super::limits::Limits;
use super::shares::shares;
use super::state::scalars;
use crate::config::{SampleConfig, SamplerKind, Unmasking};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::process::{Process, Times};

/// A network that fills in masked tokens, as the sampler sees it.
pub trait Fill {
    /// Where it computes.
    fn device(&self) -> Device;

    /// Size of the vocabulary V; a masked token is V.
    fn vocab(&self) -> usize;

    /// Told of all times before the first step, as in [`super::Denoise::prepare`].
    fn prepare(&self, _times: &[usize]) -> Result<()> {
        Ok(())
    }

    /// As [`super::Denoise::guided`].
    fn guided(&self, _ids: &Tensor, _t: usize, _w: f32) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Logits \[B, N, V\] for `ids`, u32 \[B, N\], at time `t` of T; `guided`: pairs; rows may be longer than V: all as in
    /// [`super::Denoise::logits`].
    fn logits(&self, ids: &Tensor, t: usize, guided: bool) -> Result<Tensor>;
}

/// What one step did.
pub(super) struct Filled<'a> {
    pub t: usize,
    pub chosen: &'a Chosen,
    /// What is revealed after it.
    pub state: &'a Masked,
}

/// Sample from the tokens `start`, u32 \[B, N\]; `each` sees every step. A token is masked with chance t/T at time t, so from t to s a masked one is revealed with
/// chance (t−s)/t.
pub(super) fn fill(
    network: &dyn Fill,
    process: &Process,
    config: &SampleConfig,
    addresses: &Addresses,
    start: &Tensor,
    limits: &Limits,
    top: usize,
    mut each: impl FnMut(&Filled) -> Result<()>,
) -> Result<Masked> {
    let Addresses { examples: ids, words, reveals, remasks, .. } = addresses;
    let &[b, n] = start.shape() else { return Err(Error::Input(format!("tokens {:?} are not [B, N]", start.shape()))) };
    let mask = network.vocab() as u32;
    if b == 0 || n == 0 {
        return Err(Error::Input("there is nothing to sample".into()));
    }
    let device = network.device();
    let mut state = Masked { tokens: start.clone(), log_prob: Tensor::zeros(&device, &[b, n], DType::F32)? };
    let drawn = matches!(config.sampler, SamplerKind::Multinomial | SamplerKind::Ancestral);
    let times = process.schedule().spaced(config.steps_masked(n));
    network.prepare(&times[..times.len().saturating_sub(1)])?;
    for (i, pair) in times.windows(2).enumerate() {
        interrupt::check()?;
        let (t, s) = (pair[0], pair[1]);
        let w = guidance_at(config, i, times.len() - 1);
        let seen = &state.tokens;
        let (logits, guidance) = predict(w, || network.guided(seen, t, w), |pairs| network.logits(seen, t, pairs))?;
        let weight = guidance.map(|w| scalars(&device, [w as f64])).transpose()?;
        let step_words = words.later(i as u32);
        let chosen = choose(
            &logits,
            &Choose {
                tokens: n,
                classes: Some(network.vocab()),
                guidance: weight.as_ref(),
                how: match drawn {
                    true => How::Drawn { noise: &step_words, examples: ids },
                    false => How::Argmax,
                },
                banned: limits.banned(),
                fixed: limits.fixed.as_ref(),
                numbers: true,
                probabilities: false,
                top,
            },
        )?;
        drop(logits);
        let shares = shares(Times { t, s }, process.steps(), config.correction);
        let (step_reveals, step_remasks) = (reveals.later(i as u32), remasks.later(i as u32));
        let how = |noise| match config.unmask {
            Unmasking::Random => Reveal::Random { noise, examples: ids },
            Unmasking::Confident => Reveal::Confident,
        };
        let (share, before) = (scalars(&device, [shares.commit])?, state);
        state = unmask(&before, (&chosen.tokens, &chosen.numbers()?.log_prob), mask, &share, how(&step_reveals))?;
        if shares.free > 0.0 {
            let (share, fixed) = (scalars(&device, [shares.free])?, limits.fixed.as_ref());
            state = remask(&state, &before, fixed, mask, &share, how(&step_remasks))?;
        }
        each(&Filled { t, chosen: &chosen, state: &state })?;
    }
    Ok(state)
}

#[cfg(test)]
mod tests;
