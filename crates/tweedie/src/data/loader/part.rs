//! The rows of a batch that belong to one of several ranks.

use super::Batch;
use std::ops::Range;

/// Which of several ranks a loader is for: each takes its rows of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The number of the rank, from 0.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
}

impl Default for Part {
    fn default() -> Part {
        Part { rank: 0, ranks: 1 }
    }
}

impl Part {
    /// Its share of `total`.
    pub fn of(self, total: usize) -> Range<usize> {
        let ranks = self.ranks.max(1);
        self.rank * total / ranks..(self.rank + 1) * total / ranks
    }
}

impl Batch {
    /// Keep the rows of one rank.
    pub(super) fn cut(mut self, part: Part) -> Batch {
        let (rows, all) = (part.of(self.indices.len()), self.indices.len());
        if rows.len() < all {
            let images = self.images.len() / all;
            let tokens = self.tokens.len() / all;
            self.images = self.images[rows.start * images..rows.end * images].to_vec();
            self.tokens = self.tokens[rows.start * tokens..rows.end * tokens].to_vec();
            for each in [&mut self.labels, &mut self.partner_labels, &mut self.indices] {
                *each = each.get(rows.clone()).unwrap_or_default().to_vec();
            }
            self.part = rows;
        }
        self
    }
}
