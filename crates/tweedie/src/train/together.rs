//! A training over several ranks: each has its rows of every batch, and all make the same step.
//!
//! Gradients are summed as soon as they are there ([`Reducer`]), or with `train.shards` in an order that does not depend on the number of
//! ranks.

use std::ops::Range;
use std::sync::Arc;

use tweedie_engine::Tensor;
use tweedie_engine::comm::{Comm, Keep, Layout, Reducer};

use super::step::added;
use super::{Trainer, optimizer};
use crate::config::{Optimizer, TrainConfig};
use crate::data::{Batch, Part};
use crate::error::{Error, Result};
use crate::loss::Rows;
use crate::peers::Peers;

/// What a number of rows, of one shard or of one rank, adds to the loss of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    tokens: f64,
    weight: f64,
    /// There is nothing to learn from them, and they do not say why.
    empty: bool,
}

impl Trainer {
    /// Train with the others of a group: every rank calls this before its first step, with the same settings and data. Weights are those
    /// of the first rank. A trainer without it trains alone.
    pub fn with_comm(mut self, comm: Comm) -> Result<Trainer> {
        let t = &self.config.train;
        check_ranks(t, comm.size())?;
        let params = &mut self.trained.model.params;
        params.take_from_first(&comm)?;
        let layout = Arc::new(Layout::new(params, comm.size(), t.bucket_mb * 1_000_000, keep(t))?);
        self.reducer = (t.shards == 0).then(|| Reducer::new(comm.clone(), layout.clone()));
        self.opt = optimizer(&self.config, &self.trained.model, Some((comm.clone(), layout)))?;
        self.peers = Peers::new(comm);
        Ok(self)
    }

    /// The ranks that it trains with.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Which rows of every batch are this rank's.
    pub(super) fn part(&self) -> Part {
        Part { rank: self.peers.rank(), ranks: self.peers.size() }
    }

    /// The shards of a batch that this rank computes, as rows that it has. Without `train.shards` those are all its rows.
    fn shards_of(&self, batch: &Batch) -> Vec<Range<usize>> {
        let shards = self.config.train.shards;
        if shards == 0 {
            return std::iter::once(0..batch.indices.len()).collect();
        }
        let row = |shard: usize| (shard * batch.global / shards).saturating_sub(batch.part.start).min(batch.part.len());
        self.part().of(shards).map(|s| row(s)..row(s + 1)).collect()
    }

    /// What weighted tokens are divided by, of the whole batch. None where all weigh the same, and where the rows here are all there is.
    pub(super) fn whole_normaliser(&self, batch: &Batch, rows: &Rows) -> Result<Option<f64>> {
        let (t, m) = (&self.config.train, &self.trained.model);
        if t.shards == 0 && !self.peers.are_several() {
            return if t.accumulate > 1 { self.normaliser(rows) } else { Ok(None) };
        }
        let by_tokens = !m.is_tdd() && m.has_denoiser();
        if rows.weights.is_none() && rows.clean.is_none() && !by_tokens {
            return Ok(None);
        }
        let own: Vec<Weight> = self.shards_of(batch).into_iter().map(|shard| self.weight(shard, rows)).collect();
        let bytes =
            own.iter().flat_map(|w| [w.tokens, w.weight, f64::from(u8::from(w.empty))]).flat_map(f64::to_le_bytes);
        let all = self.peers.exchange(bytes.collect())?.concat();
        let numbers: Vec<f64> = all.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
        let mut sum = Weight::default();
        for [tokens, weight, empty] in numbers.as_chunks::<3>().0 {
            sum = Weight { tokens: sum.tokens + tokens, weight: sum.weight + weight, empty: sum.empty || *empty > 0.0 };
        }
        match sum {
            Weight { weight, tokens, .. } if weight > 0.0 => Ok(Some(tokens / weight)),
            Weight { empty: true, .. } => {
                Err(Error::Input("every token of the batch has weight 0 (loss.pad_weight)".into()))
            }
            _ => Ok(Some(0.0)),
        }
    }

