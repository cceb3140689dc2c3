//! Text.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{json, refused, run, succeeds};

const TEXT: &str = r#"
[data]
task = "text"
layout = "packed"
tokens = 16
tokenizer = "chars"
val_fraction = 0.2
[model]
preset = "text"
denoiser = { width = 32, depth = 1, heads = 2 }
[process]
schedule = "vocab-aware"
[loss]
smoothing = 0.0
[train]
batch = 64
noisy_copies = 2
warmup_epochs = 0.1
eval_images = 16
checkpoint_every = 1
[sample]
steps = 3
"#;

/// A lowercase text of some 35,000 characters: the end of it can be held out.
fn text(dir: &Path) {
    let words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"];
    let line = |i: usize| (0..8).map(|j| words[(i * 7 + j * 3) % 10]).collect::<Vec<_>>().join(" ");
    fs::write(dir.join("text.txt"), (0..1200).map(|i| line(i) + "\n").collect::<String>()).unwrap();
    fs::write(dir.join("text.toml"), TEXT).unwrap();
}

/// A run `half` like `whole` that is stopped after two of its four epochs and goes on ends with the same weights.
fn goes_on_the_same(dir: &Path, train: &impl Fn(&str, &[&str]), whole: &str, half: &str, more: &[&str]) {
    train(half, &[&["--set", "train.epochs=4", "--set", "train.keep=9"], more].concat());
    let checkpoints = dir.join(half).join("checkpoints");
    let all = fs::read_dir(&checkpoints).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut steps: Vec<String> = all.filter(|n| n.starts_with("step-")).collect();
    steps.sort();
    assert_eq!(steps.len(), 4);
    let model =
        |run: &str| fs::read(dir.join(run).join("checkpoints").join(&steps[3]).join("model.safetensors")).unwrap();
    steps[2..].iter().for_each(|s| fs::remove_dir_all(checkpoints.join(s)).unwrap());
    succeeds(dir, &["train", "--resume", half]);
    assert!(model(half) == model(whole), "the resumed run {half} has other weights");
}

#[test]
fn text_is_learned_written_and_measured() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    text(dir);
    let train = |out: &str, more: &[&str]| {
        succeeds(dir, &[&["train", "text.toml", "--data", "text.txt", "--out", out], more].concat());
    };
    train("tdd", &["--set", "train.epochs=4"]);
    // The folder is the whole model: its tokenizer lies in it.
    assert!(dir.join("tdd/tokenizer.json").exists());
    assert!(fs::read_dir(dir.join("tdd/samples")).unwrap().count() > 0);

    text_training_goes_on(dir, &train);
    text_is_written(dir);
    let alone = json(dir, &["generate", "tdd", "-n", "40", "--json"]);
    let alone: Vec<&Value> = alone.as_array().unwrap().iter().map(|t| &t[0]["text"]).collect();
    samples_are_measured(dir, &alone);
    texts_are_traced(dir, &alone);
    flags_of_text_are_refused(dir);
    the_masked_twin_writes(dir, &train);
}

