//! Which examples belong to which split.

use super::order::shuffled;
use super::sources::beyond;
use super::{
    DataError, Extent, Image, ImageSource, Item, Locality, Needed, OpenOptions, Result, Source, TextSource, Texts,
};
use crate::random::{Draw, Stream};
use std::path::Path;
use std::sync::Arc;

/// The three splits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    Train,
    Val,
    Test,
}

impl Split {
    /// The split that a word names.
    pub fn of_word(word: &str) -> Option<Split> {
        match word.to_ascii_lowercase().as_str() {
            "train" | "training" => Some(Split::Train),
            "val" | "valid" | "validation" | "dev" => Some(Split::Val),
            "test" | "testing" | "eval" => Some(Split::Test),
            _ => None,
        }
    }

    /// The split that a file belongs to by a word in its name (`train-00000-of-00002.parquet`,
    /// `imagenet1k-validation-03.tar`) or else by its folder, below `root`.
    pub fn of_file(file: &Path, root: &Path) -> Option<Split> {
        let words = |text: &str| text.split(|c: char| !c.is_ascii_alphabetic()).find_map(Split::of_word);
        let stem = file.file_stem()?.to_string_lossy();
        words(&stem).or_else(|| {
            let below = file.parent()?.strip_prefix(root).ok()?;
            below.components().rev().find_map(|c| words(&c.as_os_str().to_string_lossy()))
        })
    }
}

/// What has a number of examples.
pub trait Numbered {
    /// How many.
    fn count(&self) -> usize;
}

impl Numbered for dyn ImageSource {
    fn count(&self) -> usize {
        self.len()
    }
}

impl Numbered for dyn TextSource {
    fn count(&self) -> usize {
        self.len()
    }
}

/// Some of the examples of another source.
pub struct Subset<S: ?Sized = dyn ImageSource> {
    source: Arc<S>,
    indices: Vec<u32>,
}

impl<S: ?Sized + Numbered> Subset<S> {
    /// The examples `indices` of `source`; an error if it has not all of them.
    pub fn new(source: Arc<S>, indices: Vec<u32>) -> Result<Subset<S>> {
        let all = source.count();
        match indices.iter().find(|&&i| i as usize >= all) {
            Some(&i) => Err(beyond(i as usize, all)),
            None => Ok(Subset { source, indices }),
        }
    }
}

impl<S: ?Sized> Subset<S> {
    fn of(&self, i: usize) -> Result<usize> {
        self.indices.get(i).map(|&i| i as usize).ok_or_else(|| beyond(i, self.indices.len()))
    }

    fn local(&self, whole: Option<Locality>) -> Option<Locality> {
        let moved = |start| self.indices.partition_point(|&i| i < start) as u32;
        self.indices.is_sorted().then(|| Some(whole?.renumbered(self.indices.len(), moved)))?
    }

    /// The numbers of these examples in the source.
    fn inside(&self, examples: &[u32]) -> Vec<u32> {
        examples.iter().filter_map(|&i| self.indices.get(i as usize).copied()).collect()
    }
}

impl ImageSource for Subset {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        self.source.get(self.of(i)?)
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        self.source.get_top(self.of(i)?, needed)
    }

    fn label(&self, i: usize) -> u32 {
        self.of(i).map_or(u32::MAX, |i| self.source.label(i))
    }

    fn place(&self, i: usize) -> String {
        self.of(i).map_or_else(|e| e.to_string(), |i| self.source.place(i))
    }

    fn locality(&self) -> Option<Locality> {
        self.local(self.source.locality())
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.source.extent(self.of(i).ok()?)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(&self.inside(examples));
    }
}

impl TextSource for Subset<dyn TextSource> {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        self.source.texts(self.of(i)?)
    }

    fn texts_and_bad(&self, i: usize) -> Result<(Vec<String>, Option<DataError>)> {
        self.source.texts_and_bad(self.of(i)?)
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        self.source.image(self.of(i)?)
    }

    fn place(&self, i: usize) -> String {
        self.of(i).map_or_else(|e| e.to_string(), |i| self.source.place(i))
    }

    fn file_name(&self, i: usize) -> Option<String> {
        self.source.file_name(self.of(i).ok()?)
    }

    fn locality(&self) -> Option<Locality> {
        self.local(self.source.locality())
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.source.extent(self.of(i).ok()?)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(&self.inside(examples));
    }

    fn bytes(&self) -> u64 {
        (self.source.bytes() as f64 * self.indices.len() as f64 / self.source.len().max(1) as f64) as u64
    }

    fn is_stream(&self) -> bool {
        self.source.is_stream()
    }
}

