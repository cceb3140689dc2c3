//! Models that come with the program: as good as said, taken by the commands that use a model, refused by those that want a run.

mod common;

use std::fs;
use std::path::Path;

use common::{run, tweedie};
use serde_json::Value;
use tweedie::data::SequenceSet;
use tweedie::embedded::{self, Quality};
use tweedie::{Dataset, Image};

fn at(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut c = tweedie(args);
    c.current_dir(dir);
    run(c)
}

fn succeeds(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = at(dir, args);
    assert_eq!(code, 0, "{args:?}: {err}");
    out
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let out = succeeds(dir, args);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

fn stated(name: &str) -> Quality {
    embedded::all().iter().find(|m| m.name == name).unwrap().quality
}

fn written(dir: &Path, name: &str, image: &Image) {
    fs::write(dir.join(name), image.to_png().unwrap()).unwrap();
}

/// The first image of the embedded test split.
fn digit(dir: &Path) -> String {
    let data = Dataset::embedded("digits").unwrap();
    let item = data.final_split().unwrap().0.get(0).unwrap();
    written(dir, "digit.png", &item.image);
    item.label.to_string()
}

/// The first scene of the embedded test split.
fn scene(dir: &Path) -> String {
    let data = SequenceSet::embedded("shapes").unwrap();
    let test = data.final_split().unwrap().0;
    written(dir, "scene.png", &test.image(0).unwrap().unwrap());
    test.texts(0).unwrap().remove(0)
}

/// All 359 test images; one of them is .28 %.
#[test]
fn digits_are_classified_as_well_as_said() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["digits", "digits-mdd"] {
        let rows = json(dir.path(), &["eval", &format!("embedded:{name}"), "--device", "cpu", "--json"]);
        let Quality::Accuracy(said) = stated(name) else { panic!("{name}: {:?}", stated(name)) };
        for row in rows.as_array().unwrap() {
            let top1 = 100.0 * row["top1"].as_f64().unwrap();
            assert!(row["examples"] == 359 && top1 >= 97.0, "{name}: {row}");
            assert!((top1 - said).abs() < 0.6 || row["sampler"] != "posterior", "{name}: {top1}, said to be {said}");
        }
    }
}

/// Both models over steps, by the last step and by the mean of all, in one table and one figure. The twin's one pass is a level line.
#[test]
fn a_curve_of_classes_is_drawn() {
    let dir = tempfile::tempdir().unwrap();
    fn eval<'a>(flags: &[&'a str]) -> Vec<&'a str> {
        [&["eval", "embedded:digits", "--device", "cpu", "--limit", "64"], flags].concat()
    }
    let flags =
        ["--twin", "embedded:digits-mdd", "--steps", "1,3", "--guidance", "1", "--running-mean=true,false", "--json"];
    let rows = json(dir.path(), &eval(&[&flags[..], &["--figure", "curve.svg"]].concat()));
    let measured = |r: &Value| (r["steps"].as_u64().unwrap(), r["running_mean"] == true);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows[..4].iter().map(measured).collect::<Vec<_>>(), [(1, true), (3, true), (1, false), (3, false)]);
    assert_eq!(rows[0]["top1"], rows[2]["top1"], "one step is its own mean");
    let alone = json(dir.path(), &["eval", "embedded:digits-mdd", "--device", "cpu", "--limit", "64", "--json"]);
    assert_eq!((&rows[4]["nll"], &rows[4]["sampler"]), (&alone[0]["nll"], &"embedded:digits-mdd: argmax".into()));
    let same = json(dir.path(), &eval(&["--twin", "embedded:digits", "--json"]));
    assert_eq!((&same[1]["sampler"], &same[0]["top1"]), (&"embedded:digits: argmax".into(), &same[1]["top1"]));
    let drawn = fs::read_to_string(dir.path().join("curve.svg")).unwrap();
    for line in ["argmax, running mean", "MDD (one pass)", "network passes per image"] {
        assert!(drawn.contains(line), "{line}");
    }
    for (flags, why) in [
        (&["--figure", "c.svg"][..], "--steps 1,2,4"),
        (&["--steps", "1,2", "--figure", "c.pdf"], "FILE.svg"),
        (&["--twin", "embedded:shapes-mdd"], "it knows other classes"),
    ] {
        let (code, _, err) = at(dir.path(), &eval(flags));
        assert!(code == 1 && err.contains(why), "{err}");
    }
}

/// 300 of the 2,000 test scenes: the share that is right has a standard error of .6 where 99 % are.
#[test]
fn scenes_are_captioned_as_well_as_said() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["shapes", "shapes-mdd"] {
        let model = format!("embedded:{name}");
        let v = json(dir.path(), &["eval", &model, "--limit", "300", "--device", "cpu", "--json"]);
        let exact = 100.0 * v["rows"][0]["exact"].as_f64().unwrap();
        let Quality::Exact(said) = stated(name) else { panic!("{name}: {:?}", stated(name)) };
        assert!(said >= 98.0 && exact >= 98.0 && (exact - said).abs() < 2.0, "{name}: {exact}, said to be {said}");
    }
}

/// An excerpt of 16,640 characters from the part of the text that training never saw.
#[test]
fn shakespeare_takes_as_many_bits_as_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("shakespeare-test.txt"), embedded::SHAKESPEARE).unwrap();
    for name in ["shakespeare", "shakespeare-mdd"] {
        let model = format!("embedded:{name}");
        let data = ["--data", "shakespeare-test.txt", "--bound", "8", "--device", "cpu", "--json"];
        let v = json(dir.path(), &[&["eval", model.as_str()], data.as_slice()].concat());
        let (bits, error) = (v["bits_per_char"].as_f64().unwrap(), v["bits_per_char_error"].as_f64().unwrap());
        let Quality::Bits(said) = stated(name) else { panic!("{name}: {:?}", stated(name)) };
        assert!(v["chars"] == 16640 && v["unknown"] == 0.0, "{v}");
        assert!(
            error < 0.05 && (bits - said).abs() < 2.0 * error + 0.005,
            "{name}: {bits} ± {error}, said to be {said}"
        );
    }
}

