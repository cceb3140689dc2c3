//! `tweedie trace`: how a prediction comes about, step by step; in the terminal, as JSON, or as a page to scrub through.

mod page;
mod terminal;

use std::path::PathBuf;

use serde::Serialize;
use tweedie::augment::{Address, Transform};
use tweedie::config::{Precision, SampleConfig};
use tweedie::data::{Image, Task};
use tweedie::run::{self, Loaded, Weights};
use tweedie::sample::{Generated, Generator, Request, classify, softmax};
use tweedie::texts::free_ending;
use tweedie_engine::Tensor;

use super::image_input;
use super::train::note;
use crate::failure::{Failure, Result};
use crate::figures::Picture;
use crate::report;

#[derive(clap::Args)]
pub struct Args {
    /// Run folder, or one checkpoint in it
    run: PathBuf,
    /// The image; a model of text alone takes none
    input: Option<PathBuf>,
    /// Sampling steps
    #[arg(long, value_name = "S")]
    steps: Option<usize>,
    /// Guidance weight
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// argmax, multinomial, softmax, ddim or ancestral
    #[arg(long, value_name = "NAME")]
    sampler: Option<String>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
    /// Candidates to keep for each token, at most 8
    #[arg(long, default_value_t = 5, value_name = "K")]
    top: usize,
    /// Write a page that shows it all, to be opened in a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A whole sampling.
#[derive(Serialize)]
struct Trace {
    run: String,
    method: &'static str,
    task: Task,
    sampler: String,
    guidance: f32,
    seed: u64,
    /// Path of the image, if there is one.
    input: Option<String>,
    /// What came out.
    result: String,
    steps: Vec<Step>,
    /// The image as the model sees it, for pages.
    #[serde(skip)]
    picture: Option<Picture>,
}

/// One step: what the network says when it is told time `t`.
#[derive(Serialize)]
pub struct Step {
    pub t: usize,
    /// Share ᾱ of the signal in the noisy vectors that it sees.
    pub alpha_bar: f64,
    pub tokens: Vec<Token>,
}

/// One place of the sequence.
#[derive(Serialize)]
pub struct Token {
    /// The chosen token; of the masked twin, `None` while it is masked.
    pub text: Option<String>,
    /// Its probability.
    pub p: f64,
    /// Nats.
    pub entropy: f64,
    /// The most likely ones.
    pub top: Vec<(String, f64)>,
}

pub fn run(args: &Args) -> Result<()> {
    let choice = report::open_device(&args.device)?;
    let loaded = run::load(&args.run, Weights::Ema, &choice.device, Precision::Auto)?;
    loaded.notes.iter().for_each(|n| note(n));
    let mut sample = loaded.config.sample.clone();
    sample.steps = args.steps.unwrap_or(sample.steps);
    sample.guidance = args.guidance.unwrap_or(sample.guidance);
    sample.seed = args.seed.unwrap_or(sample.seed);
    sample.votes = 1;
    if let Some(name) = &args.sampler {
        sample.sampler = super::eval::sampler(name)?;
    }
    if sample.steps == 0 || args.top == 0 || args.top > 8 {
        return Err(Failure::input("--steps must be at least 1, and --top 1 to 8"));
    }
    let image = match (&args.input, loaded.config.model.is_conditional()) {
        (Some(path), true) => Some(image_input::read(path)?),
        (None, true) => {
            return Err(Failure::input("this model looks at an image; name one")
                .hint(format!("tweedie trace {} IMAGE", args.run.display())));
        }
        (Some(path), false) => {
            return Err(Failure::input(format!(
                "this model writes text without any image; {} is not needed",
                path.display()
            )));
        }
        (None, false) => None,
    };
    let (images, picture) = match image {
        Some(image) => {
            let (tensor, picture) = seen(&loaded, image)?;
            (Some(tensor), Some(picture))
        }
        None => (None, None),
    };
    let (steps, result) = match (loaded.config.data.task, &images) {
        (Task::Class, Some(images)) => class_steps(&loaded, &sample, images, args.top)?,
        _ => text_steps(&loaded, &sample, images.as_ref(), args.top)?,
    };
    let trace = Trace {
        run: args.run.display().to_string(),
        method: if loaded.trained.model.is_tdd() { "TDD" } else { "MDD" },
        task: loaded.config.data.task,
        sampler: serde_json::to_value(sample.sampler)
            .ok()
            .and_then(|v| v.as_str().map(String::from))
            .unwrap_or_default(),
        guidance: sample.guidance,
        seed: sample.seed,
        input: args.input.as_ref().map(|p| p.display().to_string()),
        result,
        steps,
        picture,
    };
    if let Some(path) = &args.html {
        let page = page::render(&trace)?;
        tweedie::files::write_atomic(path, page.as_bytes())?;
        note(&format!("wrote {}", path.display()));
    }
    match (args.json, &args.html) {
        (true, _) => report::print_json(&trace),
        (false, Some(_)) => report::print(&format!("{}\n", trace.result)),
        (false, None) => terminal::show(&trace),
    }
}

/// The image as the model sees it: a tensor of one, and a picture.
fn seen(loaded: &Loaded, image: Image) -> Result<(Tensor, Picture)> {
    let e = &loaded.config.model.encoder;
    let transform = Transform::eval(&loaded.config.augment, e.image, e.channels)?;
    let at = Address { seed: 0, epoch: 0, example: 0 };
    let shown = transform.preview(image.clone(), at);
    let picture = Picture { width: shown.width, height: shown.height, channels: shown.channels, pixels: shown.data };
    Ok((image_input::tensor(&loaded.config, &loaded.trained.model.device(), image)?, picture))
}

/// A class is a sequence of one token.
fn class_steps(loaded: &Loaded, sample: &SampleConfig, images: &Tensor, top: usize) -> Result<(Vec<Step>, String)> {
    let t = &loaded.trained;
    let mut all = Vec::new();
    let last = classify(&t.model, images, &[0], &t.schedule, t.lambda, sample, |p| all.push((p.t, p.logits())))?;
    if all.is_empty() {
        all.push((0, Ok(last))); // the masked twin of a classifier: one pass
    }
    let mut steps = Vec::new();
    for (time, logits) in all {
        let p = softmax(&logits?);
        let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        let mut ranked: Vec<(String, f64)> = t.class_names.iter().cloned().zip(p).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked.truncate(top);
        let (text, p) = ranked.first().cloned().unwrap_or_default();
        let tokens = vec![Token { text: Some(text), p, entropy, top: ranked }];
        steps.push(Step { t: time, alpha_bar: t.schedule.alpha_bar(time), tokens });
    }
    let result = steps.last().and_then(|s| s.tokens[0].text.clone()).unwrap_or_default();
    Ok((steps, result))
}

fn text_steps(
    loaded: &Loaded,
    sample: &SampleConfig,
    images: Option<&Tensor>,
    top: usize,
) -> Result<(Vec<Step>, String)> {
    let t = &loaded.trained;
    let tokenizer = t.tokenizer()?;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, sample)?;
    let top = top.min(t.model.sizes().vocab);
    let ending = images.map(|_| free_ending(tokenizer));
    let made = generator.generate(&Request { ending, trace: Some(top), ..Request::new(images, &[0]) })?;
    let result = match images {
        Some(_) => tokenizer.decode(&made.tokens),
        None => tokenizer.decode_packed(&made.tokens),
    };
    Ok((steps_of(loaded, &made, 0, top)?, result))
}

/// The steps of one of the texts that were generated with a trace of `top` candidates.
pub fn steps_of(loaded: &Loaded, made: &Generated, row: usize, top: usize) -> Result<Vec<Step>> {
    let t = &loaded.trained;
    let tokenizer = t.tokenizer()?;
    let (n, vocab) = (t.model.sizes().tokens, t.model.sizes().vocab as u32);
    let step = |s: &tweedie::sample::Traced| {
        let token = |i: usize| Token {
            text: (s.tokens[i] < vocab).then(|| tokenizer.token(s.tokens[i])),
            p: (s.log_probs[i] as f64).exp(),
            entropy: s.entropy[i] as f64,
            top: s.top[i * top..(i + 1) * top]
                .iter()
                .map(|(id, lp)| (tokenizer.token(*id), (*lp as f64).exp()))
                .collect(),
        };
        let tokens = (row * n..(row + 1) * n).map(token).collect();
        Step { t: s.t, alpha_bar: t.schedule.alpha_bar(s.t), tokens }
    };
    Ok(made.steps.iter().map(step).collect())
}
