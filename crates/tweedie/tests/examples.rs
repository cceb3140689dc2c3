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
    let path = example(name);
    assert!(path.is_file(), "{} is not built: cargo build --release -p tweedie --examples", path.display());
    let out = Command::new(&path).stdin(Stdio::null()).output().unwrap();
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
    let run = ["own_data", "own_denoiser", "own_op", "own_sampler", "own_schedule", "own_texts", "quickstart"];
    assert_eq!(names, run.map(|n| format!("{n}.rs")));
}

#[test]
fn quickstart() {
    runs("quickstart", &["epoch 12.00", "test images right"]);
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
