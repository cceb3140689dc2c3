//! Everything that defines a run. A recipe is a TOML file of these fields; what it leaves out has the defaults below.

use serde::{Deserialize, Serialize};

use crate::augment::AugmentConfig;
use crate::data::{CacheMode, Layout, OnCorrupt, OpenOptions, Overlong, SequenceConfig, SequenceOptions, Task};
use crate::error::{Error, Result};
use crate::model::{ConditionAttention, Conditioning, DenoiserConfig, Gelu, Pool, Sizes, VitConfig};
use crate::schedule::ScheduleKind;
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

/// Where the data come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Folder or file; `embedded:digits` and `embedded:shapes` are inside the program.
    pub path: String,
    /// A file with one class name per line; empty: as the data say.
    pub classes: String,
    /// Share of the training set held out for evaluation where the data bring no split of their own.
    pub val_fraction: f64,
    /// What happens at an image that cannot be read: `skip` (reported and counted) or `fail`.
    pub corrupt: Corrupt,
    /// Decoding threads; 0: as many as there are cores.
    pub workers: usize,
    /// Decoded images in memory, so that each is decoded once and not in every epoch: `auto` (a split whose images all fit
    /// into an eighth of the memory) or `off`. The results are the same.
    pub cache: CacheMode,
    /// Column of images in Parquet files; empty: found by type.
    pub image_column: String,
    /// Column of labels in Parquet files; empty: `label` or the only integer column.
    pub label_column: String,
    /// What is learnt: `class`, `caption` or `text`.
    pub task: Task,
    /// Column or field of captions; several, parted by commas, are put together; empty: the usual names.
    pub caption_column: String,
    /// Column or field of text; empty: the usual names.
    pub text_column: String,
    /// Folder of the images that COCO's files name; empty: the usual places.
    pub image_folder: String,
    /// Length of a sequence in tokens, its end included where there is room.
    pub tokens: usize,
    /// `chars`, `word:5000`, `space:34000`, `bpe:8000`, `wordpiece:8000` (trained on the training texts), or a
    /// tokenizer.json.
    pub tokenizer: String,
    /// Text as one stream cut into full windows (`packed`) or line by line, padded (`lines`). Captions are lines.
    pub layout: Layout,
    /// A text of more tokens than fit: `cut` (and counted), `skip` or `fail`.
    pub overlong: Overlong,
}

impl Default for DataConfig {
    fn default() -> DataConfig {
        DataConfig {
            path: "embedded:digits".into(),
            classes: String::new(),
            val_fraction: 0.1,
            corrupt: Corrupt::Skip,
            workers: 0,
            cache: CacheMode::Auto,
            image_column: String::new(),
            label_column: String::new(),
            task: Task::Class,
            caption_column: String::new(),
            text_column: String::new(),
            image_folder: String::new(),
            tokens: 32, // 99.9 % of COCO's captions; text takes more
            tokenizer: "word:5000".into(),
            layout: Layout::Lines,
            overlong: Overlong::Cut,
        }
    }
}

impl DataConfig {
    /// How captions or text are opened.
    pub fn sequence_options(&self, seed: u64) -> SequenceOptions {
        let given = |s: &str| (!s.is_empty()).then(|| s.to_string());
        SequenceOptions {
            task: (self.task != Task::Class).then_some(self.task),
            caption_column: given(&self.caption_column),
            text_column: given(&self.text_column),
            image_folder: given(&self.image_folder).map(Into::into),
            layout: if self.task == Task::Caption { Layout::Lines } else { self.layout },
            open: OpenOptions {
                image_column: given(&self.image_column),
                val_fraction: self.val_fraction,
                split_seed: seed,
                decoded_bytes: self.cache.bytes(),
                ..OpenOptions::default()
            },
        }
    }

    /// How texts become sequences.
    pub fn sequence_config(&self) -> SequenceConfig {
        let layout = if self.task == Task::Caption { Layout::Lines } else { self.layout };
        SequenceConfig { layout, overlong: self.overlong, ..SequenceConfig::lines(self.tokens) }
    }
}

/// What to do at an unreadable image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corrupt {
    /// Report its path, count it, go on.
    Skip,
    /// Stop with an error.
    Fail,
}