/// `count` of the examples of `source`, drawn evenly by `seed`, in their order; all where there are no more.
pub fn some_of(source: &Source, count: usize, seed: u64) -> Result<Source> {
    Ok(match drawn(source.len(), count, seed) {
        Some(drawn) => Arc::new(Subset::new(source.clone(), drawn)?),
        None => source.clone(),
    })
}

/// As [`some_of`], of texts.
pub fn some_texts(source: &Texts, count: usize, seed: u64) -> Result<Texts> {
    Ok(match drawn(source.len(), count, seed) {
        Some(drawn) => Arc::new(Subset::new(source.clone(), drawn)?),
        None => source.clone(),
    })
}

/// `count` of `len` places, in their order; none where there are no more.
fn drawn(len: usize, count: usize, seed: u64) -> Option<Vec<u32>> {
    if count >= len {
        return None;
    }
    let mut drawn = shuffled(len, seed, 0);
    drawn.truncate(count);
    drawn.sort_unstable();
    Some(drawn)
}

/// Fill in the split for evaluation during training: what is there, else a part of the training examples, which `hold`
/// makes, else the test split. Says where it comes from.
pub(crate) fn choose_validation<S: ?Sized>(
    [train, val, test]: [&mut Option<Arc<S>>; 3],
    hold: impl FnOnce(&Arc<S>) -> Option<(Arc<S>, Arc<S>, String)>,
) -> String {
    if val.is_some() {
        return "the validation split".into();
    }
    match train.as_ref().and_then(hold) {
        Some((rest, held, origin)) => {
            (*train, *val) = (Some(rest), Some(held));
            origin
        }
        None if test.is_some() => {
            val.clone_from(test);
            "the test split, for want of a validation split".into()
        }
        None => "nothing held out".into(),
    }
}

/// [`choose_validation`] for labelled images.
pub(crate) fn choose_images(splits: [&mut Option<Source>; 3], options: &OpenOptions) -> String {
    choose_validation(splits, |train| {
        let (rest, held) = held_out(train.len(), options)?;
        let share = options.val_fraction * 100.0;
        let origin = format!("{} of {} training images held out ({share:.0} %)", held.len(), train.len());
        let part = |indices| Some(Arc::new(Subset::new(train.clone(), indices).ok()?) as Source);
        Some((part(rest)?, part(held)?, origin))
    })
}

/// The error for a split that a set of own code was not given.
pub(crate) fn not_given(name: &str, what: &str) -> DataError {
    let how = if what == "validation" { ".validation(…) or .hold_out(…)" } else { ".train(…)" };
    DataError::Setting(format!("data set \"{name}\" has no {what} split; give it one with {how} when it is built"))
}

/// Split into (kept, held out), or none if either were empty.
pub(crate) fn held_out(len: usize, options: &OpenOptions) -> Option<(Vec<u32>, Vec<u32>)> {
    let (rest, held) = hold_out(len, options.val_fraction, options.split_seed);
    (!rest.is_empty() && !held.is_empty()).then_some((rest, held))
}

/// Split into (kept, held out), both ascending. Each example is held out or not by a hash of its own number, so examples
/// added at the end of a set do not move the others.
pub(crate) fn hold_out(len: usize, fraction: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    (0..len as u32).partition(|&i| !Draw::new(seed, Stream::Split, 0, i).chance(fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_named_by_file_or_folder() {
        let of = |f: &str| Split::of_file(Path::new(f), Path::new("/d/test-area"));
        assert_eq!(of("/d/test-area/data/train-00000-of-00002.parquet"), Some(Split::Train));
        assert_eq!(of("/d/test-area/default/validation/0000.parquet"), Some(Split::Val));
        assert_eq!(of("/d/test-area/imagenet1k-val_0003.tar"), Some(Split::Val));
        assert_eq!(of("/d/test-area/latest.parquet"), None);
    }
}
