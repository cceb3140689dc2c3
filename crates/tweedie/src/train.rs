//! The training loop: one for all tasks and both models.

mod course;
mod evaluate;
mod event;
mod targets;
mod uploads;

pub use evaluate::{evaluate, evaluate_quietly};
pub use event::Event;

use std::path::Path;
use std::sync::Arc;

use tweedie_engine::ops::elementwise;
use tweedie_engine::optim::{AdamConfig, AdamW, warmup_cosine};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor};

use crate::augment::Transform;
use crate::config::{Config, Optimizer, Precision};
use crate::data::{Batch, Dataset, Loader, LoaderConfig, Position, SequenceSet, Sequences, Source, Task};
use crate::error::{Error, Result};
use crate::loss::{NoiseOf, mask_tokens, mdd_loss, mdd_sequence_loss, tdd_sequence_loss, token_weights};
use crate::model::{Drop, Model, Pass, load_encoder};
use crate::schedule::Schedule;
use crate::tokenize::Tokenizer;
use uploads::Images;

/// Streams of the run's noise; see [`tweedie_engine::rng`].
mod stream {
    pub const DIFFUSION: u32 = 1;
    pub const DROP_PATH: u32 = 2;
    pub const ROWS: u32 = 3;
}

/// Muon's momentum, as everyone has it.
const MUON_MOMENTUM: f32 = 0.95;

/// A model with what belongs to it: process, class names.
pub struct Trained {
    /// The network.
    pub model: Model,
    /// Its noise schedule.
    pub schedule: Schedule,
    /// λ of its labels.
    pub lambda: f64,
    /// Name of each class; none for sequences.
    pub class_names: Vec<String>,
    /// Of sequences: text to tokens and back.
    pub tokenizer: Option<Arc<Tokenizer>>,
}

impl Trained {
    /// The tokenizer, or an error that says that this model is of another kind.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Input("this model classifies images; it knows no text".into()))
    }
}

/// What a model is trained on.
pub enum Material {
    /// Images with classes.
    Classes(Dataset),
    /// Captions or text.
    Sequences {
        /// Where they lie.
        set: SequenceSet,
        /// How they become tokens.
        tokenizer: Arc<Tokenizer>,
    },
}

impl From<Dataset> for Material {
    fn from(set: Dataset) -> Material {
        Material::Classes(set)
    }
}

/// Training and validation examples.
enum Splits {
    Classes { train: Source, val: Source },
    Sequences { train: Sequences, val: Sequences },
}

impl Splits {
    fn train_len(&self) -> usize {
        match self {
            Splits::Classes { train, .. } => train.len(),
            Splits::Sequences { train, .. } => train.len(),
        }
    }
}

/// A training run: model, optimizer, data, position.
pub struct Trainer {
    /// Resolved settings.
    pub config: Config,
    /// The model being trained.
    pub trained: Trained,
    /// What the user should know about how it was set up, such as what a file of pretrained weights lacked.
    pub notes: Vec<String>,
    opt: AdamW,
    splits: Splits,
    step: usize,
    batches: usize,
    best: f64,
    best_step: usize,
    key: Noise,
    drop_key: Noise,
    images: Images,
}

/// The compute type for a device.
pub fn compute_type(precision: Precision, device: &Device) -> Result<DType> {
    Ok(match (precision, device) {
        (Precision::F32, _) | (Precision::Auto, Device::Cpu) => DType::F32,
        (Precision::Auto | Precision::Bf16, Device::Cuda(_)) => DType::Bf16,
        (Precision::Bf16, Device::Cpu) => {
            return Err(Error::Input("train.precision = \"bf16\" needs a GPU; use \"auto\" or \"f32\"".into()));
        }
    })
}

