//! The fit loop: steps with what is told of them, evaluations, checkpoints, the best so far.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tweedie_engine::Device;
use tweedie_engine::optim::StepStats;

use super::pace::{Left, Pace, Pause, due};
use super::{Evaluation, Event, Metric, SavedEvent, SkippedEvent, Splits, StepEvent, Trainer, WarningEvent};
use crate::config::Config;
use crate::data::{self, Loader, Sequences, Skipped, Source};
use crate::error::{Error, Result};
use crate::evaluate;
use crate::progress::{self, Work};
use crate::trained::Trained;

/// A save that failed is tried again after this long, or where the next checkpoint is due.
const SAVE_AGAIN: Duration = Duration::from_secs(60);

impl Trainer {
    /// Train to the end, or until `stop` says so. `each` sees what happens; `save` writes a checkpoint, told whether it is the best so
    /// far, and says where it lies.
    ///
    /// A checkpoint or an evaluation that fails is told and does not end the run, except a checkpoint at its end. Any other error
    /// does, after the last finished step was saved ([`Error::Stopped`]); where the training diverged there is nothing to save
    /// ([`Error::Diverged`]).
    pub fn fit(
        &mut self,
        mut each: impl FnMut(&Event),
        mut save: impl FnMut(&mut Trainer, bool) -> Result<String>,
        stop: impl Fn() -> bool,
    ) -> Result<()> {
        let mut saved = self.step;
        match self.all_steps(&mut each, &mut save, &stop, &mut saved) {
            Err(e @ (Error::Diverged { .. } | Error::Stopped { .. })) => Err(e),
            // Where the others do not know of it, they are not there to save.
            Err(e) if self.peers.are_several() && !matches!(e, Error::Rank { .. }) => Err(e),
            Err(e) if self.step > saved => Err(self.save_and_stop(e, &mut save)),
            ended => ended,
        }
    }

    /// The loop of [`Trainer::fit`]; `saved` is the step of the last checkpoint.
    fn all_steps(
        &mut self,
        each: &mut impl FnMut(&Event),
        save: &mut impl FnMut(&mut Trainer, bool) -> Result<String>,
        stop: &impl Fn() -> bool,
        saved: &mut usize,
    ) -> Result<()> {
        let total = self.total_steps();
        let mut loader = self.peers.agree(self.loader())?;
        let mut pace = Pace::start(loader.waited());
        let first = self.step;
        progress::tell(Work::FirstBatch, self.step, total);
        // A checkpoint is due from this moment on.
        let mut owed: Option<Instant> = None;
        while self.step < total {
            let next = loader.next().transpose().map_err(Error::from);
            let Some(batch) = self.peers.agree(next)? else { break };
            let lr = self.lr();
            if self.step == first {
                progress::tell(Work::FirstStep, self.step, total);
            }
            let loss = self.train_step(&batch)?;
            pace.add(batch.global);
            loader.recycle(batch);
            let last = self.step == total;
            let due_log = self.step.is_multiple_of(self.config.train.log_every.max(1)) || last || self.step == 1;
            if due_log {
                let (loss, stats) = (loss.item()?, self.opt.stats()?);
                each(&Event::Step(self.step_event(loss, lr, &stats, &mut pace, &loader)));
            }
            progress::tell(Work::Steps, self.step, total);
            self.check_gradients(due_log)?;
            let epoch_end = self.step.is_multiple_of(self.batches);
            let every = |n: usize| epoch_end && n > 0 && (self.step / self.batches).is_multiple_of(n);
            let (due_eval, due_save) =
                (last || every(self.config.train.eval_every), last || every(self.config.train.checkpoint_every));
            let (best_before, mut best) = (self.best, false);
            let due_save = due_save || owed.is_some_and(|from| from <= Instant::now());
            let (mut interrupted, due_save) = self.peers.vote(stop(), due_save)?;
            if due_log || epoch_end || interrupted {
                self.tell_skipped(&loader, each)?;
            }
            if due_eval {
                self.trained.model.device().synchronize()?; // steps that are under way are not part of it
                let began = Instant::now();
                best = self.try_evaluation(each)?;
                pace.paused(Pause::Evaluation, began);
                interrupted = self.peers.vote(interrupted || stop(), due_save)?.0;
            }
            if due_save {
                owed = Some(Instant::now());
            }
            let ends = last || interrupted;
            if ends || best || due_save && self.is_sound()? {
                let began = Instant::now();
                progress::tell(Work::Checkpoint, self.step, total);
                let done = self.save_now(best, ends, each, save)?;
                pace.paused(Pause::Checkpoint, began);
                if done {
                    (owed, *saved) = (None, self.step);
                } else {
                    (owed, self.best) = (Some(Instant::now() + SAVE_AGAIN), best_before);
                }
            }
            if interrupted {
                break;
            }
        }
        Ok(())
    }

