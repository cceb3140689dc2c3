//! Runs on disk: train what is missing, go on with what was interrupted, leave what is finished.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use tweedie::config::{Config, Method};
use tweedie::data::Task;
use tweedie::run_dir::RunDir;
use tweedie::train::{StepEvent, TrainingSet};
use tweedie::{Session, checkpoint, files, interrupt};
use tweedie_engine::Device;

use super::plan::{Plan, Planned};
use crate::commands::train::{View, attended, watch};
use crate::failure::{Failure, Result};
use crate::report::{self, note, terminal};

/// What this command notes in a run's folder beside what `tweedie train` writes.
const NOTE: &str = "reproduce.json";

/// A run that has been trained to its end.
pub struct Finished {
    /// Its folder.
    pub path: PathBuf,
    /// Its last checkpoint: none is chosen by accuracy.
    pub checkpoint: PathBuf,
    /// Seconds of training, all starts together.
    pub seconds: f64,
    /// It was there before.
    pub reused: bool,
    /// Steps behind its checkpoint.
    pub steps: u64,
}

/// Train what is missing.
pub fn complete(plan: &Plan, folder: &Path, device: &Device) -> Result<Vec<Finished>> {
    let count = plan.runs.len();
    let found = plan.runs.iter().map(|r| finished(r, folder)).collect::<Result<Vec<_>>>()?;
    let missing = found.iter().filter(|f| f.is_none()).count();
    let existing = plan.runs.iter().filter(|r| r.existing.is_some()).count();
    let told = if existing > 0 { format!("{existing} existing, ") } else { String::new() };
    note(&format!("plan: {count} runs, {told}{} finished before, {missing} to train", count - missing - existing));
    let mut pace = Pace::default();
    let mut done = Vec::new();
    let mut after: f64 = plan.runs.iter().zip(&found).filter(|x| x.1.is_none()).map(|x| work(x.0)).sum();
    for (i, (r, there)) in plan.runs.iter().zip(found).enumerate() {
        if let Some(there) = there {
            done.push(there);
            continue;
        }
        let path = folder.join(&r.key);
        after -= work(r);
        let title = format!("run {} of {count}: {}, seed {}", i + 1, r.variant.name(), r.seed);
        let started = Instant::now();
        let steps = train_one(r, &path, device, &title, &pace, after)?;
        stop_if_asked(&format!("in run {} of {count}", i + 1))?;
        pace.add(work(r) * steps as f64 / r.steps.max(1) as f64, started.elapsed().as_secs_f64());
        let trained = finished(r, folder)?
            .ok_or_else(|| Failure::ours(format!("{} was trained but is not finished", path.display())))?;
        done.push(Finished { reused: false, ..trained });
    }
    Ok(done)
}

/// The run that stands for a planned one, if it has come to its end or was there already.
fn finished(r: &Planned, folder: &Path) -> Result<Option<Finished>> {
    if let Some(g) = &r.existing {
        let (path, checkpoint) = (g.path.clone(), g.checkpoint.clone());
        return Ok(Some(Finished { seconds: seconds(&path), path, checkpoint, reused: true, steps: g.step }));
    }
    let path = folder.join(&r.key);
    let Ok(dir) = RunDir::open(&path) else { return Ok(None) };
    let Some(checkpoint) = checkpoint::latest(&dir.checkpoints())?.path else { return Ok(None) };
    let steps = checkpoint::load_state(&checkpoint)?.step;
    let ended = steps >= r.steps as u64;
    Ok(ended.then(|| Finished { seconds: seconds(&path), path, checkpoint, reused: true, steps }))
}

fn seconds(path: &Path) -> f64 {
    let noted = tweedie::files::read(&path.join(NOTE), &tweedie::limits::SMALL_BYTES)
        .ok()
        .and_then(|b| serde_json::from_slice::<Value>(&b).ok());
    noted.and_then(|v| v["seconds"].as_f64()).unwrap_or(0.0)
}

