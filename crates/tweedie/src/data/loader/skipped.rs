//! What a loader left out, shortened or read again, and what of it was told before.

use std::collections::{BTreeMap, HashSet};

use crate::data::DataError;

/// Examples that were left out or shortened so far.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// Errors of unreadable ones by number of the example, or of the row of packed text; each comes once.
    pub errors: BTreeMap<u32, String>,
    /// Texts that were cut to the length of a sequence, counted each time they were read.
    pub cut: u64,
    /// Where the first few of those lie, by example number.
    pub cut_at: BTreeMap<u32, String>,
    /// Reads that the system refused and that were tried again since this was last taken.
    pub again: usize,
    /// The last of those.
    pub again_at: Option<String>,
    count: usize,
}

impl Skipped {
    /// How many were unreadable so far, those included that [`Loader::take_skipped`](super::Loader::take_skipped) has given out.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// What was left out or cut, and what of it was seen before. Only numbers are kept for the whole run: a set may have
/// millions of such rows.
#[derive(Default)]
pub(super) struct Found {
    pub skipped: Skipped,
    pub seen: HashSet<u32>,
    cut: HashSet<u32>,
}

impl Found {
    /// What is new since this was last asked; counts go on.
    pub fn take(&mut self) -> Skipped {
        let (count, cut) = (self.skipped.count, self.skipped.cut);
        std::mem::replace(&mut self.skipped, Skipped { count, cut, ..Skipped::default() })
    }

    pub fn bad(&mut self, row: u32, why: impl FnOnce() -> String) {
        if self.seen.insert(row) {
            self.skipped.count += 1;
            self.skipped.errors.insert(row, why());
        }
    }

    pub fn again(&mut self, e: &DataError) {
        self.skipped.again += 1;
        self.skipped.again_at = Some(e.to_string());
    }

    pub fn cut(&mut self, example: u32, place: impl FnOnce() -> String) {
        const NAMED: usize = 5;
        self.skipped.cut += 1;
        if self.cut.len() < NAMED && self.cut.insert(example) {
            self.skipped.cut_at.insert(example, place());
        }
    }
}
