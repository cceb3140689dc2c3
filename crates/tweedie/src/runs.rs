//! Runs on disk, many at a time: what each is and how far it got ([`Summary`]), all of a folder ([`find`]), what of them can go
//! ([`Removal`]).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::checkpoint;
use crate::config::{Config, Method};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::run_dir::RunDir;

/// Folders below the one that is searched.
const DEEPEST: usize = 4;

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// A process is training it.
    Running,
    /// It came to its end.
    Finished,
    /// It was stopped, and can be gone on with.
    Interrupted,
    /// It has no checkpoint: nothing can be done with it.
    Empty,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Standing::Running => "running",
            Standing::Finished => "finished",
            Standing::Interrupted => "interrupted",
            Standing::Empty => "empty",
        })
    }
}

/// One number over the steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Steps done.
    pub steps: Vec<f64>,
    /// The number there.
    pub values: Vec<f64>,
}

/// A run in a few words and numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Its folder.
    pub path: PathBuf,
    /// The same, as seen from the folder that was searched.
    pub name: String,
    /// What it learns.
    pub task: Task,
    /// How.
    pub method: Method,
    /// From what.
    pub data: String,
    /// Optimizer steps done.
    pub step: u64,
    /// Those of the whole run, once it has told how many there are to an epoch.
    pub total_steps: Option<u64>,
    /// Name of what checkpoints are chosen by, where it was evaluated.
    pub metric: Option<String>,
    /// The best of it so far.
    pub best: Option<f64>,
    /// The last of it.
    pub last: Option<f64>,
    /// Where it stands.
    pub state: Standing,
    /// When it last wrote something.
    #[serde(serialize_with = "as_utc")]
    pub changed: SystemTime,
    /// Bytes on disk.
    pub bytes: u64,
    /// Loss of the steps.
    #[serde(skip)]
    pub loss: Curve,
    /// What checkpoints are chosen by, of the averaged weights where there are any.
    #[serde(skip)]
    pub scores: Curve,
    /// Its settings.
    #[serde(skip)]
    pub config: Config,
}

fn as_utc<S: Serializer>(time: &SystemTime, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.serialize_str(&crate::run_dir::utc(*time))
}

impl Summary {
    /// Read the run in the folder `path`.
    pub fn read(path: &Path) -> Result<Summary> {
        let dir = RunDir::open(path)?;
        let config = Config::of_run(&dir.config_path().display().to_string(), &dir.read_config()?, &[])?;
        let told = Told::read(&dir.read_metrics()?);
        let checkpoints = dir.checkpoints();
        let saved = checkpoint::newest_state(&checkpoints)?;
        let total = told.steps_per_epoch.map(|n| n * config.train.epochs as u64);
        let saved_step = saved.as_ref().map(|s| s.step);
        let done = saved.as_ref().is_some_and(|s| s.epoch >= config.train.epochs as u64);
        let running = dir.is_in_use();
        let state = match saved {
            _ if running => Standing::Running,
            None => Standing::Empty,
            Some(_) if done => Standing::Finished,
            Some(_) => Standing::Interrupted,
        };
        let (bytes, changed) = size(path)?;
        Ok(Summary {
            path: path.into(),
            name: path.display().to_string(),
            task: config.data.task,
            method: config.model.method,
            data: config.data.path.clone(),
            // Steps after the last checkpoint are lost once nobody is training any more.
            step: if running { told.step.max(saved_step.unwrap_or(0)) } else { saved_step.unwrap_or(0) },
            total_steps: total,
            metric: (!told.scores.values.is_empty()).then(|| told.scores.name.clone()),
            best: told.best,
            last: told.scores.values.last().copied(),
            state,
            changed,
            bytes,
            loss: told.loss,
            scores: told.scores,
            config,
        })
    }
}

/// What the lines of metrics say.
#[derive(Default)]
struct Told {
    step: u64,
    steps_per_epoch: Option<u64>,
    best: Option<f64>,
    loss: Curve,
    scores: Curve,
}

impl Told {
    fn read(lines: &[Value]) -> Told {
        let mut told = Told::default();
        told.loss.name = "loss".into();
        for line in lines {
            let Some(step) = line["step"].as_u64() else { continue };
            told.step = told.step.max(step);
            if let Some(epoch) = line["epoch"].as_f64().filter(|e| *e > 0.0) {
                told.steps_per_epoch = Some((step as f64 / epoch).round() as u64);
            }
            match line["event"].as_str() {
                Some("step") => told.loss.push(step, line["loss"].as_f64()),
                Some("eval") => told.score(step, line, "top-1", ["ema_top1", "top1"]),
                Some("eval-text") => {
                    let name = line["metric"].as_str().unwrap_or("score");
                    told.score(step, line, name, ["ema_score", "score"]);
                }
                _ => {}
            }
        }
        told
    }

    fn score(&mut self, step: u64, line: &Value, name: &str, keys: [&str; 2]) {
        self.scores.name = name.into();
        self.scores.push(step, keys.iter().find_map(|k| line[k].as_f64()));
        self.best = line["best"].as_f64().or(self.best);
    }
}

impl Curve {
    fn push(&mut self, step: u64, value: Option<f64>) {
        if let Some(value) = value {
            self.steps.push(step as f64);
            self.values.push(value);
        }
    }
}

/// A folder that could not be read as a run, and why.
pub type Unread = (PathBuf, Error);

