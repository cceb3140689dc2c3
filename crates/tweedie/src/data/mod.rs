//! Labelled images, captioned images and text from the layouts people have them in. [`open`] and [`open_sequences`] find
//! the format of a path; `docs/data.md` describes each one. Sources are read lazily and by any number of threads; a [`Loader`] makes
//! batches of them.

mod builder;
mod cache;
mod cifar;
mod classes;
mod columns;
mod detect;
mod embedded;
mod examples;
mod fingerprint;
mod folder;
mod idx;
pub mod loader;
mod locality;
mod memory;
mod order;
mod parquet;
mod part;
mod plan;
mod row_groups;
pub mod sequence;
mod sources;
mod split;
mod tar;
mod tar_blocks;
mod thrift;

pub use builder::{DatasetBuilder, SequenceSetBuilder};
pub use cache::{CacheMode, share_memory};
pub use detect::Format;
pub use fingerprint::Fingerprint;
pub use folder::images_below;
pub use loader::{Batch, Loader, LoaderConfig, OnCorrupt, Position, Skipped};
pub use locality::{Extent, Locality};
pub use memory::MemorySource;
pub use order::epoch_order;
pub use part::Part;
pub use plan::{FilePlan, Plan, RankPlan, SharedBlock};
pub use sequence::{
    Layout, MOST_OBJECTS, Overlong, SceneObject, SequenceConfig, SequenceFormat, SequenceOptions, SequenceSet,
    Sequences, Task, TextSource, Texts, draw_scene, guess_task, open_sequences,
};
pub use sources::{CaptionedImages, FromFn, Items, from_fn};
pub use split::{Subset, some_of, some_texts};

pub use crate::error::DataError;
pub use crate::image::{Image, Needed};

use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Every fallible call of this module returns this.
pub type Result<T> = std::result::Result<T, DataError>;

/// One labelled image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The decoded picture.
    pub image: Image,
    /// Number of its class.
    pub label: u32,
}

/// Labelled images that can be read in any order from any thread. For images that are in memory already there is [`Items`],
/// for a function of the number [`from_fn`].
///
/// ```
/// use tweedie::data::{Dataset, Image, ImageSource, Item, Result};
///
/// /// Squares of one grey each, the upper half of which is "light".
/// struct Greys;
///
/// impl ImageSource for Greys {
///     fn len(&self) -> usize {
///         256
///     }
///     fn get(&self, i: usize) -> Result<Item> {
///         Ok(Item { image: Image::filled(8, 8, &[i as u8]), label: self.label(i) })
///     }
///     fn label(&self, i: usize) -> u32 {
///         (i >= 128) as u32
///     }
/// }
///
/// let data = Dataset::classes("greys", ["dark", "light"]).train(Greys).hold_out(0.1).build()?;
/// assert_eq!(data.train()?.len() + data.val()?.len(), 256);
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
pub trait ImageSource: Send + Sync {
    /// Number of examples: what is below numbers them in the other calls.
    fn len(&self) -> usize;

    /// True if there is none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Read and decode example `i`. A broken image is [`DataError::Corrupt`] and names its place.
    fn get(&self, i: usize) -> Result<Item>;

    /// As [`ImageSource::get`] for a reader who needs only so many rows at the top of the image: those below may be black.
    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        let _ = needed;
        self.get(i)
    }

    /// The class of example `i`, without reading the image.
    fn label(&self, i: usize) -> u32;

    /// Where example `i` lies, for messages.
    fn place(&self, i: usize) -> String {
        format!("example {i}")
    }

    /// Blocks of examples that lie together in storage, where reading at random would be much dearer. Shuffling then keeps
    /// blocks together, unless all of them fit into memory.
    fn locality(&self) -> Option<Locality> {
        None
    }

    /// Where the block of example `i` lies, if there are blocks.
    fn extent(&self, i: usize) -> Option<Extent> {
        let _ = i;
        None
    }

    /// These examples of one block will be asked for soon: read them into memory if that is of use.
    fn read_ahead(&self, examples: &[u32]) {
        let _ = examples;
    }
}

/// A shared source.
pub type Source = Arc<dyn ImageSource>;

