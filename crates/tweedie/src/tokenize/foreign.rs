//! A `tokenizer.json` of others, looked at before it is trusted: it can ask for memory and time without end, leave texts out without a
//! word, or answer differently each time.

use std::collections::HashMap;

use serde_json::Value;

use crate::error::{Error, Result};
use crate::guard::guarded;

/// Objects and lists inside each other in a part of the file; those of published files are five.
const DEPTH: usize = 16;
/// How much longer replacements may make a text, all of them together.
const GROWTH: f64 = 65_536.0;
/// Highest number of a token.
const MOST: u64 = 1 << 24;
/// Numbers that may be missing below the highest, beside as many as there are tokens.
const HOLES: usize = 1024;
/// Tokens of its own that a tokenizer is tried with.
const PROBES: usize = 64;
/// A character that few vocabularies have.
const RARE: &str = "\u{9fff}";

const WHO: &str = "the tokenizer";

/// The tokenizer of a file's text, which was parsed to `value` already, and things worth knowing about it.
pub fn load(text: &str, mut value: Value) -> Result<(tokenizers::Tokenizer, Vec<String>)> {
    let mut notes = Vec::new();
    for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        if depth(&value[part]) > DEPTH {
            return Err(Error::Input(format!("{part}: more than {DEPTH} parts inside each other")));
        }
        if !charsmap_is_whole(&value[part]) {
            return Err(Error::Input(format!("{part}: precompiled_charsmap claims more than it holds")));
        }
        if growth(&value[part]) > GROWTH {
            return Err(Error::Input(format!("{part}: its replacements make texts more than {GROWTH} times as long")));
        }
    }
    numbers(&value)?;
    let dropout = value["model"]["dropout"].as_f64().filter(|d| *d != 0.0);
    let changed = dropout.map(|d| {
        notes.push(format!("model.dropout = {d} is left out: a text must be cut the same way each time"));
        value["model"]["dropout"] = Value::Null;
        value.to_string()
    });
    drop(value);
    let parse = || changed.as_deref().unwrap_or(text).parse::<tokenizers::Tokenizer>();
    let wrong = |e: String| Error::Input(format!("not a tokenizer.json: {e}"));
    let tokenizer = guarded(WHO, parse).map_err(wrong)?.map_err(|e| wrong(e.to_string()))?;
    Ok((tokenizer, notes))
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(all) => 1 + all.iter().map(depth).max().unwrap_or(0),
        Value::Object(all) => 1 + all.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// A precompiled map of characters begins with the size of its tables, for which room is made before they are read.
fn charsmap_is_whole(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().all(charsmap_is_whole),
        Value::Object(all) => match all.get("precompiled_charsmap").and_then(Value::as_str) {
            Some(map) => first_number(map).is_none_or(|claimed| claimed as usize + 4 <= map.len() / 4 * 3),
            None => all.values().all(charsmap_is_whole),
        },
        _ => true,
    }
}

