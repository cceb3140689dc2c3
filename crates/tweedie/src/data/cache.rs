//! Decoded images kept in memory, for sets so small that decoding them anew in each epoch is a waste. What comes out is the
//! same with and without.

use super::{DataError, Extent, Image, ImageSource, Item, Locality, Needed, Result, Source, TextSource, Texts};
use crate::limits::memory;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Whether decoded images are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheMode {
    /// The images of a split that fits as a whole into what is left of an eighth of the memory.
    #[default]
    Auto,
    /// None.
    Off,
}

impl CacheMode {
    /// Bytes of pixels that a data set may keep.
    pub fn bytes(self) -> u64 {
        let all = match self {
            CacheMode::Auto if memory() == u64::MAX => 1 << 30, // not known: what any machine has
            CacheMode::Auto => memory() / 8,
            CacheMode::Off => 0,
        };
        all / PROCESSES.load(Ordering::Relaxed).max(1)
    }
}

/// Processes that keep images of the same data in the memory of this machine.
static PROCESSES: AtomicU64 = AtomicU64::new(1);

/// So many processes of one job run on this machine: each keeps its share of what [`CacheMode::Auto`] allows, in data that are opened
/// from now on.
pub fn share_memory(processes: usize) {
    PROCESSES.store(processes as u64, Ordering::Relaxed);
}

/// What the splits of a data set may keep together.
pub(crate) struct Budget {
    left: AtomicU64,
}

impl Budget {
    pub fn new(bytes: u64) -> Arc<Budget> {
        Arc::new(Budget { left: AtomicU64::new(bytes) })
    }

    fn claim(&self, bytes: u64) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub fn images(self: &Arc<Budget>, source: Source) -> Source {
        let pixels = Pixels::new(source.len(), self.clone());
        Arc::new(Cached { source, pixels })
    }

    pub fn captions(self: &Arc<Budget>, source: Texts) -> Texts {
        let pixels = Pixels::new(source.len(), self.clone());
        Arc::new(Cached { source, pixels })
    }
}

/// Images that are decoded before it is decided whether all of them would fit.
const PROBES: u64 = 64;

/// The images of one split.
struct Pixels {
    examples: usize,
    budget: Arc<Budget>,
    /// Images decoded so far and their bytes, until the decision.
    probed: Mutex<(u64, u64)>,
    /// The decision: none if the split does not fit.
    kept: OnceLock<Option<Kept>>,
}

struct Kept {
    slots: Vec<OnceLock<Image>>,
    /// Bytes that may still be kept: images can turn out larger than the first ones were.
    left: AtomicU64,
}

impl Pixels {
    fn new(examples: usize, budget: Arc<Budget>) -> Pixels {
        Pixels { examples, budget, probed: Mutex::default(), kept: OnceLock::new() }
    }

    /// Image `i`, kept or read. What cannot be read is not remembered: its error comes each time.
    fn get(&self, i: usize, read: impl FnOnce() -> Result<Image>) -> Result<Image> {
        match self.kept.get() {
            None => {
                let image = read()?;
                self.probe(image.data.len() as u64);
                Ok(image)
            }
            Some(None) => read(),
            Some(Some(kept)) => {
                let Some(slot) = kept.slots.get(i) else { return read() }; // whose own error it is
                if let Some(image) = slot.get() {
                    return Ok(image.copied());
                }
                let image = read()?;
                let bytes = image.data.len() as u64;
                let room = |left: u64| left.checked_sub(bytes);
                if kept.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
                    // A copy, since a decoder's memory may be larger than its image. Another thread may have been here,
                    // with the same pixels.
                    let _ = slot.set(image.clone());
                }
                Ok(image)
            }
        }
    }

    /// Those that are not kept.
    fn lacks(&self, examples: &[u32]) -> Vec<u32> {
        let kept = self.kept.get().and_then(Option::as_ref);
        let has = |i: &u32| kept.and_then(|k| k.slots.get(*i as usize)).is_some_and(|slot| slot.get().is_some());
        examples.iter().copied().filter(|i| !has(i)).collect()
    }

    /// Whether it was decided that the images do not fit.
    fn keeps_nothing(&self) -> bool {
        matches!(self.kept.get(), Some(None))
    }

    fn probe(&self, bytes: u64) {
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        probed.0 += 1;
        probed.1 += bytes;
        let (n, sum) = *probed;
        if n < PROBES.min(self.examples as u64) || self.kept.get().is_some() {
            return;
        }
        let each = sum / n + size_of::<OnceLock<Image>>() as u64;
        let all = (each * self.examples as u64).saturating_mul(11) / 10; // the probes are a sample
        let _ =
            self.kept.set(self.budget.claim(all).then(|| Kept {
                slots: (0..self.examples).map(|_| OnceLock::new()).collect(),
                left: AtomicU64::new(all),
            }));
    }
}

/// A source whose images are read once.
struct Cached<S: ?Sized> {
    source: Arc<S>,
    pixels: Pixels,
}

