//! Runs as a user meets them: killed and resumed, interrupted, measured, and refused where the input is wrong.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Digits with the smallest network: 11 steps an epoch, each some milliseconds.
const TINY: &[&str] = &[
    "train.batch=128",
    "data.val_fraction=0",
    "train.eval_images=64",
    "train.checkpoint_every=1",
    "train.log_every=5",
    "model.encoder.depth=1",
    "model.denoiser.depth=1",
    "sample.steps=2",
];
const EPOCH: u64 = 11;

fn tweedie(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).args(["--threads", "1"]).args(args).stdin(Stdio::null());
    c
}

fn train(dir: &Path, args: &[&str]) -> Command {
    let mut c = tweedie(dir, &["train", "--device", "cpu"]);
    c.args(args);
    c
}

fn train_digits(dir: &Path, epochs: usize, more: &[&str]) -> Command {
    let mut c = train(dir, &["digits", "--set", &format!("train.epochs={epochs}")]);
    c.args(TINY.iter().flat_map(|s| ["--set", s])).args(more);
    c
}

fn run(mut c: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn succeeds(c: Command) -> (String, String) {
    let (code, out, err) = run(c);
    assert_eq!(code, 0, "{err}");
    (out, err)
}

/// Exit code 1 and a message that has all of `words`.
fn refused(c: Command, words: &[&str]) {
    let shown = format!("{c:?}");
    let (code, out, err) = run(c);
    assert_eq!((code, out.as_str()), (1, ""), "{shown}\n{err}");
    assert!(err.lines().any(|l| l.starts_with("error: ")), "{shown}\n{err}");
    words.iter().for_each(|w| assert!(err.contains(w), "no '{w}' after {shown}\n{err}"));
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn checkpoints(run: &Path) -> BTreeMap<u64, PathBuf> {
    let Ok(entries) = fs::read_dir(run.join("checkpoints")) else { return BTreeMap::new() };
    let step = |p: &Path| p.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
    entries.filter_map(|e| e.ok().map(|e| e.path())).filter_map(|p| Some((step(&p)?, p))).collect()
}

fn newest(run: &Path) -> u64 {
    checkpoints(run).last_key_value().map_or(0, |(s, _)| *s)
}

/// Until the run has a checkpoint at `step` or later; it must not end before.
fn wait_for(child: &mut Child, run: &Path, step: u64) {
    let started = Instant::now();
    while newest(run) < step {
        assert!(child.try_wait().unwrap().is_none(), "ended before step {step}");
        assert!(started.elapsed() < Duration::from_secs(120), "no step {step}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the metrics say, without the times: kind and step in their order, with what was computed.
fn metrics(run: &Path) -> Vec<(String, u64, Vec<Value>)> {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let computed = ["loss", "lr", "grad_norm", "skipped", "top1", "ema_top1", "nll", "best"];
    text.lines()
        .map(json)
        .filter(|v| v["event"] != "saved")
        .map(|v| {
            let values = computed.iter().map(|k| v[*k].clone()).collect();
            (v["event"].as_str().unwrap().to_string(), v["step"].as_u64().unwrap(), values)
        })
        .collect()
}

#[cfg(unix)]
#[test]
fn ten_kills_change_no_bit() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let epochs = 24;
    let every = ["--set", "train.eval_every=4"];
    let start = |out: &str| train_digits(dir.path(), epochs, &[&every[..], &["--out", out]].concat());
    succeeds(start("whole"));
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));

    // The epoch whose checkpoint is waited for, and how many milliseconds later the kill comes. The first come while the
    // program starts; the last leave enough of the run that none comes too late.
    let kills = [(0, 0), (0, 4), (0, 15), (0, 60), (1, 0), (3, 7), (4, 1), (8, 19), (11, 0), (15, 11)];
    let go_on = || match killed.join("config.toml").exists() {
        true => train(dir.path(), &["--resume", "killed"]),
        false => start("killed"),
    };
    for (epoch, delay) in kills {
        let mut child = go_on().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(&mut child, &killed, epoch * EPOCH);
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "not killed at epoch {epoch}");
    }
    let (out, err) = succeeds(go_on());
    assert_eq!(out, "killed\n");
    assert!(err.contains("goes on from step"), "{err}");

    let last = epochs as u64 * EPOCH;
    assert_eq!(checkpoints(&whole).keys().collect::<Vec<_>>(), checkpoints(&killed).keys().collect::<Vec<_>>());
    for file in ["model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json"] {
        let read = |run: &Path| fs::read(checkpoints(run)[&last].join(file)).unwrap();
        assert!(read(&whole) == read(&killed), "{file} differs");
    }
    let best = |run: &Path| fs::read_to_string(run.join("checkpoints/best")).unwrap();
    assert_eq!(best(&whole), best(&killed));

    let (expected, found) = (metrics(&whole), metrics(&killed));
    assert_eq!(found, expected);
    let of = |kind: &str| found.iter().filter(|m| m.0 == kind).map(|m| m.1).collect::<Vec<_>>();
    let steps: Vec<u64> = (1..=last).filter(|s| *s == 1 || *s == last || s % 5 == 0).collect();
    assert_eq!(of("step"), steps);
    assert_eq!(of("eval"), (1..=6).map(|n| 4 * n * EPOCH).collect::<Vec<_>>());
    assert!(found.is_sorted_by_key(|m| m.1));

    // A finished run has nothing to go on with, and stays as it is. One that does not fit is not spoilt by the attempt.
    let config = fs::read_to_string(killed.join("config.toml")).unwrap();
    refused(train(dir.path(), &["--resume", "killed", "--set", "model.encoder.depth=2"]), &["encoder"]);
    assert_eq!(fs::read_to_string(killed.join("config.toml")).unwrap(), config);
    let (out, err) = succeeds(train(dir.path(), &["--resume", "killed"]));
    assert_eq!(out, "killed\n");
    assert!(err.contains("killed is finished: all 24 epochs (264 steps) are behind it"), "{err}");
    assert!(err.contains("tweedie eval killed") && err.contains("--resume killed --set train.epochs=48"), "{err}");
    assert!(!err.contains("goes on from"), "{err}");
    assert_eq!(metrics(&killed), expected);
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_says_how_to_go_on() {
    interrupted_by("-INT");
}

/// As when a terminal is closed or a connection ends. Under `nohup` a run is to go on, and so are those of this test.
#[cfg(target_os = "linux")]
#[test]
fn a_hangup_saves_as_ctrl_c_does() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    if u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 == 0 {
        interrupted_by("-HUP");
    }
}

#[cfg(unix)]
fn interrupted_by(signal: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut c = train_digits(dir.path(), 2000, &["--out", "r"]);
    let mut child = c.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let path = dir.path().join("r");
    wait_for(&mut child, &path, EPOCH);
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    let err = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(130), "{err}");
    assert!(err.contains("tweedie train --resume r") && !err.contains("error:"), "{err}");

    let step = newest(&path);
    assert!(err.contains(&format!("interrupted at step {step};")), "{err}");
    let epochs = step / EPOCH + 1;
    let (_, err) = succeeds(train(dir.path(), &["--resume", "r", "--set", &format!("train.epochs={epochs}")]));
    assert!(err.contains(&format!("goes on from step {step} ")), "{err}");
    assert_eq!(newest(&path), epochs * EPOCH);
}

