//! Four times as many requests as a server can answer: what it does with the excess, and what remains of it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::{End, Target};
use super::{Measured, load, summary};
use crate::failure::{Failure, Result};
use crate::report::{self, note};

/// Requests under way at a time, above what a queue of the usual length holds.
const WORKERS: usize = 448;
/// How much memory may grow after the first fifth of the time.
const GROWTH: f64 = 64e6;
/// How long capacity is measured.
const PROBE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Report {
    capacity_per_second: f64,
    offered_per_second: f64,
    alone_before: Measured,
    during: Measured,
    alone_after: Measured,
    resident_mb_early: f64,
    resident_mb_most: f64,
    faults: Vec<String>,
}

/// Load the server for `time` and check what came of it.
pub fn run(target: &Target, clients: usize, time: Duration, json: bool) -> Result<()> {
    note("one client alone, then capacity");
    let alone_before = load(target, 1, PROBE, None);
    let capacity = load(target, clients, PROBE, None).per_second;
    if capacity.is_nan() || capacity <= 0.0 {
        return Err(Failure::input("the server answers nothing; its capacity cannot be measured"));
    }
    let rate = 4.0 * capacity;
    note(&format!(
        "{rate:.0} requests a second, of which {capacity:.0} can be answered, for {:.0} s",
        time.as_secs_f64()
    ));
    let (ends, memory) = offered(target, rate, time);
    let during = summary(&ends, WORKERS, time, None);
    std::thread::sleep(Duration::from_secs(1));
    let alone_after = load(target, 1, PROBE, None);
    let early = memory.iter().take(memory.len().div_ceil(5)).copied().fold(0.0, f64::max);
    let most = memory.iter().copied().fold(0.0, f64::max);
    let mut faults = Vec::new();
    if most > early + GROWTH {
        faults.push(format!("memory grew from {:.0} to {:.0} MB", early / 1e6, most / 1e6));
    }
    if during.refused == 0 {
        faults.push("nothing was refused with 429".into());
    }
    if let Some(End::Failed(why)) = ends.iter().find(|e| matches!(e, End::Failed(_))) {
        faults.push(format!("{} requests were lost, the first: {}", during.failed, why.trim()));
    }
    let (before, after) = (alone_before.total_ms.p50, alone_after.total_ms.p50);
    if after > 1.5 * before + 5.0 {
        faults.push(format!("one client alone waits {after:.1} ms after it, {before:.1} ms before"));
    }
    let report = Report {
        capacity_per_second: capacity,
        offered_per_second: rate,
        alone_before,
        during,
        alone_after,
        resident_mb_early: early / 1e6,
        resident_mb_most: most / 1e6,
        faults,
    };
    told(&report, json)
}

fn told(r: &Report, json: bool) -> Result<()> {
    match json {
        true => report::print_json(r)?,
        false => report::print(&format!(
            "capacity {:.1}/s, offered {:.1}/s: {} answered ({:.1}/s), {} refused with 429, {} lost\n\
             answered within p50 {:.0} ms, p95 {:.0} ms, p99 {:.0} ms\n\
             one client alone: {:.1} ms before, {:.1} ms after (p50)\n\
             memory: {:.0} MB early, {:.0} MB at most\n",
            r.capacity_per_second,
            r.offered_per_second,
            r.during.answers,
            r.during.per_second,
            r.during.refused,
            r.during.failed,
            r.during.total_ms.p50,
            r.during.total_ms.p95,
            r.during.total_ms.p99,
            r.alone_before.total_ms.p50,
            r.alone_after.total_ms.p50,
            r.resident_mb_early,
            r.resident_mb_most,
        ))?,
    }
    match r.faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::input(format!("the server did not stand it: {}", r.faults.join("; ")))),
    }
}

/// Requests at a steady rate, whatever becomes of them; and the server's memory, second by second.
fn offered(target: &Target, rate: f64, time: Duration) -> (Vec<End>, Vec<f64>) {
    let (begun, next, over) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
    let (ends, memory) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let keep = |end: End| ends.lock().map(|mut all| all.push(end)).unwrap_or(());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                if let (Some(bytes), Ok(mut all)) = (target.metric("tweedie_resident_bytes"), memory.lock()) {
                    all.push(bytes);
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let worker = || loop {
            let i = next.fetch_add(1, Relaxed);
            let due = Duration::from_secs_f64(i as f64 / rate);
            if due > time {
                return;
            }
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
            keep(target.ask(i));
        };
        let all: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        all.into_iter().for_each(|w| drop(w.join()));
        over.store(true, Relaxed);
    });
    (ends.into_inner().unwrap_or_default(), memory.into_inner().unwrap_or_default())
}
