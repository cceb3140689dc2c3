//! Which rows of a batch belong to which of several equal parts.

use super::{DataError, Result};
use std::ops::Range;

/// One of the ranks that share every batch: rank `rank` of `ranks`.
///
/// ```
/// use tweedie::data::Part;
///
/// let rows: Vec<_> = (0..3).map(|rank| Part { rank, ranks: 3 }.of(8)).collect();
/// assert_eq!(rows, [0..2, 2..5, 5..8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which one, from 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part::WHOLE
    }
}

impl Part {
    /// The only rank, which has everything.
    pub const WHOLE: Part = Part { rank: 0, ranks: 1 };

    /// The rows of a batch of `total` that belong to this rank. Those of all ranks follow each other without gap, and differ in
    /// number by at most one.
    pub fn of(self, total: usize) -> Range<usize> {
        let edge = |rank: usize| (rank as u128 * total as u128 / self.ranks.max(1) as u128) as usize;
        edge(self.rank)..edge(self.rank.saturating_add(1))
    }

    /// An error unless this is one of its ranks, and each has a row of a full batch.
    pub(crate) fn check(self, batch: usize, full: bool) -> Result<()> {
        let Part { rank, ranks } = self;
        if rank >= ranks {
            return Err(DataError::Setting(format!("rank {rank} of {ranks}: ranks are numbered from 0")));
        }
        if full && batch < ranks {
            let why = format!("a batch of {batch} has no example for each of {ranks} ranks");
            return Err(DataError::Setting(format!("{why}; use a larger batch or fewer ranks")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of a part is a part: ranks that divide the lanes have whole lanes, whatever the batch.
    #[test]
    fn whole_lanes_make_up_a_rank() {
        for (batch, lanes, ranks) in [(256, 24, 8), (250, 24, 3), (31, 24, 6), (24, 24, 24), (1000, 64, 16)] {
            for rank in 0..ranks {
                let rows = Part { rank, ranks }.of(batch);
                let lane = |lane: usize| Part { rank: lane, ranks: lanes }.of(batch);
                let (first, last) = (rank * lanes / ranks, (rank + 1) * lanes / ranks - 1);
                assert_eq!(rows, lane(first).start..lane(last).end, "batch {batch}, rank {rank} of {ranks}");
            }
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let of = |rank, ranks, batch| Part { rank, ranks }.check(batch, true).map_err(|e| e.to_string());
        assert!(of(0, 1, 1).is_ok() && of(7, 8, 8).is_ok());
        assert!(of(8, 8, 8).unwrap_err().contains("rank 8 of 8"));
        assert!(of(0, 0, 8).unwrap_err().contains("rank 0 of 0"));
        assert!(of(0, 8, 7).unwrap_err().contains("a batch of 7 has no example for each of 8 ranks"));
        assert_eq!(Part { rank: 1, ranks: 3 }.of(usize::MAX).end, usize::MAX / 3 * 2);
    }
}
