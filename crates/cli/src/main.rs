//! The `tweedie` command: reads arguments, runs one command, maps its failure to an exit code.

mod commands;
mod completions;
mod failure;
mod man;
mod report;
mod shared;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use commands::{bench, export, init, inspect, measure, predict, quickstart, reproduce, runs, serve, train};
use failure::{Failure, Result};
use report::terminal::Level;

/// Train, sample, measure and show Tweedie Discrete Diffusion models.
#[derive(Parser)]
#[command(name = "tweedie", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "New here: tweedie quickstart (two minutes). More of a command: tweedie help COMMAND")]
struct Cli {
    /// CPU threads (default: all)
    #[arg(long, global = true, value_name = "N", value_parser = shared::numbers::whole(1..=1024))]
    threads: Option<usize>,
    /// Say only warnings, errors and the result
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Say more: every step, learning rate, gradient norm, waiting, the device
    #[arg(short, long, global = true)]
    verbose: bool,
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
    Eval(Box<measure::eval::Args>),
    /// Say what is on images
    Classify(predict::classify::Args),
    /// Say in words what is on images
    Caption(predict::caption::Args),
    /// Write text
    Generate(predict::generate::Args),
    /// Watch a prediction come about, step by step
    Trace(predict::trace::Args),
    /// Answer requests over HTTP, step by step, and show a page to play with
    Serve(serve::Args),
    /// Make tables and figures of the paper again: train what is missing, measure, write a report
    Reproduce(reproduce::Args),
    /// List runs, compare them, clean up
    Runs(runs::Args),
    /// Write a trained model as other programs read it
    Export(export::Args),
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
    /// Print what makes a shell complete commands, recipes, settings and runs
    Completions(completions::Args),
    /// Print the manual page of a command
    Man(man::Args),
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
    /// What a setting does, what it may be, and which recipes change it and why
    Explain(inspect::explain::Args),
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
    /// Time training steps over the ranks that it is started with (mpirun, torchrun, …), beside the same rows alone
    Scale(bench::model::ScaleArgs),
    /// A server under load by clients that read streams, beside one that works on one request at a time
    Serve(bench::serve::Args),
}

fn run(cli: Cli) -> Result<()> {
    report::terminal::set_level(match (cli.quiet, cli.verbose) {
        (true, _) => Level::Quiet,
        (_, true) => Level::Verbose,
        _ => Level::Normal,
    });
    tweedie_engine::cpu::set_threads(cli.threads.unwrap_or_else(shared::ranks::threads))?;
    if !matches!(cli.command, Command::Train(_) | Command::Selftest(_) | Command::Devices(_) | Command::Bench(_)) {
        shared::ranks::note_unused();
    }
    match cli.command {
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Eval(args) => measure::eval::run(&args),
        Command::Classify(args) => predict::classify::run(&args),
        Command::Caption(args) => predict::caption::run(&args),
        Command::Generate(args) => predict::generate::run(&args),
        Command::Trace(args) => predict::trace::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Reproduce(args) => reproduce::run(&args),
        Command::Runs(args) => runs::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Score(args) => measure::score::run(&args),
        Command::Data(Data::Inspect(args)) => inspect::data::run(&args),
        Command::Tokenizer(command) => inspect::tokenizer::run(&command),
        Command::Config(Settings::Show(args)) => inspect::config::run(&args),
        Command::Config(Settings::Explain(args)) => inspect::explain::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args, Cli::command()),
        Command::Devices(args) => inspect::devices::run(&args),
        Command::Selftest(args) => inspect::selftest::run(&args),
        Command::Bench(Bench::Train(args)) => bench::model::train(&args),
        Command::Bench(Bench::Sample(args)) => bench::model::sample(&args),
        Command::Bench(Bench::Data(args)) => bench::data::run(&args),
        Command::Bench(Bench::Growth(args)) => bench::growth::run(&args),
        Command::Bench(Bench::Ops(args)) => bench::ops::run(&args),
        Command::Bench(Bench::Scale(args)) => bench::model::scale(&args),
        Command::Bench(Bench::Serve(args)) => bench::serve::run(&args),
    }
}

fn main() -> ExitCode {
    completions::answer(Cli::command);
    tweedie::settings::on_note(|note| report::note(&format!("note: {note}")));
    let result = match Cli::try_parse() {
        Ok(cli) => run(cli),
        Err(e) if !e.use_stderr() => report::print(&e.to_string()), // --help and --version
        Err(_) if std::env::args_os().len() == 1 => report::print(&Cli::command().render_help().to_string()),
        Err(e) => Err(Failure::from(e)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.show(),
    }
}
