//! Files made to break their readers are refused, or their rows are, with little time and memory spent.

mod archives;
mod folders;
mod images;
mod parquet;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tweedie::data::{self, DataError, Dataset, Image, OpenOptions, SequenceOptions, SequenceSet};

/// What a test may take, on a slow machine that is busy.
const SOON: Duration = Duration::from_secs(20);

fn soon<T>(what: &str, f: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = f();
    assert!(begun.elapsed() < SOON, "{what} took {:?}", begun.elapsed());
    result
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn png(mark: u8) -> Vec<u8> {
    Image::filled(3, 2, &[mark, 0, 9]).to_png().unwrap()
}

fn plain() -> OpenOptions {
    OpenOptions { decoded_bytes: 0, val_fraction: 0.0, ..OpenOptions::default() }
}

/// Open as labelled images and read all of it: the errors that were met.
fn read_images(path: &Path) -> Vec<DataError> {
    let set = match data::open(path, &plain()) {
        Ok(set) => set,
        Err(e) => return vec![e],
    };
    let Dataset { train, val, test, .. } = set;
    let all = [train, val, test].into_iter().flatten();
    all.flat_map(|s| (0..s.len()).filter_map(|i| s.get(i).err()).collect::<Vec<_>>()).collect()
}

fn open_texts(path: &Path) -> Result<SequenceSet, DataError> {
    data::open_sequences(path, &SequenceOptions { open: plain(), ..SequenceOptions::default() })
}

/// Open as captions or text and read all of it.
fn read_texts(path: &Path) -> Vec<DataError> {
    let set = match open_texts(path) {
        Ok(set) => set,
        Err(e) => return vec![e],
    };
    let mut errors = Vec::new();
    for source in [set.train, set.val, set.test].into_iter().flatten() {
        for i in 0..source.len() {
            errors.extend(source.texts(i).err());
            errors.extend(source.image(i).err());
        }
    }
    errors
}

fn first(errors: Vec<DataError>) -> String {
    errors.first().expect("an error").to_string()
}

/// The same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// Some bytes set to others, cut out or put in.
    fn mutate(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(out.len());
            match self.below(6) {
                0 => out[at] ^= 1 << self.below(8),
                1 => out[at] = [0, 0xff, 0x7f, 0x80][self.below(4)],
                2 => out[at] = self.below(256) as u8,
                3 => (at..(at + 4).min(bytes.len()).min(out.len())).for_each(|i| out[i] = 0xff),
                4 => drop(out.drain(at..(at + 1 + self.below(8)).min(out.len()))),
                _ => out.insert(at, self.below(256) as u8),
            }
            if out.is_empty() {
                out.push(0);
            }
        }
        out
    }
}
