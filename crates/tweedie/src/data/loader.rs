//! Batches made ahead of time: threads read, decode and augment while the consumer computes. What is in a batch depends on
//! (seed, epoch, batch number) alone, never on threads.

mod part;
mod skipped;

use super::examples::{Captioned, Classes, Examples};
use super::order::order;
use super::sequence::OnBad;
use super::{DataError, Result, Sequences, Source};
use crate::augment::{Mix, Transform};
use crate::random::{Address, Draw, Stream};
pub use part::Part;
use rayon::prelude::*;
use skipped::Found;
pub use skipped::Skipped;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What to do about an unreadable image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCorrupt {
    /// Report it, and take another example in training or leave it out in evaluation.
    #[default]
    Skip,
    /// Stop with its error.
    Fail,
}

/// A place in the stream of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Pass over the data.
    pub epoch: u32,
    /// Batch within the pass.
    pub batch: u32,
}

/// How batches are made.
#[derive(Clone, Debug)]
pub struct LoaderConfig {
    /// Images per batch.
    pub batch: usize,
    /// Threads that decode and augment; 0 for one per core.
    pub threads: usize,
    /// Batches that may wait, ready, for the consumer.
    pub prefetch: usize,
    /// Seed of order, augmentation and mixing.
    pub seed: u64,
    /// Visit the examples in a new random order each epoch.
    pub shuffle: bool,
    /// Leave out a last batch that is not full. Unreadable images are then replaced, so that every batch is full.
    pub drop_last: bool,
    /// First batch to make, for a resumed run.
    pub start: Position,
    /// Stop after this many epochs in all; none: go on for ever.
    pub epochs: Option<u32>,
    /// What to do about an unreadable image.
    pub on_corrupt: OnCorrupt,
    /// Whose rows.
    pub part: Part,
}

impl LoaderConfig {
    /// For training: shuffled, full batches, without end.
    pub fn train(batch: usize, seed: u64) -> LoaderConfig {
        LoaderConfig {
            batch,
            threads: 0,
            prefetch: 4,
            seed,
            shuffle: true,
            drop_last: true,
            start: Position::default(),
            epochs: None,
            on_corrupt: OnCorrupt::Skip,
            part: Part::default(),
        }
    }

    /// For evaluation: every example once, in order.
    pub fn eval(batch: usize) -> LoaderConfig {
        LoaderConfig { shuffle: false, drop_last: false, epochs: Some(1), ..LoaderConfig::train(batch, 0) }
    }
}

/// One batch, ready for the device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Where it stands in the stream.
    pub position: Position,
    /// Normalised images (B, C, H, W); empty for text alone.
    pub images: Vec<f32>,
    /// Class of each image; empty for sequences.
    pub labels: Vec<u32>,
    /// Sequences (B, N): the text's tokens, its end, padding; empty for classes.
    pub tokens: Vec<u32>,
    /// Number of each example in its source.
    pub indices: Vec<u32>,
    /// How the images were mixed, if they were; in rows of the whole batch.
    pub mix: Option<Mix>,
    /// Of mixed images: the class of the image that each was mixed with.
    pub partner_labels: Vec<u32>,
    /// The rows of the whole batch that are here.
    pub part: Range<usize>,
    /// Rows of the whole batch.
    pub global: usize,
}

/// What the threads share.
struct Work {
    examples: Box<dyn Examples>,
    config: LoaderConfig,
    batches: u32,
    order: Mutex<BTreeMap<u32, Arc<Vec<u32>>>>,
    found: Mutex<Found>,
    /// Examples in a row that the system refused, each after some tries.
    refused: AtomicU32,
    spare: Mutex<Vec<Vec<f32>>>,
    stop: AtomicBool,
}

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
        if n >= u32::MAX as usize {
            return Err(DataError::Setting(format!("{n} examples are more than can be numbered")));
        }
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
            order: Mutex::default(),
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
        self.work.stop.store(true, Ordering::Relaxed);
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

impl Work {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn run_lane(&self, first: u64, pool: &rayon::ThreadPool, sender: &SyncSender<Result<Batch>>) {
        for number in (first..).step_by(LANES) {
            let position =
                Position { epoch: (number / self.batches as u64) as u32, batch: (number % self.batches as u64) as u32 };
            if self.stopped() || self.config.epochs.is_some_and(|n| position.epoch >= n) {
                return;
            }
            let made = pool.install(|| self.make(position));
            let failed = made.is_err();
            if self.stopped() || sender.send(made).is_err() || failed {
                return;
            }
        }
    }

    /// The order of an epoch; the last few are kept, since lanes stand in at most two epochs.
    fn order(&self, epoch: u32) -> Arc<Vec<u32>> {
        let mut orders = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(order) = orders.get(&epoch) {
            return order.clone();
        }
        let order = Arc::new(match self.config.shuffle {
            true => order(self.examples.len(), self.examples.locality(), self.config.seed, epoch),
            false => (0..self.examples.len() as u32).collect(),
        });
        orders.insert(epoch, order.clone());
        while orders.len() > 2 {
            orders.pop_first();
        }
        order
    }

