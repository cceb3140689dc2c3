//! `tweedie man`: the manual page of a command, or all of them as files.

use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use tweedie::files::write_atomic;

use crate::failure::{Failure, Result};
use crate::report::{self, note};

#[derive(clap::Args)]
pub struct Args {
    /// The command, such as `train` or `runs compare`
    command: Vec<String>,
    /// Write all pages into this folder instead, one for each command
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Print one page, or write all of `program`.
pub fn run(args: &Args, program: Command) -> Result<()> {
    let mut program = program.disable_help_subcommand(true);
    program.build(); // gives each command the name of its page: tweedie-runs-compare
    if let Some(dir) = &args.out {
        std::fs::create_dir_all(dir).map_err(|e| tweedie::Error::file(dir, e))?;
        let written = write_all(&program, dir)?;
        note(&format!("wrote {written} pages into {}", dir.display()));
        return Ok(());
    }
    let mut command = &program;
    for name in &args.command {
        command = command.find_subcommand(name).ok_or_else(|| {
            Failure::input(format!("{} has no command '{name}'", page_name(command).replace('-', " ")))
                .hint("tweedie help")
        })?;
    }
    report::print(&String::from_utf8_lossy(&page(command)?))
}

fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let source = format!("tweedie {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).manual("tweedie").source(source).render(&mut text)?;
    Ok(text)
}

fn write_all(command: &Command, dir: &Path) -> Result<usize> {
    write_atomic(&dir.join(format!("{}.1", page_name(command))), &page(command)?)?;
    let mut below = command.get_subcommands().filter(|c| !c.is_hide_set());
    below.try_fold(1, |n, c| Ok(n + write_all(c, dir)?))
}
