//! Text to class numbers and back. A tokenizer is one file, `tokenizer.json`: Hugging Face's format, or a list of
//! characters. What is trained here ([`Tokenizer::train`]) is written in these formats too.

mod chars;
mod foreign;
mod spec;
mod train;

pub use spec::{Kind, TokenizerSpec};

use std::path::Path;

use tokenizers::{AddedToken, DecoderWrapper};

use crate::error::{Error, Result};
use crate::files::read_to_string;
use crate::limits::SMALL_BYTES;
use chars::Chars;

/// Fills a sequence after its end.
pub const PAD: &str = "<pad>";
/// Ends a text.
pub const EOS: &str = "<eos>";
/// Stands for what the vocabulary lacks.
pub const UNK: &str = "<unk>";
/// Names that this mark has elsewhere.
const UNKNOWN: [&str; 3] = [UNK, "[UNK]", "<|unk|>"];

/// Names that others give to these, the likeliest first.
const PADS: [&str; 7] = [PAD, "[PAD]", "<|pad|>", "<|padding|>", "<PAD>", "[pad]", "<|finetune_right_pad_id|>"];
const ENDS: [&str; 11] = [
    EOS,
    "</s>",
    "<|endoftext|>",
    "[EOS]",
    "<EOS>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|eos|>",
    "[SEP]",
];

enum Inner {
    Chars(Box<Chars>),
    Hub(Box<tokenizers::Tokenizer>),
}

/// Text to class numbers and back. The numbers are the classes of the diffusion, 0 to [`vocab`](Tokenizer::vocab) − 1.
///
/// ```
/// use tweedie::tokenize::{Kind, Tokenizer};
///
/// let words = Tokenizer::train(Kind::Word, 100, ["a red dog", "a blue dog", "a red car"])?;
/// let ids = words.encode("a red dog"); // words that come once are <unk>
/// assert_eq!((ids.len(), words.decode(&ids).as_str()), (3, "a red dog"));
/// assert!(ids.iter().all(|&id| (id as usize) < words.vocab()));
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Tokenizer {
    inner: Inner,
    vocab: usize,
    pad: u32,
    eos: u32,
    /// Encodes a line end to something, so that lines of a text need no other mark.
    keeps_lines: bool,
    notes: Vec<String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab", &self.vocab).field("pad", &self.pad).field("eos", &self.eos).finish()
    }
}

impl Tokenizer {
    /// Learn a vocabulary of at most `vocab` classes from texts. The result depends on the multiset of texts alone.
    pub fn train<I, S>(kind: Kind, vocab: usize, texts: I) -> Result<Tokenizer>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str> + Send + Sync,
    {
        train::train(kind, vocab, texts.into_iter())
    }

