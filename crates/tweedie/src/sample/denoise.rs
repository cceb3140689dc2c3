//! What a sampler asks of a network, or of anything else that denoises.

use tweedie_engine::{Device, Tensor};

use crate::error::{Error, Result};

/// The time of a step, and of tokens with a time of their own (per-token time).
#[derive(Clone, Copy)]
pub struct At<'a> {
    /// The time.
    pub t: usize,
    /// Tokens at other times. Only for a denoiser with [`Denoise::per_token_time`].
    pub tokens: Option<TokenTimes<'a>>,
}

impl From<usize> for At<'_> {
    fn from(t: usize) -> Self {
        At { t, tokens: None }
    }
}

/// Times of tokens that have one of their own.
#[derive(Clone, Copy)]
pub struct TokenTimes<'a> {
    /// For each token, u32 \[B, N\]: 0 where it is at the time of the step, otherwise which of `times` it is at, from 1 on.
    pub which: &'a Tensor,
    /// The times. Where the only one is 1, they are those of clean tokens.
    pub times: &'a [usize],
}

/// Anything that turns noisy vectors into logits of the clean tokens: a network, or a closed form such as the Bayes oracle.
///
/// Only [`Denoise::vocab`] and [`Denoise::logits`] are needed. A network sees y_t through a first layer W; one that says so by
/// [`Denoise::weight`] is handed u = W·y_t, and the sampler never makes vectors as long as the vocabulary.
///
/// ```
/// use tweedie::engine::{Device, Tensor};
/// use tweedie::sample::{At, Denoise, sample_tokens};
/// use tweedie::config::SampleConfig;
/// use tweedie::{Process, Result, Schedule, ScheduleKind};
///
/// /// Bayes' rule for one token with a known prior.
/// struct Oracle {
///     process: Process,
///     prior: Vec<f64>,
/// }
///
/// impl Denoise for Oracle {
///     fn vocab(&self) -> usize {
///         self.prior.len()
///     }
///
///     fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
///         let y = noisy.to_vec()?;
///         let rows = y.chunks_exact(self.vocab()).map(|y| self.process.posterior(y, &self.prior, at.t));
///         let logits = rows.flatten().map(|p| p.ln() as f32).collect();
///         Ok(Tensor::from_f32(&noisy.device(), noisy.shape(), logits)?)
///     }
/// }
///
/// let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 3)?);
/// let oracle = Oracle { process: process.clone(), prior: vec![0.2, 0.7, 0.1] };
/// let made = sample_tokens(&oracle, &process, &SampleConfig::default(), (&[0, 1, 2, 3], 1), None)?;
/// assert_eq!(made.tokens.len(), 4);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub trait Denoise {
    /// Number of classes V.
    fn vocab(&self) -> usize;

    /// Logits \[B, N, V\] for `noisy` at `at`: y_t itself, f32 \[B, N, V\], or W·y_t, \[B, N, d\], where there is a
    /// [`Denoise::weight`]. Rows may be longer than V; nobody looks at what lies beyond.
    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor>;

    /// The layer W that noisy vectors go through, f32 \[d, V\]; `None`: the identity.
    fn weight(&self) -> Result<Option<&Tensor>> {
        Ok(None)
    }

    /// Where it computes.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Told of all times before the first step: what depends on them alone can be computed at once.
    fn prepare(&self, _times: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Whether tokens may be shown to it at times of their own ([`At::tokens`]).
    fn per_token_time(&self) -> bool {
        false
    }

    /// For guidance: logits \[2·B, N, V\], each example with its condition followed by itself without.
    fn logits_of_pairs(&self, _noisy: &Tensor, _at: At) -> Result<Tensor> {
        Err(Error::Input("guidance needs a condition to guide to; set sample.guidance = 1".into()))
    }

    /// Logits \[B, N, V\] already guided with weight `w`, where that is cheaper; `None`: guide the pairs of
    /// [`Denoise::logits_of_pairs`].
    fn guided(&self, _noisy: &Tensor, _at: At, _w: f32) -> Result<Option<Tensor>> {
        Ok(None)
    }
}

/// Logits under the guidance weight `w`, by `guided` where that can, else by `logits` as pairs; with the weight that is still to
/// be applied to those.
pub(super) fn predict(
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
