//! Data made up in memory, so that a model can be timed without any files: noise for images, numbered words for texts.

use std::sync::Arc;

use tweedie::config::Config;
use tweedie::data::{
    Batch, DataError, Dataset, Format, Image, MemorySource, SequenceFormat, SequenceSet, Task, TextSource,
};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::train::TrainingSet;
use tweedie_engine::rng;

use crate::failure::Result;

/// Words and marks of a vocabulary of `vocab` classes.
const MARKS: usize = 3;

/// Texts of one word each, which nothing reads: the batches are made here too.
struct Words {
    count: usize,
    image: Option<(usize, usize)>,
}

impl TextSource for Words {
    fn len(&self) -> usize {
        self.count
    }

    fn texts(&self, i: usize) -> tweedie::data::Result<Vec<String>> {
        Ok(vec![word(i)])
    }

    fn image(&self, _: usize) -> tweedie::data::Result<Option<Image>> {
        Ok(self.image.map(|(side, channels)| Image::filled(side, side, &vec![128; channels])))
    }

    fn place(&self, i: usize) -> String {
        format!("made up, example {i}")
    }

    fn bytes(&self) -> u64 {
        self.count as u64 * 8
    }
}

fn word(i: usize) -> String {
    format!("w{i}")
}

/// Something to train `config`'s model on, with `vocab` classes.
pub fn training_set(config: &Config, vocab: usize) -> Result<TrainingSet> {
    let (e, b) = (&config.model.encoder, config.train.batch);
    if config.data.task == Task::Class {
        // One label of each class, so that the data have them all.
        let pixels = vec![128; b * e.image * e.image * e.channels];
        let labels = (0..b).map(|i| (i % vocab) as u32).collect();
        let source = Arc::new(MemorySource::new("made up", e.image, e.image, e.channels, pixels, labels)?);
        return Ok(TrainingSet::Classes(Dataset {
            name: "made up".into(),
            format: Format::Custom,
            class_names: (0..vocab).map(|c| c.to_string()).collect(),
            channels: e.channels,
            train: Some(source.clone()),
            val: Some(source),
            val_origin: "the same".into(),
            test: None,
            notes: Vec::new(),
        }));
    }
    let image = config.model.is_conditional().then_some((e.image, e.channels));
    let source = Arc::new(Words { count: b, image });
    let tokenizer = Tokenizer::train(Kind::Space, vocab, (0..2 * (vocab - MARKS)).map(|i| word(i % (vocab - MARKS))))?; // twice: a word seen once is no class
    if tokenizer.vocab() != vocab {
        return Err(DataError::Setting(format!("made up {} classes instead of {vocab}", tokenizer.vocab())).into());
    }
    let set = SequenceSet {
        name: "made up".into(),
        format: SequenceFormat::Text,
        task: config.data.task,
        layout: config.data.layout,
        train: Some(source.clone()),
        val: Some(source),
        val_origin: "the same".into(),
        test: None,
        notes: Vec::new(),
    };
    Ok(TrainingSet::Sequences { set, tokenizer: Arc::new(tokenizer) })
}

/// A batch of `b` examples of noise.
pub fn batch(config: &Config, b: usize) -> Batch {
    let (e, sizes) = (&config.model.encoder, config.sizes());
    let random = |i: usize| rng::philox([i as u32, 0, 0, 0], [3, 5]);
    let values = if config.model.is_conditional() { b * e.channels * e.image * e.image } else { 0 };
    let images = (0..values.div_ceil(4)).flat_map(|i| rng::normals_of(random(i))).take(values).collect();
    let tokens = (0..b * sizes.tokens).map(|i| random(i)[0] % sizes.vocab as u32).collect();
    let (labels, tokens) = if config.data.task == Task::Class { (tokens, Vec::new()) } else { (Vec::new(), tokens) };
    Batch { part: 0..b, global: b, images, labels, tokens, indices: (0..b as u32).collect(), ..Batch::default() }
}
