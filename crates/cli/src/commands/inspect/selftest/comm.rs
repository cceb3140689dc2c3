//! The collectives of several ranks against closed forms: started by mpirun, `tweedie train --gpus` or the like, each rank runs this.

use std::ops::Range;
use std::time::{Duration, Instant};

use serde::Serialize;
use tweedie_engine::comm::{Collective, Comm};
use tweedie_engine::{Device, Tensor};

use super::Args;
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note};
use crate::shared::ranks;

/// The name of these checks.
pub const COMM: &str = "comm";

/// Values before and after the range, which nobody may touch, and what they are.
const MARGINS: (usize, usize) = (3, 5);
const UNTOUCHED: f32 = -1.0;
/// Values of each chunk: one, few, an odd number, and enough to see a bandwidth.
const LENGTHS: [usize; 4] = [1, 7, 10_007, 1_000_003];
const TIMES: u32 = 3;

#[derive(Serialize)]
struct Row {
    op: &'static str,
    values: usize,
    /// Values that are not what they should be, over all ranks.
    wrong: usize,
    /// Sent by a rank per second.
    gigabytes_per_second: f64,
}

#[derive(Serialize)]
struct Report {
    ranks: usize,
    device: String,
    by: String,
    pass: bool,
    rows: Vec<Row>,
}

/// Value i of rank r before anything is done: small whole numbers, whose sums over some hundred ranks are exact in f32.
fn value(rank: usize, i: usize) -> f32 {
    ((i % 97 + 1) * (rank + 1)) as f32
}

/// Value i of `len` at rank `rank` afterwards; nothing where it is left open.
fn expected(op: Collective, rank: usize, size: usize, len: usize, i: usize) -> Option<f32> {
    let owner = i / (len / size).max(1);
    let sum = value(0, i) * (size * (size + 1) / 2) as f32;
    match op {
        Collective::AllReduce => Some(sum),
        Collective::ReduceScatter => (owner == rank).then_some(sum),
        Collective::AllGather => Some(value(owner, i)),
        Collective::Broadcast { root } => Some(value(root, i)),
    }
}

/// A tensor with `len` values of this rank between margins.
fn filled(comm: &Comm, device: &Device, len: usize) -> Result<(Tensor, Range<usize>)> {
    let (before, after) = MARGINS;
    let edge = |n: usize| std::iter::repeat_n(UNTOUCHED, n);
    let values: Vec<f32> = edge(before).chain((0..len).map(|i| value(comm.rank(), i))).chain(edge(after)).collect();
    Ok((Tensor::from_f32(device, &[values.len()], values)?, before..before + len))
}

/// How many values of a result are wrong.
fn wrong(comm: &Comm, op: Collective, flat: &Tensor, range: &Range<usize>) -> Result<usize> {
    let all = flat.to_vec()?;
    let (rank, size, len) = (comm.rank(), comm.size(), range.len());
    let is_wrong = |(at, v): (usize, &f32)| match at.checked_sub(range.start).filter(|i| *i < len) {
        Some(i) => expected(op, rank, size, len, i).is_some_and(|e| e != *v),
        None => *v != UNTOUCHED,
    };
    Ok(all.iter().enumerate().filter(|x| is_wrong(*x)).count())
}

/// One collective, several times: values that are wrong, and seconds of the fastest.
fn check(comm: &Comm, device: &Device, op: Collective, len: usize) -> Result<(usize, f64)> {
    let (mut failures, mut fastest) = (0, f64::INFINITY);
    for _ in 0..TIMES {
        let (mut flat, range) = filled(comm, device, len)?;
        device.synchronize()?;
        comm.barrier()?;
        let start = Instant::now();
        comm.begin(op, &flat, range.clone())?.finish(&mut flat)?;
        device.synchronize()?;
        fastest = start.elapsed().as_secs_f64().min(fastest);
        failures += wrong(comm, op, &flat, &range)?;
    }
    Ok((failures, fastest))
}

/// Several under way at once, on one buffer, finished in another order than begun.
fn check_several(comm: &Comm, device: &Device) -> Result<usize> {
    let len = 4 * 1013 * comm.size();
    let (mut flat, range) = filled(comm, device, len)?;
    let part = |i: usize| range.start + i * len / 4..range.start + (i + 1) * len / 4;
    let mut begun = Vec::new();
    for i in 0..4 {
        begun.push(comm.begin_all_reduce(&flat, part(i))?);
    }
    while let Some(pending) = begun.pop() {
        pending.finish(&mut flat)?;
    }
    wrong(comm, Collective::AllReduce, &flat, &range)
}

