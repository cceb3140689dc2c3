//! How batches are made, and what one holds.

use crate::augment::Mix;
use crate::data::Part;
use crate::data::order::Batching;
use std::ops::Range;

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
    /// Examples per batch, those of all ranks together.
    pub batch: usize,
    /// The part of every batch that is made here. What the parts of all ranks hold together does not depend on their number.
    pub part: Part,
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
    /// Lanes in which data are streamed that do not fit into memory: each has files of its own and fills the same rows of every batch.
    /// Ranks that divide their number read different files. 0: 24, or fewer where the batch or the memory is small, and none
    /// for what fits.
    pub lanes: usize,
    /// First batch to make, for a resumed run.
    pub start: Position,
    /// Stop after this many epochs in all; none: go on for ever.
    pub epochs: Option<u32>,
    /// What to do about an unreadable image.
    pub on_corrupt: OnCorrupt,
}

impl LoaderConfig {
    /// For training: shuffled, full batches, without end.
    pub fn train(batch: usize, seed: u64) -> LoaderConfig {
        LoaderConfig {
            batch,
            part: Part::WHOLE,
            threads: 0,
            prefetch: 4,
            seed,
            shuffle: true,
            drop_last: true,
            lanes: 0,
            start: Position::default(),
            epochs: None,
            on_corrupt: OnCorrupt::Skip,
        }
    }

    /// What bears on the order of examples.
    pub(crate) fn batching(&self, mixes: bool) -> Batching {
        Batching { batch: self.batch, lanes: self.lanes, full: self.drop_last, mixes }
    }

    /// For evaluation: every example once, in order.
    pub fn eval(batch: usize) -> LoaderConfig {
        LoaderConfig { shuffle: false, drop_last: false, epochs: Some(1), ..LoaderConfig::train(batch, 0) }
    }
}

/// One batch, or one rank's part of it, ready for the device.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Where it stands in the stream.
    pub position: Position,
    /// Rows of the whole batch that this one was made for. All below are of these rows alone; in evaluation, unreadable ones
    /// are left out.
    pub part: Range<usize>,
    /// Rows of the whole batch, those of all ranks together.
    pub global: usize,
    /// Normalised images (B, C, H, W); empty for text alone.
    pub images: Vec<f32>,
    /// Class of each image; empty for sequences.
    pub labels: Vec<u32>,
    /// Sequences (B, N): the text's tokens, its end, padding; empty for classes.
    pub tokens: Vec<u32>,
    /// Number of each example in its source.
    pub indices: Vec<u32>,
    /// How the images were mixed, if they were. Partners are numbered in the whole batch.
    pub mix: Option<Mix>,
    /// Class of the partner of each image; empty if nothing was mixed.
    pub partner_labels: Vec<u32>,
}
