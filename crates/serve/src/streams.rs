//! The streams that can be read again, stopped or changed by their names.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Problem, Result};
use crate::stream::Stream;

/// How long a stream is kept after its end.
const KEPT: Duration = Duration::from_secs(60);
/// Bytes of all streams that have ended; the oldest go first.
const MOST_BYTES: usize = 64 << 20;

/// Names that nobody can guess: a keyed hash, with keys of the system, of a number.
#[derive(Default)]
pub struct Names {
    keys: [RandomState; 2],
    count: AtomicU64,
}

impl Names {
    /// One that was not given before.
    pub fn next(&self, prefix: &str) -> String {
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        let [a, b] = [0, 1].map(|i| self.keys[i].hash_one((i, n)));
        format!("{prefix}{a:016x}{b:016x}")
    }
}

/// All streams by name.
#[derive(Default)]
pub struct Streams(Mutex<HashMap<String, Arc<Stream>>>);

impl Streams {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Stream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keep one.
    pub fn put(&self, stream: &Arc<Stream>) {
        self.lock().insert(stream.id.clone(), stream.clone());
    }

    /// One by its name.
    pub fn get(&self, id: &str) -> Result<Arc<Stream>> {
        let none = || Problem::not_found("there is no such stream; one is kept for 60 s after its end");
        self.lock().get(id).cloned().ok_or_else(none)
    }

    /// Forget those that ended long ago, and more where they take too much memory.
    pub fn tidy(&self) {
        let mut all = self.lock();
        all.retain(|_, s| s.ended().is_none_or(|at| at.elapsed() < KEPT));
        let mut ended: Vec<_> = all.values().filter_map(|s| Some((s.ended()?, s.bytes(), s.id.clone()))).collect();
        let mut bytes: usize = ended.iter().map(|e| e.1 + 1024).sum();
        if bytes > MOST_BYTES {
            ended.sort();
            for (_, size, id) in ended {
                if bytes <= MOST_BYTES {
                    break;
                }
                bytes -= size + 1024;
                all.remove(&id);
            }
        }
    }
}
