//! The `tweedie` command: reads arguments, runs one command, maps its failure to an exit code.

mod commands;
mod failure;
mod report;
mod shared;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{bench, init, inspect, measure, predict, quickstart, reproduce, train};
use failure::{Failure, Result};

/// Train, sample, measure and show Tweedie Discrete Diffusion models.
#[derive(Parser)]
#[command(name = "tweedie", version, disable_help_subcommand = true, subcommand_required = true)]
struct Cli {
    /// CPU threads (default: all)
    #[arg(long, global = true, value_name = "N", value_parser = shared::numbers::whole(1..=1024))]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train TDD and its masked twin on embedded digits or scenes, compare them and draw the figures
    Quickstart(quickstart::Args),
    /// Look at your data and this machine, and write a recipe that fits both and a time
    Init(init::Args),
    /// Train a model by a recipe, or on data for which one is made
    Train(train::Args),
    /// Measure a trained model over sampling steps and guidance: accuracy, caption scores, bits per character
    Eval(measure::eval::Args),
    /// Say what is on images
    Classify(predict::classify::Args),
    /// Say in words what is on images
    Caption(predict::caption::Args),
    /// Write text
    Generate(predict::generate::Args),
    /// Watch a prediction come about, step by step
    Trace(predict::trace::Args),
    /// Make tables and figures of the paper again: train what is missing, measure, write a report
    Reproduce(reproduce::Args),
    /// Score captions: BLEU, ROUGE-L, CIDEr-D, diversity, CLIPScore
    Score(measure::score::Args),
    /// Look at data
    #[command(subcommand)]
    Data(Data),
    /// Train and look at tokenizers
    #[command(subcommand)]
    Tokenizer(inspect::tokenizer::Command),
    /// Look at settings
    #[command(subcommand)]
    Config(Settings),
    /// Print completions for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Show what was found to compute on, what was not, and why
    Devices(inspect::devices::Args),
    /// Check every op on a device: a GPU against the CPU, the CPU against finite differences
    Selftest(inspect::selftest::Args),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Data {
    /// What would be trained on: format, splits, classes
    Inspect(inspect::data::Args),
}

#[derive(Subcommand)]
enum Settings {
    /// A recipe with everything resolved
    Show(inspect::config::Args),
}

#[derive(Subcommand)]
enum Bench {
    /// Time training steps of a model on made-up data, beside their products alone
    Train(bench::model::TrainArgs),
    /// Time sampling with a model on made-up data
    Sample(bench::model::SampleArgs),
    /// Time reading, decoding and augmenting of a data set
    Data(bench::data::Args),
    /// How time and memory grow with batch, image, vocabulary, sequence length and steps
    Growth(bench::growth::Args),
    /// Time single ops beside the device's own ceilings, measured in the same run
    Ops(bench::ops::Args),
}

fn run(cli: Cli) -> Result<()> {
    tweedie_engine::cpu::set_threads(cli.threads.unwrap_or(0))?;
    match cli.command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Eval(args) => measure::eval::run(&args),
        Command::Classify(args) => predict::classify::run(&args),
        Command::Caption(args) => predict::caption::run(&args),
        Command::Generate(args) => predict::generate::run(&args),
        Command::Trace(args) => predict::trace::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Score(args) => measure::score::run(&args),
        Command::Data(Data::Inspect(args)) => inspect::data::run(&args),
        Command::Tokenizer(command) => inspect::tokenizer::run(&command),
        Command::Config(Settings::Show(args)) => inspect::config::run(&args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tweedie", &mut text);
            report::print(&String::from_utf8_lossy(&text))
        }
        Command::Devices(args) => inspect::devices::run(&args),
        Command::Selftest(args) => inspect::selftest::run(&args),
        Command::Bench(Bench::Train(args)) => bench::model::train(&args),
        Command::Bench(Bench::Sample(args)) => bench::model::sample(&args),
        Command::Bench(Bench::Data(args)) => bench::data::run(&args),
        Command::Bench(Bench::Growth(args)) => bench::growth::run(&args),
        Command::Bench(Bench::Ops(args)) => bench::ops::run(&args),
    }
}

fn main() -> ExitCode {
    tweedie::settings::on_note(|note| report::note(&format!("note: {note}")));
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
