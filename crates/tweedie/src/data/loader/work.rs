//! The making of one batch: which examples, read and replaced, mixed.

use super::ahead::Begun;
use super::skipped::Found;
use super::{Batch, LANES, LoaderConfig, OnCorrupt, PATIENCE, Position, WAITS};
use crate::augment::Mix;
use crate::data::examples::Examples;
use crate::data::order::{Arrangement, EpochOrder};
use crate::data::sequence::OnBad;
use crate::data::{DataError, Result};
use crate::random::{Address, Draw, Stream};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the threads share.
pub(super) struct Work {
    pub examples: Box<dyn Examples>,
    pub config: LoaderConfig,
    pub batches: u32,
    pub arrangement: Arrangement,
    pub order: Mutex<BTreeMap<u32, Arc<EpochOrder>>>,
    /// How far batches are, for those who read ahead of them.
    pub begun: Begun,
    pub found: Mutex<Found>,
    /// Examples in a row that the system refused, each after some tries.
    pub refused: AtomicU32,
    pub spare: Mutex<Vec<Vec<f32>>>,
    pub stop: AtomicBool,
}

/// Rows of a batch as they were read, without those that were left out.
struct Pixels {
    images: Vec<f32>,
    targets: Vec<u32>,
    indices: Vec<u32>,
}

/// Rows that images of `part` are mixed with and that lie outside of it, in ascending order.
pub(crate) fn partners_outside(partners: &[u32], part: &Range<usize>) -> Vec<usize> {
    let partners = partners.get(part.clone()).unwrap_or_default().iter().map(|row| *row as usize);
    let mut outside: Vec<usize> = partners.filter(|row| !part.contains(row)).collect();
    outside.sort_unstable();
    outside.dedup();
    outside
}

impl Work {
    pub fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn run_lane(&self, first: u64, pool: &rayon::ThreadPool, sender: &SyncSender<Result<Batch>>) {
        for number in (first..).step_by(LANES) {
            let position =
                Position { epoch: (number / self.batches as u64) as u32, batch: (number % self.batches as u64) as u32 };
            if self.stopped() || self.config.epochs.is_some_and(|n| position.epoch >= n) {
                return;
            }
            self.begun.reach(number);
            let made = pool.install(|| self.make(position));
            let failed = made.is_err();
            if self.stopped() || sender.send(made).is_err() || failed {
                return;
            }
        }
    }

    /// The order of an epoch; the last few are kept, since batches stand in at most two epochs and reading in the next.
    pub fn order(&self, epoch: u32) -> Arc<EpochOrder> {
        let mut orders = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(order) = orders.get(&epoch) {
            return order.clone();
        }
        let order = Arc::new(match self.config.shuffle {
            true => self.arrangement.epoch(self.config.seed, epoch),
            false => self.arrangement.in_order(),
        });
        orders.insert(epoch, order.clone());
        while orders.len() > 3 {
            orders.pop_first();
        }
        order
    }

    pub fn make(&self, position: Position) -> Result<Batch> {
        let order = self.order(position.epoch);
        let first = position.batch as usize * self.config.batch;
        let chosen = &order.examples[first..(first + self.config.batch).min(order.examples.len())];
        let (part, global) = (self.config.part.of(chosen.len()), chosen.len());
        let mut mix = self.mix(position, global);
        let others = mix.as_ref().map_or(Vec::new(), |mix| partners_outside(&mix.partner, &part));
        let rows: Vec<usize> = part.clone().chain(others.iter().copied()).collect();
        let Pixels { mut images, mut targets, indices } = self.read(position.epoch, first, chosen, &rows)?;
        if self.config.drop_last && indices.len() < rows.len() {
            return Ok(Batch::default()); // of a loader that was stopped: nobody waits for it
        }
        if let Some(mix) = &mut mix
            && indices.len() < rows.len()
        {
            *mix = self.mix(position, indices.len()).unwrap_or_else(|| mix.clone()); // of those that are left
        }
        let Some(t) = self.examples.class_transform() else {
            return Ok(Batch { position, part, global, images, tokens: targets, indices, ..Batch::default() });
        };
        let mut partner_labels = Vec::new();
        if let Some(mix) = &mut mix {
            let kept = indices.len() - others.len();
            let slot = |row: u32| match others.binary_search(&(row as usize)) {
                Ok(i) => kept + i,
                Err(_) => row as usize - part.start,
            };
            mix.partner = mix.partner.drain(part.start..part.start + kept).collect();
            let slots: Vec<usize> = mix.partner.iter().map(|row| slot(*row)).collect();
            mix.apply_to(&mut images, &slots, t.channels(), t.size(), t.size());
            partner_labels = slots.iter().map(|&i| targets[i]).collect();
            images.truncate(kept * t.values());
            targets.truncate(kept);
        }
        let indices = indices[..indices.len() - others.len()].to_vec();
        let (labels, tokens) = (targets, Vec::new());
        Ok(Batch { position, part, global, images, labels, tokens, indices, mix, partner_labels })
    }

    /// How a batch of so many images is mixed, if it is.
    fn mix(&self, position: Position, images: usize) -> Option<Mix> {
        let t = self.examples.class_transform().filter(|t| t.is_train())?;
        let (seed, side) = (self.config.seed, t.size());
        let mut mix = t.config().mix.draw(seed, position.epoch, position.batch, images, side, side)?;
        mix.partner = self.arrangement.partners(images).unwrap_or(mix.partner);
        Some(mix)
    }

    /// Read these rows of the batch whose examples are `chosen`; the first of them is number `first` of the epoch.
    fn read(&self, epoch: u32, first: usize, chosen: &[u32], rows: &[usize]) -> Result<Pixels> {
        let (size, length) = (self.examples.image_values(), self.examples.target_len());
        let stride = size.max(1); // text alone has no image values, but chunks must have a length
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // Fresh zeroed memory is touched first by the threads that fill it, so it costs nothing here.
        let mut images = spare.unwrap_or_else(|| vec![0.0; rows.len() * stride]);
        images.resize(rows.len() * stride, 0.0);
        let mut targets = vec![0; rows.len() * length];
        let made: Vec<Option<u32>> = images
            .par_chunks_exact_mut(stride)
            .zip(targets.par_chunks_exact_mut(length))
            .zip(rows)
            .map(|((image, target), &row)| {
                self.example(epoch, (first + row) as u32, chosen[row], &mut image[..size], target)
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
        Ok(Pixels { images, targets, indices: made.into_iter().flatten().collect() })
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
