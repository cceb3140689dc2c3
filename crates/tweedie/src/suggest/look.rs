//! Looking at data: what the choice of settings depends on.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;

use crate::config::Config;
use crate::data::{Dataset, Image, Layout, SequenceSet, Task, Texts, guess_task};
use crate::error::{Error, Result};
use crate::train::{TrainingSet, open_classes, open_sequences};

/// Images that are looked at: their mean is then known to about a hundredth.
const IMAGES: usize = 256;
/// Texts that are looked at: lengths that two in a hundred pass are then seen dozens of times.
const TEXTS: usize = 2000;
/// Of fewer examples than these a larger share is held out: what they are judged by would be too few.
const FEW: usize = 1000;
const SHARE_OF_FEW: f64 = 0.2;

/// What is at a path, opened as the suggested settings open it but for the tokenizer, which is theirs to choose.
#[derive(Clone)]
pub enum Opened {
    /// Images with classes.
    Classes(Dataset),
    /// Captions or text.
    Sequences(SequenceSet),
}

impl Opened {
    /// Open what lies at `path` for a task, by default the one that looking suggests.
    pub fn open(path: &str, task: Option<Task>) -> Result<Opened> {
        let task = match task {
            Some(task) => task,
            None => guess_task(path)?,
        };
        let mut config = Config::default();
        (config.data.path, config.data.task) = (path.into(), task);
        config.data.layout = if task == Task::Text { Layout::Packed } else { Layout::Lines };
        let opened = Opened::by(&config)?;
        if opened.is_held_out() && task != Task::Text && opened.counts()?.iter().sum::<usize>() < FEW {
            config.data.val_fraction = SHARE_OF_FEW;
            return Opened::by(&config);
        }
        Ok(opened)
    }

    fn by(config: &Config) -> Result<Opened> {
        Ok(match config.data.task {
            Task::Class => Opened::Classes(open_classes(config)?),
            Task::Caption | Task::Text => Opened::Sequences(open_sequences(&config.data, config.seed)?),
        })
    }

    /// Whether the data bring no validation split of their own.
    fn is_held_out(&self) -> bool {
        let origin = match self {
            Opened::Classes(set) => &set.val_origin,
            Opened::Sequences(set) => &set.val_origin,
        };
        origin.contains("held out")
    }

    /// Examples for training and for evaluation.
    fn counts(&self) -> Result<[usize; 2]> {
        Ok(match self {
            Opened::Classes(set) => [set.train()?.len(), set.val()?.len()],
            Opened::Sequences(set) => [set.train()?.len(), set.val()?.len()],
        })
    }

    /// Rows of the training split: examples, or pieces of a stream.
    pub(super) fn rows(&self) -> Result<usize> {
        Ok(self.counts()?[0])
    }

    /// The share of the training examples that is held out, if any is.
    fn share(&self) -> Result<Option<f64>> {
        let few =
            self.counts()?.iter().sum::<usize>() < FEW && !matches!(self, Opened::Sequences(s) if s.task == Task::Text);
        let share = if few { SHARE_OF_FEW } else { Config::default().data.val_fraction };
        Ok(self.is_held_out().then_some(share))
    }

    /// With the tokenizer that settings name: what a model is trained on.
    pub fn with_tokenizer(self, config: &Config) -> Result<TrainingSet> {
        match self {
            Opened::Classes(set) => Ok(set.into()),
            Opened::Sequences(set) => TrainingSet::sequences(set, config, None),
        }
    }
}

/// What was seen of data: all that settings depend on besides the machine and the time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Where they lie.
    pub path: String,
    /// Name of the folder or file.
    pub name: String,
    /// What they were recognised as.
    pub format: String,
    /// What they are for.
    pub task: Task,
    /// Training examples; of one stream of text its pieces.
    pub train: usize,
    /// Examples for evaluation.
    pub val: usize,
    /// Where those come from, in words.
    pub val_origin: String,
    /// The share of the training examples that is held out for them, where the data bring no validation split.
    pub held_out: Option<f64>,
    /// Classes of images; 0 for captions and text.
    pub classes: usize,
    /// The images, if there are any.
    pub images: Option<ImageFacts>,
    /// The texts, if there are any.
    pub texts: Option<TextFacts>,
}

