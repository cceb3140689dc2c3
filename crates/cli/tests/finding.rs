//! Finding one's way: help, names that are nearly right, completions, manual pages, settings explained, runs listed, compared and
//! cleaned, model cards, exports.

mod common;

use std::fs;
use std::path::Path;

use common::{run, tweedie};
use serde_json::Value;

/// In a folder of its own, with one thread.
fn at(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut c = tweedie(&["--threads", "1"]);
    c.current_dir(dir).args(args);
    run(c)
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let (code, out, err) = at(dir, args);
    assert_eq!(code, 0, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

/// Some steps of digits.
fn train(dir: &Path, out: &str, sets: &[&str]) {
    let mut args = vec!["train", "digits", "--device", "cpu", "--out", out];
    let usual =
        ["train.epochs=3", "train.batch=256", "train.eval_every=1", "train.eval_images=16", "train.log_every=1"];
    let small = ["train.warmup_epochs=0.5", "train.checkpoint_every=1", "train.keep=9", "sample.steps=2"];
    usual.iter().chain(&small).chain(sets).for_each(|s| args.extend(["--set", s]));
    let (code, _, err) = at(dir, &args);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn help_is_there_however_it_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (code, bare, err) = run(tweedie(&[]));
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(bare.contains("quickstart") && bare.contains("Usage: tweedie"), "{bare}");
    assert_eq!(at(dir.path(), &["help"]).0, 0);
    let (code, of_train, _) = run(tweedie(&["help", "train"]));
    assert!(code == 0 && of_train.contains("--resume"), "{of_train}");
    let (code, of_compare, _) = run(tweedie(&["help", "runs", "compare"]));
    assert!(code == 0 && of_compare.contains("--out <FILE>"), "{of_compare}");
}

/// What only reads or measures can be read by programs.
#[test]
fn every_reading_command_has_json() {
    for command in [
        "eval",
        "classify",
        "caption",
        "generate",
        "trace",
        "score",
        "runs",
        "runs compare",
        "runs clean",
        "export",
        "data inspect",
        "tokenizer train",
        "tokenizer show",
        "config show",
        "config explain",
        "devices",
        "selftest",
        "bench train",
        "bench sample",
        "bench data",
        "bench growth",
        "bench ops",
    ] {
        let words: Vec<&str> = std::iter::once("help").chain(command.split(' ')).collect();
        let (code, help, _) = run(tweedie(&words));
        assert!(code == 0 && help.contains("--json"), "{command}: {help}");
    }
}

#[test]
fn names_that_are_nearly_right_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (code, _, err) = at(dir, &["config", "show", "digts"]);
    assert!(code == 1 && err.contains("hint: did you mean 'digits'?"), "{err}");
    fs::create_dir_all(dir.join("runs/digits-1/checkpoints")).unwrap();
    fs::write(dir.join("runs/digits-1/config.toml"), "").unwrap();
    for wrong in ["runs/digit-1", "digits-1"] {
        let (code, _, err) = at(dir, &["eval", wrong, "--device", "cpu"]);
        assert!(code == 1 && err.contains("did you mean runs/digits-1?"), "{wrong}: {err}");
    }
    let (code, _, err) = at(dir, &["train", "digits", "--set", "train.batch=-1"]);
    assert!(code == 1 && err.contains("a whole number that is not negative") && !err.contains("usize"), "{err}");
}

#[test]
fn a_setting_is_explained() {
    let (code, out, _) = run(tweedie(&["config", "explain", "train.batch"]));
    assert_eq!(code, 0);
    for part in ["train.batch (default 128)", "Images per optimizer step", "digits", "small batches give enough steps"]
    {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let dir = tempfile::tempdir().unwrap();
    let v = json(dir.path(), &["config", "explain", "sample.sampler", "--json"]);
    assert!(v["values"].as_array().unwrap().len() >= 5 && v["recipes"].is_array(), "{v}");
    assert!(json(dir.path(), &["config", "explain", "train", "--json"]).as_array().unwrap().len() > 15);
    let (code, _, err) = run(tweedie(&["config", "explain", "train.bach"]));
    assert!(code == 1 && err.contains("did you mean 'train.batch'?"), "{err}");
    let (code, _, err) = run(tweedie(&["config", "explain", "train.kfold"]));
    assert!(code == 0 && err.contains("train.noisy_copies"), "{err}");
    let v = json(dir.path(), &["config", "show", "digits", "--changed", "--json"]);
    assert!(v.as_array().unwrap().iter().any(|c| c["key"] == "train.batch" && c["value"] == "32"), "{v}");
}

#[test]
fn completions_know_recipes_settings_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("runs/mine-1/checkpoints")).unwrap();
    fs::write(dir.path().join("runs/mine-1/config.toml"), "").unwrap();
    let asked = |words: &[&str]| {
        let mut c = tweedie(&["--", "tweedie"]);
        c.current_dir(dir.path()).args(words).env("_TWEEDIE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        c.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_COMPLETE_COMP_TYPE", "9");
        let (code, out, err) = run(c);
        assert_eq!(code, 0, "{err}");
        out
    };
    assert!(asked(&["tr"]).contains("train") && asked(&["train", "dig"]).contains("digits"));
    assert!(asked(&["train", "digits", "--set", "train.ba"]).contains("train.batch="));
    assert!(asked(&["eval", "runs/m"]).contains("runs/mine-1"));
    assert!(asked(&["classify", "embedded:d"]).contains("embedded:digits-mdd"));
    assert!(asked(&["config", "explain", "sample.st"]).contains("sample.steps"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, script, _) = run(tweedie(&["completions", shell]));
        assert!(code == 0 && script.contains("_TWEEDIE_COMPLETE") && script.contains("tweedie"), "{shell}: {script}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let (code, page, _) = run(tweedie(&["man", "runs", "compare"]));
    assert!(code == 0 && page.contains(".TH tweedie-runs-compare 1") && page.contains("\\-\\-out"), "{page}");
    assert_eq!(run(tweedie(&["man", "nope"])).0, 1);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(at(dir.path(), &["man", "--out", "pages"]).0, 0);
    for name in ["tweedie", "tweedie-train", "tweedie-bench-growth", "tweedie-config-explain"] {
        assert!(dir.path().join(format!("pages/{name}.1")).is_file(), "{name}");
    }
}

#[test]
fn runs_are_listed_compared_and_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    assert_eq!(at(dir, &["runs"]).0, 1, "there is no folder yet");
    train(dir, "runs/one", &[]);
    train(dir, "runs/two", &["train.lr=0.001", "seed=3"]);
    assert!(!dir.join("runs/one/figures").exists(), "an empty folder");
    let list = json(dir, &["runs", "--json"]);
    let one = list.as_array().unwrap().iter().find(|r| r["name"] == "one").unwrap();
    assert_eq!(
        (&one["state"], &one["step"], &one["total_steps"]),
        (&"finished".into(), &one["total_steps"], &one["step"])
    );
    assert_eq!((&one["task"], &one["method"], &one["metric"]), (&"class".into(), &"tdd".into(), &"top-1".into()));
    let (_, table, _) = at(dir, &["runs"]);
    assert!(table.contains("one") && table.contains("class, TDD") && table.contains("finished"), "{table}");

    let (code, text, err) = at(dir, &["runs", "compare", "runs/one", "runs/two", "--out", "both.svg"]);
    assert!(code == 0 && err.contains("wrote both.svg"), "{err}");
    assert!(text.contains("best top-1") && text.contains("train.lr") && !text.contains("train.batch"), "{text}");
    assert!(fs::read_to_string(dir.join("both.svg")).unwrap().contains("Training loss"));
    assert_eq!(at(dir, &["runs", "compare", "runs/one", "runs/two", "--out", "both.pdf"]).0, 1);
    let v = json(dir, &["runs", "compare", "runs/one", "runs/two", "--json"]);
    assert_eq!(v["differ"].as_object().unwrap().keys().collect::<Vec<_>>(), ["seed", "train.lr"]);

    // A run that was killed before its first checkpoint, and one of the same kind with a file of somebody else.
    for name in ["dead", "kept"] {
        fs::create_dir_all(dir.join(format!("runs/{name}/checkpoints"))).unwrap();
        fs::copy(dir.join("runs/one/config.toml"), dir.join(format!("runs/{name}/config.toml"))).unwrap();
    }
    fs::write(dir.join("runs/kept/notes.txt"), "mine").unwrap();
    let steps = |run: &str| {
        let all = fs::read_dir(dir.join(format!("runs/{run}/checkpoints"))).unwrap();
        all.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("step-")).count()
    };
    assert_eq!(steps("one"), 3);
    let v = json(dir, &["runs", "clean", "--json"]);
    let bytes = v["bytes"].as_u64().unwrap();
    assert!(v["removed"] == false && bytes > 0 && steps("one") == 3 && dir.join("runs/dead").exists(), "{v}");
    let (code, out, _) = at(dir, &["runs", "clean", "--yes"]);
    assert!(code == 0 && out.contains("freed"), "{out}");
    assert!(steps("one") <= 2 && !dir.join("runs/dead").exists() && dir.join("runs/kept/notes.txt").exists());
    assert_eq!(at(dir, &["eval", "runs/one", "--limit", "8", "--device", "cpu"]).0, 0, "the best is still there");
    assert!(at(dir, &["runs", "clean"]).1.starts_with("nothing to remove"));
}

