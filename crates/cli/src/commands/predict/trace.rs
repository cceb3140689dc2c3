//! `tweedie trace`: how a prediction comes about, step by step; in the terminal, as JSON, or as a page to scrub through.

mod terminal;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::config::{SampleConfig, SamplerKind};
use tweedie::data::Task;
use tweedie::generate::{Step, TextRequest, trace_page};
use tweedie::run::Loaded;
use tweedie::{Classifier, Generator, Image, Tensor};
use tweedie_figures::{Picture, picture_uri};

use crate::failure::{Failure, Result};
use crate::report::{self, note};
use crate::shared::image_input;
use crate::shared::model_args::ModelArgs;
use crate::shared::names::{SAMPLERS, one_of};
use crate::shared::numbers;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The image; a model of text alone takes none
    input: Option<PathBuf>,
    /// Sampling steps
    #[arg(long, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    steps: Option<usize>,
    /// Guidance weight
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// Classes: steps go by the mean of the logits of all steps so far; false: by those of the last one
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    running_mean: Option<bool>,
    /// How a noisy vector becomes the next one
    #[arg(long, value_name = "NAME", value_parser = one_of::<SamplerKind>(SAMPLERS))]
    sampler: Option<SamplerKind>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
    /// Candidates to keep for each token, at most 8
    #[arg(long, default_value_t = 5, value_name = "K")]
    top: usize,
    /// Write a page that shows it all, to be opened in a browser
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A whole sampling.
#[derive(Serialize)]
pub struct Trace {
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
    /// Of a class: probabilities of the classes that matter, at every step.
    #[serde(skip_serializing_if = "Option::is_none")]
    heat: Option<Heat>,
    /// The image as the model sees it, for pages.
    #[serde(skip)]
    picture: Option<Picture>,
}

/// Probabilities of classes over the steps.
#[derive(Serialize)]
pub struct Heat {
    /// Those that were ever likeliest, up to [`Heat::CLASSES`], the surest at the end first.
    classes: Vec<String>,
    /// One row for each step, in the order of the classes.
    p: Vec<Vec<f64>>,
}

impl Heat {
    /// Rows that can still be told apart.
    const CLASSES: usize = 16;

