//! Which fields a request may have: one list, by which requests are checked and the OpenAPI document is written.

use serde_json::{Map, Value, json};

use crate::error::{Problem, Result};

/// Texts and candidates that one request may ask for.
pub const MOST_ROWS: u64 = 64;
/// Characters of a text.
pub const MOST_TEXT: usize = 64 << 10;
/// Values of a body, about.
const MOST_VALUES: usize = 1 << 18;
/// Objects, pins, tokens: entries of a list.
const MOST_ENTRIES: usize = 1 << 16;

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number within these.
    Int(u64, u64),
    /// As many steps as the server allows.
    Steps,
    /// A number within these.
    Number(f64, f64),
    /// A text.
    Text,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// True or false.
    Bool,
    /// Bytes of an image in base64.
    Image,
    /// An object, looked at where it is used; the name of its schema.
    Object(&'static str),
}

/// A field of a request.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it is for.
    pub about: &'static str,
}

const fn field(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about }
}

const MODEL: Field = field("model", Kind::Text, "Name of the model, as /v1/models lists it");
const IMAGE: Field = field("image", Kind::Image, "A PNG, JPEG, WebP, GIF, BMP or TIFF file in base64, or a data: URL");
const SCENE: Field = field("scene", Kind::Object("Scene"), "Objects to be drawn, instead of an image");
const STEPS: Field = field("steps", Kind::Steps, "Sampling steps");
const GUIDANCE: Field = field("guidance", Kind::Number(-1e3, 1e3), "Guidance weight; 1: none");
const SAMPLER: Field = field(
    "sampler",
    Kind::OneOf(&["argmax", "multinomial", "softmax", "ddim", "ancestral"]),
    "How a noisy vector becomes the next one",
);
const SEED: Field = field("seed", Kind::Int(0, u64::MAX), "Seed of the sampling noise");
const TOP: Field = field("top", Kind::Int(1, 8), "Most likely classes or tokens to tell of");
const STREAM: Field = field("stream", Kind::Bool, "Answer with an event for each step");
const DEADLINE: Field = field("deadline_ms", Kind::Int(1, 3_600_000), "Give up after this time");
const UNMASK: Field = field("unmask", Kind::OneOf(&["random", "confident"]), "Which tokens are committed first");
const UNCOMMITTED: Field =
    field("uncommitted", Kind::Number(0.0, 1.0), "What TDD trained with clean tokens shows of those not committed yet");
const CORRECTION: Field = field(
    "correction",
    Kind::Number(0.0, 1.0),
    "Share of committed tokens, below 1, that each step takes back and chooses anew",
);
const STAGGER: Field = field(
    "stagger",
    Kind::Int(0, 1 << 10),
    "TDD with per-token time: tokens start one after another, on a way so many times as long as a token's own; 0: as it was trained",
);
const SCHEDULE: Field = field(
    "schedule",
    Kind::OneOf(&["linear", "cosine", "sigmoid", "vocab-aware"]),
    "Follow the noise levels of another schedule",
);
const CANDIDATES: Field = field("candidates", Kind::Int(1, MOST_ROWS), "Write this many and rank them");
const RANK: Field = field("rank", Kind::OneOf(&["bound", "consensus"]), "What candidates are ranked by");
const INFILL: Field = field("infill", Kind::Text, "Text with gaps: each underscore is one token");
const LENGTH: Field = field("length", Kind::Int(1, 1 << 16), "Exactly this many tokens");
const MIN_LENGTH: Field = field("min_length", Kind::Int(0, 1 << 16), "At least this many tokens");
const PIN: Field = field("pin", Kind::Object("Pins"), "Tokens that are fixed, by place");
const RESUME: Field = field("resume", Kind::Object("Resume"), "Go on after a step of an earlier run");

