//! `POST /v1/classify`, `/v1/caption`, `/v1/generate`: plain or as a stream.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tweedie::data::Task;
use tweedie::live::Job;

use crate::app::{App, Place};
use crate::ask::fields::{CAPTION, CLASSIFY, Field, Fields, GENERATE};
use crate::ask::{Asked, asked, check_task, image_values};
use crate::body::{self, blocking, follow};
use crate::engine::{Command, Submission};
use crate::error::{Problem, Result};
use crate::model::Described;
use crate::render;
use crate::stream::{Done, StopOnDrop, Stream, Told};

pub async fn classify(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    predict(&app, request, CLASSIFY, Task::Class).await
}

pub async fn caption(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    predict(&app, request, CAPTION, Task::Caption).await
}

pub async fn generate(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response> {
    predict(&app, request, GENERATE, Task::Text).await
}

async fn predict(app: &Arc<App>, request: Request<Body>, known: &[Field], task: Task) -> Result<Response> {
    app.check_open()?;
    let bytes = body::read(app, request).await?;
    let fields = Fields::read(&bytes, known, app.options.max_steps)?;
    drop(bytes);
    let model = app.models.get(fields.required("model")?)?;
    check_task(&model, task)?;
    let count = fields.size("count").unwrap_or(1);
    let places = app.places(count)?;
    let of = model.clone();
    let asked = blocking(app, move || -> Result<Asked> {
        let mut asked = asked(&of, &fields)?;
        asked.job.image = image_values(&of, &fields)?;
        Ok(asked)
    })
    .await??;
    match asked.stream {
        true => streamed(app, &model, asked, places),
        false => plain(app, &model, asked, places).await,
    }
}

fn submit(app: &App, stream: &Arc<Stream>, asked: &Asked, job: Job, place: Place) -> Result<()> {
    let deadline = asked.deadline.map(|d| stream.asked + d);
    app.send(Command::Submit(Box::new(Submission { stream: stream.clone(), job, deadline, place })))
}

fn streamed(app: &App, model: &Arc<Described>, mut asked: Asked, mut places: Vec<Place>) -> Result<Response> {
    let Some(place) = places.pop() else { return Err(Problem::internal("a stream without a place")) };
    let id = app.names.next("r-");
    let sample = &asked.job.sample;
    let stream = Arc::new(Stream::new(id, model.clone(), asked.top, sample.seed, true));
    stream.push(Told::Start(start(app, &stream, model.steps_taken(sample))));
    app.streams.put(&stream);
    let reading = stream.read();
    let job = std::mem::replace(&mut asked.job, Job::new(&model.sample));
    submit(app, &stream, &asked, job, place).inspect_err(|p| stream.push(Told::Error(p.clone())))?;
    Ok(follow(reading, 0))
}

fn start(app: &App, stream: &Stream, steps: usize) -> Value {
    let m = &stream.model;
    let ahead = app.stats.waiting.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(1);
    json!({
        "id": stream.id, "model": m.name, "method": m.method(), "task": m.task_name(), "steps": steps,
        "tokens": m.tokens, "vocab": m.vocab, "seed": stream.seed, "queue": ahead,
    })
}

async fn plain(app: &App, model: &Arc<Described>, asked: Asked, places: Vec<Place>) -> Result<Response> {
    let mut all = Vec::new();
    for (i, place) in places.into_iter().enumerate() {
        let job = Job { example: i as u32, ..asked.job.clone() };
        let stream = Arc::new(Stream::new(app.names.next("r-"), model.clone(), asked.top, job.sample.seed, false));
        submit(app, &stream, &asked, job, place)?;
        all.push(StopOnDrop(stream));
    }
    let mut results = Vec::new();
    for one in &all {
        results.push((&one.0, done(&one.0).await?));
    }
    let Some((stream, first)) = results.first() else { return Err(Problem::internal("no result")) };
    let mut body = render::answer(stream, first);
    if asked.count > 1 {
        let bodies = results.iter().map(|(s, d)| render::answer(s, d));
        let brief = |b: Value| json!({"text": b["text"], "texts": b["texts"]});
        body["results"] = bodies.map(brief).collect();
        body["usage"]["rows"] = results.iter().map(|r| r.1.rows).sum::<usize>().into();
    }
    Ok(Json(body).into_response())
}

async fn done(stream: &Arc<Stream>) -> Result<Done> {
    match &*stream.end().await {
        Told::Done(done) => Ok((**done).clone()),
        Told::Error(problem) => Err(problem.clone()),
        Told::Start(_) | Told::Step(_) => Err(Problem::internal("a request without an end")),
    }
}