/// What images look like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageFacts {
    /// How many were looked at.
    pub looked_at: usize,
    /// Width and height, where all have the same.
    pub same_size: Option<(usize, usize)>,
    /// The shorter side, median.
    pub side: usize,
    /// Whether none shows a colour.
    pub grey: bool,
    /// Mean of each channel in [0, 1].
    pub mean: Vec<f32>,
    /// Standard deviation of each channel.
    pub std: Vec<f32>,
    /// Share of pixels that are nearly black, or nearly white, whichever are more: the paper of drawings and letters.
    pub paper: f64,
}

impl ImageFacts {
    /// Drawn or written on plain paper, rather than photographed: a mirror image may mean something else.
    pub fn is_drawn(&self) -> bool {
        self.paper >= if self.grey { 0.4 } else { 0.6 }
    }
}

/// What texts look like.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextFacts {
    /// Texts that were looked at.
    pub looked_at: usize,
    /// Bytes of all of the training texts, about.
    pub bytes: u64,
    /// Different characters.
    pub characters: usize,
    /// Different words, in lower case.
    pub words: usize,
    /// The most frequent words that make up 97 % of the text.
    pub common_words: usize,
    /// Words of a text that two of a hundred pass.
    pub length: usize,
}

impl Facts {
    /// Look at what was opened. Reads some hundred examples; those that cannot be read are passed over.
    pub fn of(path: &str, opened: &Opened) -> Result<Facts> {
        match opened {
            Opened::Classes(set) => {
                let train = set.train()?;
                let images = pictures(train.len(), |i| Ok(Some(train.get(i)?.image)))?;
                Ok(Facts {
                    path: path.into(),
                    name: set.name.clone(),
                    format: set.format.to_string(),
                    task: Task::Class,
                    train: train.len(),
                    val: set.val()?.len(),
                    val_origin: set.val_origin.clone(),
                    held_out: opened.share()?,
                    classes: set.class_names.len(),
                    images: Some(images),
                    texts: None,
                })
            }
            Opened::Sequences(set) => {
                let train = set.train()?;
                let captions = set.task == Task::Caption;
                let images = if captions { Some(pictures(train.len(), |i| Ok(train.image(i)?))?) } else { None };
                Ok(Facts {
                    path: path.into(),
                    name: set.name.clone(),
                    format: set.format.to_string(),
                    task: set.task,
                    train: train.len(),
                    val: set.val()?.len(),
                    val_origin: set.val_origin.clone(),
                    held_out: opened.share()?,
                    classes: 0,
                    images,
                    texts: Some(written(train)?),
                })
            }
        }
    }
}

/// Numbers of at most `count` examples, spread evenly over all.
fn spread(all: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(all);
    (0..count).map(move |k| k * all / count)
}

fn pictures(all: usize, get: impl Fn(usize) -> Result<Option<Image>>) -> Result<ImageFacts> {
    let (mut sizes, mut seen, mut failed) = (Vec::new(), Pixels::default(), None);
    for i in spread(all, IMAGES) {
        match get(i) {
            Ok(Some(image)) => {
                sizes.push((image.width, image.height));
                seen.add(&image);
            }
            Ok(None) => failed = Some(Error::Input(format!("example {i} has no image"))),
            Err(e) => failed = Some(e),
        }
    }
    if let (true, Some(e)) = (sizes.is_empty(), failed) {
        return Err(e); // none can be read: the last says why
    }
    let mut sides: Vec<usize> = sizes.iter().map(|&(w, h)| w.min(h)).collect();
    sides.sort_unstable();
    let first = sizes.first().copied();
    let (mean, std) = seen.mean_and_std();
    Ok(ImageFacts {
        looked_at: sizes.len(),
        same_size: first.filter(|f| sizes.iter().all(|s| s == f)),
        side: sides.get(sides.len() / 2).copied().unwrap_or(0),
        grey: seen.coloured == 0,
        mean,
        std,
        paper: seen.dark.max(seen.light) as f64 / seen.pixels.max(1) as f64,
    })
}

/// Sums over the pixels of images.
#[derive(Default)]
struct Pixels {
    pixels: u64,
    sum: [f64; 3],
    squares: [f64; 3],
    dark: u64,
    light: u64,
    /// Images that show a colour.
    coloured: usize,
}

