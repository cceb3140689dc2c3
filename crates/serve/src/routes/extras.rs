//! Health, metrics, the OpenAPI document, scenes and examples to start from.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tweedie::Image;
use tweedie::data::{Dataset, SequenceSet, Task};
use tweedie::embedded::SHAKESPEARE;

use crate::app::App;
use crate::ask::scene_image;
use crate::body::blocking;
use crate::error::{Problem, Result};
use crate::openapi;

pub async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    app.check_open()?;
    let device = app.device.get().map_or("", String::as_str);
    Ok(Json(json!({"status": "ok", "version": env!("CARGO_PKG_VERSION"), "device": device})))
}

pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let ready = u8::from(app.ready.load(Relaxed));
    let text = format!("# HELP tweedie_ready Models are loaded.\n# TYPE tweedie_ready gauge\ntweedie_ready {ready}\n");
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text + &app.stats.text())
}

pub async fn openapi(State(app): State<Arc<App>>) -> Json<Value> {
    Json(openapi::document(app.options.max_steps))
}

#[derive(Deserialize)]
pub struct Objects {
    objects: Option<String>,
}

pub async fn scene(State(app): State<Arc<App>>, Query(query): Query<Objects>) -> Result<Response> {
    let text = query.objects.ok_or_else(|| Problem::field("objects", "objects is missing"))?;
    let objects: Value =
        serde_json::from_str(&text).map_err(|e| Problem::field("objects", format!("objects is not JSON: {e}")))?;
    blocking(&app, move || scene_image(&json!({"objects": objects})).and_then(|image| png(&image))).await?
}

fn png(image: &Image) -> Result<Response> {
    let bytes = image.to_png().map_err(Problem::internal)?;
    Ok(([(header::CONTENT_TYPE, "image/png")], bytes).into_response())
}

/// Some lines of Shakespeare that no model was trained on, at most `most` characters, from line `index` on.
fn passage(index: usize, most: usize) -> String {
    let lines: Vec<&str> = SHAKESPEARE.lines().collect();
    let from = index % lines.len().max(1);
    let text = lines.iter().skip(from).copied().collect::<Vec<_>>().join("\n");
    text.chars().take(most).collect()
}

#[derive(Deserialize)]
pub struct Index {
    index: Option<usize>,
}

/// An example of the embedded data that a model was trained on.
pub async fn example(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(query): Query<Index>,
) -> Result<Response> {
    app.check_open()?;
    let model = app.models.get(&name)?;
    let i = query.index.unwrap_or(0);
    let none = || Problem::not_found("there are no examples of this model inside the program");
    if model.task == Task::Text && model.origin.embedded {
        return Ok(Json(json!({"text": passage(i, model.tokens)})).into_response());
    }
    let set = model.data.strip_prefix("embedded:").ok_or_else(none)?.to_string();
    let task = model.task;
    blocking(&app, move || {
        let beyond = |e: tweedie::data::DataError| Problem::not_found(e.to_string());
        let image = match task {
            Task::Class => Dataset::embedded(&set).and_then(|d| d.final_split()?.0.get(i)).map_err(beyond)?.image,
            Task::Caption => {
                let image = SequenceSet::embedded(&set).and_then(|s| s.final_split()?.0.image(i));
                image.map_err(beyond)?.ok_or_else(none)?
            }
            Task::Text => return Err(none()),
        };
        png(&image)
    })
    .await?
}
