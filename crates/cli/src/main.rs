//! The `tweedie` command: reads arguments, runs one command, maps its failure to an exit code.

mod commands;
mod failure;
mod recipe;
mod report;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{
    bench_data, bench_growth, bench_model, bench_ops, caption, classify, config_show, data_inspect, devices, eval,
    generate, quickstart, reproduce, score, selftest, tokenizer, trace, train,
};
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
    /// Train TDD and its masked twin on embedded digits or scenes, compare them and draw the figures
    Quickstart(quickstart::Args),
    /// Train a model by a recipe
    Train(train::Args),
    /// Measure a trained model over sampling steps and guidance: accuracy, caption scores, bits per character
    Eval(eval::Args),
    /// Say what is on images
    Classify(classify::Args),
    /// Say in words what is on images
    Caption(caption::Args),
    /// Write text
    Generate(generate::Args),
    /// Watch a prediction come about, step by step
    Trace(trace::Args),
    /// Make tables and figures of the paper again: train what is missing, measure, write a report
    Reproduce(reproduce::Args),
    /// Score captions: BLEU, ROUGE-L, CIDEr-D, diversity, CLIPScore
    Score(score::Args),
    /// Look at data
    #[command(subcommand)]
    Data(Data),
    /// Train and look at tokenizers
    #[command(subcommand)]
    Tokenizer(tokenizer::Command),
    /// Look at settings
    #[command(subcommand)]
    Config(Settings),
    /// Print completions for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Show what was found to compute on, what was not, and why
    Devices(devices::Args),
    /// Check every op on a device: a GPU against the CPU, the CPU against finite differences
    Selftest(selftest::Args),
    /// Measure speed
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Data {
    /// What would be trained on: format, splits, classes
    Inspect(data_inspect::Args),
}

#[derive(Subcommand)]
enum Settings {
    /// A recipe with everything resolved
    Show(config_show::Args),
}

#[derive(Subcommand)]
enum Bench {
    /// Time training steps of a model on made-up data, beside their products alone
    Train(bench_model::TrainArgs),
    /// Time sampling with a model on made-up data
    Sample(bench_model::SampleArgs),
    /// Time reading, decoding and augmenting of a data set
    Data(bench_data::Args),
    /// How time and memory grow with batch, image, vocabulary, sequence length and steps
    Growth(bench_growth::Args),
    /// Time single ops beside the device's own ceilings, measured in the same run
    Ops(bench_ops::Args),
}

fn run(cli: Cli) -> Result<()> {
    tweedie_engine::cpu::set_threads(cli.threads.map_or(0, |n| n.get()))?;
    match cli.command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Classify(args) => classify::run(&args),
        Command::Caption(args) => caption::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Data(Data::Inspect(args)) => data_inspect::run(&args),
        Command::Tokenizer(command) => tokenizer::run(&command),
        Command::Config(Settings::Show(args)) => config_show::run(&args),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tweedie", &mut text);
            report::print(&String::from_utf8_lossy(&text))
        }
        Command::Devices(args) => devices::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Bench(Bench::Train(args)) => bench_model::train(&args),
        Command::Bench(Bench::Sample(args)) => bench_model::sample(&args),
        Command::Bench(Bench::Data(args)) => bench_data::run(&args),
        Command::Bench(Bench::Growth(args)) => bench_growth::run(&args),
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
