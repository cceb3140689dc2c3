//! Reading checkpoints: which one, and what of it. Whatever is read is verified while it is read, and is read once.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{Component, FORMAT, FileChecksum, Manifest, STATE, Snapshot, State, best, steps};
use crate::error::{Error, Result};
use crate::files;
use crate::limits::{SMALL_BYTES, fits};
use crate::tensors::{self, NamedTensor};

/// The newest whole checkpoint, and a line for each newer one that was passed over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latest {
    /// The checkpoint, if there is any.
    pub path: Option<PathBuf>,
    /// Why others were not chosen.
    pub notes: Vec<String>,
}

/// What was read from the newest checkpoint of use, and a line for each that was passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Found<T> {
    /// What was read, if any was of use.
    pub checkpoint: Option<T>,
    /// Why others were not chosen.
    pub notes: Vec<String>,
}

/// The weights of one checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The checkpoint.
    pub path: PathBuf,
    /// Its counters and names.
    pub state: State,
    /// Its weights, or the averaged ones.
    pub weights: Vec<NamedTensor<'static>>,
}

/// Why a checkpoint cannot be used.
pub(super) enum Fault {
    /// Cut short or changed: an older one may serve.
    Torn(String),
    /// The system does not give it: an older one may serve.
    Unread(Error),
    /// Something that no other checkpoint mends.
    Other(Error),
}

type Checked<T> = std::result::Result<T, Fault>;

impl Fault {
    fn at(self, path: &Path) -> Error {
        match self {
            Fault::Torn(why) => Error::Input(format!("checkpoint {} is damaged: {why}", path.display())),
            Fault::Unread(e) | Fault::Other(e) => e,
        }
    }
}

/// What `read` makes of the newest checkpoint in `dir` that can be read and is not torn.
fn newest<T>(dir: &Path, mut read: impl FnMut(&Path) -> Checked<T>) -> Result<Found<T>> {
    let mut notes = Vec::new();
    for (_, path) in steps(dir)?.into_iter().rev() {
        match read(&path) {
            Ok(found) => return Ok(Found { checkpoint: Some(found), notes }),
            Err(fault @ (Fault::Torn(_) | Fault::Unread(_))) => notes.push(format!("{}; passed over", fault.at(&path))),
            Err(fault) => return Err(fault.at(&path)),
        }
    }
    Ok(Found { checkpoint: None, notes })
}

/// The newest checkpoint in `dir` that is whole, by sizes and checksums. This reads all of it: for what is in it,
/// [`load_latest`] and [`load_best`] read no more.
pub fn latest(dir: &Path) -> Result<Latest> {
    let Found { checkpoint: path, notes } = newest(dir, |path| verify(path).map(|_| path.to_path_buf()))?;
    Ok(Latest { path, notes })
}

/// The state of the newest checkpoint in `dir` whose files have the right sizes, if there is any. Reads no weights.
pub fn newest_state(dir: &Path) -> Result<Option<State>> {
    Ok(newest(dir, |path| verify_sizes(path).map(|m| m.state))?.checkpoint)
}

/// The newest whole checkpoint in `dir` and its folder: what a run goes on from. Reads each of its files once.
pub fn load_latest(dir: &Path) -> Result<Found<(PathBuf, Snapshot<'static>)>> {
    newest(dir, |path| Ok((path.to_path_buf(), read_all(path)?)))
}

/// What came of [`restore_newest`].
#[derive(Debug, Default)]
pub struct Restored {
    /// The checkpoint that was taken, if any was.
    pub path: Option<PathBuf>,
    /// Those that were passed over, the newest first.
    pub passed: Vec<PathBuf>,
    /// Why, a line for each.
    pub notes: Vec<String>,
    /// Why the newest intact one of those was not taken.
    pub misfit: Option<Error>,
}

/// Hand the checkpoints in `dir` to `take`, the newest first, until one is taken. One that is damaged, cannot be read or holds values
/// that are not finite is passed over.
pub fn restore_newest(dir: &Path, mut take: impl FnMut(&Path, Snapshot<'static>) -> Result<()>) -> Result<Restored> {
    let mut restored = Restored::default();
    for (_, path) in steps(dir)?.into_iter().rev() {
        let why = match read_patiently(&path) {
            Err(Fault::Other(e)) => return Err(e),
            Err(fault) => fault.at(&path),
            Ok(snapshot) => match snapshot.check_finite(&path).map(|()| take(&path, snapshot)) {
                Err(e) => e,
                Ok(Ok(())) => {
                    restored.path = Some(path);
                    break;
                }
                Ok(Err(e)) => {
                    let why = Error::Input(e.to_string());
                    restored.misfit.get_or_insert(e);
                    why
                }
            },
        };
        restored.notes.push(format!("{why}; passed over"));
        restored.passed.push(path);
    }
    Ok(restored)
}

/// As [`read_all`], again after a while where the system refuses.
fn read_patiently(path: &Path) -> Checked<Snapshot<'static>> {
    for wait in [100, 400].map(Duration::from_millis) {
        match read_all(path) {
            Err(Fault::Unread(_)) => std::thread::sleep(wait),
            read => return read,
        }
    }
    read_all(path)
}