/// Fields of `POST /v1/classify`.
pub const CLASSIFY: &[Field] = &[
    MODEL,
    IMAGE,
    STEPS,
    GUIDANCE,
    SAMPLER,
    SEED,
    field("running_mean", Kind::Bool, "Steps go by the mean of the logits of all steps so far"),
    field("votes", Kind::Int(1, MOST_ROWS), "Majority over this many draws"),
    TOP,
    STREAM,
    DEADLINE,
];
/// Fields of `POST /v1/caption`.
pub const CAPTION: &[Field] = &[
    MODEL,
    IMAGE,
    SCENE,
    STEPS,
    GUIDANCE,
    SAMPLER,
    UNMASK,
    UNCOMMITTED,
    CORRECTION,
    STAGGER,
    SCHEDULE,
    SEED,
    CANDIDATES,
    RANK,
    INFILL,
    LENGTH,
    MIN_LENGTH,
    TOP,
    STREAM,
    DEADLINE,
    PIN,
    RESUME,
];
/// Fields of `POST /v1/generate`.
pub const GENERATE: &[Field] = &[
    MODEL,
    field("prompt", Kind::Text, "How the text begins"),
    INFILL,
    field("count", Kind::Int(1, MOST_ROWS), "How many texts; not with stream"),
    STEPS,
    GUIDANCE,
    SAMPLER,
    UNMASK,
    UNCOMMITTED,
    CORRECTION,
    STAGGER,
    SCHEDULE,
    SEED,
    CANDIDATES,
    RANK,
    LENGTH,
    MIN_LENGTH,
    TOP,
    STREAM,
    DEADLINE,
    PIN,
    RESUME,
];
/// Fields of `POST /v1/score`.
pub const SCORE: &[Field] = &[
    MODEL,
    field("text", Kind::Text, "The text"),
    IMAGE,
    SCENE,
    field("draws", Kind::Int(1, 256), "Times drawn for the bound"),
];
/// Fields of `POST /v1/models`.
pub const LOAD: &[Field] = &[field("run", Kind::Text, "Name of the run, as /v1/runs lists it")];
/// Fields of `PATCH /v1/streams/{id}`.
pub const PATCH: &[Field] = &[field("pin", Kind::Object("Pins"), "Tokens to fix by place; null frees one")];

/// The fields of a request, each of which is as the list says.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Read a body by a list of fields.
    pub fn read(body: &[u8], known: &[Field], most_steps: usize) -> Result<Fields> {
        // A value takes some thirty bytes, however few of the body it is.
        if body.iter().filter(|b| matches!(b, b',' | b'[' | b'{')).count() > MOST_VALUES {
            return Err(Problem::unprocessable(format!("the body holds more than {MOST_VALUES} values")));
        }
        let value: Value =
            serde_json::from_slice(body).map_err(|e| Problem::malformed(format!("the body is not JSON: {e}")))?;
        let Value::Object(all) = value else {
            return Err(Problem::malformed("the body must be a JSON object, such as {\"model\": \"digits\"}"));
        };
        for (name, value) in &all {
            match known.iter().find(|f| f.name == name) {
                Some(_) if value.is_null() => {}
                Some(field) => check(field, value, most_steps)?,
                None => return Err(unknown(name, known)),
            }
        }
        Ok(Fields(all.into_iter().filter(|(_, v)| !v.is_null()).collect()))
    }

    /// The value of a field, if it is there.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// A text that must be there.
    pub fn required(&self, name: &str) -> Result<&str> {
        self.text(name).ok_or_else(|| Problem::field(name, format!("{name} is missing")))
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    /// The same as a size.
    pub fn size(&self, name: &str) -> Option<usize> {
        self.int(name).and_then(|n| usize::try_from(n).ok())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<f32> {
        self.get(name)?.as_f64().map(|v| v as f32)
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A word of the settings, as the setting it stands for.
    pub fn named<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_value(self.get(name)?.clone()).ok()
    }
}

fn unknown(name: &str, known: &[Field]) -> Problem {
    let names: Vec<String> = known.iter().map(|f| f.name.to_string()).collect();
    let shown: String = name.chars().take(60).collect();
    let hint = match tweedie::settings::nearest(&shown, &names) {
        Some(near) => format!("did you mean {near}?"),
        None => format!("there are {}", names.join(", ")),
    };
    Problem::field(shown.clone(), format!("there is no field {shown:?}; {hint}"))
}

fn check(field: &Field, value: &Value, most_steps: usize) -> Result<()> {
    let name = field.name;
    let wrong = |what: &str| Err(Problem::field(name, format!("{name} must be {what}")));
    match field.kind {
        Kind::Int(low, high) if !value.as_u64().is_some_and(|v| (low..=high).contains(&v)) => {
            wrong(&format!("a whole number from {low} to {high}"))
        }
        Kind::Steps if !value.as_u64().is_some_and(|v| (1..=most_steps as u64).contains(&v)) => {
            wrong(&format!("a whole number from 1 to {most_steps}"))
        }
        Kind::Number(low, high) if !value.as_f64().is_some_and(|v| (low..=high).contains(&v)) => {
            wrong(&format!("a number from {low} to {high}"))
        }
        Kind::Text if value.as_str().is_none_or(|v| v.len() > MOST_TEXT) => {
            wrong(&format!("a text of at most {MOST_TEXT} bytes"))
        }
        Kind::OneOf(names) if !value.as_str().is_some_and(|v| names.contains(&v)) => {
            wrong(&format!("one of {}", names.join(", ")))
        }
        Kind::Bool if !value.is_boolean() => wrong("true or false"),
        Kind::Image if !value.is_string() => wrong("the bytes of an image file in base64"),
        Kind::Object(_) if value.as_object().is_none_or(|o| o.len() > MOST_ENTRIES) => wrong("an object"),
        _ => Ok(()),
    }
}

/// The schema of a body with these fields, `required` among them.
pub fn schema(fields: &[Field], required: &[&str], most_steps: usize) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|f| (f.name.into(), one(f, most_steps))).collect();
    json!({"type": "object", "additionalProperties": false, "required": required, "properties": properties})
}

