//! Rows that go through the same kernels, one batch at every step.

use std::rc::Rc;

use tweedie_engine::ops::blend::{First, blend};
use tweedie_engine::ops::choose::{Banned, Choose, Chosen, FREE, How, choose};
use tweedie_engine::ops::tokens::embed;
use tweedie_engine::ops::unmask::{Masked, Reveal, remask, unmask};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor};

use super::network::{Network, Shown};
use super::plan::{Kind, Path, Walk};
use super::read::{All, Read, live_step};
use super::{JobId, LiveStep};
use crate::config::{Start, Unmasking};
use crate::error::{Error, Result};
use crate::process::{Process, Times, Update};
use crate::sample::{BuiltIn, DRAWS, Estimate, REMASKS, REVEALS, STREAM, Shares, Staggered};
use crate::sample::{factors, guidance_at, running_mean, shares, shares_of_mean};

/// What a row is to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Candidate or vote number so and so.
    Sample(usize),
    /// A draw for the posterior.
    Posterior(usize),
}

/// One sampling run.
pub(super) struct Row {
    pub job: JobId,
    pub role: Role,
    pub path: Rc<Path>,
    pub seed: u64,
    pub example: u32,
    /// Where its condition lies.
    pub place: u32,
    /// Steps taken.
    pub at: usize,
    /// Most likely tokens to tell of.
    pub top: usize,
    /// Tell all probabilities.
    pub probabilities: bool,
    /// What the last step came to; of the masked twin V where masked.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens; of those that are committed or revealed one after another, where that happened.
    pub log_probs: Vec<f32>,
    /// Tokens that stay, those that are committed among them; [`FREE`] elsewhere.
    pub fixed: Vec<u32>,
    /// Which of them are not the sampler's doing.
    pub pinned: Vec<bool>,
    /// Classes that may not be chosen, a bit each.
    pub bans: Vec<u32>,
    /// Its row in the batch of the step before.
    pub was: Option<u32>,
}

impl Row {
    fn times(&self) -> Times {
        self.path.steps[self.at]
    }

    /// Seed and example.
    fn address(&self) -> (u64, u32) {
        (self.seed, self.example)
    }

    fn is_last(&self) -> bool {
        self.at + 1 == self.path.steps.len()
    }

    /// Fix a token, or free it; `mask` stands for a masked one.
    pub fn pin(&mut self, place: usize, token: Option<u32>, mask: u32) {
        let masked = matches!(self.path.kind.walk, Walk::Masked { .. });
        match token {
            Some(token) => (self.tokens[place], self.fixed[place]) = (token, token),
            None => {
                self.fixed[place] = FREE;
                if masked && self.pinned[place] {
                    self.tokens[place] = mask;
                }
            }
        }
        self.log_probs[place] = 0.0;
        self.pinned[place] = token.is_some();
    }
}

/// What a row came to.
pub(super) struct Told {
    pub job: JobId,
    pub role: Role,
    /// Of the first candidate or vote.
    pub step: Option<LiveStep>,
    /// After the last step.
    pub end: Option<End>,
}

/// The result of a row.
pub(super) struct End {
    pub tokens: Vec<u32>,
    pub log_probs: Vec<f32>,
    /// Of classes.
    pub logits: Vec<f32>,
}

/// Rows of one kind.
pub(super) struct Lane {
    pub kind: Kind,
    pub rows: Vec<Row>,
    /// What a sampler that needs more than tokens carries: W·y_t, f32 \[rows, N, d\].
    carried: Option<Tensor>,
    /// The mean of the logits so far, f32 \[rows, 1, V\] or wider.
    mean: Option<Tensor>,
}

impl Lane {
    pub fn new(kind: Kind) -> Lane {
        Lane { kind, rows: Vec::new(), carried: None, mean: None }
    }