impl Trainer {
    /// Make model and optimizer for the data on `device`. The data are looked at before the model is built.
    pub fn new(config: &Config, material: impl Into<Material>, device: &Device) -> Result<Trainer> {
        config.check()?;
        let mut config = config.clone();
        let (splits, vocab, class_names, tokenizer) = match material.into() {
            Material::Classes(set) => {
                // Grey images are repeated over three channels by the transform; the other way round would lose colour.
                if set.channels > config.model.encoder.channels {
                    return Err(Error::Input(format!(
                        "model.encoder.channels = {}, but the images have {}",
                        config.model.encoder.channels, set.channels
                    )));
                }
                let splits = Splits::Classes { train: set.train()?.clone(), val: set.val()?.clone() };
                (splits, set.class_names.len(), set.class_names, None)
            }
            Material::Sequences { set, tokenizer } => {
                if (set.task == Task::Caption) != config.model.is_conditional() {
                    return Err(Error::Input(match set.task {
                        Task::Caption => "captions need model.condition = \"image\"".into(),
                        _ => "text alone needs model.condition = \"none\" (as in model.preset = \"text\")".to_string(),
                    }));
                }
                let layout = config.data.sequence_config();
                let of = |texts: &crate::data::Texts| Sequences::new(texts.clone(), tokenizer.clone(), &layout);
                let splits = Splits::Sequences { train: of(set.train()?)?, val: of(set.val()?)? };
                (splits, tokenizer.vocab(), Vec::new(), Some(tokenizer))
            }
        };
        match config.model.classes {
            0 => config.model.classes = vocab,
            n if n < vocab => {
                return Err(Error::Input(format!("model.classes = {n}, but the data have {vocab} classes")));
            }
            _ => {}
        }
        let examples = splits.train_len();
        let batches = examples / config.train.batch;
        if batches == 0 {
            return Err(Error::Input(format!(
                "train.batch = {} is more than the {examples} training examples; use a smaller batch",
                config.train.batch
            )));
        }
        let vocab = config.model.classes;
        let dtype = compute_type(config.train.precision, device)?;
        let mut model =
            Model::new(&config.model, config.sizes(), device, dtype, config.seed)?.knowing(config.known() > 0.0);
        let mut notes = match config.model.pretrained.as_str() {
            "" => Vec::new(),
            path => load_encoder(&mut model, Path::new(path))?,
        };
        let schedule = Schedule::new(config.process.schedule, config.process.steps, vocab)?;
        let t = &config.train;
        let adam = AdamConfig {
            beta2: t.beta2,
            weight_decay: t.weight_decay,
            clip: t.clip,
            ema: t.ema,
            muon: (t.optimizer == Optimizer::Muon).then_some(MUON_MOMENTUM),
            ..AdamConfig::default()
        };
        let opt = AdamW::new(&model.params, adam)?;
        if opt.muon_is_idle() {
            notes.push("train.optimizer = \"muon\": no weight matrix of a block is trained, AdamW has all".into());
        }
        let trained = Trained { model, schedule, lambda: config.process.lambda, class_names, tokenizer };
        Ok(Trainer {
            key: Noise::new(device, config.seed, stream::DIFFUSION, 0)?,
            drop_key: Noise::new(device, config.seed, stream::DROP_PATH, 0)?,
            images: Images::new(device),
            config,
            trained,
            notes,
            opt,
            splits,
            step: 0,
            batches,
            best: 0.0,
            best_step: 0,
        })
    }

    /// The images that evaluation looks at; none for sequences.
    pub fn validation(&self) -> Option<&Source> {
        match &self.splits {
            Splits::Classes { val, .. } => Some(val),
            Splits::Sequences { .. } => None,
        }
    }

    /// The sequences that evaluation looks at; none for classes.
    pub fn validation_texts(&self) -> Option<&Sequences> {
        match &self.splits {
            Splits::Classes { .. } => None,
            Splits::Sequences { val, .. } => Some(val),
        }
    }

    /// Optimizer steps of the whole run.
    pub fn total_steps(&self) -> usize {
        self.batches * self.config.train.epochs
    }

    /// Optimizer steps done.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Best top-1 so far.
    pub fn best(&self) -> f64 {
        self.best
    }

    /// The step of that.
    pub fn best_step(&self) -> usize {
        self.best_step
    }

    /// The optimizer, for checkpoints.
    pub fn optimizer(&self) -> &AdamW {
        &self.opt
    }

