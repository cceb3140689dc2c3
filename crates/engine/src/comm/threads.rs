//! Ranks as threads of one process: everything goes through one table under a lock, and sums are taken in the order of the ranks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Collective, Comm, Finish, Pending, Transport, Usage, chunk, put, values_of};
use crate::error::{Error, Result, ensure};
use crate::tensor::Tensor;

/// How long a rank waits for the others.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `n` ranks, each for a thread of its own. One that is dropped is gone: whoever waits for it gets an error that names it.
pub fn threads(n: usize) -> Vec<Comm> {
    let hub = Arc::new(Hub {
        table: Mutex::new(Table { open: BTreeMap::new(), gone: vec![false; n] }),
        changed: Condvar::new(),
    });
    let end = |rank| Comm::new(End { rank, size: n, hub: hub.clone(), own: Arc::default() });
    (0..n).map(end).collect()
}

/// Where ranks meet.
struct Hub {
    table: Mutex<Table>,
    changed: Condvar,
}

struct Table {
    /// Operations that not every rank has taken its result of, by number.
    open: BTreeMap<u64, Meeting>,
    gone: Vec<bool>,
}

/// One operation: what each rank brought, which every rank then reads.
struct Meeting {
    name: &'static str,
    brought: Vec<Option<Arc<Vec<u8>>>>,
    taken: usize,
}

/// One rank's end.
struct End {
    rank: usize,
    size: usize,
    hub: Arc<Hub>,
    own: Arc<Mutex<Own>>,
}

#[derive(Default)]
struct Own {
    /// Operations begun.
    begun: u64,
    usage: Usage,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Put what `rank` brings to operation `number`.
    fn bring(&self, number: u64, rank: usize, size: usize, name: &'static str, bytes: Vec<u8>) -> Result<()> {
        let mut table = lock(&self.table);
        let empty = || Meeting { name, brought: vec![None; size], taken: 0 };
        let meeting = table.open.entry(number).or_insert_with(empty);
        ensure!(meeting.name == name, "ranks", "rank {rank} does {name} where another does {}", meeting.name);
        meeting.brought[rank] = Some(Arc::new(bytes));
        self.changed.notify_all();
        Ok(())
    }

