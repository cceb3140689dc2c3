//! `tweedie generate`: text by a model that is told nothing else.

use tweedie::data::Task;

use super::caption::lines;
use super::writing::{Writer, WritingArgs};
use crate::failure::{Failure, Result};
use crate::report;
use crate::shared::model_args::ModelArgs;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// How many texts
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    number: u32,
    /// How every text begins
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    writing: WritingArgs,
}

pub fn run(args: &Args) -> Result<()> {
    let loaded = args.model.load()?;
    let name = args.model.run.display();
    let what = match loaded.config.data.task {
        Task::Text => None,
        Task::Caption => Some("caption"),
        Task::Class => Some("classify"),
    };
    if let Some(command) = what {
        return Err(Failure::input(format!("{name}: this model looks at images"))
            .hint(format!("tweedie {command} {name} IMAGE")));
    }
    let sample = args.writing.sample(&loaded)?;
    let mut writer = Writer::new(&args.writing, &args.model, &loaded, &sample, args.prompt.as_deref())?;
    let mut all = Vec::new();
    while all.len() < args.number as usize {
        let next = all.len() as u32;
        let ids: Vec<u32> = (next..args.number).take(writer.batch()).collect();
        let written = writer.write(None, &ids, None)?;
        if !args.model.json {
            written.iter().try_for_each(|w| report::print(&format!("{}\n\n", lines(w))))?;
        }
        all.extend(written);
    }
    if args.model.json { report::print_json(&all) } else { Ok(()) }
}
