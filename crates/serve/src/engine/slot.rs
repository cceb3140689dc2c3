//! One model with the jobs that it works on and those that wait for it.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tweedie::Trained;
use tweedie::live::{Event, Job, JobId, LiveModel};

use super::Pins;
use crate::app::{App, Place};
use crate::error::{Problem, Result};
use crate::model::Described;
use crate::stream::{Done, Stream, Timing, Told};

/// A job that waits.
pub struct Submission {
    /// Where its events go.
    pub stream: Arc<Stream>,
    /// What to do.
    pub job: Job,
    /// When it is of no use any more.
    pub deadline: Option<Instant>,
    /// Its place in the queue.
    pub place: Place,
}

impl Submission {
    /// Give up.
    pub fn fail(self, app: &App, why: Problem) {
        app.stats.ended(false);
        self.stream.push(Told::Error(why));
    }
}

/// One part in so many of a batch may join at a step.
const BURST: usize = 8;

/// A job that is worked on.
struct Running {
    stream: Arc<Stream>,
    deadline: Option<Instant>,
    rows: usize,
    timing: Timing,
    steps: usize,
    /// The step that it has come to.
    at: usize,
}

/// Why a job is to end before its time.
fn spent(stream: &Stream, deadline: Option<Instant>) -> Option<Problem> {
    if stream.is_unwanted() {
        return Some(Problem::cancelled());
    }
    deadline.filter(|d| Instant::now() >= *d).map(|_| Problem::deadline())
}

/// A model that is served.
pub struct Slot {
    /// What is told of it.
    pub model: Arc<Described>,
    /// The network.
    pub trained: Rc<Trained>,
    /// No new jobs; it goes when the last is done.
    pub retired: bool,
    /// Those that wait.
    pub waiting: VecDeque<Submission>,
    live: LiveModel,
    most: usize,
    running: HashMap<JobId, Running>,
}

