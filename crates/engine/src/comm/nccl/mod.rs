//! Collectives by NCCL: each rank its own GPU, on a stream of its own, in place.
//!
//! The host never waits inside NCCL: calls are non-blocking, and a thread watches over what is under way. It ends the communicator
//! when an operation fails or takes too long or the heartbeat has lost a rank, so that the stream does not stand still for ever; the
//! next call of this rank then is an error.

mod library;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use library::find;
use library::{Communicator, Config, FLOAT32, IN_PROGRESS, Nccl, SUCCESS, SUM, UINT32, UniqueId};

use super::heartbeat::Alive;
use super::{Collective, Finish, Pending, Transport, Usage, chunk, records, refused};
use crate::cuda::{Cuda, Mark, Side};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// Between two looks at what is under way.
const LOOK: Duration = Duration::from_millis(2);

/// A new identity for a communicator, made by rank 0 for all.
pub(super) fn unique_id() -> Result<Vec<u8>> {
    let nccl = Nccl::load().map_err(refused)?;
    let mut id = UniqueId([0; 128]);
    // SAFETY: writes 128 bytes.
    let rc = unsafe { (nccl.f.ncclGetUniqueId)(&mut id) };
    match rc {
        SUCCESS => Ok(id.0.to_vec()),
        rc => Err(refused(format!("ncclGetUniqueId failed: {}", nccl.words(std::ptr::null_mut(), rc)))),
    }
}

/// A communicator; null after it was ended.
struct Handle(Communicator);

// SAFETY: used by one thread at a time, under a lock.
unsafe impl Send for Handle {}

impl Handle {
    fn take(&mut self) -> Communicator {
        std::mem::replace(&mut self.0, std::ptr::null_mut())
    }
}

/// An operation on the stream.
struct UnderWay {
    op: &'static str,
    number: u64,
    from: Mark,
    to: Arc<Mark>,
    /// When it was first seen to be at its turn: what comes before it on the device does not count.
    since: Option<Instant>,
    /// Where the kernels began to wait for it.
    asked: Arc<Mutex<Option<Mark>>>,
}

struct Shared {
    nccl: &'static Nccl,
    rank: usize,
    size: usize,
    handle: Mutex<Handle>,
    alive: Arc<Alive>,
    timeout: Duration,
    under_way: Mutex<VecDeque<UnderWay>>,
    usage: Mutex<Usage>,
    failed: Mutex<Option<String>>,
}

