//! How much probability a model gives to tokens: a bound on −ln p(tokens), estimated without bias.
//!
//! TDD, in the T steps of its process: the cross-entropy at t = 1, plus ½ Σ_{t≥2} (SNR_{t−1} − SNR_t)·E‖y_0 − p‖², plus what
//! pure noise still tells (next to nothing). It bounds the likelihood of sampling by posterior steps with the soft
//! prediction; argmax-and-re-noise has none. MDD, in continuous time: E_t\[(1/t)·Σ_masked −ln p\].
//!
//! A TDD model with per-token time has other paths too: the masked one ([`RevealBound`]), clean tokens beside pure noise, and those between
//! it and the shared time, on which tokens start one after another ([`StaggeredBound`]).
//!
//! All are sums over times of which a few are drawn per example: TDD's in proportion to what they are likely to add,
//! those of the masked path evenly over the number of masked tokens. What is drawn is a pure function of seed and example. Begin with
//! [`TddBound`]; [`of_trained`] takes whichever a model has.

use tweedie_engine::ops::noisy_input::Eps;
use tweedie_engine::ops::token_scores::{SCORES, token_scores};
use tweedie_engine::{Device, Noise, Tape, Tensor, rng};

use crate::error::{Error, Result};
use crate::interrupt;
use crate::model::{Context, Input, Model, Pass};
use crate::process::Process;
use crate::trained::Trained;

mod flow;
mod path;

pub use flow::FlowBound;
pub use path::{BoundPath, RevealBound, StaggeredBound};

/// Stream of the noise in y_t; and of the times and masks.
const STREAM: u32 = 0xb0d1;
const TIMES: u32 = 0xb0d2;
const MASKS: u32 = 0xb0d3;

/// All that a bound needs of a prediction p about one clean token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// ln p(token).
    pub log_p: f32,
    /// ‖y_0 − p‖², with y_0 the token's one-hot vector.
    pub distance: f32,
}

/// Something that predicts clean tokens: a network, or the exact posterior in a test.
pub trait Predict {
    /// What it says of the tokens `clean` (u32 \[B, N\]) when it sees `input` at times `t`: one per example, or one per token (\[B·N\])
    /// along the masked path of TDD.
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>>;
}

/// A network with the condition of a batch, computed once.
pub struct Conditioned<'a> {
    model: &'a Model,
    context: Context,
}

impl<'a> Conditioned<'a> {
    /// Encode the images, one per example; an unconditional model has none.
    pub fn new(model: &'a Model, images: Option<&Tensor>) -> Result<Conditioned<'a>> {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        Ok(Conditioned { model, context: model.context(&p, images, false)? })
    }
}

impl Predict for Conditioned<'_> {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        interrupt::check()?;
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &self.model.params, self.model.dtype());
        let mut evidence = None;
        let input = match input {
            Input::Noisy(noisy) => self.model.input_of(&tape, noisy, t, &mut evidence)?,
            other => *other,
        };
        let features = self.model.features(&p, &input, t, &self.context)?;
        let logits = self.model.logits_of(&p, &features, &input)?;
        let s = token_scores(logits.value(), &clean.reshape(&[clean.len()])?)?.to_vec()?;
        Ok(s.chunks_exact(SCORES).map(|s| Score { log_p: s[0], distance: s[1] }).collect())
    }
}

/// A batch of tokens whose likelihood is bounded.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// The tokens, \[B·N\].
    pub tokens: &'a [u32],
    /// Tokens per example, N.
    pub n: usize,
    /// Classes, V.
    pub vocab: usize,
    /// Ids that address the examples' noise, \[B\].
    pub examples: &'a [u32],
    /// A weight per token, \[B·N\], such as 0 for padding that should not count; `None`: 1 for all, the bound proper.
    pub weights: Option<&'a [f32]>,
}

