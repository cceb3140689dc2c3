//! `tweedie eval`: how good a trained model is, over sampling steps and guidance.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::config::{SampleConfig, SamplerKind, Start};
use tweedie::data::Task;
use tweedie::evaluate;
use tweedie::metrics::Report;
use tweedie::run::Loaded;
use tweedie::train::open_classes;

use super::answers;
use super::curve::{self, Point};
use super::texts::{self, TextArgs};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note, warn, with_bar};
use crate::shared::model_args::ModelArgs;
use crate::shared::names::{SAMPLERS, SCHEDULES, STARTS, one_of};
use crate::shared::numbers;

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Split {
    /// The test split, else the validation split
    Final,
    /// What checkpoints were chosen on
    Val,
    /// What the model learned from
    Train,
}

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub model: ModelArgs,
    /// Other data than those of the run
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// Which images: final (the test split, else the validation split), val or train
    #[arg(long, value_enum, default_value_t = Split::Final, value_name = "SPLIT")]
    pub split: Split,
    /// Numbers of sampling steps
    #[arg(long, value_delimiter = ',', value_name = "S,…", value_parser = numbers::whole(1..=100_000))]
    pub steps: Vec<usize>,
    /// Guidance weights (1: none)
    #[arg(long, value_delimiter = ',', value_name = "W,…")]
    pub guidance: Vec<f32>,
    /// How a noisy vector becomes the next one
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = one_of::<SamplerKind>(SAMPLERS))]
    pub sampler: Vec<SamplerKind>,
    /// What the first step starts from
    #[arg(long, value_name = "START", value_parser = one_of::<Start>(STARTS))]
    pub start: Option<Start>,
    /// Follow the noise levels of another schedule
    #[arg(long, value_name = "NAME", value_parser = SCHEDULES)]
    pub schedule: Option<String>,
    /// Classes: steps go by the mean of the logits of all steps so far; false: by those of the last one
    #[arg(long, value_delimiter = ',', value_name = "BOOL,…", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub running_mean: Vec<bool>,
    /// Another run on the same images, such as the masked twin's, as further rows of the table
    #[arg(long, value_name = "RUN")]
    pub twin: Option<PathBuf>,
    /// Draw the score over the passes of the network that an answer takes, a line for each way of sampling
    #[arg(long, value_name = "FILE.svg|png")]
    pub figure: Option<PathBuf>,
    /// Majority over this many draws (reported as such)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    pub votes: Option<usize>,
    /// Seed of the sampling noise
    #[arg(long)]
    pub seed: Option<u64>,
    /// At most this many images
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub limit: usize,
    /// Accuracy of each class, by the posterior
    #[arg(long)]
    pub per_class: bool,
    /// Classes: fit the temperature of the probabilities on the validation split anew, and keep it in the run
    #[arg(long)]
    pub calibrate: bool,
    /// Classes: write a page with the images that were mistaken most surely
    #[arg(long, value_name = "FILE.html")]
    pub mistakes: Option<PathBuf>,
    /// Images on that page, at most
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = numbers::whole(1..=10_000))]
    pub worst: usize,
    #[command(flatten)]
    pub text: TextArgs,
}

/// One line of the table: a sampler, or the posterior.
#[derive(Serialize)]
pub struct Row {
    /// Whether it is of a masked twin, which has one pass and no settings.
    #[serde(skip)]
    pub masked: bool,
    pub sampler: String,
    pub steps: usize,
    pub guidance: f32,
    /// Whether steps went by the mean of the logits so far.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub running_mean: bool,
    pub votes: usize,
    /// Of the posterior.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(flatten)]
    pub report: Report,
}