fn png(path: &Path, value: impl Fn(usize) -> u8) {
    let mut e = png::Encoder::new(File::create(path).unwrap(), 8, 8);
    e.set_color(png::ColorType::Grayscale);
    let pixels: Vec<u8> = (0..64).map(value).collect();
    e.write_header().unwrap().write_image_data(&pixels).unwrap();
}

#[test]
fn a_finished_run_is_measured_and_answers() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let (out, _) = succeeds(train_digits(at, 3, &["--set", "train.eval_every=1"]));
    assert_eq!(out, "runs/digits-1\n");
    let run_dir = at.join("runs/digits-1");

    let eval = |more: &[&str]| tweedie(at, &[&["eval", "runs/digits-1", "--device", "cpu"], more].concat());
    let rows = json(&succeeds(eval(&["--steps", "1,2", "--guidance", "1,2", "--json"])).0);
    let settings: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["guidance"].as_f64().unwrap(), r["steps"].as_u64().unwrap()))
        .collect();
    let two = [(1.0, 1), (1.0, 2), (2.0, 1), (2.0, 2)];
    assert_eq!(settings, [&two[..], &[(1.0, 0), (1.0, 1)]].concat(), "the direct path and the posterior come last");
    for row in rows.as_array().unwrap() {
        assert!((0.0..=1.0).contains(&row["top1"].as_f64().unwrap()), "{row}");
        assert_eq!(row["examples"], 359);
    }

    png(&at.join("a.png"), |i| (4 * i) as u8);
    png(&at.join("b.png"), |_| 255);
    fs::write(at.join("bad.png"), "not an image").unwrap();
    let classify =
        |images: &[&str]| tweedie(at, &[&["classify", "runs/digits-1", "--device", "cpu", "--json"], images].concat());
    let check = |out: &str, images: &[&str]| {
        let answers = json(out);
        let names: Vec<_> = answers.as_array().unwrap().iter().map(|a| a["image"].as_str().unwrap()).collect();
        assert_eq!(names, images);
        for a in answers.as_array().unwrap().iter().filter(|a| a["error"].is_null()) {
            let p: Vec<f64> = a["classes"].as_array().unwrap().iter().map(|c| c[1].as_f64().unwrap()).collect();
            assert_eq!(p.len(), 5);
            assert!(p.is_sorted_by(|a, b| a >= b) && p[0] > 0.1 && p.iter().sum::<f64>() <= 1.0 + 1e-9, "{p:?}");
        }
    };
    check(&succeeds(classify(&["a.png"])).0, &["a.png"]);
    let (code, out, err) = run(classify(&["a.png", "bad.png", "missing.png", "b.png"]));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("bad.png") && err.contains("missing.png") && err.contains("error: 2 of 4"), "{err}");
    check(&out, &["a.png", "bad.png", "missing.png", "b.png"]);
    assert!(json(&out)[1]["error"].as_str().unwrap().contains("not a JPEG"), "{out}");

    refused(train_digits(at, 1, &["--out", "runs/digits-1"]), &["runs/digits-1", "--resume"]);

    // One torn checkpoint is passed over and said so; when all are, the file is named.
    let cut = |path: &Path| {
        let file = File::options().write(true).open(path.join("model.safetensors")).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    let all = checkpoints(&run_dir);
    assert!(all.len() > 1);
    let best = fs::read_to_string(run_dir.join("checkpoints/best")).unwrap();
    let best = run_dir.join("checkpoints").join(best.trim());
    cut(&best);
    let (_, err) = succeeds(eval(&["--limit", "64"]));
    assert!(err.contains("model.safetensors"), "{err}");
    all.values().filter(|p| **p != best).for_each(|p| cut(p));
    refused(eval(&[]), &["runs/digits-1", "model.safetensors"]);
}

