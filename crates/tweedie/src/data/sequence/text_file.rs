//! A text file that can be read anywhere, plain or gzipped. A gzipped file is unpacked at opening, into memory or, if it
//! is large, into a temporary file.

use super::super::{DataError, Result};
use crate::{files, limits};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Unpacked bytes that are held in memory.
const IN_MEMORY: u64 = 256 << 20;

/// Text is hardly ever packed more tightly than this: above the limit on unpacked bytes, no more of it is believed.
const RATIO: u64 = 64;

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
        let file = files::open(path).map_err(DataError::io(path))?;
        let size = file.metadata().map_err(DataError::io(path))?.len();
        if path.extension().is_none_or(|e| e != "gz") {
            return Ok(TextFile { path: path.into(), bytes: Bytes::File(Mutex::new(file)), size });
        }
        let gz = MultiGzDecoder::new(BufReader::with_capacity(1 << 16, file));
        let most = limits::UNPACKED_BYTES.get().max(size.saturating_mul(RATIO));
        let (bytes, size) = unpack(gz, IN_MEMORY, most)
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
        let mut bytes = vec![0; to.saturating_sub(from) as usize];
        let n = self.read_at(from, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }
}

/// All that comes out of `from`, at most `most` bytes: in memory, or aside if there are more than `in_memory`.
fn unpack(mut from: impl Read, in_memory: u64, most: u64) -> io::Result<(Bytes, u64)> {
    let mut memory = Vec::new();
    from.by_ref().take(in_memory.saturating_add(1)).read_to_end(&mut memory)?;
    let size = memory.len() as u64;
    if size <= in_memory {
        return Ok((Bytes::Memory(memory), size));
    }
    let mut aside = tempfile::tempfile()?;
    io::copy(&mut memory.as_slice(), &mut aside)?;
    let more = most.saturating_sub(size);
    let size = size + io::copy(&mut from.take(more.saturating_add(1)), &mut aside)?;
    if size > most {
        let why =
            format!("{most} bytes and more come out of it; {} sets another limit", limits::UNPACKED_BYTES.variable);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok((Bytes::File(Mutex::new(aside)), size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_unpacked_up_to_a_limit() {
        let size = |n: u64| unpack(io::repeat(b'a').take(n), 10, 100).map(|(_, size)| size);
        assert_eq!((size(10).unwrap(), size(11).unwrap(), size(100).unwrap()), (10, 11, 100));
        let e = size(101).unwrap_err().to_string();
        assert!(e.contains("TWEEDIE_MAX_UNPACKED_BYTES"), "{e}");
        assert!(unpack(io::repeat(b'a'), 10, 100).is_err());
    }
}