#[test]
#[cfg(unix)]
fn a_run_in_training_is_not_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    train(dir, "runs/one", &[]);
    let lock = fs::File::options().append(true).open(dir.join("runs/one/.lock")).unwrap();
    lock.try_lock().unwrap();
    assert_eq!(json(dir, &["runs", "--json"])[0]["state"], "running");
    let (code, out, err) = at(dir, &["runs", "clean", "--yes"]);
    assert!(code == 0 && out.starts_with("nothing to remove") && err.contains("being trained"), "{out}{err}");
}

#[test]
fn a_run_has_a_card_and_its_weights_move() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    train(dir, "runs/one", &[]);
    let card = fs::read_to_string(dir.join("runs/one/MODEL_CARD.md")).unwrap();
    for part in
        ["---\nlibrary_name: tweedie\n", "# one\n", "trained to the end", "top-1", "train.batch = 256", "bibtex"]
    {
        assert!(card.contains(part), "{part} is not in\n{card}");
    }
    let v = json(dir, &["export", "runs/one", "--to", "pytorch", "--out", "moved", "--json"]);
    assert_eq!(v["files"], serde_json::json!(["model.safetensors", "config.json", "README.md"]));
    let config: Value = serde_json::from_slice(&fs::read(dir.join("moved/config.json")).unwrap()).unwrap();
    let about = &config["export"];
    assert_eq!((about["alpha_bar"].as_array().unwrap().len(), about["classes"].as_array().unwrap().len()), (1001, 10));
    assert_eq!((&config["model"]["classes"], about["mean"].as_array().unwrap().len()), (&10.into(), 1));
    assert!(fs::read_to_string(dir.join("moved/README.md")).unwrap().contains("from load_run import load"));
    // An earlier export is written anew; somebody else's folder is not.
    assert_eq!(at(dir, &["export", "runs/one", "--to", "pytorch", "--out", "moved"]).0, 0);
    fs::create_dir(dir.join("full")).unwrap();
    fs::write(dir.join("full/mine.txt"), "").unwrap();
    let (code, _, err) = at(dir, &["export", "runs/one", "--to", "pytorch", "--out", "full"]);
    assert!(code == 1 && err.contains("full"), "{err}");
}