    /// What all ranks brought to operation `number`, once they have.
    fn take(&self, number: u64, rank: usize) -> Result<Vec<Arc<Vec<u8>>>> {
        let deadline = Instant::now() + TIMEOUT;
        let mut table = lock(&self.table);
        loop {
            let Table { open, gone } = &mut *table;
            let Some(meeting) = open.get_mut(&number) else {
                return Err(Error::op("ranks", format!("operation {number} is over")));
            };
            if let Some(all) = meeting.brought.iter().cloned().collect::<Option<Vec<_>>>() {
                meeting.taken += 1;
                if meeting.taken == all.len() {
                    open.remove(&number);
                }
                return Ok(all);
            }
            let name = meeting.name;
            let missing: Vec<usize> = (0..gone.len()).filter(|r| meeting.brought[*r].is_none()).collect();
            if let Some(r) = missing.iter().find(|r| gone[**r]) {
                return Err(Error::Comm {
                    op: name,
                    message: format!("rank {r} has ended; rank {rank} waited for it"),
                });
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!("no word from rank {missing:?} in {} s", TIMEOUT.as_secs());
                return Err(Error::Comm { op: name, message });
            }
            table = self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl End {
    fn bring(&self, name: &'static str, bytes: Vec<u8>) -> Result<u64> {
        let mut own = lock(&self.own);
        let number = own.begun;
        own.begun += 1;
        self.hub.bring(number, self.rank, self.size, name, bytes)?;
        Ok(number)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        lock(&self.hub.table).gone[self.rank] = true;
        self.hub.changed.notify_all();
    }
}

/// What `rank` gets of what all brought.
fn result(op: Collective, all: &[Vec<f32>], rank: usize) -> Vec<f32> {
    let (size, len) = (all.len(), all.first().map_or(0, Vec::len));
    let sum = |part: Range<usize>| {
        let mut total = all.first().map_or(Vec::new(), |first| first[part.clone()].to_vec());
        for one in all.iter().skip(1) {
            total.iter_mut().zip(&one[part.clone()]).for_each(|(t, x)| *t += x);
        }
        total
    };
    match op {
        Collective::AllReduce => sum(0..len),
        Collective::ReduceScatter => sum(chunk(&(0..len), rank, size)),
        Collective::AllGather => {
            all.iter().enumerate().flat_map(|(r, one)| one[chunk(&(0..len), r, size)].iter().copied()).collect()
        }
        Collective::Broadcast { root } => all[root].clone(),
    }
}

/// An operation that this rank brought its part to.
struct Brought {
    op: Collective,
    range: Range<usize>,
    number: u64,
    by: Waiting,
}

/// What is needed to wait, without keeping the rank from being gone.
struct Waiting {
    hub: Arc<Hub>,
    rank: usize,
    size: usize,
    own: Arc<Mutex<Own>>,
}

impl Finish for Brought {
    fn finish(self: Box<Self>, flat: &mut Tensor) -> Result<()> {
        let Waiting { hub, rank, size, own } = &self.by;
        let began = Instant::now();
        let all = hub.take(self.number, *rank)?;
        lock(own).usage.waited += began.elapsed();
        let began = Instant::now();
        let mut floats = Vec::with_capacity(all.len());
        for (r, bytes) in all.iter().enumerate() {
            let name = self.op.name();
            let (len, expected) = (bytes.len() / 4, self.range.len());
            ensure!(len == expected, name, "rank {r} brought {len} values, rank {rank} {expected}");
            floats.push(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect());
        }
        put(flat, &self.op.result(&self.range, *rank, *size), &result(self.op, &floats, *rank))?;
        lock(own).usage.busy += began.elapsed();
        Ok(())
    }
}

impl Transport for End {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn describe(&self) -> String {
        "threads of one process".into()
    }

    fn begin(&self, op: Collective, flat: &Tensor, range: Range<usize>) -> Result<Pending> {
        let bytes = values_of(flat, &range)?.iter().flat_map(|x| x.to_le_bytes()).collect();
        let number = self.bring(op.name(), bytes)?;
        lock(&self.own).usage.bytes += op.bytes(range.len(), self.size);
        let by = Waiting { hub: self.hub.clone(), rank: self.rank, size: self.size, own: self.own.clone() };
        Ok(Pending::new(Brought { op, range, number, by }))
    }

    fn barrier(&self) -> Result<()> {
        self.exchange(&[]).map(|_| ())
    }

    fn exchange(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let began = Instant::now();
        let number = self.bring("exchange", mine.to_vec())?;
        let all = self.hub.take(number, self.rank)?;
        let mut own = lock(&self.own);
        own.usage.waited += began.elapsed();
        own.usage.bytes += (mine.len() * self.size.saturating_sub(1)) as u64;
        Ok(all.iter().map(|bytes| bytes.to_vec()).collect())
    }

    fn usage(&self) -> Usage {
        lock(&self.own).usage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// `f` at each of `n` ranks; what they give, by rank.
    fn each<R: Send + 'static>(n: usize, f: impl Fn(Comm) -> R + Send + Clone + 'static) -> Vec<R> {
        let spawn = |c| {
            let f = f.clone();
            std::thread::spawn(move || f(c))
        };
        let running: Vec<_> = threads(n).into_iter().map(spawn).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect()
    }

    fn flat(values: Vec<f32>) -> Tensor {
        Tensor::from_f32(&Device::Cpu, &[values.len()], values).unwrap()
    }

    #[test]
    fn collectives_do_what_they_say() {
        let got = each(2, |c| {
            let run = |op| {
                let mut t = flat((0..6).map(|i| (10 * c.rank() + i) as f32).collect());
                c.begin(op, &t, 1..5).unwrap().finish(&mut t).unwrap();
                t.to_vec().unwrap()
            };
            [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast { root: 1 }]
                .map(run)
        });
        assert_eq!(got[0][0], [0.0, 12.0, 14.0, 16.0, 18.0, 5.0]);
        assert_eq!(got[1][0], [10.0, 12.0, 14.0, 16.0, 18.0, 15.0]);
        assert_eq!(got[0][1], [0.0, 12.0, 14.0, 3.0, 4.0, 5.0]);
        assert_eq!(got[1][1], [10.0, 11.0, 12.0, 16.0, 18.0, 15.0]);
        assert_eq!(got[0][2], [0.0, 1.0, 2.0, 13.0, 14.0, 5.0]);
        assert_eq!(got[1][2], [10.0, 1.0, 2.0, 13.0, 14.0, 15.0]);
        assert_eq!(got[0][3], [0.0, 11.0, 12.0, 13.0, 14.0, 5.0]);
    }

    #[test]
    fn several_are_under_way_and_messages_come_by_rank() {
        let got = each(3, |c| {
            let mut t = flat(vec![1.0; 4]);
            let (a, b) = (c.begin_all_reduce(&t, 0..2).unwrap(), c.begin_all_reduce(&t, 2..4).unwrap());
            let all = c.exchange(&vec![c.rank() as u8; c.rank()]).unwrap();
            b.finish(&mut t).unwrap();
            a.finish(&mut t).unwrap();
            (t.to_vec().unwrap(), all, c.usage().bytes)
        });
        for (t, all, bytes) in got {
            assert_eq!((t, all), (vec![3.0; 4], vec![vec![], vec![1], vec![2, 2]]));
            assert!(bytes > 0);
        }
    }

    #[test]
    fn a_rank_that_is_gone_is_named() {
        let got = each(3, |c| if c.rank() == 1 { String::new() } else { c.barrier().unwrap_err().to_string() });
        assert!(got[0].contains("rank 1 has ended") && got[2].contains("rank 1 has ended"), "{got:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let c = &threads(2)[0];
        let t = flat(vec![0.0; 5]);
        let no = |r: Result<Pending>| r.err().unwrap().to_string();
        assert!(no(c.begin_all_reduce(&t, 2..6)).contains("does not lie in"));
        assert!(no(c.begin_all_gather(&t, 0..5)).contains("not cut evenly by 2 ranks"));
        assert!(no(c.begin_broadcast(&t, 0..5, 2)).contains("rank 2, of 2"));
    }
}