impl Pixels {
    fn add(&mut self, image: &Image) {
        self.coloured += usize::from(!image.is_grey());
        let channels = image.channels.max(1);
        for pixel in image.data.chunks_exact(channels) {
            let mut darkness = true;
            let mut lightness = true;
            for c in 0..3 {
                let v = pixel[c.min(channels - 1)];
                (darkness, lightness) = (darkness && v <= 24, lightness && v >= 231);
                let v = f64::from(v) / 255.0;
                self.sum[c] += v;
                self.squares[c] += v * v;
            }
            self.pixels += 1;
            self.dark += u64::from(darkness);
            self.light += u64::from(lightness);
        }
    }

    /// Of one channel where no image shows a colour.
    fn mean_and_std(&self) -> (Vec<f32>, Vec<f32>) {
        let n = self.pixels.max(1) as f64;
        let channels = if self.coloured == 0 { 1 } else { 3 };
        let round = |x: f64| ((x * 1000.0).round() / 1000.0) as f32;
        let mean = |c: usize| self.sum[c] / n;
        let std = |c: usize| (self.squares[c] / n - mean(c) * mean(c)).max(0.0).sqrt().max(0.05);
        ((0..channels).map(|c| round(mean(c))).collect(), (0..channels).map(|c| round(std(c))).collect())
    }
}

fn written(source: &Texts) -> Result<TextFacts> {
    let (mut looked_at, mut characters, mut words) = (0, BTreeSet::new(), HashMap::<String, usize>::new());
    let (mut lengths, mut failed) = (Vec::new(), None);
    for i in spread(source.len(), TEXTS) {
        let texts = match source.texts(i) {
            Ok(texts) => texts,
            Err(e) => {
                failed = Some(e);
                continue;
            }
        };
        for text in texts.iter().filter(|t| !t.trim().is_empty()) {
            looked_at += 1;
            characters.extend(text.chars());
            let mut length = 0;
            for word in text.split(|c: char| !c.is_alphanumeric() && c != '\'').filter(|w| !w.is_empty()) {
                length += 1;
                *words.entry(word.to_lowercase()).or_default() += 1;
            }
            lengths.push(length);
        }
    }
    if let (0, Some(e)) = (looked_at, failed) {
        return Err(e.into());
    }
    lengths.sort_unstable();
    let mut counts: Vec<usize> = words.values().copied().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let enough = 0.97 * counts.iter().sum::<usize>() as f64;
    let running = counts.iter().scan(0, |sum, n| {
        *sum += n;
        Some(*sum)
    });
    let common_words = (running.take_while(|&sum| (sum as f64) < enough).count() + 1).min(counts.len());
    Ok(TextFacts {
        looked_at,
        bytes: source.bytes(),
        characters: characters.len(),
        common_words,
        words: counts.len(),
        length: lengths.get((lengths.len() * 98 / 100).min(lengths.len().saturating_sub(1))).copied().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Item, Items};

    fn facts(images: Vec<Image>) -> ImageFacts {
        let items = images.into_iter().enumerate().map(|(i, image)| Item { image, label: (i % 2) as u32 }).collect();
        let set = Dataset::classes("mine", ["a", "b"]).train(Items::new(items)).hold_out(0.5).build().unwrap();
        Facts::of("mine", &Opened::Classes(set)).unwrap().images.unwrap()
    }

    #[test]
    fn colours_sizes_and_paper_are_seen() {
        let grey = facts((0..20).map(|_| Image::filled(28, 28, &[0])).collect());
        assert_eq!((grey.same_size, grey.side, grey.grey, grey.mean.len()), (Some((28, 28)), 28, true, 1));
        assert!(grey.is_drawn() && grey.paper == 1.0 && grey.std[0] > 0.0);
        // Stored in three channels, and still grey.
        assert!(facts((0..20).map(|_| Image::filled(9, 9, &[80, 84, 82])).collect()).grey);
        let photos = facts((0..20).map(|i| Image::filled(60 + i, 80, &[200, 100, 50])).collect());
        assert!(!photos.grey && !photos.is_drawn() && photos.same_size.is_none());
        assert_eq!(photos.mean, [0.784, 0.392, 0.196]);
        assert!((65..75).contains(&photos.side));
    }

    #[test]
    fn words_and_lengths_are_counted() {
        let texts: Vec<String> = (0..50).map(|i| format!("The dog runs {}", ["a", "b"][i % 2])).collect();
        let set = SequenceSet::texts("mine").train(texts).hold_out(0.2).build().unwrap();
        let seen = written(set.train().unwrap()).unwrap();
        assert_eq!((seen.words, seen.length, seen.common_words), (5, 4, 5));
        assert!(seen.characters > 8 && seen.bytes > 100);
    }
}
