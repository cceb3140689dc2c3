//! The course of a training: steps with what is told of them, evaluations, checkpoints, the best so far.

use std::time::{Duration, Instant};

use super::{Event, Splits, Trained, Trainer, evaluate_quietly};
use crate::config::Config;
use crate::data::{Loader, Sequences, Source};
use crate::error::{Error, Result};
use crate::texts;

impl Trainer {
    /// Train to the end, or until `stop` says so. `each` sees what happens; `save` writes a checkpoint.
    pub fn run(
        &mut self,
        mut each: impl FnMut(&Event),
        mut save: impl FnMut(&mut Trainer, bool) -> Result<String>,
        stop: impl Fn() -> bool,
    ) -> Result<()> {
        let total = self.total_steps();
        let mut loader = self.loader()?;
        let (mut since, mut images, mut waited) = (Instant::now(), 0, Duration::ZERO);
        while self.step < total {
            let Some(batch) = loader.next() else { break };
            let batch = batch?;
            let lr = self.lr();
            let loss = self.train_step(&batch)?;
            images += batch.indices.len();
            loader.recycle(batch);
            let last = self.step == total;
            let due_log = self.step.is_multiple_of(self.config.train.log_every.max(1)) || last || self.step == 1;
            if due_log {
                let (loss, stats) = (loss.item()?, self.opt.stats()?);
                let (elapsed, wait) = (since.elapsed().as_secs_f64().max(1e-9), loader.waited() - waited);
                let rate = images as f64 / elapsed;
                each(&Event::Step {
                    step: self.step,
                    epoch: self.step as f64 / self.batches as f64,
                    loss,
                    lr,
                    grad_norm: stats.grad_norm,
                    skipped: stats.skipped,
                    images_per_second: rate,
                    waited: wait.as_secs_f64() / elapsed,
                    eta: (total - self.step) as f64 * self.config.train.batch as f64 / rate,
                });
                if stats.skipped_in_a_row >= self.config.train.max_skipped {
                    return Err(Error::Diverged { skipped: stats.skipped_in_a_row, step: self.step });
                }
                (since, images, waited) = (Instant::now(), 0, loader.waited());
            }
            let epoch_end = self.step.is_multiple_of(self.batches);
            let every = |n: usize| epoch_end && n > 0 && (self.step / self.batches).is_multiple_of(n);
            let (due_eval, due_save) =
                (last || every(self.config.train.eval_every), last || every(self.config.train.checkpoint_every));
            let mut best = false;
            let interrupted = stop();
            if due_log || epoch_end || interrupted {
                self.tell_skipped(&loader, &mut each);
            }
            if due_eval {
                best = self.evaluate_now(&mut each)?;
                since = Instant::now();
            }
            let interrupted = interrupted || stop();
            if due_save || best || interrupted {
                let path = save(self, best)?;
                each(&Event::Saved { step: self.step, path });
            }
            if interrupted {
                break;
            }
        }
        Ok(())
    }

    /// Name what was left out or cut since the last time, if anything was.
    fn tell_skipped(&self, loader: &Loader, each: &mut impl FnMut(&Event)) {
        let new = loader.take_skipped();
        if new.errors.is_empty() && new.cut_at.is_empty() {
            return;
        }
        each(&Event::Skipped {
            step: self.step,
            examples: new.count(),
            cut: new.cut,
            errors: new.errors.into_values().collect(),
            cut_at: new.cut_at.into_values().collect(),
        });
    }

    /// Evaluate raw and averaged weights; true if this is the best so far.
    fn evaluate_now(&mut self, each: &mut impl FnMut(&Event)) -> Result<bool> {
        match &self.splits {
            Splits::Classes { val, .. } => self.evaluate_classes(val.clone(), each),
            Splits::Sequences { val, .. } => self.evaluate_texts(val.clone(), each),
        }
    }

    /// `f` of the raw weights, and of the averaged ones if there are any.
    fn both<R>(&mut self, f: impl Fn(&Trained, &Config) -> Result<R>) -> Result<(R, Option<R>)> {
        let raw = f(&self.trained, &self.config)?;
        let ema = if self.opt.ema().is_some() { Some(self.averaged(&f)?) } else { None };
        Ok((raw, ema))
    }

    /// Note a score, of which more is better; true if none was better so far. Of equals the later is taken: small sets often
    /// give the same score twice, and the later weights have learned more.
    fn note_best(&mut self, score: f64) -> bool {
        let is_best = self.best_step == 0 || score >= self.best;
        if is_best {
            (self.best, self.best_step) = (score, self.step);
        }
        is_best
    }

    fn evaluate_classes(&mut self, source: Source, each: &mut impl FnMut(&Event)) -> Result<bool> {
        let limit = self.config.train.eval_images;
        let (raw, ema) = self.both(|t, c| evaluate_quietly(t, &source, c, &c.sample, limit).map(|m| m.report()))?;
        let better = ema.as_ref().filter(|e| e.top1 >= raw.top1).unwrap_or(&raw);
        let nll = better.nll;
        let is_best = self.note_best(better.top1);
        each(&Event::Eval {
            step: self.step,
            epoch: self.step as f64 / self.batches as f64,
            top1: raw.top1,
            ema_top1: ema.as_ref().map(|e| e.top1),
            nll,
            best: self.best,
            images: raw.examples,
        });
        Ok(is_best)
    }

    /// Captions are judged by CIDEr-D of samples, text by the bound on its likelihood.
    fn evaluate_texts(&mut self, source: Sequences, each: &mut impl FnMut(&Event)) -> Result<bool> {
        let limit = self.config.train.eval_images;
        let captions = self.trained.model.is_conditional();
        // Score, exact matches, sequences.
        let (raw, ema) = self.both(|t, c| match captions {
            true => {
                let m = texts::captions(t, &source, c, &c.sample, limit)?;
                Ok((m.scores()?.cider_d, Some(m.exact()), m.texts.len()))
            }
            false => {
                let b = texts::bound(t, &source, c, texts::DRAWS, limit)?.bounds;
                Ok((b.per_token().in_bits().mean, None, b.nats.len()))
            }
        })?;
        // Fewer bits are better, but more CIDEr-D.
        let sign = if captions { 1.0 } else { -1.0 };
        let better = ema.filter(|e| sign * e.0 >= sign * raw.0).unwrap_or(raw);
        let is_best = self.note_best(sign * better.0);
        each(&Event::EvalText {
            step: self.step,
            epoch: self.step as f64 / self.batches as f64,
            metric: if captions { "CIDEr-D" } else { "bits per token" },
            score: raw.0,
            ema_score: ema.map(|e| e.0),
            exact: better.1,
            best: sign * self.best,
            examples: better.2,
        });
        Ok(is_best)
    }
}
