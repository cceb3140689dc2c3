//! Who reads what: the files and blocks that each of several ranks needs in an epoch.

use super::examples::{Captioned, Classes, Examples};
use super::loader::partners_outside;
use super::order::{Arrangement, EpochOrder};
use super::{DataError, Extent, LoaderConfig, Locality, Part, Result, Sequences, Source};
use crate::augment::Transform;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What the ranks of a job read in an epoch, found from the very order that a [`Loader`](super::Loader) follows; nothing is read for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The epoch it is for.
    pub epoch: u32,
    /// Rows of a batch, those of all ranks together.
    pub batch: usize,
    /// Batches of the epoch, the same number for every rank.
    pub batches: usize,
    /// Examples that there are, or windows of a stream.
    pub examples: usize,
    /// Those of them that fill no batch in this epoch.
    pub left_out: usize,
    /// Blocks (row groups, pieces of tar files) that examples lie in; 0 where each is read by itself.
    pub blocks: usize,
    /// Lanes in which the blocks are streamed; 1 where everything is shuffled as a whole.
    pub lanes: usize,
    /// Whether blocks are streamed: they do not fit into memory, or lanes were asked for.
    pub streamed: bool,
    /// What each rank reads.
    pub ranks: Vec<RankPlan>,
    /// Blocks that several ranks need.
    pub shared: Vec<SharedBlock>,
}

/// What one rank reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankPlan {
    /// Its number.
    pub rank: usize,
    /// Its rows of every batch: the first, and the one after the last.
    pub rows: [usize; 2],
    /// Examples of its own.
    pub examples: usize,
    /// Examples of other ranks that it reads too, if every batch is mixed.
    pub partners: usize,
    /// Blocks that it reads.
    pub blocks: usize,
    /// Their bytes in memory; of blocks whose examples can be read singly, the share that it needs.
    pub bytes: u64,
    /// Most bytes of blocks that are in use or read ahead at a time.
    pub held: u64,
    /// The files.
    pub files: Vec<FilePlan>,
}

/// What a rank reads of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FilePlan {
    /// Where it is.
    pub file: PathBuf,
    /// Blocks of it.
    pub blocks: usize,
    /// Examples of it.
    pub examples: usize,
    /// Bytes of it.
    pub bytes: u64,
}

/// A block that several ranks need.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharedBlock {
    /// Its file.
    pub file: PathBuf,
    /// Its number in the file.
    pub number: usize,
    /// Who needs it.
    pub ranks: Vec<usize>,
    /// Bytes that are read more than once for that; none where each rank reads only its own examples.
    pub again: u64,
}

impl Plan {
    /// For images and classes, as [`Loader::new`](super::Loader::new) would load them; `config.part` does not matter.
    pub fn classes(
        source: Source,
        transform: Transform,
        config: &LoaderConfig,
        ranks: usize,
        epoch: u32,
    ) -> Result<Plan> {
        Plan::new(&Classes { source, transform }, config, ranks, epoch)
    }

    /// For sequences, as [`Loader::sequences`](super::Loader::sequences) would load them.
    pub fn sequences(source: Sequences, config: &LoaderConfig, ranks: usize, epoch: u32) -> Result<Plan> {
        Plan::new(&Captioned { source, transform: None, shuffled: config.shuffle }, config, ranks, epoch)
    }

