//! `tweedie bench ops`: single ops at the shapes that training uses, beside the ceilings of the device they run on.

mod calls;
mod ceilings;
mod ops_list;
mod timing;

use serde::Serialize;
use tweedie_engine::Device;

use crate::commands::inspect::devices;
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Progress, Table};
use crate::shared::numbers;
pub use calls::{Setup, TapeOp};
use ceilings::Ceilings;
use ops_list::BenchOp;
pub use timing::{Timer, median};

#[derive(clap::Args)]
pub struct Args {
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Timings of each op, of which the median is shown (default: 20, quick: 3)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1_000_000))]
    repeats: Option<usize>,
    /// A sixteenth of the rows and few repeats: to see that it runs, not how fast
    #[arg(long)]
    quick: bool,
    /// Time these ops alone, by the names of the table
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    only: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    device: String,
    name: String,
    repeats: usize,
    quick: bool,
    ceilings: Ceilings,
    ops: Vec<Row>,
}

/// One op, timed.
#[derive(Serialize)]
struct Row {
    op: &'static str,
    shape: String,
    dtype: String,
    /// What `forward` and `both` count per second.
    unit: &'static str,
    forward: Speed,
    /// Forward and backward; absent for what has no backward.
    both: Option<Speed>,
}

#[derive(Serialize)]
struct Speed {
    ms: f64,
    per_second: f64,
    /// Of the ceiling.
    share: f64,
}

fn row(entry: &BenchOp, setup: &Setup, timer: &Timer, ceilings: &Ceilings) -> tweedie_engine::Result<Row> {
    let mut calls = (entry.make)(setup)?;
    let (amount, unit, ceiling) = match entry.work.flops {
        Some(flops) => (flops, "FLOP", ceilings.product),
        None => (entry.work.bytes, "byte", ceilings.memory),
    };
    let speed = |seconds: f64, amount: f64| {
        let per_second = amount / seconds;
        Speed { ms: seconds * 1e3, per_second, share: per_second / ceiling }
    };
    let forward = speed(timer.seconds(|| calls.forward())?, amount[0]);
    let both = match calls.both() {
        Some(first) => {
            first?;
            let seconds = timer.seconds(|| calls.both().unwrap_or(Ok(())))?;
            Some(speed(seconds, amount[0] + amount[1]))
        }
        None => None,
    };
    Ok(Row { op: entry.op, shape: entry.shape.clone(), dtype: setup.dtype.to_string(), unit, forward, both })
}

/// 612.3 TFLOP/s, 85.0 GFLOP/s, 3,950 GB/s.
fn rate(per_second: f64, unit: &str) -> String {
    match unit {
        "FLOP" if per_second >= 1e12 => format!("{:.1} TFLOP/s", per_second / 1e12),
        "FLOP" => format!("{:.1} GFLOP/s", per_second / 1e9),
        _ => format!("{:.1} GB/s", per_second / 1e9),
    }
}

fn text(r: &Report) -> String {
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("op", Left),
        ("shape", Left),
        ("type", Left),
        ("fwd ms", Right),
        ("fwd+bwd ms", Right),
        ("fwd", Right),
        ("fwd+bwd", Right),
        ("fwd share", Right),
        ("fwd+bwd share", Right),
    ]);
    for o in &r.ops {
        let cells = |s: Option<&Speed>| match s {
            Some(s) => [format!("{:.3}", s.ms), rate(s.per_second, o.unit), format!("{:.0} %", s.share * 100.0)],
            None => ["–"; 3].map(String::from),
        };
        let ([f_ms, f_rate, f_share], [b_ms, b_rate, b_share]) = (cells(Some(&o.forward)), cells(o.both.as_ref()));
        table.row(vec![o.op.into(), o.shape.clone(), o.dtype.clone(), f_ms, b_ms, f_rate, b_rate, f_share, b_share]);
    }
    let quick = if r.quick { "; quick: small shapes, not for comparison" } else { "" };
    format!(
        "{} ({}), median of {}{quick}\nceilings: {}\n\n{}\n\
         Bytes: each input read once, each output written once. Share: of the ceiling above; more than 100 % of memory\n\
         bandwidth means that the data stayed in a cache.\n",
        r.device,
        r.name,
        r.repeats,
        r.ceilings.text(),
        table.shown()
    )
}

pub fn run(args: &Args) -> Result<()> {
    let choice = report::open_device_named(&args.device)?;
    let setup = Setup::new(choice.device.clone(), args.quick);
    let mut entries = ops_list::bench_ops(&setup);
    if !args.only.is_empty() {
        let mut names: Vec<&str> = entries.iter().map(|e| e.op).collect();
        names.dedup();
        if let Some(other) = args.only.iter().find(|o| !names.contains(&o.as_str())) {
            return Err(Failure::input(format!("there is no op '{other}' to time on {}", choice.device))
                .cause(format!("the ops are {}", names.join(", ")))
                .hint("tweedie bench ops --quick"));
        }
        entries.retain(|e| args.only.iter().any(|o| o == e.op));
    }
    let repeats = args.repeats.unwrap_or(if args.quick { 3 } else { 20 });
    let timer = Timer { device: choice.device.clone(), repeats };
    let progress = Progress::new();
    progress.say("ceilings", "");
    let ceilings = ceilings::measure(&setup, &timer)?;
    let mut ops = Vec::new();
    for e in &entries {
        progress.say(e.op, &e.shape);
        ops.push(row(e, &setup, &timer, &ceilings)?);
    }
    drop(progress);
    let name = match &choice.device {
        Device::Cpu => format!("{}, {}", devices::cpu_model(), report::threads(tweedie_engine::cpu::threads())),
        Device::Cuda(c) => c.info().name.clone(),
    };
    let report = Report { device: choice.device.to_string(), name, repeats, quick: args.quick, ceilings, ops };
    if args.json { report::print_json(&report) } else { report::print(&text(&report)) }
}
