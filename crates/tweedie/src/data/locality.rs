//! How examples lie in storage: which of them are read together.

use crate::random::Draw;
use std::ops::Range;
use std::path::PathBuf;

/// Blocks of examples that lie together in storage, and how a source wants to be shuffled that does not fit into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locality {
    /// First example of each block, in ascending order, beginning with 0.
    pub starts: Vec<u32>,
    /// Blocks that may be in use at a time. With as many as there are, everything fits into memory.
    pub window: usize,
    /// First example of each file, in ascending order; empty if blocks have no files, or each its own.
    pub files: Vec<u32>,
}

/// Where a block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its file.
    pub file: PathBuf,
    /// Its number in the file.
    pub number: usize,
    /// Bytes in memory when it has been read.
    pub bytes: u64,
    /// Whether one of its examples can be read without the others.
    pub divisible: bool,
}

impl Locality {
    /// Whether everything fits into memory.
    pub(crate) fn fits(&self) -> bool {
        self.window >= self.starts.len()
    }

    /// Whether the blocks are a division of `n` examples: those of a source of anybody's may be anything.
    pub(crate) fn divides(&self, n: u32) -> bool {
        self.starts.first() == Some(&0) && self.starts.is_sorted() && self.starts.last() < Some(&n)
    }

    /// The same blocks where example `i` is number `at(i)`, of `n` in all. `at` must not decrease.
    pub(crate) fn renumbered(&self, n: usize, at: impl Fn(u32) -> u32) -> Locality {
        let moved = |starts: &[u32]| {
            let mut starts: Vec<u32> = starts.iter().map(|&s| at(s)).collect();
            starts.dedup();
            starts.retain(|&s| (s as usize) < n);
            starts
        };
        let (starts, files) = (moved(&self.starts), moved(&self.files));
        let window = if self.fits() { starts.len() } else { self.window };
        Locality { starts, window, files }
    }

    /// The block of an example.
    pub(crate) fn block(&self, example: u32) -> usize {
        self.starts.partition_point(|&s| s <= example).saturating_sub(1)
    }

    /// The blocks of `n` examples in a random order; `by_file`: those of a file one after another.
    pub(crate) fn shuffled(&self, n: u32, by_file: bool, draw: &mut Draw) -> Vec<Range<u32>> {
        let ends = self.starts.iter().skip(1).copied().chain([n]);
        let mut blocks: Vec<Range<u32>> = self.starts.iter().zip(ends).map(|(&a, b)| a..b).collect();
        if !by_file || self.files.is_empty() {
            shuffle(&mut blocks, draw);
            return blocks;
        }
        let mut files = vec![Vec::new(); self.files.len() + 1];
        for block in blocks {
            files[self.files.partition_point(|&f| f <= block.start)].push(block);
        }
        shuffle(&mut files, draw);
        files.iter_mut().for_each(|blocks| shuffle(blocks, draw));
        files.concat()
    }
}

/// Fisher and Yates.
pub(crate) fn shuffle<T>(items: &mut [T], draw: &mut Draw) {
    for i in (1..items.len()).rev() {
        items.swap(i, draw.below(i + 1));
    }
}
