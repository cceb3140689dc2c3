//! One process that runs inputs of a target, and the watch over it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use tweedie_fuzz::mutate::mutate;
use tweedie_fuzz::{Scratch, Target};

use crate::{Arguments, chosen};

/// Something that must not happen.
pub struct Finding {
    /// "panic", "abort", "hang" or "blow-up".
    pub kind: &'static str,
    /// What was said.
    pub message: String,
}

/// How a process ended.
pub struct Ended {
    /// The input that it was at.
    pub at: u64,
    pub finding: Option<Finding>,
    /// The longest that an input took.
    pub slowest: Duration,
    /// The most memory, in KiB.
    pub memory: u64,
}

/// Exit codes by which a process tells what stopped it.
const PANIC: i32 = 101;
const BLOW_UP: i32 = 102;

/// In the process: run the inputs from `from` on, a line before each with its number and the most memory so far.
pub fn run(args: &Arguments, from: u64) -> Result<(), String> {
    let target = chosen(args)?[0];
    let seeds = target.inputs().map_err(|e| e.to_string())?;
    let scratch = Scratch::new().map_err(|e| e.to_string())?;
    let mut out = std::io::stdout();
    for i in from..args.inputs {
        let bytes = mutate(&seeds, args.seed, i);
        writeln!(out, "{i} {}", peak()).and_then(|()| out.flush()).map_err(|e| e.to_string())?;
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (target.run)(&scratch, &bytes)));
        if done.is_err() {
            drop(scratch); // leaving does not
            std::process::exit(PANIC);
        }
        if peak() >> 10 > args.memory {
            drop(scratch);
            std::process::exit(BLOW_UP);
        }
    }
    writeln!(out, "{} {}", args.inputs, peak()).map_err(|e| e.to_string())
}

/// The most memory that this process had at a time, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |line: &str| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok();
    status.lines().find_map(kib).unwrap_or(0)
}

/// Start a process on the inputs from `from` up to `to`, and watch it to its end.
pub fn start(args: &Arguments, target: &Target, from: u64, to: u64) -> Result<Ended, String> {
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    // What asks for more than twice the limit at once is refused by the system, and ends the process.
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", (args.memory << 10) * 2);
    let mut child = Command::new("sh")
        .args(["-c", &limited])
        .arg(own)
        .args(["--target", target.name, "--seed", &args.seed.to_string(), "--inputs", &to.to_string()])
        .args(["--memory", &args.memory.to_string(), "--worker", &from.to_string()])
        .env("RAYON_NUM_THREADS", "2")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let ended = watch(&mut child, from, Duration::from_secs(args.seconds));
    let _ = child.kill();
    let status = child.wait().map_err(|e| e.to_string())?;
    let mut ended = ended?;
    if ended.finding.is_none() && ended.at < to {
        let kind = match status.code() {
            Some(PANIC) => "panic",
            Some(BLOW_UP) => "blow-up",
            Some(2) => return Err(format!("{} could not run; see above", target.name)),
            _ => "abort",
        };
        let mut message = String::new();
        let _ = child.stderr.take().map(|mut e| e.read_to_string(&mut message));
        let words: Vec<&str> = message.lines().filter(|l| !l.trim().is_empty()).take(3).collect();
        ended.finding = Some(Finding { kind, message: format!("{status}: {}", words.join(" ")) });
    }
    Ok(ended)
}

fn watch(child: &mut Child, from: u64, patience: Duration) -> Result<Ended, String> {
    let out = child.stdout.take().ok_or("no pipe")?;
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let mut words = line.split(' ').map(|w| w.parse::<u64>().unwrap_or(0));
            let said = (words.next().unwrap_or(0), words.next().unwrap_or(0));
            if tell.send(said).is_err() {
                return;
            }
        }
    });
    let mut ended = Ended { at: from, finding: None, slowest: Duration::ZERO, memory: 0 };
    let mut since = Instant::now();
    loop {
        match told.recv_timeout(patience) {
            Ok((at, memory)) => {
                if at > from {
                    ended.slowest = ended.slowest.max(since.elapsed());
                }
                since = Instant::now();
                (ended.at, ended.memory) = (at, memory);
            }
            Err(RecvTimeoutError::Timeout) => {
                let message = format!("nothing for {} s", patience.as_secs());
                ended.finding = Some(Finding { kind: "hang", message });
                return Ok(ended);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(ended),
        }
    }
}
