//! `tweedie caption`: what is on these images, in words.

use std::path::PathBuf;

use rayon::prelude::*;
use serde::Serialize;
use tweedie::Image;
use tweedie::data::Task;

use super::writing::{Writer, WritingArgs, Written};
use crate::failure::{Failure, Result};
use crate::report::{self, note};
use crate::shared::image_input;
use crate::shared::model_args::ModelArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Images (JPEG, PNG, WebP), or folders of them
    #[arg(required = true, value_name = "IMG")]
    images: Vec<PathBuf>,
    #[command(flatten)]
    writing: WritingArgs,
}

#[derive(Serialize)]
struct Answer {
    image: String,
    captions: Vec<Written>,
}

pub fn run(args: &Args) -> Result<()> {
    let loaded = args.model.load()?;
    let name = args.model.run.display();
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
    let sample = args.writing.sample(&loaded, true)?;
    let mut writer = Writer::new(&args.writing, &args.model, &loaded, &sample, None)?;
    let (mut answers, mut unreadable) = (Vec::new(), 0);
    let paths = files(&args.images)?;
    let mut rest = &paths[..];
    while !rest.is_empty() {
        let (part, more) = rest.split_at(writer.batch().min(rest.len()));
        rest = more;
        let read: Vec<_> = part.par_iter().map(|path| Image::open(path)).collect();
        let (mut seen, mut images) = (Vec::new(), Vec::new());
        for (path, image) in part.iter().zip(read) {
            match image {
                Ok(image) => {
                    seen.push(path);
                    images.push(image);
                }
                Err(why) => {
                    note(&format!("{why}; skipped"));
                    unreadable += 1;
                }
            }
        }
        if seen.is_empty() {
            continue;
        }
        let input = match writer.will_trace() {
            true => Some((seen[0].as_path(), image_input::picture(loaded.trained.preview(images[0].clone())?))),
            false => None,
        };
        let images = loaded.trained.images(&images)?;
        // The same noise for every image: a caption does not depend on what else is asked for.
        let ids = vec![0; seen.len()];
        let written = writer.write(Some(&images), &ids, input)?;
        for (path, captions) in seen.into_iter().zip(written) {
            if !args.model.json {
                report::print(&format!("{}: {}\n", path.display(), lines(&captions)))?;
            }
            answers.push(Answer { image: path.display().to_string(), captions });
        }
    }
    if args.model.json {
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