/// Which of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Tweedie Discrete Diffusion: encoder and denoiser.
    Tdd,
    /// Its masked twin: the same encoder; for one token a linear head.
    Mdd,
}

/// The network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// TDD or its masked twin.
    #[serde(default = "default_method")]
    pub method: Method,
    /// Number of classes; 0: as many as the data have.
    #[serde(default)]
    pub classes: usize,
    /// What the model is told: `image`, or `none` for text alone (then `encoder` and `pool` have no effect).
    #[serde(default)]
    pub condition: Conditioning,
    /// What of the encoder is the condition.
    #[serde(default)]
    pub pool: Pool,
    /// Form of GELU.
    #[serde(default)]
    pub gelu: Gelu,
    /// The encoder.
    pub encoder: VitConfig,
    /// The denoiser (MDD of one token has a linear head instead).
    pub denoiser: DenoiserConfig,
    /// A safetensors file with encoder weights (timm, MAE, DeiT names); empty: none.
    #[serde(default)]
    pub pretrained: String,
    /// Do not train the encoder.
    #[serde(default)]
    pub freeze_encoder: bool,
}

fn default_method() -> Method {
    Method::Tdd
}

/// Names of [`ModelConfig::preset`].
pub const PRESETS: [&str; 12] = [
    "digits",
    "tiny",
    "cifar",
    "vit-s16",
    "vit-b16",
    "vit-l16",
    "vit-h14",
    "shapes",
    "caption-tiny",
    "coco-96",
    "caption",
    "text",
];

impl ModelConfig {
    /// Whether it is told an image.
    pub fn is_conditional(&self) -> bool {
        self.condition == Conditioning::Image
    }

    /// A network by name.
    pub fn preset(name: &str) -> Result<ModelConfig> {
        // image, patch, channels, width, depth, heads | denoiser width, depth, heads | pool
        let (e, d, pool) = match name {
            "digits" => ((8, 2, 1, 64, 4, 4), (64, 2, 4), Pool::Mean),
            "tiny" => ((32, 4, 3, 192, 6, 3), (192, 2, 3), Pool::Cls),
            "cifar" => ((32, 4, 3, 384, 7, 6), (384, 3, 6), Pool::Cls),
            "vit-s16" => ((224, 16, 3, 384, 12, 6), (384, 3, 6), Pool::Cls),
            "vit-b16" => ((224, 16, 3, 768, 12, 12), (768, 3, 12), Pool::Cls),
            "vit-l16" => ((224, 16, 3, 1024, 24, 16), (1024, 3, 16), Pool::Cls),
            "vit-h14" => ((224, 14, 3, 1280, 32, 16), (1280, 3, 16), Pool::Cls),
            // Sequences: every token of the encoder is a condition token.
            "shapes" => ((32, 8, 3, 64, 3, 4), (64, 2, 4), Pool::All),
            "caption-tiny" => ((64, 8, 3, 192, 6, 3), (192, 4, 3), Pool::All),
            "coco-96" => ((96, 12, 3, 384, 6, 6), (384, 4, 6), Pool::All),
            "caption" => ((224, 16, 3, 768, 12, 12), (768, 6, 12), Pool::All),
            // No condition: the encoder is not built.
            "text" => ((8, 2, 1, 64, 4, 4), (512, 8, 8), Pool::All),
            _ => {
                return Err(Error::Input(format!("'{name}' is not a preset; use one of {}", PRESETS.join(", "))));
            }
        };
        // Small networks are told the condition once: with all tokens of an image in every copy, most of the work of a
        // training step would be the same numbers again. The others are the paper's.
        let condition_attention = match name {
            "shapes" | "coco-96" => ConditionAttention::Prefix,
            _ => ConditionAttention::Full,
        };
        Ok(ModelConfig {
            method: Method::Tdd,
            classes: 0,
            condition: if name == "text" { Conditioning::None } else { Conditioning::Image },
            pool,
            gelu: Gelu::Erf,
            encoder: VitConfig {
                image: e.0,
                patch: e.1,
                channels: e.2,
                width: e.3,
                depth: e.4,
                heads: e.5,
                drop_path: 0.0,
            },
            denoiser: DenoiserConfig { condition_attention, ..DenoiserConfig::new(d.0, d.1, d.2) },
            pretrained: String::new(),
            freeze_encoder: false,
        })
    }
}

