//! Data sets of one's own sources.

use super::sequence::{Layout, SequenceFormat, SequenceOptions, SequenceSet, Task, TextSource, Texts};
use super::{DataError, Dataset, Format, ImageSource, OpenOptions, Result, sequence, split};
use std::collections::HashSet;
use std::sync::Arc;

/// Examples that are looked at, at most, for one that can be read.
const TRIES: usize = 64;

/// What both kinds of sets have.
struct Splits<S: ?Sized> {
    name: String,
    train: Option<Arc<S>>,
    val: Option<Arc<S>>,
    test: Option<Arc<S>>,
    hold_out: Option<f64>,
    seed: u64,
}

impl<S: ?Sized> Splits<S> {
    fn new(name: String) -> Splits<S> {
        Splits { name, train: None, val: None, test: None, hold_out: None, seed: 0 }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> DataError {
        DataError::Setting(format!("data set \"{}\": {what}", self.name))
    }

    fn each(&self) -> impl Iterator<Item = (&'static str, &Arc<S>)> {
        let all = [("training", &self.train), ("validation", &self.val), ("test", &self.test)];
        all.into_iter().filter_map(|(name, split)| Some((name, split.as_ref()?)))
    }

    fn check(&self, len: impl Fn(&S) -> usize) -> Result<()> {
        if self.each().next().is_none() {
            return Err(self.wrong("it has no examples; give it .train(…) or .test(…)"));
        }
        if let Some((split, _)) = self.each().find(|(_, s)| len(s) == 0) {
            return Err(self.wrong(format!("the {split} split holds no examples")));
        }
        let Some(share) = self.hold_out else { return Ok(()) };
        if !(share > 0.0 && share < 1.0) {
            return Err(self.wrong(format!("the share to hold out is {share} and must lie between 0 and 1")));
        }
        match (&self.train, &self.val) {
            (None, _) => Err(self.wrong("there are no training examples to hold out any of")),
            (_, Some(_)) => Err(self.wrong("it has a validation split; .hold_out(…) is for sets that have none")),
            _ => Ok(()),
        }
    }

    fn options(&self) -> OpenOptions {
        let val_fraction = self.hold_out.unwrap_or(0.0);
        OpenOptions { val_fraction, split_seed: self.seed, decoded_bytes: 0, ..OpenOptions::default() }
    }

    /// A share was to be held out, and this is what came of it.
    fn check_held(&self, train: usize) -> Result<()> {
        match self.hold_out {
            Some(share) if self.val.is_none() => {
                let why = format!("holding out {share} of {train} training examples leaves one part without any");
                Err(self.wrong(why))
            }
            _ => Ok(()),
        }
    }
}

/// The splits of a builder, by sources of one kind.
macro_rules! split_methods {
    ($source:ident) => {
        /// The training examples.
        #[must_use]
        pub fn train(mut self, source: impl $source + 'static) -> Self {
            self.splits.train = Some(Arc::new(source));
            self
        }

        /// Examples for evaluation during training.
        #[must_use]
        pub fn validation(mut self, source: impl $source + 'static) -> Self {
            self.splits.val = Some(Arc::new(source));
            self
        }

        /// Examples for the final evaluation.
        #[must_use]
        pub fn test(mut self, source: impl $source + 'static) -> Self {
            self.splits.test = Some(Arc::new(source));
            self
        }

        /// Hold out this share of the training examples for evaluation during training; of packed text, its end.
        #[must_use]
        pub fn hold_out(mut self, share: f64) -> Self {
            self.splits.hold_out = Some(share);
            self
        }

        /// Which examples [`hold_out`](Self::hold_out) chooses.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.splits.seed = seed;
            self
        }
    };
}

/// Makes a [`Dataset`] of sources; see [`Dataset::classes`].
pub struct DatasetBuilder {
    splits: Splits<dyn ImageSource>,
    class_names: Vec<String>,
    channels: Option<usize>,
}

impl DatasetBuilder {
    pub(super) fn new(name: String, class_names: Vec<String>) -> DatasetBuilder {
        DatasetBuilder { splits: Splits::new(name), class_names, channels: None }
    }

    split_methods!(ImageSource);

    /// 1 for grey images, 3 for colour. Without it the first image that can be read decides.
    #[must_use]
    pub fn channels(mut self, channels: usize) -> Self {
        self.channels = Some(channels);
        self
    }