impl ImageSource for Cached<dyn ImageSource> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        let image = self.pixels.get(i, || Ok(self.source.get(i)?.image))?;
        Ok(Item { image, label: self.source.label(i) })
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        // What is kept is kept whole.
        if self.pixels.keeps_nothing() { self.source.get_top(i, needed) } else { self.get(i) }
    }

    fn label(&self, i: usize) -> u32 {
        self.source.label(i)
    }

    fn place(&self, i: usize) -> String {
        self.source.place(i)
    }

    /// The source's own: the order of an epoch must not depend on what is kept.
    fn locality(&self) -> Option<Locality> {
        self.source.locality()
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.source.extent(i)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(&self.pixels.lacks(examples));
    }
}

impl TextSource for Cached<dyn TextSource> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        self.source.texts(i)
    }

    fn texts_and_bad(&self, i: usize) -> Result<(Vec<String>, Option<DataError>)> {
        self.source.texts_and_bad(i)
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        // An example without an image is kept as an empty one.
        let nothing = || Image { width: 0, height: 0, channels: 3, data: Vec::new() };
        let image = self.pixels.get(i, || Ok(self.source.image(i)?.unwrap_or_else(nothing)))?;
        Ok((!image.data.is_empty()).then_some(image))
    }

    fn file_name(&self, i: usize) -> Option<String> {
        self.source.file_name(i)
    }

    fn place(&self, i: usize) -> String {
        self.source.place(i)
    }

    fn locality(&self) -> Option<Locality> {
        self.source.locality()
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.source.extent(i)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(&self.pixels.lacks(examples));
    }

    fn near_byte(&self, at: u64) -> usize {
        self.source.near_byte(at)
    }

    fn bytes(&self) -> u64 {
        self.source.bytes()
    }

    fn at_byte(&self, at: u64) -> Result<(usize, f64)> {
        self.source.at_byte(at)
    }

    fn is_stream(&self) -> bool {
        self.source.is_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Image `i` is one row of 10 pixels of value i; every seventh cannot be read. Counts what is read.
    struct Counted {
        n: usize,
        reads: AtomicUsize,
    }

    impl ImageSource for Counted {
        fn len(&self) -> usize {
            self.n
        }
        fn get(&self, i: usize) -> Result<Item> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            if i % 7 == 6 {
                return Err(DataError::Corrupt { place: self.place(i), message: "torn".into() });
            }
            Ok(Item { image: Image::filled(10, 1, &[i as u8; 3]), label: i as u32 % 3 })
        }
        fn label(&self, i: usize) -> u32 {
            i as u32 % 3
        }
        fn place(&self, i: usize) -> String {
            format!("number {i}")
        }
    }

    /// Reads of the source in each of four epochs, with what came out checked against the source.
    fn reads(n: usize, bytes: u64) -> Vec<usize> {
        let source = Arc::new(Counted { n, reads: AtomicUsize::new(0) });
        let plain = Counted { n, reads: AtomicUsize::new(0) };
        let cached = Budget::new(bytes).images(source.clone());
        let epoch = |_| {
            let before = source.reads.load(Ordering::Relaxed);
            for i in 0..n {
                let (got, want) = (cached.get(i), plain.get(i));
                assert_eq!(got.as_ref().ok(), want.as_ref().ok());
                assert_eq!(got.map_err(|e| e.to_string()).err(), want.map_err(|e| e.to_string()).err());
            }
            source.reads.load(Ordering::Relaxed) - before
        };
        (0..4).map(epoch).collect()
    }

    /// 140 images of which 20 are torn. The first 64 readable ones are probes; then all readable ones are kept, so that
    /// only torn ones are asked for again.
    #[test]
    fn a_small_set_is_read_once_and_errors_come_again() {
        let all = reads(140, 1 << 20);
        assert_eq!(all[0], 140);
        assert!(all[1] < 140 && all[1] > 20, "{all:?}");
        assert_eq!(all[2..], [20, 20]);
        // Fewer images than probes: as many as there are decide, torn ones do not count.
        assert_eq!(reads(5, 1 << 20)[2..], [0, 0]);
    }

    #[test]
    fn a_set_that_does_not_fit_is_read_each_time() {
        assert_eq!(reads(140, 140 * 30), [140; 4]); // pixels alone would fit, their places and a margin do not
        assert_eq!(reads(140, 0), [140; 4]);
    }

    #[test]
    fn processes_share_what_may_be_kept() {
        let alone = CacheMode::Auto.bytes();
        share_memory(8);
        let of_eight = CacheMode::Auto.bytes();
        share_memory(1);
        assert!(alone > 0 && of_eight == alone / 8 && CacheMode::Auto.bytes() == alone);
    }

    #[test]
    fn splits_share_their_budget() {
        let budget = Budget::new(100);
        assert!(budget.claim(60) && !budget.claim(60) && budget.claim(40) && !budget.claim(1));
    }
}
