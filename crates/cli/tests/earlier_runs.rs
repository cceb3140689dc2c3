//! Runs of an earlier version (`fixtures/runs`) evaluate, generate and go on as that version did it: on processors with AVX-512,
//! as it was made on, to equal bits; on others products are summed up in another order.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A copy of a fixture to work in.
fn fixture(name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs").join(name), &path);
    (dir, path)
}

fn copy(from: &Path, to: &Path) {
    if from.is_file() {
        fs::copy(from, to).unwrap();
        return;
    }
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        copy(&from.join(&name), &to.join(&name));
    }
}

fn tweedie(dir: &Path, args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_tweedie"))
        .current_dir(dir)
        .args(args)
        .args(["--device", "cpu"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&tweedie(dir, args)).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

fn expected(dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(dir.join("expected").join(name)).unwrap()).unwrap()
}

fn exact() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Equal, but for keys that came later; or where bits may differ, numbers within `tolerance` of their size and anything else equal.
fn assert_like(got: &Value, want: &Value, tolerance: f64) {
    match (got, want) {
        (Value::Array(g), Value::Array(w)) => {
            assert_eq!(g.len(), w.len());
            g.iter().zip(w).for_each(|(g, w)| assert_like(g, w, tolerance));
        }
        (Value::Object(g), Value::Object(w)) => {
            w.iter().for_each(|(key, w)| assert_like(&g[key], w, tolerance));
        }
        _ if exact() => assert_eq!(got, want),
        (Value::Number(g), Value::Number(w)) => {
            let (g, w) = (g.as_f64().unwrap(), w.as_f64().unwrap());
            assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "{g} instead of {w}");
        }
        _ => assert_eq!(got, want),
    }
}

/// Go on to the end: weights and metrics are those of the version that the run was made by.
fn goes_on(dir: &Path, last: &str) {
    tweedie(dir, &["train", "--resume", "run"]);
    for file in ["model.safetensors", "ema.safetensors"] {
        let got = fs::read(dir.join("run/checkpoints").join(last).join(file)).unwrap();
        let want = fs::read(dir.join("expected").join(file)).unwrap();
        assert_eq!(got.len(), want.len());
        assert!(got == want || !exact(), "{file} has other bits");
    }
    let want = lines(&dir.join("expected/metrics.jsonl"));
    let first = want[0]["step"].as_u64();
    let is_new = |m: &Value| m["event"] != "saved" && m["step"].as_u64() >= first;
    let mut got: Vec<Value> = lines(&dir.join("run/metrics.jsonl")).into_iter().filter(is_new).collect();
    for m in &mut got {
        let m = m.as_object_mut().unwrap();
        ["images_per_second", "waited", "eta"].iter().for_each(|timing| drop(m.remove(*timing)));
    }
    assert_eq!(got.len(), want.len());
    got.iter().zip(&want).for_each(|(got, want)| assert_like(got, want, 0.1));
}

#[test]
fn a_run_of_classes_evaluates_and_goes_on() {
    let (_kept, dir) = fixture("digits");
    let sweep = ["--steps", "1,20", "--guidance", "1,2", "--sampler", "argmax,ancestral", "--json"];
    let mut rows = json(&dir, &[&["eval", "run"], &sweep[..]].concat());
    // Later versions tell more.
    let posterior = rows.as_array_mut().unwrap().pop().unwrap();
    assert_eq!(posterior["sampler"], "posterior");
    rows.as_array_mut().unwrap().iter_mut().for_each(|r| drop(r.as_object_mut().unwrap().remove("auroc").unwrap()));
    assert_like(&rows, &expected(&dir, "eval.json"), 0.05);
    goes_on(&dir, "step-00000160");
}

/// And a trace tells of the text that `generate` writes, as do the previews of a training: each with its end, since each line has
/// one.
#[test]
fn a_run_of_lines_generates_traces_and_goes_on() {
    let (_kept, dir) = fixture("lines");
    assert_like(&json(&dir, &["eval", "run", "--json"]), &expected(&dir, "eval.json"), 0.05);
    let written = json(&dir, &["generate", "run", "-n", "4", "--json"]);
    if exact() {
        assert_eq!(written, expected(&dir, "generate.json"));
    }
    let trace = json(&dir, &["trace", "run", "--json"]);
    assert_eq!(trace["result"], written[0][0]["text"]);
    tweedie(&dir, &["generate", "run", "--trace", "trace.json"]);
    let told: Value = serde_json::from_slice(&fs::read(dir.join("trace.json")).unwrap()).unwrap();
    assert_eq!((&told["result"], &told["steps"]), (&trace["result"], &trace["steps"]));
    goes_on(&dir, "step-00001020");
    let preview = fs::read_to_string(dir.join("run/samples/step-00001020.txt")).unwrap();
    let written = json(&dir, &["generate", "run/checkpoints/step-00001020", "-n", "8", "--json"]);
    let written: String =
        written.as_array().unwrap().iter().map(|w| format!("{}\n\n", w[0]["text"].as_str().unwrap())).collect();
    assert_eq!(preview, written);
}

/// Their settings have old names: each is told of once, and what is written has the new ones.
#[test]
fn old_names_of_settings_are_told_of() {
    let (_kept, dir) = fixture("digits");
    let show = |sets: &[&str]| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
        let out = c.current_dir(&dir).args(["config", "show", "run/config.toml"]).args(sets).output().unwrap();
        (out.status.success(), [out.stdout, out.stderr].map(|b| String::from_utf8(b).unwrap()))
    };
    let (ok, [settings, notes]) = show(&["--set", "train.noisy_copies=3"]);
    assert!(ok && settings.contains("\nnoisy_copies = 3\n") && !settings.contains("kfold"), "{settings}");
    let names = ["train.kfold is called train.noisy_copies", "train.known is called train.clean_tokens"];
    for note in names.into_iter().chain(["sample.guesses is called sample.uncommitted"]) {
        assert_eq!(notes.matches(&format!(": {note} now\n")).count(), 1, "{notes}");
    }
    let (ok, [_, error]) = show(&["--set", "train.kfold=2", "--set", "train.noisy_copies=3"]);
    assert!(!ok && error.contains("both are given"), "{error}");
}
