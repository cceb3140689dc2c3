//! What is said where: on a terminal of some width, in a pipe, with `-q` and `-v`, with and without colours, and at Ctrl-C.

mod common;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::run;

/// Digits with the smallest network, 11 steps an epoch.
const TINY: &[&str] = &[
    "train.batch=128",
    "data.val_fraction=0",
    "train.eval_images=64",
    "train.eval_every=1",
    "train.log_every=1",
    "model.encoder.depth=1",
    "model.denoiser.depth=1",
    "sample.steps=2",
];

fn tweedie(dir: &Path, args: &[&str]) -> Command {
    let mut c = common::tweedie(args);
    c.current_dir(dir).stdin(Stdio::null());
    c
}

fn train_args<'a>(epochs: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "digits", "--device", "cpu", "--threads", "1", "--set", epochs];
    args.extend(TINY.iter().flat_map(|s| ["--set", s]));
    args.extend(more);
    args
}

/// What a terminal of so many columns gets from the command, both streams together. None where there is no `script` to make one.
fn on_terminal(dir: &Path, columns: usize, env: &[(&str, &str)], args: &[&str]) -> Option<String> {
    let quoted: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
    let line = format!("stty cols {columns} rows 30; '{}' {}", env!("CARGO_BIN_EXE_tweedie"), quoted.join(" "));
    let mut c = Command::new("script");
    c.current_dir(dir).args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    c.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("CLICOLOR").env_remove("COLUMNS");
    let output = c.envs(env.iter().copied()).output();
    let Ok(output) = output else {
        eprintln!("there is no `script`: terminals are not tested");
        return None;
    };
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The text without the codes that move and colour.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |i| i + 1);
        out += &part[end..];
    }
    out
}

/// Every line as it was drawn, redrawn ones each time.
fn drawn(text: &str) -> Vec<String> {
    plain(text).split(['\n', '\r']).map(|l| l.trim_end().to_string()).filter(|l| !l.is_empty()).collect()
}

fn fits(text: &str, columns: usize) {
    for line in drawn(text) {
        assert!(line.chars().count() <= columns, "{columns} columns: {line:?}");
    }
}

#[test]
fn a_terminal_has_a_header_a_bar_and_evaluations() {
    let dir = tempfile::tempdir().unwrap();
    for columns in [60, 80, 120] {
        let out = format!("r{columns}");
        let args = train_args("train.epochs=6", &["--out", &out]);
        let Some(text) = on_terminal(dir.path(), columns, &[], &args) else { return };
        fits(&text, columns);
        let lines = drawn(&text);
        for name in ["model", "data", "steps", "device", "run", "time"] {
            assert_eq!(lines.iter().filter(|l| l.starts_with(&format!("{name:<8}"))).count(), 1, "{name}: {text}");
        }
        assert!(lines.iter().any(|l| l.starts_with("steps   66: 6 epochs of 11, batches of 128")), "{lines:?}");
        assert!(lines.iter().any(|l| l.contains('━') && l.contains("loss ") && l.ends_with(" left")), "{lines:?}");
        let best: Vec<&String> = lines.iter().filter(|l| l.ends_with("★ best")).collect();
        assert!(!best.is_empty() && best.iter().all(|l| l.contains("top-1")), "{lines:?}");
        assert!(text.contains("\u{1b}[32m") && text.contains("\u{1b}[2m"), "no colours: {text:?}");
        // No line of steps that stays: each was redrawn.
        assert!(!lines.iter().any(|l| l.contains("step      ")), "{lines:?}");
    }
    // The other commands fit too.
    for args in
        [&["eval", "r60", "--device", "cpu", "--per-class"][..], &["data", "inspect", "embedded:digits", "--all"]]
    {
        for columns in [60, 80] {
            let text = on_terminal(dir.path(), columns, &[], args).unwrap();
            fits(&text, columns);
            assert!(text.contains("top-1 %") || text.contains("0 unreadable"), "{text}");
        }
    }
}

#[test]
fn colours_and_redrawing_are_left_out_where_they_are_not_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let go = |out: &'static str, env: &[(&str, &str)]| {
        on_terminal(dir.path(), 80, env, &train_args("train.epochs=2", &["--out", out]))
    };
    let Some(text) = go("a", &[("NO_COLOR", "1")]) else { return };
    assert!(text.contains('━'), "{text}");
    let coloured = |text: &str| {
        text.split('\u{1b}').skip(1).any(|p| p.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).starts_with('m'))
    };
    assert!(!coloured(&text), "{text:?}");
    assert!(!coloured(&go("b", &[("CLICOLOR", "0")]).unwrap()));
    let dumb = go("c", &[("TERM", "dumb")]).unwrap();
    assert!(!dumb.contains('\u{1b}') && dumb.contains("loss "), "{dumb:?}");
}

