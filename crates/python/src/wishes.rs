//! What callers ask of a sampler, from the JSON that `_model.py` makes of keyword arguments.

use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tweedie::generate::Wishes;

use crate::errors::value;

/// A value by its name; an error names it.
fn take<T: DeserializeOwned>(from: &mut Map<String, Value>, name: &str) -> PyResult<Option<T>> {
    match from.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => serde_json::from_value(v.clone()).map(Some).map_err(|e| value(format!("{name} = {v}: {e}"))),
    }
}

/// The wishes of a JSON object.
pub fn wishes(json: &str) -> PyResult<Wishes> {
    let mut all: Map<String, Value> = serde_json::from_str(json).map_err(|e| value(e.to_string()))?;
    let w = Wishes {
        steps: take(&mut all, "steps")?,
        guidance: take(&mut all, "guidance")?,
        sampler: take(&mut all, "sampler")?,
        unmask: take(&mut all, "unmask")?,
        uncommitted: take(&mut all, "uncommitted")?,
        correction: take(&mut all, "correction")?,
        stagger: take(&mut all, "stagger")?,
        schedule: take(&mut all, "schedule")?,
        seed: take(&mut all, "seed")?,
        candidates: take(&mut all, "candidates")?,
        rank: take(&mut all, "rank")?,
        running_mean: take(&mut all, "running_mean")?,
        votes: take(&mut all, "votes")?,
    };
    match all.keys().next() {
        Some(name) => Err(value(format!("a sampler has no {name}"))),
        None => Ok(w),
    }
}
