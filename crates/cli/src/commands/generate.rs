//! `tweedie generate`: text by a model that is told nothing else.

use std::path::PathBuf;

use tweedie::config::Precision;
use tweedie::data::Task;
use tweedie::run::{self, Weights};
use tweedie::sample::Generator;

use super::caption::lines;
use super::train::note;
use super::writing::WritingArgs;
use crate::failure::{Failure, Result};
use crate::report;

#[derive(clap::Args)]
pub struct Args {
    /// Run folder, or one checkpoint in it
    run: PathBuf,
    /// How many texts
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// How every text begins
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
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

pub fn run(args: &Args) -> Result<()> {
    let choice = report::open_device(&args.device)?;
    let weights = if args.raw { Weights::Raw } else { Weights::Ema };
    let loaded = run::load(&args.run, weights, &choice.device, Precision::Auto)?;
    loaded.notes.iter().for_each(|n| note(n));
    let name = args.run.display();
    let what = match loaded.config.data.task {
        Task::Text => None,
        Task::Caption => Some("caption"),
        Task::Class => Some("classify"),
    };
    if let Some(command) = what {
        return Err(Failure::input(format!("{name}: this model looks at images"))
            .hint(format!("tweedie {command} {name} IMAGE")));
    }
    let sample = args.writing.sample(&loaded.config.sample, false)?;
    let given = args.writing.given(&loaded, args.prompt.as_deref())?;
    let t = &loaded.trained;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, &sample)?;
    let mut all = Vec::new();
    for i in 0..args.number {
        let written = args.writing.write(&loaded, (&generator, &sample), None, i, given.as_deref())?;
        if !args.json {
            report::print(&format!("{}\n\n", lines(&written)))?;
        }
        all.push(written);
    }
    if args.json { report::print_json(&all) } else { Ok(()) }
}
