//! Bounds along paths on which tokens have times of their own: the masked path, where they come to light one by one or in groups, and the
//! staggered ones, where they start one after another. Orders are random.

use std::fmt;
use std::str::FromStr;

use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::{DType, Device, Noise, Tensor};

use super::{Bounds, FlowBound, MASKS, MddBound, Predict, STREAM, Score, TIMES, TddBound, TokenBatch, uniform};
use crate::config::MOST_STAGGER;
use crate::error::{Error, Result};
use crate::loss::{staggered, start_of};
use crate::model::Input;
use crate::process::Process;
use crate::trained::Trained;

/// The way from noise to tokens that a bound follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundPath {
    /// All tokens of a text have one time, which falls to 0: TDD's own.
    Shared,
    /// Tokens start one after another, in random order, each with a time of its own; the way is so many times as long as one token's.
    Staggered(usize),
    /// So many tokens at a time come to light and stay, in random order, while the others are masked, or pure noise: MDD's own, and that
    /// of TDD with per-token time.
    Masked(usize),
    /// The deterministic flow of `ddim` ([`FlowBound`]), by the shared time (1) or a staggered path.
    Flow(usize),
}

impl BoundPath {
    /// The path of the process that a model was trained for.
    pub fn own(t: &Trained) -> BoundPath {
        match (t.model.is_tdd(), t.stagger) {
            (false, _) => BoundPath::Masked(1),
            (true, 0 | 1) => BoundPath::Shared,
            (true, stagger) => BoundPath::Staggered(stagger),
        }
    }

    /// How many times per sequence, or steps of the flow, make a bound of whole data good enough to report.
    pub fn usual_draws(self) -> usize {
        match self {
            BoundPath::Flow(stagger) => FlowBound::usual_steps(stagger),
            _ => 8,
        }
    }

    /// Refuse a path that a model cannot go.
    pub fn check(self, t: &Trained) -> Result<()> {
        let wrong = |what: &str| Err(Error::Input(what.into()));
        match self {
            BoundPath::Shared | BoundPath::Staggered(_) | BoundPath::Flow(_) if !t.model.is_tdd() => {
                wrong("masked tokens have no noise; their bound is along the masked path (reveal, groups:N)")
            }
            BoundPath::Masked(_) | BoundPath::Staggered(_) | BoundPath::Flow(2..)
                if t.model.is_tdd() && !t.model.per_token_time() =>
            {
                wrong(
                    "this model was trained with one time for all tokens; the masked path goes with train.clean_tokens, that and the \
                     staggered ones with train.stagger",
                )
            }
            BoundPath::Flow(_) if t.model.dtype() == DType::Bf16 => {
                wrong("the flow takes differences that drown in bf16; load the model with Precision::F32")
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for BoundPath {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<BoundPath, String> {
        let number = |prefix: &str, most: usize| {
            s.strip_prefix(prefix).and_then(|n| n.parse().ok()).filter(|n| (1..=most).contains(n))
        };
        if let Some(stagger) = number("flow:", MOST_STAGGER).or((s == "flow").then_some(1)) {
            return Ok(BoundPath::Flow(stagger));
        }
        match (s, number("groups:", 1 << 16), number("staggered:", MOST_STAGGER)) {
            ("shared", ..) | (_, _, Some(1)) => Ok(BoundPath::Shared),
            ("reveal", ..) => Ok(BoundPath::Masked(1)),
            (_, Some(group), _) => Ok(BoundPath::Masked(group)),
            (_, _, Some(stagger)) => Ok(BoundPath::Staggered(stagger)),
            _ => Err(format!(
                "{s:?}: a path is shared, staggered:N (N times as long as a token's own, at most 1024), flow or flow:N (without noise on the way, by \
                 the shared time or a staggered path), reveal (one token at a time) or groups:N (N at a time, at least 1)"
            )),
        }
    }
}

impl fmt::Display for BoundPath {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BoundPath::Shared => f.write_str("shared time"),
            BoundPath::Staggered(n) => write!(f, "staggered path, {n} times a token's own"),
            BoundPath::Flow(1) => f.write_str("deterministic flow, shared time"),
            BoundPath::Flow(n) => write!(f, "deterministic flow, staggered path, {n} times a token's own"),
            BoundPath::Masked(1) => f.write_str("masked path, one token at a time"),
            BoundPath::Masked(group) => write!(f, "masked path, {group} tokens at a time"),
        }
    }
}

/// The masked path of TDD with per-token time: −ln p ≤ the mean over random orders of Σ −ln p(group | the tokens before it), where the
/// network sees those as clean, at the first time, and all others as pure noise. What is shown of the others holds nothing of them, so that
/// each order alone is a distribution over texts. It is the masked twin's bound by another name.
#[derive(Clone, Copy, Debug)]
pub struct RevealBound<'a> {
    /// The process.
    pub process: &'a Process,
    /// Tokens at a time.
    pub group: usize,
    /// Stages per example; each costs one pass of the network over the batch.
    pub draws: usize,
    /// Start of the orders and of the noise.
    pub seed: u64,
}

impl RevealBound<'_> {
    /// The bounds of tokens. `predict` is told a time for each token.
    pub fn of(&self, predict: &dyn Predict, device: &Device, batch: &TokenBatch) -> Result<Bounds> {
        let (process, shape) = (self.process, [batch.examples.len(), batch.n]);
        let stages = Stages { group: self.group, draws: self.draws, seed: self.seed };
        let noise = Noise::new(device, self.seed, STREAM, 0)?;
        let last = process.schedule().steps() as u32;
        stages.bounds(device, batch, |clean, stage| {
            let of = |clean: f64, open: f64| {
                let all = stage.hidden.iter().map(|hidden| if *hidden { open } else { clean } as f32).collect();
                Tensor::from_f32(device, &shape, all)
            };
            let examples = Tensor::from_u32(device, &[shape[0]], batch.examples.to_vec())?;
            let noisy = NoisyTokens {
                signal: of(process.signal(Process::FIRST), 0.0)?,
                spread: of(process.spread(Process::FIRST), 1.0)?,
                tokens: clean.clone(),
                eps: Eps::Drawn { noise: noise.later(stage.draw), examples },
                vocab: batch.vocab,
            };
            let times: Vec<u32> =
                stage.hidden.iter().map(|hidden| if *hidden { last } else { Process::FIRST as u32 }).collect();
            predict.scores(&Input::Noisy(&noisy), &times, clean)
        })
    }
}

