//! The order in which an epoch visits its examples: a pure function of seed, epoch, source and settings, never of the number of ranks.
//!
//! What fits into memory is shuffled as a whole. What does not is streamed in *lanes*: each of them has a share of the epoch's blocks,
//! file by file, and fills the same rows of every batch. Ranks that divide the lanes have whole lanes, so they read different files.

use super::locality::shuffle;
use super::{DataError, ImageSource, Locality, Part, Result};
use crate::random::{Draw, Stream};
use std::collections::VecDeque;
use std::ops::Range;

/// Lanes of streamed data, unless a setting says otherwise: the usual numbers of ranks divide it.
pub(crate) const USUAL_LANES: usize = 24;

/// A permutation of the examples of `source`. Sources that do not fit into memory ([`ImageSource::locality`]) are shuffled block by
/// block, then inside windows of blocks.
pub fn epoch_order(source: &dyn ImageSource, seed: u64, epoch: u32) -> Vec<u32> {
    let n = source.len();
    let locality = source.locality().filter(|l| l.divides(n as u32) && !l.fits());
    Arrangement { examples: n, batch: 1, full: false, lanes: 1, locality }.epoch(seed, epoch).examples
}

/// `n` examples, shuffled as a whole.
pub(crate) fn shuffled(n: usize, seed: u64, epoch: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    shuffle(&mut order, &mut Draw::new(seed, Stream::Order, epoch, 0));
    order
}

/// What of the settings bears on the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    pub batch: usize,
    /// Lanes; 0: as the data need.
    pub lanes: usize,
    /// Without a last batch that is not full.
    pub full: bool,
    /// Whether images are mixed with others of their batch.
    pub mixes: bool,
}

/// How the examples of every epoch are laid out over its batches.
pub(crate) struct Arrangement {
    examples: usize,
    batch: usize,
    full: bool,
    lanes: usize,
    /// The blocks that are streamed; none: everything is shuffled as a whole.
    locality: Option<Locality>,
}

/// One epoch.
pub(crate) struct EpochOrder {
    /// Example of each row of the batches, one batch after another.
    pub examples: Vec<u32>,
    /// What is to be read for them, in the order in which it is needed.
    pub reads: Vec<Read>,
}

/// Examples that lie in one block of storage and are needed by one lane.
pub(crate) struct Read {
    pub lane: usize,
    pub examples: Range<u32>,
    /// First batch that needs some of them.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// They may be read so many batches before that.
    pub ahead: u32,
}

impl Arrangement {
    pub fn new(examples: usize, locality: Option<Locality>, with: Batching) -> Result<Arrangement> {
        let Batching { batch, lanes, full, mixes } = with;
        let (least, usual) = if mixes { (2, 4) } else { (1, 1) };
        if lanes.saturating_mul(least) > batch {
            let rows = if mixes { "two examples of every batch, to be mixed" } else { "an example of every batch" };
            return Err(DataError::Setting(format!(
                "data.lanes = {lanes}: a batch of {batch} has not {rows} for each"
            )));
        }
        let locality = locality.filter(|l| l.divides(examples as u32) && (lanes > 1 || !l.fits()));
        let lanes = match &locality {
            None => 1,
            Some(_) if lanes > 0 => lanes,
            Some(l) => (1..=USUAL_LANES)
                .rev()
                .find(|n| USUAL_LANES.is_multiple_of(*n) && *n <= l.window && n * usual <= batch)
                .unwrap_or(1),
        };
        Ok(Arrangement { examples, batch: batch.min(examples).max(1), full, lanes, locality })
    }

