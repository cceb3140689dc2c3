//! `tweedie caption`: what is on these images, in words.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::data::Task;
use tweedie::run::Loaded;

use super::writing::{Writer, WritingArgs, Written};
use crate::failure::{Failure, Result};
use crate::report;
use crate::shared::image_input::{self, ImageArgs, ImageInput};
use crate::shared::model_args::ModelArgs;
use crate::shared::predictions::{self, Form, Record};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    writing: WritingArgs,
    /// Write the captions, and which images could not be read, as .csv or .jsonl
    #[arg(long, value_name = "FILE", value_parser = predictions::file)]
    out: Option<(PathBuf, Form)>,
}

/// The captions of one image, or why there are none.
#[derive(Serialize)]
struct CaptionRecord {
    image: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    captions: Vec<Written>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Record for CaptionRecord {
    const COLUMNS: &'static [&'static str] = &["image", "caption", "error"];

    fn cells(&self) -> Vec<String> {
        let best = self.captions.first().map(|w| w.text.clone()).unwrap_or_default();
        vec![self.image.clone(), best, self.error.clone().unwrap_or_default()]
    }
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
    let sample = args.writing.sample(&loaded)?;
    let mut writer = Writer::new(&args.writing, &args.model, &loaded, &sample, None)?;
    let inputs = args.images.inputs()?;
    let mut records = Vec::with_capacity(inputs.len());
    let mut rest = &inputs[..];
    while !rest.is_empty() {
        let (some, more) = rest.split_at(writer.batch().min(rest.len()));
        rest = more;
        for record in captioned(&mut writer, &loaded, some)? {
            if let (false, None) = (args.model.json, &record.error) {
                report::print(&format!("{}: {}\n", record.image, lines(&record.captions)))?;
            }
            records.push(record);
        }
    }
    if args.model.json {
        report::print_json(&records)?;
    }
    if let Some(out) = &args.out {
        predictions::write(out, &records)?;
    }
    image_input::unreadable(records.iter().filter(|r| r.error.is_some()).count(), records.len())
}

/// Some images with their captions.
fn captioned(writer: &mut Writer, loaded: &Loaded, inputs: &[ImageInput]) -> Result<Vec<CaptionRecord>> {
    let (mut records, mut images) = (Vec::new(), Vec::new());
    for (input, read) in inputs.iter().zip(image_input::read(inputs)) {
        let error = read.map(|image| images.push(image)).err();
        records.push(CaptionRecord { image: input.name.clone(), captions: Vec::new(), error });
    }
    let mut seen: Vec<&mut CaptionRecord> = records.iter_mut().filter(|r| r.error.is_none()).collect();
    let Some(first) = images.first() else { return Ok(records) };
    let input = match writer.will_trace() {
        true => Some((Path::new(&seen[0].image), image_input::picture(loaded.trained.preview(first.clone())?))),
        false => None,
    };
    // The same noise for every image: a caption does not depend on what else is asked for.
    let written = writer.write(Some(&loaded.trained.images(&images)?), &vec![0; images.len()], input)?;
    seen.iter_mut().zip(written).for_each(|(record, captions)| record.captions = captions);
    Ok(records)
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
