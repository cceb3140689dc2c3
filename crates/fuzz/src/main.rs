//! `attack`: spoils good files by the thousand, hands them to every parser, and counts what breaks.
//!
//! Each target runs in a process of its own whose memory is limited; it says which input it is at before it begins with it. One that
//! ends, or says nothing for too long, is a finding: the input is kept, and the next process goes on behind it.

mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Parser;
use tweedie_fuzz::mutate::mutate;
use tweedie_fuzz::{TARGETS, Target};
use worker::{Ended, Finding};

/// Hand spoilt files to every parser, and count panics, aborts, hangs and blow-ups.
#[derive(Clone, Parser)]
struct Arguments {
    /// Inputs in all, shared by the targets.
    #[arg(long, default_value_t = 50_000)]
    inputs: u64,
    /// Which inputs: another number gives others.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
    /// Processes at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Seconds after which an input counts as a hang.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Memory, in MiB, above which an input counts as a blow-up.
    #[arg(long, default_value_t = 2048)]
    memory: u64,
    /// Where inputs that broke something are kept.
    #[arg(long, default_value = "target/attack")]
    out: PathBuf,
    /// Run the inputs from this one on in this process (what the command starts for itself).
    #[arg(long, hide = true)]
    worker: Option<u64>,
    /// Only write the inputs that the target begins with into this folder.
    #[arg(long, requires = "target")]
    write_inputs: Option<PathBuf>,
    /// Give one file to the target in this process.
    #[arg(long, requires = "target")]
    file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Arguments::parse();
    let result = match &args {
        Arguments { worker: Some(from), .. } => worker::run(&args, *from).map(|()| true),
        Arguments { file: Some(file), .. } => one(&args, file).map(|()| true),
        Arguments { write_inputs: Some(folder), .. } => write_inputs(&args, folder).map(|()| true),
        _ => attack(&args),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

/// The targets that were asked for.
fn chosen(args: &Arguments) -> Result<Vec<&'static Target>, String> {
    let Some(name) = &args.target else { return Ok(TARGETS.iter().collect()) };
    let all = || TARGETS.iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
    Target::named(name).map(|t| vec![t]).ok_or_else(|| format!("no target '{name}'; there are {}", all()))
}

fn one(args: &Arguments, file: &Path) -> Result<(), String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let scratch = tweedie_fuzz::Scratch::new().map_err(|e| e.to_string())?;
    for target in chosen(args)? {
        println!("{}: {}", target.name, if (target.run)(&scratch, &bytes) { "read" } else { "refused" });
    }
    Ok(())
}

fn write_inputs(args: &Arguments, folder: &Path) -> Result<(), String> {
    for target in chosen(args)? {
        for (i, bytes) in target.inputs().map_err(|e| e.to_string())?.iter().enumerate() {
            let file = folder.join(format!("{}-{i:03}", target.name));
            std::fs::write(&file, bytes).map_err(|e| format!("{}: {e}", file.display()))?;
        }
    }
    Ok(())
}

/// What became of the inputs of one target.
#[derive(Default)]
struct Tally {
    inputs: u64,
    findings: BTreeMap<&'static str, usize>,
    slowest: Duration,
    memory: u64,
}

/// The inputs of one target: the `share` of them.
fn attack(args: &Arguments) -> Result<bool, String> {
    let targets = chosen(args)?;
    let share = args.inputs.div_ceil(targets.len() as u64);
    let (next, tallies) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|s| {
        let jobs: Vec<_> =
            (0..args.jobs.max(1)).map(|_| s.spawn(|| work(args, &targets, share, &next, &tallies))).collect();
        jobs.into_iter().try_for_each(|j| j.join().map_err(|_| "a thread ended".to_string())?)
    })?;
    let tallies = tallies.into_inner().map_err(|e| e.to_string())?;
    println!(
        "{:<18} {:>8} {:>7} {:>7} {:>6} {:>8} {:>9} {:>9}",
        "target", "inputs", "panics", "aborts", "hangs", "blow-ups", "slowest", "memory"
    );
    let mut sums = Tally::default();
    for (name, t) in &tallies {
        line(name, t);
        sums.inputs += t.inputs;
        t.findings.iter().for_each(|(k, n)| *sums.findings.entry(k).or_default() += n);
        sums.slowest = sums.slowest.max(t.slowest);
        sums.memory = sums.memory.max(t.memory);
    }
    line("all", &sums);
    Ok(sums.findings.values().sum::<usize>() == 0)
}

fn line(name: &str, t: &Tally) {
    let of = |kind| t.findings.get(kind).copied().unwrap_or(0);
    let (seconds, mib) = (t.slowest.as_secs_f64(), t.memory >> 10);
    println!(
        "{name:<18} {:>8} {:>7} {:>7} {:>6} {:>8} {seconds:>7.2} s {mib:>5} MiB",
        t.inputs,
        of("panic"),
        of("abort"),
        of("hang"),
        of("blow-up")
    );
}

/// Take targets until there is none left.
fn work<'a>(
    args: &Arguments,
    targets: &[&'a Target],
    share: u64,
    next: &AtomicUsize,
    tallies: &Mutex<BTreeMap<&'a str, Tally>>,
) -> Result<(), String> {
    while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
        let tally = of_target(args, target, share)?;
        eprintln!("{}: {} inputs, {} findings", target.name, tally.inputs, tally.findings.values().sum::<usize>());
        tallies.lock().map_err(|e| e.to_string())?.insert(target.name, tally);
    }
    Ok(())
}

/// Findings of one target after which it is left alone: it is broken.
const ENOUGH: usize = 40;

fn of_target(args: &Arguments, target: &Target, share: u64) -> Result<Tally, String> {
    let mut tally = Tally { inputs: share, ..Tally::default() };
    let seeds = target.inputs().map_err(|e| e.to_string())?;
    let mut from = 0;
    while from < share {
        let Ended { at, finding, slowest, memory } = worker::start(args, target, from, share)?;
        tally.slowest = tally.slowest.max(slowest);
        tally.memory = tally.memory.max(memory);
        let Some(Finding { kind, message }) = finding else { break };
        let file = args.out.join(format!("{}-{kind}-{}-{at}", target.name, args.seed));
        std::fs::create_dir_all(&args.out)
            .and_then(|()| std::fs::write(&file, mutate(&seeds, args.seed, at)))
            .map_err(|e| e.to_string())?;
        eprintln!("{kind}: {} ({})", file.display(), message.trim());
        let count = tally.findings.entry(kind).or_default();
        *count += 1;
        if *count >= ENOUGH {
            eprintln!("{}: too many to go on with it", target.name);
            tally.inputs = at + 1;
            break;
        }
        from = at + 1;
    }
    Ok(tally)
}
