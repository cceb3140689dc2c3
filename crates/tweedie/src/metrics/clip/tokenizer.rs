//! CLIP's byte-level byte-pair encoding, from `tokenizer.json` or `vocab.json` with `merges.txt`. Of the former only vocabulary and pairs are
//! read: how text is cleaned and cut into words is the same for every CLIP.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{Lowercase, NFC, NormalizerWrapper, Sequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as Splitters;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::config::read_json;
use crate::error::{Error, Result};
use crate::files::read_to_string;
use crate::guard::guarded;
use crate::limits::SMALL_BYTES;

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// What marks the end of a word in the vocabulary.
const WORD_END: &str = "</w>";
/// Endings, runs of letters, single digits, runs of anything else but white space.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+";
/// Names the foreign code in errors.
const WHO: &str = "the tokenizer";

/// Text to tokens.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    largest: u32,
    pub start: u32,
    pub end: u32,
}

impl Tokenizer {
    pub fn load(folder: &Path) -> Result<Tokenizer> {
        let whole = folder.join("tokenizer.json");
        if whole.is_file() {
            let v = read_json(&whole)?;
            let wrong = |what: &str| Error::Input(format!("{}: {what}", whole.display()));
            let mut vocab =
                vocabulary(&v["model"]["vocab"]).ok_or_else(|| wrong("model.vocab is not a map of numbers"))?;
            for t in v["added_tokens"].as_array().into_iter().flatten() {
                if let (Some(name), Some(id)) = (t["content"].as_str(), t["id"].as_u64()) {
                    let id =
                        u32::try_from(id).map_err(|_| wrong("added_tokens has a number that is none of a token"))?;
                    vocab.insert(name.into(), id);
                }
            }
            let merges = v["model"]["merges"].as_array().ok_or_else(|| wrong("model.merges is not a list"))?;
            let pair = |m: &Value| match m {
                Value::String(s) => s.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
                m => Some((m[0].as_str()?.to_string(), m[1].as_str()?.to_string())),
            };
            let merges: Option<Vec<_>> = merges.iter().map(pair).collect();
            return Tokenizer::new(
                vocab,
                merges.ok_or_else(|| wrong("model.merges has an entry that is not a pair"))?,
                &whole,
            );
        }
        let (names, pairs) = (folder.join("vocab.json"), folder.join("merges.txt"));
        if !names.is_file() {
            return Err(Error::Input(format!("{}: there is no tokenizer.json and no vocab.json", folder.display())));
        }
        let vocab = vocabulary(&read_json(&names)?)
            .ok_or_else(|| Error::Input(format!("{}: not a map from tokens to numbers", names.display())))?;
        let text = read_to_string(&pairs, &SMALL_BYTES).map_err(|e| Error::file(&pairs, e))?;
        let lines = text.lines().filter(|l| !l.starts_with("#version") && !l.trim().is_empty());
        let merges: Option<Vec<_>> = lines.map(|l| l.split_once(' ').map(|(a, b)| (a.into(), b.into()))).collect();
        let merges = merges.ok_or_else(|| Error::Input(format!("{}: a line is not a pair", pairs.display())))?;
        Tokenizer::new(vocab, merges, &names)
    }

    fn new(vocab: HashMap<String, u32>, merges: Vec<(String, String)>, path: &Path) -> Result<Tokenizer> {
        let special = |name: &str| {
            vocab.get(name).copied().ok_or_else(|| Error::Input(format!("{}: no token '{name}'", path.display())))
        };
        let (start, end) = (special(START)?, special(END)?);
        let largest = vocab.values().copied().max().unwrap_or(0);
        let wrong = |e: String| Error::Input(format!("{}: {e}", path.display()));
        let inner = guarded(WHO, || build(vocab, merges)).map_err(wrong)?.map_err(|e| wrong(e.to_string()))?;
        Ok(Tokenizer { inner, largest, start, end })
    }

    /// The highest number of a token.
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Start, the text's tokens, end; at most `most` of them.
    pub fn encode(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let wrong = |e: String| Error::Input(format!("a text cannot be encoded: {e}"));
        let made = guarded(WHO, || self.inner.encode_fast(text, false)).map_err(wrong)?;
        let made = made.map_err(|e| wrong(e.to_string()))?;
        let room = most.saturating_sub(2);
        let own = made.get_ids().iter().copied().take(room);
        Ok(std::iter::once(self.start).chain(own).chain([self.end]).collect())
    }
}

/// As `transformers` sets up CLIPTokenizer. A part that is not in the vocabulary becomes the end token.
fn build(vocab: HashMap<String, u32>, merges: Vec<(String, String)>) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<Vocab>(), merges)
        .unk_token(END.into())
        .end_of_word_suffix(WORD_END.into())
        .build()?;
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Removed, true)?;
    let clean = [NormalizerWrapper::from(NFC), Lowercase.into()];
    let mut t = tokenizers::Tokenizer::new(model);
    t.with_normalizer(Some(Sequence::new(clean.to_vec())));
    t.with_pre_tokenizer(Some(Splitters::new(vec![words.into(), ByteLevel::new(false, true, false).into()])));
    t.add_special_tokens(&[START, END].map(|name| AddedToken::from(name, true).normalized(false)));
    Ok(t)
}

fn vocabulary(v: &Value) -> Option<HashMap<String, u32>> {
    v.as_object()?.iter().map(|(k, v)| Some((k.clone(), u32::try_from(v.as_u64()?).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(names: &[&str], merges: &[(&str, &str)]) -> Result<Tokenizer> {
        let vocab = names.iter().enumerate().map(|(i, n)| (n.to_string(), i as u32)).collect();
        Tokenizer::new(vocab, merges.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect(), Path::new("x"))
    }

    /// l-o first, then lo-w</w>; "lower" has no pair w-e, so it stays apart.
    #[test]
    fn pairs_join_by_rank() {
        let names = ["l", "o", "w", "w</w>", "lo", "low</w>", "e", "r</w>", START, END];
        let t = small(&names, &[("l", "o"), ("lo", "w</w>")]).unwrap();
        let encode = |text: &str, most: usize| t.encode(text, most).unwrap();
        assert_eq!(encode("Low LOWER", 77), [8, 5, 4, 2, 6, 7, 9]);
        assert_eq!(encode("Low LOWER", 4), [8, 5, 4, 9]);
        assert_eq!(encode("", 77), [8, 9]);
        assert_eq!(encode("x", 77), [8, 9, 9]);
        assert_eq!(encode(&"x".repeat(1_000_000), 77).len(), 77);
    }

    /// Each piece that is not in the vocabulary is one end token: so many words.
    #[test]
    fn words_follow_the_pattern() {
        let t = small(&["a</w>", START, END], &[]).unwrap();
        let words = |text: &str| t.encode(text, 77).unwrap().len() - 2;
        // a, d-o-g, 's, 1, 2: bytes of a word count one by one.
        assert_eq!(words("a dog's 12"), 1 + 3 + 2 + 1 + 1);
        assert_eq!(words("  \n"), 0);
        assert_eq!(t.encode("A a", 77).unwrap(), [1, 0, 0, 2]);
    }

    #[test]
    fn pairs_of_no_token_are_refused() {
        let e = small(&["a", "b", START, END], &[("a", "b")]).err().unwrap().to_string();
        assert!(e.starts_with("x: ") && e.contains("ab"), "{e}");
    }
}
