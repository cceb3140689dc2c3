//! The quickstart for captions with a network too small to learn much: everything is written, and what is written is true.

use std::fs;
use std::process::{Command, Stdio};

use tempfile::TempDir;

const TINY: &[&str] = &[
    "train.epochs=1",
    "train.batch=100",
    "train.noisy_copies=1",
    "train.eval_images=32",
    "train.log_every=10",
    "model.encoder.patch=16",
    "model.encoder.width=16",
    "model.encoder.depth=1",
    "model.encoder.heads=1",
    "model.denoiser.width=16",
    "model.denoiser.depth=1",
    "model.denoiser.heads=1",
    "sample.steps=2",
];

#[test]
fn captions_are_trained_compared_and_drawn() {
    let dir = TempDir::new().unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir.path()).stdin(Stdio::null()).args(["--threads", "2"]);
    c.args(["quickstart", "--task", "caption", "--device", "cpu", "--out", "qs"]);
    c.args(TINY.iter().flat_map(|s| ["--set", s]));
    let output = c.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(output.status.success(), "{err}");

    // Two models, each by its own number of steps and in one.
    let rows: Vec<Vec<&str>> =
        out.lines().filter(|l| l.starts_with('|')).map(|l| l.split('|').map(str::trim).collect()).collect();
    let names: Vec<(&str, &str)> = rows.iter().skip(2).map(|r| (r[1], r[2])).collect();
    assert_eq!(names, [("TDD", "2"), ("TDD", "1"), ("MDD", "2"), ("MDD", "1")], "{out}");
    assert!(rows[2..].iter().all(|r| r[3].parse::<f64>().is_ok_and(|p| (0.0..=100.0).contains(&p))), "{out}");
    // The first test caption is shown with what both say.
    let at = out.find("\n  TDD: ").unwrap();
    assert!(out[..at].lines().last().unwrap().starts_with("a "), "{out}");
    assert_eq!(out.matches("\n  TDD: ").count(), 6, "{out}");

    let run = dir.path().join("qs");
    for name in ["curves", "loss", "steps", "samples"] {
        for kind in ["svg", "png"] {
            let file = run.join(format!("figures/{name}.{kind}"));
            assert!(fs::metadata(&file).is_ok_and(|m| m.len() > 1000), "{}", file.display());
        }
    }
    let image = fs::read(run.join("images/5.png")).unwrap();
    assert_eq!(image[..4], *b"\x89PNG");
    // Each run is a folder that needs nothing else, and the two differ in the method alone.
    let config = |name: &str| fs::read_to_string(run.join(name).join("config.toml")).unwrap();
    assert_eq!(config("tdd").replace("method = \"tdd\"", "method = \"mdd\""), config("mdd"));
    for name in ["tdd", "mdd"] {
        for file in ["tokenizer.json", "metrics.jsonl", "checkpoints"] {
            assert!(run.join(name).join(file).exists(), "{name}/{file}");
        }
    }
}