/// All runs in and below a folder, those that changed last first, and those that could not be read.
pub fn find(folder: &Path) -> Result<(Vec<Summary>, Vec<Unread>)> {
    let (mut runs, mut unread) = (Vec::new(), Vec::new());
    for path in folders(folder)? {
        match Summary::read(&path) {
            Ok(mut run) => {
                let inside = path.strip_prefix(folder).ok().filter(|p| !p.as_os_str().is_empty());
                run.name = inside.unwrap_or(&path).display().to_string();
                runs.push(run);
            }
            Err(e) => unread.push((path, e)),
        }
    }
    runs.sort_by(|a, b| b.changed.cmp(&a.changed).then_with(|| a.name.cmp(&b.name)));
    Ok((runs, unread))
}

/// The folders of all runs in and below a folder, in order.
pub fn folders(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    collect(folder, DEEPEST, &mut paths)?;
    paths.sort();
    Ok(paths)
}

/// Folders of runs in and below `folder`. A run is not looked into, nor is a link followed.
fn collect(folder: &Path, deeper: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    if RunDir::is_run(folder) {
        found.push(folder.into());
        return Ok(());
    }
    if deeper == 0 {
        return Ok(());
    }
    let wrong = |e| Error::file(folder, e);
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let entry = entry.map_err(wrong)?;
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            // A folder that must not be looked into holds no run of ours.
            let _ = collect(&entry.path(), deeper - 1, found);
        }
    }
    Ok(())
}

/// Bytes of all files in and below a folder, and when the last of them changed. Files may go while they are counted.
fn size(folder: &Path) -> Result<(u64, SystemTime)> {
    let mut total = (0, SystemTime::UNIX_EPOCH);
    for entry in fs::read_dir(folder).map_err(|e| Error::file(folder, e))?.flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        let (bytes, changed) = match (meta.is_dir(), meta.modified()) {
            (true, _) => size(&entry.path()).unwrap_or((0, SystemTime::UNIX_EPOCH)),
            (false, Ok(changed)) => (meta.len(), changed),
            (false, Err(_)) => (meta.len(), SystemTime::UNIX_EPOCH),
        };
        total = (total.0 + bytes, total.1.max(changed));
    }
    Ok(total)
}

/// Something that can go: a checkpoint that is neither the best nor the last, or a run without any.
#[derive(Clone, Debug, Serialize)]
pub struct Removal {
    /// What goes, with all in it.
    pub path: PathBuf,
    /// Why.
    pub why: &'static str,
    /// Bytes that it frees.
    pub bytes: u64,
    /// The run that it is a part of, or is.
    pub run: PathBuf,
}

impl Removal {
    /// What can go of a run; nothing of one that is being trained. A run without a checkpoint that holds files of somebody else stays.
    pub fn all_of(run: &Summary) -> Result<Vec<Removal>> {
        let removal = |path: PathBuf, why| {
            let bytes = size(&path).map_or(0, |s| s.0);
            Removal { path, why, bytes, run: run.path.clone() }
        };
        match run.state {
            Standing::Running => Ok(Vec::new()),
            Standing::Empty if checkpoint::any(&run.path.join("checkpoints"))? => Ok(Vec::new()), // damaged: not ours to judge
            Standing::Empty => {
                let own = RunDir::open(&run.path)?.foreign_entries()?.is_empty();
                Ok(own.then(|| removal(run.path.clone(), "a run without any checkpoint")).into_iter().collect())
            }
            Standing::Finished | Standing::Interrupted => {
                let dir = RunDir::open(&run.path)?.checkpoints();
                let best = checkpoint::best(&dir)?;
                let spared: Vec<&Path> = best.as_deref().into_iter().collect();
                let paths = checkpoint::prunable(&dir, 1, &spared)?;
                Ok(paths.into_iter().map(|p| removal(p, "neither best nor last")).collect())
            }
        }
    }

    /// Do it, unless somebody trains the run by now.
    pub fn carry_out(&self) -> Result<()> {
        let _locked = RunDir::resume(&self.run)?;
        fs::remove_dir_all(&self.path).map_err(|e| Error::file(&self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_tell_steps_loss_and_scores() {
        let told = Told::read(&[
            json!({"event": "step", "step": 10, "epoch": 0.25, "loss": 2.0}),
            json!({"event": "eval", "step": 40, "epoch": 1.0, "top1": 0.5, "ema_top1": 0.6, "best": 0.6}),
            json!({"event": "step", "step": 50, "epoch": 1.25, "loss": null}),
            json!({"event": "saved", "step": 50, "path": "x"}),
        ]);
        assert_eq!((told.step, told.steps_per_epoch, told.best), (50, Some(40), Some(0.6)));
        assert_eq!((told.loss.steps, told.loss.values), (vec![10.0], vec![2.0]));
        assert_eq!((told.scores.name.as_str(), told.scores.values), ("top-1", vec![0.6]));
        let text = Told::read(&[
            json!({"event": "eval-text", "step": 4, "metric": "bits per token", "score": 3.0, "best": 3.0}),
        ]);
        assert_eq!(
            (text.scores.name.as_str(), text.scores.values, text.steps_per_epoch),
            ("bits per token", vec![3.0], None)
        );
    }

    #[test]
    fn a_folder_without_runs_has_none_and_a_missing_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        assert!(find(dir.path()).unwrap().0.is_empty());
        let e = find(&dir.path().join("nope")).unwrap_err().to_string();
        assert!(e.contains("nope"), "{e}");
        // Settings that cannot be read are told, not passed over.
        fs::write(dir.path().join("a/b/config.toml"), "[train]\nbatch = 'x'").unwrap();
        fs::create_dir(dir.path().join("a/b/checkpoints")).unwrap();
        let (runs, unread) = find(dir.path()).unwrap();
        assert!(runs.is_empty() && unread.len() == 1 && unread[0].1.to_string().contains("train.batch"), "{unread:?}");
    }
}