    /// Take one step of all rows; those that are over leave.
    pub fn step(&mut self, net: &Network, banned: Option<&Tensor>) -> Result<Vec<Told>> {
        if self.rows.is_empty() {
            return Ok(Vec::new());
        }
        let batch = Batch::new(net, &self.rows)?;
        let shown = match self.kind.walk {
            Walk::Masked { .. } => Shown::Tokens(batch.ids(|row| &row.tokens, 2)?),
            Walk::Noisy(sampler) => Shown::Noisy(batch.noisy(sampler, self.kind, self.carried.as_ref())?),
        };
        let weights = batch.weights(self.kind.guided);
        let (logits, weight) = net.logits(&shown, &batch.places(), &batch.times(self.kind.walk), weights.as_deref())?;
        let (logits, weight) = match self.kind.running_mean {
            true => (&*self.mean.insert(batch.running_mean(&logits, weight.as_ref(), self.mean.as_ref())?), None),
            false => (&logits, weight.as_ref()),
        };
        let picked = Picked { batch: &batch, logits, weight, banned };
        let (read, revealed) = match self.kind.walk {
            Walk::Masked { drawn, unmask } => {
                let chosen = picked.choose(drawn, false)?;
                let of = net.trained.process.steps();
                let shares = |row: &Row| shares(row.times(), of, row.path.sample.correction);
                let state = batch.unmask(&chosen, |row| &row.tokens, batch.mask(), shares, unmask)?;
                (Read::of(&chosen, batch.top)?, Some(state))
            }
            Walk::Noisy(BuiltIn::Confident(sampler)) => {
                let chosen = picked.choose(sampler.drawn, false)?;
                let shares = |row: &Row| sampler.shares(row.at, row.path.steps.len());
                let state = batch.unmask(&chosen, |row| &row.fixed, FREE, shares, Unmasking::Confident)?;
                (Read::of(&chosen, batch.top)?, Some(state))
            }
            Walk::Noisy(built @ (BuiltIn::Linear(sampler) | BuiltIn::Staggered(Staggered { linear: sampler, .. }))) => {
                let estimate = sampler.estimate(false);
                let chosen = picked.choose(estimate == Estimate::Drawn, estimate == Estimate::Mean)?;
                let mut read = Read::of(&chosen, batch.top)?;
                if sampler.estimate(true) != estimate && batch.rows.iter().any(|row| row.is_last()) {
                    let last = Read::of(&picked.choose(sampler.estimate(true) == Estimate::Drawn, false)?, batch.top)?;
                    batch.of_last_rows(&mut read, last);
                }
                if sampler.carries() {
                    let Shown::Noisy(u) = &shown else { return Err(Error::Input("there are no noisy vectors".into())) };
                    let process = &net.trained.process;
                    let update = |row: &Row, i: usize| built.update(process, row.address(), i, row.times());
                    self.carried = Some(batch.carried(self.kind, update, &chosen, u)?);
                }
                (read, None)
            }
        };
        let all = match net.trained.tokenizer {
            None => All::Classes(batch.class_logits(logits, weights.as_deref().filter(|_| weight.is_some()))?),
            Some(_) if self.rows.iter().any(|row| row.probabilities) => All::Tokens(picked.probabilities()?),
            Some(_) => All::Untold,
        };
        Ok(self.advance(net, read, revealed, &all))
    }

    /// Write down what the rows came to, and tell it.
    fn advance(
        &mut self,
        net: &Network,
        mut read: Read,
        revealed: Option<(Vec<u32>, Vec<f32>)>,
        all: &All,
    ) -> Vec<Told> {
        let n = net.model().sizes().tokens;
        let masked = matches!(self.kind.walk, Walk::Masked { .. });
        let mut told = Vec::with_capacity(self.rows.len());
        for (r, row) in self.rows.iter_mut().enumerate() {
            let at = r * n..(r + 1) * n;
            let (t, last) = (row.times().t, row.is_last());
            row.tokens = read.tokens[at.clone()].to_vec();
            row.log_probs = read.log_probs[at.clone()].to_vec();
            if let Some((tokens, log_probs)) = &revealed {
                let kept = if masked { &mut row.tokens } else { &mut row.fixed };
                *kept = tokens[at.clone()].to_vec();
                row.log_probs = log_probs[at.clone()].to_vec();
                if last && !masked {
                    // At the end a committed token is told with the probability that it was committed with.
                    read.log_probs[at.clone()].copy_from_slice(&log_probs[at.clone()]);
                }
            }
            row.was = Some(r as u32);
            row.at += 1;
            let step = (row.role == Role::Sample(0)).then(|| live_step(net, row, t, &read, r, all));
            let end = last.then(|| End {
                tokens: row.tokens.clone(),
                log_probs: row.log_probs.clone(),
                logits: all.logits(r),
            });
            told.push(Told { job: row.job, role: row.role, step, end });
        }
        self.rows.retain(|row| row.at < row.path.steps.len());
        told
    }
}

