//! `tweedie caption`: what is on these images, in words.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::config::Precision;
use tweedie::data::Task;
use tweedie::run::{self, Weights};
use tweedie::sample::Generator;

use super::image_input;
use super::train::note;
use super::writing::{WritingArgs, Written};
use crate::failure::{Failure, Result};
use crate::report;

#[derive(clap::Args)]
pub struct Args {
    /// Run folder, or one checkpoint in it
    run: PathBuf,
    /// Images (JPEG, PNG, WebP), or folders of them
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
    let sample = args.writing.sample(&loaded.config.sample, true)?;
    let given = args.writing.given(&loaded, None)?;
    let t = &loaded.trained;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, &sample)?;
    let (mut answers, mut unreadable) = (Vec::new(), 0);
    let paths = files(&args.images)?;
    for path in &paths {
        let image = match image_input::read(path) {
            Ok(image) => image,
            Err(why) => {
                note(&format!("{why}; skipped"));
                unreadable += 1;
                continue;
            }
        };
        let images = image_input::tensor(&loaded.config, &choice.device, image)?;
        // The same noise for every image: a caption does not depend on what else is asked for.
        let captions = args.writing.write(&loaded, (&generator, &sample), Some(&images), 0, given.as_deref())?;
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
        n => Err(Failure::input(format!("{n} of {} images could not be read", paths.len()))),
    }
}

/// The files, and of folders the images in them by name.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    const KINDS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(path.clone());
            continue;
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let file = entry?.path();
            let kind = file.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
            if KINDS.contains(&kind.as_str()) {
                found.push(file);
            }
        }
        if found.is_empty() {
            return Err(Failure::input(format!("{}: no images in this folder", path.display())));
        }
        found.sort();
        all.extend(found);
    }
    Ok(all)
}

/// One text as it is; several with what they were ranked by, one below the other.
pub fn lines(all: &[Written]) -> String {
    let line = |w: &Written| match (w.nats, w.consensus) {
        (Some((nats, error)), _) => format!("\n  {nats:8.2} ± {error:.2} nats  {}", w.text),
        (None, Some(c)) => format!("\n  {c:.3}  {}", w.text),
        (None, None) => w.text.clone(),
    };
    all.iter().map(line).collect()
}
