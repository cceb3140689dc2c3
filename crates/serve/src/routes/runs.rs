//! `/v1/runs`: what was trained here, followed while it is.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tweedie::run_dir::RunDir;
use tweedie::runs::Summary;
use tweedie::settings;

use crate::app::App;
use crate::body::{blocking, events};
use crate::error::{Problem, Result};
use crate::net;
use crate::render::sse;
use crate::runs::{checkpoints, entry, no_run, status};

/// Rows of metrics that are told at once.
const MOST_ROWS: usize = 2000;
/// Texts of samples.
const MOST_SAMPLES: usize = 50;
/// Runs that are compared.
const MOST_COMPARED: usize = 16;
/// Between looks at a file that grows.
const LOOK: Duration = Duration::from_millis(300);
/// Between pings.
const PING: Duration = Duration::from_secs(1);

fn failed(e: tweedie::Error) -> Problem {
    Problem::internal(e.to_string())
}

pub async fn list(State(app): State<Arc<App>>) -> Result<Json<Value>> {
    let listing = app.runs.all(&app).await?;
    let models = app.models.all();
    let folder = app.runs.folder().display().to_string();
    let body = blocking(&app, move || {
        let runs: Vec<Value> = listing.runs.iter().map(|r| entry(r, &models)).collect();
        let unread: Vec<Value> = listing.unread.iter().map(|(name, why)| json!({"name": name, "why": why})).collect();
        let hint = runs.is_empty().then(|| format!("tweedie train digits --out {folder}/digits"));
        json!({"folder": folder, "runs": runs, "unread": unread, "hint": hint})
    });
    Ok(Json(body.await?))
}

pub async fn show(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>> {
    let listing = app.runs.all(&app).await?;
    let models = app.models.all();
    let body = blocking(&app, move || {
        let run = listing.runs.iter().find(|r| r.name == name).ok_or_else(|| no_run(&name))?;
        told(run).map(|mut body| {
            body["summary"] = entry(run, &models);
            body
        })
    });
    Ok(Json(body.await??))
}

fn told(run: &Summary) -> Result<Value> {
    let dir = RunDir::open(&run.path).map_err(failed)?;
    let rows = dir.read_metrics().map_err(failed)?;
    let lines = rows.len();
    Ok(json!({
        "name": run.name,
        "settings": dir.read_config().map_err(failed)?,
        "values": settings::flat(&run.config).map_err(failed)?,
        "card": std::fs::read_to_string(dir.card_path()).ok(),
        "metrics": thinned(rows),
        "lines": lines,
        "samples": samples(&dir),
        "checkpoints": checkpoints(&run.path),
    }))
}

/// At most as many rows as are told at once: all that are not steps, and steps evenly.
fn thinned(rows: Vec<Value>) -> Vec<Value> {
    let is_step = |r: &Value| r["event"] == "step";
    let others = rows.iter().filter(|r| !is_step(r)).count().min(MOST_ROWS / 2);
    let (steps, room) = (rows.iter().filter(|r| is_step(r)).count(), MOST_ROWS - others);
    let (mut seen, mut kept, mut rest) = (0, 0, 0);
    let keep = |row: &Value| {
        if !is_step(row) {
            rest += 1;
            return rest <= MOST_ROWS / 2;
        }
        seen += 1;
        let due = seen * room.min(steps) / steps.max(1) > kept;
        kept += usize::from(due);
        due
    };
    let mut keep = keep;
    rows.into_iter().filter(|r| keep(r)).collect()
}

/// The newest samples: texts as they are, pictures by name.
fn samples(dir: &RunDir) -> Vec<Value> {
    let inside = std::fs::read_dir(dir.samples()).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = inside.map(|e| e.path()).collect();
    paths.sort();
    let tell = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let text = match path.extension()?.to_str()? {
            "txt" | "json" | "jsonl" | "md" => Some(std::fs::read(path).ok()?),
            _ => None,
        };
        let text = text.map(|b| String::from_utf8_lossy(&b[..b.len().min(16 << 10)]).into_owned());
        Some(json!({"name": name, "text": text}))
    };
    paths.iter().rev().take(MOST_SAMPLES).filter_map(tell).collect()
}