pub fn run(args: &Args) -> Result<()> {
    let mut loaded = args.model.load_as(args.text.precision())?;
    if let Some(d) = &args.data {
        loaded.config.data.path = d.clone();
    }
    if loaded.config.data.path.is_empty() {
        let run = args.model.run.display();
        let failure = Failure::input(format!("{run} does not say where its data are"));
        return Err(failure.hint(format!("tweedie eval {run} --data PATH")));
    }
    if loaded.config.data.task != Task::Class {
        return texts::run(args, &loaded);
    }
    args.text.check_classes()?;
    answers::check(args)?;
    curve::check(args)?;
    let dataset = open_classes(&loaded.config)?;
    if dataset.class_names.len() > loaded.config.model.classes {
        return Err(Failure::input(format!(
            "the data have {} classes, the model {}",
            dataset.class_names.len(),
            loaded.config.model.classes
        )));
    }
    let (source, origin) = match args.split {
        Split::Final => dataset.final_split()?,
        Split::Val => (dataset.val()?, dataset.val_origin.as_str()),
        Split::Train => (dataset.train()?, "the training split"),
    };
    note(&format!("{}: step {}, {} images ({})", loaded.checkpoint.display(), loaded.step, source.len(), origin));
    match args.calibrate {
        true => answers::calibrate(&args.model, &mut loaded, dataset.val()?)?,
        false => args.model.say_if_uncalibrated(&loaded),
    }
    let twin = args.twin.as_ref().map(|run| twin(args, run, &loaded)).transpose()?;
    let own = settings(args, &loaded);
    let mut all: Vec<(&Loaded, SampleConfig)> = own.iter().map(|s| (&loaded, s.clone())).collect();
    if let Some(twin) = &twin {
        all.extend(settings(args, twin).into_iter().map(|s| (twin, s)));
    }
    let (mut rows, mut points) = (Vec::new(), Vec::new());
    for (i, (of, sample)) in all.iter().enumerate() {
        if sample.steps == 0 {
            return Err(Failure::input("--steps must be at least 1"));
        }
        let what = if all.len() > 1 { format!("setting {} of {}", i + 1, all.len()) } else { "images".into() };
        let m = with_bar(&what, || evaluate::classes_quietly(&of.trained, source, &of.config, sample, args.limit))?;
        if i == 0 {
            m.skipped.errors.values().take(5).for_each(|e| warn(&format!("left out: {e}")));
        }
        let report = m.report();
        if report.unanswered > 0 {
            warn(&format!(
                "{} of {} images have logits that are not finite; they count as wrong",
                report.unanswered, report.examples
            ));
        }
        let whose = match &args.twin {
            Some(run) if i >= own.len() => format!("{}: ", run.display()),
            _ => String::new(),
        };
        let row = Row {
            masked: !of.trained.model.is_tdd(),
            sampler: whose + &name(sample.sampler),
            steps: sample.steps,
            guidance: sample.guidance,
            running_mean: sample.running_mean,
            votes: sample.votes,
            temperature: None,
            report,
        };
        let passes = sample.steps * texts::passes_of_step(&of.trained.model, sample) * sample.votes;
        points.push(point(&row, Some(passes).filter(|_| !row.masked)));
        rows.push(row);
    }
    if let Some(m) = evaluate::direct_path(&loaded.trained, source, &loaded.config, args.limit)? {
        let report = m.report();
        let row = Row {
            masked: false,
            sampler: "direct path".into(),
            steps: 0,
            guidance: 1.0,
            running_mean: false,
            votes: 1,
            temperature: None,
            report,
        };
        points.push(point(&row, None));
        rows.push(row);
    }
    if let Some(file) = &args.figure {
        curve::draw(("Classes over passes of the network", "network passes per image", "top-1 %"), points, file)?;
    }
    rows.push(answers::posterior(args, &loaded, source, &base(args, &loaded))?);
    if args.model.json {
        return report::print_json(&rows);
    }
    report::print(&text(&rows, args.per_class.then_some(loaded.trained.class_names.as_slice())))
}

/// The run's way to sample, with what `args` say once for all rows.
fn base(args: &Args, loaded: &Loaded) -> SampleConfig {
    let mut base = loaded.config.sample.clone();
    base.votes = args.votes.unwrap_or(base.votes).max(1);
    base.running_mean = args.running_mean.first().copied().unwrap_or(base.running_mean);
    base.seed = args.seed.unwrap_or(base.seed);
    base.schedule = args.schedule.clone().unwrap_or(base.schedule);
    base.start = args.start.unwrap_or(base.start);
    base
}

/// All ways to sample that `args` name; the masked twin has one.
fn settings(args: &Args, loaded: &Loaded) -> Vec<SampleConfig> {
    let base = base(args, loaded);
    if !loaded.trained.model.is_tdd() {
        return vec![SampleConfig { running_mean: false, ..base }];
    }
    fn or<T: Copy>(given: &[T], own: T) -> Vec<T> {
        if given.is_empty() { vec![own] } else { given.to_vec() }
    }
    let mut all = Vec::new();
    for running_mean in or(&args.running_mean, base.running_mean) {
        for sampler in or(&args.sampler, base.sampler) {
            for guidance in or(&args.guidance, base.guidance) {
                for steps in or(&args.steps, base.steps) {
                    all.push(SampleConfig { running_mean, sampler, guidance, steps, ..base.clone() });
                }
            }
        }
    }
    all
}

