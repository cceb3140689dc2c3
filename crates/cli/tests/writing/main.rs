//! Captions and text as a user meets them: trained on small files, then `caption`, `generate`, `eval`, `trace`.

mod captions;
mod text;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    let Output { status, stdout, stderr } =
        c.current_dir(dir).args(["--threads", "1"]).args(args).args(["--device", "cpu"]).output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn succeeds(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(dir, args);
    assert_eq!(code, 0, "{args:?}\n{err}");
    out
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let out = succeeds(dir, args);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    let (code, _, err) = run(dir, args);
    assert!(code == 1 && words.iter().all(|w| err.contains(w)), "{args:?}\n{err}");
}
