//! Files that are either whole or not there, with errors that name them.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use unicode_normalization::UnicodeNormalization;

pub use tweedie_engine::files::{parent, sync_dir};

use crate::error::{Error, Result};
use crate::limits::Limit;

/// Open a regular file to read it. A pipe would wait for a writer and a device may never end: both are refused.
pub fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_file() {
        return File::open(path);
    }
    let what = if kind.is_dir() { "a folder" } else { "a pipe, a socket or a device" };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}, not a regular file")))
}

/// Read all of a regular file that is no longer than the limit.
pub fn read(path: &Path, limit: &Limit) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let bytes = file.metadata()?.len();
    limit.check(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    limit.read(file) // it may be growing
}

/// As [`read`], for text.
pub fn read_to_string(path: &Path, limit: &Limit) -> io::Result<String> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not UTF-8 text");
    String::from_utf8(read(path, limit)?).map_err(invalid)
}

/// The path as the disk has it. "é" may be written as one character or as two, "e" and an accent, as macOS does: where nothing lies
/// at `path`, each of its parts is tried in both forms. Still nothing: the path as it was given.
pub fn as_on_disk(path: &Path) -> PathBuf {
    let there = |path: &Path| path.symlink_metadata().is_ok();
    if path.to_str().is_none_or(str::is_ascii) || there(path) {
        return path.into();
    }
    let mut found = PathBuf::new();
    for part in path.components() {
        let plain = found.join(part);
        found = match part {
            Component::Normal(name) if !there(&plain) => {
                let name = name.to_string_lossy();
                let forms = [name.nfc().collect::<String>(), name.nfd().collect()];
                let Some(form) = forms.iter().map(|f| found.join(f)).find(|f| there(f)) else { return path.into() };
                form
            }
            _ => plain,
        };
    }
    found
}

/// Replace a small file in one step: written aside, synced, renamed. A crash leaves the old one or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    tweedie_engine::files::write_atomic(path, bytes).map_err(|e| Error::file(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::SMALL_BYTES;

    #[test]
    fn only_regular_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, "text").unwrap();
        assert_eq!(read_to_string(&path, &SMALL_BYTES).unwrap(), "text");
        fs::write(&path, [0xff]).unwrap();
        assert!(read_to_string(&path, &SMALL_BYTES).unwrap_err().to_string().contains("UTF-8"));
        assert!(read(dir.path(), &SMALL_BYTES).unwrap_err().to_string().contains("a folder"));
        if cfg!(unix) {
            assert!(read(Path::new("/dev/zero"), &SMALL_BYTES).unwrap_err().to_string().contains("device"));
        }
    }

    #[test]
    fn accents_may_be_written_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let (composed, apart) = ("caf\u{e9}/m\u{fc}de.txt", "cafe\u{301}/mu\u{308}de.txt");
        for (written, asked) in [(composed, apart), (apart, composed), ("cafe\u{301}/m\u{fc}de.txt", composed)] {
            let dir = tempfile::tempdir_in(dir.path()).unwrap();
            let path = dir.path().join(written);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "text").unwrap();
            assert_eq!(as_on_disk(&dir.path().join(asked)), path);
        }
        let none = dir.path().join(composed);
        assert_eq!(as_on_disk(&none), none);
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/a.json");
        let e = write_atomic(&path, b"x").unwrap_err();
        assert!(e.to_string().contains("a.json"), "{e}");
    }
}
