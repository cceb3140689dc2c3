//! The fit loop: steps with what is told of them, evaluations, checkpoints, the best so far.

use std::time::{Duration, Instant};

use tweedie_engine::optim::StepStats;

use super::{Evaluation, Event, Metric, SavedEvent, SkippedEvent, Splits, StepEvent, Trainer};
use crate::config::Config;
use crate::data::{self, Loader, Sequences, Source};
use crate::error::{Error, Result};
use crate::evaluate;
use crate::trained::Trained;

impl Trainer {
    /// Train to the end, or until `stop` says so. `each` sees what happens; `save` writes a checkpoint, told whether it is the best so
    /// far, and says where it lies.
    pub fn fit(
        &mut self,
        mut each: impl FnMut(&Event),
        mut save: impl FnMut(&mut Trainer, bool) -> Result<String>,
        stop: impl Fn() -> bool,
    ) -> Result<()> {
        let total = self.total_steps();
        let mut loader = self.loader()?;
        let mut clock = Clock::start(&loader);
        while self.step < total {
            let Some(batch) = loader.next() else { break };
            let batch = batch?;
            let lr = self.lr();
            let loss = self.train_step(&batch)?;
            clock.images += batch.indices.len();
            loader.recycle(batch);
            let last = self.step == total;
            let due_log = self.step.is_multiple_of(self.config.train.log_every.max(1)) || last || self.step == 1;
            if due_log {
                let (loss, stats) = (loss.item()?, self.opt.stats()?);
                each(&Event::Step(self.step_event(loss, lr, &stats, &clock, &loader)));
                if stats.skipped_in_a_row >= self.config.train.max_skipped {
                    return Err(Error::Diverged { skipped: stats.skipped_in_a_row, step: self.step });
                }
                clock = Clock::start(&loader);
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
                clock.since = Instant::now();
            }
            let interrupted = interrupted || due_eval && stop();
            if due_save || best || interrupted {
                let path = save(self, best)?;
                each(&Event::Saved(SavedEvent { step: self.step, path }));
            }
            if interrupted {
                break;
            }
        }
        Ok(())
    }

    fn step_event(&self, loss: f32, lr: f32, stats: &StepStats, clock: &Clock, loader: &Loader) -> StepEvent {
        let (elapsed, wait) = (clock.since.elapsed().as_secs_f64().max(1e-9), loader.waited() - clock.waited);
        let rate = clock.images as f64 / elapsed;
        StepEvent {
            step: self.step,
            epoch: self.step as f64 / self.batches as f64,
            loss,
            lr,
            grad_norm: stats.grad_norm,
            skipped: stats.skipped,
            images_per_second: rate,
            waited: wait.as_secs_f64() / elapsed,
            eta: (self.total_steps() - self.step) as f64 * self.config.train.batch as f64 / rate,
        }
    }

    /// Name what was left out or cut since the last time, if anything was.
    fn tell_skipped(&self, loader: &Loader, each: &mut impl FnMut(&Event)) {
        let new = loader.take_skipped();
        if new.errors.is_empty() && new.cut_at.is_empty() {
            return;
        }
        each(&Event::Skipped(SkippedEvent {
            step: self.step,
            examples: new.count(),
            cut: new.cut,
            errors: new.errors.into_values().collect(),
            cut_at: new.cut_at.into_values().collect(),
        }));
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

    fn evaluate_classes(&mut self, source: Source, each: &mut impl FnMut(&Event)) -> Result<bool> {
        // The first ones of a set that is sorted by class would be of few classes.
        let source = match self.config.train.eval_images {
            0 => source,
            count => data::some_of(&source, count, self.config.seed)?,
        };
        let (raw, ema) = self.both(|t, c| {
            let r = evaluate::classes_quietly(t, &source, c, &c.sample, 0)?.report();
            Ok(Measured { score: Metric::top1(r.top1), nll: Some(r.nll), exact: None, examples: r.examples })
        })?;
        Ok(self.tell_evaluation(raw, ema, each))
    }

    /// Captions are judged by CIDEr-D of samples, text by the bound on its likelihood.
    fn evaluate_texts(&mut self, source: Sequences, each: &mut impl FnMut(&Event)) -> Result<bool> {
        let limit = self.config.train.eval_images;
        let captions = self.trained.model.is_conditional();
        let (raw, ema) = self.both(|t, c| match captions {
            true => {
                let m = evaluate::captions(t, &source, c, &c.sample, limit)?;
                let score = Metric::cider_d(m.scores()?.cider_d);
                Ok(Measured { score, nll: None, exact: Some(m.exact()), examples: m.texts.len() })
            }
            false => {
                let b = evaluate::bounds(t, &source, c, evaluate::DRAWS, limit)?.bounds;
                let score = Metric::bits_per_token(b.per_token().in_bits().mean);
                Ok(Measured { score, nll: None, exact: None, examples: b.nats.len() })
            }
        })?;
        Ok(self.tell_evaluation(raw, ema, each))
    }

    /// Tell of an evaluation; true if none was better so far. Of equals the later is taken: small sets often give the same score twice,
    /// and the later weights have learned more.
    fn tell_evaluation(&mut self, raw: Measured, ema: Option<Measured>, each: &mut impl FnMut(&Event)) -> bool {
        let better = ema.filter(|e| e.score.is_as_good_as(&raw.score)).unwrap_or(raw);
        let is_best = self.best.is_none_or(|(best, _)| better.score.is_as_good_as(&best));
        let best = match self.best.filter(|_| !is_best) {
            Some((best, _)) => best,
            None => {
                self.best = Some((better.score, self.step));
                better.score
            }
        };
        each(&Event::Eval(Evaluation {
            step: self.step,
            epoch: self.step as f64 / self.batches as f64,
            score: raw.score,
            ema: ema.map(|e| e.score),
            best,
            nll: better.nll,
            exact: better.exact,
            examples: better.examples,
        }));
        is_best
    }
}

/// What was measured of one set of weights.
#[derive(Clone, Copy)]
struct Measured {
    score: Metric,
    nll: Option<f64>,
    exact: Option<f64>,
    examples: usize,
}

/// Since the last event: when that was, images trained on, time spent waiting for the loader until then.
struct Clock {
    since: Instant,
    images: usize,
    waited: Duration,
}

impl Clock {
    fn start(loader: &Loader) -> Clock {
        Clock { since: Instant::now(), images: 0, waited: loader.waited() }
    }
}
