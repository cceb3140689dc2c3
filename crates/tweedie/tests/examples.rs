//! The examples run, and what they assert holds.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Cargo builds examples beside the tests of a package: `target/PROFILE/examples` next to `target/PROFILE/deps`.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

fn runs(name: &str, words: &[&str]) {
    runs_with(name, &[], words);
}

fn runs_with(name: &str, args: &[&str], words: &[&str]) {
    let path = example(name);
    assert!(path.is_file(), "{} is not built: cargo build --release -p tweedie --examples", path.display());
    let out = Command::new(&path).args(args).stdin(Stdio::null()).output().unwrap();
    let (said, err) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{name}: {said}{err}");
    assert!(words.iter().all(|w| said.contains(w)), "{name}: {said}");
}

/// Every example is one of these.
#[test]
fn all_are_run() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let run =
        ["logits", "own_data", "own_denoiser", "own_op", "own_sampler", "own_schedule", "own_texts", "quickstart"];
    assert_eq!(names, run.map(|n| format!("{n}.rs")));
}

#[test]
fn quickstart() {
    runs("quickstart", &["epoch 12.00", "test images right"]);
}

/// Of runs of an earlier version; `reference/check_run.py` compares the numbers with PyTorch's.
#[test]
fn logits() {
    let dir = tempfile::tempdir().unwrap();
    for (name, shape) in [("digits", vec![12, 1, 10]), ("lines", vec![12, 24, 18])] {
        let run = format!("{}/../cli/tests/fixtures/runs/{name}/run", env!("CARGO_MANIFEST_DIR"));
        let file = dir.path().join(name);
        runs_with("logits", &[&run, file.to_str().unwrap()], &["logits [12"]);
        let all = tweedie::tensors::read(&file).unwrap();
        let logits = all.iter().find(|t| t.name == "logits").unwrap();
        assert_eq!(logits.shape, shape);
        assert!(logits.data.iter().all(|x| x.is_finite()) && logits.data.iter().any(|x| x.abs() > 0.1));
    }
}

#[test]
fn own_data() {
    runs("own_data", &["lying", "standing"]);
}

#[test]
fn own_denoiser() {
    runs("own_denoiser", &["Ancestral"]);
}

#[test]
fn own_op() {
    runs("own_op", &["derivatives agree", "slope 1.5"]);
}

#[test]
fn own_sampler() {
    runs("own_sampler", &["own: 5000 of 5000 pairs equal"]);
}

#[test]
fn own_texts() {
    runs("own_texts", &["stopped at step 1 of", "texts count right"]);
}

#[test]
fn own_schedule() {
    runs("own_schedule", &["after 200 steps"]);
}
