//! `tweedie caption`: what is on these images, in words.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::augment::{Address, Transform};
use tweedie::config::Precision;
use tweedie::data::{Image, Task};
use tweedie::run::{self, Weights};
use tweedie::sample::Generator;
use tweedie_engine::Tensor;

use super::train::note;
use super::writing::{WritingArgs, Written};
use crate::failure::{Failure, Result};
use crate::report;

#[derive(clap::Args)]
pub struct Args {
    /// Run folder, or one checkpoint in it
    run: PathBuf,
    /// Images (JPEG, PNG, WebP)
    #[arg(required = true, value_name = "IMG")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    writing: WritingArgs,
    /// The weights as trained, not their average
    #[arg(long)]
    raw: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    image: String,
    captions: Vec<Written>,
}

pub fn run(args: &Args) -> Result<()> {
    let choice = report::open_device(&args.device)?;
    let weights = if args.raw { Weights::Raw } else { Weights::Ema };
    let loaded = run::load(&args.run, weights, &choice.device, Precision::Auto)?;
    loaded.notes.iter().for_each(|n| note(n));
    let name = args.run.display();
    match loaded.config.data.task {
        Task::Caption => {}
        Task::Class => {
            return Err(Failure::input(format!("{name}: this model knows classes, not captions"))
                .hint(format!("tweedie classify {name} IMAGE")));
        }
        Task::Text => {
            return Err(Failure::input(format!("{name}: this model writes text without images"))
                .hint(format!("tweedie generate {name}")));
        }
    }
    let e = &loaded.config.model.encoder;
    let transform = Transform::eval(&loaded.config.augment, e.image, e.channels)?;
    let sample = args.writing.sample(&loaded.config.sample)?;
    let given = args.writing.given(&loaded, None)?;
    let t = &loaded.trained;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, &sample)?;
    let (mut answers, mut unreadable) = (Vec::new(), 0);
    for (i, path) in args.images.iter().enumerate() {
        let image =
            std::fs::read(path).map_err(|e| e.to_string()).and_then(|b| Image::decode(&b).map_err(|e| e.to_string()));
        let image = match image {
            Ok(image) => image,
            Err(why) => {
                note(&format!("{}: {why}; skipped", path.display()));
                unreadable += 1;
                continue;
            }
        };
        let mut values = vec![0.0; transform.values()];
        transform.apply(image, Address { seed: 0, epoch: 0, example: i as u32 }, &mut values);
        let images = Tensor::from_f32(&choice.device, &[1, e.channels, e.image, e.image], values)?;
        let captions = args.writing.write(&loaded, &generator, Some(&images), i as u32, given.as_deref())?;
        if !args.json {
            report::print(&format!("{}: {}\n", path.display(), lines(&captions)))?;
        }
        answers.push(Answer { image: path.display().to_string(), captions });
    }
    if args.json {
        report::print_json(&answers)?;
    }
    match unreadable {
        0 => Ok(()),
        n => Err(Failure::input(format!("{n} of {} images could not be read", args.images.len()))),
    }
}

/// One text as it is; several with their bounds, one below the other.
pub fn lines(all: &[Written]) -> String {
    let line = |w: &Written| match w.nats {
        None => w.text.clone(),
        Some((nats, error)) => format!("\n  {nats:8.2} ± {error:.2} nats  {}", w.text),
    };
    all.iter().map(line).collect()
}