    /// Read a `tokenizer.json`; errors name the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Tokenizer> {
        let path = path.as_ref();
        let text = read_to_string(path, &SMALL_BYTES).map_err(|e| Error::file(path, e))?;
        Tokenizer::from_json(&text).map_err(|e| Error::Input(format!("{}: {e}", path.display())))
    }

    /// From the text of a `tokenizer.json`.
    pub fn from_json(text: &str) -> Result<Tokenizer> {
        let value = serde_json::from_str(text).map_err(|e| Error::Input(format!("not JSON ({e})")))?;
        match Chars::is_stored(&value) {
            true => Ok(Tokenizer::of_chars(Chars::from_json(value)?)),
            false => {
                let (hub, notes) = foreign::load(text, value)?;
                Tokenizer::of_hub(hub, notes)
            }
        }
    }

    /// The text of a `tokenizer.json` that [`from_json`](Tokenizer::from_json) reads back to the same tokenizer.
    pub fn to_json(&self) -> String {
        match &self.inner {
            Inner::Chars(c) => c.to_json(),
            Inner::Hub(t) => t.to_string(false).unwrap_or_default(), // it was parsed from JSON or built from parts that have it
        }
    }

    fn of_chars(chars: Chars) -> Tokenizer {
        let vocab = chars.vocab();
        let keeps_lines = chars.has('\n');
        Tokenizer {
            inner: Inner::Chars(Box::new(chars)),
            vocab,
            pad: chars::PAD_ID,
            eos: chars::EOS_ID,
            keeps_lines,
            notes: Vec::new(),
        }
    }

    fn of_hub(mut t: tokenizers::Tokenizer, mut notes: Vec<String>) -> Result<Tokenizer> {
        // Length is ours to set, and text that spells a mark is text.
        t.with_padding(None);
        t.with_truncation(None).map_err(|e| Error::Input(e.to_string()))?;
        t.set_encode_special_tokens(true);
        let find = |t: &tokenizers::Tokenizer, names: &[&str]| names.iter().find_map(|n| t.token_to_id(n));
        let (pad, eos) = match (find(&t, &PADS), find(&t, &ENDS)) {
            (Some(pad), Some(eos)) => (pad, eos),
            (Some(one), None) | (None, Some(one)) => {
                let name = t.id_to_token(one).unwrap_or_default();
                notes.push(format!("{name} ({one}) both ends and fills sequences: the tokenizer has no other mark"));
                (one, one)
            }
            (None, None) => {
                let before = t.get_vocab_size(true);
                t.add_special_tokens(&[PAD, EOS].map(|name| AddedToken::from(name, true)));
                let ids = (find(&t, &PADS), find(&t, &ENDS));
                let (Some(pad), Some(eos)) = ids else {
                    return Err(Error::Input("the marks <pad> and <eos> cannot be added to this tokenizer".into()));
                };
                notes.push(format!(
                    "the tokenizer has no mark for the end or for padding: {PAD} ({pad}) and {EOS} ({eos}) were added to its {before} tokens"
                ));
                (pad, eos)
            }
        };
        let vocab = foreign::classes(&t)?;
        foreign::probe(&t, &mut notes)?;
        let keeps_lines = foreign::encode(&t, "a\nb")
            .is_ok_and(|with| foreign::encode(&t, "a b").is_ok_and(|without| with != without));
        Ok(Tokenizer { inner: Inner::Hub(Box::new(t)), vocab, pad, eos, keeps_lines, notes })
    }

    /// Number of classes: every number that [`encode`](Tokenizer::encode) gives is below, and the marks are too.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The class that fills a sequence after its end.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The class that ends a text; the same as [`pad`](Tokenizer::pad) if the tokenizer has only one mark.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The class of what the vocabulary lacks, if there is one.
    pub fn unk(&self) -> Option<u32> {
        match &self.inner {
            Inner::Chars(_) => Some(chars::UNK_ID),
            Inner::Hub(t) => UNKNOWN.iter().find_map(|name| t.token_to_id(name)),
        }
    }

    /// Things worth knowing: marks that were added or serve twice.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// True if a line end is a class of its own; if not, the lines of a packed text are parted by [`eos`](Self::eos).
    pub fn keeps_lines(&self) -> bool {
        self.keeps_lines
    }

    /// True if a blank is the beginning of tokens, as in the " dog" of byte-level BPE: the one between two words belongs to the
    /// second. False where blanks are tokens of their own or no part of any.
    pub fn blanks_begin_tokens(&self) -> bool {
        let begins = |token: &String| token.starts_with(['\u{120}', '\u{2581}']) && token.chars().nth(1).is_some();
        match &self.inner {
            Inner::Chars(_) => false,
            Inner::Hub(t) => t.get_vocab(false).keys().any(begins), // how byte-level and SentencePiece files write blanks
        }
    }

    /// The classes of a text, without marks at its ends. Empty for a text with nothing that the vocabulary knows; the mark for what it
    /// lacks, if there is one, for a text that [`try_encode`](Self::try_encode) refuses.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.try_encode(text).unwrap_or_else(|_| self.unk().into_iter().collect())
    }

    /// As [`encode`](Self::encode), with an error for a text that the tokenizer cannot cope with: files of others may hold rules that
    /// fail on some texts.
    pub fn try_encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.inner {
            Inner::Chars(c) => Ok(c.encode(text)),
            Inner::Hub(t) => foreign::encode(t, text),
        }
    }

    /// The text of a sequence: what stands before the first end or padding.
    pub fn decode(&self, ids: &[u32]) -> String {
        let end = ids.iter().position(|&id| id == self.eos || id == self.pad).unwrap_or(ids.len());
        self.decode_span(&ids[..end])
    }

    /// The texts of a packed sequence: line ends where it has end marks, nothing for padding.
    pub fn decode_packed(&self, ids: &[u32]) -> String {
        let parts = ids.split(|&id| id == self.eos);
        let parts = parts.map(|part| {
            let kept: Vec<u32> = part.iter().copied().filter(|&id| id != self.pad).collect();
            self.decode_span(&kept)
        });
        parts.collect::<Vec<_>>().join("\n")
    }

    fn decode_span(&self, ids: &[u32]) -> String {
        match &self.inner {
            Inner::Chars(c) => c.decode(ids),
            Inner::Hub(t) => foreign::decode(t, ids, true).unwrap_or_default(),
        }
    }

    /// The first class that is another one in `other`, in words; none if they are the same, class by class.
    pub fn first_difference(&self, other: &Tokenizer) -> Option<String> {
        let most = self.vocab().max(other.vocab()) as u32;
        let differs = |id: &u32| self.token(*id) != other.token(*id);
        let id = (0..most).find(differs)?;
        Some(format!("its token {id} is {:?}, theirs {:?}", self.token(id), other.token(id)))
    }

    /// One class as it is shown to people; control characters are escaped.
    pub fn token(&self, id: u32) -> String {
        let text = match &self.inner {
            Inner::Chars(c) => c.token(id),
            Inner::Hub(t) => match t.get_decoder() {
                // Bytes in disguise; a piece of a character shows as �.
                Some(DecoderWrapper::ByteLevel(_)) if id != self.pad && id != self.eos => {
                    foreign::decode(t, &[id], false).filter(|text| !text.is_empty())
                }
                _ => t.id_to_token(id),
            },
        };
        let text = text.unwrap_or_else(|| format!("<{id}>"));
        text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
    }
}

#[cfg(test)]
mod tests;
