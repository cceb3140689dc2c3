//! Everything that defines a run. A recipe is a TOML file of these fields; what it leaves out has the defaults below.

mod check;
mod data;
mod loss;
mod process;
mod sample;
mod train;

pub use data::{Corrupt, DataConfig};
pub use loss::{LossConfig, LossKind, MaskWeight, MixedTarget, SmoothingIn};
pub use process::ProcessConfig;
pub(crate) use sample::MOST_STAGGER;
pub use sample::{GuidanceShape, NoiseKind, PosteriorMean, Rank, SampleConfig, SamplerKind, Start, Unmasking};
pub use train::{Optimizer, Precision, TrainConfig, Weights};

use serde::{Deserialize, Serialize};

pub use crate::model::{Method, ModelConfig, PRESETS};

use crate::augment::AugmentConfig;
use crate::data::Task;
use crate::error::Result;
use crate::model::Sizes;
use crate::settings::Layers;

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Start of every random stream: weights, data order, augmentation, noise.
    pub seed: u64,
    /// The data set.
    pub data: DataConfig,
    /// What is done to images.
    pub augment: AugmentConfig,
    /// The network.
    pub model: ModelConfig,
    /// The diffusion process.
    pub process: ProcessConfig,
    /// The objective.
    pub loss: LossConfig,
    /// Optimisation.
    pub train: TrainConfig,
    /// How predictions are drawn, at evaluation and use.
    pub sample: SampleConfig,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 0,
            data: DataConfig::default(),
            augment: AugmentConfig::none(),
            model: ModelConfig::preset("digits").unwrap_or_else(|_| unreachable!("a preset of this file")),
            process: ProcessConfig::default(),
            loss: LossConfig::default(),
            train: TrainConfig::default(),
            sample: SampleConfig::default(),
        }
    }
}

/// Keys that the defaults do not show: what goes with a kind of crop.
pub const OPTIONAL: [&str; 4] =
    ["augment.crop.scale", "augment.crop.ratio", "augment.crop.pad", "augment.crop.padding"];

/// Keys that had another name, and their name now. Recipes, `--set`, the environment and the settings of old runs may use either.
pub const RENAMED: [(&str, &str); 3] = [
    ("train.kfold", "train.noisy_copies"),
    ("train.known", "train.clean_tokens"),
    ("sample.guesses", "sample.uncommitted"),
];

impl Config {
    /// Classes and tokens of the model; classes are known once data have been opened.
    pub fn sizes(&self) -> Sizes {
        let tokens = if self.data.task == Task::Class { 1 } else { self.data.tokens };
        Sizes { vocab: self.model.classes, tokens }
    }

    /// Share of noisy copies with clean tokens. MDD has none of these: what is not masked is always clean.
    pub fn clean_tokens(&self) -> f32 {
        if self.model.method == Method::Mdd { 0.0 } else { self.train.clean_tokens }
    }

    /// How many times as long as one token's the way from noise to text is. MDD has but one way.
    pub fn stagger(&self) -> usize {
        if self.model.method == Method::Mdd { 1 } else { self.train.stagger }
    }

    /// Whether tokens have times of their own.
    pub fn per_token_time(&self) -> bool {
        self.clean_tokens() > 0.0 || self.stagger() > 1
    }

    /// Read the resolved settings of a run, changed by `sets`.
    pub fn of_run(name: &str, text: &str, sets: &[String]) -> Result<Config> {
        let layers =
            Layers { recipe: Some((name, text)), sets, optional: &OPTIONAL, renamed: &RENAMED, ..Layers::default() };
        let config = layers.load::<Config>()?.0;
        config.check()?;
        Ok(config)
    }
}
