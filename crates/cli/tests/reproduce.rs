//! `tweedie reproduce` as a user meets it: trained once, used again, gone on with after Ctrl-C.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Digits with the smallest network: 10 steps an epoch, each some milliseconds.
const TINY: &[&str] = &["train.batch=128", "model.encoder.depth=1", "model.denoiser.depth=1", "sample.steps=2"];

fn reproduce(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).args(["--threads", "1", "reproduce"]).args(args).stdin(Stdio::null());
    c
}

fn tiny(dir: &Path, what: &str, more: &[&str]) -> Command {
    let mut c = reproduce(dir, &[what, "--scale", "digits", "--device", "cpu", "--out", "out"]);
    c.args(TINY.iter().flat_map(|s| ["--set", s])).args(more);
    c
}

/// Exit code, stdout, stderr.
fn run(mut c: Command) -> (i32, String, String) {
    let o = c.output().unwrap();
    let [out, err] = [o.stdout, o.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (o.status.code().unwrap(), out, err)
}

fn succeeds(c: Command) -> (String, String) {
    let (code, out, err) = run(c);
    assert_eq!(code, 0, "{err}");
    (out, err)
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Of all runs, in order.
fn checkpoints(out: &Path) -> Vec<PathBuf> {
    let runs = fs::read_dir(out.join("runs")).into_iter().flatten().flatten();
    let of = |run: PathBuf| fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let named = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-"));
    let mut all: Vec<PathBuf> = runs.flat_map(|r| of(r.path())).map(|e| e.path()).filter(named).collect();
    all.sort();
    all
}

#[test]
fn a_second_time_uses_what_was_trained() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let (first, told) = succeeds(tiny(dir.path(), "main", &["--epochs", "1"]));
    assert!(told.contains("3 runs, 0 finished before, 3 to train") && told.contains("run 3 of 3"), "{told}");
    assert!(first.contains("only the direction can be compared"), "{first}");
    let before: Vec<_> =
        checkpoints(&out).iter().map(|p| (p.clone(), p.metadata().unwrap().modified().unwrap())).collect();
    assert_eq!(before.len(), 3);
    let (second, told) = succeeds(tiny(dir.path(), "main", &["--epochs", "1"]));
    assert!(told.contains("3 runs, 3 finished before, 0 to train") && !told.contains("run 1 of"), "{told}");
    assert_eq!(first, second);
    let after: Vec<_> =
        checkpoints(&out).iter().map(|p| (p.clone(), p.metadata().unwrap().modified().unwrap())).collect();
    assert_eq!(before, after);
    // Other settings are other runs, and another table or figure of the same ones is none.
    let (_, told) = succeeds(tiny(dir.path(), "curves", &["--epochs", "1"]));
    assert!(told.contains("3 runs, 3 finished before"), "{told}");
    let (_, told) = succeeds(tiny(dir.path(), "steps", &["--epochs", "1", "--set", "train.lr=0.01"]));
    assert!(told.contains("2 runs, 0 finished before"), "{told}");
}

#[test]
fn everything_is_in_the_report_and_beside_it() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let (text, _) = succeeds(tiny(dir.path(), "all", &["--epochs", "1", "--seeds", "2"]));
    let html = read(out.join("report.html"));
    let figures = [
        "main",
        "ablation",
        "steps",
        "loss",
        "loss-accuracy",
        "curves",
        "heatmap-tdd-weighted",
        "heatmap-tdd-plain",
        "certainty",
    ];
    for name in figures {
        let svg = read(out.join(format!("figures/{name}.svg")));
        assert!(html.contains(svg.trim()), "{name} is not inside the page");
        let png = fs::read(out.join(format!("figures/{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{name}");
    }
    // One file that needs nothing else, and whose elements are closed in order.
    assert!(!html.contains("<script") && !html.contains("<link") && !html.contains("src="));
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("only the direction can be compared"));
    assert!(html.contains("reproduce all --scale digits"));
    let body = html.trim_start_matches("<!DOCTYPE html>").replace("<meta charset=\"utf-8\">", "");
    let body = body.replace("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">", "");
    roxmltree::Document::parse(body.trim()).unwrap();

    // The table, the page and the files say the same.
    let rows: Vec<Value> = serde_json::from_str(&read(out.join("data/main.json"))).unwrap();
    assert_eq!(rows.len(), 5);
    for r in &rows {
        let seeds: Vec<f64> = r["top1_of_seeds"].as_str().unwrap().split(' ').map(|s| s.parse().unwrap()).collect();
        let [a, b] = seeds[..] else { panic!("{seeds:?}") };
        // Of two values the deviation is half their distance times √2.
        let shown = format!("{:.2} ± {:.2}", (a + b) / 2.0, (a - b).abs() / 2.0_f64.sqrt());
        assert!(html.contains(&shown) && text.contains(&shown), "{shown}\n{text}");
    }
    assert_eq!(rows[0]["paper_top1"], 82.8);
    let csv = read(out.join("data/ablation.csv"));
    assert_eq!(csv.lines().count(), 1 + 12);
    assert_eq!(read(out.join("data/steps.csv")).lines().count(), 1 + 2 * 2 * 6);
    let about: Value = serde_json::from_str(&read(out.join("data/report.json"))).unwrap();
    assert_eq!((about["seeds"].as_u64(), about["runs"].as_array().map(Vec::len)), (Some(2), Some(10)));
}

#[cfg(unix)]
#[test]
fn an_interrupted_plan_goes_on() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    // Far more epochs than the time until the signal allows; the same command then goes on.
    let args = ["--epochs", "20", "--set", "train.checkpoint_every=1"];
    let mut child = tiny(dir.path(), "heatmap", &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while checkpoints(&out).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "ended before its first checkpoint");
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let o = child.wait_with_output().unwrap();
    let told = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(130), "{told}");
    assert!(
        told.contains("interrupted in run 1 of 2")
            && told.contains("Go on with: tweedie --threads 1 reproduce heatmap"),
        "{told}"
    );
    let (_, told) = succeeds(tiny(dir.path(), "heatmap", &args));
    assert!(told.contains("2 runs, 0 finished before") && told.contains(", seed 0, from step "), "{told}");
    assert!(out.join("report.html").exists());
}

#[test]
fn wrong_words_are_answered_with_the_choices() {
    let dir = TempDir::new().unwrap();
    for (args, words) in [
        (&["nothing"][..], &["'nothing'", "main, ablation, steps, loss, curves, heatmap, all"][..]),
        (&["main", "--scale", "mars"], &["'mars'", "digits, cifar10, imagenette"]),
        (&["main", "--scale", "cifar10"], &["needs data", "--scale cifar10 --data PATH"]),
        (&["main", "--seeds", "0"], &["--seeds"]),
        (&["main", "--set", "train.lrr=1"], &["train.lrr"]),
    ] {
        let (code, out, err) = run(reproduce(dir.path(), args));
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}\n{err}");
        words.iter().for_each(|w| assert!(err.contains(w), "no '{w}' after {args:?}\n{err}"));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was written");
}