#[test]
fn a_pipe_gets_few_lines_and_verbose_all() {
    let dir = tempfile::tempdir().unwrap();
    let steps = |err: &str| err.lines().filter(|l| l.contains("  step ") && l.contains("  loss ")).count();
    let (code, out, err) = run(tweedie(dir.path(), &train_args("train.epochs=10", &["--out", "a"])));
    assert_eq!((code, out.as_str()), (0, "a\n"), "{err}");
    assert!(!err.contains('\u{1b}') && !err.contains('━'), "{err}");
    // 110 steps are logged: the first, the last, and at most one a second.
    assert!((2..60).contains(&steps(&err)), "{err}");
    assert_eq!(err.lines().filter(|l| l.contains("top-1")).count(), 11, "{err}"); // and the best at the end
    assert!(!err.contains("lr ") && !err.contains("device: "), "{err}");
    let (_, _, err) = run(tweedie(dir.path(), &train_args("train.epochs=3", &["--out", "b", "-v"])));
    assert_eq!(steps(&err), 33, "{err}");
    assert!(
        err.contains("lr ") && err.contains("|g| ") && err.contains("waited ") && err.contains("device: cpu"),
        "{err}"
    );
}

#[test]
fn quiet_says_the_result_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |args: &[&str]| run(tweedie(dir.path(), args));
    assert_eq!(at(&train_args("train.epochs=1", &["--out", "a", "-q"])), (0, "a\n".into(), String::new()));
    let (code, out, err) = at(&["eval", "a", "--device", "cpu", "--quiet"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("| sampler "), "{out}");
    // Where stdout is no terminal the device goes without saying, too.
    let (_, _, err) = at(&["eval", "a"]);
    assert!(!err.contains("device: "), "{err}");
    let (code, out, err) = at(&["-q", "eval", "nowhere"]);
    assert!(code == 1 && out.is_empty() && err.starts_with("error: "), "{err}");
    let (code, _, err) = at(&["-q", "-v", "devices"]);
    assert!(code == 1 && err.contains("cannot be used with"), "{err}");
    if let Some(text) = on_terminal(dir.path(), 80, &[], &train_args("train.epochs=1", &["--out", "b", "-q"])) {
        assert_eq!(drawn(&text), ["b"]);
    }
}

/// The answer to Ctrl-C comes from the signal, not after the step.
#[cfg(unix)]
#[test]
fn ctrl_c_is_answered_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let args = train_args("train.epochs=5000", &["--out", "r"]);
    let mut child = tweedie(dir.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|l| l.unwrap());
    assert!(lines.any(|l| l.contains("top-1")));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let said = |words: &str| rest.iter().position(|l| l.contains(words)).unwrap_or_else(|| panic!("{words}: {rest:?}"));
    let stops = said("stopping after this ");
    assert!(rest[stops].ends_with(", again to quit now"), "{rest:?}");
    assert!(stops < said("interrupted at step "), "{rest:?}");
}

/// A training that was not made for this machine says so before it starts.
#[test]
fn a_long_training_is_told_before_it_starts() {
    let dir = tempfile::tempdir().unwrap();
    let args = train_args("train.epochs=1000000", &["--out", "r"]);
    let mut child = tweedie(dir.path(), &args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|l| l.unwrap());
    let before: Vec<String> = lines.take_while(|l| !l.contains("  loss ")).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let time = before.iter().find(|l| l.starts_with("time ")).unwrap_or_else(|| panic!("{before:?}"));
    assert!(time.contains("about ") && time.ends_with(" here"), "{time}");
    assert!(before.iter().any(|l| l.contains("made for a GPU") && l.contains("--device cuda")), "{before:?}");
}

#[test]
fn help_breaks_lines_and_no_words() {
    let dir = tempfile::tempdir().unwrap();
    let commands =
        ["", "train", "quickstart", "eval", "classify", "caption", "generate", "trace", "reproduce", "score"];
    for command in commands.into_iter().chain(["devices", "selftest", "data inspect", "bench train", "bench growth"]) {
        let words = |columns: usize| {
            let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
            let mut c = tweedie(dir.path(), &args);
            c.env("COLUMNS", columns.to_string());
            let (code, out, _) = run(c);
            assert_eq!(code, 0);
            for line in out.lines() {
                let longest = line.trim().split(' ').map(|w| w.chars().count()).max().unwrap_or(0);
                let flag = line.trim_start().starts_with(['-', '<', '[']); // clap does not break what is to be typed
                let fits = line.chars().count() <= columns.min(100) || flag || longest * 2 > columns;
                assert!(fits, "{command} --help in {columns} columns: {line:?}");
            }
            out.split_whitespace().map(String::from).collect::<Vec<_>>()
        };
        let [narrow, usual, wide] = [60, 80, 120].map(words);
        assert_eq!(narrow, usual, "{command}");
        assert_eq!(usual, wide, "{command}");
    }
}