/// The files with tensors of a damaged checkpoint that are whole: by their checksums, or where those are lost as far as they can be read.
/// Those that hold values which are not finite are not among them.
pub fn intact_components(path: &Path) -> Vec<Component> {
    let manifest = read_manifest(path).ok();
    let read = |part: &Component| match &manifest {
        Some(m) => read_component(path, m, *part).ok().flatten(),
        None => tensors::read(&path.join(part.file())).ok(),
    };
    let sound = |part: &Component| read(part).is_some_and(|all| tensors::first_not_finite(&all).is_none());
    [Component::Model, Component::Ema, Component::Optimizer].into_iter().filter(sound).collect()
}

/// The weights of the best checkpoint in `dir`, else of the newest of which they can be used: the `averaged` ones where
/// there are any. Reads no other file of a checkpoint, but looks at the sizes of all.
pub fn load_best(dir: &Path, averaged: bool) -> Result<Found<Chosen>> {
    let Some(best) = best(dir)? else { return newest(dir, |path| read_weights(path, averaged)) };
    let fault = match read_weights(&best, averaged) {
        Ok(chosen) => {
            let notes = newest(dir, verify_sizes)?.notes; // newer ones that are torn are told of as ever
            return Ok(Found { checkpoint: Some(chosen), notes });
        }
        Err(fault) => fault,
    };
    // Its turn comes again among the others; it need not be read again.
    let (why, fault) = match fault {
        Fault::Torn(why) => (Fault::Torn(why.clone()).at(&best).to_string(), Fault::Torn(why)),
        Fault::Unread(e) => (e.to_string(), Fault::Unread(e)),
        Fault::Other(e) => (e.to_string(), Fault::Other(e)),
    };
    let mut fault = Some(fault);
    let mut found = newest(dir, |path| match fault.take_if(|_| path == best) {
        Some(fault) => Err(fault),
        None => read_weights(path, averaged),
    })?;
    if let Some(chosen) = &found.checkpoint {
        let instead = chosen.path.display();
        found.notes.push(format!("the best checkpoint cannot be used ({why}); {instead} instead"));
    }
    Ok(found)
}

/// The weights of one checkpoint: the `averaged` ones where there are any. Reads their file once and no other, so that they serve where
/// another one is damaged.
pub fn load_weights(path: &Path, averaged: bool) -> Result<Chosen> {
    read_manifest(path).and_then(|m| weights_of(path, m, averaged)).map_err(|f| f.at(path))
}

/// A number that tells a checkpoint from others: the CRC-32C of its `state.json`, which has those of its other files.
pub fn fingerprint(path: &Path) -> Result<u32> {
    Ok(read_manifest(path).map_err(|f| f.at(path))?.crc32c)
}

/// Read a whole checkpoint, verified; each of its files once.
///
/// ```
/// use tweedie::checkpoint::{Snapshot, State, latest, load, save};
/// use tweedie::tensors::NamedTensor;
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
///
/// let model = vec![NamedTensor::new("w", &[2], vec![1.0, 2.0])];
/// let snapshot = Snapshot { state: State { step: 7, ..State::default() }, model, ..Snapshot::default() };
/// let path = save(folder, &snapshot)?;
/// assert!(path.ends_with("step-00000007") && latest(folder)?.path == Some(path.clone()));
/// assert_eq!(load(&path)?, snapshot);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn load(path: &Path) -> Result<Snapshot<'static>> {
    read_all(path).map_err(|f| f.at(path))
}

/// Read only the state of a checkpoint.
pub fn load_state(path: &Path) -> Result<State> {
    read_manifest(path).map(|m| m.state).map_err(|f| f.at(path))
}

/// Read one file of a checkpoint, verified, and the others' sizes with it; `None` where the checkpoint has none.
pub fn load_component(path: &Path, part: Component) -> Result<Option<Vec<NamedTensor<'static>>>> {
    verify_sizes(path).and_then(|m| read_component(path, &m, part)).map_err(|f| f.at(path))
}

fn read_all(path: &Path) -> Checked<Snapshot<'static>> {
    let manifest = verify_sizes(path)?;
    let part = |part| Ok::<_, Fault>(read_component(path, &manifest, part)?.unwrap_or_default());
    let (model, optimizer) = (part(Component::Model)?, part(Component::Optimizer)?);
    let ema = read_component(path, &manifest, Component::Ema)?;
    Ok(Snapshot { state: manifest.state, model, ema, optimizer })
}

fn read_weights(path: &Path, averaged: bool) -> Checked<Chosen> {
    weights_of(path, verify_sizes(path)?, averaged)
}

fn weights_of(path: &Path, manifest: Manifest, averaged: bool) -> Checked<Chosen> {
    let kept = averaged && manifest.files.contains_key(Component::Ema.file());
    let part = if kept { Component::Ema } else { Component::Model };
    let weights = read_component(path, &manifest, part)?.unwrap_or_default();
    Ok(Chosen { path: path.to_path_buf(), state: manifest.state, weights })
}