/// Runs that stop and go on, with and without clean tokens, with Muon, and with the settings of an earlier version.
fn text_training_goes_on(dir: &Path, train: &impl Fn(&str, &[&str])) {
    goes_on_the_same(dir, train, "tdd", "half", &[]);
    // Clean tokens need a first time that is next to clean, which vocab-aware has not.
    let clean = ["--set", "train.clean_tokens=0.5", "--set", "process.schedule=cosine"];
    train("clean", &[&["--set", "train.epochs=4"], &clean[..]].concat());
    goes_on_the_same(dir, train, "clean", "half-clean", &clean);
    let muon = ["--set", "train.optimizer=muon"];
    train("muon", &[&["--set", "train.epochs=4"], &muon[..]].concat());
    goes_on_the_same(dir, train, "muon", "half-muon", &muon);
    let resume = ["train", "--resume", "half-muon", "--set", "train.optimizer=adamw"];
    refused(dir, &resume, &["train.optimizer", "\"muon\"", "\"adamw\""]);
    let bits = |run: &str| json(dir, &["eval", run, "--json"])["bits_per_char"].as_f64().unwrap();
    assert_ne!(bits("muon"), bits("tdd"), "the setting has no effect");
    // Settings that runs of earlier versions do not have take their defaults.
    let path = dir.join("half/config.toml");
    let old = fs::read_to_string(&path).unwrap();
    let new = |l: &str| ["clean_tokens =", "uncommitted =", "optimizer ="].iter().any(|key| l.starts_with(key));
    fs::write(&path, old.lines().filter(|l| !new(l)).collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(json(dir, &["eval", "half", "--json"]), json(dir, &["eval", "tdd", "--json"]));
}

/// Texts that begin with a prompt or fill a gap, their bound, and their trace.
fn text_is_written(dir: &Path) {
    for start in ["the cat", "a", ""] {
        let v = json(dir, &["generate", "tdd", "-n", "2", "--prompt", start, "--json"]);
        for row in v.as_array().unwrap() {
            let text = row[0]["text"].as_str().unwrap();
            assert!(text.starts_with(start) && text.chars().count() == 16, "'{text}' does not begin with '{start}'");
        }
    }
    let v = json(dir, &["generate", "tdd", "--infill", "the ___ sat", "--candidates", "3", "--json"]);
    let rows = v[0].as_array().unwrap();
    let nats: Vec<f64> = rows.iter().map(|r| r["nats"][0].as_f64().unwrap()).collect();
    assert!(nats.len() == 3 && nats.is_sorted(), "{nats:?}");
    for r in rows {
        let text = r["text"].as_str().unwrap();
        assert!(text.starts_with("the ") && text[7..].starts_with(" sat"), "{text}");
    }
    let v = json(dir, &["eval", "tdd", "--json", "--limit", "32"]);
    let (bits, chars) = (v["bits_per_char"].as_f64().unwrap(), v["bits_per_token"].as_f64().unwrap());
    assert!(bits > 0.0 && bits.is_finite() && (bits - chars).abs() < 1e-9, "{v}"); // characters are its tokens
    let v = json(dir, &["trace", "tdd", "--json"]);
    assert_eq!((v["steps"].as_array().unwrap().len(), v["steps"][0]["tokens"].as_array().unwrap().len()), (3, 16));
}

/// Samples are those of `generate`, which are `alone`, and the bound stands beside them.
fn samples_are_measured(dir: &Path, alone: &[&Value]) {
    let v =
        json(dir, &["eval", "tdd", "--samples", "40", "--examples", "3", "--out", "made", "--limit", "5", "--json"]);
    assert!(v["bits_per_char"].as_f64().unwrap() > 0.0 && v["samples"]["steps"] == 3, "{v}");
    assert_eq!(v["samples"]["diversity"]["captions"], 40);
    assert_eq!(v["samples"]["examples"].as_array().unwrap().iter().collect::<Vec<_>>(), alone[..3]);
    let made: Value = serde_json::from_slice(&fs::read(dir.join("made/samples.json")).unwrap()).unwrap();
    assert_eq!(made.as_array().unwrap().iter().collect::<Vec<_>>(), alone);
    let out =
        succeeds(dir, &["eval", "tdd", "--samples", "2", "--examples", "1", "--limit", "5", "--sampler", "softmax"]);
    assert!(out.contains("bits/char") && out.contains("self-BLEU-4") && out.contains("| softmax"), "{out}");
}

/// The trace is that of the first text, the best if there are several, and changes nothing.
fn texts_are_traced(dir: &Path, alone: &[&Value]) {
    let v = json(dir, &["generate", "tdd", "-n", "40", "--trace", "trace.json", "--json"]);
    assert_eq!(v.as_array().unwrap().iter().map(|t| &t[0]["text"]).collect::<Vec<_>>(), alone);
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let trace: Value = serde_json::from_str(&read("trace.json")).unwrap();
    assert_eq!((&trace["result"], trace["steps"].as_array().unwrap().len()), (alone[0], 3));
    assert_eq!(trace["steps"][2]["tokens"].as_array().unwrap().len(), 16);
    let v = json(dir, &["generate", "tdd", "--candidates", "3", "--prompt", "the", "--trace", "best.json", "--json"]);
    let trace: Value = serde_json::from_str(&read("best.json")).unwrap();
    assert_eq!(trace["result"], v[0][0]["text"]);
    // The last step of a trace is the text: that of another candidate would have other tokens.
    let tokens = trace["steps"][2]["tokens"].as_array().unwrap().iter().map(|t| t["text"].as_str().unwrap());
    let [result, tokens] = [v[0][0]["text"].as_str().unwrap().to_string(), tokens.collect()];
    let letters = |s: &str| s.chars().filter(char::is_ascii_lowercase).collect::<String>();
    assert_eq!(letters(&tokens), letters(&result));
    refused(dir, &["generate", "tdd", "--trace", "trace.txt"], &["trace.txt", ".html"]);
}

fn flags_of_text_are_refused(dir: &Path) {
    refused(dir, &["generate", "tdd", "--prompt", "THE"], &["vocabulary lacks 'THE'"]);
    refused(dir, &["generate", "tdd", "--prompt", "the cat sat on a mat and saw"], &["28 tokens", "16"]);
    refused(dir, &["generate", "tdd", "--prompt", "a", "--infill", "a_"], &["not both"]);
    refused(dir, &["generate", "tdd", "--unmask", "confident"], &["--unmask has no meaning here"]);
    refused(dir, &["generate", "tdd", "--uncommitted", "0.5"], &["--uncommitted has no meaning here"]);
    refused(dir, &["generate", "tdd", "--correction", "0.5"], &["--correction has no meaning here"]);
    refused(dir, &["eval", "tdd", "--twin", "mdd"], &["--twin has no meaning here"]);
    refused(dir, &["eval", "tdd", "--figure", "f.svg"], &["--figure has no meaning here"]);
    refused(dir, &["eval", "tdd", "--steps", "1,5"], &["--steps has no meaning here"]);
    refused(dir, &["eval", "tdd", "--examples", "2"], &["--examples has no meaning here", "--samples"]);
    refused(dir, &["eval", "tdd", "--samples", "2", "--clip", "x"], &["--clip has no meaning here"]);
    refused(dir, &["eval", "tdd", "--samples", "2", "--steps", "1,2"], &["one way"]);
    assert_eq!(json(dir, &["eval", "tdd", "--json", "--limit", "5"])["sequences"], 5);
    refused(dir, &["caption", "tdd", "x.png"], &["without images", "tweedie generate tdd"]);
    refused(dir, &["classify", "tdd", "x.png"], &["writes text"]);
    refused(
        dir,
        &["train", "text.toml", "--data", "text.txt", "--set", "model.condition=\"image\"", "--out", "x"],
        &["model.condition"],
    );
}

/// The masked twin on the same text.
fn the_masked_twin_writes(dir: &Path, train: &impl Fn(&str, &[&str])) {
    train("mdd", &["--set", "train.epochs=2", "--set", "model.method=mdd"]);
    let v = json(dir, &["generate", "mdd", "--prompt", "the cat", "--json"]);
    assert!(v[0][0]["text"].as_str().unwrap().starts_with("the cat"));
    assert!(json(dir, &["eval", "mdd", "--json", "--limit", "32"])["bits_per_char"].as_f64().unwrap() > 0.0);
    for sampler in ["softmax", "ddim"] {
        let words = ["--sampler", "ddim has no meaning here", "--unmask"];
        refused(dir, &["generate", "mdd", "--sampler", sampler], &words);
        refused(dir, &["eval", "mdd", "--samples", "2", "--sampler", sampler], &words);
    }
    succeeds(dir, &["generate", "mdd", "--sampler", "multinomial"]);
    refused(dir, &["eval", "mdd", "--path", "flow"], &["masked tokens have no noise"]);
    // What the recipe says is no flag, and the table says what is done.
    train("mdd-ddim", &["--set", "train.epochs=1", "--set", "model.method=mdd", "--set", "sample.sampler=ddim"]);
    let out = succeeds(dir, &["eval", "mdd-ddim", "--samples", "2", "--limit", "5"]);
    assert!(out.contains("MDD random, argmax"), "{out}");
}

/// A staggered model is measured and sampled along its own path unless another is asked for. What PyTorch could not load is not exported.
#[test]
fn staggered_text_goes_its_own_path() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    text(dir);
    let sets = ["train.epochs=1", "train.stagger=4", "model.denoiser.evidence=true", "sample.sampler=\"ancestral\""];
    let sets = sets.iter().flat_map(|s| ["--set", s]).collect::<Vec<_>>();
    succeeds(dir, &[&["train", "text.toml", "--data", "text.txt", "--out", "r"], &sets[..]].concat());
    let eval = |more: &[&str]| json(dir, &[&["eval", "r", "--limit", "5", "--json"], more].concat());
    assert_eq!(eval(&[])["path"], "staggered path, 4 times a token's own");
    assert_eq!(eval(&["--path", "shared"])["path"], "shared time");
    // Steps of the flow are counted for the whole of its path.
    let flow = eval(&["--path", "flow:4", "--bound", "64"]);
    assert_eq!(flow["path"], "deterministic flow, staggered path, 4 times a token's own");
    assert!(flow["bits_per_char"].as_f64().unwrap() > 0.0, "{flow}");
    refused(dir, &["eval", "r", "--path", "flow:4", "--bound", "63"], &["63 steps are too few", "64 or more"]);
    for (flags, stagger) in [(&[][..], 4), (&["--stagger", "2"], 2), (&["--stagger", "0"], 4)] {
        assert_eq!(eval(&[&["--samples", "3"], flags].concat())["samples"]["stagger"], stagger, "{flags:?}");
    }
    assert_eq!(eval(&["--samples", "3", "--stagger", "1"])["samples"].get("stagger"), None);
    let written = |flags: &[&str]| succeeds(dir, &[&["generate", "r", "--steps", "12"], flags].concat());
    assert!(written(&[]) == written(&["--stagger", "4"]) && written(&[]) != written(&["--stagger", "1"]));
    assert!(written(&["--prompt", "the cat"]).starts_with("the cat"));
    refused(dir, &["generate", "r", "--stagger", "2000"], &["--stagger = 2000", "[0, 1024]"]);
    let commits = ["generate", "r", "--sampler", "argmax", "--unmask", "confident", "--stagger", "4"];
    refused(dir, &commits, &["--stagger has no meaning here", "--unmask random"]);
    let export = ["export", "r", "--to", "pytorch", "--out", "e"];
    let out = Command::new(env!("CARGO_BIN_EXE_tweedie")).current_dir(dir).args(export).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(
        out.status.code() == Some(1) && said.contains("model.denoiser.evidence") && said.contains("--to file"),
        "{said}"
    );
    assert!(!dir.join("e").exists());
}

