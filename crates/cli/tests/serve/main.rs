//! `tweedie serve` as programs meet it: the real binary at a free port, and a client of plain sockets.

mod answers;
mod client;
mod life;
mod limits;
mod malformed;
mod runs;
mod streams;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use client::{Answer, ask};

/// A server, ended with what holds it.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
    _dir: TempDir,
}

impl Server {
    /// With these arguments, ready to answer.
    pub fn start(args: &[&str]) -> Server {
        let server = Server::start_unready(args);
        let begun = Instant::now();
        while server.get("/health").status != 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "{}", server.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub fn start_unready(args: &[&str]) -> Server {
        let dir = TempDir::new().unwrap();
        let log = dir.path().join("log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_tweedie"))
            .args(["--threads", "1", "serve", "--port", "0", "--device", "cpu"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").map(|a| a.parse().unwrap());
        let address = address.unwrap_or_else(|| panic!("{line}{}", std::fs::read_to_string(&log).unwrap()));
        Server { child, address, log, _dir: dir }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn get(&self, path: &str) -> Answer {
        ask(self.address, "GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        ask(self.address, "POST", path, &[], body.to_string().as_bytes())
    }

    /// A number of `/metrics`.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }

    /// Ask it to end, as a supervisor does.
    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// Its exit code, and how long it took to end.
    pub fn wait(&mut self) -> (Option<i32>, Duration) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), begun.elapsed());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end\n{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            assert!(!self.log().contains("panicked"), "{}", self.log());
        }
    }
}

/// What the command prints as JSON.
pub fn command(args: &[&str]) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_tweedie"))
        .args(["--threads", "1", "--quiet"])
        .args(args)
        .args(["--device", "cpu", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// A small run of digits in `out`.
pub fn train(out: &Path, more: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.args(["--threads", "1", "--quiet", "train", "digits", "--device", "cpu", "--out"]).arg(out);
    for set in ["train.epochs=1", "train.warmup_epochs=0", "train.batch=256", "train.eval_images=32", "sample.steps=4"]
    {
        c.args(["--set", set]);
    }
    c.args(more).stdout(Stdio::null()).stderr(Stdio::null());
    c
}

/// A picture of a digit, as a file and in base64.
pub fn digit(dir: &Path) -> (String, String) {
    let path = dir.join("digit.png");
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 8, 8);
    encoder.set_color(png::ColorType::Grayscale);
    let seven = |i: usize| u8::from(i / 8 == 1 && (2..6).contains(&(i % 8)) || i / 8 > 1 && i % 8 == 7 - i / 8) * 255;
    encoder.write_header().unwrap().write_image_data(&(0..64).map(seven).collect::<Vec<_>>()).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    (path.display().to_string(), base64::encode(&bytes))
}
