//! Training, one way for all tasks and both models: a step in `step.rs`, the loop of steps, evaluations and checkpoints in
//! `fit.rs`. [`Session`](crate::Session) keeps it on disk.

mod event;
mod fit;
mod init;
mod misfit;
mod pace;
mod set;
mod step;
mod targets;
mod together;
mod uploads;

pub use event::{Evaluation, Event, Metric, SavedEvent, SkippedEvent, StepEvent, WarningEvent};
pub use set::{TrainingSet, build_tokenizer, open_classes, open_sequences};

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tweedie_engine::comm::{Comm, Layout, Reducer};
use tweedie_engine::optim::{AdamConfig, AdamW, warmup_cosine};
use tweedie_engine::{Device, Noise};

use crate::augment::Transform;
use crate::config::{Config, Optimizer};
use crate::data::{Loader, LoaderConfig, Position, Sequences, Source, Task};
use crate::error::{Error, Result};
use crate::model::{Model, load_encoder};
use crate::peers::Peers;
use crate::run_dir::InitFrom;
use crate::tokenize::Tokenizer;
use crate::trained::Trained;
use uploads::Images;

/// Streams of the run's noise; see [`tweedie_engine::rng`].
mod stream {
    pub const DIFFUSION: u32 = 1;
    pub const DROP_PATH: u32 = 2;
    pub const ROWS: u32 = 3;
    pub const SELF_CONDITION: u32 = 4;
}

/// Muon's momentum, as everyone has it.
const MUON_MOMENTUM: f32 = 0.95;

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
///
/// ```
/// use tweedie::train::Trainer;
/// use tweedie::{Config, Dataset, Device};
///
/// let config = Config::preset("digits")?.with("train.batch", 16)?;
/// let mut trainer = Trainer::new(&config, Dataset::embedded("digits")?, &Device::Cpu)?;
/// let batch = trainer.loader()?.next().unwrap()?;
/// let loss = trainer.train_step(&batch)?.to_vec()?[0];
/// assert!(loss.is_finite() && trainer.step() == 1 && trainer.total_steps() > 1);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Trainer {
    /// Resolved settings.
    pub config: Config,
    /// The model being trained.
    pub trained: Trained,
    /// What the user should know about how it was set up, such as what a file of pretrained weights lacked.
    pub notes: Vec<String>,
    /// Where its weights came from, if this was a warm start (`train.init_from`).
    pub init_from: Option<InitFrom>,
    opt: AdamW,
    splits: Splits,
    step: usize,
    batches: usize,
    /// The best evaluation so far, and its step.
    best: Option<(Metric, usize)>,
    /// Why validation examples were left out, as told so far.
    left_out: HashSet<String>,
    key: Noise,
    drop_key: Noise,
    images: Images,
    peers: Peers,
    /// Sums gradients over ranks, if there is a group.
    reducer: Option<Reducer>,
}

/// Splits, number of classes, their names and the tokenizer of what is to be trained on, checked against the settings.
type Opened = (Splits, usize, Vec<String>, Option<Arc<Tokenizer>>);

fn open_splits(config: &Config, data: TrainingSet) -> Result<Opened> {
    if data.task() != config.data.task {
        let (are, want) = (data.task(), config.data.task);
        let what = format!("the data are for data.task = \"{are:?}\", the settings say \"{want:?}\"");
        return Err(Error::Input(what.to_lowercase()));
    }
    match data {
        TrainingSet::Classes(set) => {
            if !config.model.is_conditional() {
                return Err(Error::Input("classes need model.condition = \"image\"".into()));
            }
            misfit::check_channels(&set, config)?;
            let splits = Splits::Classes { train: set.train()?.clone(), val: set.val()?.clone() };
            Ok((splits, set.class_names.len(), set.class_names, None))
        }
        TrainingSet::Sequences { set, tokenizer } => {
            if (set.task == Task::Caption) != config.model.is_conditional() {
                return Err(Error::Input(match set.task {
                    Task::Caption => "captions need model.condition = \"image\"".into(),
                    _ => "text alone needs model.condition = \"none\" (as in model.preset = \"text\")".to_string(),
                }));
            }
            let layout = config.data.sequence_config();
            if set.layout != layout.layout {
                let (is, want) = (set.layout, layout.layout);
                return Err(Error::Input(format!("the texts are {is:?}, data.layout says {want:?}").to_lowercase()));
            }
            let of = |texts: &crate::data::Texts| Sequences::new(texts.clone(), tokenizer.clone(), &layout);
            let splits = Splits::Sequences { train: of(set.train()?)?, val: of(set.val()?)? };
            Ok((splits, tokenizer.vocab(), Vec::new(), Some(tokenizer)))
        }
    }
}

