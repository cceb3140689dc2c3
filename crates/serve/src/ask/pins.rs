//! Tokens that are fixed by place: `{"3": "blue", "5": {"id": 12}, "7": null}`.

use serde_json::Value;

use crate::engine::Pins;
use crate::error::{Problem, Result};
use crate::model::Described;

/// Places and tokens; none frees a place.
pub fn pins(model: &Described, value: &Value) -> Result<Pins> {
    let Some(all) = value.as_object() else {
        return Err(Problem::field("pin", "pin must be an object from places to words, such as {\"3\": \"blue\"}"));
    };
    all.iter().map(|(place, token)| pin(model, place, token)).collect()
}

fn pin(model: &Described, place: &str, token: &Value) -> Result<(usize, Option<u32>)> {
    let shown: String = place.chars().take(20).collect();
    let wrong = |message: String| Problem::field(format!("pin.{shown}"), message);
    let n = model.tokens;
    let at = place.parse::<usize>().ok().filter(|p| *p < n);
    let at = at.ok_or_else(|| wrong(format!("a place is a whole number below {n}, not {shown:?}")))?;
    let id = match token {
        Value::Null => return Ok((at, None)),
        Value::String(text) => by_text(model, text).map_err(wrong)?,
        Value::Object(o) if o.len() == 1 && o.contains_key("id") => {
            let id = o["id"].as_u64().filter(|id| *id < model.vocab as u64);
            id.ok_or_else(|| wrong(format!("an id is a whole number below {}", model.vocab)))? as u32
        }
        _ => return Err(wrong("a pin is a word, {\"id\": 12} or null".into())),
    };
    Ok((at, Some(id)))
}

/// The one token that a text is: as it is shown, or as it is written.
fn by_text(model: &Described, text: &str) -> std::result::Result<u32, String> {
    if let Some(id) = model.token_texts.iter().position(|t| t == text) {
        return Ok(id as u32);
    }
    let shown: String = text.chars().take(40).collect();
    let tokenizer = model.tokenizer.as_ref().ok_or("this model has no words")?;
    match tokenizer.try_encode(text).as_deref() {
        Ok([id]) if Some(*id) != tokenizer.unk() => Ok(*id),
        Ok(ids) if ids.len() > 1 => Err(format!("{shown:?} is {} tokens; a place holds one", ids.len())),
        _ => Err(format!("the model's vocabulary lacks {shown:?}")),
    }
}
