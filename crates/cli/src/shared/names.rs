//! Settings by the names that configurations spell them with.

use tweedie::config::SamplerKind;

use crate::failure::{Failure, Result};

/// What `name` stands for, or an error that lists what is `known`.
pub fn parse<T: serde::de::DeserializeOwned>(what: &str, name: &str, known: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(name.into()))
        .map_err(|_| Failure::input(format!("'{name}' is not a {what}; use {known}")))
}

pub fn sampler(name: &str) -> Result<SamplerKind> {
    parse("sampler", name, "argmax, multinomial, softmax, ddim or ancestral")
}
