//! Outputs that end early, names that would steer a terminal, numbers beyond all use.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};

use common::{run, tweedie};

/// A pipe whose reader has gone.
fn broken() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

fn tiny(out: &Path) -> Command {
    let mut c = tweedie(&["train", "digits", "--device", "cpu", "--out"]);
    c.arg(out);
    for s in ["train.epochs=1", "train.warmup_epochs=0", "train.batch=256", "train.eval_images=16", "sample.steps=2"] {
        c.args(["--set", s]);
    }
    c
}

#[test]
fn a_reader_that_goes_ends_nothing_but_the_output() {
    let mut c = tweedie(&["completions", "bash"]);
    c.stdout(broken());
    assert_eq!(run(c).0, 0);
    // A training goes on and is saved, whoever listens.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let mut c = tiny(&path);
    let status = c.stdout(broken()).stderr(broken()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    let saved = std::fs::read_dir(path.join("checkpoints")).unwrap().count();
    assert!(saved > 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_under_the_output_is_an_error() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for args in [&["completions", "bash"][..], &["config", "show", "digits"], &["devices", "--json"], &["--help"]] {
        let mut c = tweedie(args);
        c.stdout(full());
        let (code, _, err) = run(c);
        assert!(code == 1 && err.starts_with("error: the output cannot be written"), "{args:?}: {code} {err}");
    }
    let mut c = tweedie(&["config", "show", "nope"]);
    c.stderr(full());
    assert_eq!(run(c).0, 1);
}

#[test]
fn names_do_not_steer_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = "\u{1b}[31mred\u{7}";
    std::fs::write(dir.path().join("r.toml"), format!("'{name}' = 1\n")).unwrap();
    for args in [
        &["config", "show", name][..],
        &["config", "show", "r.toml"],
        &["config", "show", "digits", "--set", &format!("train.lr={name}")],
        &["config", "show", "digits", &format!("--{name}")],
    ] {
        let mut c = tweedie(args);
        c.current_dir(&dir);
        let (_, out, err) = run(c);
        assert!(!err.contains('\u{1b}') && !out.contains('\u{1b}'), "{args:?}: {out}{err}");
        assert!((out + &err).contains("\\u{1b}[31mred"), "{args:?}");
    }
}

#[test]
fn numbers_beyond_all_use_are_refused_with_their_range() {
    for (args, words) in [
        (&["--threads", "1000000", "devices"][..], "1..=1024"),
        (&["bench", "train", "--batch", "99999999999"], "1..=1048576"),
        (&["bench", "sample", "--steps", "0"], "1..=100000"),
        (&["bench", "data", "x", "--image", "1000000"], "1..=8192"),
        (&["reproduce", "all", "--seeds", "4000000000"], "--seeds"),
        (&["config", "show", "digits", "--set", "train.batch=0"], "train.batch = 0 must lie in [1, 1048576]"),
        (&["config", "show", "digits", "--set", "train.lr=nan"], "train.lr = NaN must lie in (0, 1000000000000000000]"),
        (
            &["config", "show", "digits", "--set", "sample.guidance=inf"],
            "sample.guidance = inf must lie in [-1000, 1000]",
        ),
    ] {
        let (code, _, err) = run(tweedie(args));
        assert!(code == 1 && err.contains(words), "{args:?}: {err}");
    }
    let (code, _, err) = run(tweedie(&["config", "show", "digits", "--set", &format!("{}=1", "a.".repeat(20_000))]));
    assert!(code == 1 && err.len() < 2000, "{}", err.len());
    let (code, _, err) = run(tweedie(&["bench", "train", "--device", "cpu", "--preset", "cifar", "--image", "65536"]));
    assert!(code == 1 && err.contains("GiB of memory"), "{err}");
}