    /// Examples in their order, as for evaluation.
    pub fn in_order(&self) -> EpochOrder {
        EpochOrder { examples: (0..self.examples as u32).collect(), reads: Vec::new() }
    }

    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The blocks that lanes are made of, if there are any.
    pub fn streamed(&self) -> Option<&Locality> {
        self.locality.as_ref()
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> usize {
        if self.full { self.examples / self.batch } else { self.examples.div_ceil(self.batch) }
    }

    /// Rows of a batch of `rows` that a lane fills.
    pub fn rows(&self, lane: usize, rows: usize) -> Range<usize> {
        Part { rank: lane, ranks: self.lanes }.of(rows)
    }

    /// The share of a lane's rows that a rank has; ranks that do not divide the lanes have parts of some.
    pub fn share(&self, lane: usize, part: Part, batch: usize) -> f64 {
        let (lane, rows) = (self.rows(lane, batch), part.of(batch));
        let both = lane.end.min(rows.end).saturating_sub(lane.start.max(rows.start));
        both as f64 / lane.len().max(1) as f64
    }

    /// Whether a rank has any rows of a lane.
    pub fn meets(&self, lane: usize, part: Part, batch: usize) -> bool {
        self.share(lane, part, batch) > 0.0
    }

    /// Blocks of a lane that are shuffled into each other.
    pub fn window(&self) -> usize {
        self.locality.as_ref().map_or(1, |l| l.window / self.lanes).max(1)
    }

    /// The partner of each row of a batch of `rows` that is mixed, if it is not the one at the other end: of streamed data the one
    /// half a lane away, which the same rank has.
    pub fn partners(&self, rows: usize) -> Option<Vec<u32>> {
        let partner = |lane: Range<usize>| {
            let (first, n) = (lane.start, lane.len());
            (0..n).map(move |i| (first + (i + n / 2) % n) as u32)
        };
        (self.lanes > 1).then(|| (0..self.lanes).flat_map(|lane| partner(self.rows(lane, rows))).collect())
    }

    pub fn epoch(&self, seed: u64, epoch: u32) -> EpochOrder {
        let Some(locality) = &self.locality else {
            return EpochOrder { examples: shuffled(self.examples, seed, epoch), reads: Vec::new() };
        };
        let draw = &mut Draw::new(seed, Stream::Order, epoch, 0);
        let mut blocks = VecDeque::from(locality.shuffled(self.examples as u32, self.lanes > 1, draw));
        let mut reads = Vec::new();
        let lanes: Vec<Vec<u32>> = (0..self.lanes).map(|lane| self.lane(lane, &mut blocks, draw, &mut reads)).collect();
        reads.sort_by_key(|r| r.first); // stable: lanes in turn
        EpochOrder { examples: self.interleaved(&lanes), reads }
    }

    /// The examples of a lane, taken off the blocks that are left.
    fn lane(&self, lane: usize, blocks: &mut VecDeque<Range<u32>>, draw: &mut Draw, reads: &mut Vec<Read>) -> Vec<u32> {
        let (rows, whole) = (self.rows(lane, self.batch).len().max(1), self.examples / self.batch);
        let short = if self.full { 0 } else { self.rows(lane, self.examples % self.batch).len() };
        let pieces = take(blocks, whole * self.rows(lane, self.batch).len() + short);
        let (mut examples, mut lasts, begin) = (Vec::new(), Vec::<u32>::new(), reads.len());
        for window in pieces.chunks(self.window()) {
            let first = examples.len();
            window.iter().for_each(|piece| examples.extend(piece.clone()));
            shuffle(&mut examples[first..], draw);
            let (first, last) = ((first / rows) as u32, ((examples.len() - 1) / rows) as u32);
            // Two windows at a time: this one may be read when the last but one before it is done with.
            let due = lasts.len().checked_sub(2).map_or(0, |k| lasts[k] + 1).min(first);
            lasts.push(last);
            let read = |piece: &Range<u32>| Read { lane, examples: piece.clone(), first, last, ahead: first - due };
            reads.extend(window.iter().map(read));
        }
        // What an epoch begins with may be read during the last window of the epoch before.
        let ahead = match lasts[..] {
            [.., before, last] => last - before,
            [last] => last + 1,
            [] => 0,
        };
        reads[begin..].iter_mut().filter(|r| r.first == 0).for_each(|r| r.ahead = ahead);
        examples
    }

    fn interleaved(&self, lanes: &[Vec<u32>]) -> Vec<u32> {
        let mut examples = Vec::with_capacity(self.examples);
        let mut at = vec![0; lanes.len()];
        for batch in 0..self.batches() {
            let rows = self.batch.min(self.examples - batch * self.batch);
            for (lane, (all, at)) in lanes.iter().zip(&mut at).enumerate() {
                let n = self.rows(lane, rows).len();
                examples.extend(&all[*at..*at + n]);
                *at += n;
            }
        }
        examples
    }
}

/// The next `need` examples; a block that has more of them is cut.
fn take(blocks: &mut VecDeque<Range<u32>>, mut need: usize) -> Vec<Range<u32>> {
    let mut taken = Vec::new();
    while need > 0
        && let Some(block) = blocks.pop_front()
    {
        let cut = block.start + need.min(block.len()) as u32;
        if cut < block.end {
            blocks.push_front(cut..block.end);
        }
        need -= (cut - block.start) as usize;
        if cut > block.start {
            taken.push(block.start..cut);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Item, Result};

    /// Blocks of `each` examples, five in a file.
    fn blocks(n: u32, each: u32, window: usize) -> Locality {
        let starts: Vec<u32> = (0..n).map(|b| b * each).collect();
        Locality { files: starts.iter().copied().step_by(5).collect(), starts, window }
    }

    fn arrange(n: usize, locality: Locality, batch: usize, lanes: usize) -> Arrangement {
        let with = Batching { batch, lanes, full: true, mixes: false };
        Arrangement::new(n, Some(locality), with).unwrap()
    }

    struct Blocks(usize, Option<Locality>);

    impl ImageSource for Blocks {
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, _: usize) -> Result<Item> {
            unreachable!()
        }
        fn label(&self, _: usize) -> u32 {
            0
        }
        fn place(&self, _: usize) -> String {
            String::new()
        }
        fn locality(&self) -> Option<Locality> {
            self.1.clone()
        }
    }

    #[test]
    fn an_order_is_a_permutation_of_its_own() {
        let local = Locality { starts: vec![0, 10, 30, 31, 70], window: 2, files: vec![] };
        for source in [Blocks(100, None), Blocks(100, Some(local))] {
            let order = epoch_order(&source, 7, 3);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert_eq!(order, epoch_order(&source, 7, 3));
            assert_ne!(order, epoch_order(&source, 7, 4));
            assert_ne!(order, epoch_order(&source, 8, 3));
        }
    }

    #[test]
    fn windows_stay_together() {
        let source = Blocks(1000, Some(blocks(100, 10, 4)));
        for part in epoch_order(&source, 1, 0).chunks(40) {
            let mut blocks: Vec<u32> = part.iter().map(|i| i / 10).collect();
            blocks.sort();
            blocks.dedup();
            assert_eq!(blocks.len(), 4);
        }
    }

    /// Each example comes first equally often.
    #[test]
    fn orders_are_uniform() {
        let mut counts = [0f64; 10];
        (0..10_000).for_each(|e| counts[epoch_order(&Blocks(10, None), 1, e)[0] as usize] += 1.0);
        let chi2: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 34.0, "{chi2}"); // 9 degrees of freedom: P(χ² > 34) < 1e-4
    }

