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

    /// As [`Trainer::train_step`], with the images of the batch on the device already (not with `train.accumulate`).
    pub fn step_on(&mut self, batch: &Batch, uploaded: Option<&Tensor>) -> Result<Tensor> {
        let (lr, parts) = (self.lr(), self.config.train.accumulate);
        self.check_batch(batch)?;
        let per = batch.indices.len() / parts.max(1);
        let mut rows = self.rows(batch)?;
        if parts > 1 {
            rows.normaliser = self.normaliser(&rows)?;
        }
        let mut total: Option<Tensor> = None;
        for part in 0..parts {
            let range = part * per..(part + 1) * per;
            let images = match uploaded {
                Some(images) if parts == 1 => Some(images.clone()),
                _ => self.upload(batch, range.clone())?,
            };
            let tape = Tape::new();
            let loss = self.loss(&tape, batch, range, &rows, images.as_ref())?;
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
        let ids = (range.start as u32..range.end as u32).collect();
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
    fn normaliser(&self, rows: &Rows) -> Result<Option<f64>> {
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
