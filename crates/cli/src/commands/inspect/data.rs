//! `tweedie data inspect`: what would be trained on.

mod plan;
mod sequences;

use serde::Serialize;
use tweedie::config::{Config, DataConfig};
use tweedie::data::{Source, Task};
use tweedie::train::open_classes;

use crate::failure::Result;
use crate::report::{self, Align, Bar, Progress, Table};
use crate::shared::numbers;
use crate::shared::sequence_args::SequenceArgs;

#[derive(clap::Args)]
pub struct Args {
    /// Folder or file, or embedded:digits, embedded:shapes
    path: String,
    /// A file with one class name per line
    #[arg(long, value_name = "FILE")]
    classes: Option<String>,
    /// Try to read every image and report those that cannot be
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    sequence: SequenceArgs,
    /// Captions and text: chars, word:N, space:N, bpe:N, wordpiece:N or a tokenizer.json
    #[arg(long, value_name = "T")]
    tokenizer: Option<String>,
    /// Captions and text: tokens of a sequence (default: 32, for text 256)
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    tokens: Option<usize>,
    /// Show instead which files each of so many ranks would read in training
    #[arg(long, value_name = "RANKS", value_parser = numbers::whole(1..=1 << 16))]
    plan: Option<usize>,
    /// With --plan: the epoch
    #[arg(long, value_name = "N", default_value_t = 0, requires = "plan")]
    epoch: u32,
    /// With --plan: recipe or TOML file of the training
    #[arg(long, requires = "plan")]
    recipe: Option<String>,
    /// With --plan: change a setting, as train.batch or data.lanes (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "plan")]
    sets: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Split {
    name: &'static str,
    images: usize,
    per_class: Vec<usize>,
    first_size: Option<[usize; 3]>,
    unreadable: Vec<String>,
}

#[derive(Serialize)]
struct Found {
    name: String,
    format: String,
    classes: Vec<String>,
    channels: usize,
    validation: String,
    splits: Vec<Split>,
    notes: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let task = args.sequence.task_of(&args.path)?;
    if task != Task::Class {
        return sequences::run(args, task);
    }
    let config = plan::settings(args)?;
    let data = DataConfig {
        image_column: args.sequence.image_column.clone().unwrap_or_default(),
        path: args.path.clone(),
        classes: args.classes.clone().unwrap_or_default(),
        task,
        ..config.data
    };
    let progress = Progress::new();
    progress.tick(&format!("looking at {}", args.path));
    let config = Config { data, ..config };
    let d = open_classes(&config)?;
    drop(progress);
    if let Some(ranks) = args.plan {
        return plan::of_classes(args, &config, &d, ranks);
    }
    let split = |name: &'static str, s: &Option<Source>| {
        s.as_ref().map(|s| {
            let first = s.get(0).ok().map(|i| [i.image.width, i.image.height, i.image.channels]);
            let check = if args.all { s.len() } else { 0 };
            let bar = args.all.then(|| Bar::new(name));
            let unreadable = (0..check)
                .inspect(|i| bar.iter().filter(|_| i % 16 == 0).for_each(|b| b.at(*i, check)))
                .filter_map(|i| s.get(i).err())
                .map(|e| e.to_string())
                .collect();
            Split { name, images: s.len(), per_class: d.class_counts(s), first_size: first, unreadable }
        })
    };
    let splits =
        [split("train", &d.train), split("validation", &d.val), split("test", &d.test)].into_iter().flatten().collect();
    let found = Found {
        name: d.name.clone(),
        format: d.format.to_string(),
        classes: d.class_names.clone(),
        channels: d.channels,
        validation: d.val_origin.clone(),
        splits,
        notes: d.notes.clone(),
    };
    if args.json { report::print_json(&found) } else { report::print_words(&text(&found, args.all)) }
}

fn text(f: &Found, all: bool) -> String {
    let mut columns = vec![("class", Align::Left)];
    columns.extend(f.splits.iter().map(|s| (s.name, Align::Right)));
    let mut table = Table::new(&columns);
    const SHOWN: usize = 20;
    for (c, name) in f.classes.iter().enumerate().take(SHOWN) {
        table.row(std::iter::once(name.clone()).chain(f.splits.iter().map(|s| s.per_class[c].to_string())).collect());
    }
    let mut out = format!(
        "{} ({}), {} classes, {}; validation: {}\n",
        f.name,
        f.format,
        f.classes.len(),
        if f.channels == 1 { "grey" } else { "colour" },
        f.validation
    );
    for s in &f.splits {
        let size = s.first_size.map_or("the first is unreadable".into(), |[w, h, _]| format!("the first is {w}×{h}"));
        out += &format!("{}: {} images, {size}\n", s.name, s.images);
        s.unreadable.iter().for_each(|u| out += &format!("  {u}\n"));
        if all {
            out += &format!("  {} unreadable\n", s.unreadable.len());
        }
    }
    f.notes.iter().for_each(|n| out += &format!("note: {n}\n"));
    out += &format!("\n{}", table.shown());
    if f.classes.len() > SHOWN {
        out += &format!("and {} more classes\n", f.classes.len() - SHOWN);
    }
    out
}
