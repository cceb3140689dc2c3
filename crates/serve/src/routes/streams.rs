//! `/v1/streams/{id}`: read again, stop, change.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::app::App;
use crate::ask::fields::{Fields, PATCH};
use crate::ask::pins;
use crate::body::{self, follow};
use crate::engine::Command;
use crate::error::{Problem, Result};
use crate::stream::Next;

#[derive(Deserialize)]
pub struct From {
    from: Option<u64>,
}

pub async fn replay(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<From>,
    headers: HeaderMap,
) -> Result<Response> {
    let stream = app.streams.get(&id)?;
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let from = query.from.or(last.map(|l| l.saturating_add(1))).unwrap_or(0);
    let reading = stream.read();
    match stream.at(from) {
        Next::Gone(first) => Err(Problem::gone(format!("events before {first} were dropped to keep within 4 MiB"))),
        _ => Ok(follow(reading, from)),
    }
}

pub async fn stop(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<StatusCode> {
    app.streams.get(&id)?.stop();
    Ok(StatusCode::NO_CONTENT)
}

pub async fn change(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: Request<Body>,
) -> Result<Json<Value>> {
    let stream = app.streams.get(&id)?;
    let bytes = body::read(&app, request).await?;
    let fields = Fields::read(&bytes, PATCH, app.options.max_steps)?;
    let value = fields.get("pin").ok_or_else(|| Problem::field("pin", "pin is missing"))?;
    let pins = pins(&stream.model, value)?;
    if stream.ended().is_some() {
        return Err(Problem::conflict("the stream is over: nothing can be changed any more"));
    }
    let (reply, answer) = oneshot::channel();
    app.send(Command::Pin(id, pins, reply))?;
    let step = answer.await.map_err(|_| Problem::unavailable("the server is shutting down"))??;
    Ok(Json(json!({"step": step})))
}
