//! The loop: predict, choose, add less noise. Nothing waits for the device: a step queues its work and goes on.

use tweedie_engine::ops::blend::{First, blend};
use tweedie_engine::ops::choose::{Choose, Chosen, How, choose};
use tweedie_engine::ops::linear::linear;
use tweedie_engine::ops::tokens::embed;
use tweedie_engine::{DType, Device, Tape, Tensor};

use super::addresses::Addresses;
use super::limits::Limits;
use super::settle::{Settled, open_steps};
use super::{At, Denoise, Projection, guidance_at, posterior, predict, steps};
use crate::config::{PosteriorMean, SampleConfig, Sampler, Start};
use crate::error::{Error, Result};
use crate::schedule::{FIRST, Schedule};

/// What is to be sampled.
pub(super) struct Task<'a> {
    pub addresses: &'a Addresses,
    /// Tokens per example.
    pub tokens: usize,
    /// λ of λ-hot labels.
    pub lambda: f64,
    pub limits: &'a Limits,
    /// Tell of every step, with this many of the most likely tokens; otherwise numbers come with the last step alone.
    pub trace: Option<usize>,
    /// Choose tokens at the last step too.
    pub choose_last: bool,
}

/// What one step predicts.
pub(super) struct Seen<'a> {
    pub t: usize,
    /// \[B, N, V\], or pairs \[2·B, N, V\] with a guidance weight; rows may be longer than V.
    pub logits: &'a Tensor,
    pub guidance: Option<f32>,
    /// The tokens, but for the last step of a task that does not want them.
    pub chosen: Option<&'a Chosen>,
}

/// A small upload.
pub(super) fn scalars<const N: usize>(device: &Device, x: [f64; N]) -> Result<Tensor> {
    Ok(Tensor::from_f32(device, &[N], x.iter().map(|x| *x as f32).collect())?)
}

/// Whether the sampler draws tokens or takes the most likely ones.
pub(super) fn draws(config: &SampleConfig) -> bool {
    match config.sampler {
        Sampler::Multinomial => true,
        Sampler::Ancestral => config.posterior_mean == PosteriorMean::Drawn,
        _ => false,
    }
}

/// Whether the prediction itself stands for the clean vector, and not a token.
fn is_soft(config: &SampleConfig) -> bool {
    match config.sampler {
        Sampler::Softmax | Sampler::Ddim => true,
        Sampler::Ancestral => config.posterior_mean == PosteriorMean::Soft,
        _ => false,
    }
}

/// (a, b, c) of u_s = a·W·ŷ_0 + b·u_t + c·n.
fn coefficients(schedule: &Schedule, sampler: Sampler, (t, s): (usize, usize), lambda: f64) -> [f64; 3] {
    match sampler {
        Sampler::Argmax | Sampler::Multinomial | Sampler::Softmax => {
            [lambda * schedule.signal(s), 0.0, schedule.spread(s)]
        }
        Sampler::Ddim => {
            let keep = schedule.spread(s) / schedule.spread(t);
            [lambda * (schedule.signal(s) - keep * schedule.signal(t)), keep, 0.0]
        }
        Sampler::Ancestral => {
            let (a, b, c) = posterior(schedule, t, s);
            [lambda * a, b, c]
        }
    }
}

/// Coefficients \[B·N, 3\] of tokens that are open or `known` (u32 \[B, N\]).
fn by_row(open: [f64; 3], of_known: [f64; 3], known: &Tensor) -> Result<Tensor> {
    let table = open.into_iter().chain(of_known).map(|x| x as f32).collect();
    let (tape, table) = (Tape::inference(), Tensor::from_f32(&known.device(), &[2, 3], table)?);
    let by = embed(&tape, &tape.constant(table), known, DType::F32)?;
    Ok(by.value().reshape(&[known.len(), 3])?)
}

