//! Checkpoints: folders `step-00001234/` that are whole or are not chosen.
//!
//! A checkpoint holds `model.safetensors`, `ema.safetensors` (where averaged weights are kept), `optimizer.safetensors`
//! (moments as `m.NAME` and `v.NAME`) and `state.json`. It is written aside, synced and renamed. `state.json` comes last and
//! has the size and CRC-32C of every file and of itself, so that a copy that was cut short is found out as well. [`save`] writes one,
//! [`load`] and its kin read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod read;

pub use read::{
    Chosen, Found, Latest, Restored, fingerprint, intact_components, latest, load, load_best, load_component,
    load_latest, load_state, load_weights, newest_state, restore_newest,
};

use crate::error::{Error, Result};
use crate::files::{read_to_string, sync_dir, write_atomic};
use crate::limits::SMALL_BYTES;
use crate::tensors::{self, Encoded, NamedTensor};
use read::{Fault, own_crc, verify, verify_sizes};

/// Version of the layout; another one is refused.
pub const FORMAT: u64 = 1;

const STATE: &str = "state.json";
const PREFIX: &str = "step-";
const ASIDE: &str = ".tmp-";
const BEST: &str = "best";
/// Begins the name of a checkpoint that was passed over.
const PASSED: &str = "unusable-";

/// Where a run stands, apart from its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Optimizer steps done.
    pub step: u64,
    /// Passes over the data done.
    pub epoch: u64,
    /// Batches done in the pass under way.
    pub batch: u64,
    /// Start of every random stream; with the counters above it is the whole state of the noise.
    pub seed: u64,
    /// Best value of the metric so far.
    pub best: Option<f64>,
    /// Names of the classes in the order of the labels.
    pub classes: Vec<String>,
    /// Steps skipped because a gradient was not finite.
    pub skipped: u64,
    /// Whatever else the caller wants back.
    pub extra: Map<String, Value>,
}

/// Everything a run needs to go on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot<'a> {
    /// Counters and names.
    pub state: State,
    /// The weights.
    pub model: Vec<NamedTensor<'a>>,
    /// Averaged weights.
    pub ema: Option<Vec<NamedTensor<'a>>>,
    /// The optimizer's moments.
    pub optimizer: Vec<NamedTensor<'a>>,
}

impl Snapshot<'_> {
    /// An error that names a tensor with values that are not finite, if there is any; `place` is where it lies or would.
    pub fn check_finite(&self, place: &Path) -> Result<()> {
        let all = [Some(&self.model), self.ema.as_ref(), Some(&self.optimizer)];
        match all.into_iter().flatten().find_map(|part| tensors::first_not_finite(part)) {
            Some(tensor) => Err(Error::NotFinite { place: place.display().to_string(), tensor: tensor.to_string() }),
            None => Ok(()),
        }
    }
}

/// One of the files with tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The weights.
    Model,
    /// Averaged weights.
    Ema,
    /// The optimizer's moments.
    Optimizer,
}

