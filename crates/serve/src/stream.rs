//! The events of one request, kept for whoever reads them: the engine adds, any number of readers follow, and none waits for another.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Notify;
use tweedie::live::{LiveStep, Outcome};

use crate::error::Problem;
use crate::model::Described;

/// Bytes of events that a stream keeps.
pub const MOST_BYTES: usize = 4 << 20;
/// A request that nobody reads any more is dropped after this.
const ALONE: Duration = Duration::from_secs(2);

/// Milliseconds that a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Waiting for a place.
    pub queue: f64,
    /// Until its first step.
    pub first: f64,
    /// In all.
    pub total: f64,
}

/// The result of a request.
#[derive(Clone, Debug)]
pub struct Done {
    /// What came out.
    pub outcome: Outcome,
    /// How long it took.
    pub ms: Timing,
    /// Steps taken.
    pub steps: usize,
    /// Rows of the batch that it took.
    pub rows: usize,
}

/// One event.
#[derive(Clone, Debug)]
pub enum Told {
    /// It is accepted.
    Start(Value),
    /// A step was taken.
    Step(LiveStep),
    /// It is over.
    Done(Box<Done>),
    /// It is over without a result.
    Error(Problem),
}

impl Told {
    fn is_end(&self) -> bool {
        matches!(self, Told::Done(_) | Told::Error(_))
    }

    /// Memory, about.
    fn bytes(&self) -> usize {
        match self {
            Told::Start(_) | Told::Error(_) => 512,
            Told::Step(s) => {
                let places: usize = s.places.iter().map(|p| 56 + 16 * p.top.len()).sum();
                64 + places + 8 * s.probabilities.as_ref().map_or(0, Vec::len)
            }
            Told::Done(done) => match &done.outcome {
                Outcome::Class(answer) => 256 + 48 * answer.posterior.0.len(),
                Outcome::Texts(texts) => texts.iter().map(|t| 96 + t.text.len() + 4 * t.tokens.len()).sum(),
            },
        }
    }
}

/// What a reader finds at its place.
pub enum Next {
    /// An event.
    Event(Arc<Told>),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    End,
    /// It was dropped to keep within the limit; the first that is kept.
    Gone(u64),
}

#[derive(Default)]
struct Inner {
    events: VecDeque<(Arc<Told>, usize)>,
    bytes: usize,
    /// Number of the first event that is kept.
    first: u64,
    ended: Option<Instant>,
    readers: usize,
    /// When the last reader left.
    left: Option<Instant>,
    stopped: bool,
}

/// A request and its events.
pub struct Stream {
    /// Its name.
    pub id: String,
    /// What answers it.
    pub model: Arc<Described>,
    /// Classes to tell of at the end.
    pub top: usize,
    /// Seed of the answer.
    pub seed: u64,
    /// When it was asked for.
    pub asked: Instant,
    /// Whether anybody wants to hear of steps.
    pub steps_wanted: bool,
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Stream {
    /// One without events.
    pub fn new(id: String, model: Arc<Described>, top: usize, seed: u64, steps_wanted: bool) -> Stream {
        let (inner, changed) = (Mutex::default(), Notify::new());
        Stream { id, model, top, seed, asked: Instant::now(), steps_wanted, inner, changed }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Add an event, and wake whoever waits for it; one after the end is lost.
    pub fn push(&self, told: Told) {
        self.add(told);
        self.wake();
    }

    /// Wake whoever waits for an event.
    pub fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Add an event; who waits for it is to be woken afterwards.
    pub fn add(&self, told: Told) {
        let mut inner = self.lock();
        if inner.ended.is_some() {
            return;
        }
        if told.is_end() {
            inner.ended = Some(Instant::now());
        }
        let bytes = told.bytes();
        inner.events.push_back((Arc::new(told), bytes));
        inner.bytes += bytes;
        while inner.bytes > MOST_BYTES && inner.events.len() > 1 {
            let dropped = inner.events.pop_front().map_or(0, |e| e.1);
            inner.bytes -= dropped;
            inner.first += 1;
        }
    }

    /// What stands at number `at`.
    pub fn at(&self, at: u64) -> Next {
        let inner = self.lock();
        if at < inner.first {
            return Next::Gone(inner.first);
        }
        match inner.events.get((at - inner.first) as usize) {
            Some((told, _)) => Next::Event(told.clone()),
            None if inner.ended.is_some() => Next::End,
            None => Next::Wait,
        }
    }

    /// Wait until there is an event at `at`, or none will come.
    pub async fn wait(&self, at: u64) -> Next {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match self.at(at) {
                Next::Wait => changed.await,
                next => return next,
            }
        }
    }

    /// The last event, once there is one that ends it.
    pub async fn end(&self) -> Arc<Told> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let last = self.lock().events.back().map(|e| e.0.clone());
            match last {
                Some(told) if told.is_end() => return told,
                _ => changed.await,
            }
        }
    }

    /// Ask for its end.
    pub fn stop(&self) {
        self.lock().stopped = true;
    }

    /// Whether it was stopped, or left alone for too long.
    pub fn is_unwanted(&self) -> bool {
        let inner = self.lock();
        inner.stopped || (inner.readers == 0 && inner.left.is_some_and(|left| left.elapsed() > ALONE))
    }

    /// When it ended.
    pub fn ended(&self) -> Option<Instant> {
        self.lock().ended
    }

    /// Bytes of its events.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Take part as a reader for as long as what is returned lives.
    pub fn read(self: &Arc<Stream>) -> Reading {
        self.lock().readers += 1;
        Reading(self.clone())
    }
}

/// Somebody who reads a stream.
pub struct Reading(pub Arc<Stream>);

impl Drop for Reading {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.readers -= 1;
        if inner.readers == 0 {
            inner.left = Some(Instant::now());
        }
    }
}

/// Stops a request whose client goes away before its plain answer.
pub struct StopOnDrop(pub Arc<Stream>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}
