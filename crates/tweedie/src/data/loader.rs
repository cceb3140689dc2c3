//! Batches made ahead of time: threads read, decode and augment while the consumer computes. What is in a batch depends on
//! (seed, epoch, batch number) alone, never on threads.

mod ahead;
mod config;
mod skipped;
mod work;

use super::examples::{Captioned, Classes, Examples};
use super::order::Arrangement;
use super::{DataError, Result, Sequences, Source};
use crate::augment::Transform;
use ahead::{Begun, READERS};
pub use config::{Batch, LoaderConfig, OnCorrupt, Position};
use skipped::Found;
pub use skipped::Skipped;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use work::Work;
pub(crate) use work::partners_outside;

/// Makes batches in background threads; an iterator over them. Dropping it stops the threads.
///
/// ```
/// use tweedie::augment::{AugmentConfig, Transform};
/// use tweedie::data::{Dataset, Loader, LoaderConfig};
///
/// let digits = Dataset::embedded("digits")?;
/// let path = Transform::eval(&AugmentConfig::none(), 8, 1)?;
/// let mut seen = 0;
/// for batch in Loader::new(digits.final_split()?.0.clone(), path, LoaderConfig::eval(100))? {
///     let batch = batch?;
///     assert_eq!(batch.images.len(), batch.labels.len() * 8 * 8);
///     seen += batch.labels.len();
/// }
/// assert_eq!(seen, 359);
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
pub struct Loader {
    work: Arc<Work>,
    lanes: Vec<Receiver<Result<Batch>>>,
    threads: Vec<JoinHandle<()>>,
    next: u64,
    waited: Duration,
    done: bool,
}

/// Batches under construction at the same time, so that threads that find no more images in one go on with the next.
const LANES: usize = 2;
/// How long to wait before a read that the system refused is tried again, time after time.
const WAITS: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(800)];
/// After so many examples in a row that were refused all the same, waiting is of no use.
const PATIENCE: u32 = 4;
/// Batches of one lane for which room is taken at most.
const MOST_WAITING: usize = 1 << 10;

impl Loader {
    /// Start making batches of images and classes.
    pub fn new(source: Source, transform: Transform, config: LoaderConfig) -> Result<Loader> {
        Loader::start(Box::new(Classes { source, transform }), config)
    }

    /// Start making batches of sequences, with their images if there is a `transform`. Shuffled packed text begins at
    /// another token each epoch.
    pub fn sequences(source: Sequences, transform: Option<Transform>, config: LoaderConfig) -> Result<Loader> {
        let shuffled = config.shuffle;
        Loader::start(Box::new(Captioned { source, transform, shuffled }), config)
    }

    fn start(examples: Box<dyn Examples>, config: LoaderConfig) -> Result<Loader> {
        let n = examples.len();
        if config.batch == 0 {
            return Err(DataError::Setting("the batch size must be at least 1".into()));
        }
        config.part.check(config.batch, config.drop_last)?;
        if examples.mixes() && !config.drop_last && config.part.ranks > 1 {
            return Err(DataError::Setting("batches that several ranks mix must be full: set drop_last".into()));
        }
        if n >= u32::MAX as usize {
            return Err(DataError::Setting(format!("{n} examples are more than can be numbered")));
        }
        let locality = examples.locality().filter(|_| config.shuffle);
        let arrangement = Arrangement::new(n, locality, config.batching(examples.mixes()))?;
        let batches = if config.drop_last { n / config.batch } else { n.div_ceil(config.batch) };
        if batches == 0 {
            return Err(DataError::Setting(format!(
                "{n} {} do not fill one batch of {}; use a smaller batch",
                examples.noun(),
                config.batch
            )));
        }
        let mut found = Found::default();
        for (row, why) in examples.bad_rows() {
            if config.on_corrupt == OnCorrupt::Fail {
                return Err(DataError::Setting(why.clone()));
            }
            found.bad(*row, || why.clone());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads)
            .thread_name(|i| format!("decode-{i}"))
            .build()
            .map_err(|e| DataError::Setting(format!("cannot start the decoding threads: {e}")))?;
        let pool = Arc::new(pool);
        let depth = config.prefetch.saturating_sub(LANES).div_ceil(LANES).min(MOST_WAITING);
        let first = config.start.epoch as u64 * batches as u64 + config.start.batch as u64;
        let work = Arc::new(Work {
            examples,
            config,
            batches: batches as u32,
            arrangement,
            order: Mutex::default(),
            begun: Begun::default(),
            found: Mutex::new(found),
            refused: AtomicU32::new(0),
            spare: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let (mut lanes, mut threads) = (Vec::new(), Vec::new());
        for lane in 0..LANES as u64 {
            let (sender, receiver) = sync_channel(depth);
            let (work, pool) = (work.clone(), pool.clone());
            let thread = std::thread::Builder::new()
                .name(format!("batches-{lane}"))
                .spawn(move || work.run_lane(first + lane, &pool, &sender))
                .map_err(|e| DataError::Setting(format!("cannot start a thread: {e}")))?;
            lanes.push(receiver);
            threads.push(thread);
        }
        let readers = if work.arrangement.streamed().is_some() { READERS } else { 0 };
        for reader in 0..readers {
            let work = work.clone();
            let thread = std::thread::Builder::new()
                .name(format!("ahead-{reader}"))
                .spawn(move || work.read_ahead(first, reader))
                .map_err(|e| DataError::Setting(format!("cannot start a thread: {e}")))?;
            threads.push(thread);
        }
        Ok(Loader { work, lanes, threads, next: 0, waited: Duration::ZERO, done: false })
    }

    /// Batches in an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.work.batches as usize
    }

    /// Time that the consumer has spent waiting for batches so far.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// What was left out or cut so far, without what was taken.
    pub fn skipped(&self) -> Skipped {
        self.work.found().skipped.clone()
    }

    /// As [`skipped`](Loader::skipped); what is named there is not named again.
    pub fn take_skipped(&self) -> Skipped {
        self.work.found().take()
    }

    fn stop(&mut self) {
        self.work.end();
        self.lanes.clear(); // a lane that waits to send finds its receiver gone
    }

    /// Hand back the memory of a batch that is no longer needed.
    pub fn recycle(&self, batch: Batch) {
        let mut spare = self.work.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < self.work.config.prefetch.saturating_add(LANES) {
            spare.push(batch.images);
        }
    }
}

impl Iterator for Loader {
    type Item = Result<Batch>;

    /// The next batch; waits for it if it is not ready. After an error or the last epoch there is none.
    fn next(&mut self) -> Option<Result<Batch>> {
        if self.done {
            return None;
        }
        let begin = Instant::now();
        let got = self.lanes[(self.next % LANES as u64) as usize].recv();
        self.waited += begin.elapsed();
        self.next += 1;
        match got {
            Ok(Ok(batch)) => Some(Ok(batch)),
            Ok(Err(e)) => {
                self.done = true;
                Some(Err(e))
            }
            Err(_) => {
                self.done = true;
                self.stop();
                // A lane ends without a word after the last epoch, or because it panicked.
                let panicked = self.threads.drain(..).any(|t| t.join().is_err());
                panicked.then(|| {
                    let message = "a decoding thread panicked; this is a bug, its message is above";
                    Err(DataError::Setting(message.into()))
                })
            }
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
