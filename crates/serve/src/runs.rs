//! The runs of a folder, looked up by the names that its list gives: no path of a request is ever opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tweedie::config::Method;
use tweedie::data::Task;
use tweedie::run_dir::{RunDir, utc};
use tweedie::runs::{self, Standing, Summary};

use crate::app::App;
use crate::body::blocking;
use crate::error::{Problem, Result};
use crate::model::Described;

/// How long a list is as good as new.
const FRESH: Duration = Duration::from_millis(800);

/// All runs, and those that cannot be read.
#[derive(Default)]
pub struct Listing {
    /// Those that can be read.
    pub runs: Vec<Summary>,
    /// Name of each other, and why.
    pub unread: Vec<(String, String)>,
}

/// A run by its name.
pub struct Found {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub path: PathBuf,
}

/// The runs of a folder.
pub struct RunList {
    folder: PathBuf,
    kept: Mutex<Option<(Instant, Arc<Listing>)>>,
}

impl RunList {
    /// Of this folder.
    pub fn new(folder: PathBuf) -> RunList {
        RunList { folder, kept: Mutex::new(None) }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The list, at most a moment old.
    pub async fn all(&self, app: &Arc<App>) -> Result<Arc<Listing>> {
        let mut kept = self.kept.lock().await;
        if let Some((_, listing)) = kept.as_ref().filter(|k| k.0.elapsed() < FRESH) {
            return Ok(listing.clone());
        }
        let folder = self.folder.clone();
        let listing = Arc::new(blocking(app, move || listing(&folder)).await??);
        *kept = Some((Instant::now(), listing.clone()));
        Ok(listing)
    }

    /// A run by the name that the list gives it.
    pub async fn find(&self, app: &Arc<App>, name: &str) -> Result<Found> {
        let listing = self.all(app).await?;
        let run = listing.runs.iter().find(|r| r.name == name).ok_or_else(|| no_run(name))?;
        Ok(Found { name: run.name.clone(), path: run.path.clone() })
    }
}

/// What is said of a name that no run has.
pub fn no_run(name: &str) -> Problem {
    let shown: String = name.chars().take(80).collect();
    Problem::not_found(format!("no run is called {shown:?}; /v1/runs lists them"))
}

fn listing(folder: &Path) -> Result<Listing> {
    if !folder.is_dir() {
        return Ok(Listing::default());
    }
    let (runs, unread) = runs::find(folder).map_err(|e| Problem::internal(e.to_string()))?;
    let name = |path: &Path| path.strip_prefix(folder).unwrap_or(path).display().to_string();
    let unread = unread.iter().map(|(path, e)| (name(path), e.to_string())).collect();
    Ok(Listing { runs, unread })
}

/// The model that a run is loaded as, whichever way its path is written.
pub fn model_of<'a>(run: &Path, models: &'a [Arc<Described>]) -> Option<&'a Arc<Described>> {
    let place = std::fs::canonicalize(run).ok()?;
    models
        .iter()
        .filter(|m| !m.origin.embedded)
        .find(|m| std::fs::canonicalize(&m.origin.path).is_ok_and(|p| p == place))
}

/// A run in the list.
pub fn entry(run: &Summary, models: &[Arc<Described>]) -> Value {
    let dir = RunDir::open(&run.path).ok();
    let env = dir.as_ref().and_then(RunDir::read_env);
    let model = model_of(&run.path, models).map(|m| m.name.clone());
    let score = run.metric.as_ref().zip(run.best).map(|(name, value)| json!({"name": name, "value": value}));
    json!({
        "name": run.name,
        "recipe": env.as_ref().and_then(|e| recipe(&e.command)),
        "task": match run.task { Task::Class => "class", Task::Caption => "caption", Task::Text => "text" },
        "method": match run.method { Method::Tdd => "tdd", Method::Mdd => "mdd" },
        "status": status(run.state),
        "step": run.step,
        "steps": run.total_steps,
        "epochs": run.config.train.epochs,
        "score": score,
        "last": run.last,
        "seconds": seconds(run),
        "modified": utc(run.changed),
        "bytes": run.bytes,
        "data": run.data,
        "model": model,
        "checkpoints": checkpoints(&run.path),
    })
}

/// Where a run stands, in the words of the API.
pub fn status(state: Standing) -> &'static str {
    match state {
        Standing::Running => "training",
        Standing::Finished => "finished",
        Standing::Interrupted => "stopped",
        Standing::Empty => "failed",
    }
}

/// What was given to `tweedie train`.
fn recipe(command: &[String]) -> Option<String> {
    let at = command.iter().position(|a| a == "train")?;
    command.get(at + 1).filter(|a| !a.starts_with('-')).cloned()
}

/// From its beginning to its last change.
fn seconds(run: &Summary) -> Option<u64> {
    let begun = std::fs::metadata(run.path.join("env.json")).ok()?.modified().ok()?;
    run.changed.duration_since(begun).ok().map(|d| d.as_secs())
}

/// Names of checkpoints, the oldest first.
pub fn checkpoints(run: &Path) -> Vec<String> {
    let inside = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let mut names: Vec<String> = inside.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.retain(|n| n.starts_with("step-"));
    names.sort();
    names
}
