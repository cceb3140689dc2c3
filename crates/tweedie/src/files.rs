//! Files that are either whole or not there, with errors that name them.

use std::fs::{self, File};
use std::io;
use std::path::Path;

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
    fn a_failed_write_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/a.json");
        let e = write_atomic(&path, b"x").unwrap_err();
        assert!(e.to_string().contains("a.json"), "{e}");
    }
}