/// The diffusion process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// Shape of the noise schedule.
    pub schedule: ScheduleKind,
    /// Number of steps T.
    pub steps: usize,
    /// λ of λ-hot labels, in (0, 1].
    pub lambda: f64,
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig { schedule: ScheduleKind::Cosine, steps: 1000, lambda: 1.0 }
    }
}

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
    /// Target of mixed images.
    pub mixed: MixedTarget,
    /// Weight of padding beside 1 for other tokens, in \[0, 1\]. Below 1, short texts in long sequences are less about
    /// predicting that they have ended; at 0 nothing says where a text ends.
    pub pad_weight: f32,
    /// How masked tokens count (MDD of sequences).
    pub mask_weight: MaskWeight,
}

impl Default for LossConfig {
    fn default() -> LossConfig {
        LossConfig {
            kind: LossKind::CrossEntropy,
            weighted: false,
            smoothing: 0.1,
            mixed: MixedTarget::Posterior,
            pad_weight: 1.0,
            mask_weight: MaskWeight::Inverse,
        }
    }
}

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

/// Optimisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Passes over the training set.
    pub epochs: usize,
    /// Images per optimizer step.
    pub batch: usize,
    /// Parts that a batch is cut into to save memory; gradients are added up.
    pub accumulate: usize,
    /// Noisy copies per image that share its features, each with its own timestep.
    pub kfold: usize,
    /// Learning rate per 256 images of batch.
    pub lr: f32,
    /// The rate ends at this share of its peak.
    pub min_lr: f32,
    /// Epochs of linear warm-up.
    pub warmup_epochs: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Second-moment decay.
    pub beta2: f32,
    /// Global norm that gradients are clipped to (0: not).
    pub clip: f32,
    /// Decay of the averaged weights (0: none).
    pub ema: f32,
    /// Chance that a noisy copy loses its condition, for classifier-free guidance.
    pub condition_drop: f32,
    /// Type of activations.
    pub precision: Precision,
    /// Compute activations again in the backward pass to save memory.
    pub recompute: bool,
    /// Evaluate every so many epochs (and at the end).
    pub eval_every: usize,
    /// At most this many images per evaluation during training (0: all).
    pub eval_images: usize,
    /// Checkpoint every so many epochs.
    pub checkpoint_every: usize,
    /// Checkpoints to keep besides the best.
    pub keep: usize,
    /// Stop after so many steps in a row without a finite gradient.
    pub max_skipped: u32,
    /// Steps between lines of the log.
    pub log_every: usize,
}