/// Paths that are not a run, a tokenizer of another one, text of another alphabet: each is said.
#[test]
fn what_does_not_belong_to_a_run_is_said() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    text(dir);
    succeeds(dir, &["train", "text.toml", "--data", "text.txt", "--out", "r", "--set", "train.epochs=1"]);
    let checkpoints = dir.join("r/checkpoints");
    let step = fs::read_to_string(checkpoints.join("best")).unwrap().trim().to_string();
    let at_home = succeeds(dir, &["generate", "r"]);
    for (folder, path) in [(dir, format!("r/checkpoints/{step}")), (&checkpoints, step.clone())] {
        assert_eq!(succeeds(folder, &["generate", &path]), at_home);
    }
    fs::create_dir(dir.join("lone")).unwrap();
    for file in fs::read_dir(checkpoints.join(&step)).unwrap().map(|e| e.unwrap()) {
        fs::copy(file.path(), dir.join("lone").join(file.file_name())).unwrap();
    }
    let lone = dir.join("lone").display().to_string();
    for path in ["lone", &lone] {
        let words =
            [&format!("error: {path} is a checkpoint without its run"), "config.toml", "RUN/checkpoints/step-N"];
        refused(dir, &["generate", path], &words);
    }
    refused(dir, &["generate", "r/checkpoints/best"], &["r/checkpoints/best is a part of the run r", "pass r"]);

    fs::write(dir.join("loud.txt"), fs::read_to_string(dir.join("text.txt")).unwrap().to_uppercase()).unwrap();
    let (code, out, err) = run(dir, &["eval", "r", "--data", "loud.txt", "--limit", "8", "--json"]);
    let unknown = serde_json::from_str::<Value>(&out).unwrap()["unknown"].as_f64().unwrap();
    // All but blanks and line ends.
    assert!(code == 0 && (0.6..0.9).contains(&unknown), "{unknown}");
    assert!(err.contains(&format!("note: {:.2} % of the tokens", 100.0 * unknown)), "{err}");
    let (_, _, err) = run(dir, &["eval", "r", "--limit", "8"]);
    assert!(!err.contains("% of the tokens"), "{err}");

    let file = dir.join("r/tokenizer.json");
    let mut v: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let symbols = v["symbols"].as_array_mut().unwrap();
    let trained = symbols.len() + 3;
    symbols.pop();
    fs::write(&file, v.to_string()).unwrap();
    let numbers = [format!("{} classes", trained - 1), format!("a tokenizer of {trained}")];
    for (args, name) in
        [(&["generate", "r"][..], "r/tokenizer.json has"), (&["train", "--resume", "r"], "the tokenizer")]
    {
        refused(dir, args, &[name, &numbers[0], &numbers[1]]);
    }
}

