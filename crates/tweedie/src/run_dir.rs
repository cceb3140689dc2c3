//! The folder of a run: settings, surroundings, metrics, checkpoints, samples, figures. [`RunDir`] knows where everything lies and
//! lets one process at a time write.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::Fingerprint;
use crate::error::{Error, Result};
use crate::files::{open, read, read_to_string, write_atomic};
use crate::limits::{SETTINGS_BYTES, SMALL_BYTES, TEXT_BYTES};

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
const LOCK: &str = ".lock";
/// The settings while they are written.
const CONFIG_ASIDE: &str = ".tmp-config.toml";
const SUBFOLDERS: [&str; 3] = ["checkpoints", "samples", "figures"];

/// What a run was started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub command: Vec<String>,
    /// The device, in words.
    pub device: String,
    /// Threads of computation.
    pub threads: usize,
    /// Operating system and processor.
    pub os: String,
    /// When, in UTC.
    pub time: String,
    /// How the program was built. Runs of older programs say nothing of this and of what follows.
    #[serde(default)]
    pub build: Build,
    /// Model of the processor.
    #[serde(default)]
    pub cpu: String,
    /// Model of the GPU that the run is on; empty on a CPU.
    #[serde(default)]
    pub gpu: String,
    /// Versions of CUDA's libraries where they are there: `driver`, `kernel driver`, `nvrtc`, `cublaslt`.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
}

/// How this program was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// The compiler, as `rustc --version` says it.
    pub rustc: String,
    /// What it was built for, such as `x86_64-unknown-linux-gnu`.
    pub target: String,
    /// `release` or `debug`.
    pub profile: String,
    /// Features of the crate, with commas between.
    pub features: String,
    /// The commit that was checked out, if it was built in a repository. Changes on top of it are not seen.
    pub commit: String,
}

impl Build {
    /// This program.
    pub fn this() -> Build {
        Build {
            rustc: env!("BUILD_OF_TWEEDIE_RUSTC").into(),
            target: env!("BUILD_OF_TWEEDIE_TARGET").into(),
            profile: env!("BUILD_OF_TWEEDIE_PROFILE").into(),
            features: env!("BUILD_OF_TWEEDIE_FEATURES").into(),
            commit: env!("BUILD_OF_TWEEDIE_COMMIT").into(),
        }
    }
}

/// The processor, as the system names it.
fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim() == "model name");
    named.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

/// Versions of CUDA's libraries, for a run on a GPU.
fn cuda_libraries() -> BTreeMap<String, String> {
    let found = tweedie_engine::cuda::libraries();
    let all = [("driver", &found.driver), ("nvrtc", &found.nvrtc), ("cublaslt", &found.cublaslt)];
    let version = |(name, f): (&str, &std::result::Result<tweedie_engine::cuda::Found, String>)| {
        f.as_ref().ok().map(|f| (name.to_string(), f.version.clone()))
    };
    let kernel = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let kernel = kernel.lines().next().map(|l| ("kernel driver".to_string(), l.trim().to_string()));
    all.into_iter().filter_map(version).chain(kernel).collect()
}