/// An image that cannot be read is left out, counted and named.
#[test]
fn examples_left_out_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    for (class, value) in [("dark", 20), ("light", 200)] {
        for split in ["train", "val"] {
            let folder = at.join("data").join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            (0..12).for_each(|i| png(&folder.join(format!("{i}.png")), |j| value + (j % 7) as u8));
        }
    }
    fs::write(at.join("data/train/light/torn.png"), "no image").unwrap();
    fs::write(at.join("data/val/dark/broken.png"), "no image").unwrap();
    let set = |s: &[&str]| {
        let mut c = train_digits(
            at,
            1,
            &["--data", "data", "--set", "train.batch=8", "--set", "model.encoder.channels=3", "--out"],
        );
        c.args(s);
        c
    };
    let (_, err) = succeeds(set(&["r"]));
    let torn = Path::new("data/train/light/torn.png").display().to_string();
    assert!(err.contains("1 example left out so far:") && err.contains(&torn), "{err}");
    assert_eq!(err.matches(&torn).count(), 1, "{err}");
    // Those for validation are named as well, once for all evaluations, and kept.
    let broken = Path::new("data/val/dark/broken.png").display().to_string();
    assert!(err.contains("1 validation example left out so far:"), "{err}");
    assert_eq!(err.matches(&broken).count(), 1, "{err}");
    let lines = fs::read_to_string(at.join("r/metrics.jsonl")).unwrap();
    assert!(lines.lines().any(|l| l.contains("\"validation\":true") && l.contains("broken.png")), "{lines}");
    let (_, err) = succeeds(tweedie(at, &["eval", "r", "--device", "cpu"]));
    assert!(err.contains("left out: ") && err.contains(&broken), "{err}");
    refused(set(&["f", "--set", "data.corrupt=fail"]), &[&torn]);
}