    /// Of each number of ranks that divides the lanes, no two read a block, but for those that are cut between them: one less than
    /// there are ranks, at most. Every example comes once, but for those that fill no batch.
    #[test]
    fn ranks_read_different_blocks_and_files() {
        let (n, batch) = (40 * 50, 48);
        let a = arrange(n, blocks(40, 50, 30), batch, 0);
        assert_eq!((a.lanes(), a.batches()), (24, n / batch));
        for epoch in 0..3 {
            let order = a.epoch(7, epoch).examples;
            let mut seen = order.clone();
            seen.sort();
            seen.dedup();
            assert_eq!((seen.len(), order.len()), (n / batch * batch, n / batch * batch));
            for ranks in [1, 2, 3, 4, 6, 8, 12] {
                let (mut by_block, mut by_file) = (vec![Vec::new(); 40], vec![Vec::new(); 8]);
                for (i, example) in order.iter().enumerate() {
                    let row = i % batch;
                    let rank = (0..ranks).find(|&rank| Part { rank, ranks }.of(batch).contains(&row)).unwrap();
                    by_block[*example as usize / 50].push(rank);
                    by_file[*example as usize / 250].push(rank);
                }
                let shared = |all: &mut Vec<Vec<usize>>| -> usize {
                    all.iter_mut().for_each(|ranks| ranks.sort());
                    all.iter_mut().for_each(|ranks| ranks.dedup());
                    all.iter().map(|ranks| ranks.len().saturating_sub(1)).sum()
                };
                assert!(shared(&mut by_block) < ranks && shared(&mut by_file) < ranks, "{ranks} ranks");
            }
            assert_ne!(order, a.epoch(7, epoch + 1).examples);
        }
    }