impl Environment {
    /// This process, now, on the device of that name.
    pub fn now(device: impl Into<String>, threads: usize) -> Environment {
        let device = device.into();
        let gpu = device.strip_prefix("cuda:").and_then(|n| n.parse::<usize>().ok());
        let gpus = gpu.and_then(|_| tweedie_engine::cuda::devices().ok()).unwrap_or_default();
        Environment {
            version: env!("CARGO_PKG_VERSION").into(),
            command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            build: Build::this(),
            cpu: cpu_model(),
            libraries: if gpu.is_some() { cuda_libraries() } else { BTreeMap::new() },
            gpu: gpu.and_then(|n| gpus.get(n)).map_or_else(String::new, |g| g.name.clone()),
            device,
            threads,
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            time: utc(SystemTime::now()),
        }
    }
}

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

    /// An existing run, to read from.
    pub fn open(path: &Path) -> Result<RunDir> {
        let config = path.join(CONFIG);
        if config.is_file() {
            return Ok(RunDir { path: path.into(), _lock: None, folder: None });
        }
        let shown = path.display();
        let is_run = |p: &&Path| p.join(CONFIG).is_file() && p.join(SUBFOLDERS[0]).is_dir();
        let around = path.ancestors().skip(1).take(2).find(is_run);
        let around = around.map(|run| if run.as_os_str().is_empty() { ".".into() } else { run.display().to_string() });
        Err(Error::Input(match around {
            _ if !path.exists() => format!("{shown} is not a run: there is no such folder"),
            Some(run) => format!("{shown} is a part of the run {run}, not a run; pass {run}"),
            None if path.is_file() => format!("{shown} is a file, not the folder of a run; pass RUN or {WHOLE}"),
            None => {
                format!("{shown} is not a run: it has no {CONFIG}; start one with: tweedie train RECIPE --out {shown}")
            }
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
                for sub in SUBFOLDERS.map(|s| self.path.join(s)) {
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
        write_atomic(&path, &kept)?;
        let file = File::options().read(true).append(true).open(&path).map_err(|e| Error::file(&path, e))?;
        Ok(Metrics { path, file, written: kept.len() as u64, waiting: Vec::new(), torn: false })
    }

    /// The metrics so far, without lines that were cut short.
    pub fn read_metrics(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        each_line(&self.metrics_path(), |_, v| all.push(v))?;
        Ok(all)
    }
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

/// Longest line of metrics.
const LINE: u64 = 1 << 24;

/// Give `f` each line that is a JSON object, one at a time; none if there is no file.
fn each_line(path: &Path, mut f: impl FnMut(&[u8], Value)) -> Result<()> {
    let file = match open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::file(path, e)),
    };
    let wrong = |e: io::Error| Error::file(path, e);
    let bytes = file.metadata().map_err(wrong)?.len();
    TEXT_BYTES.check(bytes).map_err(|why| wrong(io::Error::new(io::ErrorKind::InvalidData, why)))?;
    let mut from = BufReader::new(file.take(bytes));
    let mut line = Vec::new();
    loop {
        line.clear();
        // What is longer comes in pieces, none of which is an object.
        if from.by_ref().take(LINE).read_until(b'\n', &mut line).map_err(wrong)? == 0 {
            return Ok(());
        }
        let line = line.trim_ascii_end();
        if let Some(v) = serde_json::from_slice(line).ok().filter(Value::is_object) {
            f(line, v);
        }
    }
}

/// Appends to `metrics.jsonl`.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    written: u64,
    /// Lines that could not be written yet.
    waiting: Vec<u8>,
    /// Whether a part of them may have been.
    torn: bool,
}

impl Metrics {
    /// Add a line: anything that is a JSON object; `step` is the key that a resumed run looks at. One that cannot be written, as on a full
    /// disk, is kept for the next time.
    pub fn append(&mut self, entry: &impl Serialize) -> Result<()> {
        let line = serde_json::to_vec(entry).map_err(|e| Error::file(&self.path, e.into()))?;
        if !(line.starts_with(b"{") && line.ends_with(b"}")) {
            return Err(Error::Input(format!("{}: a line of metrics must be an object", self.path.display())));
        }
        self.waiting.extend(line);
        self.waiting.push(b'\n');
        self.write().map_err(|e| Error::file(&self.path, e))
    }

    fn write(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.set_len(self.written)?;
        }
        // One call: a kill leaves the line whole or absent.
        self.torn = true;
        self.file.write_all(&self.waiting)?;
        self.torn = false;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Make all lines durable; called before a checkpoint.
    pub fn sync(&mut self) -> Result<()> {
        self.write().and_then(|()| self.file.sync_data()).map_err(|e| Error::file(&self.path, e))
    }

    /// All lines so far, also where the file was moved or deleted meanwhile.
    pub fn contents(&self) -> Result<Vec<u8>> {
        let read = || -> io::Result<Vec<u8>> {
            let (mut file, mut all) = (&self.file, Vec::new());
            file.seek(io::SeekFrom::Start(0))?;
            file.read_to_end(&mut all)?;
            all.truncate(self.written as usize);
            Ok(all)
        };
        let mut all = read().map_err(|e| Error::file(&self.path, e))?;
        all.extend(&self.waiting);
        Ok(all)
    }
}

/// A moment as RFC 3339, such as `2024-02-29T12:00:00Z`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years that end with a leap day (H. Hinnant, "chrono-compatible algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let d = day - (153 * month + 2) / 5 + 1;
    let m = if month < 10 { month + 3 } else { month - 9 };
    let y = era * 400 + year + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn text(r: Result<RunDir>) -> String {
        r.unwrap_err().to_string()
    }

    #[test]
    fn a_new_run_needs_an_empty_folder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let run = RunDir::create(&path).unwrap();
        assert!(run.checkpoints().is_dir() && run.samples().is_dir() && run.figures().is_dir());
        assert!(text(RunDir::create(&path)).contains("in use"));
        drop(run);
        // Killed before it wrote its settings: as good as empty, unless something is in there.
        fs::write(path.join(CONFIG_ASIDE), "see").unwrap();
        drop(RunDir::create(&path).unwrap());
        fs::write(path.join("checkpoints/mine"), "").unwrap();
        assert!(text(RunDir::create(&path)).contains("not empty"));
        fs::write(path.join(CONFIG), "").unwrap();
        assert!(text(RunDir::create(&path)).contains("--resume"));
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(RunDir::create(&empty).is_ok());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(text(RunDir::create(&dir.path().join("file"))).contains("file"));
    }

    /// Lines that a full disk refuses come later, whole and in order.
    #[cfg(target_os = "linux")]
    #[test]
    fn lines_wait_for_a_disk_that_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(&dir.path().join("r")).unwrap();
        let mut metrics = run.metrics(None).unwrap();
        metrics.append(&json!({"step": 1})).unwrap();
        let file = std::mem::replace(&mut metrics.file, File::options().write(true).open("/dev/full").unwrap());
        assert!(metrics.append(&json!({"step": 2})).is_err());
        metrics.file = file;
        metrics.file.write_all(b"{\"st").unwrap(); // as far as the disk went
        metrics.append(&json!({"step": 3})).unwrap();
        metrics.sync().unwrap();
        let text = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n";
        assert_eq!(fs::read_to_string(run.metrics_path()).unwrap(), text);
        assert_eq!(metrics.contents().unwrap(), text.as_bytes());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_was_replaced_is_not_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        let run = RunDir::create(&path).unwrap();
        assert!(run.is_in_place());
        fs::rename(&path, dir.path().join("away")).unwrap();
        assert!(!run.is_in_place());
        fs::create_dir(&path).unwrap();
        assert!(!run.is_in_place());
        assert_eq!(run.beside().unwrap().path(), dir.path().join("r.rescued-1"));
    }

    #[test]
    fn opening_needs_a_run() {
        let dir = tempfile::tempdir().unwrap();
        assert!(text(RunDir::open(&dir.path().join("x"))).contains("no such folder"));
        assert!(text(RunDir::open(dir.path())).contains("no config.toml"));
    }

    #[test]
    fn a_checkpoint_is_found_with_its_run_and_other_paths_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let [run, lone] = ["run", "lone"].map(|n| dir.path().join(n));
        let step = run.join("checkpoints/step-00000001");
        for folder in [&step, &lone] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(STATE), "{}").unwrap();
        }
        let best = run.join("checkpoints/best");
        fs::write(&best, "step-00000001\n").unwrap();
        fs::write(run.join(CONFIG), "").unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let found = |p: &Path| RunDir::around(p).map(|(run, is_checkpoint)| (run.path().to_path_buf(), is_checkpoint));
        assert_eq!(found(&run).unwrap(), (run.clone(), false));
        assert_eq!(found(&step).unwrap(), (run.clone(), true));
        let shown = run.display().to_string();
        for (path, words) in [
            (&lone, &["is a checkpoint without its run", "config.toml", WHOLE][..]),
            (&best, &["is a part of the run", &format!("pass {shown}")]),
            (&run.join("checkpoints"), &["is a part of the run", &shown]),
            (&dir.path().join("file"), &["is a file", WHOLE]),
            (&dir.path().join("none"), &["no such folder"]),
        ] {
            let e = found(path).unwrap_err().to_string();
            assert!(e.starts_with(&path.display().to_string()) && words.iter().all(|w| e.contains(w)), "{e}");
        }
    }

    #[test]
    fn only_one_process_writes_and_any_reads() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        run.write_config("seed = 1\n").unwrap();
        assert!(text(RunDir::resume(dir.path())).contains("in use"));
        assert_eq!(RunDir::open(dir.path()).unwrap().read_config().unwrap(), "seed = 1\n");
        drop(run);
        assert!(RunDir::resume(dir.path()).is_ok());
    }

    #[test]
    fn starts_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let env = Environment::now("cpu", 2);
        assert!(!env.command.is_empty() && env.time.ends_with('Z'));
        let later = Environment { device: "cuda".into(), ..env.clone() };
        for e in [&env, &later, &later] {
            run.write_env(e).unwrap();
        }
        let v: Value = serde_json::from_slice(&fs::read(dir.path().join(ENV)).unwrap()).unwrap();
        assert_eq!(v["device"], "cpu");
        assert_eq!(v["resumed"], json!([later, later]));
    }

    #[test]
    fn surroundings_of_older_programs_are_read() {
        let old = json!({
            "version": "0.1.0", "command": ["tweedie"], "device": "cpu", "threads": 2, "os": "linux x86_64",
            "time": "2026-01-01T00:00:00Z",
        });
        let old: Environment = serde_json::from_value(old).unwrap();
        assert_eq!((old.build, old.cpu.as_str(), old.libraries.len()), (Build::default(), "", 0));
        let now = Environment::now("cpu", 2);
        assert!(now.build.rustc.contains("rustc") && !now.build.target.is_empty() && !now.cpu.is_empty(), "{now:?}");
        assert!(now.gpu.is_empty() && now.libraries.is_empty());
        let commit = &now.build.commit;
        assert!(commit.is_empty() || commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{commit}");
        assert_eq!(serde_json::from_value::<Environment>(serde_json::to_value(&now).unwrap()).unwrap(), now);
    }

    #[test]
    fn resumed_metrics_forget_later_steps_and_torn_lines() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let mut m = run.metrics(None).unwrap();
        for step in 1..=4 {
            m.append(&json!({"step": step, "loss": 0.1 * step as f64})).unwrap();
        }
        m.append(&json!({"note": "no step"})).unwrap();
        m.sync().unwrap();
        drop(m);
        let torn = fs::read_to_string(run.metrics_path()).unwrap() + "{\"step\":2,\"lo";
        fs::write(run.metrics_path(), torn).unwrap();
        assert_eq!(run.read_metrics().unwrap().len(), 5);
        run.metrics(Some(2)).unwrap().append(&json!({"step": 3})).unwrap();
        let all = run.read_metrics().unwrap();
        let steps: Vec<_> = all.iter().map(|v| v["step"].as_u64()).collect();
        assert_eq!(steps, [Some(1), Some(2), None, Some(3)]);
        assert_eq!(all[1]["loss"], json!(0.2));
        assert!(run.metrics(Some(9)).unwrap().append(&[1]).is_err());
    }

    /// A cut at any byte loses the line that was cut and no other.
    #[test]
    fn a_cut_anywhere_loses_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let mut m = run.metrics(None).unwrap();
        (0..3).for_each(|s| m.append(&json!({"step": s, "ü": "ü"})).unwrap());
        let whole = fs::read(run.metrics_path()).unwrap();
        for cut in 0..whole.len() {
            fs::write(run.metrics_path(), &whole[..cut]).unwrap();
            // A line that lacks only its newline is whole.
            let n = whole[..cut].iter().filter(|b| **b == b'\n').count() + usize::from(whole[cut] == b'\n');
            drop(run.metrics(Some(10)).unwrap());
            assert_eq!(run.read_metrics().unwrap().len(), n, "{cut}");
        }
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        // From `date -u -d @N`.
        for (s, t) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_208_000, "2024-02-29T12:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(s)), t);
        }
    }
}
