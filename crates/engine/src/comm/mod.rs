//! Several processes that train together: sums and copies of flat buffers between them.
//!
//! A [`Comm`] is one rank's end of the group. It stands on a [`Transport`]: NCCL where each rank has a GPU of its own, else MPI.
//! Both libraries are loaded at run time; nothing of them is needed to build the program or to run it alone. Who this process is,
//! [`Ranks::from_env`] reads from what started it; [`connect`] meets the others. A heartbeat beside the collectives tells who is
//! alive, so that a rank that dies or hangs is named instead of waited for.

mod connect;
mod heartbeat;
mod mpi;
mod nccl;
mod ranks;
mod rendezvous;
mod wire;
mod worker;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub use connect::{Which, connect};
pub use mpi::find as find_mpi;
pub use nccl::find as find_nccl;
pub use ranks::Ranks;

use crate::error::{Result, ensure};
use crate::tensor::Tensor;

/// What ranks do together with a range of a flat tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sum over all ranks goes to everyone.
    AllReduce,
    /// Chunk r of the sum goes to rank r.
    ReduceScatter,
    /// Chunk r of rank r goes to everyone.
    AllGather,
    /// What one rank has goes to everyone.
    Broadcast {
        /// That rank.
        root: usize,
    },
}

impl Collective {
    /// The field's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::Broadcast { .. } => "broadcast",
        }
    }

    /// Bytes that a rank sends at least for `bytes` of data: what a ring sends.
    pub fn sent(self, size: usize, bytes: usize) -> u64 {
        let others = (bytes as u128 * size.saturating_sub(1) as u128 / size.max(1) as u128) as u64;
        if self == Collective::AllReduce { 2 * others } else { others }
    }

    /// Which part of `len` values rank `rank` gives.
    fn given(self, rank: usize, size: usize, len: usize) -> Range<usize> {
        match self {
            Collective::AllGather => chunk(rank, size, len),
            _ => 0..len,
        }
    }

    /// Which part of `len` values rank `rank` gets.
    fn got(self, rank: usize, size: usize, len: usize) -> Range<usize> {
        match self {
            Collective::ReduceScatter => chunk(rank, size, len),
            _ => 0..len,
        }
    }
}

fn chunk(rank: usize, size: usize, len: usize) -> Range<usize> {
    let each = len / size.max(1);
    rank * each..(rank + 1) * each
}

/// What the network was used for so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Bytes sent.
    pub bytes: u64,
    /// Time that the network was busy.
    pub busy: Duration,
    /// Time that somebody waited in [`Pending::finish`].
    pub waited: Duration,
}

/// A way to reach the other ranks.
pub trait Transport: Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;
    /// All ranks.
    fn size(&self) -> usize;
    /// The library and its version.
    fn describe(&self) -> String;
    /// Start `op` on a range that has been checked.
    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending>;
    /// Wait until all ranks are here.
    fn barrier(&self) -> Result<()>;
    /// The bytes of each rank, by rank.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// What the network was used for so far.
    fn usage(&self) -> Usage;
    /// This rank fails for a reason of its own: tell the others, so that they do not wait.
    fn leave(&self, _why: &str) {}
}

/// Something under way: `finish` gives it to its tensor.
pub trait Finish {
    /// Wait for it and put the values in place.
    fn finish(self: Box<Self>, flat: &mut Tensor) -> Result<()>;
}

/// A collective under way.
#[must_use = "the values are in place after `finish`"]
pub struct Pending {
    inner: Box<dyn Finish + Send>,
}

impl Pending {
    /// What a transport has begun.
    pub fn new(inner: impl Finish + Send + 'static) -> Pending {
        Pending { inner: Box::new(inner) }
    }

    /// CPU and staged GPU tensors: waits, then the values are in `flat`. NCCL: the compute stream waits by an event, the host does
    /// not.
    pub fn finish(self, flat: &mut Tensor) -> Result<()> {
        self.inner.finish(flat)
    }
}

/// One rank's end of a group of processes that train together. Cloning it shares the same end.
///
/// Every rank calls the same operations in the same order.
#[derive(Clone)]
pub struct Comm(Arc<dyn Transport>);

impl Comm {
    /// A group reached by `transport`.
    pub fn new(transport: impl Transport + 'static) -> Comm {
        Comm(Arc::new(transport))
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// All ranks.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// The library and its version, e.g. "NCCL 2.27.5" or "Open MPI 5.0.7".
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        let whole = flat.shape().len() == 1 && range.start <= range.end && range.end <= flat.len();
        ensure!(whole, op.name(), "{range:?} is not a range of a flat tensor: {flat:?}");
        let chunked = matches!(op, Collective::ReduceScatter | Collective::AllGather);
        let (len, size) = (range.len(), self.size());
        ensure!(!chunked || len.is_multiple_of(size), op.name(), "{len} values cannot be cut into {size} equal chunks");
        if let Collective::Broadcast { root } = op {
            ensure!(root < size, op.name(), "there is no rank {root} among {size}");
        }
        self.0.begin(op, flat, range)
    }

    /// Sum a range over all ranks. Starts at once, in the order of the calls; the sum is in place after [`Pending::finish`].
    pub fn begin_all_reduce(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::AllReduce, flat, range)
    }

    /// The sum of chunk r of `range` lands at rank r, in place, at its chunk; the other chunks are undefined afterwards.
    pub fn begin_reduce_scatter(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::ReduceScatter, flat, range)
    }

    /// Chunk r of `range` of rank r goes to everyone.
    pub fn begin_all_gather(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::AllGather, flat, range)
    }

    /// A range of rank `root` goes to everyone.
    pub fn begin_broadcast(&self, flat: &Tensor, range: Range<usize>, root: usize) -> Result<Pending> {
        self.begin(Collective::Broadcast { root }, flat, range)
    }

    /// Wait until all ranks are here.
    pub fn barrier(&self) -> Result<()> {
        self.0.barrier()
    }

    /// Any bytes of each rank, to every rank, by rank: settings, numbers of evaluations, checks. Blocks.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.exchange(mine)
    }

    /// What the network was used for so far.
    pub fn usage(&self) -> Usage {
        self.0.usage()
    }

    /// This rank ends because of `why`: the others are told so at once, and fail with these words instead of waiting.
    pub fn leave(&self, why: &str) {
        self.0.leave(why);
    }
}
