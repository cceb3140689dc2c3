//! Several ranks, as threads of this process, train the run that one would alone: the same losses and weights within rounding, and bit for
//! bit with `train.shards`.
//!
//! Tolerances: a loss differs by less than [`LOSS`] of itself; weights, averages and moments by less than [`WAY`] of the way that training
//! took them. The tests of `wrong.rs` show that rows or noise of another place are far outside of both.

mod runs;
mod sessions;
mod wrong;

use tweedie::comm::{self, Comm};
use tweedie::config::Optimizer;
use tweedie::data::{Batch, Item, Items, SequenceSet};
use tweedie::session::snapshot;
use tweedie::train::{Trainer, TrainingSet};
use tweedie::{Config, Dataset, Device, Image};

/// Of a loss.
pub(crate) const LOSS: f64 = 1e-5;
/// Of the way of weights. First steps of AdamW go as far where a gradient is all rounding as where it is sure, and those of Muon in
/// directions that are.
pub(crate) const WAY: f64 = 5e-3;
pub(crate) const STEPS: usize = 3;

/// What is trained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Mixed and augmented images, drop path, dropped conditions.
    Classes,
    /// Of the masked twin, whose head is linear.
    MaskedClasses,
    Captions,
    /// Lines of different lengths whose padding weighs less.
    Text,
    /// Of the masked twin.
    MaskedText,
}

pub(crate) const KINDS: [Kind; 5] = [Kind::Classes, Kind::MaskedClasses, Kind::Captions, Kind::Text, Kind::MaskedText];

/// Images that are told apart by brightness, with some texture for crops and flips to change.
pub(crate) fn stripes() -> Dataset {
    let item = |i: u32| {
        let label = i % 5;
        let mut image = Image::filled(8, 8, &[30 * label as u8]);
        image.data.iter_mut().enumerate().for_each(|(at, p)| *p += ((at as u32 * 7 + i * 3) % 60) as u8);
        Item { image, label }
    };
    let names: Vec<String> = (0..5).map(|c| c.to_string()).collect();
    let items = |range: std::ops::Range<u32>| Items::new(range.map(item).collect());
    Dataset::classes("stripes", names).train(items(0..60)).validation(items(60..200)).build().unwrap()
}

pub(crate) fn lines() -> SequenceSet {
    let line = |i: usize| "abcde".chars().cycle().skip(i % 5).take(1 + i * i % 5).collect::<String>();
    let all = |range: std::ops::Range<usize>| range.map(line).collect::<Vec<_>>();
    SequenceSet::texts("lines").train(all(0..60)).validation(all(60..240)).build().unwrap()
}

impl Kind {
    /// Settings of a small run: twelve examples a batch, five batches an epoch.
    pub(crate) fn config(self) -> Config {
        let preset = match self {
            Kind::Classes | Kind::MaskedClasses => "digits",
            Kind::Captions => "shapes",
            Kind::Text | Kind::MaskedText => "ptb-chars",
        };
        let mut c = Config::preset(preset).unwrap();
        if matches!(self, Kind::MaskedClasses | Kind::MaskedText) {
            c = c.with("model.method", "mdd").unwrap();
        }
        match self {
            Kind::Classes | Kind::MaskedClasses => {
                (c.augment.mix.mixup_alpha, c.augment.mix.cutmix_alpha) = (0.8, 1.0);
                c.model.encoder.drop_path = 0.3;
            }
            Kind::Captions => (c.data.train_limit, c.train.eval_images) = (60, 20),
            Kind::Text | Kind::MaskedText => {
                c = c.with("data.layout", "lines").unwrap().with("loss.pad_weight", 0.25).unwrap();
                c.data.tokens = 6;
                if self == Kind::Text {
                    c = c.with("process.schedule", "cosine").unwrap().with("train.clean_tokens", 0.5).unwrap();
                }
            }
        }
        (c.model.encoder.depth, c.model.denoiser.depth, c.sample.steps) = (2, 1, 2); // the first block is never dropped
        (c.model.encoder.width, c.model.encoder.heads) = (32, 2);
        (c.model.denoiser.width, c.model.denoiser.heads) = (32, 2);
        (c.train.batch, c.train.epochs, c.train.log_every, c.train.warmup_epochs) = (12, 2, 1, 0.2);
        (c.train.noisy_copies, c.train.condition_drop, c.train.ema) = (2, 0.3, 0.9);
        (c.train.eval_every, c.train.checkpoint_every, c.data.workers) = (0, 1, 1);
        c
    }