fn one(field: &Field, most_steps: usize) -> Value {
    let mut schema = match field.kind {
        Kind::Int(low, high) => json!({"type": "integer", "minimum": low, "maximum": high}),
        Kind::Steps => json!({"type": "integer", "minimum": 1, "maximum": most_steps}),
        Kind::Number(low, high) => json!({"type": "number", "minimum": low, "maximum": high}),
        Kind::Text => json!({"type": "string", "maxLength": MOST_TEXT}),
        Kind::OneOf(names) => json!({"type": "string", "enum": names}),
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Image => json!({"type": "string", "contentEncoding": "base64"}),
        Kind::Object(name) => return json!({"$ref": format!("#/components/schemas/{name}")}),
    };
    schema["description"] = field.about.into();
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(body: &str) -> Problem {
        Fields::read(body.as_bytes(), CAPTION, 1000).unwrap_err()
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        for (body, field) in [
            (r#"{"steps": 0}"#, "steps"),
            (r#"{"steps": 1001}"#, "steps"),
            (r#"{"steps": "20"}"#, "steps"),
            (r#"{"steps": 2.5}"#, "steps"),
            (r#"{"guidance": true}"#, "guidance"),
            (r#"{"guidance": 1e9}"#, "guidance"),
            (r#"{"seed": -1}"#, "seed"),
            (r#"{"sampler": "greedy"}"#, "sampler"),
            (r#"{"stream": 1}"#, "stream"),
            (r#"{"image": {}}"#, "image"),
            (r#"{"pin": []}"#, "pin"),
            (r#"{"prompt": "x"}"#, "prompt"),
        ] {
            let p = problem(body);
            assert_eq!((p.status.as_u16(), p.field.as_deref()), (422, Some(field)), "{body}");
        }
        assert!(problem(r#"{"step": 3}"#).message.contains("did you mean steps?"));
        assert_eq!(problem(&format!("[{}1]", "1,".repeat(MOST_VALUES))).status.as_u16(), 422);
        for body in ["", "{", "[]", "3", "{\"a\":}", "\u{0}", &"[".repeat(1000)] {
            assert_eq!(problem(body).status.as_u16(), 400, "{body}");
        }
    }

    #[test]
    fn what_is_null_is_left_out() {
        let f = Fields::read(br#"{"model": "m", "steps": null, "seed": 18446744073709551615}"#, CAPTION, 9).unwrap();
        assert_eq!((f.required("model").unwrap(), f.size("steps"), f.int("seed")), ("m", None, Some(u64::MAX)));
        assert_eq!(f.required("sampler").unwrap_err().field.as_deref(), Some("sampler"));
    }
}
