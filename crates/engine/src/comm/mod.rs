//! Processes that train together: sums and copies of ranges of flat buffers between them, and small messages.
//!
//! A [`Comm`] is one rank's end of the group; what carries it is a [`Transport`]. [`threads`] makes a group of threads of one process, for
//! tests and as the plainest example of one. Between processes it is NCCL where each rank has a GPU of its own, else MPI; both are loaded
//! at run time. Who this process is, [`Ranks::from_env`] reads from what started it; [`connect`] meets the others. A heartbeat beside the
//! collectives tells who is alive, so that a rank that dies or hangs is named instead of waited for.
//!
//! ```
//! use tweedie_engine::{Device, Tensor, comm};
//!
//! # fn main() -> tweedie_engine::Result<()> {
//! let ranks: Vec<_> = comm::threads(3).into_iter().map(|c| std::thread::spawn(move || {
//!     let mut flat = Tensor::from_f32(&Device::Cpu, &[4], vec![c.rank() as f32; 4])?;
//!     c.begin_all_reduce(&flat, 1..3)?.finish(&mut flat)?; // what is done in between goes on beside it
//!     flat.to_vec()
//! })).collect();
//! for (rank, thread) in ranks.into_iter().enumerate() {
//!     let r = rank as f32;
//!     assert_eq!(thread.join().unwrap()?, [r, 3.0, 3.0, r]);
//! }
//! # Ok(())
//! # }
//! ```

mod connect;
mod heartbeat;
mod layout;
mod mpi;
mod nccl;
mod ranks;
mod records;
mod reducer;
mod rendezvous;
mod threads;
mod wire;
mod worker;

pub use connect::{Which, connect};
pub use layout::{Keep, Layout};
pub use mpi::find as find_mpi;
pub use nccl::find as find_nccl;
pub use ranks::Ranks;
pub use reducer::Reducer;
pub use threads::threads;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result, ensure};
use crate::tensor::{DType, Tensor};

/// What ranks do together with a range of a flat f32 buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sum goes to everyone.
    AllReduce,
    /// The sum of chunk r goes to rank r.
    ReduceScatter,
    /// Chunk r of rank r goes to everyone.
    AllGather,
    /// The range of one rank goes to everyone.
    Broadcast {
        /// Whose.
        root: usize,
    },
}

impl Collective {
    /// Its name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all-reduce",
            Collective::ReduceScatter => "reduce-scatter",
            Collective::AllGather => "all-gather",
            Collective::Broadcast { .. } => "broadcast",
        }
    }

    /// Bytes that each of `size` ranks sends for `len` values where the work is spread evenly, as rings do.
    pub fn bytes(self, len: usize, size: usize) -> u64 {
        let all = 4 * len as u64;
        let share = all * size.saturating_sub(1) as u64 / size.max(1) as u64;
        match self {
            Collective::AllReduce => 2 * share,
            Collective::ReduceScatter | Collective::AllGather => share,
            Collective::Broadcast { .. } => all * u64::from(size > 1),
        }
    }

    /// The part of `range` that holds something new for `rank` once it is done.
    pub fn result(self, range: &Range<usize>, rank: usize, size: usize) -> Range<usize> {
        match self {
            Collective::ReduceScatter => chunk(range, rank, size),
            _ => range.clone(),
        }
    }
}

/// Chunk `rank` of a range that is a multiple of `size` long.
pub fn chunk(range: &Range<usize>, rank: usize, size: usize) -> Range<usize> {
    let each = range.len() / size.max(1);
    range.start + rank * each..range.start + (rank + 1) * each
}

/// What a rank has sent and waited for so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes it sent.
    pub bytes: u64,
    /// Time that something was under way.
    pub busy: Duration,
    /// Time that somebody waited in [`Pending::finish`], a barrier or an exchange.
    pub waited: Duration,
}

/// What carries a [`Comm`]. Every rank calls the same operations in the same order.
pub trait Transport: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;
    /// How many there are.
    fn size(&self) -> usize;
    /// What it is, in words.
    fn describe(&self) -> String;
    /// Begin an operation on a range of an f32 buffer; both were checked.
    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending>;
    /// Wait until every rank is here.
    fn barrier(&self) -> Result<()>;
    /// Any bytes of each rank, to every rank, by rank.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// What it was used for so far.
    fn usage(&self) -> Usage;
    /// An error if something that was begun has failed since.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// This rank fails for a reason of its own: tell the others, so that they do not wait.
    fn leave(&self, _why: &str) {}
}

