//! Which tokenizer: a kind with its size, or a file.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::Tokenizer;
use crate::error::{Error, Result};

/// What can be trained here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every character is a class.
    Chars,
    /// Words of captions: lower case, without punctuation; `'s` is a word, inner hyphens stay.
    Word,
    /// What stands between white space, as it is: for text that was tokenised before.
    Space,
    /// Byte-pair encoding of bytes, as GPT-2 does it; every text can be written.
    Bpe,
    /// Pieces of lower-case words, as BERT does it.
    WordPiece,
}

/// Kinds with their names in settings.
const KINDS: [(&str, Kind); 5] = [
    ("chars", Kind::Chars),
    ("word", Kind::Word),
    ("space", Kind::Space),
    ("bpe", Kind::Bpe),
    ("wordpiece", Kind::WordPiece),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(KINDS.iter().find(|(_, k)| k == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Kind> {
        KINDS.iter().find(|(n, _)| *n == name).map(|(_, k)| *k).ok_or_else(|| {
            let names = KINDS.map(|(n, _)| n).join(", ");
            Error::Input(format!("'{name}' is not a kind of tokenizer; use one of {names}"))
        })
    }
}

impl Kind {
    /// Classes if no number is given.
    pub fn default_vocab(self) -> usize {
        match self {
            Kind::Chars => usize::MAX, // all that occur
            Kind::Word => 5000,
            Kind::Space => 34_000, // all of WikiText-2
            Kind::Bpe | Kind::WordPiece => 8000,
        }
    }
}

/// A tokenizer as settings name it: `chars`, `word:5000`, `space:34000`, `bpe:8000`, `wordpiece:8000`, or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerSpec {
    /// Learnt from the training texts.
    Train(Kind, usize),
    /// A `tokenizer.json`.
    File(PathBuf),
}

impl FromStr for TokenizerSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<TokenizerSpec> {
        let (name, size) = text.split_once(':').map_or((text, None), |(n, s)| (n, Some(s)));
        match (name.parse::<Kind>(), size) {
            (Ok(kind), None) => Ok(TokenizerSpec::Train(kind, kind.default_vocab())),
            (Ok(kind), Some(size)) => match size.trim().replace('_', "").parse() {
                Ok(n) => Ok(TokenizerSpec::Train(kind, n)),
                Err(_) => Err(Error::Input(format!("tokenizer '{text}': '{size}' is not a number of classes"))),
            },
            // A path, also one with a colon in it. A bare word that is no file was meant as a kind.
            (Err(e), _) if text.is_empty() || !(text.contains(['/', '\\', '.']) || PathBuf::from(text).exists()) => {
                Err(Error::Input(format!("{e} (optionally with a size, as word:5000), or a tokenizer.json")))
            }
            (Err(_), _) => Ok(TokenizerSpec::File(text.into())),
        }
    }
}

impl TokenizerSpec {
    /// Read the file, or learn from the texts, which are only looked at in that case.
    pub fn build<I, S>(&self, texts: impl FnOnce() -> Result<I>) -> Result<Tokenizer>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str> + Send + Sync,
    {
        match self {
            TokenizerSpec::Train(kind, vocab) => Tokenizer::train(*kind, *vocab, texts()?),
            TokenizerSpec::File(path) => Tokenizer::from_file(path),
        }
    }
}
