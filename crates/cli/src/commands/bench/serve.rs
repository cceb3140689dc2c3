//! `tweedie bench serve`: a server under load, by clients that read streams.

mod client;
mod overload;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use tweedie::Image;

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note};
use crate::shared::numbers;
use client::{End, Target};

/// How long a server may take to load its models.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(clap::Args)]
pub struct Args {
    /// What to serve: a run folder, a checkpoint or embedded:NAME
    #[arg(default_value = "embedded:digits", value_name = "RUN")]
    run: String,
    /// Use a server that is up, at this address (127.0.0.1:8080), instead of starting one; RUN is the model's name there
    #[arg(long, value_name = "ADDRESS")]
    at: Option<SocketAddr>,
    /// Key of that server
    #[arg(long, value_name = "KEY", requires = "at")]
    api_key: Option<String>,
    /// Clients at a time
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = numbers::whole(1..=1024))]
    clients: usize,
    /// How long to measure each
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = numbers::time)]
    seconds: Duration,
    /// Largest batch, beside which that of 1 is measured
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    max_batch: usize,
    /// Sampling steps (default: the model's own)
    #[arg(long, value_name = "S", value_parser = numbers::whole(1..=1000))]
    steps: Option<usize>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Ask for four times as much as the server can do, for this long, and check that it stands that
    #[arg(long, value_name = "TIME", value_parser = numbers::time)]
    overload: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Quantiles {
    fn of(mut all: Vec<f64>) -> Quantiles {
        all.sort_by(f64::total_cmp);
        let at = |q: f64| all.get(((all.len() as f64 * q) as usize).min(all.len().saturating_sub(1))).copied();
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|q| at(q).unwrap_or(f64::NAN));
        Quantiles { p50, p95, p99 }
    }
}

/// What some clients got.
#[derive(Debug, Serialize)]
pub struct Measured {
    max_batch: Option<usize>,
    clients: usize,
    answers: usize,
    per_second: f64,
    total_ms: Quantiles,
    first_step_ms: Quantiles,
    refused: usize,
    failed: usize,
}

/// A server that was started for this.
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(args: &Args, max_batch: usize) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", &args.run, "--port", "0", "--device", &args.device, "--connections", "2048"]);
        command.args(["--max-batch", &max_batch.to_string()]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on http://").and_then(|a| a.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let why = format!("the server of {} did not start", args.run);
            return Err(Failure::input(why).hint(format!("tweedie serve {} --port 0", args.run)));
        };
        Ok(Server { child, address })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(time) = args.overload {
        let server = args.at.is_none().then(|| Server::start(args, args.max_batch)).transpose()?;
        let address = args.at.or(server.as_ref().map(|s| s.address));
        let target = ready(args, address.ok_or_else(|| Failure::ours("no server"))?)?;
        return overload::run(&target, args.clients, time, args.json);
    }
    let mut all = Vec::new();
    match args.at {
        Some(address) => measure(args, &ready(args, address)?, None, &mut all),
        None => {
            for max_batch in [1, args.max_batch] {
                let server = Server::start(args, max_batch)?;
                measure(args, &ready(args, server.address)?, Some(max_batch), &mut all);
            }
        }
    }
    if args.json { report::print_json(&all) } else { report::print(&table(&all)) }
}

/// One client alone, then all of them.
fn measure(args: &Args, target: &Target, max_batch: Option<usize>, all: &mut Vec<Measured>) {
    for clients in [1, args.clients] {
        let time = if clients == 1 { args.seconds.min(Duration::from_secs(5)) } else { args.seconds };
        note(&format!("{clients} clients, {:.0} s", time.as_secs_f64()));
        all.push(load(target, clients, time, max_batch));
    }
}

/// `clients` that ask, read to the end, and ask again.
pub fn load(target: &Target, clients: usize, time: Duration, max_batch: Option<usize>) -> Measured {
    let (begun, seeds) = (Instant::now(), AtomicU64::new(0));
    let ends: Vec<End> = std::thread::scope(|scope| {
        let client = || {
            let mut ends = Vec::new();
            while begun.elapsed() < time {
                let end = target.ask(seeds.fetch_add(1, Relaxed));
                if !matches!(end, End::Done { .. }) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                ends.push(end);
            }
            ends
        };
        let all: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        all.into_iter().flat_map(|c| c.join().unwrap_or_default()).collect()
    });
    summary(&ends, clients, begun.elapsed(), max_batch)
}

fn summary(ends: &[End], clients: usize, time: Duration, max_batch: Option<usize>) -> Measured {
    let done =
        || ends.iter().filter_map(|e| if let End::Done { total, first } = e { Some((*total, *first)) } else { None });
    Measured {
        max_batch,
        clients,
        answers: done().count(),
        per_second: done().count() as f64 / time.as_secs_f64(),
        total_ms: Quantiles::of(done().map(|d| d.0).collect()),
        first_step_ms: Quantiles::of(done().map(|d| d.1).collect()),
        refused: ends.iter().filter(|e| matches!(e, End::Refused)).count(),
        failed: ends.iter().filter(|e| matches!(e, End::Failed(_))).count(),
    }
}

/// Wait until a server answers, and find out what to ask of it.
fn ready(args: &Args, address: SocketAddr) -> Result<Target> {
    let mut target = Target { address, key: args.api_key.clone(), path: "", body: Value::Null };
    let begun = Instant::now();
    while !target.get("/health").is_ok_and(|(status, _)| status == 200) {
        if begun.elapsed() > PATIENCE {
            return Err(Failure::input(format!("{address}: no server answers there")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let models = target.json("/v1/models")?;
    let list = models["models"].as_array().cloned().unwrap_or_default();
    let model = match args.at {
        Some(_) => list.into_iter().find(|m| m["name"] == args.run.as_str()),
        None => list.into_iter().next(),
    };
    let model = model.ok_or_else(|| Failure::input(format!("{address} serves no model called {}", args.run)))?;
    target.body = json!({"model": model["name"], "stream": true});
    target.path = match model["task"].as_str() {
        Some("class") => "/v1/classify",
        Some("caption") => "/v1/caption",
        _ => "/v1/generate",
    };
    if let Some(steps) = args.steps {
        target.body["steps"] = steps.into();
    }
    if let Some(side) = model["image"]["side"].as_u64() {
        let png = Image::filled(side as usize, side as usize, &[90, 140, 200]).to_png().map_err(Failure::ours)?;
        target.body["image"] = client::base64(&png).into();
    }
    Ok(target)
}

fn table(all: &[Measured]) -> String {
    let right = ["max batch", "clients", "answers/s", "p50", "p95", "p99", "first p50", "p95", "p99", "429", "failed"];
    let mut table = Table::new(&right.map(|name| (name, Align::Right)));
    for m in all {
        let mut row = vec![m.max_batch.map_or("–".into(), |b| b.to_string()), m.clients.to_string()];
        row.push(format!("{:.1}", m.per_second));
        for q in [m.total_ms, m.first_step_ms] {
            row.extend([q.p50, q.p95, q.p99].map(|ms| format!("{ms:.1} ms")));
        }
        row.extend([m.refused.to_string(), m.failed.to_string()]);
        table.row(row);
    }
    table.shown()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_times() {
        let q = Quantiles::of((1..=100).rev().map(f64::from).collect());
        assert_eq!((q.p50, q.p95, q.p99), (51.0, 96.0, 100.0));
        assert!(Quantiles::of(Vec::new()).p50.is_nan());
    }
}