impl Slot {
    /// With up to `most` rows at once.
    pub fn new(model: Arc<Described>, trained: Rc<Trained>, most: usize) -> tweedie::Result<Slot> {
        let mut live = LiveModel::new(trained.clone(), most)?;
        live.warm_up(&model.sample)?;
        Ok(Slot { model, trained, retired: false, waiting: VecDeque::new(), live, most, running: HashMap::new() })
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Rows that are worked on.
    pub fn rows(&self) -> usize {
        self.running.values().map(|r| r.rows).sum()
    }

    /// Drop what nobody waits for, and what comes too late.
    pub fn sweep(&mut self, app: &App) {
        let live = &mut self.live;
        self.running.retain(|id, r| match spent(&r.stream, r.deadline) {
            Some(why) => {
                live.remove(*id);
                app.stats.ended(false);
                r.stream.push(Told::Error(why));
                false
            }
            None => true,
        });
        if self.waiting.iter().any(|s| spent(&s.stream, s.deadline).is_some()) {
            for job in std::mem::take(&mut self.waiting) {
                match spent(&job.stream, job.deadline) {
                    Some(why) => job.fail(app, why),
                    None => self.waiting.push_back(job),
                }
            }
        }
    }

    /// Begin with as many as there is room for, in the order in which they came. One that is larger than the room there can be goes alone.
    /// A burst is spread over some steps: the encoders of all of it would hold up whoever runs, and those who begin together ask together
    /// again.
    pub fn admit(&mut self, app: &App) {
        let (mut room, mut taken) = (self.live.room(), Vec::new());
        let joiners = (self.most / BURST).max(1);
        while let Some(next) = self.waiting.front().filter(|_| taken.len() < joiners) {
            let rows = self.live.rows_of(&next.job);
            let alone = self.running.is_empty() && taken.is_empty();
            if rows > room && !alone {
                break;
            }
            room = room.saturating_sub(rows);
            taken.extend(self.waiting.pop_front().map(|job| (job, rows)));
        }
        if taken.is_empty() {
            return;
        }
        let at: Vec<usize> = taken.iter().map(|(s, _)| s.job.resume.as_ref().map_or(0, |r| r.step)).collect();
        let empty = Job::new(&self.model.sample);
        let jobs: Vec<Job> = taken.iter_mut().map(|(s, _)| std::mem::replace(&mut s.job, empty.clone())).collect();
        let waited: Vec<f64> = taken.iter().map(|(s, _)| milliseconds(s.stream.asked)).collect();
        let begun = Instant::now();
        let admitted = match catch_unwind(AssertUnwindSafe(|| self.live.admit(jobs))) {
            Ok(admitted) => admitted,
            Err(_) => {
                taken.into_iter().for_each(|(job, _)| job.fail(app, broken("the model failed at this request")));
                return self.renew(app, &broken("the model failed at another request"));
            }
        };
        app.stats.admit_seconds.add(begun.elapsed().as_secs_f64());
        for ((((submission, rows), queue), at), result) in taken.into_iter().zip(waited).zip(at).zip(admitted) {
            match result {
                Ok(id) => {
                    let Submission { stream, deadline, place, .. } = submission;
                    drop(place);
                    let timing = Timing { queue, ..Timing::default() };
                    self.running.insert(id, Running { stream, deadline, rows, timing, steps: 0, at });
                }
                Err(e) => submission.fail(app, problem(&e)),
            }
        }
    }

    /// Take a step of all that runs.
    pub fn step(&mut self, app: &App) {
        if self.running.is_empty() {
            return;
        }
        let (rows, begun) = (self.rows(), Instant::now());
        let events = match catch_unwind(AssertUnwindSafe(|| self.live.step())) {
            Ok(Ok(events)) => events,
            Ok(Err(e)) => return self.renew(app, &problem(&e)),
            Err(_) => return self.renew(app, &broken("a step of the model failed")),
        };
        app.stats.rows.add(rows as f64);
        app.stats.steps.fetch_add(1, Relaxed);
        app.stats.step_seconds.add(begun.elapsed().as_secs_f64());
        let mut changed: Vec<Arc<Stream>> = Vec::with_capacity(rows);
        for (id, event) in events {
            changed.extend(self.tell(app, id, event));
        }
        app.wake(changed);
    }

    /// Add an event to its stream, which is to be woken if somebody wants to hear of it.
    fn tell(&mut self, app: &App, id: JobId, event: Event) -> Option<Arc<Stream>> {
        let r = self.running.get_mut(&id)?;
        let stream = r.stream.clone();
        match event {
            Event::Step(step) => {
                if r.steps == 0 {
                    r.timing.first = milliseconds(r.stream.asked);
                    app.stats.first.add(r.timing.first / 1e3);
                }
                r.steps += 1;
                r.at = step.step;
                if !stream.steps_wanted {
                    return None;
                }
                stream.add(Told::Step(step));
            }
            Event::Done(outcome) => {
                let ms = Timing { total: milliseconds(r.stream.asked), ..r.timing };
                let done = Done { outcome, ms, steps: r.steps, rows: r.rows };
                app.stats.ended(true); // counted before it is told, so that who is told finds it counted
                stream.add(Told::Done(Box::new(done)));
                self.running.remove(&id);
            }
            Event::Failed(why) => {
                app.stats.ended(false);
                stream.add(Told::Error(Problem::internal(why)));
                self.running.remove(&id);
            }
        }
        Some(stream)
    }

    /// Fix tokens of the job of a stream; `None` where it is not here.
    pub fn pin(&mut self, stream: &str, pins: &Pins) -> Option<Result<usize>> {
        if let Some(waiting) = self.waiting.iter_mut().find(|s| s.stream.id == stream) {
            let fixed = waiting.job.fixed.get_or_insert_with(|| vec![None; self.model.tokens]);
            for (place, token) in pins {
                if let Some(at) = fixed.get_mut(*place) {
                    *at = *token;
                }
            }
            return Some(Ok(0));
        }
        let (id, running) = self.running.iter().find(|(_, r)| r.stream.id == stream)?;
        let (id, at) = (*id, running.at);
        let pinned = pins.iter().try_for_each(|(place, token)| self.live.pin(id, *place, *token));
        Some(pinned.map(|()| at).map_err(|e| Problem::field("pin", e.to_string())))
    }

    /// End everything without a result.
    pub fn fail_all(&mut self, app: &App, why: &Problem) {
        for (id, r) in self.running.drain() {
            self.live.remove(id);
            app.stats.ended(false);
            r.stream.push(Told::Error(why.clone()));
        }
        self.waiting.drain(..).for_each(|job| job.fail(app, why.clone()));
    }

    /// After something went wrong in the middle of the work: those who were part of it are told, and the next find a clean table.
    fn renew(&mut self, app: &App, why: &Problem) {
        app.log.say("error", &format!("{}: {}", self.model.name, why.message));
        for (id, r) in self.running.drain() {
            self.live.remove(id);
            app.stats.ended(false);
            r.stream.push(Told::Error(why.clone()));
        }
        match LiveModel::new(self.trained.clone(), self.most) {
            Ok(live) => self.live = live,
            Err(e) => app.log.say("error", &format!("{}: {e}", self.model.name)),
        }
    }
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn broken(message: &str) -> Problem {
    Problem::internal(message)
}

/// Whose fault an error of the library is.
fn problem(e: &tweedie::Error) -> Problem {
    match e {
        tweedie::Error::Engine(e) => Problem::internal(e.to_string()),
        e => Problem::unprocessable(e.to_string()),
    }
}
