//! `tweedie classify`: what is on these images?

use std::path::PathBuf;

use serde::Serialize;
use tweedie::config::SampleConfig;
use tweedie::data::Task;
use tweedie::sample::{Classifier, softmax};

use crate::failure::{Failure, Result};
use crate::report::{self, note};
use crate::shared::image_input;
use crate::shared::model_args::ModelArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Images (JPEG, PNG, WebP)
    #[arg(required = true, value_name = "IMG")]
    images: Vec<PathBuf>,
    /// Classes to show
    #[arg(long, default_value_t = 5, value_name = "K")]
    top: usize,
    /// Sampling steps
    #[arg(long, value_name = "S")]
    steps: Option<usize>,
    /// Guidance weight
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// Majority over this many draws
    #[arg(long, value_name = "N")]
    votes: Option<usize>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Serialize)]
struct Answer {
    image: String,
    /// Most likely first.
    classes: Vec<(String, f64)>,
}

pub fn run(args: &Args) -> Result<()> {
    let loaded = args.model.load()?;
    if loaded.config.data.task != Task::Class {
        let run = args.model.run.display();
        return Err(Failure::input(format!("{run}: this model writes text, it does not classify"))
            .hint(format!("tweedie caption {run} IMAGE")));
    }
    let mut base = loaded.config.sample.clone();
    base.steps = args.steps.unwrap_or(base.steps).max(1);
    base.guidance = args.guidance.unwrap_or(base.guidance);
    base.votes = args.votes.unwrap_or(base.votes).max(1);
    base.seed = args.seed.unwrap_or(base.seed);
    let sample = SampleConfig { ..base };
    let t = &loaded.trained;
    let classifier = Classifier::new(&t.model, &t.schedule, t.lambda, &sample)?;
    let (mut answers, mut unreadable) = (Vec::new(), 0);
    for (i, path) in args.images.iter().enumerate() {
        let image = match image_input::read(path) {
            Ok(image) => image,
            Err(why) => {
                note(&format!("{why}; skipped"));
                unreadable += 1;
                continue;
            }
        };
        let images = image_input::tensor(&loaded.config, &t.model.device(), vec![image])?;
        let logits = classifier.logits(&images, &[i as u32])?;
        let mut ranked: Vec<(String, f64)> = t.class_names.iter().cloned().zip(softmax(&logits)).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        ranked.truncate(args.top.max(1));
        answers.push(Answer { image: path.display().to_string(), classes: ranked });
    }
    if args.model.json {
        report::print_json(&answers)?;
    } else {
        for a in &answers {
            let list: Vec<String> = a.classes.iter().map(|(n, p)| format!("{n} {:.1} %", 100.0 * p)).collect();
            report::print(&format!("{}: {}\n", a.image, list.join(", ")))?;
        }
    }
    match unreadable {
        0 => Ok(()),
        n => Err(Failure::input(format!("{n} of {} images could not be read", args.images.len()))),
    }
}
