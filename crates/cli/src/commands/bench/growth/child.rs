//! One point, measured by this program in a process of its own.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tweedie::interrupt;
use tweedie_engine::cpu;

use super::quantity::Quantity;
use super::{Args, Point};
use crate::failure::{Failure, Result};

pub struct Child<'a> {
    pub args: &'a Args,
    pub what: &'a str,
    pub over: Quantity,
    pub value: usize,
}

pub enum Outcome {
    Point(Point),
    /// Why there is none.
    Stopped(String),
    /// The signal that stops this program has ended it too.
    Interrupted,
}

impl Child<'_> {
    fn command(&self) -> Result<Command> {
        let program = std::env::current_exe().map_err(|e| Failure::ours(format!("this program is not found: {e}")))?;
        let mut c = Command::new(program);
        c.args(["--threads", &cpu::threads().to_string(), "bench", self.what, "--format", "json", "--point"]);
        c.args(["--preset", &self.args.preset, "--device", &self.args.device]);
        c.args(["--repeats", &self.args.repeats.to_string()]);
        let value = |q: Quantity, usual: usize| if self.over == q { self.value } else { usual }.to_string();
        c.args(["--batch", &value(Quantity::Batch, self.args.batch)]);
        match self.what {
            "train" => c.arg("--no-floor"),
            _ => c.args(["--steps", &value(Quantity::Steps, self.args.steps)]),
        };
        if matches!(self.over, Quantity::Image | Quantity::Vocab | Quantity::Tokens) {
            c.args([format!("--{}", self.over.flag()), self.value.to_string()]);
        }
        if self.over == Quantity::Vocab && self.what == "sample" {
            c.args(["--noise", "exact"]); // dense noise would draw a number for each word
        }
        Ok(c)
    }

    pub fn measure(&self, limit: Duration) -> Result<Outcome> {
        let failed = |e: std::io::Error| Failure::ours(format!("a measurement cannot be started: {e}"));
        let mut child = self
            .command()?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            if begin.elapsed() > limit {
                let _ = child.kill(); // it may have ended in between
                child.wait().map_err(failed)?;
                return Ok(Outcome::Stopped(format!("more than {} s", limit.as_secs_f64())));
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        // One row and a few lines of progress: far less than a pipe holds, so nothing waited for this reading.
        let text = |pipe: Option<&mut dyn Read>| {
            let mut text = String::new();
            pipe.map(|p| p.read_to_string(&mut text));
            text
        };
        if !status.success() && interrupt::requested() {
            return Ok(Outcome::Interrupted);
        }
        if !status.success() {
            let said = text(child.stderr.as_mut().map(|p| p as &mut dyn Read));
            let why = said.lines().find_map(|l| l.strip_prefix("error: ")).map_or(status.to_string(), String::from);
            return Ok(Outcome::Stopped(why));
        }
        let said = text(child.stdout.as_mut().map(|p| p as &mut dyn Read));
        let rows: Value = serde_json::from_str(&said)?;
        let number = |name: &str| {
            let value = rows[0][name].as_f64();
            value.ok_or_else(|| Failure::ours(format!("bench {} has no {name}", self.what)))
        };
        Ok(Outcome::Point(Point {
            value: self.value,
            ms: number("ms")?,
            fastest: number("fastest")?,
            slowest: number("slowest")?,
            peak: number("peak")?,
        }))
    }
}
