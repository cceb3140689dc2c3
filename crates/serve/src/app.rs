//! What all parts of a server share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, watch};

use crate::engine::Command;
use crate::error::{Problem, Result};
use crate::log::Log;
use crate::model::Registry;
use crate::options::Options;
use crate::runs::RunList;
use crate::stats::Stats;
use crate::stream::Stream;
use crate::streams::{Names, Streams};

/// KiB of request bodies that may be in memory at a time.
const BODIES_KIB: usize = 128 << 10;

/// The server's state.
pub struct App {
    /// What it was told.
    pub options: Options,
    /// The address it listens at.
    pub address: SocketAddr,
    /// Models that requests can name.
    pub models: Registry,
    /// Set once they are loaded.
    pub ready: AtomicBool,
    /// Where they run, once that is known.
    pub device: OnceLock<String>,
    /// Streams by name.
    pub streams: Streams,
    /// Names for them, and for requests.
    pub names: Names,
    /// Counts.
    pub stats: Arc<Stats>,
    /// The runs of a folder.
    pub runs: RunList,
    /// To the engine's thread.
    pub engine: Sender<Command>,
    /// Streams that have new events, to the task that wakes their readers.
    changed: UnboundedSender<Vec<Arc<Stream>>>,
    /// Turns true when the server is to end.
    pub draining: watch::Receiver<bool>,
    /// Images that are decoded at a time.
    pub decoding: Arc<Semaphore>,
    /// Bodies in memory.
    pub bodies: Semaphore,
    /// The log of requests.
    pub log: Log,
}

impl App {
    /// With nothing loaded yet.
    pub fn new(
        options: Options,
        address: SocketAddr,
        engine: Sender<Command>,
        changed: UnboundedSender<Vec<Arc<Stream>>>,
        draining: watch::Receiver<bool>,
    ) -> App {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        App {
            address,
            models: Registry::default(),
            ready: AtomicBool::new(false),
            device: OnceLock::new(),
            streams: Streams::default(),
            names: Names::default(),
            stats: Arc::new(Stats::default()),
            runs: RunList::new(options.runs.clone()),
            engine,
            changed,
            draining,
            decoding: Arc::new(Semaphore::new(cores.max(2))),
            bodies: Semaphore::new(BODIES_KIB.max(options.max_body >> 10)),
            log: Log::new(options.log),
            options,
        }
    }

    /// An error while models are loaded, and after the server was told to end.
    pub fn check_open(&self) -> Result<()> {
        if *self.draining.borrow() {
            return Err(Problem::unavailable("the server is shutting down"));
        }
        match self.ready.load(Relaxed) {
            true => Ok(()),
            false => Err(Problem::unavailable("the models are being loaded; ask again in a moment")),
        }
    }

    /// Hand something to the engine.
    pub fn send(&self, command: Command) -> Result<()> {
        self.engine.send(command).map_err(|_| Problem::unavailable("the server is shutting down"))
    }

    /// Wake the readers of streams. Another thread does it: to wake a thread takes longer than to compute a row of a step.
    pub fn wake(&self, changed: Vec<Arc<Stream>>) {
        if let Err(unsent) = self.changed.send(changed) {
            unsent.0.iter().for_each(|stream| stream.wake()); // the server ends
        }
    }

    /// Places in the queue for so many jobs, all or none.
    pub fn places(&self, jobs: usize) -> Result<Vec<Place>> {
        let most = self.options.queue;
        let fits = |n: usize| n.checked_add(jobs).filter(|n| *n <= most);
        match self.stats.waiting.fetch_update(Relaxed, Relaxed, fits) {
            Ok(_) => Ok((0..jobs).map(|_| Place(self.stats.clone())).collect()),
            Err(_) => {
                let message = format!("the queue of {most} is full; ask again later");
                Err(Problem::overloaded(message, self.stats.retry_after()))
            }
        }
    }
}

/// A place in the queue, until it is dropped.
pub struct Place(Arc<Stats>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