    pub(crate) fn data(self, c: &Config) -> TrainingSet {
        match self {
            Kind::Classes | Kind::MaskedClasses => stripes().into(),
            Kind::Captions => TrainingSet::open(c, None).unwrap(),
            Kind::Text | Kind::MaskedText => TrainingSet::sequences(lines(), c, None).unwrap(),
        }
    }
}

/// With this optimizer, its state spread over ranks or not.
pub(crate) fn with(mut c: Config, optimizer: Optimizer, shard_optimizer: bool, shards: usize) -> Config {
    (c.train.optimizer, c.train.shard_optimizer, c.train.shards) = (optimizer, shard_optimizer, shards);
    c
}

/// `f` at each of `n` ranks; what they give, by rank.
pub(crate) fn ranks<R: Send>(n: usize, f: impl Fn(Comm) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let running: Vec<_> = comm::threads(n).into_iter().map(|c| s.spawn(|| f(c))).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// What a training came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trained {
    losses: Vec<f32>,
    norms: Vec<f32>,
    /// Weights, averages, moments.
    state: Vec<Vec<f32>>,
}

/// Everything that a checkpoint would hold.
pub(crate) fn state_of(t: &Trainer) -> Vec<Vec<f32>> {
    let s = snapshot(t).unwrap();
    let flat = |all: &[tweedie::tensors::NamedTensor]| all.iter().flat_map(|t| t.data.to_vec()).collect::<Vec<f32>>();
    vec![flat(&s.model), flat(s.ema.as_deref().unwrap_or_default()), flat(&s.optimizer)]
}

/// A few steps, alone or as one of several; `change` may spoil a batch.
pub(crate) fn steps(kind: Kind, c: &Config, comm: Option<Comm>, change: impl Fn(&Trainer, &mut Batch)) -> Trained {
    let mut t = Trainer::new(c, kind.data(c), &Device::Cpu).unwrap();
    if let Some(comm) = comm {
        t = t.with_comm(comm).unwrap();
    }
    let mut loader = t.loader().unwrap();
    let mut got = Trained { losses: Vec::new(), norms: Vec::new(), state: Vec::new() };
    for _ in 0..STEPS {
        let mut batch = loader.next().unwrap().unwrap();
        change(&t, &mut batch);
        got.losses.push(t.train_step(&batch).unwrap().item().unwrap());
        got.norms.push(t.optimizer().stats().unwrap().grad_norm);
    }
    got.state = state_of(&t);
    got
}

pub(crate) fn alone(kind: Kind, c: &Config) -> Trained {
    steps(kind, c, None, |_, _| {})
}

pub(crate) fn together(n: usize, kind: Kind, c: &Config) -> Vec<Trained> {
    ranks(n, |comm| steps(kind, c, Some(comm), |_, _| {}))
}

/// Where a run of these settings begins.
pub(crate) fn start(kind: Kind, c: &Config) -> Vec<Vec<f32>> {
    state_of(&Trainer::new(c, kind.data(c), &Device::Cpu).unwrap())
}

/// The largest difference of a loss, as a share of it, and of state, as a share of its way from `start`.
pub(crate) fn difference(a: &Trained, b: &Trained, start: &[Vec<f32>]) -> (f64, f64) {
    let share = |(a, b): (&f32, &f32)| ((a - b) as f64 / *a as f64).abs();
    let loss = a.losses.iter().zip(&b.losses).chain(a.norms.iter().zip(&b.norms)).map(share).fold(0.0, f64::max);
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| ((a - b) as f64).powi(2)).sum::<f64>().sqrt();
    let way = |i: usize| distance(&a.state[i], &b.state[i]) / distance(&a.state[i], &start[i]);
    (loss, (0..a.state.len()).map(way).fold(0.0, f64::max))
}
