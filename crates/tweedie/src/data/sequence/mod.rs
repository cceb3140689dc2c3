//! Captioned images and text. [`open_sequences`] finds the format; [`Sequences`] turns texts into tokens for a
//! [`Loader`](super::Loader).

mod coco;
mod detect;
mod encode;
mod json;
mod lines;
mod packed;
mod parquet;
mod shapes;
mod tar;
mod text_file;

pub use detect::{SequenceFormat, guess_task};
pub use encode::{SequenceConfig, Sequences};
pub(crate) use packed::OnBad;
pub use shapes::{MOST_OBJECTS, SceneObject, draw_scene};

use super::split::{self, Subset};
use super::{DataError, Extent, Image, Locality, OpenOptions, Result, SequenceSetBuilder, cache};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a data set is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// Images with one of several classes.
    #[default]
    Class,
    /// Images with captions.
    Caption,
    /// Text alone.
    Text,
}

/// How texts become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One stream, cut into windows that are full; each epoch begins at another token.
    Packed,
    /// Each line, row or caption by itself: its tokens, its end, padding.
    Lines,
}

/// What happens to a text with more tokens than a sequence holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overlong {
    /// Its first tokens are taken; it is counted.
    #[default]
    Cut,
    /// It is left out as an unreadable example would be.
    Skip,
    /// It stops the run.
    Fail,
}

/// Texts, perhaps with images, that can be read in any order from any thread. A `Vec<String>` is one; for images in memory
/// there is [`CaptionedImages`](super::CaptionedImages).
///
/// ```
/// use tweedie::data::{Result, SequenceSet, TextSource};
///
/// /// "1 + 1 = 2" and so on.
/// struct Sums;
///
/// impl TextSource for Sums {
///     fn len(&self) -> usize {
///         100
///     }
///     fn texts(&self, i: usize) -> Result<Vec<String>> {
///         let (a, b) = (i / 10, i % 10);
///         Ok(vec![format!("{a} + {b} = {}", a + b)])
///     }
/// }
///
/// let data = SequenceSet::texts("sums").train(Sums).hold_out(0.2).build()?;
/// assert_eq!(data.train()?.len() + data.val()?.len(), 100);
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
pub trait TextSource: Send + Sync {
    /// Number of examples: images, lines, rows, or pieces of a stream.
    fn len(&self) -> usize;

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All texts of example `i`: the captions of an image, or one text. May hold blank ones, or none at all.
    fn texts(&self, i: usize) -> Result<Vec<String>>;

    /// As [`texts`](TextSource::texts), and what is wrong with the lines of a stream that are left out of it.
    fn texts_and_bad(&self, i: usize) -> Result<(Vec<String>, Option<DataError>)> {
        Ok((self.texts(i)?, None))
    }

    /// The image of example `i`; none for text alone.
    fn image(&self, i: usize) -> Result<Option<Image>> {
        let _ = i;
        Ok(None)
    }

    /// Where example `i` lies, for messages.
    fn place(&self, i: usize) -> String {
        format!("example {i}")
    }

    /// The name of image `i`: its file below the folder of images, or what the data set calls it.
    fn file_name(&self, i: usize) -> Option<String> {
        let _ = i;
        None
    }

    /// As for images.
    fn locality(&self) -> Option<Locality> {
        None
    }

    /// As for images.
    fn extent(&self, i: usize) -> Option<Extent> {
        let _ = i;
        None
    }

    /// As for images.
    fn read_ahead(&self, examples: &[u32]) {
        let _ = examples;
    }

    /// Bytes of all texts, about. Without an own answer, a few of the texts are read to tell: a large source, of which
    /// packed text asks this for every window, should know.
    fn bytes(&self) -> u64 {
        const SAMPLES: usize = 16;
        let n = self.len();
        let step = n.div_ceil(SAMPLES).max(1);
        let one = |i: usize| self.texts(i).map_or(0, |texts| texts.iter().map(|t| t.len() as u64).sum::<u64>());
        let (count, sum) = (0..n).step_by(step).fold((0, 0), |(count, sum), i| (count + 1, sum + one(i)));
        (sum as f64 / f64::from(count.max(1)) * n as f64) as u64
    }

    /// The example that holds byte `at` of all texts, and the share of it that lies before.
    fn at_byte(&self, at: u64) -> Result<(usize, f64)> {
        let x = at as f64 / self.bytes().max(1) as f64 * self.len() as f64;
        let row = (x as usize).min(self.len().saturating_sub(1));
        Ok((row, (x - row as f64).clamp(0.0, 1.0)))
    }

    /// An example of the block that holds byte `at` of all texts, as far as it can be told without reading.
    fn near_byte(&self, at: u64) -> usize {
        self.at_byte(at).map_or(0, |(row, _)| row)
    }

