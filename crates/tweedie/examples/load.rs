//! How fast a data set becomes training batches: `cargo run --release --example load -- PATH [SIZE] [THREADS] [RECIPE]`
//! with recipe `imagenet` (default), `crop` (random-resized crop and flip), `light` or `eval`. Captions and text are
//! tokenised with 5,000 words.

use std::sync::Arc;
use std::time::Instant;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{self, Loader, LoaderConfig, OpenOptions, SequenceConfig, SequenceOptions, Sequences, Task};
use tweedie::tokenize::{Kind, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: load PATH [SIZE] [THREADS] [RECIPE]")?;
    let size = args.get(1).map_or(Ok(224), |s| s.parse())?;
    let threads = args.get(2).map_or(Ok(0), |s| s.parse())?;
    let recipe = args.get(3).map_or("imagenet", String::as_str);
    let light = AugmentConfig::light();
    let augment = match recipe {
        "light" => light,
        "crop" => AugmentConfig { crop: AugmentConfig::imagenet().crop, ..light },
        _ => AugmentConfig::imagenet(),
    };
    let transform = |channels| match recipe {
        "eval" => Transform::eval(&augment, size, channels),
        _ => Transform::train(&augment, size, channels),
    };
    let config = |n: usize| LoaderConfig { threads, ..LoaderConfig::train(64.min(n), 0) };
    let begin = Instant::now();
    let task = data::guess_task(path)?;
    let mut loader = if task == Task::Class {
        let set = data::open(path, &OpenOptions::default())?;
        println!("{set:?}, validation: {}, opened in {:.2?}", set.val_origin, begin.elapsed());
        set.notes.iter().for_each(|n| println!("note: {n}"));
        let source = set.train()?.clone();
        let n = source.len();
        Loader::new(source, transform(set.channels)?, config(n))?
    } else {
        let set = data::open_sequences(path, &SequenceOptions::default())?;
        println!("{set:?}, validation: {}, opened in {:.2?}", set.val_origin, begin.elapsed());
        let begin = Instant::now();
        let tokenizer = Tokenizer::train(Kind::Word, 5000, set.training_texts()?)?;
        println!("{tokenizer:?}, trained in {:.2?}", begin.elapsed());
        let sequences = Sequences::new(set.train()?.clone(), Arc::new(tokenizer), &SequenceConfig::lines(32))?;
        let n = sequences.len();
        let transform = if task == Task::Caption { Some(transform(3)?) } else { None };
        Loader::sequences(sequences, transform, config(n))?
    };
    let (mut examples, mut begin) = (0, Instant::now());
    for batch in 0.. {
        let next = loader.next().ok_or("no more batches")??;
        if batch == 8 {
            (examples, begin) = (0, Instant::now()); // caches and queues are warm
        }
        examples += next.indices.len();
        loader.recycle(next);
        if batch > 8 && begin.elapsed().as_secs() >= 6 {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:.0} examples/s at {size}x{size}, {} skipped", examples as f64 / seconds, loader.skipped().count());
    Ok(())
}
