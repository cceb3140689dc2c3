//! Completions that know recipes, settings and runs: the shell asks the program itself while one types.

use std::ffi::OsStr;
use std::path::Path;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};
use tweedie::embedded::{self, Embedded};
use tweedie::recipe::RECIPES;
use tweedie::runs;

use crate::commands::inspect::explain;
use crate::failure::{Failure, Result};
use crate::report;

/// The variable by which a shell asks.
const VARIABLE: &str = "_TWEEDIE_COMPLETE";

#[derive(clap::Args)]
pub struct Args {
    /// Which shell
    #[arg(value_parser = ["bash", "zsh", "fish", "elvish", "powershell"])]
    shell: String,
}

/// Answer a shell that asks for completions, and end there; otherwise do nothing.
pub fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(move || informed(command())).var(VARIABLE).complete();
}

/// Print what a shell must be told once.
pub fn run(args: &Args) -> Result<()> {
    let shells = Shells::builtins();
    let shell =
        shells.completer(&args.shell).ok_or_else(|| Failure::ours(format!("no completions for {}", args.shell)))?;
    let mut text = Vec::new();
    shell.write_registration(VARIABLE, "tweedie", "tweedie", "tweedie", &mut text)?;
    report::print(&String::from_utf8_lossy(&text))
}

/// The command and all below it, with what is known about the values of their arguments.
fn informed(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|s| s.get_name().to_string()).collect();
    let command = names.into_iter().fold(command, |c, name| c.mut_subcommand(name, informed));
    command.mut_args(|arg: Arg| match arg.get_id().as_str() {
        "recipe" => arg.add(ArgValueCompleter::new(recipes)),
        "run" => arg.add(ArgValueCompleter::new(models)),
        "runs" | "resume" | "init_from" => arg.add(ArgValueCompleter::new(runs_like)),
        "sets" | "class_sets" | "caption_sets" => arg.add(ArgValueCompleter::new(assignments)),
        "key" => arg.add(ArgValueCompleter::new(keys)),
        "device" => arg.add(ArgValueCompleter::new(devices)),
        _ => arg,
    })
}

fn begins(typed: &OsStr, name: &str) -> bool {
    typed.to_str().is_some_and(|t| name.starts_with(t))
}

fn recipes(typed: &OsStr) -> Vec<CompletionCandidate> {
    let named = RECIPES.iter().filter(|r| begins(typed, r.name));
    let named = named.map(|r| CompletionCandidate::new(r.name).help(Some(r.about.into())));
    let is_toml = |p: &Path| p.extension().is_some_and(|e| e == "toml");
    named.chain(PathCompleter::file().filter(is_toml).complete(typed)).collect()
}

/// Runs below `runs`, and folders.
fn runs_like(typed: &OsStr) -> Vec<CompletionCandidate> {
    let found = runs::folders(Path::new("runs")).unwrap_or_default();
    let names = found.iter().filter_map(|p| p.to_str()).filter(|p| begins(typed, p));
    let mut all: Vec<CompletionCandidate> = names.map(CompletionCandidate::new).collect();
    if all.is_empty() {
        all = PathCompleter::dir().complete(typed);
    }
    all
}

/// Runs, and models that come with the program.
fn models(typed: &OsStr) -> Vec<CompletionCandidate> {
    let path = |m: &Embedded| format!("{}{}", embedded::PREFIX, m.name);
    let fits = embedded::all().iter().filter(|m| begins(typed, &path(m)));
    let inside = fits.map(|m| CompletionCandidate::new(path(m)).help(Some(m.about.into())));
    runs_like(typed).into_iter().chain(inside).collect()
}

fn keys(typed: &OsStr) -> Vec<CompletionCandidate> {
    let all = explain::settings();
    let fits = all.iter().filter(|s| begins(typed, &s.key));
    fits.map(|s| CompletionCandidate::new(&s.key).help(Some(s.what.clone().into()))).collect()
}

/// Keys of settings with an equals sign behind them.
fn assignments(typed: &OsStr) -> Vec<CompletionCandidate> {
    let all = explain::settings();
    let fits = all.iter().filter(|s| begins(typed, &s.key));
    fits.map(|s| CompletionCandidate::new(format!("{}=", s.key)).help(Some(s.what.clone().into()))).collect()
}

fn devices(typed: &OsStr) -> Vec<CompletionCandidate> {
    ["auto", "cpu", "cuda"].into_iter().filter(|d| begins(typed, d)).map(CompletionCandidate::new).collect()
}
