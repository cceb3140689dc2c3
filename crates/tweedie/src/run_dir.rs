//! The folder of a run: settings, surroundings, metrics, checkpoints, samples, figures. [`RunDir`] knows where everything lies and
//! lets one process at a time write.

mod calibrations;
mod environment;
mod inside;
mod metrics;

pub use environment::{Build, Environment, InitFrom, utc};
pub use metrics::Metrics;

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::data::Fingerprint;
use crate::error::{Error, Result};
use crate::files::{open, read, read_to_string, write_atomic};
use crate::limits::{SETTINGS_BYTES, SMALL_BYTES};
use crate::settings;
use metrics::each_line;

/// What stands before the name of a model that comes with the program.
pub(crate) const EMBEDDED: &str = "embedded:";
/// What such a model is for, in words.
pub(crate) const EMBEDDED_USES: &str = "classify, caption, generate, trace and eval take it, and export with --out";

const CONFIG: &str = "config.toml";
/// What makes a folder a checkpoint.
const STATE: &str = "state.json";
/// Where a checkpoint lies, in words.
const WHOLE: &str = "RUN/checkpoints/step-N";
const TOKENIZER: &str = "tokenizer.json";
const ENV: &str = "env.json";
/// Algorithms of matrix products on a GPU.
const PRODUCTS: &str = "products.txt";
const DATA: &str = "data.json";
const METRICS: &str = "metrics.jsonl";
const CARD: &str = "MODEL_CARD.md";
const LOCK: &str = ".lock";
/// The settings while they are written.
const CONFIG_ASIDE: &str = ".tmp-config.toml";
const SUBFOLDERS: [&str; 3] = ["checkpoints", "samples", "figures"];

/// A run's folder.
///
/// ```
/// use tweedie::run_dir::RunDir;
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path().join("mine");
///
/// let run = RunDir::create(&folder)?; // and locked for this process
/// run.write_config("seed = 7\n")?;
/// assert!(RunDir::create(&folder).unwrap_err().to_string().contains("already holds a run"));
/// assert_eq!(RunDir::open(&folder)?.read_config()?, "seed = 7\n");
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Held while this process writes to the run; the system lets go of it when the process ends, however it ends.
    _lock: Option<File>,
    /// The folder itself, held open with the lock, to notice when its path leads elsewhere.
    folder: Option<File>,
}

impl RunDir {
    /// A new folder for a run, locked for this process. An existing one must be empty.
    pub fn create(path: &Path) -> Result<RunDir> {
        fs::create_dir_all(path).map_err(|e| Error::file(path, e))?;
        RunDir::check_free(path)?;
        RunDir { path: path.into(), _lock: None, folder: None }.locked()
    }

    /// The folder that another rank of the same training writes.
    pub(crate) fn of_another(path: &Path) -> RunDir {
        RunDir { path: path.into(), _lock: None, folder: None }
    }

