//! Files that are either whole or not there.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let folder = std::env::temp_dir().join(format!("tweedie-files-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! tweedie_engine::files::write_atomic(&folder.join("notes.txt"), b"all of it")?;
//! assert_eq!(std::fs::read(folder.join("notes.txt"))?, b"all of it");
//! std::fs::remove_dir_all(&folder)
//! # }
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names of files that are being written begin with this.
pub const ASIDE: &str = ".tmp-";

/// Replace a small file in one step: written aside, synced, renamed. A crash leaves the old one or the new one, and beside it at
/// most one file named [`ASIDE`] and the name, which the next write uses again. One writer at a time: see
/// [`write_atomic_shared`].
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_aside(path, "", bytes)
}

/// As [`write_atomic`], where several threads or processes may write the same file at once: each has a name aside of its own, and
/// the last to finish wins.
pub fn write_atomic_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let own = format!("{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    write_aside(path, &own, bytes)
}

fn write_aside(path: &Path, own: &str, bytes: &[u8]) -> io::Result<()> {
    let Some(file_name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} does not name a file", path.display())));
    };
    let mut name = OsString::from(ASIDE);
    name.push(own);
    name.push(file_name);
    let aside = path.with_file_name(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&aside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync_dir(parent(path))
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&aside);
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

    /// Where the name is taken by a folder the rename fails: what was written aside must not stay.
    #[test]
    fn a_failed_write_leaves_nothing_aside() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write_atomic(&dir.path().join("missing/a.json"), b"x").is_err());
        fs::create_dir_all(dir.path().join("taken/inside")).unwrap();
        for write in [write_atomic, write_atomic_shared] {
            assert!(write(&dir.path().join("taken"), b"x").is_err());
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        assert_eq!(write_atomic(Path::new("/"), b"x").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn writers_at_once_leave_one_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kernel.cubin");
        std::thread::scope(|s| {
            for i in 0..8_u8 {
                let path = &path;
                s.spawn(move || (0..10).for_each(|_| write_atomic_shared(path, &[i; 4096]).unwrap()));
            }
        });
        let got = fs::read(&path).unwrap();
        assert!(got.len() == 4096 && got.iter().all(|b| *b == got[0]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_folder_of_a_bare_name_is_here() {
        assert_eq!(parent(Path::new("a")), Path::new("."));
        assert_eq!(parent(Path::new("b/a")), Path::new("b"));
    }
}
