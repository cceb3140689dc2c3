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

use std::fmt::Display;
use std::io::{self, Read};
use std::ops::{Bound, RangeBounds};
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
/// Bytes of a recipe, or of the settings of a run.
pub static SETTINGS_BYTES: Limit = Limit::new("TWEEDIE_MAX_SETTINGS_BYTES", "bytes in a file of settings", 1 << 20);
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

    /// Let it be `n` in this process, unless its variable says otherwise or it was asked for before: a server allows less than a
    /// command.
    pub fn lower(&self, n: u64) {
        if std::env::var_os(self.variable).is_none() {
            let _ = self.set.set(n);
        }
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

/// An error that names a setting, its value and its range, unless the value lies in it; NaN lies in none.
///
/// ```
/// use tweedie::limits::within;
///
/// assert!(within("train.batch", 64, 1..=4096).is_ok());
/// assert_eq!(within("train.ema", 1.0, 0.0..1.0).unwrap_err(), "train.ema = 1 must lie in [0, 1)");
/// ```
pub fn within<T: PartialOrd + Display>(key: &str, value: T, range: impl RangeBounds<T>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    let from = match range.start_bound() {
        Bound::Included(a) => format!("[{a}"),
        Bound::Excluded(a) => format!("({a}"),
        Bound::Unbounded => "(−∞".into(),
    };
    let to = match range.end_bound() {
        Bound::Included(b) => format!("{b}]"),
        Bound::Excluded(b) => format!("{b})"),
        Bound::Unbounded => "∞)".into(),
    };
    Err(format!("{key} = {value} must lie in {from}, {to}"))
}

/// Bytes of memory that this process may use: the machine's, or its group's or its own limit where that is less.
pub fn memory() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let first = |text: &str, name: &str| -> Option<u64> {
            text.lines().find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
        };
        let machine = first(&read("/proc/meminfo"), "MemTotal:").map_or(u64::MAX, |kib| kib << 10);
        let group = read("/sys/fs/cgroup/memory.max").trim().parse().unwrap_or(u64::MAX);
        let own = first(&read("/proc/self/limits"), "Max address space").unwrap_or(u64::MAX);
        machine.min(group).min(own)
    })
}

/// An error that says what needs how many bytes, if that is more than the [`memory`] there is.
pub fn fits(what: impl Display, bytes: u128) -> Result<(), String> {
    let gib = |n: u128| n as f64 / (1_u64 << 30) as f64;
    match memory() {
        most if bytes <= most as u128 => Ok(()),
        most => Err(format!(
            "{what} needs about {:.1} GiB of memory at the least, there are {:.1} GiB",
            gib(bytes),
            gib(most as u128)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_named_and_nan_lies_in_none() {
        use Bound::{Excluded, Included};
        assert!(within("a", f64::NAN, ..).is_ok(), "no range at all");
        for v in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let e = within("a.b", v, (Excluded(0.0), Included(9.5))).unwrap_err();
            assert_eq!(e, format!("a.b = {v} must lie in (0, 9.5]"));
        }
        assert!(fits("a dog", 1 << 20).is_ok() && memory() > 1 << 20);
        assert!(fits("a dog", u128::MAX).unwrap_err().starts_with("a dog needs about "));
    }

    #[test]
    fn a_stream_is_read_up_to_its_limit() {
        let ten = Limit::new("TWEEDIE_MAX_NONE", "bytes of a test", 10);
        assert_eq!(ten.read(&[7; 10][..]).unwrap(), [7; 10]);
        let e = ten.read(io::repeat(7)).unwrap_err().to_string();
        assert_eq!(e, "at least 11 bytes of a test, above the limit of 10; TWEEDIE_MAX_NONE sets another");
        assert!(ten.check(10).is_ok() && ten.check(11).is_err());
    }
}