impl TokenBatch<'_> {
    fn check(&self) -> Result<usize> {
        let (b, TokenBatch { tokens, n, vocab, weights, .. }) = (self.examples.len(), *self);
        if b == 0 || n == 0 || tokens.len() != b * n || weights.is_some_and(|w| w.len() != b * n) {
            let weights = weights.map_or(String::new(), |w| format!(" and {} weights", w.len()));
            return Err(Error::Input(format!("{} tokens{weights} for {b} examples of {n}", tokens.len())));
        }
        match tokens.iter().find(|t| **t as usize >= vocab) {
            Some(t) => Err(Error::Input(format!("token {t} is not below the vocabulary {vocab}"))),
            None => Ok(b),
        }
    }

    fn weight(&self, i: usize) -> f64 {
        self.weights.map_or(1.0, |w| w[i] as f64)
    }

    fn clean(&self, device: &Device) -> Result<Tensor> {
        Ok(Tensor::from_u32(device, &[self.examples.len(), self.n], self.tokens.to_vec())?)
    }

    /// What predicts may be anybody's: it must tell of every token.
    fn all(&self, scores: Vec<Score>) -> Result<Vec<Score>> {
        match scores.len() == self.tokens.len() {
            true => Ok(scores),
            false => {
                Err(Error::Input(format!("{} scores were predicted for {} tokens", scores.len(), self.tokens.len())))
            }
        }
    }

    /// w·f(i) of every token.
    fn each(&self, f: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.tokens.len()).map(|i| self.weight(i) * f(i)).collect()
    }

    /// Σ w·f(i) over the tokens of example `e`.
    fn sum(&self, e: usize, f: impl Fn(usize) -> f64) -> f64 {
        (e * self.n..(e + 1) * self.n).map(|i| self.weight(i) * f(i)).sum()
    }
}

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    /// From nats to bits: of characters, bits per character.
    pub fn in_bits(self) -> Estimate {
        let by = std::f64::consts::LN_2;
        Estimate { mean: self.mean / by, error: self.error / by }
    }
}

/// Bounds of examples.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Σ w·nats over the tokens of each example: what candidates for one condition are ranked by.
    pub nats: Vec<f64>,
    /// Σ w of each example: its number of tokens where no weights were given.
    pub weight: Vec<f64>,
    /// Standard error of each example's nats, from the spread of its draws.
    pub error: Vec<f64>,
    /// w·nats of every token, \[B·N\]: those of an example add up to its nats.
    pub tokens: Vec<f64>,
}

impl Bounds {
    fn new(draws: &[Vec<f64>], offset: impl Fn(usize) -> f64, tokens: Vec<f64>, batch: &TokenBatch) -> Bounds {
        let examples = batch.examples.len();
        let mut all = Bounds { tokens, ..Bounds::default() };
        for e in 0..examples {
            let x = || draws.iter().map(|d| d[e]);
            let k = draws.len().max(1) as f64; // a process of one step has nothing to draw
            let mean = x().sum::<f64>() / k;
            let variance = x().map(|v| (v - mean).powi(2)).sum::<f64>() / (k - 1.0).max(1.0);
            all.nats.push(mean + offset(e));
            all.weight.push(batch.sum(e, |_| 1.0));
            all.error.push((variance / k).sqrt());
        }
        all
    }

    /// Add those of another batch.
    pub fn extend(&mut self, other: Bounds) {
        self.nats.extend(other.nats);
        self.weight.extend(other.weight);
        self.error.extend(other.error);
        self.tokens.extend(other.tokens);
    }

    /// Nats per token of example `e`, if there is such.
    pub fn of(&self, e: usize) -> Option<f64> {
        Some(self.nats.get(e)? / self.weight.get(e)?)
    }

    /// Nats per token over all examples, Σ nats / Σ w, as an estimate for the source they come from: its error covers the
    /// choice of examples and the draws. A single example's covers its draws alone. Of no examples both are NaN.
    pub fn per_token(&self) -> Estimate {
        let (nats, weight) = (self.nats.iter().sum::<f64>(), self.weight.iter().sum::<f64>());
        let mean = nats / weight;
        if self.nats.len() < 2 {
            return self.of_these();
        }
        let b = self.nats.len() as f64;
        let off = self.nats.iter().zip(&self.weight).map(|(n, w)| (n - mean * w).powi(2)).sum::<f64>();
        Estimate { mean, error: (off * b / (b - 1.0)).sqrt() / weight }
    }

    /// As [`Bounds::per_token`], for just these examples: its error covers the draws alone.
    pub fn of_these(&self) -> Estimate {
        let weight = self.weight.iter().sum::<f64>();
        let error = self.error.iter().map(|e| e * e).sum::<f64>().sqrt() / weight;
        Estimate { mean: self.nats.iter().sum::<f64>() / weight, error }
    }
}

