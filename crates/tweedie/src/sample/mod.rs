//! Sampling: from pure noise to tokens in S steps, on the device.
//!
//! The loop is in `reverse.rs`: a [`Denoise`]r predicts, a [`Sampler`] turns the prediction about y_t into y_s, until s = 0. A
//! denoiser sees y_t only through W·y_t, and every update is linear in y_t ([`Update`](crate::Update)). So what is carried from step to
//! step ([`State`]) is u = W·y_t, \[B, N, d\], whatever the vocabulary:
//!
//! | `sample.sampler` | u_s = clean·W·ŷ_0 + keep·u_t + noise·n | ŷ_0 |
//! |---|---|---|
//! | argmax, multinomial | [`Process::renoise`] | one-hot, of the most likely class or of one drawn |
//! | softmax | the same | the prediction |
//! | ddim | [`Process::ddim`] | the prediction |
//! | ancestral | [`Process::reverse`] | the prediction, or one-hot (`sample.posterior_mean`) |
//!
//! Of a class, one token, a step may go by the mean of the logits so far (`sample.running_mean`, `running_mean.rs`).
//!
//! Clean tokens, where a model was trained with per-token time ([`At::tokens`]), are always at s = 1: those that are fixed, and with
//! `sample.unmask = "confident"`, the commit order, those that are committed (`confident.rs`). With `sample.stagger` each token has a time of
//! its own (`staggered.rs`).
//!
//! n = W·ε is drawn in one of two ways ([`Projection`]). Noise is addressed by (seed, stream, example, step), so that what
//! an example gets does not depend on its batch. [`sample_logits`] and [`sample_tokens`] work with any denoiser;
//! [`ClassSampler`] and [`TokenSampler`] with a trained network and captured graphs. Texts are made by
//! [`Generator`](crate::generate::Generator).

mod addresses;
mod classes;
mod confident;
mod denoise;
mod graphs;
mod limits;
mod masked;
mod network;
mod noise;
mod posterior;
mod reverse;
mod running_mean;
mod sampler;
mod shares;
mod staggered;
mod state;
mod tokens;

pub(crate) use classes::mean_vote;
pub use classes::{ClassSampler, sample_logits};
pub use denoise::{At, Denoise, TokenTimes};
pub use graphs::GraphUse;
pub(crate) use graphs::{Captured, Graphs};
pub use limits::Ending;
pub(crate) use limits::Kept;
pub use masked::Fill;
pub use network::Conditioned;
pub(crate) use network::{guides_features, head, projection};
pub use noise::{Projection, cholesky, gram};
pub use posterior::Posterior;
pub(crate) use running_mean::{running_mean, shares_of_mean};
pub(crate) use sampler::{BuiltIn, Estimate, Linear};
pub use sampler::{Sampler, sampler_of};
pub(crate) use shares::{Shares, shares};
pub(crate) use staggered::Staggered;
pub(crate) use state::factors;
pub use state::{Clean, Mix, Prediction, State};
pub use tokens::{Generated, Request, TokenSampler, Traced, sample_tokens, sample_tokens_by};
pub(crate) use tokens::{candidate_id, check_candidates};

use crate::config::{GuidanceShape, SampleConfig};
use crate::error::Result;
use crate::process::{Process, Times};

/// Streams of the sampling noise, of drawn tokens, of which masked tokens are revealed and which are masked again, and of when tokens start.
pub(crate) const STREAM: u32 = 0x5a3e;
pub(crate) const DRAWS: u32 = 0xd4a3;
pub(crate) const REVEALS: u32 = 0x4e71;
pub(crate) const REMASKS: u32 = 0x4e72;
pub(crate) const STARTS: u32 = 0x57a7;

/// The steps that settings name, from T down to 0, for examples of so many `tokens` of `vocab` classes and a denoiser with `per_token_time`
/// or without.
pub(crate) fn planned_steps(
    process: &Process,
    config: &SampleConfig,
    per_token_time: bool,
    (tokens, vocab): (usize, usize),
) -> Result<Vec<Times>> {
    let count = config.steps_taken(per_token_time, tokens);
    Ok(match config.schedule.as_str() {
        "" => process.spaced(count),
        name => {
            let along = Process::of_kind(name.parse()?, process.steps(), vocab, process.lambda())?;
            process.spaced_along(along.schedule(), count)
        }
    })
}

/// Guidance weight at step `i` of `count`.
pub fn guidance_at(config: &SampleConfig, i: usize, count: usize) -> f32 {
    match config.guidance_shape {
        GuidanceShape::Constant => config.guidance,
        GuidanceShape::Linear => 1.0 + (config.guidance - 1.0) * (i + 1) as f32 / count as f32,
    }
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
