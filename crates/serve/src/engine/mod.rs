//! The one thread that owns the device: it loads models, takes a step of each that has work, and hands out what came of it.

mod score;
mod slot;

pub use score::{ScoreAsk, Scored};
pub use slot::Submission;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use tokio::sync::oneshot;
use tweedie::Device;
use tweedie::config::Precision;
use tweedie::embedded;
use tweedie::run::{self, Loaded, Weights};

use crate::app::App;
use crate::error::{Problem, Result};
use crate::model::{Described, Origin};
use crate::options::ModelSource;
use slot::Slot;

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T>>;

/// Places that a `PATCH` fixes, or frees.
pub type Pins = Vec<(usize, Option<u32>)>;

/// What the engine is asked for.
pub enum Command {
    /// Work on a job.
    Submit(Box<Submission>),
    /// Fix tokens of the job of a stream; the answer is the step that it has come to.
    Pin(String, Pins, Reply<usize>),
    /// Load a model.
    Load(ModelSource, Reply<Arc<Described>>),
    /// Unload one.
    Unload(String, Reply<()>),
    /// Load a model again: its run has a new checkpoint.
    Reload(String),
    /// Bound the likelihood of a text.
    Score(Box<ScoreAsk>),
    /// Finish what can be finished until then, and end.
    Drain(Instant),
}

/// Load a model: a run folder, a checkpoint, or one inside the program.
fn load(path: &Path, device: &Device) -> tweedie::Result<Loaded> {
    run::load(path, Weights::Ema, device, Precision::Auto)
}

/// The state of the thread.
pub struct Engine {
    app: Arc<App>,
    device: Device,
    slots: Vec<Slot>,
    /// Which model is first in the next round.
    turn: usize,
    drain_by: Option<Instant>,
}

impl Engine {
    /// Open the device and load the models that the options name.
    pub fn start(app: Arc<App>) -> tweedie::Result<Engine> {
        let device = Device::open(&app.options.device)?.device;
        let _ = app.device.set(device.to_string());
        let mut engine = Engine { app: app.clone(), device, slots: Vec::new(), turn: 0, drain_by: None };
        for source in &app.options.models {
            engine.load(source, false)?;
        }
        app.ready.store(true, Relaxed);
        Ok(engine)
    }

    fn load(&mut self, source: &ModelSource, by_request: bool) -> tweedie::Result<Arc<Described>> {
        let loaded = load(&source.path, &self.device)?;
        loaded.notes.iter().for_each(|n| self.app.log.say("note", n));
        let origin =
            Origin { path: source.path.clone(), embedded: embedded::name_in(&source.path).is_some(), by_request };
        let model = Arc::new(Described::new(&source.name, origin, &loaded)?);
        self.slots.push(Slot::new(model.clone(), Rc::new(loaded.trained), self.app.options.max_batch)?);
        self.app.models.put(model.clone());
        Ok(model)
    }

    /// Work until everybody who could ask is gone, or until told to end.
    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            let idle = self.slots.iter().all(Slot::is_idle);
            if self.drain_by.is_some_and(|by| idle || Instant::now() >= by) {
                return self.end(commands);
            }
            if idle {
                match commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(_) => return,
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.round();
        }
    }

    /// One step of each model that has work, another one first each time.
    fn round(&mut self) {
        let n = self.slots.len().max(1);
        self.turn = (self.turn + 1) % n;
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[(self.turn + i) % n];
            slot.sweep(&self.app);
            slot.admit(&self.app);
            slot.step(&self.app);
        }
        self.slots.retain(|s| !(s.retired && s.is_idle()));
        self.app.stats.rows_now.store(self.slots.iter().map(Slot::rows).sum(), Relaxed);
    }

    fn slot(&mut self, name: &str) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.model.name == name && !s.retired)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(job) => match self.slot(&job.stream.model.name) {
                Some(slot) => slot.waiting.push_back(*job),
                None => job.fail(&self.app, Problem::not_found("the model was unloaded")),
            },
            Command::Pin(stream, pins, reply) => {
                let over = || Problem::conflict("the stream is over: nothing can be changed any more");
                let pinned = self.slots.iter_mut().find_map(|s| s.pin(&stream, &pins));
                let _ = reply.send(pinned.unwrap_or_else(|| Err(over())));
            }
            Command::Load(source, reply) => {
                let failed = |e: tweedie::Error| Problem::field("run", e.to_string());
                let _ = reply.send(self.load(&source, true).map_err(failed));
            }
            Command::Unload(name, reply) => {
                self.slots.iter_mut().filter(|s| s.model.name == name).for_each(|s| s.retired = true);
                self.app.models.remove(&name);
                self.slots.retain(|s| !(s.retired && s.is_idle()));
                let _ = reply.send(Ok(()));
            }
            Command::Reload(name) => self.reload(&name),
            Command::Score(ask) => {
                let slot = self.slots.iter().find(|s| s.model.name == ask.model && !s.retired);
                let gone = || Problem::not_found("the model was unloaded");
                let scored = slot.ok_or_else(gone).and_then(|s| ask.run(&s.trained));
                let ScoreAsk { place, reply, .. } = *ask;
                drop(place);
                let _ = reply.send(scored);
            }
            Command::Drain(by) => self.drain_by = Some(by),
        }
    }

    /// Take the new checkpoint of a run: what runs ends on the old one, what waits and what comes gets the new one.
    fn reload(&mut self, name: &str) {
        let Some(old) = self.slots.iter().position(|s| s.model.name == name && !s.retired) else { return };
        let model = self.slots[old].model.clone();
        let fresh = load(&model.origin.path, &self.device).and_then(|loaded| {
            let described = Arc::new(Described::new(name, model.origin.clone(), &loaded)?);
            Slot::new(described, Rc::new(loaded.trained), self.app.options.max_batch)
        });
        match fresh {
            Ok(fresh) if fresh.model.checkpoint == model.checkpoint && fresh.model.step == model.step => {}
            Ok(mut fresh) => {
                std::mem::swap(&mut fresh.waiting, &mut self.slots[old].waiting);
                self.slots[old].retired = true;
                self.app.models.put(fresh.model.clone());
                self.app.log.say("info", &format!("{name}: now at step {}", fresh.model.step));
                self.slots.push(fresh);
                self.app.stats.reloads.fetch_add(1, Relaxed);
            }
            Err(e) => self.app.log.say("warning", &format!("{name} stays as it is; its new checkpoint: {e}")),
        }
    }

    /// Tell everybody who still waits that it is over.
    fn end(mut self, commands: &Receiver<Command>) {
        let over = || Problem::unavailable("the server is shutting down");
        while let Ok(command) = commands.try_recv() {
            if let Command::Submit(job) = command {
                job.fail(&self.app, over()); // the others learn it from their dropped replies
            }
        }
        self.slots.iter_mut().for_each(|s| s.fail_all(&self.app, &over()));
    }
}
