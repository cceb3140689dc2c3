//! From the fields of a request to a job: the same checks as the command's, each error with its field.

pub mod fields;
mod input;
mod pins;

pub use input::{image_values, scene_image};
pub use pins::pins;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tweedie::config::{SampleConfig, SamplerKind, Unmasking};
use tweedie::data::Task;
use tweedie::generate::{Wishes, infill, prompt};
use tweedie::live::{Job, Resume};

use crate::error::{Problem, Result, refused};
use crate::model::Described;
use fields::Fields;

/// Most likely tokens to tell of, unless told otherwise.
const TOP: usize = 5;

/// A request that was understood.
pub struct Asked {
    /// The job; those of further texts differ in their example.
    pub job: Job,
    /// How many texts.
    pub count: usize,
    /// Events wanted.
    pub stream: bool,
    /// Classes to tell of.
    pub top: usize,
    /// Time that it may take.
    pub deadline: Option<Duration>,
}

/// What the model is asked for by its kind of request, or the kind that it answers.
pub fn check_task(model: &Described, task: Task) -> Result<()> {
    if model.task == task {
        return Ok(());
    }
    let (does, at) = match model.task {
        Task::Class => ("classifies images", "/v1/classify"),
        Task::Caption => ("writes captions of images", "/v1/caption"),
        Task::Text => ("writes text without images", "/v1/generate"),
    };
    Err(Problem::field("model", format!("{} {does}: POST {at}", model.name)))
}

/// The sampling settings that come of the fields.
fn sample(model: &Described, f: &Fields) -> Result<SampleConfig> {
    let wishes = Wishes {
        steps: f.size("steps"),
        guidance: f.number("guidance"),
        sampler: f.named("sampler"),
        unmask: f.named("unmask"),
        uncommitted: f.number("uncommitted"),
        correction: f.number("correction"),
        stagger: f.size("stagger"),
        schedule: f.text("schedule").map(String::from),
        seed: f.int("seed"),
        candidates: f.size("candidates"),
        rank: f.named("rank"),
        running_mean: f.get("running_mean").map(|_| f.flag("running_mean")),
        votes: f.size("votes"),
    };
    wishes.over(&model.sample, model.facts).map_err(|r| Problem::field(r.field, r.in_fields()))
}

/// All but the image, which takes time to decode.
pub fn asked(model: &Arc<Described>, f: &Fields) -> Result<Asked> {
    let sample = sample(model, f)?;
    let count = f.size("count").unwrap_or(1);
    let stream = f.flag("stream");
    if stream && count > 1 {
        return Err(Problem::field("count", "count goes with plain answers; ask for each stream by itself"));
    }
    let rows = count as u64 * sample.candidates as u64;
    if rows > fields::MOST_ROWS {
        let most = fields::MOST_ROWS;
        return Err(Problem::field("count", format!("count × candidates = {rows} is above {most}, the most at once")));
    }
    let mut job = Job { top: f.size("top").unwrap_or(TOP).min(model.vocab), ..Job::new(&sample) };
    if model.task != Task::Class {
        job.fixed = fixed(model, f)?;
        (job.length, job.min_length) = lengths(model, f)?;
        job.resume = resume(model, f, &sample)?;
    }
    let deadline = f.int("deadline_ms").map(Duration::from_millis);
    Ok(Asked { top: job.top, job, count, stream, deadline })
}

fn lengths(model: &Described, f: &Fields) -> Result<(Option<usize>, usize)> {
    let (length, least) = (f.size("length"), f.size("min_length").unwrap_or(1));
    for (name, value) in [("length", length.unwrap_or(0)), ("min_length", least)] {
        if value > model.tokens {
            return Err(Problem::field(
                name,
                format!("{name} = {value}: the model writes {} tokens at most", model.tokens),
            ));
        }
    }
    Ok((length, least))
}

/// Fixed tokens, by a text and by place.
fn fixed(model: &Described, f: &Fields) -> Result<Option<Vec<Option<u32>>>> {
    let (tokenizer, n) = (model.tokenizer()?, model.tokens);
    let mut row = match (f.text("infill"), f.text("prompt")) {
        (Some(_), Some(_)) => return Err(Problem::field("infill", "give prompt or infill, not both")),
        (Some(text), None) => Some(infill(tokenizer, n, text).map_err(refused("infill"))?),
        (None, Some(text)) => Some(prompt(tokenizer, n, text).map_err(refused("prompt"))?),
        (None, None) => None,
    };
    for (place, token) in f.get("pin").map_or(Ok(Vec::new()), |v| pins(model, v))? {
        if let Some(at) = row.get_or_insert_with(|| vec![None; n]).get_mut(place) {
            *at = token;
        }
    }
    Ok(row)
}

/// Where an earlier run had come to.
fn resume(model: &Described, f: &Fields, sample: &SampleConfig) -> Result<Option<Resume>> {
    let Some(value) = f.get("resume") else { return Ok(None) };
    let wrong = |field: &str, message: String| Err(Problem::field(field, message));
    let known = |k: &String| ["step", "tokens", "committed"].contains(&k.as_str());
    if let Some(name) = value.as_object().and_then(|o| o.keys().find(|k| !known(k))) {
        return wrong("resume", format!("resume has step, tokens and committed, not {name:?}"));
    }
    let forgets = matches!(sample.sampler, SamplerKind::Argmax | SamplerKind::Multinomial);
    if model.facts.tdd && !forgets {
        return wrong("resume", "resume goes with sampler argmax or multinomial: others carry more than tokens".into());
    }
    if !model.facts.tdd && sample.unmask == Unmasking::Confident && sample.correction > 0.0 {
        let what = "correction goes by probabilities that a resumed run does not have; send correction 0 with resume";
        return wrong("resume", what.into());
    }
    let (steps, n) = (model.steps_taken(sample), model.tokens);
    let step = value["step"].as_u64().and_then(|s| usize::try_from(s).ok()).filter(|s| *s < steps);
    let Some(step) = step else {
        return wrong("resume.step", format!("resume.step must be a whole number below {steps}, the steps in all"));
    };
    let most = if model.facts.tdd { model.vocab } else { model.vocab + 1 } as u64; // V: masked
    let ids = value["tokens"].as_array().map(|all| {
        all.iter().map(|t| t.as_u64().filter(|t| *t < most).map(|t| t as u32)).collect::<Option<Vec<u32>>>()
    });
    let committed = match &value["committed"] {
        Value::Null => Some(Vec::new()),
        Value::Array(all) if all.len() == n => all.iter().map(Value::as_bool).collect(),
        _ => None,
    };
    let Some(committed) = committed else {
        return wrong("resume.committed", format!("resume.committed must be {n} times true or false"));
    };
    match ids.flatten() {
        Some(tokens) if tokens.len() == n => Ok(Some(Resume { step, tokens, committed })),
        _ => wrong("resume.tokens", format!("resume.tokens must be {n} whole numbers below {most}")),
    }
}
