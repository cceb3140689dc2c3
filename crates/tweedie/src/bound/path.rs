//! Bounds along the masked path: tokens come to light one by one, or in groups, in random order.

use std::fmt;
use std::str::FromStr;

use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::{Device, Noise, Tensor};

use super::{Bounds, MASKS, MddBound, Predict, STREAM, Score, TIMES, TokenBatch, uniform};
use crate::error::{Error, Result};
use crate::model::Input;
use crate::process::Process;
use crate::trained::Trained;

/// The way from noise to tokens that a bound follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundPath {
    /// All tokens of a text have one time, which falls to 0: TDD's own.
    Shared,
    /// So many tokens at a time come to light and stay, in random order, while the others are masked, or pure noise: MDD's own, and that
    /// of TDD with per-token time.
    Masked(usize),
}

impl BoundPath {
    /// The path of the process that a model was trained for.
    pub fn own(t: &Trained) -> BoundPath {
        if t.model.is_tdd() { BoundPath::Shared } else { BoundPath::Masked(1) }
    }

    /// Refuse a path that a model cannot go.
    pub fn check(self, t: &Trained) -> Result<()> {
        let wrong = |what: &str| Err(Error::Input(what.into()));
        match self {
            BoundPath::Shared if !t.model.is_tdd() => wrong(
                "masking has no time that all tokens share; its bound is along the masked path (reveal, groups:N)",
            ),
            BoundPath::Masked(_) if t.model.is_tdd() && !t.model.per_token_time() => wrong(
                "this model was trained with one time for all tokens; the masked path goes with train.clean_tokens",
            ),
            _ => Ok(()),
        }
    }
}

impl FromStr for BoundPath {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<BoundPath, String> {
        let group = match s {
            "shared" => return Ok(BoundPath::Shared),
            "reveal" => Some(1),
            _ => s.strip_prefix("groups:").and_then(|n| n.parse().ok()).filter(|n| (1..=1 << 16).contains(n)),
        };
        group.map(BoundPath::Masked).ok_or_else(|| {
            format!("{s:?}: a path is shared, reveal (one token at a time) or groups:N (N at a time, at least 1)")
        })
    }
}

impl fmt::Display for BoundPath {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BoundPath::Shared => f.write_str("shared time"),
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