/// Train to the end or to Ctrl-C; gives the number of steps that it did.
fn train_one(r: &Planned, path: &Path, device: &Device, title: &str, pace: &Pace, after: f64) -> Result<usize> {
    let open = |tokenizer: &Path| TrainingSet::open(&r.config, Some(tokenizer));
    let mut session = attended(Session::create_or_resume(path, &r.config, open, device)?);
    session.notes().iter().for_each(|n| note(n));
    let (first, before) = (session.trainer().step(), seconds(path));
    let started = Instant::now();
    let left = match pace.seconds(work(r) * (r.steps - first.min(r.steps)) as f64 / r.steps.max(1) as f64 + after) {
        Some(s) => format!(", about {} left", report::duration(s)),
        None => String::new(),
    };
    let from = if first > 0 { format!(", from step {first}") } else { String::new() };
    note(&format!("{title}{from}{left}"));
    let (pace, of_step) = (*pace, work(r) / r.steps.max(1) as f64);
    let view = View::of_several(&session, move |s: &StepEvent| {
        // The pace of this run stands in where none is known.
        let here = Pace { work: of_step * (s.step - first) as f64, seconds: started.elapsed().as_secs_f64() };
        pace.seconds(after).or(here.seconds(after)).unwrap_or(0.0)
    });
    watch(&mut session, &view)?;
    drop(view);
    let spent = json!({"seconds": before + started.elapsed().as_secs_f64()});
    files::write_atomic(&path.join(NOTE), &serde_json::to_vec_pretty(&spent)?)?;
    Ok(session.trainer().step() - first)
}

/// How long a run takes, in units of its own.
pub fn work(r: &Planned) -> f64 {
    r.steps as f64 * step_work(&r.config)
}

/// Of one step: images times the rows that pass through the blocks of each network, a block costing its width squared.
fn step_work(c: &Config) -> f64 {
    let (e, d) = (&c.model.encoder, &c.model.denoiser);
    let block = |depth: usize, width: usize| depth as f64 * (width as f64).powi(2);
    let patches = (e.image / e.patch.max(1)).pow(2) as f64;
    // The masked twin of a classifier has no denoiser.
    let rows = match (c.data.task, c.model.method) {
        (Task::Class, Method::Mdd) => 0.0,
        (Task::Class, Method::Tdd) => c.train.noisy_copies as f64,
        _ => (c.train.noisy_copies * c.data.tokens) as f64,
    };
    c.train.batch as f64 * (patches * block(e.depth, e.width) + rows * block(d.depth, d.width))
}

/// Work done and the time it took.
#[derive(Clone, Copy, Default)]
struct Pace {
    work: f64,
    seconds: f64,
}

impl Pace {
    fn add(&mut self, work: f64, seconds: f64) {
        self.work += work;
        self.seconds += seconds;
    }

    /// How long `work` will take, once something is known.
    fn seconds(&self, work: f64) -> Option<f64> {
        (self.work > 0.0).then(|| work * self.seconds / self.work)
    }
}

/// After Ctrl-C: say how to go on, and stop.
pub fn stop_if_asked(at: &str) -> Result<()> {
    if !interrupt::requested() {
        return Ok(());
    }
    terminal::stopped(&format!("interrupted {at}; what was trained is saved. Go on with:\n{}", command_line()));
    Err(Failure::interrupted())
}

/// The command as it was typed, with quotes where a shell needs them.
pub fn command_line() -> String {
    let quoted = |a: String| {
        let plain = !a.is_empty() && a.chars().all(|c| c.is_alphanumeric() || "-_./=:,+@%".contains(c));
        if plain { a } else { format!("'{}'", a.replace('\'', "'\\''")) }
    };
    let args = std::env::args_os().skip(1).map(|a| quoted(a.to_string_lossy().into_owned()));
    std::iter::once("tweedie".to_string()).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_all_work_so_far() {
        let mut p = Pace::default();
        assert_eq!(p.seconds(1.0), None);
        p.add(2.0, 10.0);
        p.add(2.0, 30.0);
        assert_eq!(p.seconds(3.0), Some(30.0));
    }
}