    /// An error once too many steps in a row had no finite gradient. A GPU is asked only so often that none of them goes by unnoticed
    /// for long: each answer waits for it.
    fn check_gradients(&self, now: bool) -> Result<()> {
        let most = self.config.train.max_skipped.max(1);
        if !now && self.trained.model.device() != Device::Cpu && !self.step.is_multiple_of(most as usize) {
            return Ok(());
        }
        match self.opt.stats()?.skipped_in_a_row {
            n if n >= most => Err(self.diverged(format!("{n} steps in a row had no finite gradient"))),
            _ => Ok(()),
        }
    }

    fn diverged(&self, why: String) -> Error {
        Error::Diverged { why, step: self.step, good: None }
    }

    /// Whether the last step had a finite loss and gradient. A checkpoint waits for one that has: weights that give none would soon push
    /// the good ones out.
    fn is_sound(&self) -> Result<bool> {
        Ok(self.opt.stats()?.skipped_in_a_row == 0)
    }

    /// Save, and tell it; false where that failed, which is an error only where the run `ends`.
    fn save_now(
        &mut self,
        best: bool,
        ends: bool,
        each: &mut impl FnMut(&Event),
        save: &mut impl FnMut(&mut Trainer, bool) -> Result<String>,
    ) -> Result<bool> {
        let step = self.step;
        match save(self, best) {
            Ok(path) => {
                each(&Event::Saved(SavedEvent { step, path }));
                Ok(true)
            }
            Err(Error::NotFinite { tensor, .. }) => {
                Err(self.diverged(format!("{tensor} holds values that are not finite")))
            }
            Err(e) if ends => {
                let saved = format!("step {step}, where the run ends, is not saved");
                Err(Error::Stopped { source: Box::new(e), saved })
            }
            Err(e) => {
                self.warn(format!("step {step} is not saved, the training goes on: {e}"), each);
                Ok(false)
            }
        }
    }

    /// What a run ends with that was ended by `e`, after an attempt to save its last finished step.
    fn save_and_stop(&mut self, e: Error, save: &mut impl FnMut(&mut Trainer, bool) -> Result<String>) -> Error {
        let step = self.step;
        let saved = match save(self, false) {
            Ok(path) => format!("step {step} was saved before, in {path}"),
            Err(why) => format!("step {step} is not saved: {why}"),
        };
        Error::Stopped { source: Box::new(e), saved }
    }

    fn warn(&self, message: String, each: &mut impl FnMut(&Event)) {
        each(&Event::Warning(WarningEvent { step: self.step, message }));
    }

    fn step_event(&self, loss: f32, lr: f32, stats: &StepStats, pace: &mut Pace, loader: &Loader) -> StepEvent {
        let stretch = pace.stretch(loader.waited());
        StepEvent {
            step: self.step,
            epoch: self.step as f64 / self.batches as f64,
            loss,
            lr,
            grad_norm: stats.grad_norm,
            skipped: stats.skipped,
            images_per_second: stretch.examples_per_second,
            waited: stretch.waited,
            eta: pace.left(&self.left()),
        }
    }

    fn left(&self) -> Left {
        let (t, done) = (&self.config.train, self.step / self.batches);
        Left {
            examples: (self.total_steps() - self.step) * t.batch,
            evaluations: due(t.eval_every, done, t.epochs),
            checkpoints: due(t.checkpoint_every, done, t.epochs),
        }
    }

    /// Name what was left out or cut since the last time, if anything was.
    fn tell_skipped(&self, loader: &Loader, each: &mut impl FnMut(&Event)) -> Result<()> {
        let new = self.peers.tell(&New::of(loader.take_skipped()))?.into_iter().fold(New::default(), New::and);
        if new.again > 0 {
            let one = new.again_at.as_deref().unwrap_or_default();
            self.warn(format!("{} reads failed and were tried again; the last: {one}", new.again), each);
        }
        if !new.errors.is_empty() || !new.cut_at.is_empty() {
            let New { examples, cut, errors, cut_at, .. } = new;
            let (step, validation) = (self.step, false);
            each(&Event::Skipped(SkippedEvent { step, validation, examples, cut, errors, cut_at }));
        }
        Ok(())
    }

    /// Name the validation examples that could not be read, each once.
    fn tell_left_out(&mut self, skipped: &Skipped, each: &mut impl FnMut(&Event)) {
        let new: Vec<&String> = skipped.errors.values().filter(|e| !self.left_out.contains(*e)).collect();
        let errors: Vec<String> = new.into_iter().cloned().collect();
        self.left_out.extend(errors.iter().cloned());
        if !errors.is_empty() {
            let (step, examples) = (self.step, self.left_out.len());
            each(&Event::Skipped(SkippedEvent {
                step,
                validation: true,
                examples,
                cut: 0,
                errors,
                cut_at: Vec::new(),
            }));
        }
    }

