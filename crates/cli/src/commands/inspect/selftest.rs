//! `tweedie selftest`: every op on a device, forward and backward, with the error of each value.

mod comm;
mod cpu;
mod findings;
mod gpu;
mod live;
mod sampling;

use std::time::Instant;

use serde::Serialize;
use tweedie_engine::Device;
use tweedie_engine::cases::{self, Size};

use crate::failure::{Failure, Result};
use crate::report::{self, Progress};
use crate::shared::ranks::CommArgs;
use findings::{Findings, Row};

#[derive(clap::Args)]
pub struct Args {
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Check this op alone
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    #[command(flatten)]
    comm: CommArgs,
    /// With --op comm: go on summing for so many seconds
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    device: String,
    pass: bool,
    cases: usize,
    rows: &'a [Row],
    failures: &'a [String],
}

/// Which checks were asked for.
struct Wanted(Option<String>);

impl Wanted {
    fn has(&self, op: &str) -> bool {
        self.0.as_ref().is_none_or(|w| w == op)
    }
}

fn check_name(args: &Args, device: &Device) -> Result<()> {
    let Some(op) = &args.op else { return Ok(()) };
    let extra: &[&str] = if *device == Device::Cpu {
        &[comm::COMM]
    } else {
        &[comm::COMM, gpu::NOISE, gpu::OPTIMIZER, gpu::GRAPH, gpu::UPLOADS, sampling::SAMPLING, live::LIVE]
    };
    let mut names: Vec<&str> = cases::all(Size::Tiny).iter().map(|c| c.op).chain(extra.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    if names.contains(&op.as_str()) {
        return Ok(());
    }
    Err(Failure::input(format!("there is no op '{op}' to check on {device}"))
        .cause(format!("the ops are {}", names.join(", ")))
        .hint("tweedie selftest"))
}

pub fn run(args: &Args) -> Result<()> {
    if args.op.as_deref() == Some(comm::COMM) {
        return comm::run(args);
    }
    let device = report::open_device_named(&args.device)?.device;
    check_name(args, &device)?;
    let wanted = Wanted(args.op.clone());
    let start = Instant::now();
    let mut findings = Findings::default();
    {
        let progress = Progress::new();
        match &device {
            Device::Cpu => cpu::check(&wanted, &progress, &mut findings)?,
            Device::Cuda(c) => {
                gpu::check(c, &wanted, &progress, &mut findings)?;
                if wanted.has(sampling::SAMPLING) {
                    sampling::check(&device, &progress, &mut findings)?;
                }
                if wanted.has(live::LIVE) {
                    live::check(&device, &progress, &mut findings)?;
                }
            }
        }
    }
    let pass = findings.failures().is_empty();
    if args.json {
        let (rows, failures) = (findings.rows(), findings.failures());
        report::print_json(&Report { device: device.to_string(), pass, cases: findings.cases(), rows, failures })?;
    } else {
        let legend = if device == Device::Cpu { cpu::legend() } else { gpu::legend() };
        let ops = findings.ops();
        let noun = if ops == 1 { "op" } else { "ops" };
        let scope =
            format!("{} cases of {ops} {noun} on {device}, {:.1} s", findings.cases(), start.elapsed().as_secs_f64());
        let verdict = match findings.failures() {
            [] => format!("PASS: {scope}\n"),
            f => format!("{}\nFAIL: {} checks failed; {scope}\n", f.join("\n"), f.len()),
        };
        report::print(&format!("{}\n{legend}\n{verdict}", findings.table().shown()))?;
    }
    match findings.failures().len() {
        0 => Ok(()),
        n => Err(Failure::ours(format!("{n} checks failed on {device}"))
            .cause("results from this device cannot be trusted")
            .hint("tweedie devices --json (to be sent with a report)")),
    }
}
