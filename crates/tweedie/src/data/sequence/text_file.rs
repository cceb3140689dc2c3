//! A text file that can be read anywhere, plain or gzipped. A gzipped file is unpacked at opening, into memory or, if it
//! is large, into a temporary file.

use super::super::{DataError, Result};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Unpacked bytes that are held in memory.
const IN_MEMORY: u64 = 256 << 20;

enum Bytes {
    Memory(Vec<u8>),
    File(Mutex<File>),
}

pub(crate) struct TextFile {
    pub path: PathBuf,
    bytes: Bytes,
    pub size: u64,
}

impl TextFile {
    pub fn open(path: &Path) -> Result<TextFile> {
        let file = File::open(path).map_err(DataError::io(path))?;
        if path.extension().is_none_or(|e| e != "gz") {
            let size = file.metadata().map_err(DataError::io(path))?.len();
            return Ok(TextFile { path: path.into(), bytes: Bytes::File(Mutex::new(file)), size });
        }
        let unpack = || -> io::Result<(Bytes, u64)> {
            let mut gz = MultiGzDecoder::new(BufReader::with_capacity(1 << 16, file));
            let mut memory = Vec::new();
            gz.by_ref().take(IN_MEMORY + 1).read_to_end(&mut memory)?;
            if memory.len() as u64 <= IN_MEMORY {
                let size = memory.len() as u64;
                return Ok((Bytes::Memory(memory), size));
            }
            let mut aside = tempfile::tempfile()?;
            io::copy(&mut memory.as_slice(), &mut aside)?;
            let size = memory.len() as u64 + io::copy(&mut gz, &mut aside)?;
            Ok((Bytes::File(Mutex::new(aside)), size))
        };
        let (bytes, size) = unpack()
            .map_err(|e| DataError::layout(path, format!("cannot be unpacked ({e}); is the download complete?")))?;
        Ok(TextFile { path: path.into(), bytes, size })
    }

    /// Fill `out` from byte `at` on; fewer bytes at the end of the file.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> Result<usize> {
        match &self.bytes {
            Bytes::Memory(all) => {
                let from = all.get(at as usize..).unwrap_or_default();
                let n = from.len().min(out.len());
                out[..n].copy_from_slice(&from[..n]);
                Ok(n)
            }
            Bytes::File(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let mut read = || -> io::Result<usize> {
                    file.seek(SeekFrom::Start(at))?;
                    let mut n = 0;
                    while n < out.len() {
                        match file.read(&mut out[n..])? {
                            0 => break,
                            k => n += k,
                        }
                    }
                    Ok(n)
                };
                read().map_err(DataError::io(&self.path))
            }
        }
    }

    /// The bytes `from..to`; fewer if the file has shrunk.
    pub fn bytes(&self, from: u64, to: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (to - from) as usize];
        let n = self.read_at(from, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }
}