/// How to open a data set.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The format, if it should not be found by looking.
    pub format: Option<Format>,
    /// A file with one class name per line.
    pub classes: Option<PathBuf>,
    /// Parquet: the column with images; otherwise `image`, `img` or the first that can be one.
    pub image_column: Option<String>,
    /// Parquet: the column with labels; otherwise `label`, `labels`, `fine_label`, `class` or `cls`.
    pub label_column: Option<String>,
    /// Share of the training examples held out for validation when there is no validation split; 0 for none.
    pub val_fraction: f64,
    /// Seed of that choice.
    pub split_seed: u64,
    /// Bytes of blocks of Parquet and tar files, as they are stored, that each split may keep in memory. What has more is
    /// streamed.
    pub cache_bytes: usize,
    /// Bytes of decoded images that may be kept; a split is kept whole or not at all. 0: none.
    pub decoded_bytes: u64,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            format: None,
            classes: None,
            image_column: None,
            label_column: None,
            val_fraction: 0.1,
            split_seed: 0,
            cache_bytes: 2 << 30, // all of CIFAR or Imagenette, a few hundred row groups of ImageNet
            decoded_bytes: CacheMode::Auto.bytes(),
        }
    }
}

/// An opened data set, or one that was put together from sources by [`Dataset::classes`].
///
/// ```
/// use tweedie::data::Dataset;
///
/// let digits = Dataset::embedded("digits")?;
/// assert_eq!((digits.class_names.len(), digits.channels), (10, 1));
/// assert_eq!(digits.final_split()?.0.len(), 359);
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Dataset {
    /// Name of the folder or file.
    pub name: String,
    /// What it was recognised as.
    pub format: Format,
    /// Name of each class; labels are positions in this list.
    pub class_names: Vec<String>,
    /// 1 for grey images, otherwise 3.
    pub channels: usize,
    /// Training examples.
    pub train: Option<Source>,
    /// Examples for evaluation during training and for choosing the best checkpoint: the validation split, else some of the
    /// training examples held out, else (if nothing may be held out) the test split.
    pub val: Option<Source>,
    /// Where `val` comes from, in words.
    pub val_origin: String,
    /// The test split, if there is one.
    pub test: Option<Source>,
    /// Things worth knowing that were not errors.
    pub notes: Vec<String>,
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let len = |s: &Option<Source>| s.as_ref().map_or(0, |s| s.len());
        f.debug_struct("Dataset")
            .field("name", &self.name)
            .field("format", &self.format)
            .field("classes", &self.class_names.len())
            .field("channels", &self.channels)
            .field("train", &len(&self.train))
            .field("val", &len(&self.val))
            .field("test", &len(&self.test))
            .finish()
    }
}

/// What a format's reader finds.
pub(crate) struct Found {
    pub train: Option<Source>,
    pub val: Option<Source>,
    pub test: Option<Source>,
    pub class_names: Vec<String>,
    pub channels: usize,
    pub notes: Vec<String>,
}

/// Open the data set at `path`. Fails, naming what is wrong, if nothing there can be trained on or evaluated.
pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Dataset> {
    let path: &Path = &crate::files::as_on_disk(path.as_ref());
    if !(0.0..1.0).contains(&options.val_fraction) {
        return Err(DataError::Setting(format!(
            "the validation share is {} and must lie between 0 and 1",
            options.val_fraction
        )));
    }
    let embedded = path.to_str().and_then(|p| p.strip_prefix("embedded:"));
    let (format, root) = match embedded {
        Some(_) => (Format::Embedded, path.to_path_buf()),
        None => detect::detect(path, options.format)?,
    };
    let classes = options.classes.as_deref().map(classes::ClassList::read).transpose()?;
    let found = match format {
        Format::Folder => folder::open(&root, classes.as_ref())?,
        Format::Cifar10 | Format::Cifar100 => cifar::open(&root, format, classes.as_ref())?,
        Format::Idx => idx::open(&root, classes.as_ref())?,
        Format::Parquet => parquet::open(&root, options, classes.as_ref())?,
        Format::WebDataset => tar::open(&root, options, classes.as_ref())?,
        Format::Embedded => embedded::open(embedded.unwrap_or_default())?,
        Format::Custom => {
            return Err(DataError::Setting("own code is no format of files; see Dataset::classes".into()));
        }
    };
    let Found { train, val, test, class_names, channels, notes } = found;
    for (split, source) in [("train", &train), ("validation", &val), ("test", &test)] {
        if source.as_ref().is_some_and(|s| s.is_empty()) {
            return Err(DataError::layout(path, format!("the {split} split holds no images")));
        }
    }
    let decoded = matches!(format, Format::Cifar10 | Format::Cifar100 | Format::Idx | Format::Embedded);
    let budget = cache::Budget::new(options.decoded_bytes);
    let keep = |s: Option<Source>| if decoded || options.decoded_bytes == 0 { s } else { s.map(|s| budget.images(s)) };
    let (train, val, test) = (keep(train), keep(val), keep(test));
    let file = embedded.map(Path::new).unwrap_or(path);
    let mut dataset = Dataset {
        name: file.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned()),
        format,
        class_names,
        channels,
        train,
        val,
        val_origin: String::new(),
        test,
        notes,
    };
    dataset.val_origin = split::choose_images([&mut dataset.train, &mut dataset.val, &mut dataset.test], options);
    Ok(dataset)
}

