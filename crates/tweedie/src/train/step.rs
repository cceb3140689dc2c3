//! One training step, from a batch of the loader to new weights:
//!
//! 1. [`Trainer::rows`] makes K noisy copies of each example: times, dropped conditions, clean tokens (`targets.rs`).
//! 2. The images go to the device, and through the encoder once for all copies.
//! 3. The objective (`loss.rs`): tokens are corrupted, the network denoises them, the cross-entropy of the clean ones is taken.
//! 4. The tape runs backwards into the gradients, and the optimizer makes a step: clip, AdamW or Muon, average.
//!
//! Everything random is a pure function of seed and step.

use std::ops::Range;

use tweedie_engine::ops::elementwise;
use tweedie_engine::{Noise, Tape, Tensor, Var, rng};

use super::{Trainer, stream};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::loss::{MddLoss, NoiseOf, Rows, TddLoss, mask_tokens, mdd_class_loss};
use crate::model::{DropPath, Pass};

impl Trainer {
    /// One optimizer step on `batch`; the loss stays on the device.
    pub fn train_step(&mut self, batch: &Batch) -> Result<Tensor> {
        self.step_on(batch, None)
    }

    /// As [`Trainer::train_step`], with the images of the batch on the device already (not with `train.accumulate` or `train.shards`).
    pub fn step_on(&mut self, batch: &Batch, uploaded: Option<&Tensor>) -> Result<Tensor> {
        self.check_batch(batch)?;
        let mut rows = self.rows(batch)?;
        rows.normaliser = self.whole_normaliser(batch, &rows)?;
        let loss = match self.config.train.shards {
            0 => self.summed_step(batch, &rows, uploaded)?,
            _ => self.sharded_step(batch, &rows)?,
        };
        self.step += 1;
        Ok(loss)
    }

    /// One backward pass, or several for a batch in parts; over several ranks gradients are summed during the last.
    fn summed_step(&mut self, batch: &Batch, rows: &Rows, uploaded: Option<&Tensor>) -> Result<Tensor> {
        let lr = self.lr();
        let mut parts = self.parts_of(0..batch.indices.len());
        let last = parts.pop().ok_or_else(|| Error::Input("an empty batch".into()))?;
        let before = self.backward_over(batch, rows, parts)?;
        let (tape, loss) = self.forward(batch, last, rows, uploaded)?;
        let mut total = added(before, loss.value().clone())?;
        let params = &mut self.trained.model.params;
        match (&mut self.reducer, self.peers.comm()) {
            (Some(reducer), Some(comm)) => {
                let under_way = comm.begin_all_reduce(&total, 0..1)?;
                tape.backward_reduced(&loss, params, reducer)?;
                drop(loss); // the sum is written to where it lies
                under_way.finish(&mut total)?;
                reducer.finish(params)?;
                self.opt.apply(params, lr)?;
            }
            _ => {
                tape.backward(&loss, Some(params))?;
                self.opt.step(params, lr)?;
            }
        }
        Ok(total)
    }

    /// The gradients of some examples of a batch, part by part, added to those there are; their loss.
    pub(super) fn backward_over(
        &mut self,
        batch: &Batch,
        rows: &Rows,
        parts: Vec<Range<usize>>,
    ) -> Result<Option<Tensor>> {
        let mut total = None;
        for range in parts {
            let (tape, loss) = self.forward(batch, range, rows, None)?;
            total = Some(added(total, loss.value().clone())?);
            tape.backward(&loss, Some(&mut self.trained.model.params))?;
        }
        Ok(total)
    }

    /// Examples in as many parts as `train.accumulate` says.
    pub(super) fn parts_of(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let parts = self.config.train.accumulate;
        let at = |i: usize| range.start + i * range.len() / parts;
        (0..parts).map(|i| at(i)..at(i + 1)).filter(|r| !r.is_empty()).collect()
    }

    /// What the examples `range` add to the loss of the whole batch, on a tape of their own.
    fn forward(
        &mut self,
        batch: &Batch,
        range: Range<usize>,
        rows: &Rows,
        uploaded: Option<&Tensor>,
    ) -> Result<(Tape, Var)> {
        let images = match uploaded {
            Some(images) if range.len() == batch.indices.len() => Some(images.clone()),
            _ => self.upload(batch, range.clone())?,
        };
        let (tape, share) = (Tape::new(), range.len() as f32 / batch.global as f32);
        let loss = self.loss(&tape, batch, range, rows, images.as_ref())?;
        let loss = if share == 1.0 { loss } else { elementwise::scale(&tape, &loss, share)? };
        Ok((tape, loss))
    }