fn optimizer(config: &Config, model: &Model, group: Option<(Comm, Arc<Layout>)>) -> Result<AdamW> {
    let t = &config.train;
    let adam = AdamConfig {
        beta2: t.beta2,
        weight_decay: t.weight_decay,
        clip: t.clip,
        ema: t.ema,
        muon: (t.optimizer == Optimizer::Muon).then_some(MUON_MOMENTUM),
        ..AdamConfig::default()
    };
    Ok(match group {
        Some(group) => AdamW::sharded(&model.params, adam, group, t.shards > 0)?,
        None => AdamW::new(&model.params, adam)?,
    })
}

impl Trainer {
    /// Make model and optimizer for the data on `device`. The data are looked at before the model is built.
    pub fn new(config: &Config, data: impl Into<TrainingSet>, device: &Device) -> Result<Trainer> {
        Trainer::share(config, data.into(), device, 1)
    }

    /// As [`Trainer::new`], where each of so many ranks has its share of a batch.
    pub(crate) fn share(config: &Config, data: TrainingSet, device: &Device, ranks: usize) -> Result<Trainer> {
        config.check()?;
        let mut config = config.clone();
        if let Some(path) = data.own_path() {
            config.data.path = path;
        }
        let (splits, classes, class_names, tokenizer) = open_splits(&config, data)?;
        match config.model.classes {
            0 => config.model.classes = classes,
            n if n < classes => {
                let what = format!("model.classes = {n}, but the data have {classes} classes");
                return Err(Error::misfit(what, [format!("model.classes={classes}")]));
            }
            _ => {}
        }
        let examples = splits.train_len();
        let batches = examples / config.train.batch;
        if batches == 0 {
            let what = format!("train.batch = {} is more than the {examples} training examples", config.train.batch);
            return Err(Error::misfit(what, [format!("train.batch={}", examples.max(1))]));
        }
        let mut share = config.clone();
        share.train.batch = config.train.batch.div_ceil(ranks);
        share.check_memory(device)?;
        let dtype = config.train.precision.dtype(device)?;
        let mut model = Model::new(&config.model, config.sizes(), device, dtype, config.seed)?
            .with_per_token_time(config.per_token_time());
        let mut notes = match config.model.pretrained.as_str() {
            "" => Vec::new(),
            path => load_encoder(&mut model, Path::new(path))?,
        };
        let mut init_from = None;
        if let Some(source) = init::Source::of(&config)? {
            let (from, said) = source.load(&mut model, &config, &class_names, tokenizer.as_deref())?;
            init_from = Some(from);
            notes.extend(said);
        }
        let opt = optimizer(&config, &model, None)?;
        if opt.muon_is_idle() {
            notes.push("train.optimizer = \"muon\": no weight matrix of a block is trained, AdamW has all".into());
        }
        notes.extend(misfit::notes(&config, &splits, batches));
        let trained = Trained::new(&config, model, class_names, tokenizer)?;
        Ok(Trainer {
            key: Noise::new(device, config.seed, stream::DIFFUSION, 0)?,
            drop_key: Noise::new(device, config.seed, stream::DROP_PATH, 0)?,
            images: Images::new(device),
            peers: Peers::default(),
            reducer: None,
            config,
            trained,
            notes,
            init_from,
            opt,
            splits,
            step: 0,
            batches,
            best: None,
            left_out: HashSet::new(),
        })
    }

    /// Examples of an epoch: images, captions or texts, or the windows that packed text is cut into.
    pub fn training_examples(&self) -> usize {
        self.splits.train_len()
    }

    /// Those that there are for evaluation.
    pub fn validation_examples(&self) -> usize {
        match &self.splits {
            Splits::Classes { val, .. } => val.len(),
            Splits::Sequences { val, .. } => val.len(),
        }
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

    /// The best evaluation so far.
    pub fn best(&self) -> Option<Metric> {
        self.best.map(|b| b.0)
    }

    /// The step of that; 0 if there was none.
    pub fn best_step(&self) -> usize {
        self.best.map_or(0, |b| b.1)
    }

    /// What checkpoints of this task are chosen by, with the value `value`.
    pub fn metric(&self, value: f64) -> Metric {
        match self.trained.task() {
            Task::Class => Metric::top1(value),
            Task::Caption => Metric::cider_d(value),
            Task::Text => Metric::bits_per_token(value),
        }
    }

    /// The optimizer, for checkpoints.
    pub fn optimizer(&self) -> &AdamW {
        &self.opt
    }

    /// For restoring a checkpoint.
    pub fn optimizer_mut(&mut self) -> &mut AdamW {
        &mut self.opt
    }

    /// Go on from a restored checkpoint: the steps done, and the best evaluation with its step.
    pub fn set_position(&mut self, step: usize, best: Option<(Metric, usize)>) {
        (self.step, self.best) = (step, best);
    }

    /// Look at the model with its averaged weights (the raw ones if none are kept). With `train.shard_optimizer` all ranks do, but for
    /// [`AdamW::hold_ema`].
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
            lanes: c.data.lanes,
            start: position,
            epochs: Some(c.train.epochs as u32),
            on_corrupt: c.data.corrupt.into(),
            part: self.part(),
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
}