    fn weight(&self, shard: Range<usize>, rows: &Rows) -> Weight {
        let (k, sizes) = (self.config.train.noisy_copies, self.trained.model.sizes());
        let part = rows.part(shard.start * k..shard.end * k, sizes.tokens, sizes.vocab);
        let tokens = part.tokens.len() as f64;
        match self.normaliser(&part) {
            Ok(Some(by)) if by > 0.0 => Weight { tokens, weight: tokens / by, empty: false },
            Ok(_) => Weight { tokens, weight: 0.0, empty: false },
            Err(_) => Weight { tokens, weight: 0.0, empty: true },
        }
    }

    /// A step whose gradient is a sum over `train.shards` parts of the batch in their order, the same for any number of ranks.
    pub(super) fn sharded_step(&mut self, batch: &Batch, rows: &Rows) -> Result<Tensor> {
        let lr = self.lr();
        let (mut gradients, mut losses) = (Vec::new(), Vec::new());
        for shard in self.shards_of(batch) {
            let loss = self.backward_over(batch, rows, self.parts_of(shard))?;
            losses.push(loss.ok_or_else(|| Error::Input("an empty shard".into()))?);
            gradients.push(self.trained.model.params.take_flat_grads()?);
            if self.peers.is_first() {
                gradients = vec![in_order(gradients)?]; // its shards come first: nothing is waited for
            }
        }
        let loss = self.fold(losses)?;
        let gradient = self.fold(gradients)?;
        let params = &mut self.trained.model.params;
        params.set_flat_grads(gradient)?;
        self.opt.apply(params, lr)?;
        Ok(loss)
    }

    /// The sum of what all ranks have, one behind the other: each adds its own to what those before it came to.
    fn fold(&self, own: Vec<Tensor>) -> Result<Tensor> {
        let Some(comm) = self.peers.comm().filter(|c| c.size() > 1) else { return in_order(own) };
        let first = own.first().ok_or_else(nothing)?;
        let mut total = Tensor::zeros(&first.device(), first.shape(), first.dtype())?;
        let mut own = Some(own);
        for root in 0..comm.size() {
            if root == comm.rank() {
                let before = (root > 0).then_some(total);
                total = in_order(before.into_iter().chain(own.take().unwrap_or_default()))?;
            }
            comm.begin_broadcast(&total, 0..total.len(), root)?.finish(&mut total)?;
        }
        Ok(total)
    }
}

fn nothing() -> Error {
    Error::Input("an empty batch".into())
}

/// The sum, from the first to the last.
fn in_order(all: impl IntoIterator<Item = Tensor>) -> Result<Tensor> {
    let sum = all.into_iter().try_fold(None, |sum, next| added(sum, next).map(Some))?;
    sum.ok_or_else(nothing)
}

/// Who keeps the optimizer's state by these settings.
fn keep(t: &TrainConfig) -> Keep {
    match (t.shard_optimizer, t.optimizer) {
        (false, _) => Keep::All,
        (true, Optimizer::Adamw) => Keep::Flat,
        (true, Optimizer::Muon) => Keep::Matrices,
    }
}

/// Whether so many ranks can train by these settings.
fn check_ranks(t: &TrainConfig, ranks: usize) -> Result<()> {
    if t.batch < ranks * t.accumulate {
        let parts = if t.accumulate > 1 {
            format!(" of train.accumulate = {} parts each", t.accumulate)
        } else {
            String::new()
        };
        return Err(Error::Input(format!("train.batch = {} is less than {ranks} ranks{parts}", t.batch)));
    }
    if !t.shards.is_multiple_of(ranks) {
        let next = t.shards.next_multiple_of(ranks);
        let what = format!("train.shards = {} is not a multiple of the {ranks} ranks", t.shards);
        return Err(Error::Input(format!(
            "{what}; start as many as divide it, or begin a run with train.shards={next}"
        )));
    }
    Ok(())
}