/// The first four bytes of base64 as a number, the lowest byte first.
fn first_number(base64: &str) -> Option<u32> {
    let digit = |b: &u8| match b {
        b'A'..=b'Z' => Some(b - b'A'),
        b'a'..=b'z' => Some(b - b'a' + 26),
        b'0'..=b'9' => Some(b - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let six = base64.as_bytes().first_chunk::<6>()?;
    let bits = six.iter().try_fold(0_u64, |bits, b| Some(bits << 6 | digit(b)? as u64))?;
    Some(((bits >> 4) as u32).swap_bytes())
}

/// How many times as long a text may become by the replacements in it, at the most.
fn growth(value: &Value) -> f64 {
    match value {
        Value::Array(all) => all.iter().map(growth).product(),
        Value::Object(all) if value["type"] == "Replace" => {
            let least = all.get("pattern").and_then(|p| p["String"].as_str()).map_or(1, |p| p.len().max(1));
            let content = all.get("content").and_then(Value::as_str).map_or(0, str::len);
            ((content + 1) as f64 / least as f64).max(1.0)
        }
        Value::Object(all) => all.values().map(growth).product(),
        _ => 1.0,
    }
}

/// Refuse numbers of tokens that are none, or so high that a table of them would fill the memory.
fn numbers(value: &Value) -> Result<()> {
    let vocab = value["model"]["vocab"].as_object().into_iter().flatten();
    let added = value["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter_map(|t| Some((t["content"].as_str()?, &t["id"])));
    for (token, id) in vocab.map(|(token, id)| (token.as_str(), id)).chain(added) {
        if id.as_u64().is_none_or(|id| id > MOST) {
            return Err(Error::Input(format!("the number of token {token:?} is {id}, it must lie in [0, {MOST}]")));
        }
    }
    Ok(())
}

/// The number of classes, if every number is that of one token and not too many are missing.
pub fn classes(tokenizer: &tokenizers::Tokenizer) -> Result<usize> {
    let mut tokens: HashMap<u32, String> = HashMap::new();
    let vocab = tokenizer.get_vocab(true);
    let (count, highest) = (vocab.len(), vocab.values().max().copied().unwrap_or(0) as usize);
    for (token, id) in vocab {
        if let Some(other) = tokens.insert(id, token) {
            let (mut pair, token) = ([other, tokens[&id].clone()], id);
            pair.sort();
            return Err(Error::Input(format!("{:?} and {:?} both have the number {token}", pair[0], pair[1])));
        }
    }
    if highest > 2 * count + HOLES {
        return Err(Error::Input(format!(
            "its {count} tokens have numbers up to {highest}: most would stand for nothing"
        )));
    }
    Ok(highest + 1)
}

/// Encode by foreign code; what goes wrong is an error.
pub fn encode(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>> {
    let short = |e: String| Error::Input(format!("'{}' cannot be encoded: {e}", beginning(text)));
    let made = guarded(WHO, || tokenizer.encode_fast(text, false)).map_err(short)?;
    Ok(made.map_err(|e| short(e.to_string()))?.get_ids().to_vec())
}

/// Decode by foreign code; nothing where it fails.
pub fn decode(tokenizer: &tokenizers::Tokenizer, ids: &[u32], skip_special: bool) -> Option<String> {
    guarded(WHO, || tokenizer.decode(ids, skip_special)).ok()?.ok()
}

fn beginning(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

/// Refuse a tokenizer that makes nothing of its own tokens; note what becomes of characters it lacks.
pub fn probe(tokenizer: &tokenizers::Tokenizer, notes: &mut Vec<String>) -> Result<()> {
    let mut own: Vec<(u32, String)> = tokenizer.get_vocab(false).into_iter().map(|(token, id)| (id, token)).collect();
    own.sort();
    if own.is_empty() {
        return Err(Error::Input("its vocabulary is empty".into()));
    }
    // Blanks, beginnings and ends of words are written in many ways.
    let plain = |token: &str| token.replace(['\u{120}', '\u{2581}'], " ").replace("##", "").replace("</w>", "");
    let mut first_error = None;
    let some =
        own.iter().step_by(own.len().div_ceil(PROBES)).any(|(_, token)| match encode(tokenizer, &plain(token)) {
            Ok(ids) => !ids.is_empty(),
            Err(e) => {
                first_error.get_or_insert(e);
                false
            }
        });
    match (some, first_error) {
        (true, _) => {}
        (false, Some(e)) => return Err(Error::Input(format!("it encodes none of its own tokens: {e}"))),
        (false, None) => return Err(Error::Input("it encodes none of its own tokens: nothing is left of them".into())),
    }
    match encode(tokenizer, RARE) {
        Ok(ids) if ids.is_empty() => {
            notes.push("characters that its vocabulary lacks are left out of texts: it has no mark for them".into())
        }
        Ok(_) => {}
        Err(e) => notes.push(format!("texts with words that its vocabulary lacks are as if they were empty: {e}")),
    }
    Ok(())
}