#[test]
fn commands_that_use_a_model_take_them_in_an_empty_folder() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (label, caption) = (digit(dir), scene(dir));
    for name in ["digits", "digits-mdd"] {
        let model = format!("embedded:{name}");
        let v = json(dir, &["classify", &model, "digit.png", "--device", "cpu", "--json"]);
        assert!(v.to_string().contains(&format!("\"{label}\"")), "{v}");
        let (_, _, err) = at(dir, &["classify", &model, "digit.png", "--device", "cpu"]);
        assert!(!err.contains("no temperature"), "{err}");
        succeeds(dir, &["trace", &model, "digit.png", "--device", "cpu", "--json"]);
    }
    for name in ["shapes", "shapes-mdd"] {
        let model = format!("embedded:{name}");
        let said = succeeds(dir, &["caption", &model, "scene.png", "--device", "cpu"]);
        assert!(said.contains(&caption), "{said} for {caption}");
        succeeds(dir, &["trace", &model, "scene.png", "--device", "cpu", "--json"]);
    }
    for name in ["shakespeare", "shakespeare-mdd"] {
        let model = format!("embedded:{name}");
        let text = succeeds(dir, &["generate", &model, "--prompt", "ROMEO:", "--steps", "8", "--device", "cpu"]);
        assert!(text.contains("ROMEO:") && text.len() > 100, "{text}");
        succeeds(dir, &["trace", &model, "--steps", "4", "--device", "cpu", "--json"]);
    }
    let left: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing is written but what was asked for: {left:?}");
}

#[test]
fn commands_that_want_a_run_say_what_these_are_for() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let refused = |args: &[&str], words: &[&str]| {
        let (code, _, err) = at(dir, args);
        assert!(code == 1 && words.iter().all(|w| err.contains(w)), "{args:?}: {err}");
    };
    let all: Vec<&str> = embedded::names().collect();
    refused(&["classify", "embedded:digit", "x.png", "--device", "cpu"], &all);
    refused(&["generate", "embedded:shakespeare", "--raw", "--device", "cpu"], &["averaged weights", "--raw"]);
    refused(&["eval", "embedded:shakespeare", "--device", "cpu"], &["where its data are", "--data PATH"]);
    for args in [
        &["train", "--resume", "embedded:digits"][..],
        &["eval", "embedded:digits", "--calibrate", "--device", "cpu"],
        &["export", "embedded:digits", "--to", "file"],
    ] {
        refused(args, &["embedded:digits", "comes with the program", "classify"]);
    }
    let v = json(dir, &["export", "embedded:digits", "--to", "file", "--out", "mine.tdd", "--json"]);
    json(dir, &["export", "mine.tdd", "--to", "file", "--out", "again.tdd", "--json"]);
    let inside = embedded::all().iter().find(|m| m.name == "digits").unwrap().bytes;
    let [mine, again] = ["mine.tdd", "again.tdd"].map(|f| fs::read(dir.join(f)).unwrap());
    // Settings that are younger than the model come with their defaults; the weights behind them are the same bytes.
    assert!(v["bytes"] == mine.len() && mine == again && mine.ends_with(&inside[inside.len() / 2..]));
    assert_eq!(at(dir, &["export", "embedded:digits", "--to", "pytorch", "--out", "torch"]).0, 0);
}

/// A run as a file answers as the run does, but for the rounding of its weights.
#[test]
fn a_run_becomes_a_file_that_answers_as_it_does() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    digit(dir);
    let small = ["train.epochs=2", "train.batch=256", "train.warmup_epochs=0.5", "sample.steps=2"];
    let sets: Vec<&str> = small.iter().flat_map(|s| ["--set", s]).collect();
    succeeds(dir, &[&["train", "digits", "--device", "cpu", "--out", "one"], sets.as_slice()].concat());
    let v = json(dir, &["export", "one", "--to", "file", "--json"]);
    assert!(v["file"].as_str().unwrap().ends_with("one/model.tdd") || v["file"] == "one\\model.tdd", "{v}");
    fs::rename(dir.join("one/model.tdd"), dir.join("moved.tdd")).unwrap();
    let answer = |model: &str| json(dir, &["classify", model, "digit.png", "--top", "10", "--device", "cpu", "--json"]);
    let (run, file) = (numbers(&answer("one")), numbers(&answer("moved.tdd")));
    assert!(!run.is_empty() && run.len() == file.len());
    assert!(run.iter().zip(&file).all(|(a, b)| (a - b).abs() < 0.02), "{run:?} {file:?}");
    let (code, _, err) = at(dir, &["export", "one", "--to", "file", "--out", "one.bin"]);
    assert!(code == 1 && err.contains(".tdd"), "{err}");
    fs::write(dir.join("torn.tdd"), &fs::read(dir.join("moved.tdd")).unwrap()[..5000]).unwrap();
    let (code, _, err) = at(dir, &["classify", "torn.tdd", "digit.png", "--device", "cpu"]);
    assert!(code == 1 && err.contains("torn.tdd: not a readable model"), "{err}");
}

/// All numbers of an answer, in its order.
fn numbers(v: &Value) -> Vec<f64> {
    match v {
        Value::Number(n) => n.as_f64().into_iter().collect(),
        Value::Array(all) => all.iter().flat_map(numbers).collect(),
        Value::Object(all) => all.values().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}
