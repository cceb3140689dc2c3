//! `tweedie config show`: the settings of a recipe, resolved, and where each came from.

use serde::Serialize;
use tweedie::settings::{self, Origin};

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

/// A setting that is not at its default.
#[derive(Serialize)]
struct Changed<'a> {
    key: &'a str,
    /// As TOML, like the default.
    value: &'a str,
    default: &'a str,
    source: String,
}

impl<'a> Changed<'a> {
    fn new(o: &'a Origin) -> Changed<'a> {
        Changed { key: &o.key, value: &o.value, default: &o.default, source: o.source.to_string() }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let (config, origins) = recipe::resolve(&args.recipe, &args.sets, &[])?;
    if args.changed && args.json {
        let changed: Vec<Changed> = origins.iter().map(Changed::new).collect();
        return report::print_json(&changed);
    }
    if args.changed {
        let lines: Vec<String> = origins
            .iter()
            .map(|o| format!("{} = {}  # {}; default {}\n", o.key, o.value, o.source, o.default))
            .collect();
        return report::print(&lines.concat());
    }
    if args.json { report::print_json(&config) } else { report::print(&settings::to_toml(&config)?) }
}