    /// True if examples are pieces of one text that follow each other, line ends included; false if each stands alone.
    fn is_stream(&self) -> bool {
        false
    }
}

/// A shared source.
pub type Texts = Arc<dyn TextSource>;

/// How to open captions or text.
#[derive(Clone, Debug)]
pub struct SequenceOptions {
    /// Captions or text; none: as [`guess_task`] says.
    pub task: Option<Task>,
    /// The field or column with captions; several, parted by commas, are put together. None: the usual names.
    pub caption_column: Option<String>,
    /// The field or column with text. None: the usual names.
    pub text_column: Option<String>,
    /// Folder of the images that COCO's files name. None: the usual places.
    pub image_folder: Option<PathBuf>,
    /// Plain text as one stream or line by line.
    pub layout: Layout,
    /// Image column, split and cache, as for classes.
    pub open: OpenOptions,
}

impl Default for SequenceOptions {
    fn default() -> SequenceOptions {
        SequenceOptions {
            task: None,
            caption_column: None,
            text_column: None,
            image_folder: None,
            layout: Layout::Lines,
            open: OpenOptions::default(),
        }
    }
}

/// An opened set of captions or text.
///
/// ```
/// use std::sync::Arc;
/// use tweedie::data::{Loader, LoaderConfig, SequenceConfig, SequenceSet, Sequences};
/// use tweedie::tokenize::{Kind, Tokenizer};
///
/// let shapes = SequenceSet::embedded("shapes")?;
/// let val = shapes.val()?.clone();
/// let words = Arc::new(Tokenizer::train(Kind::Word, 99, (0..200).map(|i| val.texts(i).unwrap().remove(0)))?);
/// let captions = Sequences::new(val, words.clone(), &SequenceConfig::lines(20))?;
/// let batch = Loader::sequences(captions.clone(), None, LoaderConfig::eval(4))?.next().unwrap()?;
/// assert_eq!(words.decode(&batch.tokens[..20]), captions.references(0)?[0]);
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone)]
pub struct SequenceSet {
    /// Name of the folder or file.
    pub name: String,
    /// What it was recognised as.
    pub format: SequenceFormat,
    /// Captions or text.
    pub task: Task,
    /// As it was opened.
    pub layout: Layout,
    /// Training examples.
    pub train: Option<Texts>,
    /// Examples for evaluation during training: the validation split, else some held out, else the test split.
    pub val: Option<Texts>,
    /// Where `val` comes from, in words.
    pub val_origin: String,
    /// The test split, if there is one.
    pub test: Option<Texts>,
    /// Things worth knowing that were not errors.
    pub notes: Vec<String>,
}

impl std::fmt::Debug for SequenceSet {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let len = |s: &Option<Texts>| s.as_ref().map_or(0, |s| s.len());
        f.debug_struct("SequenceSet")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("task", &self.task)
            .field("train", &len(&self.train))
            .field("val", &len(&self.val))
            .field("test", &len(&self.test))
            .finish()
    }
}

/// What a format's reader finds: training, validation, test.
pub(crate) struct Splits {
    pub splits: [Option<Texts>; 3],
    pub notes: Vec<String>,
}

/// Open the captions or text at `path`. Fails, naming what is wrong, for a missing path, an unknown layout, a column that
/// is not there, images that are nowhere, or a split without examples.
pub fn open_sequences(path: impl AsRef<Path>, options: &SequenceOptions) -> Result<SequenceSet> {
    let path: &Path = &crate::files::as_on_disk(path.as_ref());
    if !(0.0..1.0).contains(&options.open.val_fraction) {
        let share = options.open.val_fraction;
        return Err(DataError::Setting(format!("the validation share is {share} and must lie between 0 and 1")));
    }
    let (format, root) = detect::detect(path)?;
    let task = match options.task {
        Some(Task::Class) => {
            return Err(DataError::Setting("the task is classes; captions and text are the others".into()));
        }
        Some(task) => task,
        None => match format.usual_task() {
            Some(task) => task,
            None if guess_task(path)? == Task::Text => Task::Text,
            None => Task::Caption, // also of data that have labels too
        },
    };
    let Splits { splits, notes } = match format {
        SequenceFormat::Coco | SequenceFormat::Karpathy if task == Task::Caption => coco::open(path, &root, options)?,
        SequenceFormat::Parquet => parquet::open(&root, task, options)?,
        SequenceFormat::WebDataset if task == Task::Caption => tar::open(&root, options)?,
        SequenceFormat::Text | SequenceFormat::JsonLines if task == Task::Text => lines::open(&root, format, options)?,
        SequenceFormat::Embedded if task == Task::Caption => shapes::open(detect::embedded(path).unwrap_or_default())?,
        _ => {
            let what = if task == Task::Text { "text alone" } else { "images with captions" };
            return Err(DataError::layout(path, format!("{format} does not hold {what}")));
        }
    };
    for (split, source) in ["train", "validation", "test"].iter().zip(&splits) {
        if source.as_ref().is_some_and(|s| s.is_empty()) {
            return Err(DataError::layout(path, format!("the {split} split holds no examples")));
        }
    }
    let kept = options.open.decoded_bytes > 0 && task == Task::Caption && format != SequenceFormat::Embedded;
    let budget = cache::Budget::new(options.open.decoded_bytes);
    let keep = |s: Option<Texts>| if kept { s.map(|s| budget.captions(s)) } else { s };
    let [mut train, mut val, mut test] = splits.map(keep);
    let val_origin = split::choose_validation([&mut train, &mut val, &mut test], |all| hold_out(all, options));
    let file = detect::embedded(path).map_or(path, Path::new);
    let name = file.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    Ok(SequenceSet { name, format, task, layout: options.layout, train, val, val_origin, test, notes })
}