    /// As [`Trainer::evaluate_now`]; data that cannot be read are told and end nothing, unless unreadable ones are to.
    fn try_evaluation(&mut self, each: &mut impl FnMut(&Event)) -> Result<bool> {
        match self.evaluate_now(each) {
            Err(Error::Data(e)) if e.is_corrupt() => Err(e.into()),
            Err(e @ (Error::Data(_) | Error::File { .. } | Error::Input(_) | Error::Rank { fatal: false, .. })) => {
                self.warn(format!("no evaluation at step {}, the training goes on: {e}", self.step), each);
                Ok(false)
            }
            done => done,
        }
    }

    /// Evaluate raw and averaged weights and forget the result: to see how long it takes.
    pub(crate) fn evaluate_once(&mut self) -> Result<()> {
        self.evaluate_now(&mut |_| {}).map(|_| ())
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
        let (skipped, peers) = (RefCell::new(Skipped::default()), self.peers.clone());
        let (raw, ema) = self.both(|t, c| {
            let m = evaluate::classes_among(&peers, t, &source, c, &c.sample)?;
            let r = m.report();
            skipped.replace(m.skipped);
            let (score, sound) = (Metric::top1(r.top1), r.unanswered == 0);
            Ok(Measured { score, nll: Some(r.nll), exact: None, examples: r.examples, sound })
        })?;
        self.tell_left_out(&skipped.take(), each);
        Ok(self.tell_evaluation(raw, ema, each))
    }

    /// Captions are judged by CIDEr-D of samples, text by the bound on its likelihood.
    fn evaluate_texts(&mut self, source: Sequences, each: &mut impl FnMut(&Event)) -> Result<bool> {
        let limit = self.config.train.eval_images;
        let captions = self.trained.model.is_conditional();
        let (skipped, peers) = (RefCell::new(Skipped::default()), self.peers.clone());
        let (raw, ema) = self.both(|t, c| match captions {
            true => {
                let m = evaluate::captions_among(&peers, t, &source, c, &c.sample, limit)?;
                let score = Metric::cider_d(m.scores()?.cider_d);
                let (exact, examples) = (Some(m.exact()), m.texts.len());
                skipped.replace(m.skipped);
                Ok(Measured { score, nll: None, exact, examples, sound: true })
            }
            false => {
                let evaluate::Bounded { bounds: b, skipped: bad, .. } =
                    evaluate::bounds_among(&peers, t, &source, c, evaluate::DRAWS, limit)?;
                skipped.replace(bad);
                let score = Metric::bits_per_token(b.per_token().in_bits().mean);
                Ok(Measured { score, nll: None, exact: None, examples: b.nats.len(), sound: true })
            }
        })?;
        self.tell_left_out(&skipped.take(), each);
        Ok(self.tell_evaluation(raw, ema, each))
    }

    /// Tell of an evaluation; true if none was better so far. Of equals the later is taken: small sets often give the same score twice,
    /// and the later weights have learned more.
    fn tell_evaluation(&mut self, raw: Measured, ema: Option<Measured>, each: &mut impl FnMut(&Event)) -> bool {
        let better = ema.filter(|e| e.is_as_good_as(&raw)).unwrap_or(raw);
        let is_best = better.is_number() && self.best.is_none_or(|(best, _)| better.score.is_as_good_as(&best));
        if is_best {
            self.best = Some((better.score, self.step));
        }
        let best = self.best.map_or(better.score, |b| b.0);
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

/// What a loader left out since it was last asked, as ranks tell each other.
#[derive(Clone, Default, Serialize, Deserialize)]
struct New {
    again: usize,
    again_at: Option<String>,
    examples: usize,
    cut: u64,
    errors: Vec<String>,
    cut_at: Vec<String>,
}

impl New {
    fn of(new: Skipped) -> New {
        New {
            again: new.again,
            examples: new.count(),
            cut: new.cut,
            again_at: new.again_at,
            errors: new.errors.into_values().collect(),
            cut_at: new.cut_at.into_values().collect(),
        }
    }

    /// With that of another rank.
    fn and(mut self, other: New) -> New {
        self.errors.extend(other.errors);
        self.cut_at.extend(other.cut_at);
        New {
            again: self.again + other.again,
            again_at: other.again_at.or(self.again_at),
            examples: self.examples + other.examples,
            cut: self.cut + other.cut,
            ..self
        }
    }
}

/// What was measured of one set of weights.
#[derive(Clone, Copy)]
struct Measured {
    score: Metric,
    nll: Option<f64>,
    exact: Option<f64>,
    examples: usize,
    /// Whether every answer was one: none of numbers that are not finite.
    sound: bool,
}

impl Measured {
    fn is_number(&self) -> bool {
        self.sound && self.score.value.is_finite()
    }

    fn is_as_good_as(&self, other: &Measured) -> bool {
        self.is_number() && (!other.is_number() || self.score.is_as_good_as(&other.score))
    }
}
