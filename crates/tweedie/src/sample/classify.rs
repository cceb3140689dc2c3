//! Classification: logits of the last step, on the host.

use tweedie_engine::{Tape, Tensor};

use super::limits::Limits;
use super::walk::{Seen, Task, walk};
use super::{Conditioned, Denoise, Projection, softmax};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::model::{Model, Pass};
use crate::schedule::Schedule;

/// What a sampler predicts at one step, for all examples.
pub struct Prediction<'a> {
    /// Time of the noisy vectors.
    pub t: usize,
    logits: &'a Tensor,
    guidance: Option<f32>,
    examples: usize,
}

impl Prediction<'_> {
    /// Guided logits, \[B·N·V\]. This waits for the device, so ask for them only where they are needed.
    pub fn logits(&self) -> Result<Vec<f32>> {
        let l = self.logits.to_vec()?;
        let Some(w) = self.guidance else { return Ok(l) };
        let width = l.len() / (2 * self.examples).max(1);
        let guide = |pair: &[f32]| -> Vec<f32> {
            let (c, u) = pair.split_at(width);
            u.iter().zip(c).map(|(u, c)| w.mul_add(c - u, *u)).collect()
        };
        Ok(l.chunks_exact(2 * width).flat_map(guide).collect())
    }
}

/// Sample `tokens` tokens for each of `examples`; `each` sees every step's prediction. Returns the last one's logits
/// \[B·N·V\].
pub fn run(
    denoiser: &dyn Denoise,
    schedule: &Schedule,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    lambda: f64,
    each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    let projection = Projection::new(denoiser.weight()?, config.noise)?;
    run_with(denoiser, &projection, schedule, config, (examples, tokens), lambda, each)
}

fn run_with(
    denoiser: &dyn Denoise,
    projection: &Projection,
    schedule: &Schedule,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    lambda: f64,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    let mut last = None;
    let task = Task { examples, tokens, lambda, limits: &Limits::default(), top: 0, choose_last: false };
    walk(denoiser, projection, schedule, config, &task, |s: &Seen| {
        let p = Prediction { t: s.t, logits: s.logits, guidance: s.guidance, examples: examples.len() };
        each(&p);
        if s.chosen.is_none() {
            last = Some(p.logits()?);
        }
        Ok(())
    })?;
    last.ok_or_else(|| Error::Input("a sampler needs at least one step".into()))
}

/// Class logits \[B·V\] of images: sampled for TDD, one pass for its twin. With votes, the logarithm of the mean probability.
pub fn classify(
    model: &Model,
    images: &Tensor,
    examples: &[u32],
    schedule: &Schedule,
    lambda: f64,
    config: &SampleConfig,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    if !model.is_tdd() {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        let f = model.masked_features(&p, &model.condition(&p, images)?)?;
        return Ok(model.logits(&p, &f)?.value().to_vec()?);
    }
    let denoiser = Conditioned::new(model, Some(images), 1, config.guidance != 1.0)?;
    let projection = Projection::new(denoiser.weight()?, config.noise)?;
    let vocab = model.sizes().vocab;
    let sizes = (examples, model.sizes().tokens);
    if config.votes == 1 {
        return run_with(&denoiser, &projection, schedule, config, sizes, lambda, each);
    }
    let mut mean = vec![0.0_f64; examples.len() * sizes.1 * vocab];
    for vote in 0..config.votes {
        let config = SampleConfig { seed: config.seed.wrapping_add(vote as u64), ..config.clone() };
        let logits = run_with(&denoiser, &projection, schedule, &config, sizes, lambda, &mut each)?;
        for (m, l) in mean.chunks_exact_mut(vocab).zip(logits.chunks_exact(vocab)) {
            m.iter_mut().zip(softmax(l)).for_each(|(m, p)| *m += p / config.votes as f64);
        }
    }
    Ok(mean.into_iter().map(|p| p.max(1e-30).ln() as f32).collect())
}