impl Dataset {
    /// Open what lies at `path` with the usual options, as [`open`] does.
    pub fn open(path: impl AsRef<Path>) -> Result<Dataset> {
        open(path, &OpenOptions::default())
    }

    /// A data set inside the program: `"digits"`.
    pub fn embedded(name: &str) -> Result<Dataset> {
        open(format!("embedded:{name}"), &OpenOptions::default())
    }

    /// Begin a data set of one's own sources: its name and those of its classes, in the order of their labels.
    ///
    /// ```
    /// use tweedie::data::{Dataset, Image, Item, Items};
    ///
    /// let item = |grey: u8| Item { image: Image::filled(8, 8, &[grey]), label: (grey > 99) as u32 };
    /// let mine = Dataset::classes("mine", ["dark", "light"])
    ///     .train(Items::new((0..200).map(item).collect()))
    ///     .hold_out(0.1)
    ///     .test(Items::new(vec![item(5), item(120)]))
    ///     .build()?;
    /// assert_eq!((mine.channels, mine.format.to_string().as_str()), (1, "own code"));
    ///
    /// // What is wrong is named.
    /// let e = Dataset::classes("mine", ["dark"]).train(Items::new(vec![item(200)])).build().unwrap_err();
    /// assert!(e.to_string().contains("its label is 1, and 1 classes have names"));
    /// # Ok::<(), tweedie::data::DataError>(())
    /// ```
    pub fn classes<N: Into<String>>(
        name: impl Into<String>,
        class_names: impl IntoIterator<Item = N>,
    ) -> DatasetBuilder {
        DatasetBuilder::new(name.into(), class_names.into_iter().map(Into::into).collect())
    }

    /// The training split, or an error that says it is missing.
    pub fn train(&self) -> Result<&Source> {
        self.train.as_ref().ok_or_else(|| self.lacks("training", "train"))
    }

    /// The split for evaluation during training, or an error that says it is missing.
    pub fn val(&self) -> Result<&Source> {
        self.val.as_ref().ok_or_else(|| self.lacks("validation", "val"))
    }

    /// The split for the final evaluation: the test split, else the one of [`Dataset::val`]; and its origin in words.
    pub fn final_split(&self) -> Result<(&Source, &str)> {
        match &self.test {
            Some(test) => Ok((test, "the test split")),
            None => Ok((self.val()?, &self.val_origin)),
        }
    }

    fn lacks(&self, what: &str, folder: &str) -> DataError {
        if self.format == Format::Custom {
            return split::not_given(&self.name, what);
        }
        DataError::Setting(format!(
            "data set \"{}\" has no {what} split; name its folder or files `{folder}`{}",
            self.name,
            if folder == "val" { " or hold out a share of the training images" } else { "" }
        ))
    }

    /// Examples per class of a source.
    pub fn class_counts(&self, source: &Source) -> Vec<usize> {
        let mut counts = vec![0; self.class_names.len()];
        for i in 0..source.len() {
            if let Some(n) = counts.get_mut(source.label(i) as usize) {
                *n += 1;
            }
        }
        counts
    }
}
