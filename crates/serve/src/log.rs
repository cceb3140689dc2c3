//! One line on stderr for each request and for what else is worth saying.

use std::io::Write;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::options::LogForm;

/// The log of a server.
#[derive(Clone, Copy, Debug)]
pub struct Log(LogForm);

impl Log {
    /// In this form.
    pub fn new(form: LogForm) -> Log {
        Log(form)
    }

    /// A request that was answered.
    pub fn request(&self, id: &str, method: &str, path: &str, status: u16, ms: f64) {
        match self.0 {
            LogForm::Text => self.write(&format!("{} {method} {} {status} {ms:.1} ms {id}", now(), printable(path))),
            LogForm::Json => self.json(json!({
                "time": now(), "level": "info", "id": id, "method": method, "path": printable(path), "status": status,
                "ms": (ms * 10.0).round() / 10.0,
            })),
        }
    }

    /// Something else.
    pub fn say(&self, level: &str, message: &str) {
        match self.0 {
            LogForm::Text => self.write(&format!("{} {level}: {}", now(), printable(message))),
            LogForm::Json => self.json(json!({"time": now(), "level": level, "message": printable(message)})),
        }
    }

    fn json(&self, line: Value) {
        self.write(&line.to_string());
    }

    fn write(&self, line: &str) {
        // Who closed our stderr does not want to know.
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

fn now() -> String {
    tweedie::run_dir::utc(SystemTime::now())
}

/// What a client sends must not steer a terminal, nor begin a line of its own.
fn printable(text: &str) -> String {
    let spell = |c: char| if c.is_control() || !c.is_ascii() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().take(300).map(spell).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_steers_a_terminal() {
        assert_eq!(super::printable("/a\n\u{1b}[31m"), "/a\\n\\u{1b}[31m");
    }
}