/// Of many bad rows the screen names the first few of the run, and metrics.jsonl all; texts that are cut are named too.
#[test]
fn every_row_left_out_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let rows: String = (0..60)
        .map(|i| match i % 6 {
            5 => "{\"text\": \"\"}\n".into(),
            4 => format!("{{\"text\": \"{}\"}}\n", "long ".repeat(9)),
            _ => "{\"text\": \"some words\"}\n".to_string(),
        })
        .collect();
    fs::create_dir(at.join("data")).unwrap();
    fs::write(at.join("data/x.train.jsonl"), &rows).unwrap();
    fs::write(at.join("data/x.valid.jsonl"), "{\"text\": \"some words more\"}\n".repeat(40)).unwrap();
    let run = |name: &str, sets: &[&str]| {
        let mut c = tweedie(at, &["train", "ptb-chars", "--data", "data", "--device", "cpu", "--out", name]);
        for s in ["train.epochs=2", "train.batch=8", "train.eval_images=2", "data.tokens=16", "sample.steps=2"] {
            c.args(["--set", s]);
        }
        for s in ["model.denoiser.width=16", "model.denoiser.depth=1", "model.denoiser.heads=2"].iter().chain(sets) {
            c.args(["--set", s]);
        }
        c
    };
    let listed = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(at.join(name).join("metrics.jsonl")).unwrap();
        let events = text.lines().map(json).filter(|e| e["event"] == "skipped");
        let mut all: Vec<String> =
            events.flat_map(|e| e["errors"].as_array().unwrap().clone()).map(|e| e.as_str().unwrap().into()).collect();
        all.sort();
        all.dedup();
        all
    };
    let (_, err) = succeeds(run("packed", &[]));
    assert_eq!(err.matches(": no text, or only an empty one").count(), 5, "{err}");
    assert!(err.contains("10 examples left out so far, 5 more than these (metrics.jsonl names all):"), "{err}");
    assert_eq!(listed("packed").len(), 10, "{:?}", listed("packed"));
    refused(run("f", &["data.corrupt=fail"]), &["x.train.jsonl, line 6: no text"]);
    // Line by line: ten empty rows, and ten of 45 characters where 16 fit.
    let (_, err) = succeeds(run("cut", &["data.layout=lines"]));
    assert!(err.contains("texts of too many tokens, cut ") && err.contains("x.train.jsonl, line "), "{err}");
    succeeds(run("skip", &["data.layout=lines", "data.overlong=skip"]));
    let all = listed("skip");
    // Which of the 20 are met depends on the draws that replace them; most are.
    let long = all.iter().filter(|e| e.contains(": 44 tokens where 16 fit")).count();
    assert!(long > 5 && all.len() - long > 5, "{all:?}");
}

/// A run that starts from another one, and goes on without it.
#[test]
fn a_warm_start_is_one_flag() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    succeeds(train_digits(dir, 1, &["--out", "a"]));
    let (_, err) = succeeds(train_digits(dir, 1, &["--out", "b", "--init-from", "a"]));
    assert!(err.contains("starts from the averaged weights of a/checkpoints/step-"), "{err}");
    let config = fs::read_to_string(dir.join("b/config.toml")).unwrap();
    assert!(config.contains("init_from = \"a\""), "{config}");
    fs::remove_dir_all(dir.join("a")).unwrap();
    succeeds(train(dir, &["--resume", "b", "--set", "train.epochs=2"]));
    refused(train_digits(dir, 1, &["--out", "c", "--init-from", "a"]), &["train.init_from", "a is not a run"]);
    let wider = train_digits(dir, 1, &["--out", "c", "--init-from", "b", "--set", "model.denoiser.width=32"]);
    refused(wider, &["set model.denoiser.width = 64 (here 32)"]);
    assert!(!dir.join("c").exists());
}