    /// For restoring a checkpoint.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.opt
    }

    /// Go on from a restored checkpoint.
    pub fn set_position(&mut self, step: usize, best: f64, best_step: usize) {
        (self.step, self.best, self.best_step) = (step, best, best_step);
    }

    /// Look at the model with its averaged weights (the raw ones if none are kept).
    pub fn averaged<R>(&mut self, f: impl FnOnce(&Trained, &Config) -> Result<R>) -> Result<R> {
        if self.opt.ema().is_none() {
            return f(&self.trained, &self.config);
        }
        self.opt.swap_ema(&mut self.trained.model.params)?;
        let result = f(&self.trained, &self.config);
        self.opt.swap_ema(&mut self.trained.model.params)?;
        result
    }

    /// Learning rate of the present step.
    pub fn lr(&self) -> f32 {
        let t = &self.config.train;
        let peak = t.lr * t.batch as f32 / 256.0;
        let warmup = (t.warmup_epochs * self.batches as f32) as usize;
        warmup_cosine(self.step, self.total_steps(), warmup, peak, peak * t.min_lr)
    }

    /// The batches from the present position on.
    pub fn loader(&self) -> Result<Loader> {
        let c = &self.config;
        let e = &c.model.encoder;
        let transform = || Transform::train(&c.augment, e.image, e.channels);
        let position = Position { epoch: (self.step / self.batches) as u32, batch: (self.step % self.batches) as u32 };
        let config = LoaderConfig {
            threads: c.data.workers,
            start: position,
            epochs: Some(c.train.epochs as u32),
            on_corrupt: c.data.corrupt.into(),
            ..LoaderConfig::train(c.train.batch, c.seed)
        };
        Ok(match &self.splits {
            Splits::Classes { train, .. } => Loader::new(train.clone(), transform()?, config)?,
            Splits::Sequences { train, .. } => {
                let transform = if c.model.is_conditional() { Some(transform()?) } else { None };
                Loader::sequences(train.clone(), transform, config)?
            }
        })
    }

    /// One optimizer step on `batch`; the loss stays on the device.
    pub fn train_step(&mut self, batch: &Batch) -> Result<Tensor> {
        self.step_on(batch, None)
    }

    /// As [`Trainer::train_step`], with the images of the batch on the device already (not with `train.accumulate`).
    pub fn step_on(&mut self, batch: &Batch, uploaded: Option<&Tensor>) -> Result<Tensor> {
        let lr = self.lr();
        let parts = self.config.train.accumulate;
        let device = self.trained.model.device();
        let e = self.config.model.encoder.clone();
        let (b, values, k) = (batch.indices.len(), e.channels * e.image * e.image, self.config.train.kfold);
        let per = b / parts;
        let rows = self.rows(batch)?;
        let mut total: Option<Tensor> = None;
        for part in 0..parts {
            let (first, last) = (part * per, (part + 1) * per);
            let images = match (uploaded, batch.images.is_empty()) {
                (Some(images), _) if parts == 1 => Some(images.clone()),
                (_, true) => None,
                (_, false) => {
                    let shape = [per, e.channels, e.image, e.image];
                    Some(self.images.put(&shape, &batch.images[first * values..last * values])?)
                }
            };
            let tape = Tape::new();
            let loss = {
                let m = &self.trained.model;
                let ids = (first as u32..last as u32).collect();
                let drop = Drop { noise: self.at(&self.drop_key)?, examples: Tensor::from_u32(&device, &[per], ids)? };
                let drop = (e.drop_path > 0.0).then_some(drop);
                let recompute = self.config.train.recompute;
                let p = Pass { tape: &tape, params: &m.params, dtype: m.dtype(), drop, recompute };
                let rows = rows.part(first * k..last * k, m.sizes().tokens, m.sizes().vocab);
                let (c, seed, t) = (&self.config.loss, self.config.seed, &self.trained);
                let weights = t.tokenizer.as_ref().and_then(|t| token_weights(&rows.tokens, &[t.pad()], c.pad_weight));
                let (weights, images) = (weights.as_deref(), images.as_ref());
                match (m.is_tdd(), m.has_denoiser(), images) {
                    (true, ..) => {
                        let noise = self.at(&self.key)?;
                        let noise = NoiseOf::Drawn(&noise);
                        tdd_sequence_loss(&p, m, images, &rows, weights, &t.schedule, t.lambda, &noise, c)?
                    }
                    (false, true, _) => {
                        let steps = t.schedule.steps();
                        let masked = mask_tokens(&rows, m.sizes().tokens, steps, seed, self.step as u32);
                        mdd_sequence_loss(&p, m, images, &rows, &masked, weights, steps, c)?
                    }
                    (false, false, Some(images)) => {
                        mdd_loss(&p, m, images, &self.targets(batch, first..last), c.smoothing)?
                    }
                    (false, false, None) => return Err(Error::Input("a classifier needs images".into())),
                }
            };
            let loss = if parts == 1 { loss } else { elementwise::scale(&tape, &loss, 1.0 / parts as f32)? };
            let value = loss.value().clone();
            tape.backward(&loss, Some(&mut self.trained.model.params))?;
            total = Some(match total {
                None => value,
                Some(t) => {
                    let tape = Tape::inference();
                    elementwise::add(&tape, &tape.constant(t), &tape.constant(value))?.value().clone()
                }
            });
        }
        self.opt.step(&mut self.trained.model.params, lr)?;
        self.step += 1;
        total.ok_or_else(|| Error::Input("an empty batch".into()))
    }

    /// A noise stream at the present step.
    fn at(&self, key: &Noise) -> Result<Noise> {
        Ok(key.later(self.step as u32))
    }
}
