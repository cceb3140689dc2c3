//! The one thread that calls MPI. Calls are begun and then looked at again and again, so that a deadline or the heartbeat can end
//! the wait; ordinary calls would hang with a rank that is gone.

use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::heartbeat::Alive;
use super::mpi::{Group, Mpi, Request};
use super::{Collective, Finish, Pending, Ranks, Transport, Usage, chunk, put, records, refused};
use crate::cuda::{Mark, Pinned, Side};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Looks at a request before the thread begins to sleep between them.
const EAGER: usize = 2000;
const NAP: Duration = Duration::from_micros(50);
/// How long a rank that has nothing more to do waits for the others to come to the same end.
const END: Duration = Duration::from_secs(10);

/// What is asked of the thread.
enum Job {
    Collective { op: Collective, data: Data, number: u64, reply: Sender<Result<Vec<f32>>> },
    Exchange { mine: Vec<u8>, number: u64, reply: Sender<Result<Vec<Vec<u8>>>> },
    Barrier { number: u64, reply: Sender<Result<()>> },
    End { reply: Sender<()> },
}

/// Values to work on.
enum Data {
    Host(Vec<f32>),
    /// `len` values at an address of a GPU, there once the mark is passed.
    Device {
        at: u64,
        len: usize,
        ready: Mark,
    },
}

/// This rank's end of a group that MPI has brought together.
pub(super) struct Worker {
    rank: usize,
    size: usize,
    name: String,
    jobs: Mutex<Sender<Job>>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What both threads see.
#[derive(Default)]
struct Shared {
    /// There once the ranks have met.
    alive: OnceLock<Arc<Alive>>,
    usage: Mutex<Usage>,
    /// At what and why nothing works any more.
    failed: Mutex<Option<(&'static str, String)>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Load MPI and begin it on a thread of its own. `device`: where tensors will lie.
    pub fn start(ranks: &Ranks, device: &Device, timeout: Duration) -> Result<Worker> {
        let mpi = Mpi::load().map_err(|why| {
            refused(format!("there is no MPI library for rank {} of {}: {why}", ranks.rank, ranks.size))
        })?;
        let found = mpi.found.clone();
        let (jobs, work) = channel();
        let (ready, begun) = channel();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let device = device.clone();
        let thread = std::thread::Builder::new().name("mpi".into()).spawn(move || {
            match Thread::begin(mpi, theirs, device, timeout) {
                Ok(mut thread) => {
                    let _ = ready.send(Ok((thread.rank, thread.size)));
                    thread.work(&work);
                }
                Err(e) => drop(ready.send(Err(e))),
            }
        });
        let thread = thread.map_err(|e| refused(format!("no thread for MPI can be started: {e}")))?;
        let (rank, size) = match begun.recv_timeout(timeout) {
            Ok(begun) => begun?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(refused(format!("{} ended while it began", found.version)));
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(refused(format!(
                    "{} ({}) has not begun within {} s at rank {} of {}: some rank has not been started, or hangs before this",
                    found.version,
                    found.file,
                    timeout.as_secs_f32(),
                    ranks.rank,
                    ranks.size
                )));
            }
        };
        if (rank, size) != (ranks.rank, ranks.size) {
            return Err(refused(format!(
                "{} says that this process is rank {} of {}, but {} ({}) sees rank {rank} of {size}: it is not the MPI that started \
                 the ranks. Start them with its mpirun, or name the folder of the other's library in TWEEDIE_MPI_PATH",
                ranks.from, ranks.rank, ranks.size, found.version, found.file
            )));
        }
        let name = found.version;
        Ok(Worker { rank, size, name, jobs: Mutex::new(jobs), shared, thread: Mutex::new(Some(thread)) })
    }

    /// From now on a dead or silent rank ends every wait.
    pub fn watched_by(&self, alive: Arc<Alive>) {
        let _ = self.shared.alive.set(alive);
    }

    /// The number of an operation that begins now.
    fn begin_number(&self) -> u64 {
        self.shared.alive.get().map_or(0, |a| a.begin())
    }

    fn ask(&self, job: Job) -> Result<()> {
        lock(&self.jobs).send(job).map_err(|_| self.shared.failure())
    }

    /// Wait for an answer of the thread, and count the time.
    fn answer<T>(&self, reply: &Receiver<Result<T>>) -> Result<T> {
        self.shared.answer(reply)
    }
}

impl Shared {
    fn failure(&self) -> Error {
        let (op, why) = lock(&self.failed).clone().unwrap_or(("MPI", "the thread that calls it has ended".into()));
        Error::comm(op, why)
    }