impl Default for TrainConfig {
    fn default() -> TrainConfig {
        TrainConfig {
            epochs: 20,
            batch: 128,
            accumulate: 1,
            kfold: 4,
            lr: 1e-3,
            min_lr: 0.01,
            warmup_epochs: 1.0,
            weight_decay: 0.05,
            beta2: 0.95,
            clip: 3.0,
            ema: 0.999,
            condition_drop: 0.1,
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

/// How a noisy vector becomes the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sampler {
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

/// Which masked tokens a sampler of the masked twin reveals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unmasking {
    /// Each with the same chance: the true reverse process.
    Random,
    /// Those first that the network is surest of.
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
    pub sampler: Sampler,
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
    /// Which masked tokens are revealed first (MDD of sequences).
    pub unmask: Unmasking,
    /// Predictions are the majority over this many independent draws.
    pub votes: usize,
    /// Texts written for each image, of which the best is kept.
    pub candidates: usize,
    /// Which of them is the best.
    pub rank: Rank,
    /// Start of the sampling noise.
    pub seed: u64,
}

impl Default for SampleConfig {
    fn default() -> SampleConfig {
        SampleConfig {
            steps: 20,
            sampler: Sampler::Argmax,
            guidance: 1.0,
            guidance_shape: GuidanceShape::Constant,
            schedule: String::new(),
            start: Start::Noise,
            posterior_mean: PosteriorMean::Soft,
            noise: NoiseKind::Auto,
            unmask: Unmasking::Random,
            votes: 1,
            candidates: 1,
            rank: Rank::Bound,
            seed: 0,
        }
    }
}

/// Keys that the defaults do not show: what goes with a kind of crop.
pub const OPTIONAL: [&str; 4] =
    ["augment.crop.scale", "augment.crop.ratio", "augment.crop.pad", "augment.crop.padding"];

impl From<Corrupt> for OnCorrupt {
    fn from(c: Corrupt) -> OnCorrupt {
        match c {
            Corrupt::Skip => OnCorrupt::Skip,
            Corrupt::Fail => OnCorrupt::Fail,
        }
    }
}

impl Config {
    /// Classes and tokens of the model; classes are known once data have been opened.
    pub fn sizes(&self) -> Sizes {
        let tokens = if self.data.task == Task::Class { 1 } else { self.data.tokens };
        Sizes { vocab: self.model.classes, tokens }
    }

    /// Read the resolved settings of a run, changed by `sets`.
    pub fn of_run(name: &str, text: &str, sets: &[String]) -> Result<Config> {
        let layers = Layers { recipe: Some((name, text)), sets, optional: &OPTIONAL, ..Layers::default() };
        Ok(layers.load::<Config>()?.0)
    }

    /// Refuse values that make no sense, naming the field.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Input(what));
        if self.model.condition == Conditioning::Image {
            self.model.encoder.check()?;
        }
        self.model.denoiser.check(self.sizes().tokens)?;
        let t = &self.train;
        for (name, v) in [("epochs", t.epochs), ("batch", t.batch), ("kfold", t.kfold), ("accumulate", t.accumulate)] {
            if v == 0 {
                return wrong(format!("train.{name} must be at least 1"));
            }
        }
        if !t.batch.is_multiple_of(t.accumulate) {
            return wrong(format!(
                "train.batch = {} must be a multiple of train.accumulate = {}",
                t.batch, t.accumulate
            ));
        }
        if self.data.task != Task::Class {
            let mix = &self.augment.mix;
            if mix.mixup_alpha > 0.0 || mix.cutmix_alpha > 0.0 {
                return wrong("augment.mix mixes classes; set its alphas to 0 for captions and text".into());
            }
            if self.data.tokens == 0 {
                return wrong("data.tokens must be at least 1".into());
            }
        }
        if t.kfold > self.process.steps {
            return wrong(format!("train.kfold = {} distinct timesteps need process.steps of at least that", t.kfold));
        }
        for (name, v) in [("condition_drop", t.condition_drop), ("ema", t.ema), ("min_lr", t.min_lr)] {
            if !(0.0..1.0).contains(&v) {
                return wrong(format!("train.{name} = {v} must lie in [0, 1)"));
            }
        }
        if !(t.lr > 0.0 && t.lr.is_finite()) {
            return wrong(format!("train.lr = {} must be positive", t.lr));
        }
        if !(self.process.lambda > 0.0 && self.process.lambda <= 1.0) {
            return wrong(format!("process.lambda = {} must lie in (0, 1]", self.process.lambda));
        }
        if !(0.0..1.0).contains(&self.loss.smoothing) {
            return wrong(format!("loss.smoothing = {} must lie in [0, 1)", self.loss.smoothing));
        }
        if !(0.0..=1.0).contains(&self.loss.pad_weight) {
            return wrong(format!("loss.pad_weight = {} must lie in [0, 1]", self.loss.pad_weight));
        }
        let s = &self.sample;
        if [self.process.steps, s.steps, s.votes, s.candidates].contains(&0) {
            let must = "process.steps, sample.steps, sample.votes and sample.candidates must be at least 1";
            return wrong(must.into());
        }
        if !(0.0..1.0).contains(&self.data.val_fraction) {
            return wrong(format!("data.val_fraction = {} must lie in [0, 1)", self.data.val_fraction));
        }
        if !self.sample.schedule.is_empty() {
            self.sample.schedule.parse::<ScheduleKind>()?;
        }
        Ok(())
    }
}
