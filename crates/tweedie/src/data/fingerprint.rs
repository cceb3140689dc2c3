//! What data look like, in a few numbers: enough to notice that a run is gone on with on others.

use std::fmt::Write;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Dataset, SequenceSet, Source, Texts};

/// Counts, names, sizes and sampled contents of a data set. Where it lies does not matter, only what it holds.
///
/// ```
/// use tweedie::data::{Dataset, Fingerprint};
///
/// let of = |name| Dataset::embedded(name).map(|set| Fingerprint::of_classes(&set));
/// assert!(of("digits")?.changes(&of("digits")?).is_empty());
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Names of the classes, in order.
    pub classes: Vec<String>,
    /// What is trained on.
    pub train: Option<SplitFingerprint>,
    /// What checkpoints are chosen by.
    pub val: Option<SplitFingerprint>,
}

/// One split.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitFingerprint {
    /// Its size.
    pub examples: usize,
    /// Checksum of the labels, spread over all of it.
    pub labels: u32,
    /// Some of the examples.
    pub samples: Vec<Sample>,
}

/// One example.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its number.
    pub index: usize,
    /// What its file or member is called, without the folders that it lies in.
    pub name: String,
    /// Checksum of what it holds: the size of the image and its upper rows, its texts. None if it could not be read, which says nothing:
    /// it may be read another time.
    pub content: Option<u32>,
}

/// Examples that are read of a split, and labels that are looked at.
const SAMPLES: usize = 12;
const LABELS: usize = 1 << 16;

/// Rows of an image that are compared: those further down need not be decoded.
const ROWS: usize = 16;

/// `most` numbers below `n`, evenly spread, the first and the last among them.
fn spread(n: usize, most: usize) -> Vec<usize> {
    let k = n.min(most);
    (0..k).map(|i| if k == 1 { 0 } else { (i as u128 * (n - 1) as u128 / (k - 1) as u128) as usize }).collect()
}

/// The end of a place: a data set that was moved to another folder is the same.
fn name(place: &str) -> String {
    place.rsplit(['/', '\\']).next().unwrap_or(place).to_string()
}

/// Checksum of an image.
fn picture(image: &super::Image) -> u32 {
    let rows = (ROWS * image.width * image.channels).min(image.data.len());
    let size = [image.width as u64, image.height as u64, image.channels as u64].map(u64::to_le_bytes).concat();
    crc32c::crc32c_append(crc32c::crc32c(&size), &image.data[..rows])
}

impl SplitFingerprint {
    fn of_images(source: &Source) -> SplitFingerprint {
        let n = source.len();
        let labels =
            spread(n, LABELS).into_iter().fold(0, |sum, i| crc32c::crc32c_append(sum, &source.label(i).to_le_bytes()));
        let sample = |index: usize| {
            let item = source.get_top(index, &|_, _| ROWS);
            Sample { index, name: name(&source.place(index)), content: item.ok().map(|item| picture(&item.image)) }
        };
        SplitFingerprint { examples: n, labels, samples: spread(n, SAMPLES).into_par_iter().map(sample).collect() }
    }

    fn of_texts(source: &Texts) -> SplitFingerprint {
        let n = source.len();
        let sample = |index: usize| {
            let content = source.texts(index).and_then(|texts| {
                let image = source.image(index)?.map_or(0, |image| picture(&image));
                Ok(crc32c::crc32c_append(image, texts.join("\n").as_bytes()))
            });
            Sample { index, name: name(&source.place(index)), content: content.ok() }
        };
        SplitFingerprint { examples: n, labels: 0, samples: spread(n, SAMPLES).into_par_iter().map(sample).collect() }
    }

    /// What differs in `now`.
    fn changes(&self, now: &SplitFingerprint, split: &str, out: &mut Vec<String>) {
        if self.examples != now.examples {
            out.push(format!("the {split} split had {} examples and has {}", self.examples, now.examples));
            return; // everything else has moved
        }
        if self.labels != now.labels {
            out.push(format!("labels of the {split} split are others"));
        }
        let pairs = || self.samples.iter().zip(&now.samples);
        let other = |a: &Sample, b: &Sample| a.name != b.name || a.content.zip(b.content).is_some_and(|(a, b)| a != b);
        let others: Vec<_> = pairs().filter(|(a, b)| other(a, b)).collect();
        if let Some((before, after)) = others.first() {
            let (index, all) = (before.index, self.samples.len());
            let mut line = format!("example {index} of the {split} split ({}) ", before.name);
            let _ = match before.name == after.name {
                true => write!(line, "holds something else"),
                false => write!(line, "is now {}", after.name),
            };
            out.push(format!("{line}; so it is with {} of {all} that were looked at", others.len()));
        }
    }
}