/// Rows of a lane as a batch: on a GPU padded with the first row to a power of two, so that few sizes occur.
struct Batch<'a> {
    net: &'a Network,
    rows: Vec<&'a Row>,
    device: Device,
    /// u32 \[R\].
    examples: Tensor,
    /// Tokens of each.
    n: usize,
    top: usize,
}

impl<'a> Batch<'a> {
    fn new(net: &'a Network, all: &'a [Row]) -> Result<Batch<'a>> {
        let device = net.device();
        let size = if device == Device::Cpu { all.len() } else { all.len().next_power_of_two() };
        let rows: Vec<&Row> = all.iter().chain(std::iter::repeat(&all[0])).take(size).collect();
        let examples = Tensor::from_u32(&device, &[size], rows.iter().map(|row| row.example).collect())?;
        let top = rows.iter().map(|row| row.top).max().unwrap_or(1);
        Ok(Batch { net, rows, device, examples, n: net.model().sizes().tokens, top })
    }

    fn mask(&self) -> u32 {
        self.net.model().sizes().vocab as u32
    }

    fn places(&self) -> Vec<u32> {
        self.rows.iter().map(|row| row.place).collect()
    }

    fn weights(&self, guided: bool) -> Option<Vec<f32>> {
        let weight = |row: &&Row| guidance_at(&row.path.sample, row.at, row.path.steps.len());
        guided.then(|| self.rows.iter().map(weight).collect())
    }

    /// What the network is told: a time for each row, or for each token where clean ones are at the first.
    fn times(&self, walk: Walk) -> Vec<usize> {
        let (process, per_token) = (&self.net.trained.process, self.net.per_token_time());
        let Walk::Noisy(sampler) = walk else { return self.rows.iter().map(|row| row.times().t).collect() };
        if !per_token {
            return self.rows.iter().map(|row| row.times().t).collect();
        }
        let time = |row: &Row, i: usize| match row.fixed[i] {
            FREE => sampler.time(process, row.address(), i, row.times().t),
            _ => Process::FIRST,
        };
        self.rows.iter().flat_map(|row| (0..self.n).map(move |i| (row, i))).map(|(row, i)| time(row, i)).collect()
    }

    /// Numbers of all tokens: u32 of \[R·N\] or \[R, N\].
    fn ids(&self, of: impl Fn(&Row) -> &Vec<u32>, axes: usize) -> Result<Tensor> {
        let all = self.rows.iter().flat_map(|row| of(row).iter().copied()).collect();
        let shape = [self.rows.len(), self.n];
        let flat = [self.rows.len() * self.n];
        Ok(Tensor::from_u32(&self.device, if axes == 2 { &shape } else { &flat }, all)?)
    }

    /// Noise of the rows' own seeds at their steps, `later` steps on.
    fn noise(&self, stream: u32, later: u32) -> Result<Noise> {
        let at: Vec<(u64, u32)> = self.rows.iter().map(|row| (row.seed, row.at as u32 + later)).collect();
        Ok(Noise::of_each(&self.device, stream, &at)?)
    }

    /// Factors f32 \[R·N, 3\] of the three terms of an update.
    fn by(&self, of: impl Fn(&Row, usize) -> Update) -> Result<Tensor> {
        let each = |row: &Row, i: usize| factors(of(row, i)).map(|x| x as f32);
        let all: Vec<f32> = self.rows.iter().flat_map(|row| (0..self.n).flat_map(|i| each(row, i))).collect();
        Ok(Tensor::from_f32(&self.device, &[self.rows.len() * self.n, 3], all)?)
    }

    /// W·y_t of all rows, from what they hold.
    fn noisy(&self, sampler: BuiltIn, kind: Kind, carried: Option<&Tensor>) -> Result<Tensor> {
        let (process, per_token) = (&self.net.trained.process, self.net.per_token_time());
        let projection = self.net.projection(kind.noise)?;
        let fresh = projection.draw(&self.noise(STREAM, 0)?, &self.examples, self.n)?;
        let renoised = |row: &Row, i: usize| sampler.update(process, row.address(), i, row.path.steps[row.at - 1]);
        let pure = |row: &Row| match row.path.sample.start {
            Start::Noise => Update { clean: 0.0, keep: 0.0, noise: 1.0 },
            Start::Zeros => Update { clean: 0.0, keep: 0.0, noise: 0.0 },
        };
        let by = self.by(|row, i| match row {
            row if per_token && row.fixed[i] != FREE => process.renoise(Process::FIRST),
            row if carried.is_some() && row.was.is_some() => Update { clean: 0.0, keep: 1.0, noise: 0.0 },
            row if row.at == 0 => pure(row),
            row => renoised(row, i),
        })?;
        let shown = |row: &Row, i: usize| if per_token && row.fixed[i] != FREE { row.fixed[i] } else { row.tokens[i] };
        let ids: Vec<u32> = self.rows.iter().flat_map(|row| (0..self.n).map(|i| shown(row, i))).collect();
        let ids = Tensor::from_u32(&self.device, &[ids.len()], ids)?;
        let before = carried.map(|all| self.gather(all)).transpose()?;
        let first = First::Columns { matrix: projection.weight(), ids: &ids };
        Ok(blend(&by, first, before.as_ref(), Some(&fresh))?.reshape(fresh.shape())?)
    }

    /// The rows' mean logits with those of one more step, guided; `before` as it was left by the batch before.
    fn running_mean(&self, logits: &Tensor, weight: Option<&Tensor>, before: Option<&Tensor>) -> Result<Tensor> {
        let before = before.map(|all| self.gather(all)).transpose()?;
        let by = self.rows.iter().flat_map(|row| shares_of_mean(row.at)).map(|x| x as f32).collect();
        let by = Tensor::from_f32(&self.device, &[self.rows.len(), 3], by)?;
        running_mean(logits, weight, before.as_ref(), &by)
    }

    /// The rows' vectors among `all` \[…, N, d\]; of rows that have none the first.
    fn gather(&self, all: &Tensor) -> Result<Tensor> {
        let (tape, d) = (Tape::inference(), all.width());
        let table = tape.constant(all.reshape(&[all.shape()[0], self.n * d])?);
        let ids: Vec<u32> = self.rows.iter().map(|row| row.was.unwrap_or(0)).collect();
        let ids = Tensor::from_u32(&self.device, &[ids.len()], ids)?;
        Ok(embed(&tape, &table, &ids, DType::F32)?.value().reshape(&[self.rows.len(), self.n, d])?)
    }

    /// W·y_s after a step from `u` = W·y_t.
    fn carried(
        &self,
        kind: Kind,
        update: impl Fn(&Row, usize) -> Update,
        chosen: &Chosen,
        u: &Tensor,
    ) -> Result<Tensor> {
        let projection = self.net.projection(kind.noise)?;
        let fresh = projection.draw(&self.noise(STREAM, 1)?, &self.examples, self.n)?;
        let over = Update { clean: 0.0, keep: 0.0, noise: 0.0 };
        let by = self.by(|row, i| if row.is_last() { over } else { update(row, i) })?;
        let soft = chosen.probabilities.as_ref().map(|p| projection.project(p)).transpose()?;
        let first = match &soft {
            Some(soft) => First::Values(soft),
            None => First::Columns { matrix: projection.weight(), ids: &chosen.tokens },
        };
        Ok(blend(&by, first, Some(u), Some(&fresh))?.reshape(u.shape())?)
    }

    /// Replace what is `open` among the rows' tokens by what was chosen, and take back what is to be freed, each row a share of its own:
    /// tokens and log-probabilities.
    fn unmask(
        &self,
        chosen: &Chosen,
        of: impl Fn(&Row) -> &Vec<u32>,
        open: u32,
        shares: impl Fn(&Row) -> Shares,
        how: Unmasking,
    ) -> Result<(Vec<u32>, Vec<f32>)> {
        let shape = [self.rows.len(), self.n];
        let before = self.rows.iter().flat_map(|row| row.log_probs.iter().copied()).collect();
        let state = Masked { tokens: self.ids(of, 2)?, log_prob: Tensor::from_f32(&self.device, &shape, before)? };
        let all: Vec<Shares> = self.rows.iter().map(|row| shares(row)).collect();
        let each = |share: fn(&Shares) -> f64| {
            Tensor::from_f32(&self.device, &[all.len()], all.iter().map(|of| share(of) as f32).collect())
        };
        let reveals = self.noise(REVEALS, 0)?;
        let by = |noise| match how {
            Unmasking::Random => Reveal::Random { noise, examples: &self.examples },
            Unmasking::Confident => Reveal::Confident,
        };
        let sure = &chosen.numbers()?.log_prob;
        let mut after = unmask(&state, (&chosen.tokens, sure), open, &each(|of| of.commit)?, by(&reveals))?;
        if all.iter().any(|of| of.free > 0.0) {
            let kept = |row: &&Row| row.pinned.iter().map(|pinned| if *pinned { 0 } else { FREE }).collect::<Vec<_>>();
            let kept =
                Tensor::from_u32(&self.device, &[all.len() * self.n], self.rows.iter().flat_map(kept).collect())?;
            // TDD says at each step what it thinks of a committed token; its twin said so when it was revealed.
            let now = if open == FREE { sure.reshape(&shape)? } else { state.log_prob.clone() };
            let before = Masked { log_prob: now, ..state };
            let noise = self.noise(REMASKS, 0)?;
            after = remask(&after, &before, Some(&kept), open, &each(|of| of.free)?, by(&noise))?;
        }
        Ok((after.tokens.to_vec_u32()?, after.log_prob.to_vec()?))
    }

    /// Put the numbers of rows at their last step into `read`.
    fn of_last_rows(&self, read: &mut Read, last: Read) {
        for (r, _) in self.rows.iter().enumerate().filter(|(_, row)| row.is_last()) {
            let at = r * self.n..(r + 1) * self.n;
            read.tokens[at.clone()].copy_from_slice(&last.tokens[at.clone()]);
            read.log_probs[at.clone()].copy_from_slice(&last.log_probs[at]);
        }
    }

    /// Class logits of each row, guided.
    fn class_logits(&self, logits: &Tensor, weights: Option<&[f32]>) -> Result<Vec<Vec<f32>>> {
        let (all, wide, vocab) = (logits.to_vec()?, logits.width(), self.net.model().sizes().vocab);
        let each = if weights.is_some() { 2 } else { 1 };
        let row = |(r, rows): (usize, &[f32])| match weights {
            None => rows[..vocab].to_vec(),
            Some(w) => {
                let (with, without) = (&rows[..vocab], &rows[wide..][..vocab]);
                without.iter().zip(with).map(|(u, c)| w[r].mul_add(c - u, *u)).collect()
            }
        };
        Ok(all.chunks_exact(each * wide).enumerate().map(row).collect())
    }
}

