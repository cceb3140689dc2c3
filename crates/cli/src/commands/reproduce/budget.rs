//! `--budget`: as many epochs as fit a time. A few steps of each task are timed, and all runs are shortened by one share.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tweedie::files;
use tweedie::train::{Trainer, TrainingSet};
use tweedie_engine::Device;

use super::plan::{Plan, Planned};
use super::runs::work;
use crate::failure::{Failure, Result};
use crate::report::{self, Progress, note};

/// Share of the time that training steps may take. Timed one by one they seem longer than they are in a run, so that evaluations
/// and measuring find room too.
const TRAINING: f64 = 0.85;
/// Steps before the clock starts (kernels are compiled, caches filled), and steps that are timed.
const WARM: usize = 3;
const TIMED: usize = 10;
/// The first steps of a slow machine may be all that is timed.
const LONGEST: Duration = Duration::from_secs(20);

/// The share of each recipe's epochs that fits. It is noted in `out`, so that the same command goes on with the same runs.
pub fn share(plan: &Plan, budget: Duration, out: &Path, device: &Device) -> Result<f64> {
    let file = out.join("budget.json");
    let noted = tweedie::files::read(&file, &tweedie::limits::SMALL_BYTES)
        .ok()
        .and_then(|b| serde_json::from_slice::<Value>(&b).ok());
    let same = noted.filter(|v| v["seconds"].as_f64() == Some(budget.as_secs_f64()) && v["runs"] == json!(keys(plan)));
    if let Some(share) = same.and_then(|v| v["share"].as_f64()) {
        return Ok(share);
    }
    let progress = Progress::new();
    progress.tick("timing a few steps");
    let mut seconds = 0.0;
    for task in plan.tasks() {
        let runs: Vec<&Planned> =
            plan.runs.iter().filter(|r| r.existing.is_none() && r.variant.task() == task).collect();
        // One stands for all: the others take their share of its work.
        let Some(first) = runs.first() else { continue };
        let pace = time_of_step(first, device)? * first.steps as f64 / work(first);
        seconds += runs.iter().map(|r| pace * work(r)).sum::<f64>();
    }
    drop(progress);
    let share = if seconds > 0.0 { (TRAINING * budget.as_secs_f64() / seconds).min(1.0) } else { 1.0 };
    note(&format!(
        "all epochs would take about {} of training; {} allow {:.2} % of them",
        report::duration(seconds),
        report::duration(budget.as_secs_f64()),
        100.0 * share
    ));
    let about = json!({"seconds": budget.as_secs_f64(), "share": share, "runs": keys(plan)});
    std::fs::create_dir_all(out)?;
    files::write_atomic(&file, &serde_json::to_vec_pretty(&about)?)?;
    Ok(share)
}

fn keys(plan: &Plan) -> Vec<&str> {
    plan.runs.iter().map(|r| r.key.as_str()).collect()
}

/// Seconds of a training step.
fn time_of_step(r: &Planned, device: &Device) -> Result<f64> {
    let mut trainer = Trainer::new(&r.config, TrainingSet::open(&r.config, None)?, device)?;
    let mut loader = trainer.loader()?;
    let (begin, mut since, mut timed) = (Instant::now(), Instant::now(), 0);
    for i in 0..WARM + TIMED {
        let batch = loader.next().ok_or_else(|| Failure::ours("the loader of a training run ended"))??;
        // Reading the loss waits for the device.
        trainer.train_step(&batch)?.item()?;
        loader.recycle(batch);
        if i < WARM && begin.elapsed() < LONGEST {
            since = Instant::now();
            continue;
        }
        timed += 1;
        if begin.elapsed() > LONGEST {
            break;
        }
    }
    Ok(since.elapsed().as_secs_f64() / timed.max(1) as f64)
}
