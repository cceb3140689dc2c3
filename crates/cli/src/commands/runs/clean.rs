//! `tweedie runs clean`: what can go without being missed, and after `--yes` it goes.

use std::path::PathBuf;

use serde::Serialize;
use tweedie::runs::{Removal, Standing};

use super::{bytes, find};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note};

#[derive(clap::Args)]
pub struct Args {
    /// Folder with runs in it
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// Do it
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Cleaned {
    removed: bool,
    bytes: u64,
    paths: Vec<Removal>,
}

pub fn run(args: &Args) -> Result<()> {
    let found = find(&args.folder)?;
    for r in found.iter().filter(|r| r.state == Standing::Running) {
        note(&format!("note: {} is being trained and stays as it is", r.path.display()));
    }
    let mut paths = Vec::new();
    for r in &found {
        paths.extend(Removal::all_of(r)?);
    }
    if args.yes {
        for p in &paths {
            p.carry_out().map_err(|e| Failure::from(e).cause(format!("{} was not removed", p.path.display())))?;
        }
    }
    let cleaned = Cleaned { removed: args.yes && !paths.is_empty(), bytes: paths.iter().map(|p| p.bytes).sum(), paths };
    if args.json {
        return report::print_json(&cleaned);
    }
    if cleaned.paths.is_empty() {
        return report::print("nothing to remove: every run has its best and its last checkpoint and no other\n");
    }
    let mut table = Table::new(&[("what", Align::Left), ("why", Align::Left), ("size", Align::Right)]);
    for p in &cleaned.paths {
        table.row(vec![p.path.display().to_string(), p.why.into(), bytes(p.bytes)]);
    }
    let end = match args.yes {
        true => format!("removed: {} freed\n", bytes(cleaned.bytes)),
        false => format!(
            "{} would be freed; nothing was removed: do it with: tweedie runs clean {} --yes\n",
            bytes(cleaned.bytes),
            args.folder.display()
        ),
    };
    report::print(&format!("{}\n{end}", table.shown()))
}