/// What tokens are chosen from.
struct Picked<'a> {
    batch: &'a Batch<'a>,
    logits: &'a Tensor,
    /// Guidance that is still to be applied.
    weight: Option<&'a Tensor>,
    /// Classes that rows may not take, where their bits say so.
    banned: Option<&'a Tensor>,
}

impl Picked<'_> {
    /// The distributions that tokens are chosen from, of those that stay too: \[N·V\] of each row.
    fn probabilities(&self) -> Result<Vec<Vec<f64>>> {
        let (n, vocab) = (self.batch.n, self.batch.net.model().sizes().vocab);
        let places = self.batch.rows.len() * n;
        let open = Tensor::from_u32(&self.batch.device, &[places], vec![FREE; places])?;
        let Some(p) = self.choose_but(&open, false, true)?.probabilities else {
            return Err(Error::Input("there are no probabilities to tell".into()));
        };
        let row = |p: &[f32]| p.iter().copied().map(f64::from).collect::<Vec<f64>>();
        let of_row = |rows: &[f32]| rows.chunks_exact(p.width()).flat_map(|p| row(&p[..vocab])).collect();
        Ok(p.to_vec()?.chunks_exact(n * p.width()).map(of_row).collect())
    }

    fn choose(&self, drawn: bool, probabilities: bool) -> Result<Chosen> {
        self.choose_but(&self.batch.ids(|row| &row.fixed, 1)?, drawn, probabilities)
    }

    /// Choose all but the tokens that are `fixed`.
    fn choose_but(&self, fixed: &Tensor, drawn: bool, probabilities: bool) -> Result<Chosen> {
        let Picked { batch, logits, weight, banned } = *self;
        let noise = batch.noise(DRAWS, 0)?;
        let bits = batch.ids(|row| &row.bans, 1)?;
        let choice = Choose {
            tokens: batch.n,
            classes: Some(batch.net.model().sizes().vocab),
            guidance: weight,
            how: if drawn { How::Drawn { noise: &noise, examples: &batch.examples } } else { How::Argmax },
            banned: banned.map(|classes| Banned { classes, rows: &bits }),
            fixed: Some(fixed),
            numbers: true,
            probabilities,
            top: batch.top,
        };
        Ok(choose(logits, &choice)?)
    }
}
