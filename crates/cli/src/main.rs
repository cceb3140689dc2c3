//! The `tweedie` command: reads arguments, runs one command, maps its failure to an exit code.

mod commands;
mod failure;
mod report;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{bench_ops, devices, selftest};
use failure::{Failure, Result};

/// Train, sample, measure and show Tweedie Discrete Diffusion models.
#[derive(Parser)]
#[command(name = "tweedie", version, disable_help_subcommand = true, subcommand_required = true)]
struct Cli {
    /// CPU threads (default: all)
    #[arg(long, global = true, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show what was found to compute on, what was not, and why
    Devices(devices::Args),
    /// Check every op on a device: a GPU against the CPU, the CPU against finite differences
    Selftest(selftest::Args),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Bench {
    /// Time single ops beside the device's own ceilings, measured in the same run
    Ops(bench_ops::Args),
}

fn run(cli: Cli) -> Result<()> {
    if let Some(n) = cli.threads {
        tweedie_engine::cpu::set_threads(n.get())?;
    }
    match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Bench(Bench::Ops(args)) => bench_ops::run(&args),
    }
}

fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => run(cli),
        Err(e) if !e.use_stderr() => report::print(&e.to_string()), // --help and --version
        Err(e) => Err(Failure::from(e)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.show(),
    }
}
