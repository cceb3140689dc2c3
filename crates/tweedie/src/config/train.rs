//! `[train]`.

use serde::{Deserialize, Serialize};
use tweedie_engine::{DType, Device};

use crate::error::{Error, Result};

/// Type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// bf16 on a GPU, f32 on the CPU.
    Auto,
    /// Always f32.
    F32,
    /// Always bf16 (GPU only).
    Bf16,
}

impl Precision {
    /// The type of activations on a device.
    pub fn dtype(self, device: &Device) -> Result<DType> {
        Ok(match (self, device) {
            (Precision::F32, _) | (Precision::Auto, Device::Cpu) => DType::F32,
            (Precision::Auto | Precision::Bf16, Device::Cuda(_)) => DType::Bf16,
            (Precision::Bf16, Device::Cpu) => {
                return Err(Error::Input("train.precision = \"bf16\" needs a GPU; use \"auto\" or \"f32\"".into()));
            }
        })
    }
}

/// Which weights of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weights {
    /// The averaged ones, if they were kept.
    Ema,
    /// The trained ones.
    Raw,
}

/// How weights are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Optimizer {
    /// AdamW has all.
    Adamw,
    /// Muon has the weight matrices of the blocks, AdamW the rest; rate and decay mean the same to both.
    Muon,
}

/// Optimisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// A run, or one of its checkpoints, whose weights this one starts from, encoder and denoiser; empty: none. The tokenizer is that
    /// run's.
    pub init_from: String,
    /// Which of its weights.
    pub init_weights: Weights,
    /// Passes over the training set.
    pub epochs: usize,
    /// Images per optimizer step.
    pub batch: usize,
    /// Parts that a batch is cut into to save memory; gradients are added up.
    pub accumulate: usize,
    /// Partial gradients of a batch that are computed one by one and added up in their order, whatever the number of ranks: 1, 2 or 4 of them
    /// then train the same run bit for bit. A multiple of the ranks; 0: gradients are summed as it is quickest.
    pub shards: usize,
    /// Spread the optimizer's state (moments, averaged weights) over the ranks: each keeps a share, updates its weights, and gives them to
    /// the others.
    pub shard_optimizer: bool,
    /// MB of gradients that ranks sum together while the backward pass goes on.
    pub bucket_mb: usize,
    /// Noisy copies per image that share its features, each with its own timestep.
    pub noisy_copies: usize,
    /// How weights are updated; Muon needs fewer steps than AdamW, and a little more time for each.
    pub optimizer: Optimizer,
    /// Learning rate per 256 images of batch.
    pub lr: f32,
    /// The rate ends at this share of its peak; 1: it stays there after the warm-up.
    pub min_lr: f32,
    /// Epochs of linear warm-up.
    pub warmup_epochs: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Second-moment decay of AdamW.
    pub beta2: f32,
    /// Global norm that gradients are clipped to (0: not).
    pub clip: f32,
    /// Decay of the averaged weights (0: none).
    pub ema: f32,
    /// Share of the noisy copies that are pure noise, at the last timestep; the others have timesteps of 1 to T alike. There the image alone
    /// decides, as it does for the masked twin: the more, the nearer is training to the twin's (TDD; MDD takes no notice).
    pub pure_noise: f32,
    /// Chance that a noisy copy loses its condition, for classifier-free guidance.
    pub condition_drop: f32,
    /// Share of noisy copies of a sequence in which some tokens are clean (at the first timestep), while the others are at the
    /// copy's timestep: per-token time (TDD; MDD takes no notice). A sampler can then show fixed and committed tokens as what they are.
    pub clean_tokens: f32,
    /// How many times as long as one token's the way from noise to text is. 1: all tokens share one time, the paper's process. More: each takes
    /// its own time, and they start one after another, in random order, so that some are clean, some pure noise, and one in `stagger` or
    /// so is on its way; the larger, the nearer to masking (TDD; MDD takes no notice).
    pub stagger: usize,
    /// Type of activations.
    pub precision: Precision,
    /// Compute activations again in the backward pass to save memory.
    pub recompute: bool,
    /// Evaluate every so many epochs (and at the end).
    pub eval_every: usize,
    /// At most this many images per evaluation during training, drawn by the seed (0: all); of sequences the first.
    pub eval_images: usize,
    /// Checkpoint every so many epochs.
    pub checkpoint_every: usize,
    /// Checkpoints to keep besides the best.
    pub keep: usize,
    /// After so many steps in a row without a finite gradient, go back to the last good checkpoint and stop.
    pub max_skipped: u32,
    /// Steps between lines of the log.
    pub log_every: usize,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            init_from: String::new(),
            init_weights: Weights::Ema,
            epochs: 20,
            batch: 128,
            accumulate: 1,
            shards: 0,
            shard_optimizer: false,
            bucket_mb: 25,
            noisy_copies: 4,
            optimizer: Optimizer::Adamw,
            lr: 1e-3,
            min_lr: 0.01,
            warmup_epochs: 1.0,
            weight_decay: 0.05,
            beta2: 0.95,
            clip: 3.0,
            ema: 0.999,
            pure_noise: 0.0,
            condition_drop: 0.1,
            clean_tokens: 0.0,
            stagger: 1,
            precision: Precision::Auto,
            recompute: false,
            eval_every: 1,
            eval_images: 0,
            checkpoint_every: 1,
            keep: 2,
            max_skipped: 20,
            log_every: 10,
        }
    }
}
