//! Reading ahead of the batches: blocks of streamed data come into memory before examples of them are asked for, and no earlier than
//! when their lane begins with the blocks before them. So a lane holds two windows of blocks at most, a rank those of its lanes.

use super::work::Work;
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, PoisonError};

/// Threads that read ahead: storage that is far away answers several at a time.
pub(super) const READERS: usize = 4;

/// The last batch that was begun, and who waits for it.
#[derive(Default)]
pub(super) struct Begun {
    number: Mutex<u64>,
    moved: Condvar,
}

impl Begun {
    /// Batch `number` is being made.
    pub fn reach(&self, number: u64) {
        let mut at = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        *at = number.max(*at);
        self.moved.notify_all();
    }

    /// Wait until `number` is reached, or `stop` says so.
    fn wait_for(&self, number: u64, stop: impl Fn() -> bool) {
        let at = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        let _at = self.moved.wait_while(at, |at| *at < number && !stop());
    }
}

impl Work {
    /// Stop everything.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.begun.reach(0); // those who wait look again
    }

    /// One of [`READERS`] threads: read what this rank's lanes need from batch `first` on.
    pub fn read_ahead(&self, first: u64, reader: usize) {
        let (batches, part, batch) = (u64::from(self.batches), self.config.part, self.config.batch);
        let start = (first / batches).min(u64::from(u32::MAX)) as u32;
        for epoch in start..self.config.epochs.unwrap_or(u32::MAX) {
            if self.stopped() {
                return;
            }
            let (order, begin) = (self.order(epoch), u64::from(epoch) * batches);
            let mine = order
                .reads
                .iter()
                .filter(|r| self.arrangement.meets(r.lane, part, batch) && begin + u64::from(r.last) >= first);
            for read in mine.skip(reader).step_by(READERS) {
                let due = (begin + u64::from(read.first)).saturating_sub(u64::from(read.ahead));
                self.begun.wait_for(due, || self.stopped());
                if self.stopped() {
                    return;
                }
                let most = self.arrangement.share(read.lane, part, batch) * read.examples.len() as f64;
                let needed: Vec<u32> = read.examples.clone().take(most.ceil() as usize).collect();
                self.examples.read_ahead(&needed);
            }
        }
    }
}