    /// A batch needs no block that was not announced, and no more are announced at a time than two windows of each lane, or those that
    /// the very batch needs.
    #[test]
    fn reads_are_announced_in_time_and_no_earlier() {
        for (n, batch, window) in [(2000, 48, 30), (2000, 31, 35), (1990, 24, 8), (2000, 7, 3)] {
            let locality = blocks(40, 50, window);
            let a = arrange(n, locality.clone(), batch, 0);
            let order = a.epoch(1, 0);
            for b in 0..a.batches() as u32 {
                let due = |r: &&Read| r.first <= b + r.ahead && b <= r.last;
                let held: Vec<&Read> = order.reads.iter().filter(due).collect();
                for lane in 0..a.lanes() {
                    let of = |r: &&&Read| r.lane == lane;
                    let now = held.iter().filter(of).filter(|r| r.first <= b).count();
                    let most = now.max(2 * a.window());
                    assert!(held.iter().filter(of).count() <= most, "batch {b}, lane {lane}: {now} of {most} now");
                }
                for row in 0..batch {
                    let example = order.examples[b as usize * batch + row];
                    let lane = (0..a.lanes()).find(|&l| a.rows(l, batch).contains(&row)).unwrap();
                    let now = |r: &&&Read| r.lane == lane && r.first <= b && r.examples.contains(&example);
                    assert_eq!(held.iter().filter(now).count(), 1, "batch {b}, row {row}");
                }
            }
        }
    }

    #[test]
    fn lanes_are_as_many_as_batch_and_memory_allow() {
        let lanes = |window, batch| arrange(2000, blocks(40, 50, window), batch, 0).lanes();
        assert_eq!((lanes(30, 256), lanes(30, 23), lanes(7, 256), lanes(1, 256), lanes(0, 256)), (24, 12, 6, 1, 1));
        assert_eq!((lanes(40, 256), arrange(2000, blocks(40, 50, 40), 256, 8).lanes()), (1, 8)); // all of it fits
        assert!(arrange(2000, blocks(40, 50, 40), 256, 0).streamed().is_none());
        let refused = |lanes, mixes| {
            let with = Batching { batch: 48, lanes, full: true, mixes };
            Arrangement::new(2000, Some(blocks(40, 50, 30)), with).err().map(|e| e.to_string())
        };
        assert!(refused(48, false).is_none() && refused(24, true).is_none());
        assert!(refused(49, false).unwrap().contains("data.lanes = 49: a batch of 48 has not an example"));
        assert!(refused(32, true).unwrap().contains("two examples"));
    }

    /// Nobody is mixed with itself, all are partners of somebody, and no partner is in another lane.
    #[test]
    fn partners_are_in_the_same_lane() {
        for (batch, lanes) in [(48, 24), (256, 24), (7, 3), (100, 8)] {
            let a = arrange(2000, blocks(40, 50, 30), batch, lanes);
            let partners = a.partners(batch).unwrap();
            for lane in 0..lanes {
                let rows = a.rows(lane, batch);
                let mut of: Vec<usize> = partners[rows.clone()].iter().map(|&p| p as usize).collect();
                assert!(rows.clone().zip(&of).all(|(i, p)| i != *p));
                of.sort();
                assert_eq!(of, rows.collect::<Vec<_>>());
            }
        }
    }
}