    fn answer<T>(&self, reply: &Receiver<Result<T>>) -> Result<T> {
        let start = Instant::now();
        let got = reply.recv();
        lock(&self.usage).waited += start.elapsed();
        got.unwrap_or_else(|_| Err(self.failure()))
    }
}

impl Transport for Worker {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        let part = flat.view(range.start, &[range.len()]);
        let (data, staged) = match flat.cuda_device() {
            Some(c) => (Data::Device { at: part.ptr(), len: part.len(), ready: c.mark()? }, true),
            None => (Data::Host(part.as_f32()?.to_vec()), false),
        };
        let (reply, answer) = channel();
        let number = self.begin_number();
        self.ask(Job::Collective { op, data, number, reply })?;
        let result = op.result(&range, self.rank, self.size);
        Ok(Pending::new(Staged { answer, result, staged, shared: Arc::clone(&self.shared) }))
    }

    fn barrier(&self) -> Result<()> {
        let (reply, answer) = channel();
        self.ask(Job::Barrier { number: self.begin_number(), reply })?;
        self.answer(&answer)
    }

    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (reply, answer) = channel();
        self.ask(Job::Exchange { mine: mine.to_vec(), number: self.begin_number(), reply })?;
        self.answer(&answer)
    }

    fn usage(&self) -> Usage {
        *lock(&self.shared.usage)
    }

    fn leave(&self, why: &str) {
        lock(&self.shared.failed).get_or_insert_with(|| ("ranks", why.to_string()));
        if let Some(alive) = self.shared.alive.get() {
            alive.leave(why);
        }
    }
}

/// In order: wait for the others at the end, then MPI_Finalize. After a failure: only say goodbye; mpirun ends the rest when this
/// process exits with an error.
impl Drop for Worker {
    fn drop(&mut self) {
        let failed = lock(&self.shared.failed).as_ref().map(|(op, why)| format!("{op}: {why}"));
        if let Some(alive) = self.shared.alive.get() {
            alive.leave(failed.as_deref().unwrap_or_default());
        }
        if failed.is_some() {
            return;
        }
        let (reply, done) = channel();
        let ended = self.ask(Job::End { reply }).is_ok() && done.recv_timeout(END + END).is_ok();
        if let Some(thread) = lock(&self.thread).take().filter(|_| ended) {
            let _ = thread.join();
        }
    }
}

/// A collective that the thread works on.
struct Staged {
    answer: Receiver<Result<Vec<f32>>>,
    /// Where the result lies in the flat tensor.
    result: Range<usize>,
    /// The thread has copied the result to the GPU.
    staged: bool,
    shared: Arc<Shared>,
}

impl Finish for Staged {
    fn finish(self: Box<Self>, flat: &mut Tensor) -> Result<()> {
        let values = self.shared.answer(&self.answer)?;
        if self.staged {
            return Ok(());
        }
        put(flat, &self.result, &values)
    }
}

/// The thread's own side.
struct Thread {
    mpi: Mpi,
    rank: usize,
    size: usize,
    /// For the end alone, so that it is never mistaken for something else that is under way.
    last: Group,
    shared: Arc<Shared>,
    side: Option<Side>,
    /// Host memory that copies of earlier operations went through.
    pinned: Vec<Pinned>,
    timeout: Duration,
}

impl Thread {
    fn begin(mpi: Mpi, shared: Arc<Shared>, device: Device, timeout: Duration) -> Result<Thread> {
        let (rank, size) = mpi.init()?;
        let last = mpi.duplicate()?;
        let side = match &device {
            Device::Cuda(c) => Some(Side::new(c)?),
            Device::Cpu => None,
        };
        Ok(Thread { mpi, rank, size, last, shared, side, pinned: Vec::new(), timeout })
    }