/// Text of two kilobytes: one stream, its end held out, whatever its tokens are.
#[test]
fn a_short_text_is_packed_and_its_end_held_out() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    text(dir);
    let long = fs::read_to_string(dir.join("text.txt")).unwrap();
    fs::write(dir.join("short.txt"), &long[..2400]).unwrap();
    fs::write(dir.join("word.txt"), &long[..100]).unwrap();
    let train = |file: &str, tokenizer: &str| {
        let set = ["--set", "train.epochs=2", "--set", "train.batch=8", "--set", tokenizer];
        let out = tokenizer.rsplit('=').next().unwrap();
        run(dir, &[&["train", "text.toml", "--data", file, "--out", out], &set[..]].concat())
    };
    for tokenizer in ["data.tokenizer=chars", "data.tokenizer=word"] {
        let (code, _, err) = train("short.txt", tokenizer);
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("the end of the training text held out (20 %)"), "{err}");
        assert!(err.contains(" texts/s ") && !err.contains("images/s"), "{err}");
        // Packed text is counted in the windows that it is cut into, which are what batches are made of.
        let (before, _) = err.split_once(" windows of 16 tokens for training").unwrap_or_else(|| panic!("{err}"));
        let windows: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(windows > 10 && err.contains(&format!("2 epochs of {}, batches of 8", windows / 8)), "{err}");
    }
    let v = json(dir, &["eval", "chars", "--json"]);
    let chars = v["chars"].as_u64().unwrap();
    assert!((240..=800).contains(&chars), "about a fifth of 2400, not {chars}");
    let (code, _, err) = train("word.txt", "data.tokenizer=bpe:300");
    assert!(code == 1 && err.contains("validation"), "{err}");
}
