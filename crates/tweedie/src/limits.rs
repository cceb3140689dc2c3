//! What a file may ask for. A header of a few bytes can claim terabytes: whatever a file says of its own size is held against one
//! of these limits before memory is reserved or time is spent. Each is named in its error and can be raised by an environment
//! variable for real data that need more.
//!
//! ```
//! use tweedie::limits::PIXELS;
//!
//! assert!(PIXELS.check(4_000 * 3_000).is_ok());
//! let why = PIXELS.check(1 << 40).unwrap_err();
//! assert!(why.contains("TWEEDIE_MAX_PIXELS"), "{why}");
//! ```

use std::io::{self, Read};
use std::sync::OnceLock;

/// A most, with its name.
#[derive(Debug)]
pub struct Limit {
    /// The environment variable that sets it.
    pub variable: &'static str,
    /// What is counted: "pixels", "bytes after decompression".
    pub what: &'static str,
    default: u64,
    set: OnceLock<u64>,
}

/// Pixels of an image: as many as PIL decodes without a warning.
pub static PIXELS: Limit = Limit::new("TWEEDIE_MAX_PIXELS", "pixels in an image", 89_478_485);
/// Bytes of one image as it is stored.
pub static IMAGE_BYTES: Limit = Limit::new("TWEEDIE_MAX_IMAGE_BYTES", "bytes in an image file", 256 << 20);
/// Bytes of a file that is read as a whole: JSON, TOML, lists, tokenizers.
pub static TEXT_BYTES: Limit = Limit::new("TWEEDIE_MAX_TEXT_BYTES", "bytes in a file that is read as a whole", 1 << 30);
/// Bytes of a small file: settings, a manifest, a list of classes.
pub static SMALL_BYTES: Limit = Limit::new("TWEEDIE_MAX_SMALL_BYTES", "bytes in a small file", 64 << 20);
/// Bytes that come out of a compressed stream.
pub static UNPACKED_BYTES: Limit = Limit::new("TWEEDIE_MAX_UNPACKED_BYTES", "bytes after decompression", 1 << 30);
/// Rows, members or files of a data set.
pub static ENTRIES: Limit = Limit::new("TWEEDIE_MAX_ENTRIES", "entries in a data set", 1 << 28);

impl Limit {
    const fn new(variable: &'static str, what: &'static str, default: u64) -> Limit {
        Limit { variable, what, default, set: OnceLock::new() }
    }

    /// The most there may be. A variable that is not a number is as if it were not set.
    pub fn get(&self) -> u64 {
        let own = || std::env::var(self.variable).ok().and_then(|v| v.trim().replace('_', "").parse().ok());
        *self.set.get_or_init(|| own().unwrap_or(self.default))
    }

    /// An error that names the limit if `n` is above it.
    pub fn check(&self, n: u64) -> Result<(), String> {
        if n <= self.get() { Ok(()) } else { Err(self.exceeded(n)) }
    }

    /// What is said of `n` that are too many.
    fn exceeded(&self, n: u64) -> String {
        let Limit { variable, what, .. } = self;
        format!("{n} {what}, above the limit of {}; {variable} sets another", self.get())
    }

    /// Read all of `from`; an error where there is more than the limit.
    pub fn read(&self, from: impl Read) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        from.take(self.get().saturating_add(1)).read_to_end(&mut bytes)?;
        let n = bytes.len() as u64;
        if n > self.get() { Err(io::Error::new(io::ErrorKind::InvalidData, self.at_least(n))) } else { Ok(bytes) }
    }

    fn at_least(&self, n: u64) -> String {
        format!("at least {}", self.exceeded(n))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_up_to_its_limit() {
        let ten = Limit::new("TWEEDIE_MAX_NONE", "bytes of a test", 10);
        assert_eq!(ten.read(&[7; 10][..]).unwrap(), [7; 10]);
        let e = ten.read(io::repeat(7)).unwrap_err().to_string();
        assert_eq!(e, "at least 11 bytes of a test, above the limit of 10; TWEEDIE_MAX_NONE sets another");
        assert!(ten.check(10).is_ok() && ten.check(11).is_err());
    }
}
