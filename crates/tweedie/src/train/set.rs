//! What a model is trained on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::init::Source;
use crate::config::{Config, DataConfig};
use crate::data::{self, Dataset, Fingerprint, Format, OpenOptions, SequenceFormat, SequenceSet, Task};
use crate::error::{Error, Result};
use crate::tokenize::{Tokenizer, TokenizerSpec};

/// Images with classes, or captions or text with their tokenizer.
///
/// ```
/// use tweedie::Config;
/// use tweedie::data::SequenceSet;
/// use tweedie::train::TrainingSet;
///
/// let texts = vec!["abba".to_string(); 9];
/// let set = SequenceSet::texts("songs").train(texts.clone()).validation(texts).build()?;
/// let config = Config::default().with("data.tokenizer", "chars")?;
/// let TrainingSet::Sequences { tokenizer, .. } = TrainingSet::sequences(set, &config, None)? else { unreachable!() };
/// assert_eq!(tokenizer.encode("abba").len(), 4);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub enum TrainingSet {
    /// Images with classes.
    Classes(Dataset),
    /// Captions or text.
    Sequences {
        /// Where they lie.
        set: SequenceSet,
        /// How they become tokens.
        tokenizer: Arc<Tokenizer>,
    },
}

impl From<Dataset> for TrainingSet {
    fn from(set: Dataset) -> TrainingSet {
        TrainingSet::Classes(set)
    }
}

impl TrainingSet {
    /// Open what settings name. Sequences have the tokenizer of the file `stored`, if that exists, or else that of the run they start from
    /// (`train.init_from`), or else the one that the settings name, trained on the training texts if it is not a file.
    pub fn open(config: &Config, stored: Option<&Path>) -> Result<TrainingSet> {
        if config.data.task == Task::Class {
            return Ok(open_classes(config)?.into());
        }
        TrainingSet::sequences(open_sequences(&config.data, config.seed)?, config, stored)
    }

    /// Sequences with the tokenizer of the file `stored`, if that exists, as of a run that is gone on with; else with the one that settings
    /// name.
    pub fn sequences(set: SequenceSet, config: &Config, stored: Option<&Path>) -> Result<TrainingSet> {
        let tokenizer = match stored.filter(|p| p.exists()) {
            Some(path) => Tokenizer::from_file(path)?,
            None => match Source::of(config)? {
                Some(source) => source.tokenizer(&config.data.tokenizer)?,
                None => build_tokenizer(&config.data.tokenizer, &set)?,
            },
        };
        Ok(TrainingSet::Sequences { set, tokenizer: Arc::new(tokenizer) })
    }

    /// What it is for.
    pub fn task(&self) -> Task {
        match self {
            TrainingSet::Classes(_) => Task::Class,
            TrainingSet::Sequences { set, .. } => set.task,
        }
    }

    /// What it looks like, to know it again. Reads a few examples.
    pub fn fingerprint(&self) -> Fingerprint {
        match self {
            TrainingSet::Classes(set) => Fingerprint::of_classes(set),
            TrainingSet::Sequences { set, .. } => Fingerprint::of_sequences(set),
        }
    }

    /// What stands for it in the settings of a run, where it was made by a program and not opened by those settings.
    pub(super) fn own_path(&self) -> Option<String> {
        let (name, own) = match self {
            TrainingSet::Classes(set) => (&set.name, set.format == Format::Custom),
            TrainingSet::Sequences { set, .. } => (&set.name, set.format == SequenceFormat::Custom),
        };
        own.then(|| format!("{OWN}{name}"))
    }
}

/// Begins the path of data that a program made.
const OWN: &str = "own:";

fn check_path(path: &str) -> Result<()> {
    match path.strip_prefix(OWN) {
        Some(name) => Err(Error::OwnData { name: name.into() }),
        None if path.is_empty() => Err(Error::NoData),
        None => Ok(()),
    }
}

/// Open the images with classes that settings name.
pub fn open_classes(config: &Config) -> Result<Dataset> {
    let given = |s: &str| (!s.is_empty()).then(|| s.to_string());
    let options = OpenOptions {
        classes: given(&config.data.classes).map(PathBuf::from),
        image_column: given(&config.data.image_column),
        label_column: given(&config.data.label_column),
        val_fraction: config.data.val_fraction,
        split_seed: config.seed,
        decoded_bytes: config.data.cache.bytes(),
        cache_bytes: config.data.memory_bytes(),
        ..OpenOptions::default()
    };
    check_path(&config.data.path)?;
    let mut set = data::open(&config.data.path, &options)?;
    if let (Some(train), most @ 1..) = (&set.train, config.data.train_limit) {
        set.train = Some(data::some_of(train, most, config.seed)?);
    }
    Ok(set)
}

/// Open the captions or text that settings name.
pub fn open_sequences(settings: &DataConfig, seed: u64) -> Result<SequenceSet> {
    check_path(&settings.path)?;
    let mut set = data::open_sequences(&settings.path, &settings.sequence_options(seed))?;
    if let (Some(train), most @ 1..) = (&set.train, settings.train_limit) {
        set.train = Some(data::some_texts(train, most, seed)?);
    }
    Ok(set)
}

/// The tokenizer that settings name, trained on the training texts if it is not a file.
pub fn build_tokenizer(spec: &str, set: &SequenceSet) -> Result<Tokenizer> {
    if spec.is_empty() {
        let what = "data.tokenizer is empty, which means that of the run in train.init_from, and that is empty too";
        return Err(Error::Input(format!("{what}; name a kind, as word:5000, or a tokenizer.json")));
    }
    let spec: TokenizerSpec = spec.parse()?;
    spec.build(|| Ok(set.training_texts()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_training_examples_are_drawn_by_the_seed() {
        let classes = |limit: usize, seed: u64| {
            let mut c = Config { seed, ..Config::default() };
            c.data.train_limit = limit;
            let set = open_classes(&c).unwrap();
            let train = set.train().unwrap().clone();
            ((0..train.len()).map(|i| train.label(i)).collect::<Vec<_>>(), set.val().unwrap().len())
        };
        let (all, held_out) = classes(0, 1);
        let (some, same_held_out) = classes(100, 1);
        assert_eq!((some.len(), same_held_out), (100, held_out));
        assert_eq!(some, classes(100, 1).0);
        assert_ne!(some, classes(100, 2).0);
        assert!(classes(1_000_000, 1).0 == all && some != all[..100]);
        let scenes = |limit: usize| {
            let data = DataConfig {
                path: "embedded:shapes".into(),
                task: Task::Caption,
                train_limit: limit,
                ..DataConfig::default()
            };
            let set = open_sequences(&data, 0).unwrap();
            (set.train().unwrap().len(), set.val().unwrap().len())
        };
        assert_eq!((scenes(50).0, scenes(50).1), (50, scenes(0).1));
    }
}