/// Sample; `each` sees every step and may stop with an error.
pub(super) fn walk(
    denoiser: &dyn Denoise,
    projection: &Projection,
    schedule: &Schedule,
    config: &SampleConfig,
    task: &Task,
    mut each: impl FnMut(&Seen) -> Result<()>,
) -> Result<()> {
    let (device, weight) = (projection.device(), projection.weight());
    let (d, vocab) = (weight.shape()[0], weight.shape()[1]);
    let Addresses { examples, noise, words, .. } = task.addresses;
    let (b, n) = (examples.len(), task.tokens);
    if b == 0 || n == 0 {
        return Err(Error::Input("there is nothing to sample".into()));
    }
    let given = task.limits.known.as_ref().filter(|_| denoiser.knows());
    let mut known = given.map(|g| g.0.clone());
    let (steps, mut settled) = match denoiser.knows() && config.settles() {
        true => {
            let config = SampleConfig { steps: config.steps_taken(true, n), ..config.clone() };
            let steps = open_steps(&steps(schedule, &config, vocab)?, config.guesses);
            (steps, Some(Settled::new(&device, (b, n), task.limits)?))
        }
        false => (steps(schedule, config, vocab)?, None),
    };
    let first = (settled.is_some() || given.is_some()).then_some(FIRST);
    denoiser.expect(&steps.iter().map(|s| s.0).chain(first).collect::<Vec<_>>())?;
    let soft = is_soft(config);
    let mut u = match config.start {
        Start::Noise => projection.draw(noise, examples, n)?,
        Start::Zeros => Tensor::zeros(&device, &[b, n, d], DType::F32)?,
    };
    let of_known = [task.lambda * schedule.signal(FIRST), 0.0, schedule.spread(FIRST)];
    if let Some((flags, tokens)) = given {
        let open = if config.start == Start::Noise { 1.0 } else { 0.0 };
        let by = by_row([0.0, 0.0, open], of_known, flags)?;
        let noise = if config.start == Start::Noise { u } else { projection.draw(noise, examples, n)? };
        u = blend(&by, First::Columns { matrix: weight, ids: tokens }, None, Some(&noise))?.reshape(&[b, n, d])?;
    }
    for (i, &(t, s)) in steps.iter().enumerate() {
        let w = guidance_at(config, i, steps.len());
        let at = At { t, known: known.as_ref() };
        let (logits, guidance) = predict(w, || denoiser.guided(&u, at, w), |pairs| denoiser.logits(&u, at, pairs))?;
        let last = s == 0;
        if last && !task.choose_last {
            return each(&Seen { t, logits: &logits, guidance, chosen: None });
        }
        let weight_of_condition = guidance.map(|w| scalars(&device, [w as f64])).transpose()?;
        let step_words = words.later(i as u32);
        let how = Choose {
            tokens: n,
            classes: Some(vocab),
            guidance: weight_of_condition.as_ref(),
            how: match draws(config) {
                true => How::Drawn { noise: &step_words, examples },
                false => How::Argmax,
            },
            banned: task.limits.banned(),
            given: settled.as_ref().map(Settled::tokens).or(task.limits.given.as_ref()),
            numbers: last || settled.is_some() || task.trace.is_some(),
            probabilities: soft && !last,
            top: task.trace.unwrap_or(0),
        };
        let mut chosen = choose(&logits, &how)?;
        if let Some(settled) = &mut settled {
            settled.settle(&chosen, i, steps.len())?;
            known = Some(settled.flags().clone());
            if let Some(numbers) = chosen.numbers.as_mut().filter(|_| last) {
                numbers.log_prob = settled.log_prob()?;
            }
        }
        each(&Seen { t, logits: &logits, guidance, chosen: Some(&chosen) })?;
        if last {
            return Ok(());
        }
        drop(logits);
        let by = coefficients(schedule, config.sampler, (t, s), task.lambda);
        let fresh = match by[2] != 0.0 || known.is_some() {
            true => Some(projection.draw(&noise.later(i as u32 + 1), examples, n)?),
            false => None,
        };
        let before = (by[1] != 0.0).then_some(&u);
        let by = match &known {
            Some(known) => by_row(by, of_known, known)?,
            None => scalars(&device, by)?,
        };
        let clean = match &chosen.probabilities {
            Some(p) => Some(project(p, weight)?),
            None => None,
        };
        let first = match &clean {
            Some(x) => First::Values(x),
            None => First::Columns { matrix: weight, ids: &chosen.tokens },
        };
        // One of both is there: where nothing of u_t is kept, noise is added.
        u = blend(&by, first, before, fresh.as_ref())?.reshape(&[b, n, d])?;
    }
    Ok(())
}

/// W·p of probabilities \[rows, V\] in their type.
fn project(p: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let tape = Tape::inference();
    Ok(linear(&tape, &tape.constant(p.clone()), &tape.constant(weight.clone()), None, None, None)?.value().clone())
}

#[cfg(test)]
mod tests;
