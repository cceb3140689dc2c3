//! `tweedie bench data`: how fast a data set becomes training batches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{self, Loader, LoaderConfig, OpenOptions, SequenceConfig, SequenceOptions, Sequences, Task};
use tweedie::tokenize::{Kind, Tokenizer};

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table};

#[derive(clap::Args)]
pub struct Args {
    /// Images with classes, captioned images, or text
    data: PathBuf,
    /// Side of the images that come out
    #[arg(long, default_value_t = 224, value_name = "PIXELS")]
    image: usize,
    /// imagenet (the paper's), crop (random-resized crop and flip), light, or eval (centre crop)
    #[arg(long, default_value = "imagenet", value_name = "NAME")]
    augment: String,
    /// Decoding threads; 0: one per core
    #[arg(long, default_value_t = 0, value_name = "N")]
    workers: usize,
    /// Examples of a batch
    #[arg(long, default_value_t = 64, value_name = "B")]
    batch: usize,
    /// How long to measure
    #[arg(long, default_value_t = 6.0, value_name = "S")]
    seconds: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    data: String,
    format: String,
    augment: String,
    image: usize,
    workers: usize,
    examples: usize,
    seconds: f64,
    per_second: f64,
    per_worker: f64,
    skipped: usize,
}

pub fn run(args: &Args) -> Result<()> {
    let light = AugmentConfig::light();
    let augment = match args.augment.as_str() {
        "imagenet" | "eval" => AugmentConfig::imagenet(),
        "crop" => AugmentConfig { crop: AugmentConfig::imagenet().crop, ..light },
        "light" => light,
        other => {
            return Err(Failure::input(format!("'{other}' is not an augmentation; use imagenet, crop, light or eval")));
        }
    };
    if args.image == 0 || args.batch == 0 || args.seconds <= 0.0 || args.seconds.is_nan() {
        return Err(Failure::input("--image, --batch and --seconds must be more than 0"));
    }
    let transform = |channels| match args.augment.as_str() {
        "eval" => Transform::eval(&augment, args.image, channels),
        _ => Transform::train(&augment, args.image, channels),
    };
    let config = |n: usize| LoaderConfig { threads: args.workers, ..LoaderConfig::train(args.batch.min(n), 0) };
    let task = data::guess_task(&args.data)?;
    let (mut loader, format) = if task == Task::Class {
        let set = data::open(&args.data, &OpenOptions::default())?;
        let source = set.train()?.clone();
        let n = source.len();
        (Loader::new(source, transform(set.channels)?, config(n))?, set.format.to_string())
    } else {
        let set = data::open_sequences(&args.data, &SequenceOptions::default())?;
        let tokenizer = Arc::new(Tokenizer::train(Kind::Word, 5000, set.training_texts()?)?);
        let sequences = Sequences::new(set.train()?.clone(), tokenizer, &SequenceConfig::lines(32))?;
        let transform = if task == Task::Caption { Some(transform(3)?) } else { None };
        let n = sequences.len();
        (Loader::sequences(sequences, transform, config(n))?, set.format.to_string())
    };
    let (mut examples, mut begin) = (0, Instant::now());
    const WARM: usize = 8; // batches until caches and queues are filled
    for batch in 0.. {
        let Some(next) = loader.next() else { break };
        let next = next?;
        if batch == WARM {
            (examples, begin) = (0, Instant::now());
        }
        examples += next.indices.len();
        loader.recycle(next);
        if batch > WARM && begin.elapsed() >= Duration::from_secs_f64(args.seconds) {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = if args.workers == 0 { cores } else { args.workers };
    let per_second = examples as f64 / seconds;
    let r = Report {
        data: args.data.display().to_string(),
        format,
        augment: args.augment.clone(),
        image: args.image,
        workers,
        examples,
        seconds,
        per_second,
        per_worker: per_second / workers.min(cores) as f64,
        skipped: loader.skipped().count(),
    };
    if args.json {
        return report::print_json(&r);
    }
    use Align::{Left, Right};
    let mut t = Table::new(&[
        ("format", Left),
        ("augmentation", Left),
        ("side", Right),
        ("workers", Right),
        ("examples/s", Right),
        ("per core", Right),
        ("skipped", Right),
    ]);
    t.row(vec![
        r.format,
        r.augment,
        r.image.to_string(),
        r.workers.to_string(),
        format!("{:.0}", r.per_second),
        format!("{:.0}", r.per_worker),
        r.skipped.to_string(),
    ]);
    report::print(&t.render())
}
