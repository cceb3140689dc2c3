//! How flat buffers are cut for ranks: buckets whose gradients are summed together, and what each rank keeps the optimizer's state of.

use std::ops::Range;

use super::{Collective, Comm, Pending, chunk};
use crate::error::{Result, ensure};
use crate::params::{ALIGN, Group, Params, Section};
use crate::tensor::Tensor;

/// Who keeps the optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Every rank keeps all of it.
    All,
    /// Each rank keeps a share, cut anywhere: AdamW goes value by value.
    Flat,
    /// As [`Keep::Flat`], but matrices of blocks stay whole: Muon needs all of one.
    Matrices,
}

/// What becomes of a piece of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// Every rank has its sum and keeps its state.
    Everyone,
    /// Chunk r is rank r's.
    Chunks,
    /// Summed for everyone; the state lies with the owners of matrices.
    Owners,
}

/// A run of parameters whose gradients are summed together.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Its parameters: number, and place without padding.
    pub members: Vec<(usize, Range<usize>)>,
    pieces: Vec<(Range<usize>, Share)>,
}

impl Bucket {
    /// The number of the parameter that a backward pass comes to last: the first that was made.
    fn last_ready(&self) -> usize {
        self.members.iter().map(|m| m.0).min().unwrap_or(0)
    }

    /// Begin to sum its gradients.
    pub fn begin(&self, comm: &Comm, flat: &Tensor, to: &mut Vec<Pending>) -> Result<()> {
        for (range, share) in &self.pieces {
            let op = if *share == Share::Chunks { Collective::ReduceScatter } else { Collective::AllReduce };
            to.push(comm.begin(op, flat, range.clone())?);
        }
        Ok(())
    }
}

/// How the flat buffers of a [`Params`] are cut for the ranks of a group: the same for all of them.
#[derive(Clone, Debug)]
pub struct Layout {
    /// In the order in which a backward pass is done with them.
    pub(super) buckets: Vec<Bucket>,
    /// What nobody has a gradient of.
    frozen: Vec<Range<usize>>,
    /// Matrices of each rank, where they are kept whole: a range of the flat buffers each.
    owners: Vec<Range<usize>>,
    size: usize,
    keep: Keep,
}

impl Layout {
    /// Cut `params` for `size` ranks into buckets of about `bytes`.
    pub fn new(params: &Params, size: usize, bytes: usize, keep: Keep) -> Result<Layout> {
        ensure!(size > 0 && bytes > 0, "ranks", "buckets of {bytes} bytes for {size} ranks");
        let keep = if size == 1 { Keep::All } else { keep };
        let (mut buckets, mut frozen): (Vec<Bucket>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for Section { group, members } in params.sections() {
            if group == Group::Frozen {
                frozen.extend(members.into_iter().map(|m| m.padded));
                continue;
            }
            let (mut open, count) = (Vec::new(), members.len());
            let mut start = members.first().map_or(0, |m| m.padded.start);
            for (i, m) in members.into_iter().enumerate() {
                open.push((m.number, m.place));
                let range = start..m.padded.end;
                if range.len() * 4 >= bytes || i + 1 == count {
                    start = range.end;
                    let pieces = pieces(range, keep, is_hidden(group), size);
                    buckets.push(Bucket { members: std::mem::take(&mut open), pieces });
                }
            }
        }
        buckets.sort_by_key(|b| std::cmp::Reverse(b.last_ready()));
        let owners = if keep == Keep::Matrices { owners(params, size) } else { Vec::new() };
        Ok(Layout { buckets, frozen, owners, size, keep })
    }

    /// Who keeps the state.
    pub fn keep(&self) -> Keep {
        self.keep
    }

    /// How many buckets there are, and the values of each.
    pub fn bucket_lens(&self) -> Vec<usize> {
        self.buckets.iter().map(|b| b.pieces.iter().map(|p| p.0.len()).sum()).collect()
    }

    /// The matrices of `rank`, where they are kept whole.
    pub(crate) fn matrices_of(&self, rank: usize) -> Option<Range<usize>> {
        self.owners.get(rank).cloned()
    }

    /// What `rank` keeps the state of, and whether nobody else does, in the order of the flat buffers.
    pub(crate) fn kept_by(&self, rank: usize) -> Vec<(Range<usize>, bool)> {
        let mut all: Vec<(Range<usize>, bool)> = self.frozen.iter().map(|r| (r.clone(), false)).collect();
        for (range, share) in self.buckets.iter().flat_map(|b| &b.pieces) {
            match share {
                Share::Everyone => all.push((range.clone(), false)),
                Share::Chunks => all.push((chunk(range, rank, self.size), true)),
                Share::Owners => {}
            }
        }
        all.extend(self.owners.get(rank).map(|r| (r.clone(), true)));
        all.retain(|(r, _)| !r.is_empty());
        all.sort_by_key(|(r, _)| r.start);
        all
    }

    /// Give what each rank keeps of `flat` to everyone.
    pub(crate) fn gather(&self, comm: &Comm, flat: &mut Tensor) -> Result<()> {
        let mut under_way = Vec::new();
        for (range, share) in self.buckets.iter().flat_map(|b| &b.pieces) {
            if *share == Share::Chunks {
                under_way.push(comm.begin_all_gather(flat, range.clone())?);
            }
        }
        for (root, range) in self.owners.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            under_way.push(comm.begin_broadcast(flat, range.clone(), root)?);
        }
        under_way.into_iter().try_for_each(|p| p.finish(flat))
    }
}

fn is_hidden(group: Group) -> bool {
    matches!(group, Group::Hidden { .. })
}

/// A bucket in pieces: what is cut evenly, and a rest that everyone keeps.
fn pieces(range: Range<usize>, keep: Keep, hidden: bool, size: usize) -> Vec<(Range<usize>, Share)> {
    match keep {
        Keep::All => vec![(range, Share::Everyone)],
        Keep::Matrices if hidden => vec![(range, Share::Owners)],
        Keep::Flat | Keep::Matrices => {
            let even = range.start + range.len() / (ALIGN * size) * (ALIGN * size);
            let both = [(range.start..even, Share::Chunks), (even..range.end, Share::Everyone)];
            both.into_iter().filter(|(r, _)| !r.is_empty()).collect()
        }
    }
}

/// Runs of matrices of about the same number of values, one for each of `size` ranks; a matrix belongs to one of them.
fn owners(params: &Params, size: usize) -> Vec<Range<usize>> {
    let sections = params.sections().into_iter().filter(|s| is_hidden(s.group));
    let members: Vec<Range<usize>> = sections.flat_map(|s| s.members).map(|m| m.padded).collect();
    let (Some(first), Some(last)) = (members.first(), members.last()) else { return vec![0..0; size] };
    let (start, end) = (first.start, last.end);
    // The parameter boundary that is nearest to an even cut.
    let boundary = |rank: usize| {
        let ideal = start + (end - start) * rank / size;
        let ends = members.iter().map(|m| m.end).chain([start]);
        ends.min_by_key(|at| at.abs_diff(ideal)).unwrap_or(end)
    };
    let bounds: Vec<usize> = (0..=size).map(boundary).collect();
    bounds.windows(2).map(|b| b[0]..b[1].max(b[0])).collect()
}