    /// The data set, if it can be used: no split is empty, and every label has a name.
    pub fn build(self) -> Result<Dataset> {
        let DatasetBuilder { mut splits, class_names, channels } = self;
        splits.check(|s| s.len())?;
        let mut names = HashSet::new();
        if let Some(twice) = class_names.iter().find(|n| !names.insert(n.as_str())) {
            return Err(splits.wrong(format!("two classes are called \"{twice}\"")));
        }
        for (split, source) in splits.each() {
            let labels = (0..source.len()).map(|i| (i, source.label(i)));
            if let Some((i, label)) = labels.into_iter().find(|(_, l)| *l as usize >= class_names.len()) {
                let (n, place) = (class_names.len(), source.place(i));
                return Err(
                    splits.wrong(format!("{split} split, {place}: its label is {label}, and {n} classes have names"))
                );
            }
        }
        let channels = match channels {
            Some(n) => n,
            None => first_channels(&splits)?,
        };
        if channels != 1 && channels != 3 {
            return Err(splits.wrong(format!("images of {channels} channels; there must be 1 (grey) or 3 (colour)")));
        }
        let options = splits.options();
        let all = splits.train.as_ref().map_or(0, |s| s.len());
        let three = [&mut splits.train, &mut splits.val, &mut splits.test];
        let val_origin = split::choose_images(three, &options);
        splits.check_held(all)?;
        let Splits { name, train, val, test, .. } = splits;
        let (format, notes) = (Format::Custom, Vec::new());
        Ok(Dataset { name, format, class_names, channels, train, val, val_origin, test, notes })
    }
}

fn first_channels(splits: &Splits<dyn ImageSource>) -> Result<usize> {
    let mut failed = None;
    for (_, source) in splits.each() {
        for i in 0..source.len().min(TRIES) {
            match source.get(i) {
                Ok(item) => return Ok(item.image.channels),
                Err(e) => failed = failed.or(Some(e)),
            }
        }
    }
    let why = failed.map_or(String::new(), |e| format!(" ({e})"));
    Err(splits.wrong(format!("none of the first images can be read{why}; say .channels(…) if others can")))
}

/// Makes a [`SequenceSet`] of sources; see [`SequenceSet::captions`] and [`SequenceSet::texts`].
pub struct SequenceSetBuilder {
    splits: Splits<dyn TextSource>,
    task: Task,
    layout: Layout,
}

impl SequenceSetBuilder {
    pub(super) fn new(name: String, task: Task) -> SequenceSetBuilder {
        SequenceSetBuilder { splits: Splits::new(name), task, layout: Layout::Lines }
    }

    split_methods!(TextSource);

    /// Text as one stream of full windows, where each text otherwise stands alone.
    #[must_use]
    pub fn packed(mut self) -> Self {
        self.layout = Layout::Packed;
        self
    }

    /// The set, if it can be used: no split is empty, and captions have images.
    pub fn build(self) -> Result<SequenceSet> {
        let SequenceSetBuilder { mut splits, task, layout } = self;
        splits.check(|s| s.len())?;
        if task == Task::Caption {
            if layout == Layout::Packed {
                return Err(splits.wrong("captions cannot be packed: each belongs to an image"));
            }
            for (split, source) in splits.each() {
                if let Some(place) = first_without_image(source) {
                    let hint = "for texts alone there is SequenceSet::texts";
                    return Err(splits.wrong(format!("{split} split, {place}: a caption without an image; {hint}")));
                }
            }
        }
        let options =
            SequenceOptions { task: Some(task), layout, open: splits.options(), ..SequenceOptions::default() };
        let all = splits.train.as_ref().map_or(0, |s| s.len());
        let three = [&mut splits.train, &mut splits.val, &mut splits.test];
        let val_origin = split::choose_validation(three, |all| sequence::hold_out(all, &options));
        splits.check_held(all)?;
        let Splits { name, train, val, test, .. } = splits;
        let (format, notes) = (SequenceFormat::Custom, Vec::new());
        Ok(SequenceSet { name, format, task, layout, train, val, val_origin, test, notes })
    }
}

/// Where the first example lies that can be read and has no image, if the first that can be read has none.
fn first_without_image(source: &Texts) -> Option<String> {
    let first = (0..source.len().min(TRIES)).find_map(|i| Some((i, source.image(i).ok()?)));
    first.and_then(|(i, image)| image.is_none().then(|| source.place(i)))
}

impl std::fmt::Debug for DatasetBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("DatasetBuilder").field("name", &self.splits.name).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SequenceSetBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("SequenceSetBuilder").field("name", &self.splits.name).finish_non_exhaustive()
    }
}