/// Another run, which knows the same classes.
fn twin(args: &Args, run: &Path, of: &Loaded) -> Result<Loaded> {
    let twin = args.model.load_run(run)?;
    if twin.config.data.task != Task::Class || twin.trained.class_names != of.trained.class_names {
        return Err(Failure::input(format!("--twin {}: it knows other classes", run.display())));
    }
    Ok(twin)
}

/// As a figure has it.
fn point(row: &Row, passes: Option<usize>) -> Point {
    let mut way = row.name();
    if !row.masked && row.guidance != 1.0 {
        way += &format!(", guidance {}", row.guidance);
    }
    if !row.masked && row.votes > 1 {
        way += &format!(", majority of {}", row.votes);
    }
    let interval = wilson(row.report.top1, row.report.examples).map(|x| 100.0 * x);
    Point { way, passes, score: 100.0 * row.report.top1, interval }
}

/// Wilson's 95 % interval of a share `p` of `n`.
fn wilson(p: f64, n: usize) -> [f64; 2] {
    let (n, z) = (n.max(1) as f64, 1.96_f64);
    let middle = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    [middle - half, middle + half]
}

impl Row {
    fn name(&self) -> String {
        match self.masked {
            true => "MDD (one pass)".into(),
            false => self.sampler.clone() + if self.running_mean { ", running mean" } else { "" },
        }
    }
}

fn name(sampler: SamplerKind) -> String {
    serde_json::to_value(sampler).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

fn text(rows: &[Row], classes: Option<&[String]>) -> String {
    use Align::{Left, Right};
    // Columns that would say 1 all the way down are left out, so that the table fits a terminal.
    let samplers = || rows.iter().filter(|r| r.temperature.is_none() && !r.masked);
    let (tdd, guided) = (samplers().next().is_some(), samplers().any(|r| r.guidance != 1.0));
    let voted = samplers().any(|r| r.votes > 1);
    let kept = |name: &str| match name {
        "steps" => tdd,
        "guidance" => tdd && guided,
        "votes" => tdd && voted,
        _ => true,
    };
    let heads = ["steps", "guidance", "votes", "top-1 %", "top-5 %", "nll", "ECE", "AUROC", "images"];
    let heads: Vec<_> = heads.into_iter().filter(|h| kept(h)).collect();
    let mut table =
        Table::new(&[("sampler", Left)].into_iter().chain(heads.iter().map(|h| (*h, Right))).collect::<Vec<_>>());
    for r in rows {
        let cell = |head: &&str| match *head {
            "steps" | "guidance" | "votes" if r.masked => "–".into(),
            "steps" => r.steps.to_string(),
            "guidance" => r.guidance.to_string(),
            "votes" => r.votes.to_string(),
            "top-1 %" => format!("{:.2}", 100.0 * r.report.top1),
            "top-5 %" => format!("{:.2}", 100.0 * r.report.top5),
            "nll" => format!("{:.3}", r.report.nll),
            "ECE" => format!("{:.3}", r.report.ece),
            "AUROC" => r.report.auroc.map_or("–".into(), |a| format!("{a:.3}")),
            _ => r.report.examples.to_string(),
        };
        table.row(std::iter::once(r.name()).chain(heads.iter().map(cell)).collect());
    }
    let mut out = table.shown();
    if let Some(t) = rows.last().and_then(|r| r.temperature) {
        out += &format!(
            "\nposterior: what classify prints, at temperature {t:.2}\nAUROC: how often a right answer is surer than a wrong \
             one\n"
        );
    }
    if let (Some(names), Some(r)) = (classes, rows.last()) {
        let mut t = Table::new(&[("class", Left), ("top-1 %", Right)]);
        for (name, acc) in names.iter().zip(&r.report.per_class) {
            t.row(vec![name.clone(), acc.map_or("–".into(), |a| format!("{:.2}", 100.0 * a))]);
        }
        out += &format!("\n{}", t.shown());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::wilson;

    /// As in statistics books: 50 of 100, and 10 of 10, whose interval ends at 1.
    #[test]
    fn intervals_of_shares() {
        for (p, n, want) in [(0.5, 100, [0.4038, 0.5962]), (1.0, 10, [0.7225, 1.0])] {
            for (got, want) in wilson(p, n).into_iter().zip(want) {
                assert!((got - want).abs() < 1e-4, "{p} of {n}: {got}, not {want}");
            }
        }
    }
}
