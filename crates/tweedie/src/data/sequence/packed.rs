//! One stream of tokens, cut into windows. A text of moderate size is tokenised once and held in memory: windows then
//! follow each other without gap, and an epoch begins at a random token of the circle that the text forms. A larger text
//! is tokenised where a window begins: windows are spread evenly over its bytes, and their length in bytes is estimated, so
//! that neighbours overlap or leave out a little.

use super::super::{DataError, Locality, Result};
use super::encode::prefix;
use super::{SequenceConfig, Texts};
use crate::random::{Address, Draw, Stream};
use crate::tokenize::Tokenizer;
use rayon::prelude::*;

/// Told the number of a row of no use and why; an error ends the reading.
pub(crate) type OnBad<'a> = &'a mut dyn FnMut(u32, DataError) -> Result<()>;

pub(crate) enum Packed {
    /// Everything, tokenised.
    Tokens { all: Vec<u32>, windows: usize, bad: Vec<(u32, String)> },
    /// Windows of about `stride` bytes.
    Bytes { total: u64, stride: f64, windows: usize },
}

/// Bytes of a large text that are tokenised to learn how long its tokens are.
const SAMPLE: usize = 1 << 20;
/// Bytes in which a word must end.
const LONGEST_WORD: usize = 256;

impl Packed {
    pub fn new(source: &Texts, tokenizer: &Tokenizer, config: &SequenceConfig) -> Result<Packed> {
        let (bytes, n) = (source.bytes(), config.tokens);
        if bytes <= config.memory_bytes {
            let rows = (0..source.len())
                .into_par_iter()
                .map(|i| {
                    let (text, bad) = row(source, tokenizer, i, 0.0)?;
                    Ok((encode(source, tokenizer, &text), bad.map(|e| (i as u32, e.to_string()))))
                })
                .collect::<Result<Vec<_>>>()?;
            let (rows, bad): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let (all, bad) = (rows.concat(), bad.into_iter().flatten().collect::<Vec<_>>());
            if all.len() < n {
                let left_out = bad.first().map_or(String::new(), |(_, first)| {
                    format!("; bad rows were left out, {} of them, such as {first}", bad.len())
                });
                return Err(DataError::Setting(format!(
                    "the text has {} tokens, fewer than one window of {n}; use shorter windows or line by line{left_out}",
                    all.len()
                )));
            }
            let windows = all.len() / n;
            return Ok(Packed::Tokens { all, windows, bad });
        }
        // Spread over the text, for its parts may differ.
        let (mut read, mut tokens) = (0, 0);
        for k in 0..64 {
            let (i, _) = source.at_byte(bytes / 64 * k)?;
            let (text, _) = row(source, tokenizer, i, 0.0)?;
            let text = prefix(&text, SAMPLE / 64);
            read += text.len();
            tokens += encode(source, tokenizer, text).len();
        }
        if tokens == 0 {
            return Err(DataError::Setting("the tokenizer finds no token in the text".into()));
        }
        let stride = read as f64 / tokens as f64 * n as f64;
        let windows = ((bytes as f64 / stride) as usize).clamp(1, u32::MAX as usize - 1);
        Ok(Packed::Bytes { total: bytes, stride, windows })
    }

    pub fn len(&self) -> usize {
        match self {
            Packed::Tokens { windows, .. } | Packed::Bytes { windows, .. } => *windows,
        }
    }

    /// An example of the block in which window `i` begins, but for what an epoch draws.
    pub fn row(&self, source: &Texts, i: usize) -> Option<usize> {
        let Packed::Bytes { total, stride, .. } = self else { return None };
        Some(source.near_byte((i as f64 * stride) as u64 % total))
    }

    pub fn locality(&self, source: &Texts) -> Option<Locality> {
        let Packed::Bytes { windows, .. } = self else { return None };
        // A block of rows becomes the windows that begin in it.
        let first = |row: u32| {
            let (mut from, mut to) = (0, *windows);
            while from < to {
                let i = from.midpoint(to);
                let before = self.row(source, i).is_some_and(|r| r < row as usize);
                (from, to) = if before { (i + 1, to) } else { (from, i) };
            }
            from as u32
        };
        Some(source.locality()?.renumbered(*windows, first))
    }

    /// Rows of no use that are known before any window is written.
    pub fn bad_rows(&self) -> &[(u32, String)] {
        match self {
            Packed::Tokens { bad, .. } => bad,
            Packed::Bytes { .. } => &[],
        }
    }

