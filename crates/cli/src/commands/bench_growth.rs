//! `tweedie bench growth`: how time and memory grow with one quantity at a time. Every point is a process of its own (`bench
//! train` or `bench sample`), so that its peak memory is its own, and it can be stopped when it takes too long.

mod child;
mod quantity;
mod shown;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tweedie::config::{ModelConfig, PRESETS};
use tweedie_engine::cpu;

use super::bench_model::usual;
use crate::failure::{Failure, Result};
use crate::report::{self, Progress};
use child::{Child, Outcome};
use quantity::{Quantity, exponent};

#[derive(clap::Args)]
pub struct Args {
    /// Network, as in `bench train`
    #[arg(long, default_value = "tiny", value_name = "NAME")]
    preset: String,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// What grows: batch, image, vocab, tokens, steps (default: all that the preset knows)
    #[arg(long, value_delimiter = ',', value_name = "Q,…")]
    over: Vec<Quantity>,
    /// train, sample or both
    #[arg(long, value_delimiter = ',', default_values = ["train", "sample"], value_name = "W,…")]
    what: Vec<String>,
    /// Images or texts at a time where the batch does not grow
    #[arg(long, default_value_t = 4, value_name = "B")]
    batch: usize,
    /// Sampling steps where they do not grow
    #[arg(long, default_value_t = 8, value_name = "S")]
    steps: usize,
    /// Most points of a series, from its smallest value
    #[arg(long, default_value_t = 16, value_name = "N")]
    points: usize,
    /// Timings of each point
    #[arg(long, default_value_t = 3, value_name = "N")]
    repeats: usize,
    /// Stop a series at a point that takes longer than this, its start and warm-up included
    #[arg(long, default_value_t = 20.0, value_name = "SECONDS")]
    limit: f64,
    /// Also write tables and figures into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// markdown, csv or json
    #[arg(long, default_value = "markdown", value_name = "F")]
    format: String,
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
    if !PRESETS.contains(&args.preset.as_str()) {
        let names = PRESETS.join(", ");
        return Err(Failure::input(format!("'{}' is not a preset; use one of {names}", args.preset)));
    }
    if let Some(other) = args.what.iter().find(|w| !["train", "sample"].contains(&w.as_str())) {
        return Err(Failure::input(format!("'{other}' cannot be measured; use train or sample")));
    }
    if !["markdown", "csv", "json"].contains(&args.format.as_str()) {
        return Err(Failure::input(format!("'{}' is not a format; use markdown, csv or json", args.format)));
    }
    if args.points == 0 || args.batch == 0 || args.steps == 0 || args.repeats == 0 || args.limit.is_nan() {
        return Err(Failure::input("--points, --batch, --steps and --repeats must be at least 1"));
    }
    let limit = Duration::try_from_secs_f64(args.limit)
        .map_err(|_| Failure::input("--limit must be a number of seconds above 0"))?;
    let (task, ..) = usual(&args.preset);
    let encoder = ModelConfig::preset(&args.preset)?.encoder;
    let over = match args.over.is_empty() {
        true => Quantity::ALL.into_iter().filter(|q| q.applies(task)).collect(),
        false => args.over.clone(),
    };
    if let Some(q) = over.iter().find(|q| !q.applies(task)) {
        return Err(Failure::input(format!("the preset {} has no {}", args.preset, q.words())));
    }
    let device = report::open_device(&args.device)?.device.to_string();
    let progress = Progress::new();
    let mut curves = Vec::new();
    for q in over {
        for what in args.what.iter().filter(|w| *w == "sample" || q != Quantity::Steps) {
            let values: Vec<usize> = q.values(encoder.image).into_iter().take(args.points).collect();
            let mut curve = Curve::new(what, q);
            for value in values {
                progress.say(&format!("{what} over {}", q.words()), &value.to_string());
                let child = Child { args, what, over: q, value };
                match child.measure(limit)? {
                    Outcome::Point(point) => curve.points.push(point),
                    Outcome::Stopped(why) => {
                        curve.stopped = Some(format!("at {value}: {why}"));
                        break;
                    }
                }
            }
            curve.fit();
            curves.push(curve);
        }
    }
    drop(progress);
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        preset: args.preset.clone(),
        device,
        threads: cpu::threads(),
        batch: args.batch,
        steps: args.steps,
        repeats: args.repeats,
        curves,
    };
    if let Some(dir) = &args.out {
        shown::write(&report, dir)?;
    }
    match args.format.as_str() {
        "json" => report::print_json(&report),
        "csv" => report::print(&shown::csv(&report)),
        _ => report::print(&shown::markdown(&report)),
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

    fn fit(&mut self) {
        let of =
            |y: fn(&Point) -> f64| exponent(&self.points.iter().map(|p| (p.value as f64, y(p))).collect::<Vec<_>>());
        (self.time_exponent, self.memory_exponent) = (of(|p| p.fastest), of(|p| p.peak));
    }
}