    fn new(examples: &dyn Examples, config: &LoaderConfig, ranks: usize, epoch: u32) -> Result<Plan> {
        let (n, batch) = (examples.len(), config.batch);
        Part { rank: 0, ranks }.check(batch, config.drop_last)?;
        let locality = examples.locality().filter(|l| l.divides(n as u32));
        let arrangement = Arrangement::new(n, locality.clone(), config.batching(examples.mixes()))?;
        if n == 0 || (config.drop_last && n < batch) {
            let noun = examples.noun();
            return Err(DataError::Setting(format!(
                "{n} {noun} do not fill one batch of {batch}; use a smaller batch"
            )));
        }
        let order = arrangement.epoch(config.seed, epoch);
        let locality = locality.unwrap_or_default();
        let extents: Vec<Option<Extent>> = locality.starts.iter().map(|&first| examples.extent(first)).collect();
        let counts = needed(&order, &locality, batch, ranks);
        let plan = |(rank, counts): (usize, &Vec<usize>)| {
            let rows = Part { rank, ranks }.of(batch.min(n));
            let mixed = arrangement.partners(batch.min(n)).unwrap_or_else(|| (0..batch.min(n) as u32).rev().collect());
            let partners = if examples.mixes() { partners_outside(&mixed, &rows).len() } else { 0 };
            let files = files(counts, &locality, &extents, n);
            RankPlan {
                rank,
                rows: [rows.start, rows.end],
                examples: order.examples.chunks(batch).map(|b| Part { rank, ranks }.of(b.len()).len()).sum(),
                partners: partners * arrangement.batches(),
                blocks: counts.iter().filter(|n| **n > 0).count(),
                bytes: files.iter().map(|f| f.bytes).sum(),
                held: held(&order, &arrangement, &locality, &extents, (Part { rank, ranks }, batch)),
                files,
            }
        };
        Ok(Plan {
            epoch,
            batch,
            batches: arrangement.batches(),
            examples: n,
            left_out: n - order.examples.len().min(n),
            blocks: extents.iter().flatten().count(),
            lanes: arrangement.lanes(),
            streamed: arrangement.streamed().is_some(),
            ranks: counts.iter().enumerate().map(plan).collect(),
            shared: shared(&counts, &extents),
        })
    }
}

/// Examples of each block that each rank needs.
fn needed(order: &EpochOrder, locality: &Locality, batch: usize, ranks: usize) -> Vec<Vec<usize>> {
    let mut counts = vec![vec![0; locality.starts.len()]; ranks];
    for rows in order.examples.chunks(batch) {
        for (rank, counts) in counts.iter_mut().enumerate() {
            for &example in &rows[Part { rank, ranks }.of(rows.len())] {
                if let Some(count) = counts.get_mut(locality.block(example)) {
                    *count += 1;
                }
            }
        }
    }
    counts
}

fn files(counts: &[usize], locality: &Locality, extents: &[Option<Extent>], n: usize) -> Vec<FilePlan> {
    let mut files = BTreeMap::<&PathBuf, FilePlan>::new();
    for (block, (&examples, extent)) in counts.iter().zip(extents).enumerate() {
        let (Some(extent), 1..) = (extent, examples) else { continue };
        let end = locality.starts.get(block + 1).map_or(n, |&s| s as usize);
        let all = end - locality.starts[block] as usize;
        let share = if extent.divisible { examples as f64 / all.max(1) as f64 } else { 1.0 };
        let empty = || FilePlan { file: extent.file.clone(), blocks: 0, examples: 0, bytes: 0 };
        let file = files.entry(&extent.file).or_insert_with(empty);
        file.blocks += 1;
        file.examples += examples;
        file.bytes += (extent.bytes as f64 * share).round() as u64;
    }
    files.into_values().collect()
}

fn shared(counts: &[Vec<usize>], extents: &[Option<Extent>]) -> Vec<SharedBlock> {
    let of = |(block, extent): (usize, &Option<Extent>)| {
        let extent = extent.as_ref()?;
        let ranks: Vec<usize> = (0..counts.len()).filter(|&rank| counts[rank][block] > 0).collect();
        let again = if extent.divisible { 0 } else { extent.bytes * (ranks.len() as u64).saturating_sub(1) };
        (ranks.len() > 1).then(|| SharedBlock { file: extent.file.clone(), number: extent.number, ranks, again })
    };
    extents.iter().enumerate().filter_map(of).collect()
}

/// Most bytes of a rank's blocks between the batch in which reading them may begin and the last that needs them.
fn held(
    order: &EpochOrder,
    arrangement: &Arrangement,
    locality: &Locality,
    extents: &[Option<Extent>],
    (part, batch): (Part, usize),
) -> u64 {
    let mut changes = BTreeMap::<u32, (u64, u64)>::new();
    for read in order.reads.iter().filter(|r| arrangement.meets(r.lane, part, batch)) {
        let Some(Some(extent)) = extents.get(locality.block(read.examples.start)) else { continue };
        changes.entry(read.first.saturating_sub(read.ahead)).or_default().0 += extent.bytes;
        changes.entry(read.last.saturating_add(1)).or_default().1 += extent.bytes;
    }
    let (mut now, mut most) = (0_u64, 0);
    for (begun, ended) in changes.into_values() {
        now = (now + begun).saturating_sub(ended);
        most = most.max(now);
    }
    most
}
