//! Events and answers as JSON.

use serde::Serialize;
use serde_json::{Value, json};
use tweedie::data::Task;
use tweedie::generate::Text;
use tweedie::live::{LiveStep, Outcome, Place};

use crate::model::Described;
use crate::stream::{Done, Stream, Told};

/// Classes whose probabilities are all told at each step.
const MOST_CLASSES: usize = 64;

/// Name and data of an event.
pub fn event(stream: &Stream, told: &Told) -> (&'static str, String) {
    match told {
        Told::Start(start) => ("start", start.to_string()),
        Told::Step(s) => ("step", serde_json::to_string(&step(&stream.model, s)).unwrap_or_default()),
        Told::Done(done) => ("done", answer(stream, done).to_string()),
        Told::Error(problem) => ("error", problem.json().to_string()),
    }
}

/// An event as it is sent.
pub fn sse(id: Option<u64>, name: &str, data: &str) -> String {
    let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
    format!("{id}event: {name}\ndata: {data}\n\n")
}

/// To a millionth: enough to draw, and half of the bytes.
fn short(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

#[derive(Serialize)]
struct Step<'a> {
    step: usize,
    of: usize,
    t: usize,
    signal: f64,
    tokens: Vec<Token<'a>>,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<Vec<f64>>,
}

#[derive(Serialize)]
struct Token<'a> {
    id: Option<u32>,
    text: Option<&'a str>,
    p: f64,
    entropy: f64,
    fixed: bool,
    committed: bool,
    rivals: Vec<(u32, f64, &'a str)>,
}

fn step<'a>(model: &'a Described, s: &LiveStep) -> Step<'a> {
    let token = |place: &Place| Token {
        id: place.id,
        text: place.id.map(|id| model.token_text(id)),
        p: short(place.p),
        entropy: short(place.entropy),
        fixed: place.fixed,
        committed: place.committed,
        rivals: place.top.iter().map(|(id, p)| (*id, short(*p), model.token_text(*id))).collect(),
    };
    let ids: Vec<Option<u32>> = s.places.iter().map(|p| p.id).collect();
    let classes = s.probabilities.as_ref().filter(|c| c.len() <= MOST_CLASSES);
    Step {
        step: s.step,
        of: s.of,
        t: s.t,
        signal: short(s.alpha_bar),
        tokens: s.places.iter().map(token).collect(),
        text: model.text_of(&ids),
        classes: classes.map(|c| c.iter().map(|p| short(*p)).collect()),
    }
}

/// The body of an answer.
pub fn answer(stream: &Stream, done: &Done) -> Value {
    let model = &stream.model;
    let mut body = json!({
        "id": stream.id,
        "model": model.name,
        "method": model.method(),
        "task": model.task_name(),
        "seed": stream.seed,
        "ms": {"queue": tenths(done.ms.queue), "first": tenths(done.ms.first), "total": tenths(done.ms.total)},
        "usage": {"steps": done.steps, "tokens": if model.task == Task::Class { 1 } else { model.tokens }, "rows": done.rows},
    });
    match &done.outcome {
        Outcome::Class(answer) => {
            let classes = answer.top(stream.top).0;
            let classes: Vec<Value> = classes.iter().map(|(name, p)| json!({"name": name, "p": p})).collect();
            body["text"] = answer.best().unwrap_or_default().into();
            body["answer"] = json!({"classes": classes, "sampled": answer.sampled, "certainty": answer.certainty});
        }
        Outcome::Texts(all) => {
            let best = all.first();
            let token = |id: &u32| json!({"id": id, "text": model.token_text(*id)});
            body["text"] = best.map_or("", |t| t.text.as_str()).into();
            body["tokens"] = best.map_or(Vec::new(), |t| t.tokens.iter().map(token).collect()).into();
            body["texts"] = texts(all);
        }
    }
    body
}

/// Candidates, the best first.
pub fn texts(all: &[Text]) -> Value {
    let one = |t: &Text| {
        let mut one = json!({"text": t.text, "tokens": t.tokens});
        if let Some(nats) = t.nats {
            one["nats"] = json!(nats);
        }
        if let Some(consensus) = t.consensus {
            one["consensus"] = consensus.into();
        }
        one
    };
    all.iter().map(one).collect()
}

fn tenths(ms: f64) -> f64 {
    (ms * 10.0).round() / 10.0
}