    /// Whether [`RunDir::create`] could take this folder; makes nothing. What a start leaves that was killed before it
    /// wrote its settings counts as nothing: it could not be resumed.
    pub fn check_free(path: &Path) -> Result<()> {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::file(path, e)),
        };
        for entry in entries {
            let entry = entry.map_err(|e| Error::file(path, e))?;
            let name = entry.file_name();
            let empty = || fs::read_dir(entry.path()).is_ok_and(|mut inside| inside.next().is_none());
            if name == LOCK || name == CONFIG_ASIDE || SUBFOLDERS.iter().any(|s| name == *s) && empty() {
                continue;
            }
            let shown = path.display();
            return Err(Error::Input(if path.join(CONFIG).is_file() {
                format!("{shown} already holds a run; continue it with --resume {shown}, or name another folder")
            } else {
                format!("{shown} exists and is not empty; name another folder")
            }));
        }
        Ok(())
    }

    /// Whether a folder looks like that of a run, begun or ended.
    pub fn is_run(path: &Path) -> bool {
        path.join(CONFIG).is_file() && path.join(SUBFOLDERS[0]).is_dir()
    }

    /// An existing run, to read from.
    pub fn open(path: &Path) -> Result<RunDir> {
        let config = path.join(CONFIG);
        if config.is_file() {
            return Ok(RunDir { path: path.into(), _lock: None, folder: None });
        }
        let shown = path.display();
        let around = path.ancestors().skip(1).take(2).find(|p| RunDir::is_run(p));
        let around = around.map(|run| if run.as_os_str().is_empty() { ".".into() } else { run.display().to_string() });
        Err(Error::Input(match around {
            _ if path.to_str().is_some_and(|p| p.starts_with(EMBEDDED)) => {
                format!("{shown} comes with the program and is no run: {EMBEDDED_USES}")
            }
            _ if !path.exists() => match like(path) {
                Some(run) => format!("{shown} is not a run: there is no such folder; did you mean {}?", run.display()),
                None => format!("{shown} is not a run: there is no such folder"),
            },
            Some(run) => format!("{shown} is a part of the run {run}, not a run; pass {run}"),
            None if path.is_file() => format!("{shown} is a file, not the folder of a run; pass RUN or {WHOLE}"),
            None => inside::told(path).unwrap_or_else(|| {
                format!("{shown} is not a run: it has no {CONFIG}; start one with: tweedie train RECIPE --out {shown}")
            }),
        }))
    }

    /// The run at `path`, to read from, or the run around it if `path` is one of its checkpoints, which the second value tells.
    pub fn around(path: &Path) -> Result<(RunDir, bool)> {
        if !path.join(STATE).is_file() {
            return Ok((RunDir::open(path)?, false));
        }
        // RUN/checkpoints/step-N: the run is two levels up, by the path given or by what it stands for.
        let whole = fs::canonicalize(path).map_err(|e| Error::file(path, e))?;
        let two_up = |p: &Path| p.parent().and_then(Path::parent).map(Path::to_path_buf);
        let runs = [path, &whole].into_iter().filter_map(two_up).filter(|run| !run.as_os_str().is_empty());
        match runs.into_iter().find(|run| run.join(CONFIG).is_file()) {
            Some(run) => Ok((RunDir::open(&run)?, true)),
            None => Err(Error::Input(format!(
                "{} is a checkpoint without its run: it needs the run's folder around it, with {CONFIG}; pass RUN or {WHOLE}",
                path.display()
            ))),
        }
    }

    /// Whether a process holds the run's lock: it is being trained.
    pub fn is_in_use(&self) -> bool {
        let lock = open(&self.path.join(LOCK));
        lock.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Entries of the folder that no run writes: somebody else's.
    pub fn foreign_entries(&self) -> Result<Vec<String>> {
        let ours = [CONFIG, TOKENIZER, ENV, PRODUCTS, DATA, METRICS, CARD, LOCK];
        let wrong = |e: io::Error| Error::file(&self.path, e);
        let mut foreign = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let name = entry.map_err(wrong)?.file_name().to_string_lossy().into_owned();
            let known = ours.contains(&name.as_str()) || SUBFOLDERS.contains(&name.as_str());
            if !known && !name.starts_with(".tmp-") && !name.starts_with("events.out.tfevents") {
                foreign.push(name);
            }
        }
        Ok(foreign)
    }

    /// An existing run, to go on with: locked for this process.
    pub fn resume(path: &Path) -> Result<RunDir> {
        RunDir::open(path)?.locked()
    }

    fn locked(self) -> Result<RunDir> {
        let path = self.path.join(LOCK);
        if path.exists() {
            open(&path).map_err(|e| Error::file(&path, e))?; // a pipe would wait for a reader
        }
        let file = File::options().create(true).append(true).open(&path).map_err(|e| Error::file(&path, e))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(Error::Input(format!("{} is in use by another process", self.path.display())))
            }
            // Some network file systems have no locks; a run is not refused for that.
            Err(TryLockError::Error(_)) | Ok(()) => {
                for sub in [self.checkpoints(), self.samples()] {
                    fs::create_dir_all(&sub).map_err(|e| Error::file(&sub, e))?;
                }
                let folder = File::open(&self.path).ok();
                Ok(RunDir { _lock: Some(file), folder, ..self })
            }
        }
    }

    /// Whether the path still leads to the folder that was opened: it may have been moved, deleted or replaced since.
    pub fn is_in_place(&self) -> bool {
        match (&self.folder, fs::metadata(&self.path)) {
            (_, Err(e)) => e.kind() != io::ErrorKind::NotFound, // another error says nothing about the place
            (None, Ok(_)) => true,
            (Some(folder), Ok(there)) => folder.metadata().is_ok_and(|ours| same_file(&ours, &there)),
        }
    }

    /// A new folder beside this one, called as it is with `.rescued-N` behind, locked for this process.
    pub fn beside(&self) -> Result<RunDir> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let of = |n: u32| self.path.with_file_name(format!("{name}.rescued-{n}"));
        let free = (1..=u32::MAX).map(of).find(|p| !p.exists()).unwrap_or_else(|| of(0));
        RunDir::create(&free)
    }

    /// The folder itself; TensorBoard's event files lie directly in it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Folder of samples.
    pub fn samples(&self) -> PathBuf {
        self.path.join("samples")
    }

    /// Folder of figures.
    pub fn figures(&self) -> PathBuf {
        self.path.join("figures")
    }

    /// The file of metrics.
    pub fn metrics_path(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// The file of settings.
    pub fn config_path(&self) -> PathBuf {
        self.path.join(CONFIG)
    }

    /// The tokenizer of a model of sequences.
    pub fn tokenizer_path(&self) -> PathBuf {
        self.path.join(TOKENIZER)
    }

    /// Write the tokenizer, so that the folder is all that a model needs.
    pub fn write_tokenizer(&self, json: &str) -> Result<()> {
        write_atomic(&self.tokenizer_path(), json.as_bytes())
    }

    /// Where the model card lies.
    pub fn card_path(&self) -> PathBuf {
        self.path.join(CARD)
    }

    /// Write the model card.
    pub fn write_card(&self, text: &str) -> Result<()> {
        write_atomic(&self.card_path(), text.as_bytes())
    }

    /// Write the algorithms that a GPU's matrix products are computed with.
    pub fn write_products(&self, text: &str) -> Result<()> {
        write_atomic(&self.path.join(PRODUCTS), text.as_bytes())
    }

    /// Those of the run so far, if it was on a GPU.
    pub fn read_products(&self) -> Option<String> {
        fs::read(self.path.join(PRODUCTS)).ok().map(|b| String::from_utf8_lossy(&b).into_owned())
    }

    /// Write the resolved settings.
    pub fn write_config(&self, toml: &str) -> Result<()> {
        write_atomic(&self.config_path(), toml.as_bytes())
    }

    /// The resolved settings, as TOML.
    pub fn read_config(&self) -> Result<String> {
        let path = self.config_path();
        read_to_string(&path, &SETTINGS_BYTES).map_err(|e| Error::file(&path, e))
    }

    /// Note what the data of the run look like.
    pub fn write_fingerprint(&self, data: &Fingerprint) -> Result<()> {
        let path = self.path.join(DATA);
        let json = serde_json::to_vec_pretty(data).map_err(|e| Error::file(&path, e.into()))?;
        write_atomic(&path, &json)
    }

    /// What the data of the run looked like; none for a run of a version that did not note it, or where the note cannot be read.
    pub fn read_fingerprint(&self) -> Option<Fingerprint> {
        let bytes = read(&self.path.join(DATA), &SMALL_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Note what the run is started with: `env.json` is the first start, its `resumed` a list of the later ones.
    pub fn write_env(&self, env: &Environment) -> Result<()> {
        let path = self.path.join(ENV);
        let json = |e: serde_json::Error| Error::file(&path, e.into());
        let now = serde_json::to_value(env).map_err(json)?;
        let all = match read(&path, &SMALL_BYTES).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok()) {
            Some(Value::Object(mut first)) => {
                if let Value::Array(list) = first.entry("resumed").or_insert_with(|| Value::Array(Vec::new())) {
                    list.push(now);
                }
                Value::Object(first)
            }
            _ => now,
        };
        write_atomic(&path, &serde_json::to_vec_pretty(&all).map_err(json)?)
    }

    /// What the run was first started with; none where that was not noted, or cannot be read.
    pub fn read_env(&self) -> Option<Environment> {
        serde_json::from_slice(&read(&self.path.join(ENV), &SMALL_BYTES).ok()?).ok()
    }

    /// Start or continue the metrics. `resumed` is the step of the checkpoint that the run goes on from: lines of later
    /// steps, which will be written again, are dropped, and so is a line that was cut short.
    pub fn metrics(&self, resumed: Option<u64>) -> Result<Metrics> {
        let path = self.metrics_path();
        let mut kept = Vec::new();
        if let Some(step) = resumed {
            each_line(&path, |line, v| {
                if v["step"].as_u64().is_none_or(|s| s <= step) {
                    kept.extend_from_slice(line);
                    kept.push(b'\n');
                }
            })?;
        }
        Metrics::begin(path, &kept)
    }

    /// The metrics so far, without lines that were cut short.
    pub fn read_metrics(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        each_line(&self.metrics_path(), |_, v| all.push(v))?;
        Ok(all)
    }
}

/// The run that was probably meant by a path where there is nothing: one of a like name beside it, or in `runs`.
fn like(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    [parent, Path::new("runs")].iter().find_map(|folder| {
        let is_run = |e: &fs::DirEntry| e.path().join(CONFIG).is_file();
        let inside = fs::read_dir(folder).ok()?.flatten().filter(is_run);
        let mut names: Vec<String> = inside.filter_map(|e| e.file_name().into_string().ok()).collect();
        names.sort();
        let found = settings::nearest(name, &names)?;
        Some(if *folder == Path::new(".") { found.into() } else { folder.join(found) })
    })
}

#[cfg(unix)]
fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Elsewhere a folder that is in use can be neither moved nor deleted.
#[cfg(not(unix))]
fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

#[cfg(test)]
mod tests;
