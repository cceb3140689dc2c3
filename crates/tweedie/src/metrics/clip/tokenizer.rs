//! CLIP's byte-level byte-pair encoding, from `tokenizer.json` or `vocab.json` with `merges.txt`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use super::config::read_json;
use crate::error::{Error, Result};
use crate::files::read_to_string;
use crate::limits::SMALL_BYTES;

const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
/// What marks the end of a word in the vocabulary.
const WORD_END: &str = "</w>";

/// Letters of a word that are looked at: pairs of more take time without end, and a text has 77 tokens.
const LONGEST: usize = 4096;

/// Text to tokens.
pub struct Tokenizer {
    vocab: HashMap<String, u32>,
    /// Which pairs join, the lowest first.
    ranks: HashMap<(String, String), usize>,
    /// The printable character that stands for each byte.
    bytes: [char; 256],
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
        let ranks = merges.into_iter().enumerate().map(|(i, m)| (m, i)).collect();
        Ok(Tokenizer { vocab, ranks, bytes: byte_characters(), start, end })
    }

    /// The highest number of a token.
    pub fn largest(&self) -> u32 {
        self.vocab.values().copied().max().unwrap_or(0)
    }

    /// Start, the text's tokens, end; at most `most` of them.
    pub fn encode(&self, text: &str, most: usize) -> Vec<u32> {
        let mut ids = vec![self.start];
        let text: String = text.nfc().collect::<String>().to_lowercase();
        for word in words(&text) {
            if ids.len() >= most {
                break; // the rest is cut off
            }
            let letters: String = word.bytes().take(LONGEST).map(|b| self.bytes[b as usize]).collect();
            self.pairs(&letters, &mut ids);
        }
        ids.truncate(most.saturating_sub(1).max(1));
        ids.push(self.end);
        ids
    }

    /// Join pairs until none is left that may be joined.
    fn pairs(&self, word: &str, ids: &mut Vec<u32>) {
        let mut parts: Vec<String> = word.chars().map(String::from).collect();
        if let Some(last) = parts.last_mut() {
            last.push_str(WORD_END);
        }
        loop {
            let rank = |i: usize| self.ranks.get(&(parts[i].clone(), parts[i + 1].clone())).map(|r| (*r, i));
            let Some((_, i)) = (0..parts.len().saturating_sub(1)).filter_map(rank).min() else { break };
            let right = parts.remove(i + 1);
            parts[i].push_str(&right);
        }
        // As in the original, a part that is not in the vocabulary becomes the end token.
        ids.extend(parts.iter().map(|p| self.vocab.get(p).copied().unwrap_or(self.end)));
    }
}

fn vocabulary(v: &Value) -> Option<HashMap<String, u32>> {
    v.as_object()?.iter().map(|(k, v)| Some((k.clone(), u32::try_from(v.as_u64()?).ok()?))).collect()
}

/// GPT-2's table: printable bytes stand for themselves, the others for characters from 256 on.
fn byte_characters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|b| {
        let printable = matches!(b, 33..=126 | 161..=172 | 174..=255);
        let code = if printable { b as u32 } else { next };
        next += !printable as u32;
        char::from_u32(code).unwrap_or('?')
    })
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, runs of letters, single digits, runs of anything else but white space.
fn words(text: &str) -> Vec<&str> {
    const ENDINGS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
    let digit = |c: char| c.is_numeric();
    let letter = |c: char| c.is_alphabetic() && !c.is_numeric();
    let other = |c: char| !c.is_whitespace() && !letter(c) && !digit(c);
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let run = |of: &dyn Fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
        let n = match ENDINGS.iter().chain([&START, &END]).find(|e| rest.starts_with(**e)) {
            Some(e) => e.len(),
            None if letter(c) => run(&letter),
            None if digit(c) => c.len_utf8(),
            None if other(c) => run(&other),
            None => {
                rest = &rest[c.len_utf8()..];
                continue;
            }
        };
        out.push(&rest[..n]);
        rest = &rest[n..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_pattern() {
        assert_eq!(
            words("a dog's 12 cats!! it'll café-bar"),
            ["a", "dog", "'s", "1", "2", "cats", "!!", "it", "'ll", "café", "-", "bar"]
        );
        assert!(words("  \n").is_empty());
    }

    #[test]
    fn bytes_have_different_characters() {
        let all: std::collections::HashSet<char> = byte_characters().into_iter().collect();
        assert_eq!((all.len(), byte_characters()[b' ' as usize], byte_characters()[b'a' as usize]), (256, 'Ġ', 'a'));
    }

    /// l-o first, then lo-w</w>; "lower" has no pair w-e, so it stays apart.
    #[test]
    fn pairs_join_by_rank() {
        let names = ["l", "o", "w", "w</w>", "lo", "low</w>", "e", "r</w>", START, END];
        let vocab = names.iter().enumerate().map(|(i, n)| (n.to_string(), i as u32)).collect();
        let merges = vec![("l".into(), "o".into()), ("lo".into(), "w</w>".into())];
        let t = Tokenizer::new(vocab, merges, Path::new("x")).unwrap();
        assert_eq!(t.encode("Low LOWER", 77), [8, 5, 4, 2, 6, 7, 9]);
        assert_eq!(t.encode("Low LOWER", 4), [8, 5, 4, 9]);
        assert_eq!(t.encode("", 77), [8, 9]);
        assert_eq!(t.encode("x", 77), [8, 9, 9]);
    }
}