/// A uniform f64 in [0, 1).
fn uniform(seed: u64, address: [u32; 4]) -> f64 {
    let w = rng::philox(address, [seed as u32, (seed >> 32) as u32]);
    ((w[0] as u64) << 21 | (w[1] as u64) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The bound of TDD for one process and vocabulary.
///
/// ```
/// use tweedie::bound::{TokenBatch, Predict, Score, TddBound};
/// use tweedie::engine::{Device, Tensor};
/// use tweedie::model::Input;
/// use tweedie::{Process, Schedule, ScheduleKind};
///
/// /// Knows nothing: each of ten classes has the same chance.
/// struct Blind;
/// impl Predict for Blind {
///     fn scores(&self, _: &Input, _: &[u32], clean: &Tensor) -> tweedie::Result<Vec<Score>> {
///         Ok(vec![Score { log_p: 0.1_f32.ln(), distance: 0.9 }; clean.len()])
///     }
/// }
///
/// let process = Process::new(Schedule::new(ScheduleKind::Cosine, 100, 10)?);
/// let batch = TokenBatch { tokens: &[3, 1], n: 2, vocab: 10, examples: &[0], weights: None };
/// let bounds = TddBound::new(&process, 10, 4, 0)?.of(&Blind, &Device::Cpu, &batch)?;
/// assert!(bounds.of(0) > Some(10_f64.ln()) && bounds.of(1).is_none());
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TddBound {
    process: Process,
    vocab: usize,
    draws: usize,
    seed: u64,
    /// Chance to draw t = 2…T, summed up: the last is 1.
    up_to: Vec<f64>,
}

impl TddBound {
    /// With `draws` times per example; each costs one pass of the network over the batch, and one more is for t = 1.
    pub fn new(process: &Process, vocab: usize, draws: usize, seed: u64) -> Result<TddBound> {
        if draws == 0 {
            return Err(Error::Input("a bound needs at least one draw per example".into()));
        }
        if vocab < 2 {
            return Err(Error::Input(format!("a bound needs at least 2 classes, there are {vocab}")));
        }
        // A prediction is mostly right or wrong: its distance is about 0 or 1. The variance is least where a time's chance
        // goes with the root of the chance to be wrong, here that of a prediction without any context. One draw in five
        // is even in ln(1 + SNR), so that a network's mistakes where none are expected are seen too.
        let schedule = process.schedule();
        let times = 2..=schedule.steps();
        let share = |f: &dyn Fn(usize) -> f64| -> Vec<f64> {
            let v: Vec<f64> = times.clone().map(f).collect();
            let sum: f64 = v.iter().sum();
            v.into_iter().map(|x| x / sum).collect()
        };
        let wrong = share(&|t| {
            let p = process.survival(t, vocab);
            (schedule.snr(t - 1) - schedule.snr(t)) * (1.0 - p).max(0.0).sqrt()
        });
        let even = share(&|t| ((1.0 + schedule.snr(t - 1)) / (1.0 + schedule.snr(t))).ln());
        let mut sum = 0.0;
        let add = |(w, e): (f64, f64)| {
            sum += 0.8 * w + 0.2 * e;
            sum
        };
        let up_to = wrong.into_iter().zip(even).map(add).collect();
        Ok(TddBound { process: process.clone(), vocab, draws, seed, up_to })
    }

    /// The time at the point `u` of the drawing distribution, and the factor of ‖y_0 − p‖² there.
    fn time(&self, u: f64) -> (usize, f64) {
        let last = self.up_to.len() - 1;
        let t = 2 + self.up_to.partition_point(|s| *s <= u * self.up_to[last]).min(last);
        (t, self.gain(t) / self.chance(t))
    }

    /// The chance to draw t = 2…T.
    fn chance(&self, t: usize) -> f64 {
        self.up_to[t - 2] - if t == 2 { 0.0 } else { self.up_to[t - 3] }
    }

    /// ½·(SNR_{t−1} − SNR_t), for t ≥ 2.
    fn gain(&self, t: usize) -> f64 {
        0.5 * (self.process.snr(t - 1) - self.process.snr(t))
    }

    /// What is left to know of a token's noisy vector at T, in nats: KL(q(y_T|y_0) ‖ N(0, 1)).
    fn prior(&self) -> f64 {
        let (schedule, lambda) = (self.process.schedule(), self.process.lambda());
        let (a, k) = (schedule.alpha_bar(schedule.steps()), self.vocab as f64);
        // a + ln(1 − a) cancels for small a.
        let rest = if a < 1e-3 { -(a * a / 2.0 + a.powi(3) / 3.0 + a.powi(4) / 4.0) } else { a + (-a).ln_1p() };
        0.5 * (lambda * lambda * a - k * rest)
    }

    /// The bounds of tokens.
    pub fn of(&self, predict: &dyn Predict, device: &Device, batch: &TokenBatch) -> Result<Bounds> {
        let b = batch.check()?;
        if batch.vocab != self.vocab {
            return Err(Error::Input(format!("the bound is for {} classes, not {}", self.vocab, batch.vocab)));
        }
        let clean = batch.clean(device)?;
        let ids = Tensor::from_u32(device, &[b], batch.examples.to_vec())?;
        let noise = Noise::new(device, self.seed, STREAM, 0)?;
        let scores = |t: &[usize], draw: u32| -> Result<Vec<Score>> {
            let t: Vec<u32> = t.iter().map(|t| *t as u32).collect();
            let eps = Eps::Drawn { noise: noise.later(draw), examples: ids.clone() };
            let noisy = self.process.corrupt(clean.clone(), &t, self.vocab, eps)?;
            batch.all(predict.scores(&Input::Noisy(&noisy), &t, &clean)?)
        };
        let first = scores(&vec![1; b], 0)?;
        let prior = self.prior();
        let mut tokens = batch.each(|i| prior - first[i].log_p as f64);
        let mut draws = Vec::with_capacity(self.draws);
        for j in 0..if self.up_to.is_empty() { 0 } else { self.draws } {
            // Evenly spaced points of the distribution, shifted by a number of the example's own.
            let point = |e: &u32| (j as f64 + uniform(self.seed, [0, *e, 0, TIMES])) / self.draws as f64;
            let times: Vec<(usize, f64)> = batch.examples.iter().map(|e| self.time(point(e))).collect();
            let s = scores(&times.iter().map(|t| t.0).collect::<Vec<_>>(), j as u32 + 1)?;
            let share = |i: usize| times[i / batch.n].1 * s[i].distance as f64 / self.draws as f64;
            tokens.iter_mut().zip(batch.each(share)).for_each(|(t, nats)| *t += nats);
            draws.push((0..b).map(|e| times[e].1 * batch.sum(e, |i| s[i].distance as f64)).collect());
        }
        Ok(Bounds::new(&draws, |e| batch.sum(e, |i| prior - first[i].log_p as f64), tokens, batch))
    }
}

/// The bound of MDD.
#[derive(Clone, Copy, Debug)]
pub struct MddBound {
    /// T: the network is told ⌈t·T⌉.
    pub steps: usize,
    /// Maskings per example; each costs one pass of the network over the batch.
    pub draws: usize,
    /// Start of the random masks.
    pub seed: u64,
}

impl MddBound {
    /// The bounds of tokens; the id V stands for a masked one.
    pub fn of(&self, predict: &dyn Predict, device: &Device, batch: &TokenBatch) -> Result<Bounds> {
        self.of_groups(1, predict, device, batch)
    }
}

/// Bounds of tokens \[B·N\] by a trained model along its own path, one image each if it is told them; the weights of `batch` as in
/// [`TokenBatch`].
pub fn of_trained(t: &Trained, images: Option<&Tensor>, batch: &TokenBatch, draws: usize) -> Result<Bounds> {
    of_trained_along(BoundPath::own(t), t, images, batch, draws)
}

/// As [`of_trained`], along a path that the model can go.
pub fn of_trained_along(
    path: BoundPath,
    t: &Trained,
    images: Option<&Tensor>,
    batch: &TokenBatch,
    draws: usize,
) -> Result<Bounds> {
    path.check(t)?;
    let (vocab, device) = (t.model.sizes().vocab, t.model.device());
    let network = Conditioned::new(&t.model, images)?;
    let (process, seed) = (&t.process, 0);
    match path {
        BoundPath::Shared => TddBound::new(process, vocab, draws, seed)?.of(&network, &device, batch),
        BoundPath::Staggered(stagger) => StaggeredBound { process, stagger, draws, seed }.of(&network, &device, batch),
        BoundPath::Flow(stagger) => {
            let denoiser = crate::sample::Conditioned::new(&t.model, images, 1, false)?;
            FlowBound { process, stagger, steps: draws, seed }.of(&denoiser, batch)
        }
        BoundPath::Masked(group) if t.model.is_tdd() => {
            RevealBound { process, group, draws, seed }.of(&network, &device, batch)
        }
        BoundPath::Masked(group) => {
            MddBound { steps: process.steps(), draws, seed }.of_groups(group, &network, &device, batch)
        }
    }
}