impl Fingerprint {
    /// Of images with classes. Reads a few of them.
    pub fn of_classes(set: &Dataset) -> Fingerprint {
        let part = |source: &Option<Source>| source.as_ref().map(SplitFingerprint::of_images);
        Fingerprint { classes: set.class_names.clone(), train: part(&set.train), val: part(&set.val) }
    }

    /// Of captions or text. Reads a few of them.
    pub fn of_sequences(set: &SequenceSet) -> Fingerprint {
        let part = |source: &Option<Texts>| source.as_ref().map(SplitFingerprint::of_texts);
        Fingerprint { classes: Vec::new(), train: part(&set.train), val: part(&set.val) }
    }

    /// What differs in `now`, a line each; none if they are the same as far as can be seen.
    pub fn changes(&self, now: &Fingerprint) -> Vec<String> {
        let mut out = Vec::new();
        if self.classes != now.classes {
            let (before, after) = (self.classes.len(), now.classes.len());
            let other = self.classes.iter().zip(&now.classes).position(|(a, b)| a != b);
            out.push(match other {
                Some(i) => format!("class {i} was `{}` and is `{}`", self.classes[i], now.classes[i]),
                None => format!("there were {before} classes and are {after}"),
            });
        }
        for (split, before, after) in [("training", &self.train, &now.train), ("validation", &self.val, &now.val)] {
            match (before, after) {
                (Some(before), Some(after)) => before.changes(after, split, &mut out),
                (Some(_), None) => out.push(format!("there is no {split} split any more")),
                (None, Some(_)) => out.push(format!("there is a {split} split now")),
                (None, None) => {}
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Image, Item, Items};

    fn greys(values: &[(u8, u32)], names: [&str; 2]) -> Fingerprint {
        let item = |(v, label): &(u8, u32)| Item { image: Image::filled(3, 2, &[*v]), label: *label };
        let items = |values: &[(u8, u32)]| Items::new(values.iter().map(item).collect());
        let set = Dataset::classes("greys", names)
            .train(items(values))
            .validation(items(&[(1, 0), (2, 1)]))
            .channels(1)
            .build();
        Fingerprint::of_classes(&set.unwrap())
    }

    #[test]
    fn every_change_is_told() {
        let values = [(1, 0), (2, 1), (3, 0), (4, 1)];
        let before = greys(&values, ["dark", "light"]);
        assert!(before.changes(&greys(&values, ["dark", "light"])).is_empty());
        let told = |values: &[(u8, u32)], names| before.changes(&greys(values, names)).join("; ");
        assert_eq!(told(&values, ["dark", "white"]), "class 1 was `light` and is `white`");
        assert_eq!(told(&values[..3], ["dark", "light"]), "the training split had 4 examples and has 3");
        let swapped = [(1, 0), (2, 0), (3, 1), (4, 1)];
        assert_eq!(told(&swapped, ["dark", "light"]), "labels of the training split are others");
        let other = [(1, 0), (9, 1), (3, 0), (4, 1)];
        let line = told(&other, ["dark", "light"]);
        assert!(
            line.contains("example 1 of the training split")
                && line.contains("holds something else; so it is with 1 of 4"),
            "{line}"
        );
        let json = serde_json::to_string(&before).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), before);
    }

    #[test]
    fn samples_are_spread_over_all() {
        assert_eq!(spread(5, 12), [0, 1, 2, 3, 4]);
        assert_eq!(spread(101, 3), [0, 50, 100]);
        assert_eq!((spread(0, 3).len(), spread(1, 3)), (0, vec![0]));
        assert_eq!(spread(usize::MAX, 2)[1], usize::MAX - 1);
    }
}
