//! `tweedie serve`: trained models over HTTP, and a page to play with them.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use tweedie::embedded;
use tweedie_serve::{LogForm, Options, sources};

use crate::failure::{Failure, Result};
use crate::report;
use crate::shared::numbers;

#[derive(clap::Args)]
pub struct Args {
    /// Run folders, checkpoints, embedded:NAME, or any of them as NAME=PATH (default: the models inside the program)
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Address to listen at; one that other machines reach needs --api-key
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    host: IpAddr,
    /// Port to listen at (0: a free one)
    #[arg(long, default_value_t = 8080, value_name = "PORT")]
    port: u16,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Folder of runs that the page lists
    #[arg(long = "runs", default_value = "runs", value_name = "DIR")]
    folder: PathBuf,
    /// Key that clients must send (also by the variable TWEEDIE_API_KEY)
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// File that holds the key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let everybody in who can reach the address
    #[arg(long, conflicts_with_all = ["api_key", "api_key_file"])]
    no_auth: bool,
    /// Rows of a model that are worked on at once
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    max_batch: usize,
    /// Requests that may wait; more get 429
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = numbers::whole(1..=1 << 20))]
    queue: usize,
    /// Steps that a request may ask for
    #[arg(long, default_value_t = 1000, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    max_steps: usize,
    /// Connections at a time
    #[arg(long, default_value_t = 512, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    connections: usize,
    /// Let pages of this origin use the server, such as https://example.org (* for all)
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Let the server be called by this name besides loopback ones and its address
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Form of the log on stderr
    #[arg(long, default_value = "text", value_name = "FORM", value_parser = ["text", "json"])]
    log: String,
}

pub fn run(args: &Args) -> Result<()> {
    let options = options(args)?;
    tweedie_serve::run(options, listening).map_err(|e| match e {
        tweedie_serve::Error::Model(e) => Failure::from(e),
        tweedie_serve::Error::Listen { .. } => Failure::input(e.to_string()).hint("tweedie serve --port 0"),
        tweedie_serve::Error::System(_) => Failure::ours(e.to_string()),
    })
}

/// The one line on stdout: for people, and for programs that started the server at a free port.
fn listening(address: SocketAddr) {
    // Who closed our stdout can still use the server.
    let _ = report::print(&format!("listening on http://{address}\n"));
}

fn options(args: &Args) -> Result<Options> {
    let api_key = key(args)?;
    if !args.host.is_loopback() && api_key.is_none() && !args.no_auth {
        return Err(Failure::input(format!(
            "{} is reached by other machines: give --api-key, or say --no-auth to let everybody in",
            args.host
        ))
        .hint("tweedie serve --host 0.0.0.0 --api-key-file key.txt"));
    }
    let models = match args.runs.is_empty() {
        true => sources(embedded::names().map(|name| format!("{}{name}", embedded::PREFIX))),
        false => sources(&args.runs),
    };
    let log = if args.log == "json" { LogForm::Json } else { LogForm::Text };
    Ok(Options {
        models,
        host: args.host,
        port: args.port,
        device: args.device.clone(),
        runs: args.folder.clone(),
        api_key,
        max_batch: args.max_batch,
        queue: args.queue,
        max_steps: args.max_steps,
        connections: args.connections,
        allow_origin: args.allow_origin.clone(),
        allow_host: args.allow_host.clone(),
        log,
        ..Options::default()
    })
}

fn key(args: &Args) -> Result<Option<String>> {
    let key = match (&args.api_key, &args.api_key_file) {
        (Some(key), _) => Some(key.clone()),
        (None, Some(path)) => Some(read_key(path)?),
        (None, None) if args.no_auth => None,
        (None, None) => std::env::var("TWEEDIE_API_KEY").ok(),
    };
    match key {
        Some(k) if k.trim().len() < 8 => Err(Failure::input("a key must have at least 8 characters")),
        Some(k) if !k.trim().chars().all(|c| c.is_ascii_graphic()) => {
            Err(Failure::input("a key must be of ASCII letters, digits and signs, without blanks"))
        }
        key => Ok(key.map(|k| k.trim().to_string())),
    }
}

fn read_key(path: &Path) -> Result<String> {
    let text = tweedie::files::read_to_string(path, &tweedie::limits::SETTINGS_BYTES);
    Ok(text.map_err(|e| tweedie::Error::file(path, e))?)
}
