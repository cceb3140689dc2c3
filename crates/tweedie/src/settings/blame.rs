//! Which setting cannot be read, and what was expected in its place.

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::{Assignment, get, put, short};
use crate::error::Error;

/// The assignment that made the settings unreadable: the one that does so alone.
pub(super) fn blame<T: DeserializeOwned>(base: &Table, given: &[Assignment], whole: toml::de::Error) -> Error {
    for a in given {
        let mut alone = base.clone();
        put(&mut alone, &a.path, a.value.clone());
        let Err(e) = alone.try_into::<T>() else { continue };
        let expected = match get(base, &a.path) {
            Some(Value::Integer(_)) if a.value.is_integer() => in_words(e.message()), // the type is right, not the value
            Some(Value::Integer(_)) if a.text.parse::<u128>().is_ok() => {
                format!("whole numbers of TOML end at {}", i64::MAX)
            }
            Some(Value::Integer(_)) => "expected a whole number".into(),
            Some(Value::Float(_)) => "expected a number".into(),
            Some(Value::Boolean(_)) => "expected true or false".into(),
            Some(Value::Array(_)) if !a.value.is_array() => "expected a list".into(),
            Some(Value::Table(_)) => "expected a table".into(),
            Some(Value::String(_)) if !a.value.is_str() => "expected text".into(),
            _ => in_words(e.message()), // the variants of an enum
        };
        let (key, text) = (a.path.join("."), short(&a.text));
        return Error::Input(format!("{}: {key} = {text}: {}", a.source, short(&expected)));
    }
    Error::Input(short(&whole.to_string().trim().replace('\n', " ")))
}

/// A message of serde with types of Rust, such as `usize`, as what they are.
fn in_words(message: &str) -> String {
    let Some((what, expected)) = message.rsplit_once("expected ") else { return message.to_string() };
    let words = match expected {
        "usize" | "u64" | "u32" | "u16" | "u8" => "a whole number that is not negative and not too large",
        "isize" | "i64" | "i32" => "a whole number",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text",
        other => other,
    };
    format!("{what}expected {words}")
}