/// The bound of TDD where tokens start one after another (`train.stagger`): as for a shared time, but each squared error weighs by the step of
/// its own token, and what a network sees at a moment are tokens at different times. Which token starts when is drawn evenly and is part of
/// the path: each such order alone is a distribution over texts.
#[derive(Clone, Copy, Debug)]
pub struct StaggeredBound<'a> {
    /// The process of one token.
    pub process: &'a Process,
    /// How many times as long as that the path is.
    pub stagger: usize,
    /// Moments per example; each costs one pass of the network over the batch, and one more is for the end.
    pub draws: usize,
    /// Start of the orders, moments and noise.
    pub seed: u64,
}

impl StaggeredBound<'_> {
    /// The bounds of tokens. `predict` is told a time for each token.
    pub fn of(&self, predict: &dyn Predict, device: &Device, batch: &TokenBatch) -> Result<Bounds> {
        let (b, n, steps) = (batch.check()?, batch.n, self.process.steps());
        if self.draws == 0 || self.stagger == 0 {
            return Err(Error::Input(
                "a bound needs at least one draw per example and a path that is not empty".into(),
            ));
        }
        let clean = batch.clean(device)?;
        let ids = Tensor::from_u32(device, &[b], batch.examples.to_vec())?;
        let noise = Noise::new(device, self.seed, STREAM, 0)?;
        let scores = |times: &[u32], draw: u32| -> Result<Vec<Score>> {
            let eps = Eps::Drawn { noise: noise.later(draw), examples: ids.clone() };
            let noisy = self.process.corrupt(clean.clone(), times, batch.vocab, eps)?;
            batch.all(predict.scores(&Input::Noisy(&noisy), times, &clean)?)
        };
        // At the end all tokens are at the first time, and are told from there.
        let first = scores(&vec![Process::FIRST as u32; b * n], 0)?;
        let alone = TddBound::new(self.process, batch.vocab, self.draws, self.seed)?;
        let prior = alone.prior();
        let mut tokens = batch.each(|i| prior - first[i].log_p as f64);
        let mut draws = Vec::with_capacity(self.draws);
        for j in 0..if steps < 2 { 0 } else { self.draws } {
            let (mut times, mut factors) = (vec![0; b * n], vec![0.0; b * n]);
            for (e, id) in batch.examples.iter().enumerate() {
                let u = |place: usize| uniform(self.seed, [place as u32, *id, j as u32, MASKS]);
                let begins: Vec<usize> = (0..n).map(|i| start_of(u(i), (steps, self.stagger))).collect();
                // One token is on its way, at a time drawn as for it alone: that is the moment of them all, whose chance is the mean over
                // those that could have been the one.
                let one = ((uniform(self.seed, [j as u32, *id, 2, TIMES]) * n as f64) as usize).min(n - 1);
                let point = (j as f64 + uniform(self.seed, [0, *id, 3, TIMES])) / self.draws as f64;
                let moment = begins[one] + alone.time(point).0;
                let own = |i: usize| moment.checked_sub(begins[i]).filter(|t| (2..=steps).contains(t));
                let chance = (0..n).filter_map(own).map(|t| alone.chance(t)).sum::<f64>() / n as f64;
                for i in 0..n {
                    times[e * n + i] = staggered(moment, begins[i], steps);
                    factors[e * n + i] = own(i).map_or(0.0, |t| alone.gain(t) / chance);
                }
            }
            let s = scores(&times, j as u32 + 1)?;
            let nats = |i: usize| factors[i] * s[i].distance as f64;
            tokens.iter_mut().zip(batch.each(nats)).for_each(|(t, nats)| *t += nats / self.draws as f64);
            draws.push((0..b).map(|e| batch.sum(e, nats)).collect());
        }
        Ok(Bounds::new(&draws, |e| batch.sum(e, |i| prior - first[i].log_p as f64), tokens, batch))
    }
}

