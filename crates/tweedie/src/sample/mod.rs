//! Sampling: from pure noise to tokens in S steps, on the device.
//!
//! A denoiser sees y_t only through W·y_t, and every sampler's update is linear in y_t. So what is carried from step to step
//! is u = W·y_t, \[B, N, d\], whatever the vocabulary:
//!
//! | sampler | u_s = a·W·ŷ_0 + b·u_t + c·n | ŷ_0 |
//! |---|---|---|
//! | argmax, multinomial | √ᾱ_s·λ, 0, √(1−ᾱ_s) | one-hot, of the most likely class or of one drawn |
//! | softmax | the same | the prediction |
//! | ddim | λ·(√ᾱ_s − √ᾱ_t·σ_s/σ_t), σ_s/σ_t, 0 with σ = √(1−ᾱ) | the prediction |
//! | ancestral | [`posterior`] | the prediction, or one-hot (`sample.posterior_mean`) |
//!
//! Tokens that are known, where a model was trained to have such ([`At::known`]), are always at s = 1: those that are given,
//! and with `sample.unmask = "confident"` those that are settled (`settle.rs`).
//!
//! n = W·ε is drawn in one of two ways ([`Projection`]). Noise is addressed by (seed, stream, example, step), so that what
//! an example gets does not depend on its batch. [`run`] gives logits (classification), [`Generator`] gives tokens.

mod addresses;
mod classify;
mod generate;
mod graphs;
mod limits;
mod masked;
mod network;
mod noise;
mod settle;
mod walk;

pub use classify::{Classifier, Prediction, classify, run};
pub use generate::{Generated, Generator, Request, Traced};
pub use graphs::GraphUse;
pub use limits::Ending;
pub use masked::Fill;
pub use network::Conditioned;
pub use noise::{Projection, cholesky, gram};

use tweedie_engine::Tensor;

use crate::config::{GuidanceShape, SampleConfig};
use crate::error::Result;
use crate::schedule::Schedule;

/// Streams of the sampling noise, of drawn tokens, and of which masked tokens are revealed.
const STREAM: u32 = 0x5a3e;
const DRAWS: u32 = 0xd4a3;
const REVEALS: u32 = 0x4e71;

/// When the tokens of a step are.
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The time.
    pub t: usize,
    /// Which tokens are known and so at time 1 instead, u32 \[B, N\]: 1, and 0 for the others. Only for a denoiser that
    /// [`Denoise::knows`].
    pub known: Option<&'a Tensor>,
}

impl From<usize> for At<'_> {
    fn from(t: usize) -> Self {
        At { t, known: None }
    }
}

/// A denoiser as the sampler sees it: noisy vectors at a time to logits. The Bayes oracle is one, a network another.
pub trait Denoise {
    /// The layer W that noisy vectors go through, f32 \[d, V\]. Where it is the identity, u is y_t.
    fn weight(&self) -> Result<&Tensor>;

    /// Told of all times before the first step: what depends on them alone can be computed at once.
    fn expect(&self, _times: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Whether tokens may be shown to it as known.
    fn knows(&self) -> bool {
        false
    }

    /// Logits \[B, N, V\] already guided with weight `w`, where that is cheaper; `None`: guide the pairs of
    /// [`Denoise::logits`].
    fn guided(&self, _u: &Tensor, _at: At, _w: f32) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Logits \[B, N, V\] for `u` = W·y_t, f32 \[B, N, d\], at `at`. `guided`: \[2·B, N, V\], each example with its condition
    /// followed by itself without. Rows may be longer than V; nobody looks at what lies beyond.
    fn logits(&self, u: &Tensor, at: At, guided: bool) -> Result<Tensor>;
}

/// What one sampler step starts from: (t, s) with s the next, cleaner time.
type Step = (usize, usize);

/// The steps of a sampler: pairs (t, s) of trained times from T down to 0.
pub fn steps(schedule: &Schedule, config: &SampleConfig, vocab: usize) -> Result<Vec<Step>> {
    let times = match config.schedule.as_str() {
        "" => schedule.spaced(config.steps),
        name => schedule.spaced_along(&Schedule::new(name.parse()?, schedule.steps(), vocab)?, config.steps),
    };
    Ok(times.windows(2).map(|w| (w[0], w[1])).collect())
}

/// Guidance weight at step `i` of `count`.
pub fn guidance_at(config: &SampleConfig, i: usize, count: usize) -> f32 {
    match config.guidance_shape {
        GuidanceShape::Constant => config.guidance,
        GuidanceShape::Linear => 1.0 + (config.guidance - 1.0) * (i + 1) as f32 / count as f32,
    }
}

/// Logits under the guidance weight `w`, by `guided` where that can, else by `logits` as pairs; with the weight that is still to
/// be applied to those.
fn predict(
    w: f32,
    guided: impl FnOnce() -> Result<Option<Tensor>>,
    logits: impl FnOnce(bool) -> Result<Tensor>,
) -> Result<(Tensor, Option<f32>)> {
    if w == 1.0 {
        return Ok((logits(false)?, None));
    }
    match guided()? {
        Some(logits) => Ok((logits, None)),
        None => Ok((logits(true)?, Some(w))),
    }
}

/// Coefficients of the reverse step: y_s = a·ŷ_0 + b·y_t + c·z.
pub fn posterior(schedule: &Schedule, t: usize, s: usize) -> (f64, f64, f64) {
    let (at, r#as) = (schedule.alpha_bar(t), schedule.alpha_bar(s));
    let ratio = at / r#as;
    let a = r#as.sqrt() * (1.0 - ratio) / (1.0 - at);
    let b = ratio.sqrt() * (1.0 - r#as) / (1.0 - at);
    let c = ((1.0 - ratio) * (1.0 - r#as) / (1.0 - at)).sqrt();
    (a, b, c)
}

/// softmax over a row, in f64.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)) as f64;
    let e: Vec<f64> = logits.iter().map(|x| (*x as f64 - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|x| x / sum).collect()
}

/// The most likely class (the first of equals).
pub fn argmax<T: PartialOrd + Copy>(x: &[T]) -> usize {
    x.iter().enumerate().fold(0, |best, (i, v)| if *v > x[best] { i } else { best })
}

/// A class drawn with exact inverse CDF in f64: Gumbel noise in f32 would cut the tail.
pub fn draw(p: &[f64], u: f64) -> usize {
    let mut sum = 0.0;
    for (i, q) in p.iter().enumerate() {
        sum += q;
        if u < sum {
            return i;
        }
    }
    // Rounding may leave the sum just below 1: the last class that has any probability.
    p.iter().rposition(|q| *q > 0.0).unwrap_or(0)
}