/// Messages of different lengths, none at rank 0.
fn check_exchange(comm: &Comm) -> Result<usize> {
    let message = |rank: usize| vec![rank as u8; 37 * rank];
    let all = comm.exchange(&message(comm.rank()))?;
    let right = all.iter().enumerate().filter(|(rank, m)| **m == message(*rank)).count();
    Ok(comm.size() - right)
}

/// What each rank says, to everyone.
fn told(comm: &Comm, mine: &str) -> Result<Vec<String>> {
    Ok(comm.exchange(mine.as_bytes())?.iter().map(|m| String::from_utf8_lossy(m).into_owned()).collect())
}

fn rows(comm: &Comm, device: &Device) -> Result<Vec<Row>> {
    let size = comm.size();
    let mut found =
        vec![("exchange", size, check_exchange(comm)?, 0.0), ("several", 0, check_several(comm, device)?, 0.0)];
    let root = size - 1;
    for op in [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Broadcast { root }]
    {
        for len in LENGTHS.map(|n| n * size) {
            let (wrong, seconds) = check(comm, device, op, len)?;
            found.push((op.name(), len, wrong, op.bytes(len, size) as f64 / seconds / 1e9));
        }
    }
    // A rank sees only its own mistakes.
    let mine: Vec<String> = found.iter().map(|f| f.2.to_string()).collect();
    let all = told(comm, &mine.join(" "))?;
    let count = |i: usize| all.iter().filter_map(|t| t.split(' ').nth(i)?.parse::<usize>().ok()).sum();
    let row = |(i, f): (usize, &(&'static str, usize, usize, f64))| Row {
        op: f.0,
        values: f.1,
        wrong: count(i),
        gigabytes_per_second: f.3,
    };
    Ok(found.iter().enumerate().map(row).collect())
}

/// Sum for so long, as a training would; rank 0 says when it is over.
fn go_on(comm: &Comm, device: &Device, seconds: f64) -> Result<()> {
    let time = Duration::try_from_secs_f64(seconds).map_err(|e| Failure::input(format!("--seconds {seconds}: {e}")))?;
    let start = Instant::now();
    if comm.rank() == 0 {
        report::print(&format!("summing for {seconds} s\n"))?;
    }
    let mut rounds = 0_u64;
    loop {
        let (mut flat, range) = filled(comm, device, 65_537)?;
        comm.begin_all_reduce(&flat, range.clone())?.finish(&mut flat)?;
        if wrong(comm, Collective::AllReduce, &flat, &range)? > 0 {
            return Err(Failure::ours(format!("rank {}: sum {rounds} is wrong", comm.rank())));
        }
        rounds += 1;
        let over = comm.exchange(&[u8::from(start.elapsed() >= time)])?;
        if over.first().is_some_and(|o| *o == [1]) {
            note(&format!("{rounds} sums"));
            return Ok(());
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let (choice, comm) = args.comm.meet_or_alone(&args.device)?;
    let device = choice.device;
    note(&ranks::in_words(&comm));
    let processes = told(&comm, &format!("process {} on {device}", std::process::id()))?;
    processes.iter().enumerate().for_each(|(rank, words)| note(&format!("rank {rank}: {words}")));
    let rows = rows(&comm, &device)?;
    let failures = rows.iter().filter(|r| r.wrong > 0).count();
    let report =
        Report { ranks: comm.size(), device: device.to_string(), by: comm.describe(), pass: failures == 0, rows };
    if comm.rank() == 0 {
        if args.json { report::print_json(&report)? } else { report::print(&text(&report))? }
    }
    if args.seconds > 0.0 {
        go_on(&comm, &device, args.seconds)?;
    }
    match failures {
        0 => Ok(()),
        n => Err(Failure::ours(format!("{n} collectives over {} gave wrong values", report.by))
            .hint("tweedie devices --json")),
    }
}

fn text(r: &Report) -> String {
    let mut table = Table::new(&[
        ("collective", Align::Left),
        ("values", Align::Right),
        ("wrong", Align::Right),
        ("GB/s", Align::Right),
    ]);
    for row in &r.rows {
        let rate =
            if row.gigabytes_per_second > 0.0 { format!("{:.3}", row.gigabytes_per_second) } else { "—".into() };
        table.row(vec![row.op.into(), row.values.to_string(), row.wrong.to_string(), rate]);
    }
    let verdict = if r.pass { "PASS" } else { "FAIL" };
    format!("{}\n{verdict}: ranks: {}, by {}, on {}\n", table.shown(), r.ranks, r.by, r.device)
}
