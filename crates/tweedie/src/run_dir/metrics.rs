//! `metrics.jsonl`: a JSON object on each line, whole or absent.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::files::{open, write_atomic};
use crate::limits::TEXT_BYTES;

/// Longest line of metrics.
const LINE: u64 = 1 << 24;

/// Give `f` each line that is a JSON object, one at a time; none if there is no file.
pub(super) fn each_line(path: &Path, mut f: impl FnMut(&[u8], Value)) -> Result<()> {
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
    /// Begin with the lines that are `kept`, in place of those in the file.
    pub(super) fn begin(path: PathBuf, kept: &[u8]) -> Result<Metrics> {
        write_atomic(&path, kept)?;
        let file = File::options().read(true).append(true).open(&path).map_err(|e| Error::file(&path, e))?;
        Ok(Metrics { path, file, written: kept.len() as u64, waiting: Vec::new(), torn: false })
    }

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

#[cfg(all(test, target_os = "linux"))] // which has /dev/full
mod tests {
    use super::*;
    use crate::run_dir::RunDir;
    use serde_json::json;

    /// Lines that a full disk refuses come later, whole and in order.
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
        assert_eq!(std::fs::read_to_string(run.metrics_path()).unwrap(), text);
        assert_eq!(metrics.contents().unwrap(), text.as_bytes());
    }
}