impl Component {
    /// Name of its file.
    pub fn file(self) -> &'static str {
        match self {
            Component::Model => "model.safetensors",
            Component::Ema => "ema.safetensors",
            Component::Optimizer => "optimizer.safetensors",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct FileChecksum {
    bytes: u64,
    crc32c: u32,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: u64,
    state: State,
    files: BTreeMap<String, FileChecksum>,
    /// CRC-32C of this object as compact JSON with zero here.
    crc32c: u32,
}

/// Write a checkpoint into `dir` and give its folder. Those that are there already are not touched, except one of the same
/// step, which is replaced; after a failure nothing is left behind.
pub fn save(dir: &Path, snapshot: &Snapshot) -> Result<PathBuf> {
    save_with(dir, snapshot, &|path| File::create(path))
}

/// Remove all but the newest `keep_last` (at least one) whole checkpoints and those that are `spared`; what is torn goes too. Gives
/// what was removed.
pub fn prune(dir: &Path, keep_last: usize, spared: &[&Path]) -> Result<Vec<PathBuf>> {
    remove_leftovers(dir)?;
    let removed = prunable(dir, keep_last, spared)?;
    removed.iter().try_for_each(|path| remove(path))?;
    Ok(removed)
}

/// What [`prune`] would remove, the newest first.
pub fn prunable(dir: &Path, keep_last: usize, spared: &[&Path]) -> Result<Vec<PathBuf>> {
    let (mut kept, mut superfluous) = (0, Vec::new());
    for (_, path) in steps(dir)?.into_iter().rev() {
        let keep = match verify_sizes(&path) {
            Ok(_) => {
                kept += 1;
                kept <= keep_last.max(1)
            }
            Err(Fault::Torn(_)) => false,
            Err(Fault::Unread(_) | Fault::Other(_)) => true, // not ours to judge
        };
        if !keep && !spared.iter().any(|s| s.file_name() == path.file_name()) {
            superfluous.push(path);
        }
    }
    Ok(superfluous)
}

/// Put a checkpoint aside that cannot be gone on with, so that it does not count as the newest any more. Gives its new name.
pub fn put_aside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let free =
        |n: u32| path.with_file_name(format!("{PASSED}{name}{}", if n > 0 { format!("-{n}") } else { String::new() }));
    let to = (0..).map(free).find(|p| !p.exists()).unwrap_or_else(|| free(u32::MAX));
    fs::rename(path, &to).map_err(|e| Error::file(path, e))?;
    Ok(to)
}

/// Whether `dir` holds checkpoints, of use or not.
pub fn any(dir: &Path) -> Result<bool> {
    Ok(!steps(dir)?.is_empty())
}

/// Note in `dir` that `checkpoint` is its best one.
pub fn link_best(dir: &Path, checkpoint: &Path) -> Result<()> {
    let name = checkpoint.file_name().unwrap_or_default().to_string_lossy();
    write_atomic(&dir.join(BEST), format!("{name}\n").as_bytes())
}

/// The checkpoint that [`link_best`] named, if it is still there.
pub fn best(dir: &Path) -> Result<Option<PathBuf>> {
    let file = dir.join(BEST);
    match read_to_string(&file, &SMALL_BYTES) {
        Ok(name) => {
            let path = dir.join(name.trim());
            Ok((step_of(name.trim()).is_some() && path.is_dir()).then_some(path))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::file(&file, e)),
    }
}

fn save_with(dir: &Path, snapshot: &Snapshot, create: &dyn Fn(&Path) -> io::Result<File>) -> Result<PathBuf> {
    fs::create_dir_all(dir).map_err(|e| Error::file(dir, e))?;
    remove_leftovers(dir)?;
    let name = format!("{PREFIX}{:08}", snapshot.state.step);
    let (path, aside) = (dir.join(&name), dir.join(format!("{ASIDE}{name}")));
    let put = || -> Result<()> {
        fs::create_dir(&aside).map_err(|e| Error::file(&aside, e))?;
        let manifest = write_files(&aside, &path, snapshot, create)?;
        sync_dir(&aside).map_err(|e| Error::file(&aside, e))?;
        if path.exists() {
            if verify(&path).is_ok_and(|there| there == manifest) {
                // The same again: keeping the old one leaves no moment without.
                return fs::remove_dir_all(&aside).map_err(|e| Error::file(&aside, e));
            }
            remove(&path)?;
        }
        fs::rename(&aside, &path).and_then(|()| sync_dir(dir)).map_err(|e| Error::file(&path, e))
    };
    put().inspect_err(|_| {
        let _ = fs::remove_dir_all(&aside);
    })?;
    Ok(path)
}

/// Write all files of a checkpoint into `aside`; messages speak of `path`, where they would have gone.
fn write_files(
    aside: &Path,
    path: &Path,
    snapshot: &Snapshot,
    create: &dyn Fn(&Path) -> io::Result<File>,
) -> Result<Manifest> {
    let mut parts = vec![
        (Component::Model.file(), Encoded::new(&snapshot.model)?),
        (Component::Optimizer.file(), Encoded::new(&snapshot.optimizer)?),
    ];
    if let Some(ema) = &snapshot.ema {
        parts.push((Component::Ema.file(), Encoded::new(ema)?));
    }
    let total: u64 = parts.iter().map(|(_, e)| e.bytes()).sum();
    let mut files = BTreeMap::new();
    for (name, encoded) in &parts {
        let write = || -> io::Result<u32> {
            let mut out = BufWriter::new(create(&aside.join(name))?);
            let crc = encoded.write(&mut out)?;
            out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
            Ok(crc)
        };
        let crc32c = write().map_err(|e| no_space(&path.join(name), e, encoded.bytes(), total))?;
        files.insert(name.to_string(), FileChecksum { bytes: encoded.bytes(), crc32c });
    }
    let mut manifest = Manifest { format: FORMAT, state: snapshot.state.clone(), files, crc32c: 0 };
    let state = path.join(STATE);
    let wrong = |e: serde_json::Error| Error::file(&state, e.into());
    manifest.crc32c = own_crc(&serde_json::to_value(&manifest).map_err(wrong)?);
    let json = serde_json::to_vec_pretty(&manifest).map_err(wrong)?;
    let write = || -> io::Result<()> {
        let mut out = create(&aside.join(STATE))?;
        out.write_all(&json)?;
        out.sync_all()
    };
    write().map_err(|e| no_space(&state, e, json.len() as u64, total))?;
    Ok(manifest)
}

/// A file error that says how much room was needed where that is what was missing.
fn no_space(path: &Path, e: io::Error, bytes: u64, total: u64) -> Error {
    let full = matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    let e = if full {
        let (file, all) = (Mib(bytes), Mib(total));
        io::Error::new(e.kind(), format!("the disk is full: this file needs {file}, the whole checkpoint {all}"))
    } else {
        e
    };
    Error::file(path, e)
}

struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:.1} MiB", self.0 as f64 / (1 << 20) as f64)
    }
}

fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Folders that are named as checkpoints, oldest first.
fn steps(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let mut all: Vec<_> = names(dir)?
        .into_iter()
        .filter_map(|n| Some((step_of(&n)?, dir.join(n))))
        .filter(|(_, path)| path.is_dir())
        .collect();
    all.sort();
    Ok(all)
}

/// Names in a folder; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries
            .map(|e| e.map(|e| e.file_name().to_string_lossy().into_owned()).map_err(|e| Error::file(dir, e)))
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(Error::file(dir, e)),
    }
}

/// Remove what a killed run left aside.
fn remove_leftovers(dir: &Path) -> Result<()> {
    for name in names(dir)?.into_iter().filter(|n| n.starts_with(ASIDE)) {
        let path = dir.join(name);
        let done = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        done.map_err(|e| Error::file(&path, e))?;
    }
    Ok(())
}

/// Remove a checkpoint. Its name goes first, so that no half of it is ever seen.
fn remove(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = path.with_file_name(format!("{ASIDE}old-{name}"));
    fs::rename(path, &aside).and_then(|()| fs::remove_dir_all(&aside)).map_err(|e| Error::file(path, e))
}

#[cfg(test)]
mod tests;