    /// Write window `at.example`, beginning at 0 or (`shuffled`) at a token or byte drawn for the epoch. Rows of no use
    /// that are met are told to `on_bad` and left out, unless that fails.
    pub fn write(
        &self,
        source: &Texts,
        tokenizer: &Tokenizer,
        at: Address,
        shuffled: bool,
        out: &mut [u32],
        on_bad: OnBad,
    ) -> Result<()> {
        let mut draw = Draw::new(at.seed, Stream::Offset, at.epoch, 0);
        match self {
            Packed::Tokens { all, .. } => {
                let offset = if shuffled { draw.below(all.len()) } else { 0 };
                let from = (offset + at.example as usize * out.len()) % all.len();
                let n = out.len().min(all.len() - from);
                let rest = out.len() - n;
                out[..n].copy_from_slice(&all[from..from + n]);
                out[n..].copy_from_slice(&all[..rest]);
                Ok(())
            }
            Packed::Bytes { total, stride, .. } => {
                let offset = if shuffled { draw.unit() * stride } else { 0.0 };
                let byte = (at.example as f64 * stride + offset) as u64 % total;
                let (mut i, mut share) = source.at_byte(byte)?;
                let (mut n, mut empty) = (0, 0);
                while n < out.len() {
                    let (text, bad) = row(source, tokenizer, i, share)?;
                    if let Some(e) = bad {
                        on_bad(i as u32, e)?;
                    }
                    let mut most = (stride * 2.0) as usize + 64;
                    loop {
                        let part = head(&text, most);
                        let ids = encode(source, tokenizer, part);
                        if part.len() < text.len() && n + ids.len() <= out.len() {
                            most *= 4;
                            continue;
                        }
                        let k = ids.len().min(out.len() - n);
                        out[n..n + k].copy_from_slice(&ids[..k]);
                        n += k;
                        empty = if k == 0 { empty + 1 } else { 0 };
                        break;
                    }
                    if empty > source.len().min(10_000) {
                        return Err(DataError::bad_text(source.place(i), "nothing but empty texts from here on"));
                    }
                    (i, share) = ((i + 1) % source.len(), 0.0);
                }
                Ok(())
            }
        }
    }
}

/// The text of a row from a share of it on, beginning after white space; and what of the row is of no use and left out.
fn row(source: &Texts, tokenizer: &Tokenizer, i: usize, share: f64) -> Result<(String, Option<DataError>)> {
    let (mut texts, bad) = match source.texts_and_bad(i) {
        Err(e) if e.is_corrupt() => return Ok((String::new(), Some(e))),
        found => found?,
    };
    if !source.is_stream() && texts.iter().all(|t| t.trim().is_empty()) {
        return Ok((String::new(), Some(DataError::no_text(source.place(i)))));
    }
    let text = if texts.len() == 1 { texts.swap_remove(0) } else { texts.join("\n") };
    if share <= 0.0 {
        return Ok((text, bad));
    }
    let at = prefix(&text, (text.len() as f64 * share) as usize).len();
    let rest = &text[at..];
    // Characters may begin anywhere; words should not begin in their middle.
    let single = tokenizer.encode("ab cd").len() == 5;
    // Scripts without spaces have no better place than this one.
    let skip = match rest.find(char::is_whitespace) {
        _ if single => 0,
        Some(space) if space < LONGEST_WORD => space,
        None if rest.len() < LONGEST_WORD => rest.len(),
        _ => 0,
    };
    Ok((rest[skip..].to_string(), bad))
}

/// The first `most` bytes, up to white space if there is any.
fn head(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let part = prefix(text, most);
    part.rfind(char::is_whitespace).filter(|&at| at > 0).map_or(part, |at| &part[..at])
}

/// Tokens of a piece of a stream, whose line ends count, or of a text that stands alone, with its end.
fn encode(source: &Texts, tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    if !source.is_stream() {
        let mut ids = tokenizer.encode(text);
        if !ids.is_empty() {
            ids.push(tokenizer.eos());
        }
        return ids;
    }
    if tokenizer.keeps_lines() {
        return tokenizer.encode(text);
    }
    let mut ids = Vec::new();
    for line in text.split_inclusive('\n') {
        let before = ids.len();
        ids.extend(tokenizer.encode(line));
        if line.ends_with('\n') && ids.len() > before {
            ids.push(tokenizer.eos());
        }
    }
    ids
}
