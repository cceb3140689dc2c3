//! `tweedie config show`: the settings of a recipe, resolved, and where each came from.

use tweedie::settings;

use crate::failure::Result;
use crate::report;
use crate::shared::recipe;

#[derive(clap::Args)]
pub struct Args {
    /// Recipe or TOML file
    recipe: String,
    /// Change a setting (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Only what differs from the defaults, with its origin
    #[arg(long)]
    changed: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let (config, origins) = recipe::resolve(&args.recipe, &args.sets, &[])?;
    if args.changed {
        let lines: Vec<String> = origins
            .iter()
            .map(|o| format!("{} = {}  # {}; default {}\n", o.key, o.value, o.source, o.default))
            .collect();
        return report::print(&lines.concat());
    }
    if args.json { report::print_json(&config) } else { report::print(&settings::to_toml(&config)?) }
}
