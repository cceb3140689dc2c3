//! Attacks on tweedie's parsers. A [`Target`] hands bytes to one of them as a file would; [`mutate`] makes hostile ones from good
//! ones, the same from the same seed. The `attack` command runs thousands under a limit of time and memory, `cargo test` a slice of
//! them and the files in `corpus/`, and `fuzz/` at the root of the repository lets libFuzzer look for more by coverage.

pub mod mutate;
mod repair;
mod targets;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use targets::TARGETS;

/// A parser under attack.
pub struct Target {
    /// Its name, which is also the folder of its corpus.
    pub name: &'static str,
    /// Hands it the bytes, and says whether it could use them. Whatever they are, this must return: without a panic, quickly and
    /// without much memory.
    pub run: fn(&Scratch, &[u8]) -> bool,
    /// Good inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|t| t.name == name)
    }

    /// Its seeds and what its corpus holds, in a fixed order.
    pub fn inputs(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut all = (self.seeds)();
        for path in self.corpus()? {
            all.push(fs::read(path)?);
        }
        Ok(all)
    }

    /// The files of its corpus: each was found to break something once.
    pub fn corpus(&self) -> io::Result<Vec<PathBuf>> {
        let folder = root("crates/fuzz/corpus").join(self.name);
        if !folder.is_dir() {
            return Ok(Vec::new());
        }
        let mut files = fs::read_dir(folder)?.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>()?;
        files.sort();
        Ok(files)
    }
}

/// A path in the repository.
pub(crate) fn root(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(below)
}

/// A folder for the files that a parser is pointed at, in memory where the system has such a place.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// A new one, removed at its end.
    pub fn new() -> io::Result<Scratch> {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        dir.map(Scratch)
    }

    /// A file in it with these bytes. A mutation must never be mistaken for a finding, so a disk that is full ends the attack.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(self.0.path());
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes));
        if let Err(e) = written {
            eprintln!("error: {}: {e}", path.display());
            std::process::exit(2);
        }
        path
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}