#[derive(Deserialize)]
pub struct Names {
    names: Option<String>,
}

pub async fn compare(State(app): State<Arc<App>>, Query(query): Query<Names>) -> Result<Json<Value>> {
    let names: Vec<String> = query.names.unwrap_or_default().split(',').map(String::from).collect();
    if names.len() < 2 || names.len() > MOST_COMPARED {
        return Err(Problem::field("names", format!("names must be 2 to {MOST_COMPARED} runs with commas between")));
    }
    let listing = app.runs.all(&app).await?;
    let mut flat = Vec::new();
    for name in &names {
        let run = listing.runs.iter().find(|r| r.name == *name).ok_or_else(|| no_run(name))?;
        flat.push(settings::flat(&run.config).map_err(failed)?);
    }
    let keys: BTreeSet<&String> = flat.iter().flat_map(|f| f.keys()).collect();
    let row = |key: &String| (key.clone(), flat.iter().map(|f| f.get(key).cloned()).collect::<Vec<_>>());
    let rows = keys.into_iter().map(row).filter(|(_, values)| values.windows(2).any(|w| w[0] != w[1]));
    let rows: Vec<Value> = rows.map(|(key, values)| json!({"key": key, "values": values})).collect();
    Ok(Json(json!({"names": names, "settings": rows})))
}

#[derive(Deserialize)]
pub struct From {
    from: Option<usize>,
}

/// Rows of metrics as they are written, until the training ends.
pub async fn follow(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    Query(query): Query<From>,
) -> Result<Response> {
    let run = app.runs.find(&app, &name).await?;
    let (to, response) = events();
    let mut draining = app.draining.clone();
    let path = run.path;
    tokio::spawn(async move {
        let (mut next, mut pinged) = (query.from.unwrap_or(0), Instant::now());
        loop {
            let look = path.clone();
            let Ok(Ok((rows, state))) = blocking(&app, move || look_at(&look)).await else { return };
            if rows.len() < next {
                next = 0; // a resumed run takes back what came after its checkpoint
                if to.send(sse(None, "reset", "{}")).await.is_err() {
                    return;
                }
            }
            for (i, row) in rows.iter().enumerate().skip(next) {
                if to.send(sse(Some(i as u64), "row", &row.to_string())).await.is_err() {
                    return;
                }
            }
            next = rows.len();
            if state != "training" {
                let _ = to.send(sse(None, "end", &json!({"status": state}).to_string())).await;
                return;
            }
            if pinged.elapsed() >= PING {
                pinged = Instant::now();
                if to.send(": ping\n\n".into()).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                () = to.closed() => return,
                () = net::told(&mut draining) => return,
            }
        }
    });
    Ok(response)
}

fn look_at(path: &std::path::Path) -> Result<(Vec<Value>, &'static str)> {
    let dir = RunDir::open(path).map_err(failed)?;
    let training = dir.is_in_use(); // before the rows: those of the end are not missed
    let rows = dir.read_metrics().map_err(failed)?;
    let state = match training {
        true => "training",
        false => Summary::read(path).map_or("failed", |s| status(s.state)),
    };
    Ok((rows, state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_rows_are_thinned_evenly_and_evaluations_stay() {
        let row = |i: usize| json!({"event": if i % 100 == 99 { "eval" } else { "step" }, "step": i});
        let all: Vec<Value> = (0..10_000).map(row).collect();
        let few = thinned(all.clone());
        assert!(few.len() <= MOST_ROWS && few.len() > MOST_ROWS - 10, "{}", few.len());
        assert_eq!(few.iter().filter(|r| r["event"] == "eval").count(), 100);
        assert_eq!(few.last().map(|r| r["step"].as_u64()), Some(Some(9999)));
        assert_eq!(thinned(all[..500].to_vec()), all[..500]);
    }
}