    fn make(&self, position: Position) -> Result<Batch> {
        let order = self.order(position.epoch);
        let first = position.batch as usize * self.config.batch;
        let chosen = &order[first..(first + self.config.batch).min(order.len())];
        let (size, length) = (self.examples.image_values(), self.examples.target_len());
        let stride = size.max(1); // text alone has no image values, but chunks must have a length
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Fresh zeroed memory is touched first by the threads that fill it, so it costs nothing here.
        let mut images = spare.unwrap_or_else(|| vec![0.0; chosen.len() * stride]);
        images.resize(chosen.len() * stride, 0.0);
        let mut targets = vec![0; chosen.len() * length];
        let made: Vec<Option<u32>> = images
            .par_chunks_exact_mut(stride)
            .zip(targets.par_chunks_exact_mut(length))
            .zip(chosen)
            .enumerate()
            .map(|(i, ((image, target), &example))| {
                self.example(position.epoch, (first + i) as u32, example, &mut image[..size], target)
            })
            .collect::<Result<_>>()?;
        if made.iter().any(Option::is_none) {
            let mut kept = 0;
            for (i, _) in made.iter().enumerate().filter(|(_, m)| m.is_some()) {
                images.copy_within(i * stride..(i + 1) * stride, kept * stride);
                targets.copy_within(i * length..(i + 1) * length, kept * length);
                kept += 1;
            }
            images.truncate(kept * stride);
            targets.truncate(kept * length);
        }
        if size == 0 {
            images.clear();
        }
        let indices: Vec<u32> = made.into_iter().flatten().collect();
        let Some(t) = self.examples.class_transform() else {
            let (part, global) = (0..indices.len(), indices.len());
            let (labels, partner_labels) = (Vec::new(), Vec::new());
            let batch =
                Batch { position, images, labels, tokens: targets, indices, mix: None, partner_labels, part, global };
            return Ok(batch.cut(self.config.part));
        };
        let mix = t.is_train().then(|| {
            let (seed, side) = (self.config.seed, t.size());
            t.config().mix.draw(seed, position.epoch, position.batch, targets.len(), side, side)
        });
        let mix = mix.flatten();
        if let Some(mix) = &mix {
            mix.apply(&mut images, t.channels(), t.size(), t.size());
        }
        let partner_of = |m: &Mix| m.partner.iter().filter_map(|i| targets.get(*i as usize).copied()).collect();
        let partner_labels = mix.as_ref().map(partner_of).unwrap_or_default();
        let (tokens, part, global) = (Vec::new(), 0..indices.len(), indices.len());
        let batch = Batch { position, images, labels: targets, tokens, indices, mix, partner_labels, part, global };
        Ok(batch.cut(self.config.part))
    }

    /// Read an example, again after a while where the system refuses.
    fn read_patiently(&self, at: Address, image: &mut [f32], target: &mut [u32], on_bad: OnBad) -> Result<bool> {
        let known = || self.found().seen.contains(&at.example); // it was waited for in another epoch
        for wait in WAITS {
            match self.examples.read(at, image, target, on_bad) {
                Err(e) if e.is_unread() && self.refused.load(Ordering::Relaxed) < PATIENCE && !known() => {
                    self.found().again(&e);
                    std::thread::sleep(wait);
                    if self.stopped() {
                        return Err(e);
                    }
                }
                read => {
                    if read.is_ok() && self.refused.load(Ordering::Relaxed) > 0 {
                        self.refused.store(0, Ordering::Relaxed);
                    }
                    return read;
                }
            }
        }
        let read = self.examples.read(at, image, target, on_bad);
        if read.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        read
    }

    /// Write one example and return its number. An unreadable one is replaced if batches must be full, by draws that
    /// depend on the place in the epoch alone; otherwise there is none.
    fn example(
        &self,
        epoch: u32,
        place: u32,
        example: u32,
        image: &mut [f32],
        target: &mut [u32],
    ) -> Result<Option<u32>> {
        const TRIES: usize = 32;
        let mut example = example;
        let mut draw = Draw::new(self.config.seed, Stream::Replace, epoch, place);
        let skip = |e: &DataError| {
            let too_long = matches!(e, DataError::TooLong { .. });
            (e.is_corrupt() || e.is_unread()) && (too_long || self.config.on_corrupt == OnCorrupt::Skip)
        };
        let mut on_bad = |row: u32, e: DataError| match skip(&e) {
            true => {
                self.found().bad(row, || e.to_string());
                Ok(())
            }
            false => Err(e),
        };
        let mut one = String::new();
        for _ in 0..TRIES {
            if self.stopped() {
                return Ok(None); // nobody waits for this batch any more
            }
            let at = Address { seed: self.config.seed, epoch, example };
            match self.read_patiently(at, image, target, &mut on_bad) {
                Ok(cut) => {
                    if cut {
                        self.found().cut(example, || self.examples.place(example));
                    }
                    return Ok(Some(example));
                }
                Err(e) if skip(&e) => {
                    one = e.to_string();
                    self.found().bad(example, || one.clone());
                    if !self.config.drop_last {
                        return Ok(None);
                    }
                    example = draw.below(self.examples.len()) as u32;
                }
                Err(e) => return Err(e),
            }
        }
        let noun = self.examples.noun();
        Err(DataError::Setting(format!("{TRIES} {noun} in a row could not be read; one of them: {one}")))
    }
}