    fn work(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Collective { op, data, number, reply } => {
                    let done = self.whole().and_then(|()| self.collective(op, data, number));
                    let _ = reply.send(self.kept(done));
                }
                Job::Exchange { mine, number, reply } => {
                    let done = self.whole().and_then(|()| records::exchange(&mine, |part| self.gather(part, number)));
                    let _ = reply.send(self.kept(done));
                }
                Job::Barrier { number, reply } => {
                    let done = self.whole().and_then(|()| {
                        let request = self.mpi.barrier(&self.mpi.world())?;
                        self.wait(request, "barrier", number, self.timeout)
                    });
                    let _ = reply.send(self.kept(done));
                }
                Job::End { reply } => {
                    let met = self.whole().and_then(|()| {
                        let request = self.mpi.barrier(&self.last)?;
                        self.wait(request, "end", 0, END)
                    });
                    if met.is_ok() {
                        let _ = self.mpi.finalize();
                    }
                    let _ = reply.send(());
                    return;
                }
            }
        }
    }

    /// An error if one came before.
    fn whole(&self) -> Result<()> {
        let failed = lock(&self.shared.failed).is_some(); // looked at again for its words: it must not be held
        if failed { Err(self.shared.failure()) } else { Ok(()) }
    }

    /// Remember the first failure: nothing goes on after it.
    fn kept<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            let failed = match e {
                Error::Comm { op, message } => (*op, message.clone()),
                e => ("MPI", e.to_string()),
            };
            lock(&self.shared.failed).get_or_insert(failed);
        }
        result
    }

    /// Look at a request until it is done, a rank is known to be lost, or the time is over.
    fn wait(&self, mut request: Request, what: &'static str, number: u64, timeout: Duration) -> Result<()> {
        let start = Instant::now();
        let alive = self.shared.alive.get();
        let lost = |why: &str| Error::comm(what, format!("rank {} of {}: {why}", self.rank, self.size));
        let mut turns = 0;
        while !self.mpi.test(&mut request)? {
            turns += 1;
            if turns < EAGER {
                std::thread::yield_now();
                continue;
            }
            if let Some(why) = alive.and_then(|a| a.trouble(number)) {
                return Err(lost(&why));
            }
            if start.elapsed() >= timeout {
                let who = alive.map_or_else(|| "another rank is not there".into(), |a| a.late(number));
                return Err(lost(&format!("not done after {} s: {who}", timeout.as_secs_f32())));
            }
            std::thread::sleep(NAP);
        }
        lock(&self.shared.usage).busy += start.elapsed();
        Ok(())
    }

    /// The values that this rank gets.
    fn collective(&mut self, op: Collective, data: Data, number: u64) -> Result<Vec<f32>> {
        match data {
            Data::Host(values) => {
                lock(&self.shared.usage).bytes += op.bytes(values.len(), self.size);
                let got = op.result(&(0..values.len()), self.rank, self.size);
                let mut values = self.run(op, values, number)?;
                values.truncate(got.end);
                Ok(values.split_off(got.start))
            }
            Data::Device { at, len, ready } => self.staged(op, at, len, &ready, number).map(|()| Vec::new()),
        }
    }

    /// From the GPU to pinned memory, over MPI, and back.
    fn staged(&mut self, op: Collective, at: u64, len: usize, ready: &Mark, number: u64) -> Result<()> {
        let fits = self.pinned.iter_mut().position(|p| p.values().len() == len);
        let Some(side) = &self.side else {
            return Err(Error::op(op.name(), "these ranks were connected for the CPU, and the tensor is on a GPU"));
        };
        let mut host = match fits {
            Some(i) => self.pinned.swap_remove(i),
            None => side.pinned(len)?,
        };
        side.wait_for(ready)?;
        let (own, got) = (chunk(&(0..len), self.rank, self.size), op.result(&(0..len), self.rank, self.size));
        let given = if op == Collective::AllGather { own } else { 0..len };
        let place = |range: &Range<usize>| at + (range.start * 4) as u64;
        side.download(place(&given), host.values().get_mut(given).unwrap_or_default())?;
        lock(&self.shared.usage).bytes += op.bytes(len, self.size);
        let mut host = self.run(op, host, number)?;
        side.upload(place(&got), host.values().get(got).unwrap_or_default())?;
        self.pinned.push(host);
        Ok(())
    }

    /// One collective on memory of the host. After a failure MPI may still write to it: then it is never freed.
    fn run<M: Memory>(&self, op: Collective, mut memory: M, number: u64) -> Result<M> {
        let data = memory.values();
        let each = data.len() / self.size.max(1);
        let own = chunk(&(0..data.len()), self.rank, self.size);
        // What cannot be done in place.
        let mut part = match op {
            Collective::ReduceScatter => vec![0.0; each],
            Collective::AllGather => data.get(own.clone()).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        let begun = match op {
            Collective::AllReduce => self.mpi.all_reduce(data),
            Collective::ReduceScatter => self.mpi.reduce_scatter(data, &mut part),
            Collective::AllGather => self.mpi.all_gather(&mut part, data),
            Collective::Broadcast { root } => self.mpi.broadcast(data, root),
        };
        match begun.and_then(|request| self.wait(request, op.name(), number, self.timeout)) {
            Ok(()) => {
                if op == Collective::ReduceScatter
                    && let Some(place) = memory.values().get_mut(own)
                {
                    place.copy_from_slice(&part);
                }
                Ok(memory)
            }
            Err(e) => {
                std::mem::forget((memory, part));
                Err(e)
            }
        }
    }

    /// As many bytes of each rank.
    fn gather(&self, mine: &[u8], number: u64) -> Result<Vec<u8>> {
        let (mut mine, mut all) = (mine.to_vec(), vec![0; mine.len() * self.size]);
        let begun = self.mpi.all_gather_bytes(&mut mine, &mut all);
        match begun.and_then(|request| self.wait(request, "exchange", number, self.timeout)) {
            Ok(()) => Ok(all),
            Err(e) => {
                std::mem::forget((mine, all)); // MPI may still write to it
                Err(e)
            }
        }
    }
}

/// Memory of the host that MPI works on.
trait Memory {
    fn values(&mut self) -> &mut [f32];
}

impl Memory for Vec<f32> {
    fn values(&mut self) -> &mut [f32] {
        self
    }
}

impl Memory for Pinned {
    fn values(&mut self) -> &mut [f32] {
        Pinned::values(self)
    }
}
