//! Trained models over HTTP: answers that stream step by step, and a page to play with them.
//!
//! [`run`] serves until it is told to stop. One thread owns the device and takes steps of all requests at once (`engine`); JSON, images and
//! tokens are dealt with beside it (`ask`, `render`); events wait in a `stream` for whoever reads them.

mod app;
mod ask;
mod body;
mod engine;
mod error;
mod guard;
mod log;
mod model;
mod net;
mod openapi;
mod options;
mod render;
mod routes;
mod runs;
mod stats;
mod stream;
mod streams;
mod watch;

pub use options::{LogForm, ModelSource, Options};

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::Builder;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch as channel;

use app::App;
use engine::{Command, Engine};
use stream::Stream;

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address cannot be listened at.
    #[error("{address} cannot be listened at: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A model cannot be loaded.
    #[error(transparent)]
    Model(#[from] tweedie::Error),
    /// The system gave no thread, or no signals.
    #[error("the server cannot be started: {0}")]
    System(#[from] io::Error),
}

/// Jobs may go on for this long after the server was told to end; then they are told so, and all is over a little later.
const DRAIN: Duration = Duration::from_millis(1500);
const LAST: Duration = Duration::from_millis(900);
/// Pixels of an image in a request.
const MOST_PIXELS: u64 = 40 << 20;

/// A name that is not taken: `name`, or with a number behind it.
fn unique(name: &str, taken: &dyn Fn(&str) -> bool) -> String {
    let with = |n: u32| if n == 1 { name.to_string() } else { format!("{name}-{n}") };
    (1..).map(with).find(|n| !taken(n)).unwrap_or_default()
}

/// Models by the names that requests call them: `embedded:NAME` its name, a run that of its folder, `NAME=PATH` as one likes.
pub fn sources<S: AsRef<str>>(given: impl IntoIterator<Item = S>) -> Vec<ModelSource> {
    let mut all: Vec<ModelSource> = Vec::new();
    for text in given {
        let text = text.as_ref();
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !name.contains('/') => (name.to_string(), path),
            _ => (name_of(text), text),
        };
        let name = unique(&name, &|n| all.iter().any(|m| m.name == n));
        all.push(ModelSource { name, path: path.into() });
    }
    all
}

fn name_of(path: &str) -> String {
    if let Some(name) = path.strip_prefix(tweedie::embedded::PREFIX) {
        return name.to_string();
    }
    let whole = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let run = tweedie::run_dir::RunDir::around(&whole).map_or(whole.clone(), |(run, _)| run.path().to_path_buf());
    let name = if run.is_file() { run.file_stem() } else { run.file_name() };
    name.map_or("model".into(), |n| n.to_string_lossy().into_owned())
}

/// Serve until SIGINT or SIGTERM. `listening` is told the address once connections are taken. The calling thread becomes the engine's: it is one of
/// those that CPU kernels run on, and must not wait for others.
pub fn run(options: Options, listening: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    tweedie::limits::PIXELS.lower(MOST_PIXELS);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().max_blocking_threads(64).build()?;
    let _inside = runtime.enter();
    let address = SocketAddr::new(options.host, options.port);
    let failed = |source| Error::Listen { address, source };
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (commands, for_engine) = mpsc::channel();
    let (drain, draining) = channel::channel(false);
    let most = options.connections;
    let (changed, to_wake) = unbounded_channel();
    let app = Arc::new(App::new(options, address, commands, changed, draining.clone()));
    let signals = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let connections = runtime.spawn(net::serve(listener, routes::router(app.clone()), most, draining, DRAIN + LAST));
    runtime.spawn(end_on_signal(app.clone(), signals, drain));
    runtime.spawn(tidy(app.clone()));
    runtime.spawn(wake(to_wake));
    let weak = Arc::downgrade(&app);
    Builder::new().name("watch".into()).spawn(move || watch::watch(&weak))?;
    listening(address);
    Engine::start(app)?.run(&for_engine);
    let _ = runtime.block_on(async { tokio::time::timeout(LAST, connections).await });
    runtime.shutdown_background(); // what still computes is of no use to anybody
    Ok(())
}

/// Let the server end when the system says so, and see to it that it does.
async fn end_on_signal(app: Arc<App>, signals: (Signal, Signal), drain: channel::Sender<bool>) {
    let (mut terminate, mut interrupt) = signals;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = app.engine.send(Command::Drain(Instant::now() + DRAIN));
    let _ = drain.send(true);
    tokio::time::sleep(DRAIN + LAST + LAST / 4).await;
    // A step, or a model that is loaded, takes longer than anybody waits.
    std::process::exit(0);
}

/// Wake the readers of streams that have new events.
async fn wake(mut changed: UnboundedReceiver<Vec<Arc<Stream>>>) {
    while let Some(streams) = changed.recv().await {
        streams.iter().for_each(|stream| stream.wake());
    }
}

/// Forget streams that ended long ago.
async fn tidy(app: Arc<App>) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        app.streams.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names_of_their_own() {
        let all = sources(["embedded:digits", "mine=runs/a", "/tmp/runs/digits", "runs/b/digits"]);
        let names: Vec<&str> = all.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["digits", "mine", "digits-2", "digits-3"]);
        assert_eq!(all[1].path.to_str(), Some("runs/a"));
    }
}
