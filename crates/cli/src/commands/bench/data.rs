//! `tweedie bench data`: how fast a data set becomes training batches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{
    self, CacheMode, Loader, LoaderConfig, OpenOptions, SequenceConfig, SequenceOptions, Sequences, Task,
};
use tweedie::tokenize::{Kind, Tokenizer};

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table};
use crate::shared::names::{CACHES, one_of, value_name};
use crate::shared::numbers;
use crate::shared::recipe;

#[derive(Clone, Copy, clap::ValueEnum)]
enum Augment {
    /// The paper's
    Imagenet,
    /// Random-resized crop and flip
    Crop,
    /// A window of the padded image and a flip
    Light,
    /// Centre crop
    Eval,
}

#[derive(clap::Args)]
pub struct Args {
    /// Images with classes, captioned images, or text
    data: PathBuf,
    /// Side of the images that come out
    #[arg(long, default_value_t = 224, value_name = "PIXELS", value_parser = numbers::whole(1..=1 << 13))]
    image: usize,
    /// What is done to images
    #[arg(long, value_enum, default_value_t = Augment::Imagenet, value_name = "NAME")]
    augment: Augment,
    /// Decoding threads; 0: one per core
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = numbers::whole(0..=1024))]
    workers: usize,
    /// Examples of a batch
    #[arg(long, default_value_t = 64, value_name = "B", value_parser = numbers::whole(1..=1 << 16))]
    batch: usize,
    /// Decoded images of earlier epochs: off (each is decoded again, what a large set costs) or auto (kept if they fit)
    #[arg(long, default_value = "off", value_name = "MODE", value_parser = one_of::<CacheMode>(CACHES))]
    cache: CacheMode,
    /// Augmentation of this recipe, at its image size, in the place of --augment and --image
    #[arg(long, value_name = "NAME")]
    recipe: Option<String>,
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
    cache: CacheMode,
    examples: usize,
    seconds: f64,
    per_second: f64,
    per_worker: f64,
    /// Per second of processor time, all threads together: the one to compare on a busy machine. Linux alone.
    per_cpu_second: Option<f64>,
    skipped: usize,
}

/// Processor time of all threads so far, in seconds, to a hundredth.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let after_name = stat.rsplit_once(')')?.1;
    let ticks = |i: usize| after_name.split_whitespace().nth(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0) // utime and stime; Linux counts hundredths on every machine
}

impl Augment {
    fn config(self) -> AugmentConfig {
        let light = AugmentConfig::light();
        match self {
            Augment::Imagenet | Augment::Eval => AugmentConfig::imagenet(),
            Augment::Crop => AugmentConfig { crop: AugmentConfig::imagenet().crop, ..light },
            Augment::Light => light,
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let recipe = args.recipe.as_deref().map(|name| recipe::resolve(name, &[], &[])).transpose()?.map(|r| r.0);
    let side = recipe.as_ref().map_or(args.image, |c| c.model.encoder.image);
    let augment = recipe.map_or_else(|| args.augment.config(), |c| c.augment);
    if !(args.seconds > 0.0 && args.seconds <= 1e6) {
        return Err(Failure::input("--seconds must be more than 0, and at most 1000000"));
    }
    let cache = args.cache;
    let (mut loader, format) = open(args, &augment, side, cache)?;
    // Batches until queues are filled; with a cache until everything is in it, which takes the probes' second epoch.
    let warm = if cache == CacheMode::Off { 8 } else { 8.max(2 * loader.batches_per_epoch()) };
    let Measured { examples, seconds, cpu } = measure(&mut loader, warm, args.seconds)?;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let workers = if args.workers == 0 { cores } else { args.workers };
    let per_second = examples as f64 / seconds;
    let r = Report {
        data: args.data.display().to_string(),
        format,
        augment: args.recipe.clone().unwrap_or_else(|| value_name(args.augment)),
        image: side,
        workers,
        cache,
        examples,
        seconds,
        per_second,
        per_worker: per_second / workers.min(cores) as f64,
        per_cpu_second: cpu.map(|s| examples as f64 / s),
        skipped: loader.skipped().count(),
    };
    if args.json { report::print_json(&r) } else { report::print(&table(r)) }
}

/// A loader over the data, and what format they have.
fn open(args: &Args, augment: &AugmentConfig, side: usize, cache: CacheMode) -> Result<(Loader, String)> {
    let transform = |channels| match args.augment {
        Augment::Eval => Transform::eval(augment, side, channels),
        _ => Transform::train(augment, side, channels),
    };
    let open = OpenOptions { decoded_bytes: cache.bytes(), ..OpenOptions::default() };
    let config = |n: usize| LoaderConfig { threads: args.workers, ..LoaderConfig::train(args.batch.min(n), 0) };
    let task = data::guess_task(&args.data)?;
    if task == Task::Class {
        let set = data::open(&args.data, &open)?;
        let source = set.train()?.clone();
        let n = source.len();
        return Ok((Loader::new(source, transform(set.channels)?, config(n))?, set.format.to_string()));
    }
    let set = data::open_sequences(&args.data, &SequenceOptions { open, ..SequenceOptions::default() })?;
    let tokenizer = Arc::new(Tokenizer::train(Kind::Word, 5000, set.training_texts()?)?);
    let sequences = Sequences::new(set.train()?.clone(), tokenizer, &SequenceConfig::lines(32))?;
    let transform = if task == Task::Caption { Some(transform(3)?) } else { None };
    let n = sequences.len();
    Ok((Loader::sequences(sequences, transform, config(n))?, set.format.to_string()))
}

/// What went through a loader, and how long it took.
struct Measured {
    examples: usize,
    seconds: f64,
    /// Processor time of all threads.
    cpu: Option<f64>,
}

/// Take batches for `seconds`, after `warm` of them.
fn measure(loader: &mut Loader, warm: usize, seconds: f64) -> Result<Measured> {
    let (mut examples, mut begin, mut cpu) = (0, Instant::now(), cpu_seconds());
    for batch in 0.. {
        let Some(next) = loader.next() else { break };
        let next = next?;
        if batch == warm {
            (examples, begin, cpu) = (0, Instant::now(), cpu_seconds());
        }
        examples += next.indices.len();
        loader.recycle(next);
        if batch > warm && begin.elapsed() >= Duration::from_secs_f64(seconds) {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = cpu.zip(cpu_seconds()).map(|(before, now)| now - before).filter(|s| *s > 0.0);
    Ok(Measured { examples, seconds, cpu })
}

fn table(r: Report) -> String {
    use Align::{Left, Right};
    let mut t = Table::new(&[
        ("format", Left),
        ("augmentation", Left),
        ("side", Right),
        ("workers", Right),
        ("cache", Left),
        ("examples/s", Right),
        ("per core", Right),
        ("per CPU second", Right),
        ("skipped", Right),
    ]);
    t.row(vec![
        r.format,
        r.augment,
        r.image.to_string(),
        r.workers.to_string(),
        format!("{:?}", r.cache).to_lowercase(),
        format!("{:.0}", r.per_second),
        format!("{:.0}", r.per_worker),
        r.per_cpu_second.map_or("–".into(), |n| format!("{n:.0}")),
        r.skipped.to_string(),
    ]);
    t.render()
}
