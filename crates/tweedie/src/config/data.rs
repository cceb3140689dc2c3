//! `[data]`.

use serde::{Deserialize, Serialize};

use crate::data::{CacheMode, Layout, OnCorrupt, OpenOptions, Overlong, SequenceConfig, SequenceOptions, Task};

/// Where the data come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// Folder or file; `embedded:digits` and `embedded:shapes` are inside the program.
    pub path: String,
    /// A file with one class name per line; empty: as the data say.
    pub classes: String,
    /// Share of the training set held out for evaluation where the data bring no split of their own.
    pub val_fraction: f64,
    /// At most so many training examples, drawn by the seed after evaluation has its share (0: all).
    pub train_limit: usize,
    /// What happens at an image that cannot be read: `skip` (reported and counted) or `fail`.
    pub corrupt: Corrupt,
    /// Decoding threads; 0: as many as there are cores.
    pub workers: usize,
    /// Decoded images in memory, so that each is decoded once and not in every epoch: `auto` (a split whose images all fit
    /// into an eighth of the memory) or `off`. The results are the same.
    pub cache: CacheMode,
    /// MiB of blocks of Parquet and tar files, as they are stored, that each split may keep in memory. A training set that has more is
    /// streamed: its blocks are read ahead and forgotten, and it is shuffled file by file.
    pub memory: usize,
    /// Lanes in which a set is streamed: each has files of its own and fills the same rows of every batch, so ranks that divide their
    /// number read different files. 0: 24, or fewer where the batch or the memory is small, and none for a set that fits into memory. The order
    /// of examples depends on it, and not on the number of ranks.
    pub lanes: usize,
    /// Column of images in Parquet files; empty: found by type.
    pub image_column: String,
    /// Column of labels in Parquet files; empty: `label` or the only integer column.
    pub label_column: String,
    /// What is learnt: `class`, `caption` or `text`.
    pub task: Task,
    /// Column or field of captions; several, parted by commas, are put together; empty: the usual names.
    pub caption_column: String,
    /// Column or field of text; empty: the usual names.
    pub text_column: String,
    /// Folder of the images that COCO's files name; empty: the usual places.
    pub image_folder: String,
    /// Length of a sequence in tokens, its end included where there is room.
    pub tokens: usize,
    /// `chars`, `word:5000`, `space:34000`, `bpe:8000`, `wordpiece:8000` (trained on the training texts), or a
    /// tokenizer.json; empty: that of the run in `train.init_from`.
    pub tokenizer: String,
    /// Text as one stream cut into full windows (`packed`) or line by line, padded (`lines`). Captions are lines.
    pub layout: Layout,
    /// A text of more tokens than fit: `cut` (and counted), `skip` or `fail`.
    pub overlong: Overlong,
}

impl Default for DataConfig {
    fn default() -> DataConfig {
        DataConfig {
            path: "embedded:digits".into(),
            classes: String::new(),
            val_fraction: 0.1,
            train_limit: 0,
            corrupt: Corrupt::Skip,
            workers: 0,
            cache: CacheMode::Auto,
            memory: 2048, // all of CIFAR or Imagenette, a few hundred row groups of ImageNet
            lanes: 0,
            image_column: String::new(),
            label_column: String::new(),
            task: Task::Class,
            caption_column: String::new(),
            text_column: String::new(),
            image_folder: String::new(),
            tokens: 32, // 99.9 % of COCO's captions; text takes more
            tokenizer: "word:5000".into(),
            layout: Layout::Lines,
            overlong: Overlong::Cut,
        }
    }
}

impl DataConfig {
    /// Bytes of blocks of files that each split may keep in memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory.saturating_mul(1 << 20)
    }

    /// How captions or text are opened.
    pub fn sequence_options(&self, seed: u64) -> SequenceOptions {
        let given = |s: &str| (!s.is_empty()).then(|| s.to_string());
        SequenceOptions {
            task: (self.task != Task::Class).then_some(self.task),
            caption_column: given(&self.caption_column),
            text_column: given(&self.text_column),
            image_folder: given(&self.image_folder).map(Into::into),
            layout: if self.task == Task::Caption { Layout::Lines } else { self.layout },
            open: OpenOptions {
                image_column: given(&self.image_column),
                val_fraction: self.val_fraction,
                split_seed: seed,
                decoded_bytes: self.cache.bytes(),
                cache_bytes: self.memory_bytes(),
                ..OpenOptions::default()
            },
        }
    }

    /// How texts become sequences.
    pub fn sequence_config(&self) -> SequenceConfig {
        let layout = if self.task == Task::Caption { Layout::Lines } else { self.layout };
        SequenceConfig { layout, overlong: self.overlong, ..SequenceConfig::lines(self.tokens) }
    }
}

/// What to do at an unreadable image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Corrupt {
    /// Report its path, count it, go on.
    Skip,
    /// Stop with an error.
    Fail,
}

impl From<Corrupt> for OnCorrupt {
    fn from(c: Corrupt) -> OnCorrupt {
        match c {
            Corrupt::Skip => OnCorrupt::Skip,
            Corrupt::Fail => OnCorrupt::Fail,
        }
    }
}
