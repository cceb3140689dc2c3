//! Files that are either whole or not there.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// Replace a small file in one step: written aside, synced, renamed. A crash leaves the old one or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = std::ffi::OsString::from(".tmp-");
    name.push(path.file_name().unwrap_or_default());
    let aside = path.with_file_name(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync_dir(parent(path))
    };
    write().map_err(|e| {
        let _ = fs::remove_file(&aside);
        Error::file(path, e)
    })
}

/// Make the names in a folder durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    // Elsewhere a folder cannot be opened as a file, and renames are durable without.
    if cfg!(unix) { File::open(dir)?.sync_all() } else { Ok(()) }
}

/// The folder that `path` is in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_write_replaces_and_leaves_nothing_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_atomic(&path, b"old, and longer").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/a.json");
        let e = write_atomic(&path, b"x").unwrap_err();
        assert!(e.to_string().contains("a.json"), "{e}");
    }

    #[test]
    fn the_folder_of_a_bare_name_is_here() {
        assert_eq!(parent(Path::new("a")), Path::new("."));
        assert_eq!(parent(Path::new("b/a")), Path::new("b"));
    }
}