/// Checksum of a manifest, its own field apart. Compact JSON of a parsed value does not depend on how it was laid out.
pub(super) fn own_crc(manifest: &Value) -> u32 {
    let mut m = manifest.clone();
    if let Some(o) = m.as_object_mut() {
        o.insert("crc32c".into(), 0.into());
    }
    crc32c::crc32c(m.to_string().as_bytes())
}

fn read_manifest(path: &Path) -> Checked<Manifest> {
    let file = path.join(STATE);
    let bytes = files::read(&file, &SMALL_BYTES).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound if path.is_dir() => Fault::Torn(format!("{STATE} is missing")),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => Fault::Torn(format!("{STATE}: {e}")),
        _ => Fault::Unread(Error::file(&file, e)),
    })?;
    let torn = |e: serde_json::Error| Fault::Torn(format!("{STATE} ({} bytes) cannot be read: {e}", bytes.len()));
    let value: Value = serde_json::from_slice(&bytes).map_err(torn)?;
    if value["crc32c"].as_u64() != Some(own_crc(&value).into()) {
        return Err(Fault::Torn(format!("{STATE} does not match its checksum")));
    }
    match value["format"].as_u64() {
        Some(FORMAT) => serde_json::from_value(value).map_err(torn),
        other => Err(Fault::Other(Error::Input(format!(
            "checkpoint {} has format {}, this program reads {FORMAT}; use the version that wrote it",
            path.display(),
            other.map_or("unknown".into(), |v| v.to_string())
        )))),
    }
}

/// The manifest, if all files are there and as long as they should be.
pub(super) fn verify_sizes(path: &Path) -> Checked<Manifest> {
    let manifest = read_manifest(path)?;
    let parts = [Component::Model, Component::Ema, Component::Optimizer].map(Component::file);
    for (name, entry) in &manifest.files {
        if !parts.contains(&name.as_str()) {
            return Err(Fault::Torn(format!("{STATE} lists {name:?}, which is no file of a checkpoint")));
        }
        check_size(&path.join(name), name, entry.bytes)?;
    }
    Ok(manifest)
}

fn check_size(file: &Path, name: &str, expected: u64) -> Checked<()> {
    match fs::metadata(file) {
        Ok(m) if !m.is_file() => Err(Fault::Torn(format!("{name} is not a regular file"))),
        Ok(m) if m.len() == expected => Ok(()),
        Ok(m) => Err(Fault::Torn(format!("{name} should have {expected} bytes and has {}", m.len()))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Fault::Torn(format!("{name} ({expected} bytes) is missing")))
        }
        Err(e) => Err(Fault::Unread(Error::file(file, e))),
    }
}

/// The manifest, if every byte is what it should be.
pub(super) fn verify(path: &Path) -> Checked<Manifest> {
    let manifest = verify_sizes(path)?;
    for (name, entry) in &manifest.files {
        pieces(path, name, entry, |_| ())?;
    }
    Ok(manifest)
}

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Give the bytes of a file to `take`, piece by piece; an error at its end if they are not those that were written.
fn pieces(path: &Path, name: &str, entry: &FileChecksum, mut take: impl FnMut(&[u8])) -> Checked<()> {
    let file = path.join(name);
    let mut read = || -> io::Result<u32> {
        let mut from = files::open(&file)?.take(entry.bytes);
        let (mut piece, mut crc) = (vec![0; PIECE.min(usize::try_from(entry.bytes).unwrap_or(PIECE)).max(1)], 0);
        loop {
            match from.read(&mut piece) {
                Ok(0) => return Ok(crc),
                Ok(n) => {
                    crc = crc32c::crc32c_append(crc, &piece[..n]);
                    take(&piece[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    };
    let (crc, expected) = (read().map_err(|e| Fault::Unread(Error::file(&file, e)))?, entry.crc32c);
    if crc != expected {
        return Err(Fault::Torn(format!("{name} should have the checksum {expected:08x} and has {crc:08x}")));
    }
    Ok(())
}

fn read_component(path: &Path, manifest: &Manifest, part: Component) -> Checked<Option<Vec<NamedTensor<'static>>>> {
    let name = part.file();
    let Some(entry) = manifest.files.get(name) else {
        return match part {
            Component::Ema => Ok(None),
            _ => Err(Fault::Torn(format!("{STATE} does not list {name}"))),
        };
    };
    check_size(&path.join(name), name, entry.bytes)?; // nothing is reserved for a size that is only claimed
    fits(path.join(name).display(), 2 * entry.bytes as u128).map_err(|e| Fault::Other(Error::Input(e)))?;
    let mut bytes = Vec::with_capacity(entry.bytes as usize);
    pieces(path, name, entry, |piece| bytes.extend_from_slice(piece))?;
    tensors::decode(&bytes).map(Some).map_err(|e| Fault::Torn(format!("{name}: {e}")))
}
