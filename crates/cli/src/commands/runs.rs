//! `tweedie runs`: what was trained here, how runs compare, and what of them can go.

mod clean;
mod compare;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use console::Term;
use tweedie::data::Task;
use tweedie::runs::{self, Summary};

use crate::failure::{Failure, Result};
use crate::report::size as bytes;
use crate::report::{self, Align, Table, note};

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: List,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Metrics of several runs side by side, the settings that differ, and their curves as a figure
    Compare(compare::Args),
    /// Remove checkpoints that are neither best nor last, and runs without any; only says what without --yes
    Clean(clean::Args),
}

#[derive(clap::Args)]
struct List {
    /// Folder with runs in it
    #[arg(default_value = "runs")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Some(Command::Compare(args)) => compare::run(args),
        Some(Command::Clean(args)) => clean::run(args),
        None => list(&args.list),
    }
}

/// The runs of a folder; those that cannot be read are told.
fn find(folder: &Path) -> Result<Vec<Summary>> {
    if !folder.is_dir() {
        return Err(Failure::input(format!("{}: there is no such folder", folder.display()))
            .hint("tweedie runs FOLDER, or train a first run: tweedie train digits"));
    }
    let (found, unread) = runs::find(folder)?;
    unread.iter().for_each(|(path, e)| note(&format!("note: {} cannot be read: {e}", path.display())));
    Ok(found)
}

fn list(args: &List) -> Result<()> {
    let found = find(&args.folder)?;
    if args.json {
        return report::print_json(&found);
    }
    if found.is_empty() {
        note(&format!("{} holds no runs; train one with: tweedie train digits", args.folder.display()));
        return Ok(());
    }
    let wide = if Term::stdout().is_term() { usize::from(Term::stdout().size().1) } else { usize::MAX };
    report::print(&table(&found, SystemTime::now(), wide))
}

/// A column: what it is called, which way it leans, and its text of a run.
type Column = (&'static str, Align, fn(&Summary, SystemTime) -> String);

const COLUMNS: [Column; 8] = [
    ("run", Align::Left, |r, _| r.name.clone()),
    ("task", Align::Left, |r, _| format!("{}, {}", task(r.task), method(r))),
    ("data", Align::Left, |r, _| data(r)),
    ("steps", Align::Right, |r, _| steps(r)),
    ("best", Align::Right, |r, _| best(r)),
    ("state", Align::Left, |r, _| r.state.to_string()),
    ("age", Align::Right, |r, now| age(now.duration_since(r.changed).map_or(0, |d| d.as_secs()))),
    ("size", Align::Right, |r, _| bytes(r.bytes)),
];
/// Columns that a narrow terminal does without, the first first.
const SPARED: [&str; 4] = ["data", "task", "size", "age"];

fn table(runs: &[Summary], now: SystemTime, wide: usize) -> String {
    let without = |spared: &[&str]| {
        let columns: Vec<&Column> = COLUMNS.iter().filter(|c| !spared.contains(&c.0)).collect();
        let mut table = Table::new(&columns.iter().map(|c| (c.0, c.1)).collect::<Vec<_>>());
        runs.iter().for_each(|r| table.row(columns.iter().map(|c| c.2(r, now)).collect()));
        table
    };
    let fits = |table: &Table| table.render().lines().all(|l| l.chars().count() <= wide);
    (0..SPARED.len()).map(|n| without(&SPARED[..n])).find(fits).unwrap_or_else(|| without(&SPARED)).shown()
}

fn task(task: Task) -> &'static str {
    match task {
        Task::Class => "class",
        Task::Caption => "caption",
        Task::Text => "text",
    }
}

/// "TDD" or "MDD".
fn method(r: &Summary) -> &'static str {
    match r.method {
        tweedie::config::Method::Tdd => "TDD",
        tweedie::config::Method::Mdd => "MDD",
    }
}

/// The end of the path to the data.
fn data(r: &Summary) -> String {
    let path = Path::new(&r.data);
    path.file_name().map_or_else(|| r.data.clone(), |n| n.to_string_lossy().into_owned())
}

fn steps(r: &Summary) -> String {
    match r.total_steps {
        Some(all) => format!("{} of {all}", r.step),
        None => r.step.to_string(),
    }
}

fn best(r: &Summary) -> String {
    match (&r.metric, r.best) {
        (Some(name), Some(value)) => format!("{name} {}", score(name, value)),
        _ => "–".into(),
    }
}

/// A value of a metric, as reports have it.
fn score(metric: &str, value: f64) -> String {
    if metric == tweedie::train::Metric::TOP1 { format!("{:.2} %", 100.0 * value) } else { format!("{value:.3}") }
}

/// Seconds since something as "40 s", "12 min", "3 h", "5 d".
fn age(seconds: u64) -> String {
    match seconds {
        s if s < 60 => format!("{s} s"),
        s if s < 3600 => format!("{} min", s / 60),
        s if s < 86_400 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        assert_eq!([5, 119, 7300, 200_000].map(age), ["5 s", "1 min", "2 h", "2 d"]);
    }
}
