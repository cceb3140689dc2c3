//! Counts and times for `/metrics`, in the text format of Prometheus.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Ends that the pace is measured by.
const RECENT: usize = 256;

/// How often values fell below bounds.
pub struct Histogram<const N: usize> {
    bounds: [f64; N],
    counts: [AtomicU64; N],
    all: AtomicU64,
    /// Sum in millionths.
    sum: AtomicU64,
}

impl<const N: usize> Histogram<N> {
    fn new(bounds: [f64; N]) -> Histogram<N> {
        Histogram {
            bounds,
            counts: [(); N].map(|()| AtomicU64::new(0)),
            all: AtomicU64::new(0),
            sum: AtomicU64::new(0),
        }
    }

    /// Count a value.
    pub fn add(&self, value: f64) {
        if let Some(i) = self.bounds.iter().position(|b| value <= *b) {
            self.counts[i].fetch_add(1, Relaxed);
        }
        self.all.fetch_add(1, Relaxed);
        self.sum.fetch_add((value.max(0.0) * 1e6) as u64, Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&self.counts) {
            below += count.load(Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let (all, sum) = (self.all.load(Relaxed), self.sum.load(Relaxed) as f64 / 1e6);
        let _ = write!(out, "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {sum}\n{name}_count {all}\n");
    }
}

/// All counts of a server.
pub struct Stats {
    requests: Mutex<BTreeMap<(&'static str, String, u16), u64>>,
    /// Requests that wait for a place.
    pub waiting: AtomicUsize,
    /// Rows that are worked on.
    pub rows_now: AtomicUsize,
    /// Rows in each step.
    pub rows: Histogram<9>,
    /// Steps of batches.
    pub steps: AtomicU64,
    /// Seconds of a step.
    pub step_seconds: Histogram<10>,
    /// Time of beginning with new requests, their encoders included.
    pub admit_seconds: Histogram<10>,
    /// Seconds until the first step of a request.
    pub first: Histogram<10>,
    /// Requests that came to their end.
    pub done: AtomicU64,
    /// Requests that failed or were stopped.
    pub failed: AtomicU64,
    /// Reloads of models.
    pub reloads: AtomicU64,
    ends: Mutex<VecDeque<Instant>>,
}

const SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            requests: Mutex::default(),
            waiting: AtomicUsize::new(0),
            rows_now: AtomicUsize::new(0),
            rows: Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
            steps: AtomicU64::new(0),
            step_seconds: Histogram::new(SECONDS),
            admit_seconds: Histogram::new(SECONDS),
            first: Histogram::new(SECONDS),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            reloads: AtomicU64::new(0),
            ends: Mutex::default(),
        }
    }
}

impl Stats {
    /// Count an answer. `route` is one of the server's own, never a client's words.
    pub fn request(&self, method: &'static str, route: String, status: u16) {
        let mut all = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *all.entry((method, route, status)).or_default() += 1;
    }

    /// Note that a request came to its end.
    pub fn ended(&self, well: bool) {
        if well { &self.done } else { &self.failed }.fetch_add(1, Relaxed);
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if ends.len() == RECENT {
            ends.pop_front();
        }
        ends.push_back(Instant::now());
    }

    /// Seconds until a place will be free, by the pace of the last ends.
    pub fn retry_after(&self) -> u64 {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(first), n) = (ends.front(), ends.len()) else { return 1 };
        let pace = n as f64 / first.elapsed().as_secs_f64().max(0.01);
        ((self.waiting.load(Relaxed) as f64 / pace).ceil() as u64).clamp(1, 60)
    }

    /// All of them as Prometheus reads them.
    pub fn text(&self) -> String {
        let mut out = String::new();
        out.push_str(
            "# HELP tweedie_requests_total Answers by route and status.\n# TYPE tweedie_requests_total counter\n",
        );
        for ((method, route, status), n) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(
                out,
                "tweedie_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} {n}"
            );
        }
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        one("tweedie_queue", "gauge", "Jobs that wait for a place.", self.waiting.load(Relaxed) as u64);
        one("tweedie_rows", "gauge", "Rows that are worked on.", self.rows_now.load(Relaxed) as u64);
        one("tweedie_steps_total", "counter", "Steps of batches.", self.steps.load(Relaxed));
        one("tweedie_jobs_done_total", "counter", "Jobs that came to their end.", self.done.load(Relaxed));
        one("tweedie_jobs_failed_total", "counter", "Jobs that failed or were stopped.", self.failed.load(Relaxed));
        one("tweedie_reloads_total", "counter", "Models that were loaded again.", self.reloads.load(Relaxed));
        one("tweedie_resident_bytes", "gauge", "Resident memory.", resident().unwrap_or(0));
        self.rows.write(&mut out, "tweedie_batch_rows", "Rows in each step.");
        self.step_seconds.write(&mut out, "tweedie_step_seconds", "Time of a step.");
        self.admit_seconds.write(&mut out, "tweedie_admit_seconds", "Time of beginning with new requests.");
        self.first.write(&mut out, "tweedie_first_step_seconds", "Time from a request to its first step.");
        out
    }
}

/// Resident memory of this process, where the system tells.
pub fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_below_them() {
        let h = Histogram::new([1.0, 2.0, 4.0]);
        [0.5, 1.0, 3.0, 9.0].iter().for_each(|v| h.add(*v));
        let mut out = String::new();
        h.write(&mut out, "x", "X.");
        let want = "# HELP x X.\n# TYPE x histogram\nx_bucket{le=\"1\"} 2\nx_bucket{le=\"2\"} 2\nx_bucket{le=\"4\"} 3\n\
                    x_bucket{le=\"+Inf\"} 4\nx_sum 13.5\nx_count 4\n";
        assert_eq!(out, want);
    }

    #[test]
    fn who_comes_too_early_is_told_when_to_come_again() {
        let stats = Stats::default();
        assert_eq!(stats.retry_after(), 1);
        stats.ended(true);
        stats.waiting.store(1_000_000, Relaxed);
        assert_eq!(stats.retry_after(), 60);
    }
}
