//! `[loss]`.

use serde::{Deserialize, Serialize};

use crate::model::EncoderGradient;

/// What the network is trained to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LossKind {
    /// Cross-entropy of the clean token: the method.
    CrossEntropy,
    /// Squared error of the noise (the paper's ablation).
    Noise,
    /// Squared error of the clean vector.
    X0,
}

/// What a noisy copy of a mixed image (mixup, cutmix) should be denoised to. Its one-hot vector is that of one of the two
/// labels, drawn by their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixedTarget {
    /// The label that was drawn.
    Drawn,
    /// Both labels, with their chances given the noisy vector: the same expected gradient, less noise in it.
    Posterior,
}

/// What label smoothing smooths (TDD).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmoothingIn {
    /// The target, alike at all times: a network can then never be sure, though the noisy vector shows its token.
    Target,
    /// The label before it is corrupted: the target is its posterior given the noisy vector, ∝ ((1−ε)·one-hot + ε/K)·exp(κ·y_t), smoothed at
    /// pure noise and one-hot where it is clean.
    Prior,
}

/// How masked tokens count in MDD's loss of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MaskWeight {
    /// By 1/t, with t the chance of a token to be masked: the loss is then the likelihood bound in nats per token.
    Inverse,
    /// All alike: the mean over the masked tokens.
    Plain,
}

/// The objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossConfig {
    /// What is predicted.
    pub kind: LossKind,
    /// Weight each term by ᾱ_t (TDD). Off: the paper and the pilot both found the plain loss slightly better.
    pub weighted: bool,
    /// Label smoothing.
    pub smoothing: f32,
    /// What it smooths (TDD).
    pub smoothing_in: SmoothingIn,
    /// Target of mixed images.
    pub mixed: MixedTarget,
    /// Weight of padding beside 1 for other tokens, in \[0, 1\]. Below 1, short texts in long sequences are less about
    /// predicting that they have ended; at 0 nothing says where a text ends.
    pub pad_weight: f32,
    /// How masked tokens count (MDD of sequences).
    pub mask_weight: MaskWeight,
    /// Weight of a second cross-entropy, of what the direct path says alone (TDD with `model.denoiser.direct`): the twin's loss.
    pub direct: f32,
    /// What of the denoising loss reaches the encoder (TDD with `model.denoiser.direct`).
    pub encoder_gradient: EncoderGradient,
}

impl Default for LossConfig {
    fn default() -> LossConfig {
        LossConfig {
            kind: LossKind::CrossEntropy,
            weighted: false,
            smoothing: 0.1,
            smoothing_in: SmoothingIn::Target,
            mixed: MixedTarget::Posterior,
            pad_weight: 1.0,
            mask_weight: MaskWeight::Inverse,
            direct: 0.0,
            encoder_gradient: EncoderGradient::Full,
        }
    }
}
