//! `[sample]`.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::limits::within;
use crate::schedule::ScheduleKind;

/// Steps of a process, and of sampling from it.
pub(super) const MOST_STEPS: usize = 100_000;

/// Longest path of staggered tokens, in ways of one token.
pub(crate) const MOST_STAGGER: usize = 1 << 10;

/// How a noisy vector becomes the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerKind {
    /// One-hot of the most likely class, noised again: the paper's.
    Argmax,
    /// One-hot of a class drawn from the prediction.
    Multinomial,
    /// The prediction itself.
    Softmax,
    /// Deterministic: keeps the implied noise.
    Ddim,
    /// The true reverse step, which carries y_t forward.
    Ancestral,
}

/// What stands for the clean vector in the ancestral step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PosteriorMean {
    /// The prediction itself: what the likelihood bound is about.
    Soft,
    /// One-hot of the most likely class.
    Argmax,
    /// One-hot of a class drawn from the prediction.
    Drawn,
}

/// How noise is drawn for a network that sees it only through its first layer W.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseKind {
    /// Exact where the vocabulary is more than twice as wide as the network, else dense.
    Auto,
    /// One normal number per class, times W.
    Dense,
    /// One normal number per feature, times the Cholesky factor of W·Wᵀ: the same distribution for less.
    Exact,
}

/// The commit order: which tokens of a sequence are committed first, by the masked twin and by TDD trained with
/// `train.clean_tokens`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmasking {
    /// Each masked one with the same chance: the true reverse process. TDD commits none before the last step.
    Random,
    /// The most confident tokens first. For TDD with argmax or multinomial.
    Confident,
}

/// Which of several texts is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rank {
    /// The one with the best bound on its likelihood.
    Bound,
    /// The one most like the others (minimum Bayes risk over n-grams).
    Consensus,
}

/// How guidance grows over the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuidanceShape {
    /// The same at every step.
    Constant,
    /// From nearly none at the first step to all of it at the last.
    Linear,
}

/// What the first step starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Pure noise.
    Noise,
    /// Zeros: deterministic with one step.
    Zeros,
}

/// How predictions are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SampleConfig {
    /// Number of steps S.
    pub steps: usize,
    /// From one vector to the next.
    pub sampler: SamplerKind,
    /// Guidance weight w; 1 costs one pass per step, anything else two.
    pub guidance: f32,
    /// Constant or linear guidance.
    pub guidance_shape: GuidanceShape,
    /// Schedule whose noise levels the steps follow; empty: the one of training.
    pub schedule: String,
    /// What the first step starts from.
    pub start: Start,
    /// What stands for the clean vector in the ancestral step.
    pub posterior_mean: PosteriorMean,
    /// How noise is drawn.
    pub noise: NoiseKind,
    /// Commit order: which tokens are committed first (MDD of sequences, and TDD trained with `train.clean_tokens`).
    pub unmask: Unmasking,
    /// What TDD shows of tokens that are not committed yet: 0 is pure noise, 1 predictions with the noise of the step; between
    /// them, predictions that go this share of the steps.
    pub uncommitted: f32,
    /// Remasking: the share of committed tokens that each step takes back and chooses anew (a commit order; 0: none).
    pub correction: f32,
    /// How many times as long as a token's own the way from noise to text is, for TDD with per-token time: 1 is one time for all tokens; more, and
    /// they start one after another, in random order; 0: as the model was trained (`train.stagger`). A commit order takes no notice.
    pub stagger: usize,
    /// Classes: steps go by the mean of the logits of all steps so far, not by those of the last one alone. With a single token later steps
    /// see nothing but the sampler's own guess; the mean keeps what the first ones saw.
    pub running_mean: bool,
    /// Predictions are the majority over this many independent draws.
    pub votes: usize,
    /// Texts written for each image, of which the best is kept.
    pub candidates: usize,
    /// Which of them is the best.
    pub rank: Rank,
    /// Start of the sampling noise.
    pub seed: u64,
}

impl SampleConfig {
    /// Refuse values that make no sense, naming the field.
    pub fn check(&self) -> Result<()> {
        self.check_ranges().map_err(Error::Input)?;
        if !self.schedule.is_empty() {
            self.schedule.parse::<ScheduleKind>()?;
        }
        Ok(())
    }

    fn check_ranges(&self) -> std::result::Result<(), String> {
        within("sample.steps", self.steps, 1..=MOST_STEPS)?;
        within("sample.votes", self.votes, 1..=1 << 16)?;
        within("sample.candidates", self.candidates, 1..=1 << 16)?;
        within("sample.guidance", self.guidance, -1e3..=1e3)?;
        within("sample.uncommitted", self.uncommitted, 0.0..=1.0)?;
        within("sample.stagger", self.stagger, 0..=MOST_STAGGER)?;
        within("sample.correction", self.correction, 0.0..1.0)
    }

    /// Refuse the running mean of logits where there are several tokens: what later steps see of the others would count for less.
    pub(crate) fn check_running_mean(&self, tokens: usize) -> Result<()> {
        match self.running_mean && tokens > 1 {
            true => Err(Error::Input(format!(
                "sample.running_mean goes with a class, one token; {tokens} are sampled here"
            ))),
            false => Ok(()),
        }
    }

    /// Whether a TDD model with per-token time commits its tokens one after another.
    pub fn commits(&self) -> bool {
        self.unmask == Unmasking::Confident && matches!(self.sampler, SamplerKind::Argmax | SamplerKind::Multinomial)
    }

    /// Steps that are taken for texts of so many tokens, by a TDD model with per-token time or without. Each commits a
    /// token of every text, so that without correction more steps than tokens would find nothing to do.
    pub fn steps_taken(&self, per_token_time: bool, tokens: usize) -> usize {
        let idle = per_token_time && self.commits() && self.correction == 0.0;
        if idle { self.steps.min(tokens) } else { self.steps }
    }

    /// Steps of the masked twin for texts of so many tokens. Where the most confident come first each step reveals a token of every
    /// text, so that without correction more steps than tokens would find nothing to do.
    pub fn steps_masked(&self, tokens: usize) -> usize {
        let idle = self.unmask == Unmasking::Confident && self.correction == 0.0;
        if idle { self.steps.min(tokens) } else { self.steps }
    }
}

impl Default for SampleConfig {
    fn default() -> SampleConfig {
        SampleConfig {
            steps: 20,
            sampler: SamplerKind::Argmax,
            guidance: 1.0,
            guidance_shape: GuidanceShape::Constant,
            schedule: String::new(),
            start: Start::Noise,
            posterior_mean: PosteriorMean::Soft,
            noise: NoiseKind::Auto,
            unmask: Unmasking::Random,
            uncommitted: 0.0,
            correction: 0.0,
            stagger: 0,
            running_mean: false,
            votes: 1,
            candidates: 1,
            rank: Rank::Bound,
            seed: 0,
        }
    }
}
