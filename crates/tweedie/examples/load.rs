//! How fast a data set becomes training batches: `cargo run --release --example load -- PATH [SIZE] [THREADS] [RECIPE]`
//! with recipe `imagenet` (default), `light` or `eval`.

use std::time::Instant;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{self, Loader, LoaderConfig, OpenOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("usage: load PATH [SIZE] [THREADS] [RECIPE]")?;
    let size = args.get(1).map_or(Ok(224), |s| s.parse())?;
    let threads = args.get(2).map_or(Ok(0), |s| s.parse())?;
    let recipe = args.get(3).map_or("imagenet", String::as_str);
    let begin = Instant::now();
    let set = data::open(path, &OpenOptions::default())?;
    println!("{set:?}, validation: {}, opened in {:.2?}", set.val_origin, begin.elapsed());
    set.notes.iter().for_each(|n| println!("note: {n}"));
    let config = if recipe == "light" { AugmentConfig::light() } else { AugmentConfig::imagenet() };
    let transform = match recipe {
        "eval" => Transform::eval(&config, size, set.channels)?,
        _ => Transform::train(&config, size, set.channels)?,
    };
    let source = set.train()?.clone();
    let config = LoaderConfig { threads, ..LoaderConfig::train(64.min(source.len()), 0) };
    let mut loader = Loader::new(source, transform, config)?;
    let (mut images, mut begin) = (0, Instant::now());
    for batch in 0.. {
        let next = loader.next().ok_or("no more batches")??;
        if batch == 8 {
            (images, begin) = (0, Instant::now()); // caches and queues are warm
        }
        images += next.labels.len();
        loader.recycle(next);
        if batch > 8 && begin.elapsed().as_secs() >= 6 {
            break;
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!("{:.0} images/s at {size}x{size}, {} skipped", images as f64 / seconds, loader.skipped().count());
    Ok(())
}
