//! `tweedie bench growth`: how time and memory grow with one quantity at a time. Every point is a process of its own (`bench
//! train` or `bench sample`), so that its peak memory is its own, and it can be stopped when it takes too long. Each is told and
//! kept as it comes: whoever or whatever stops the command, what it has measured is kept.

mod child;
mod gather;
mod quantity;
mod shown;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tweedie::config::{ModelConfig, PRESETS};
use tweedie::interrupt;
use tweedie_engine::cpu;

use super::form::{Form, Format};
use super::model::usual;
use crate::failure::{Failure, Result};
use crate::report::{self, Progress, note, terminal};
use crate::shared::numbers;
use child::Child;
use gather::Growing;
use quantity::{Quantity, exponent};

#[derive(clap::Args)]
pub struct Args {
    /// Network, as in `bench train`
    #[arg(long, default_value = "tiny", value_name = "NAME", value_parser = PRESETS)]
    preset: String,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// What grows: batch, image, vocab, tokens, steps (default: all that the preset knows)
    #[arg(long, value_delimiter = ',', value_name = "Q,…")]
    over: Vec<Quantity>,
    /// What is measured
    #[arg(long, value_delimiter = ',', default_values = ["train", "sample"], value_name = "W,…", value_parser = ["train", "sample"])]
    what: Vec<String>,
    /// Images or texts at a time where the batch does not grow
    #[arg(long, default_value_t = 4, value_name = "B", value_parser = numbers::whole(1..=1 << 20))]
    batch: usize,
    /// Sampling steps where they do not grow
    #[arg(long, default_value_t = 8, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    steps: usize,
    /// Most points of a series, from its smallest value
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = numbers::whole(1..=64))]
    points: usize,
    /// Timings of each point
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = numbers::whole(1..=1_000_000))]
    repeats: usize,
    /// Stop a series at a point that takes longer than this, its start and warm-up included
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    limit: f64,
    /// Also write tables and figures into this folder, as they come
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
struct Point {
    value: usize,
    /// Median, fastest and slowest, in milliseconds.
    ms: f64,
    fastest: f64,
    slowest: f64,
    /// Bytes, as `bench train` counts them.
    peak: f64,
}

/// One quantity that grew.
#[derive(Debug, Serialize)]
struct Curve {
    what: String,
    over: Quantity,
    points: Vec<Point>,
    /// Of the fastest time, which neighbours on the machine disturb least, and of memory; fitted over the upper half of the
    /// points.
    time_exponent: Option<f64>,
    memory_exponent: Option<f64>,
    /// What the arithmetic of the network allows.
    time_bound: f64,
    /// Why it ends before the range does.
    stopped: Option<String>,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    preset: String,
    device: String,
    threads: usize,
    batch: usize,
    steps: usize,
    repeats: usize,
    curves: Vec<Curve>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.points == 0 || args.batch == 0 || args.steps == 0 || args.repeats == 0 {
        return Err(Failure::input("--points, --batch, --steps and --repeats must be at least 1"));
    }
    let limit = Some(args.limit).filter(|s| *s > 0.0).and_then(|s| Duration::try_from_secs_f64(s).ok());
    let limit = limit.ok_or_else(|| Failure::input("--limit must be a number of seconds above 0"))?;
    let (task, ..) = usual(&args.preset);
    let encoder = ModelConfig::preset(&args.preset)?.encoder;
    let over = match args.over.is_empty() {
        true => Quantity::ALL.into_iter().filter(|q| q.applies(task)).collect(),
        false => args.over.clone(),
    };
    if let Some(q) = over.iter().find(|q| !q.applies(task)) {
        return Err(Failure::input(format!("the preset {} has no {}", args.preset, q.words())));
    }
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir)?; // before anything is measured for it
    }
    let mut all = Vec::new();
    for q in over {
        let values: Vec<usize> = q.values(encoder.image).into_iter().take(args.points).collect();
        for what in args.what.iter().filter(|w| *w == "sample" || q != Quantity::Steps) {
            all.push(Growing { what: what.clone(), over: q, values: values.clone() });
        }
    }
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION"),
        preset: args.preset.clone(),
        device: report::open_device_named(&args.device)?.device.to_string(),
        threads: cpu::threads(),
        batch: args.batch,
        steps: args.steps,
        repeats: args.repeats,
        curves: Vec::new(),
    };
    terminal::catch_interrupts("point")?;
    let progress = Progress::new();
    let finished = gather::all_and_show(
        &mut report,
        &all,
        |g, value| {
            progress.tick(&format!("{} {value}", g.name()));
            Child { args, what: &g.what, over: g.over, value }.measure(limit)
        },
        interrupt::requested,
        |report, kept| {
            if let Some(line) = gather::line(report, kept) {
                progress.line(&line);
            }
            args.out.as_ref().map_or(Ok(()), |dir| shown::keep(report, kept, dir))
        },
        |report| {
            progress.tick(""); // its line makes room
            show(args, report)
        },
    )?;
    if finished {
        return Ok(());
    }
    let whole = report.curves.iter().filter(|c| !c.is_interrupted()).count();
    let place = args.out.as_ref().map_or(String::new(), |dir| format!(" and in {}", dir.display()));
    note(&format!("interrupted; {whole} of {} series are complete, what was measured is above{place}", all.len()));
    Err(Failure::interrupted())
}

fn show(args: &Args, report: &Report) -> Result<()> {
    match args.form.format() {
        Format::Json => report::print_json(report),
        Format::Csv => report::print(&shown::csv(report)),
        Format::Markdown => report::print(&shown::markdown(report)),
    }
}

impl Curve {
    fn new(what: &str, over: Quantity) -> Curve {
        Curve {
            what: what.into(),
            over,
            points: Vec::new(),
            time_exponent: None,
            memory_exponent: None,
            time_bound: over.bound(),
            stopped: None,
        }
    }

    /// Ended by the user.
    fn is_interrupted(&self) -> bool {
        self.stopped.as_deref() == Some(gather::INTERRUPTED)
    }

    fn fit(&mut self) {
        let of =
            |y: fn(&Point) -> f64| exponent(&self.points.iter().map(|p| (p.value as f64, y(p))).collect::<Vec<_>>());
        (self.time_exponent, self.memory_exponent) = (of(|p| p.fastest), of(|p| p.peak));
    }
}