impl MddBound {
    /// As [`MddBound::of`], `group` tokens at a time.
    pub fn of_groups(
        &self,
        group: usize,
        predict: &dyn Predict,
        device: &Device,
        batch: &TokenBatch,
    ) -> Result<Bounds> {
        if self.steps == 0 {
            return Err(Error::Input("a bound needs at least one time step".into()));
        }
        let stages = Stages { group, draws: self.draws, seed: self.seed };
        let last = self.steps as u32;
        stages.bounds(device, batch, |clean, stage| {
            let shown = batch.tokens.iter().zip(&stage.hidden);
            let shown = shown.map(|(token, hidden)| if *hidden { batch.vocab as u32 } else { *token }).collect();
            let input = Tensor::from_u32(device, clean.shape(), shown)?;
            let times: Vec<u32> =
                stage.times.iter().map(|t| ((t * self.steps as f64).ceil() as u32).clamp(1, last)).collect();
            predict.scores(&Input::Tokens(&input), &times, clean)
        })
    }
}

/// Stages of the path that are drawn for each example.
struct Stages {
    group: usize,
    draws: usize,
    seed: u64,
}

/// One stage of each example.
struct Stage {
    draw: u32,
    /// Which tokens have not come to light yet, \[B·N\].
    hidden: Vec<bool>,
    /// The time at which so many are masked, in (0, 1\]; \[B\].
    times: Vec<f64>,
}

impl Stages {
    /// The sum over the stages of a path from one of them: of l hidden tokens the next g are any of them with the same chance, so that
    /// (number of stages)·(g/l)·Σ_hidden −ln p has the right mean.
    fn bounds(
        &self,
        device: &Device,
        batch: &TokenBatch,
        scores: impl Fn(&Tensor, &Stage) -> Result<Vec<Score>>,
    ) -> Result<Bounds> {
        let (b, n) = (batch.check()?, batch.n);
        if self.draws == 0 || self.group == 0 {
            return Err(Error::Input("a bound needs at least one draw per example and one token at a time".into()));
        }
        let group = self.group.min(n);
        let (count, clean) = (n.div_ceil(group), batch.clean(device)?);
        let mut tokens = vec![0.0; batch.tokens.len()];
        let mut draws = Vec::with_capacity(self.draws);
        for j in 0..self.draws {
            let mut stage = Stage { draw: j as u32, hidden: vec![false; b * n], times: Vec::with_capacity(b) };
            let mut factors = Vec::with_capacity(b);
            for (e, id) in batch.examples.iter().enumerate() {
                // Drawing t evenly and weighting by 1/t has no finite variance. The same expectation: every token has a
                // random number; l is drawn evenly from what is masked at the stages (of one token each, 1…N); t is the l-th smallest
                // number, and those up to it are masked. So l tokens are, and ∫ (1/t)·P(l masked | t) dt = 1/l.
                let u = |i: usize| uniform(self.seed, [i as u32, *id, j as u32, MASKS]);
                let point = (j as f64 + uniform(self.seed, [0, *id, 1, TIMES])) / self.draws as f64;
                let left = count - 1 - ((point * count as f64) as usize).min(count - 1);
                let l = n - left * group;
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|a, c| u(*a).total_cmp(&u(*c)));
                order[..l].iter().for_each(|i| stage.hidden[e * n + i] = true);
                stage.times.push(u(order[l - 1]));
                factors.push((count * group.min(l)) as f64 / l as f64);
            }
            let s = batch.all(scores(&clean, &stage)?)?;
            let nats = |i: usize| if stage.hidden[i] { -s[i].log_p as f64 } else { 0.0 };
            let share = |i: usize| factors[i / n] * nats(i) / self.draws as f64;
            tokens.iter_mut().zip(batch.each(share)).for_each(|(t, nats)| *t += nats);
            draws.push((0..b).map(|e| factors[e] * batch.sum(e, nats)).collect());
        }
        Ok(Bounds::new(&draws, |_| 0.0, tokens, batch))
    }
}
