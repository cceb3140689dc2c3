//! Files that are either whole or not there, with errors that name them.

use std::path::Path;

pub use tweedie_engine::files::{parent, sync_dir};

use crate::error::{Error, Result};

/// Replace a small file in one step: written aside, synced, renamed. A crash leaves the old one or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    tweedie_engine::files::write_atomic(path, bytes).map_err(|e| Error::file(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("missing/a.json");
        let e = write_atomic(&path, b"x").unwrap_err();
        assert!(e.to_string().contains("a.json"), "{e}");
    }
}
