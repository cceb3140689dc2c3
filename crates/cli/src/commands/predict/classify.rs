//! `tweedie classify`: what is on these images?

use std::path::PathBuf;

use serde::Serialize;
use tweedie::data::Task;
use tweedie::{Classifier, Image};

use crate::failure::{Failure, Result};
use crate::report::{self, note};
use crate::shared::model_args::ModelArgs;
use crate::shared::numbers;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Images (JPEG, PNG, WebP)
    #[arg(required = true, value_name = "IMG")]
    images: Vec<PathBuf>,
    /// Classes to show
    #[arg(long, default_value_t = 5, value_name = "K", value_parser = numbers::whole(1..=1 << 24))]
    top: usize,
    /// Sampling steps
    #[arg(long, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    steps: Option<usize>,
    /// Guidance weight
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// Majority over this many draws
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
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
    let mut sample = loaded.config.sample.clone();
    sample.steps = args.steps.unwrap_or(sample.steps).max(1);
    sample.guidance = args.guidance.unwrap_or(sample.guidance);
    sample.votes = args.votes.unwrap_or(sample.votes).max(1);
    sample.seed = args.seed.unwrap_or(sample.seed);
    let classifier = Classifier::new(&loaded.trained, &sample)?;
    let (mut answers, mut unreadable) = (Vec::new(), 0);
    for (i, path) in args.images.iter().enumerate() {
        let image = match Image::open(path) {
            Ok(image) => image,
            Err(why) => {
                note(&format!("{why}; skipped"));
                unreadable += 1;
                continue;
            }
        };
        let ranked = classifier.classify_batch(&loaded.trained.images(&[image])?, &[i as u32])?;
        let classes = ranked.first().map(|r| r.top(args.top.max(1)).0).unwrap_or_default();
        answers.push(Answer { image: path.display().to_string(), classes });
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