/// This rank's end of a communicator.
pub(super) struct Ring {
    shared: Arc<Shared>,
    side: Side,
    device: Cuda,
    /// What brought the ranks together, if that was MPI: ended after NCCL.
    beneath: Option<Arc<dyn Transport>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ring {
    pub fn connect(
        (rank, size): (usize, usize),
        device: &Cuda,
        id: &[u8],
        alive: Arc<Alive>,
        timeout: Duration,
        beneath: Option<Arc<dyn Transport>>,
    ) -> Result<Ring> {
        let nccl = Nccl::load().map_err(refused)?;
        let id = id.try_into().map_err(|_| refused("rank 0 gave no identity for NCCL; its message says why"))?;
        let side = Side::new(device)?;
        side.raw()?; // NCCL takes the GPU that is current on this thread
        let mut comm: Communicator = std::ptr::null_mut();
        let mut config = Config::non_blocking();
        // SAFETY: NCCL writes the communicator and reads the configuration, which has the layout its version field says.
        let rc = unsafe {
            (nccl.f.ncclCommInitRankConfig)(&mut comm, size as c_int, UniqueId(id), rank as c_int, &mut config)
        };
        let shared = Shared {
            nccl,
            rank,
            size,
            handle: Mutex::new(Handle(comm)),
            alive,
            timeout,
            under_way: Mutex::default(),
            usage: Mutex::default(),
            failed: Mutex::default(),
        };
        let number = shared.alive.begin();
        shared.settle(&mut lock(&shared.handle), "the start of NCCL", number, rc)?;
        let shared = Arc::new(shared);
        let weak = Arc::downgrade(&shared);
        let watch = std::thread::Builder::new().name("nccl".into()).spawn(move || watch(&weak));
        watch.map_err(|e| refused(format!("no thread to watch over NCCL can be started: {e}")))?;
        Ok(Ring { shared, side, device: device.clone(), beneath })
    }

    /// Queue one operation; it is under way afterwards.
    fn queue(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Waiting> {
        let s = &self.shared;
        if flat.cuda_device() != Some(&self.device) {
            return Err(Error::op(
                op.name(),
                format!("these ranks were connected for {}; given {flat:?}", Device::Cuda(self.device.clone())),
            ));
        }
        let kind = match flat.dtype() {
            DType::U32 => UINT32,
            _ => FLOAT32,
        };
        let mut handle = lock(&s.handle);
        s.whole()?; // nobody ends it from here on
        let number = s.alive.begin();
        self.side.wait_for(&self.device.mark()?)?;
        let from = self.side.mark()?;
        let stream = self.side.raw()?;
        let n = range.len();
        let at = flat.view(range.start, &[n]).ptr();
        let (each, own) = (n / s.size, at + 4 * chunk(&(0..n), s.rank, s.size).start as u64);
        let (f, comm) = (&s.nccl.f, handle.0);
        // SAFETY: the range lies within the tensor, which the caller keeps until the operation is finished; the communicator is alive,
        // and used by this thread alone while it is locked.
        let rc = unsafe {
            match op {
                Collective::AllReduce => (f.ncclAllReduce)(at, at, n, kind, SUM, comm, stream),
                Collective::ReduceScatter => (f.ncclReduceScatter)(at, own, each, kind, SUM, comm, stream),
                Collective::AllGather => (f.ncclAllGather)(own, at, each, kind, comm, stream),
                Collective::Broadcast { root } => (f.ncclBroadcast)(at, at, n, kind, root as c_int, comm, stream),
            }
        };
        s.settle(&mut handle, op.name(), number, rc)?;
        drop(handle);
        let to = Arc::new(self.side.mark()?);
        lock(&s.usage).bytes += op.bytes(n, s.size);
        let asked = Arc::new(Mutex::new(None));
        let waiting = Waiting {
            to: Arc::clone(&to),
            asked: Arc::clone(&asked),
            shared: Arc::clone(s),
            device: self.device.clone(),
        };
        lock(&s.under_way).push_back(UnderWay { op: op.name(), number, from, to, since: None, asked });
        Ok(waiting)
    }
}

impl Shared {
    /// An error if one came before.
    fn whole(&self) -> Result<()> {
        lock(&self.failed).clone().map_or(Ok(()), |why| Err(Error::comm("NCCL", why)))
    }

    /// Remember why nothing goes on, and end what is under way.
    fn fail(&self, handle: &mut Handle, why: String) -> Error {
        lock(&self.failed).get_or_insert_with(|| why.clone());
        let comm = handle.take();
        if !comm.is_null() {
            // SAFETY: the communicator is alive, and nobody has it any more.
            unsafe { (self.nccl.f.ncclCommAbort)(comm) };
        }
        Error::comm("NCCL", why)
    }

    fn lost(&self, op: &str, why: &str) -> String {
        format!("rank {} of {}, {op}: {why}", self.rank, self.size)
    }

    /// Wait, with a deadline, until NCCL has taken a call in. The lock on the communicator is held.
    fn settle(&self, handle: &mut Handle, op: &str, number: u64, rc: c_int) -> Result<()> {
        let (start, comm, mut rc) = (Instant::now(), handle.0, rc);
        while rc == IN_PROGRESS {
            if let Some(why) = self.trouble(op, number, start) {
                return Err(self.fail(handle, why));
            }
            let mut state = SUCCESS;
            // SAFETY: the communicator is alive; one int is written.
            let asked = unsafe { (self.nccl.f.ncclCommGetAsyncError)(comm, &mut state) };
            rc = if asked == SUCCESS { state } else { asked };
            if rc == IN_PROGRESS {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        if rc != SUCCESS {
            let words = self.nccl.words(comm, rc);
            return Err(self.fail(handle, self.lost(op, &format!("NCCL {}: {words}", self.nccl.version()))));
        }
        Ok(())
    }

    /// Why an operation that is at its turn since `start` will not end.
    fn trouble(&self, op: &str, number: u64, start: Instant) -> Option<String> {
        if let Some(why) = self.alive.trouble(number) {
            return Some(self.lost(op, &why));
        }
        let over = start.elapsed() >= self.timeout;
        over.then(|| {
            let who = self.alive.late(number);
            self.lost(op, &format!("not done after {} s: {who}", self.timeout.as_secs_f32()))
        })
    }

    /// Take out what is done. Otherwise: why it never will be.
    fn look(&self) -> Result<Option<String>> {
        let mut queue = lock(&self.under_way);
        while let Some(first) = queue.front_mut() {
            if first.to.is_done()? {
                let Some(done) = queue.pop_front() else { break };
                let mut usage = lock(&self.usage);
                let millis = |ms: f32| Duration::from_secs_f64(f64::from(ms.max(0.0)) / 1e3);
                usage.busy += millis(done.to.since(&done.from)?);
                if let Some(asked) = lock(&done.asked).take().filter(|a| a.is_done().unwrap_or(false)) {
                    usage.waited += millis(done.to.since(&asked)?);
                }
                continue;
            }
            if first.since.is_none() && first.from.is_done()? {
                first.since = Some(Instant::now());
            }
            let (op, number, since) = (first.op, first.number, first.since);
            return Ok(since.and_then(|since| self.trouble(op, number, since)));
        }
        Ok(None)
    }

    /// What NCCL has found since the last call.
    fn async_error(&self, comm: Communicator) -> Option<String> {
        if comm.is_null() {
            return None;
        }
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive and locked; one int is written.
        let rc = unsafe { (self.nccl.f.ncclCommGetAsyncError)(comm, &mut state) };
        let bad = [rc, state].into_iter().find(|rc| !matches!(*rc, SUCCESS | IN_PROGRESS))?;
        Some(self.lost("a collective", &format!("NCCL {}: {}", self.nccl.version(), self.nccl.words(comm, bad))))
    }
}

/// Look at what is under way until the communicator is gone.
fn watch(shared: &Weak<Shared>) {
    while let Some(s) = shared.upgrade() {
        if lock(&s.failed).is_some() {
            return;
        }
        let found = s.look().unwrap_or_else(|e| Some(s.lost("a collective", &e.to_string())));
        // Held by a call that looks for trouble itself: next time.
        if let Ok(mut handle) = s.handle.try_lock()
            && let Some(why) = found.or_else(|| s.async_error(handle.0))
        {
            s.fail(&mut handle, why);
        }
        drop(s);
        std::thread::sleep(LOOK);
    }
}

impl Transport for Ring {
    fn rank(&self) -> usize {
        self.shared.rank
    }

    fn size(&self) -> usize {
        self.shared.size
    }

    fn describe(&self) -> String {
        format!("NCCL {}", self.shared.nccl.version())
    }

    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        Ok(Pending::new(self.queue(op, flat, range)?))
    }

    fn barrier(&self) -> Result<()> {
        self.gather(&[0; 4]).map(drop)
    }

    /// On the host, where MPI has brought the ranks together: then nobody waits for the GPU.
    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.shared.whole()?;
        match &self.beneath {
            Some(mpi) => mpi.exchange(mine),
            None => records::exchange(mine, |part| self.gather(part)),
        }
    }

    fn check(&self) -> Result<()> {
        self.shared.whole()
    }

    fn usage(&self) -> Usage {
        *lock(&self.shared.usage)
    }

    fn leave(&self, why: &str) {
        self.shared.fail(&mut lock(&self.shared.handle), why.into());
        self.shared.alive.leave(why);
    }
}

impl Ring {
    /// As many bytes of each rank, four to a value. Waits on the host.
    fn gather(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let own: Vec<u32> = mine.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let (n, size) = (own.len(), self.size());
        let mut all = vec![0; n * size];
        if let Some(place) = all.get_mut(chunk(&(0..n * size), self.rank(), size)) {
            place.copy_from_slice(&own);
        }
        let mut all = Tensor::from_u32(&Device::Cuda(self.device.clone()), &[n * size], all)?;
        let waiting = self.queue(Collective::AllGather, &all, 0..n * size)?;
        let start = Instant::now();
        while !waiting.to.is_done()? {
            self.shared.whole()?;
            std::thread::sleep(Duration::from_micros(20));
        }
        lock(&self.shared.usage).waited += start.elapsed();
        Box::new(waiting).finish(&mut all)?;
        Ok(all.to_vec_u32()?.iter().flat_map(|w| w.to_le_bytes()).collect())
    }
}

/// In order: NCCL is asked to finish. After a failure the communicator is gone already.
impl Drop for Ring {
    fn drop(&mut self) {
        let s = &self.shared;
        let failed = lock(&s.failed).clone();
        s.alive.leave(failed.as_deref().unwrap_or_default());
        if let (Some(why), Some(beneath)) = (&failed, &self.beneath) {
            beneath.leave(why);
        }
        let mut handle = Handle(lock(&s.handle).take());
        if failed.is_some() || handle.0.is_null() || self.side.raw().is_err() {
            return;
        }
        // SAFETY: the communicator is alive, and nobody else has it any more.
        let rc = unsafe { (s.nccl.f.ncclCommFinalize)(handle.0) };
        if s.settle(&mut handle, "the end of NCCL", 0, rc).is_ok() {
            // SAFETY: as above; it is finalized.
            unsafe { (s.nccl.f.ncclCommDestroy)(handle.0) };
        }
    }
}

/// An operation whose end the kernels have not been told to wait for.
struct Waiting {
    to: Arc<Mark>,
    asked: Arc<Mutex<Option<Mark>>>,
    shared: Arc<Shared>,
    device: Cuda,
}

impl Finish for Waiting {
    fn finish(self: Box<Self>, flat: &mut Tensor) -> Result<()> {
        self.shared.whole()?;
        if flat.cuda_device() != Some(&self.device) {
            return Err(Error::op("finish", format!("another tensor than was begun with: {flat:?}")));
        }
        *lock(&self.asked) = Some(self.device.mark()?);
        Ok(()) // the kernels wait from when this is dropped
    }
}

/// Memory must not be used again while the operation writes to it, finished or not.
impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.device.wait_for(&self.to);
    }
}