#[test]
fn help_names_every_recipe() {
    let dir = tempfile::tempdir().unwrap();
    for flag in ["-h", "--help"] {
        let (help, _) = succeeds(tweedie(dir.path(), &["train", flag]));
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs")).unwrap() {
            let name = file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string();
            assert!(help.contains(&name), "{name} is not in {help}");
        }
    }
}

#[test]
fn inspect_counts() {
    let dir = tempfile::tempdir().unwrap();
    let found = json(&succeeds(tweedie(dir.path(), &["data", "inspect", "embedded:digits", "--json"])).0);
    assert_eq!(found["classes"].as_array().unwrap().len(), 10);
    let splits = found["splits"].as_array().unwrap();
    for split in splits {
        let counts = split["per_class"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap());
        assert_eq!(split["images"].as_u64(), Some(counts.sum()));
    }
    // Validation images are held out of the 1,438 for training.
    let of = |i: usize| splits[i]["images"].as_u64().unwrap();
    assert_eq!((splits.len(), of(0) + of(1), of(2)), (3, 1438, 359));
}

/// Names in a folder and everything below it.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    all.extend(all.clone().iter().filter(|p| p.is_dir()).flat_map(|p| tree(p)));
    all.sort();
    all
}

#[test]
fn bad_input_is_named_and_nothing_is_written() {
    let dir: TempDir = tempfile::tempdir().unwrap();
    let at = dir.path();
    for folder in ["empty", "flat", "full"] {
        fs::create_dir(at.join(folder)).unwrap();
    }
    (0..3).for_each(|i| png(&at.join(format!("flat/{i}.png")), |_| i));
    fs::write(at.join("full/mine.txt"), "mine").unwrap();
    fs::write(at.join("broken.toml"), "[train\nbatch = 3").unwrap();
    let before = tree(at);
    let cases: &[(&[&str], &[&str])] = &[
        (&["nosuch"], &["nosuch", "digits"]),
        (&["broken.toml"], &["broken.toml"]),
        (&["cifar10"], &["no data"]),
        (&["digits", "--set", "train.batchs=3"], &["train.batchs", "'train.batch'"]),
        (&["digits", "--set", "train.batch=many"], &["train.batch", "whole number"]),
        (&["digits", "--set", "train.batch"], &["train.batch"]),
        (&["digits", "--data", "missing"], &["missing"]),
        (&["digits", "--data", "empty"], &["empty"]),
        (&["digits", "--data", "flat"], &["flat"]),
        (&["digits", "--set", "train.batch=1439"], &["train.batch = 1439", "1282"]),
        (&["digits", "--set", "model.encoder.patch=3"], &["patch = 3"]),
        (&["digits", "--set", "model.classes=3"], &["model.classes = 3", "10"]),
        (&["digits", "--set", "train.precision=bf16"], &["train.precision"]),
        (&["digits", "--out", "full"], &["full", "not empty"]),
        (&["--resume", "full"], &["full", "config.toml"]),
        (&["--resume", "missing"], &["missing"]),
    ];
    for (args, words) in cases {
        refused(train(at, args), words);
        assert_eq!(tree(at), before, "{args:?}");
        if !args.contains(&"--resume") && !args.contains(&"--out") {
            refused(train(at, &[args, &["--out", "new/run"][..]].concat()), words);
            assert_eq!(tree(at), before, "{args:?} --out");
        }
    }
    refused(tweedie(at, &["eval", "full", "--device", "cpu"]), &["full"]);
    refused(tweedie(at, &["data", "inspect", "missing"]), &["missing"]);
    assert_eq!(tree(at), before);
}

#[test]
fn shown_settings_are_a_recipe() {
    let dir = tempfile::tempdir().unwrap();
    let show = |recipe: &str| succeeds(tweedie(dir.path(), &["config", "show", recipe])).0;
    for recipe in ["digits", "imagenet-vit-b16"] {
        let shown = show(recipe);
        assert!(shown.contains("[train]"), "{shown}");
        fs::write(dir.path().join("again.toml"), &shown).unwrap();
        assert_eq!(show("again.toml"), shown);
    }
}
