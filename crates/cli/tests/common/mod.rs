//! The command as tests start it.

use std::process::{Command, Output};

/// The command with these arguments.
pub fn tweedie(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.args(args);
    c
}

/// Exit code, stdout and stderr; no panic among them.
pub fn run(mut c: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}