/// The other half of a [`Transport::begin`].
pub trait Finish: Send {
    /// Wait, and put the result into `flat`, the buffer that it was begun with.
    fn finish(self: Box<Self>, flat: &mut Tensor) -> Result<()>;
}

/// An operation under way.
#[must_use = "its result is there after finish"]
pub struct Pending {
    inner: Box<dyn Finish>,
}

impl Pending {
    /// Of a transport.
    pub fn new(inner: impl Finish + 'static) -> Pending {
        Pending { inner: Box::new(inner) }
    }

    /// From here on the result is in `flat`: on a CPU this waits, on a GPU the stream of the computation may.
    pub fn finish(self, flat: &mut Tensor) -> Result<()> {
        self.inner.finish(flat)
    }
}

/// One rank's end of a group of processes that train together. Clones share the same end.
///
/// Every rank calls the same operations in the same order.
#[derive(Clone)]
pub struct Comm(Arc<dyn Transport>);

impl Comm {
    /// Of a transport.
    pub fn new(transport: impl Transport + 'static) -> Comm {
        Comm(Arc::new(transport))
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank()
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.0.size()
    }

    /// What carries it, in words.
    pub fn describe(&self) -> String {
        self.0.describe()
    }

    /// Begin to sum `range` of `flat` over all ranks.
    pub fn begin_all_reduce(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::AllReduce, flat, range)
    }

    /// Begin to sum chunk r of `range` at rank r, in place. The range is a multiple of [`Comm::size`] long.
    pub fn begin_reduce_scatter(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::ReduceScatter, flat, range)
    }

    /// Begin to give chunk r of `range` of rank r to everyone. The range is a multiple of [`Comm::size`] long.
    pub fn begin_all_gather(&self, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        self.begin(Collective::AllGather, flat, range)
    }

    /// Begin to give `range` of rank `root` to everyone.
    pub fn begin_broadcast(&self, flat: &Tensor, range: Range<usize>, root: usize) -> Result<Pending> {
        self.begin(Collective::Broadcast { root }, flat, range)
    }

    /// Begin any of them.
    pub fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        let (name, size) = (op.name(), self.size());
        ensure!(flat.dtype() == DType::F32, name, "it takes f32 values, this is {flat:?}");
        ensure!(range.start <= range.end && range.end <= flat.len(), name, "{range:?} does not lie in {flat:?}");
        let by_chunk = matches!(op, Collective::ReduceScatter | Collective::AllGather);
        ensure!(!by_chunk || range.len().is_multiple_of(size), name, "{range:?} is not cut evenly by {size} ranks");
        if let Collective::Broadcast { root } = op {
            ensure!(root < size, name, "from rank {root}, of {size}");
        }
        self.0.begin(op, flat, range)
    }

    /// Wait until every rank is here.
    pub fn barrier(&self) -> Result<()> {
        self.0.barrier()
    }

    /// Any bytes of each rank, to every rank, by rank. Blocks.
    pub fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.exchange(mine)
    }

    /// What it was used for so far.
    pub fn usage(&self) -> Usage {
        self.0.usage()
    }

    /// An error if something that was begun has failed since: on a GPU the host does not wait for it. Once the device has nothing more to
    /// do, what is computed is right where this is.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// This rank ends because of `why`: the others are told so at once, and fail with these words instead of waiting. Nothing else can
    /// be done with it afterwards.
    pub fn leave(&self, why: &str) {
        self.0.leave(why);
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "rank {} of {} by {}", self.rank(), self.size(), self.describe())
    }
}

/// The error of ranks that cannot meet.
fn refused(message: impl Into<String>) -> Error {
    Error::comm("ranks", message)
}

/// The values of `range` of an f32 buffer, on the host.
pub(crate) fn values_of(flat: &Tensor, range: &Range<usize>) -> Result<Vec<f32>> {
    match flat.cuda_device() {
        None => Ok(flat.f32s()[range.clone()].to_vec()),
        Some(_) => flat.view(range.start, &[range.len()]).to_vec(),
    }
}

/// Put `values` where `range` of an f32 buffer begins.
pub(crate) fn put(flat: &mut Tensor, range: &Range<usize>, values: &[f32]) -> Result<()> {
    match flat.cuda_device() {
        Some(c) => c.upload_to(flat.view(range.start, &[range.len()]).ptr(), values),
        None => match flat.f32s_mut() {
            Some(all) => {
                all[range.clone()].copy_from_slice(values);
                Ok(())
            }
            None => Err(Error::op("collective", "the buffer of a result is still in use elsewhere")),
        },
    }
}

#[cfg(test)]
mod tests;
