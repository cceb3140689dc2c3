//! Characters as classes: the marks, then the symbols in ascending order.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{EOS, PAD, UNK};
use crate::error::{Error, Result};

pub const PAD_ID: u32 = 0;
pub const EOS_ID: u32 = 1;
pub const UNK_ID: u32 = 2;
const MARKS: [&str; 3] = [PAD, EOS, UNK];

/// The file's `type`.
const TYPE: &str = "tweedie-chars";

#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(rename = "type")]
    kind: String,
    symbols: Vec<char>,
}

pub struct Chars {
    symbols: Vec<char>,
    ids: HashMap<char, u32>,
    ascii: [u32; 128],
}

impl Chars {
    pub fn new(symbols: BTreeSet<char>) -> Chars {
        Chars::of_list(symbols.into_iter().collect())
    }

    fn of_list(symbols: Vec<char>) -> Chars {
        let ids: HashMap<char, u32> = (MARKS.len() as u32..).zip(&symbols).map(|(i, &c)| (c, i)).collect();
        let ascii = std::array::from_fn(|b| ids.get(&(b as u8 as char)).copied().unwrap_or(UNK_ID));
        Chars { symbols, ids, ascii }
    }

    /// Whether JSON is of this type.
    pub fn is_stored(value: &serde_json::Value) -> bool {
        value.get("type").and_then(|t| t.as_str()) == Some(TYPE)
    }

    pub fn from_json(value: serde_json::Value) -> Result<Chars> {
        let stored: Stored =
            serde_json::from_value(value).map_err(|e| Error::Input(format!("not a list of characters ({e})")))?;
        if stored.symbols.iter().collect::<BTreeSet<_>>().len() < stored.symbols.len() {
            return Err(Error::Input("a character stands twice in the list".into()));
        }
        if stored.symbols.is_empty() {
            return Err(Error::Input("the list of characters is empty".into()));
        }
        Ok(Chars::of_list(stored.symbols))
    }

    pub fn to_json(&self) -> String {
        let stored = Stored { kind: TYPE.into(), symbols: self.symbols.clone() };
        serde_json::to_string(&stored).unwrap_or_default() // text and characters always have a JSON form
    }

    pub fn vocab(&self) -> usize {
        MARKS.len() + self.symbols.len()
    }

    pub fn has(&self, c: char) -> bool {
        self.ids.contains_key(&c)
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        let id = |c: char| match self.ascii.get(c as usize) {
            Some(&id) => id,
            None => self.ids.get(&c).copied().unwrap_or(UNK_ID),
        };
        text.chars().map(id).collect()
    }

    /// Unknown characters become �; the other marks are nothing.
    pub fn decode(&self, ids: &[u32]) -> String {
        let of = |&id: &u32| match id {
            UNK_ID => Some('\u{fffd}'),
            id => self.symbols.get((id as usize).checked_sub(MARKS.len())?).copied(),
        };
        ids.iter().filter_map(of).collect()
    }

    pub fn token(&self, id: u32) -> Option<String> {
        let id = id as usize;
        match MARKS.get(id) {
            Some(mark) => Some(mark.to_string()),
            None => self.symbols.get(id - MARKS.len()).map(char::to_string),
        }
    }
}