    /// Of the distributions over all classes at each step.
    fn new(names: &[String], steps: &[Vec<f64>]) -> Heat {
        let most = |c: usize| steps.iter().map(|p| p[c]).fold(0.0, f64::max);
        let last = |c: usize| steps.last().map_or(0.0, |p| p[c]);
        let mut classes: Vec<usize> = (0..names.len()).collect();
        classes.sort_by(|&a, &b| most(b).total_cmp(&most(a)));
        classes.truncate(Heat::CLASSES);
        classes.sort_by(|&a, &b| last(b).total_cmp(&last(a)));
        Heat {
            p: steps.iter().map(|p| classes.iter().map(|&c| p[c]).collect()).collect(),
            classes: classes.into_iter().map(|c| names[c].clone()).collect(),
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let loaded = args.model.load()?;
    let mut sample = loaded.config.sample.clone();
    sample.steps = args.steps.unwrap_or(sample.steps);
    sample.guidance = args.guidance.unwrap_or(sample.guidance);
    sample.seed = args.seed.unwrap_or(sample.seed);
    sample.running_mean = args.running_mean.unwrap_or(sample.running_mean);
    sample.votes = 1;
    sample.sampler = args.sampler.unwrap_or(sample.sampler);
    if sample.steps == 0 || args.top == 0 || args.top > 8 {
        return Err(Failure::input("--steps must be at least 1, and --top 1 to 8"));
    }
    let image = match (&args.input, loaded.config.model.is_conditional()) {
        (Some(path), true) => Some(Image::open(path)?),
        (None, true) => {
            return Err(Failure::input("this model looks at an image; name one")
                .hint(format!("tweedie trace {} IMAGE", args.model.run.display())));
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
            let shown = image_input::picture(loaded.trained.preview(image.clone())?);
            (Some(loaded.trained.images(&[image])?), Some(shown))
        }
        None => (None, None),
    };
    let ((steps, result), heat) = match (loaded.config.data.task, &images) {
        (Task::Class, Some(images)) => {
            let (steps, heat) = class_steps(&loaded, &sample, images, args.top)?;
            (steps, Some(heat))
        }
        _ => (text_steps(&loaded, &sample, images.as_ref(), args.top)?, None),
    };
    let input = args.input.as_deref().zip(picture);
    let trace = Trace { heat, ..Trace::new(&args.model.run, &loaded, &sample, input, (result, steps)) };
    if let Some(path) = &args.html {
        trace.write(path, Form::Page)?;
    }
    match (args.model.json, &args.html) {
        (true, _) => report::print_json(&trace),
        (false, Some(_)) => report::print(&format!("{}\n", trace.result)),
        (false, None) => terminal::show(&trace),
    }
}

impl Trace {
    /// A text or class that came about in `steps`; of an image, its path and what the model sees of it.
    pub fn new(
        run: &Path,
        loaded: &Loaded,
        sample: &SampleConfig,
        input: Option<(&Path, Picture)>,
        (result, steps): (String, Vec<Step>),
    ) -> Trace {
        let (input, picture) = input.map(|(path, picture)| (path.display().to_string(), picture)).unzip();
        Trace {
            run: run.display().to_string(),
            method: if loaded.trained.model.is_tdd() { "TDD" } else { "MDD" },
            task: loaded.config.data.task,
            sampler: serde_json::to_value(sample.sampler)
                .ok()
                .and_then(|v| v.as_str().map(String::from))
                .unwrap_or_default(),
            guidance: sample.guidance,
            seed: sample.seed,
            input,
            result,
            steps,
            heat: None,
            picture,
        }
    }

    pub fn write(&self, path: &Path, form: Form) -> Result<()> {
        let bytes = match form {
            Form::Page => trace_page(self, self.picture.as_ref().map(picture_uri).as_deref())?.into_bytes(),
            Form::Json => serde_json::to_vec_pretty(self)?,
        };
        tweedie::files::write_atomic(path, &bytes)?;
        note(&format!("wrote {}", path.display()));
        Ok(())
    }
}

/// How a trace is written.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Page,
    Json,
}

/// A file for a trace; the end of its name says in which form. For clap.
pub fn file(name: &str) -> std::result::Result<(PathBuf, Form), String> {
    let path = PathBuf::from(name);
    match path.extension().and_then(|e| e.to_str()) {
        Some("html") => Ok((path, Form::Page)),
        Some("json") => Ok((path, Form::Json)),
        _ => Err("a trace is a page (.html) or JSON (.json)".into()),
    }
}

/// The steps, and what came out.
type Traced = (Vec<Step>, String);

/// A class is a sequence of one token.
fn class_steps(loaded: &Loaded, sample: &SampleConfig, image: &Tensor, top: usize) -> Result<(Traced, Heat)> {
    let classifier = Classifier::new(&loaded.trained, sample)?;
    let steps = classifier.trace(image, top)?;
    let result = steps.last().and_then(|s| s.tokens[0].text.clone()).unwrap_or_default();
    let all: Vec<Vec<f64>> = classifier.distributions(image, &[0])?.into_iter().map(|(_, p)| p).collect();
    Ok(((steps, result), Heat::new(&loaded.trained.class_names, &all)))
}

fn text_steps(loaded: &Loaded, sample: &SampleConfig, images: Option<&Tensor>, top: usize) -> Result<Traced> {
    let generator = Generator::new(&loaded.trained, &SampleConfig { candidates: 1, ..sample.clone() })?;
    let made = generator.generate(&TextRequest { images, trace: Some(top), ..TextRequest::new(&[0]) })?;
    let text = made.into_iter().flatten().next().ok_or_else(|| Failure::ours("there is no text to trace"))?;
    Ok((text.steps, text.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heat_map_has_the_classes_that_matter() {
        let names: Vec<String> = (0..40).map(|c| format!("c{c}")).collect();
        let mut steps = vec![vec![0.001; 40]; 3];
        (steps[0][7], steps[2][3]) = (0.9, 0.8);
        let heat = Heat::new(&names, &steps);
        assert_eq!((heat.classes.len(), heat.p.len(), heat.p[0].len()), (Heat::CLASSES, 3, Heat::CLASSES));
        assert_eq!(heat.classes[0], "c3");
        let seven = heat.classes.iter().position(|c| c == "c7").unwrap();
        assert_eq!((heat.p[0][seven], heat.p[2][0]), (0.9, 0.8));
    }
}
