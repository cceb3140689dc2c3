//! `tweedie serve` at a free port, in a folder of its own.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;

pub struct Server {
    child: Child,
    /// Such as `http://127.0.0.1:41234`.
    pub url: String,
    pub dir: TempDir,
}

impl Server {
    /// The models in the box, and no runs yet.
    pub fn start() -> Server {
        Server::with(&[])
    }

    pub fn with(args: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let mut c = command(dir.path());
        c.args(["serve", "--device", "cpu", "--port", "0"]).args(args);
        let mut child = c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it said {line:?}")).to_string();
        let server = Server { child, url, dir };
        // A browser's console tells of each 503 while the models are being loaded.
        while !server.is_ready() {
            sleep(Duration::from_millis(50));
        }
        server
    }

    fn is_ready(&self) -> bool {
        let host = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).unwrap();
        write!(stream, "GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).unwrap();
        status.contains(" 200 ")
    }

    /// Begins to train digits, slowly enough to be watched.
    pub fn train(&self, name: &str) -> Training {
        let mut c = command(self.dir.path());
        c.args(["--threads", "1", "train", "digits", "--device", "cpu", "--out", &format!("runs/{name}")]);
        for set in
            ["train.epochs=400", "train.eval_every=1", "train.log_every=1", "train.eval_images=32", "sample.steps=2"]
        {
            c.args(["--set", set]);
        }
        for set in ["model.encoder.depth=1", "model.denoiser.depth=1", "train.checkpoint_every=2"] {
            c.args(["--set", set]);
        }
        let log = std::fs::File::create(self.dir.path().join("train.log")).unwrap();
        Training(c.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Training(Child);

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(dir: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).stdin(Stdio::null());
    c
}