    /// The images `range` of a batch on the device; none for text alone.
    fn upload(&mut self, batch: &Batch, range: Range<usize>) -> Result<Option<Tensor>> {
        if batch.images.is_empty() {
            return Ok(None);
        }
        let e = &self.config.model.encoder;
        let values = e.channels * e.image * e.image;
        let shape = [range.len(), e.channels, e.image, e.image];
        let Some(part) = batch.images.get(range.start * values..range.end * values) else {
            let b = batch.indices.len();
            return Err(Error::Input(format!("{} values of {b} images of {values}", batch.images.len())));
        };
        Ok(Some(self.images.put(&shape, part)?))
    }

    /// The loss of the examples `range` of a batch, whose noisy copies are among `rows`.
    fn loss(
        &self,
        tape: &Tape,
        batch: &Batch,
        range: Range<usize>,
        rows: &Rows,
        images: Option<&Tensor>,
    ) -> Result<Var> {
        let (m, c, k) = (&self.trained.model, &self.config, self.config.train.noisy_copies);
        let first = batch.part.start as u32;
        let ids = (first + range.start as u32..first + range.end as u32).collect();
        let examples = Tensor::from_u32(&m.device(), &[range.len()], ids)?;
        let drop = DropPath { noise: self.at(&self.drop_key), examples };
        let drop = (c.model.encoder.drop_path > 0.0).then_some(drop);
        let (recompute, self_condition) = (c.train.recompute, self.reads_itself());
        let p = Pass { tape, params: &m.params, dtype: m.dtype(), drop, recompute, self_condition };
        let rows = rows.part(range.start * k..range.end * k, m.sizes().tokens, m.sizes().vocab);
        match (m.is_tdd(), m.has_denoiser(), images) {
            (true, ..) => {
                let noise = self.at(&self.key);
                let loss = TddLoss { process: &self.trained.process, config: &c.loss, noise: NoiseOf::Drawn(&noise) };
                loss.of(&p, m, images, &rows)
            }
            (false, true, _) => {
                let steps = self.trained.process.steps();
                let masked = mask_tokens(&rows, m.sizes().tokens, steps, c.seed, self.step as u32);
                MddLoss { steps, config: &c.loss, masked: &masked }.of(&p, m, images, &rows)
            }
            (false, false, Some(images)) => {
                mdd_class_loss(&p, m, images, &self.targets(batch, range), c.loss.smoothing)
            }
            (false, false, None) => Err(Error::Input("a classifier needs images".into())),
        }
    }

    /// Whether a self-conditioned denoiser reads its own prediction at this step: at half of them, so that it learns to do without too.
    fn reads_itself(&self) -> bool {
        let seed = self.config.seed;
        let words = rng::philox([0, self.step as u32, 0, stream::SELF_CONDITION], [seed as u32, (seed >> 32) as u32]);
        rng::uniform_of(words[0]) < 0.5
    }

    /// Of a batch in parts: what they are all divided by. None for a head without tokens.
    pub(super) fn normaliser(&self, rows: &Rows) -> Result<Option<f64>> {
        let (m, c) = (&self.trained.model, &self.config);
        Ok(match (m.is_tdd(), m.has_denoiser()) {
            (true, _) => Some(TddLoss::normaliser(rows)?),
            (false, true) => {
                let steps = self.trained.process.steps();
                let masked = mask_tokens(rows, m.sizes().tokens, steps, c.seed, self.step as u32);
                Some(MddLoss { steps, config: &c.loss, masked: &masked }.normaliser(rows)?)
            }
            (false, false) => None,
        })
    }

    /// A noise stream at the present step.
    fn at(&self, key: &Noise) -> Noise {
        key.later(self.step as u32)
    }
}

/// The sum of losses.
pub(super) fn added(total: Option<Tensor>, loss: Tensor) -> Result<Tensor> {
    let Some(total) = total else { return Ok(loss) };
    let tape = Tape::inference();
    Ok(elementwise::add(&tape, &tape.constant(total), &tape.constant(loss))?.value().clone())
}
