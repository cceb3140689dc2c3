//! `/v1/models`: list, load, unload.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::app::App;
use crate::ask::fields::{Fields, LOAD};
use crate::body;
use crate::engine::Command;
use crate::error::{Problem, Result};
use crate::options::ModelSource;

/// Models that requests may have loaded at a time.
const MOST_LOADED: usize = 16;

pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    app.check_open()?;
    let all = app.models.all();
    let entries: Vec<Value> = all.iter().map(|m| m.entry(&all)).collect();
    Ok(Json(json!({"models": entries})))
}

pub async fn load(State(app): State<Arc<App>>, request: Request<Body>) -> Result<(StatusCode, Json<Value>)> {
    app.check_open()?;
    let bytes = body::read(&app, request).await?;
    let fields = Fields::read(&bytes, LOAD, app.options.max_steps)?;
    let run = app.runs.find(&app, fields.required("run")?).await?;
    let all = app.models.all();
    if let Some(model) = all.iter().find(|m| m.origin.path == run.path) {
        return Err(Problem::conflict(format!("{} is loaded already, as {}", run.name, model.name)));
    }
    if all.iter().filter(|m| m.origin.by_request).count() >= MOST_LOADED {
        return Err(Problem::conflict(format!("{MOST_LOADED} runs are loaded; unload one first")));
    }
    let taken = |name: &str| all.iter().any(|m| m.name == name);
    let name = crate::unique(&run.name, &taken);
    let (reply, answer) = oneshot::channel();
    app.send(Command::Load(ModelSource { name, path: run.path }, reply))?;
    let model = answer.await.map_err(|_| Problem::unavailable("the server is shutting down"))??;
    Ok((StatusCode::CREATED, Json(model.entry(&app.models.all()))))
}

pub async fn unload(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<StatusCode> {
    app.check_open()?;
    let model = app.models.get(&name)?;
    if !model.origin.by_request {
        return Err(Problem::conflict(format!(
            "{name} belongs to the server; only what a request loaded can be unloaded"
        )));
    }
    let (reply, answer) = oneshot::channel();
    app.send(Command::Unload(name, reply))?;
    answer.await.map_err(|_| Problem::unavailable("the server is shutting down"))??;
    Ok(StatusCode::NO_CONTENT)
}
