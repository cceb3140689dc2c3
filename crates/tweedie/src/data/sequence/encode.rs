//! Texts as sequences of tokens.

use super::super::sources::beyond;
use super::super::{DataError, Extent, Image, Locality, Result};
use super::packed::{OnBad, Packed};
use super::{Layout, Overlong, Texts};
use crate::random::{Address, Draw, Stream};
use crate::tokenize::Tokenizer;
use std::sync::Arc;

/// How texts become sequences.
#[derive(Clone, Debug)]
pub struct SequenceConfig {
    /// Length N of every sequence.
    pub tokens: usize,
    /// One stream, or each text by itself.
    pub layout: Layout,
    /// What happens to texts with more than N tokens (not in a stream, which is cut anyway).
    pub overlong: Overlong,
    /// Packed text of at most so many bytes is tokenised once and held in memory.
    pub memory_bytes: u64,
}

impl SequenceConfig {
    /// Each text by itself, cut to `tokens`.
    pub fn lines(tokens: usize) -> SequenceConfig {
        SequenceConfig { tokens, layout: Layout::Lines, overlong: Overlong::Cut, memory_bytes: 64 << 20 }
    }

    /// Windows of `tokens` of one stream.
    pub fn packed(tokens: usize) -> SequenceConfig {
        SequenceConfig { layout: Layout::Packed, ..SequenceConfig::lines(tokens) }
    }
}

/// A source whose texts are tokenised as they are read.
#[derive(Clone)]
pub struct Sequences {
    source: Texts,
    tokenizer: Arc<Tokenizer>,
    tokens: usize,
    overlong: Overlong,
    packed: Option<Arc<Packed>>,
}

impl Sequences {
    /// Sequences of the texts of `source`. Packed text up to the set size is tokenised here.
    pub fn new(source: Texts, tokenizer: Arc<Tokenizer>, config: &SequenceConfig) -> Result<Sequences> {
        if config.tokens == 0 {
            return Err(DataError::Setting("a sequence must have at least 1 token".into()));
        }
        let packed = match config.layout {
            Layout::Packed => Some(Arc::new(Packed::new(&source, &tokenizer, config)?)),
            Layout::Lines => None,
        };
        Ok(Sequences { source, tokenizer, tokens: config.tokens, overlong: config.overlong, packed })
    }

    /// Number of sequences: examples, or windows of a stream.
    pub fn len(&self) -> usize {
        self.packed.as_ref().map_or(self.source.len(), |p| p.len())
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length N of every sequence.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The texts behind it.
    pub fn source(&self) -> &Texts {
        &self.source
    }

    /// All references of example `i`, for evaluation: its captions (or its text) without blank ones. For packed text,
    /// where sequences are no examples, none.
    pub fn references(&self, i: usize) -> Result<Vec<String>> {
        if self.packed.is_some() {
            return Ok(Vec::new());
        }
        let texts = self.source.texts(i)?;
        Ok(texts.into_iter().map(|t| t.trim().to_string()).filter(|t| !t.is_empty()).collect())
    }

    /// The image of example `i`, or an error that says there is none.
    pub fn image(&self, i: usize) -> Result<Image> {
        let image = if self.packed.is_some() { None } else { self.source.image(i)? };
        image.ok_or_else(|| DataError::Setting("these are texts without images".into()))
    }

    /// Where sequence `i` comes from, for messages.
    pub fn place(&self, i: usize) -> String {
        match &self.packed {
            Some(_) => format!("window {i}"),
            None => self.source.place(i),
        }
    }

    pub(crate) fn locality(&self) -> Option<Locality> {
        match &self.packed {
            Some(packed) => packed.locality(&self.source),
            None => self.source.locality(),
        }
    }

    pub(crate) fn extent(&self, i: usize) -> Option<Extent> {
        match &self.packed {
            Some(packed) => self.source.extent(packed.row(&self.source, i)?),
            None => self.source.extent(i),
        }
    }

    pub(crate) fn read_ahead(&self, examples: &[u32]) {
        match &self.packed {
            Some(packed) => {
                let mut rows: Vec<u32> =
                    examples.iter().filter_map(|&i| Some(packed.row(&self.source, i as usize)? as u32)).collect();
                rows.dedup();
                self.source.read_ahead(&rows);
            }
            None => self.source.read_ahead(examples),
        }
    }

    /// Rows of packed text that are of no use, by number, as far as they are known before it is read: all of a text that
    /// is held in memory.
    pub fn bad_rows(&self) -> &[(u32, String)] {
        self.packed.as_ref().map_or(&[], |p| p.bad_rows())
    }

    /// Write the tokens of a sequence into a place for N; true if its text was cut. Which caption is shown, and (`shuffled`) where a stream
    /// begins, depend on (seed, epoch, example) alone.
    pub fn write(&self, at: Address, shuffled: bool, out: &mut [u32]) -> Result<bool> {
        self.write_noting(at, shuffled, out, &mut |_, _| Ok(()))
    }

    /// As [`write`](Sequences::write); rows of a stream that are left out are told to `on_bad`.
    pub(crate) fn write_noting(&self, at: Address, shuffled: bool, out: &mut [u32], on_bad: OnBad) -> Result<bool> {
        if out.len() != self.tokens {
            let (n, room) = (self.tokens, out.len());
            return Err(DataError::Setting(format!("a sequence of {n} tokens does not go into a place for {room}")));
        }
        if let Some(packed) = &self.packed {
            if at.example as usize >= packed.len() {
                return Err(beyond(at.example as usize, packed.len()));
            }
            packed.write(&self.source, &self.tokenizer, at, shuffled, out, on_bad)?;
            return Ok(false);
        }
        let i = at.example as usize;
        let mut texts = self.source.texts(i)?;
        texts.retain(|t| !t.trim().is_empty());
        if texts.is_empty() {
            return Err(DataError::no_text(self.source.place(i)));
        }
        let chosen = match texts.len() {
            1 => 0,
            n => Draw::new(at.seed, Stream::Caption, at.epoch, at.example).below(n),
        };
        self.encode(texts[chosen].trim(), out, || self.source.place(i))
    }

    /// The tokens of any text, as [`write`](Sequences::write) lays them out; `place` stands in errors.
    pub fn encode(&self, text: &str, out: &mut [u32], place: impl FnOnce() -> String) -> Result<bool> {
        // No token is so long that more of the text could matter.
        let most = (out.len() * 64).max(4096);
        let head = prefix(text, most);
        let ids = self.tokenizer.encode(head);
        if ids.is_empty() {
            return Err(DataError::bad_text(place(), "the tokenizer finds no token in the text"));
        }
        let overlong = ids.len() > out.len() || head.len() < text.len();
        match self.overlong {
            Overlong::Skip if overlong => {
                return Err(DataError::TooLong { place: place(), tokens: ids.len(), limit: out.len() });
            }
            Overlong::Fail if overlong => {
                let (n, limit) = (ids.len(), out.len());
                return Err(DataError::Setting(format!(
                    "{}: {n} tokens where {limit} fit; set data.tokens, or data.overlong = \"cut\" or \"skip\"",
                    place()
                )));
            }
            _ => {}
        }
        let n = ids.len().min(out.len());
        out[..n].copy_from_slice(&ids[..n]);
        out[n..].fill(self.tokenizer.pad());
        if let Some(end) = out.get_mut(n) {
            *end = self.tokenizer.eos();
        }
        Ok(overlong)
    }
}

/// The first `most` bytes, or a little less: whole characters.
pub(super) fn prefix(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let end = (0..=most).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}
