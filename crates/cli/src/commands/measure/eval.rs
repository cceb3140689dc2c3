//! `tweedie eval`: how good a trained model is, over sampling steps and guidance.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::config::{SampleConfig, SamplerKind, Start};
use tweedie::data::Task;
use tweedie::evaluate;
use tweedie::metrics::Report;
use tweedie::train::open_classes;

use super::answers;
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
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub running_mean: Option<bool>,
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
    let mut base = loaded.config.sample.clone();
    base.votes = args.votes.unwrap_or(base.votes).max(1);
    base.running_mean = args.running_mean.unwrap_or(base.running_mean);
    base.seed = args.seed.unwrap_or(base.seed);
    base.schedule = args.schedule.clone().unwrap_or(base.schedule);
    base.start = args.start.unwrap_or(base.start);
    let tdd = loaded.trained.model.is_tdd();
    let or = |v: &[usize], d: usize| if v.is_empty() || !tdd { vec![d] } else { v.to_vec() };
    let samplers = match args.sampler.is_empty() || !tdd {
        true => vec![base.sampler],
        false => args.sampler.clone(),
    };
    let guidances = if args.guidance.is_empty() || !tdd { vec![base.guidance] } else { args.guidance.clone() };
    let settings = samplers.len() * guidances.len() * or(&args.steps, base.steps).len();
    let mut rows = Vec::new();
    for &sampler in &samplers {
        for &guidance in &guidances {
            for steps in or(&args.steps, base.steps) {
                if steps == 0 {
                    return Err(Failure::input("--steps must be at least 1"));
                }
                let sample = SampleConfig { sampler, guidance, steps, ..base.clone() };
                let what =
                    if settings > 1 { format!("setting {} of {settings}", rows.len() + 1) } else { "images".into() };
                let m = with_bar(&what, || {
                    evaluate::classes_quietly(&loaded.trained, source, &loaded.config, &sample, args.limit)
                })?;
                if rows.is_empty() {
                    m.skipped.errors.values().take(5).for_each(|e| warn(&format!("left out: {e}")));
                }
                let report = m.report();
                if report.unanswered > 0 {
                    warn(&format!(
                        "{} of {} images have logits that are not finite; they count as wrong",
                        report.unanswered, report.examples
                    ));
                }
                rows.push(Row {
                    sampler: name(sampler),
                    steps,
                    guidance,
                    running_mean: base.running_mean,
                    votes: base.votes,
                    temperature: None,
                    report,
                });
            }
        }
    }
    if let Some(m) = evaluate::direct_path(&loaded.trained, source, &loaded.config, args.limit)? {
        let report = m.report();
        rows.push(Row {
            sampler: "direct path".into(),
            steps: 0,
            guidance: 1.0,
            running_mean: false,
            votes: 1,
            temperature: None,
            report,
        });
    }
    rows.push(answers::posterior(args, &loaded, source, &base)?);
    if args.model.json {
        return report::print_json(&rows);
    }
    report::print(&text(&rows, tdd, args.per_class.then_some(loaded.trained.class_names.as_slice())))
}

fn name(sampler: SamplerKind) -> String {
    serde_json::to_value(sampler).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

fn text(rows: &[Row], tdd: bool, classes: Option<&[String]>) -> String {
    use Align::{Left, Right};
    let samplers = || rows.iter().filter(|r| r.temperature.is_none());
    // Columns that would say 1 all the way down are left out, so that the table fits a terminal.
    let (guided, voted) = (samplers().any(|r| r.guidance != 1.0), samplers().any(|r| r.votes > 1));
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
        let name = match tdd || r.temperature.is_some() {
            true => r.sampler.clone() + if r.running_mean { ", running mean" } else { "" },
            false => "MDD (one pass)".into(),
        };
        table.row(std::iter::once(name).chain(heads.iter().map(cell)).collect());
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
