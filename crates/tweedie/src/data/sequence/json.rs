//! Texts in JSON values: a string, a list of strings, or a list of objects with a text field.

use super::super::parquet::some_names;
use serde_json::{Map, Value};

/// Names of fields and columns with captions, the likeliest first.
pub const CAPTIONS: [&str; 12] = [
    "captions",
    "caption",
    "caption_enriched",
    "sentences",
    "sentence",
    "texts",
    "text",
    "raw",
    "description",
    "alt_text",
    "TEXT",
    "en",
];

/// Names of fields and columns with text.
pub const TEXTS: [&str; 9] =
    ["text", "content", "document", "article", "sentence", "raw", "story", "captions", "caption"];

/// Fields of an object in a list that hold its text.
pub const INNER: [&str; 5] = ["raw", "caption", "text", "sentence", "value"];

/// The texts of an object's field: `wanted` (several, parted by commas, are put together) or the first of `usual` that is
/// there. None if there is no such field.
pub fn field(object: &Map<String, Value>, wanted: Option<&str>, usual: &[&str]) -> Option<Vec<String>> {
    let Some(wanted) = wanted else { return usual.iter().find_map(|n| object.get(*n)).map(texts) };
    let found: Vec<&Value> = wanted.split(',').filter_map(|n| object.get(n.trim())).collect();
    (!found.is_empty()).then(|| found.into_iter().flat_map(texts).collect())
}

/// What a value says; null and numbers say nothing.
pub fn texts(value: &Value) -> Vec<String> {
    match value {
        Value::String(s) => vec![s.clone()],
        Value::Array(list) => list.iter().flat_map(texts).collect(),
        Value::Object(o) => {
            INNER.iter().find_map(|n| o.get(*n)).and_then(Value::as_str).map(String::from).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The names of an object's fields, for messages.
pub fn names(object: &Map<String, Value>) -> String {
    some_names(object.keys().map(String::as_str))
}