/// Examples that stand alone are held out by a hash of their number; of a stream the end is.
pub(super) fn hold_out(all: &Texts, options: &SequenceOptions) -> Option<(Texts, Texts, String)> {
    let (n, share) = (all.len(), options.open.val_fraction);
    let (rest, held, what) = if options.layout == Layout::Packed {
        let least = (share > 0.0) as usize; // a short text has few pieces
        let first = n - ((n as f64 * share).round() as usize).max(least).min(n);
        ((0..first as u32).collect(), (first as u32..n as u32).collect(), "the end of the training text")
    } else {
        let (rest, held) = split::held_out(n, &options.open)?;
        (rest, held, "training examples")
    };
    let (rest, held): (Vec<u32>, Vec<u32>) = (rest, held);
    if rest.is_empty() || held.is_empty() {
        return None;
    }
    let origin = match options.layout {
        Layout::Packed => format!("{what} held out ({:.0} %)", share * 100.0),
        Layout::Lines => format!("{} of {n} {what} held out ({:.0} %)", held.len(), share * 100.0),
    };
    let part = |indices| Some(Arc::new(Subset::new(all.clone(), indices).ok()?) as Texts);
    Some((part(rest)?, part(held)?, origin))
}

impl SequenceSet {
    /// Open what lies at `path` with the usual options, as [`open_sequences`] does.
    pub fn open(path: impl AsRef<Path>) -> Result<SequenceSet> {
        open_sequences(path, &SequenceOptions::default())
    }

    /// A set of captions inside the program: `"shapes"`.
    pub fn embedded(name: &str) -> Result<SequenceSet> {
        SequenceSet::open(format!("embedded:{name}"))
    }

    /// Begin a set of captioned images of one's own sources.
    ///
    /// ```
    /// use tweedie::data::{CaptionedImages, Image, SequenceSet};
    ///
    /// let grey = |v: u8| (Image::filled(8, 8, &[v; 3]), vec![format!("grey number {v}")]);
    /// let mine = SequenceSet::captions("greys").train(CaptionedImages::new((0..50).map(grey).collect())).build()?;
    /// assert_eq!(mine.train()?.texts(7)?, ["grey number 7"]);
    /// # Ok::<(), tweedie::data::DataError>(())
    /// ```
    pub fn captions(name: impl Into<String>) -> SequenceSetBuilder {
        SequenceSetBuilder::new(name.into(), Task::Caption)
    }

    /// Begin a set of texts of one's own sources.
    pub fn texts(name: impl Into<String>) -> SequenceSetBuilder {
        SequenceSetBuilder::new(name.into(), Task::Text)
    }

    /// The training split, or an error that says it is missing.
    pub fn train(&self) -> Result<&Texts> {
        self.train.as_ref().ok_or_else(|| self.lacks("training", "train"))
    }

    /// The split for evaluation during training, or an error that says it is missing.
    pub fn val(&self) -> Result<&Texts> {
        self.val.as_ref().ok_or_else(|| self.lacks("validation", "val"))
    }

    /// The split for the final evaluation: the test split, else the one of [`SequenceSet::val`]; and its origin in words.
    pub fn final_split(&self) -> Result<(&Texts, &str)> {
        match &self.test {
            Some(test) => Ok((test, "the test split")),
            None => Ok((self.val()?, &self.val_origin)),
        }
    }

    fn lacks(&self, what: &str, name: &str) -> DataError {
        if self.format == SequenceFormat::Custom {
            return split::not_given(&self.name, what);
        }
        DataError::Setting(format!("data set \"{}\" has no {what} split; name its folder or files `{name}`", self.name))
    }

    /// Every text of the training split, to train a tokenizer from. What cannot be read is left out here; a loader
    /// reports it.
    pub fn training_texts(&self) -> Result<impl Iterator<Item = String> + use<>> {
        let source = self.train()?.clone();
        Ok((0..source.len()).flat_map(move |i| source.texts(i).unwrap_or_default()))
    }
}
