//! Answers that can be trusted: probabilities, wherever images come from; predictions as files; the page of mistakes.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

fn tweedie(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).args(["--threads", "1"]).args(args).stdin(Stdio::null());
    c
}

fn run(mut c: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = c.output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn succeeds(dir: &Path, args: &[&str]) -> (String, String) {
    let (code, out, err) = run(tweedie(dir, args));
    assert_eq!(code, 0, "{args:?}\n{err}");
    (out, err)
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    let (code, out, err) = run(tweedie(dir, args));
    assert_eq!((code, out.as_str()), (1, ""), "{args:?}\n{err}");
    words.iter().for_each(|w| assert!(err.contains(w), "{w} is not in: {err}"));
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// A run of digits that has learned little, trained once for all tests, in runs/tiny of a folder with some images.
fn place() -> &'static Path {
    static PLACE: OnceLock<TempDir> = OnceLock::new();
    let dir = PLACE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let sets =
            ["train.epochs=4", "train.batch=128", "model.encoder.depth=1", "model.denoiser.depth=1", "sample.steps=3"];
        let mut c = tweedie(at, &["train", "digits", "--device", "cpu", "--out", "runs/tiny"]);
        c.args(sets.iter().flat_map(|s| ["--set", s]));
        let (code, _, err) = run(c);
        assert_eq!(code, 0, "{err}");
        assert!(err.contains("probabilities at temperature"), "{err}");
        fs::create_dir_all(at.join("pictures/more")).unwrap();
        png(&at.join("pictures/a.png"), |i| (4 * i) as u8);
        png(&at.join("pictures/b.png"), |_| 0);
        png(&at.join("pictures/more/c.png"), |i| (i * i) as u8);
        dir
    });
    dir.path()
}

fn png(path: &Path, value: impl Fn(usize) -> u8) {
    let mut e = png::Encoder::new(fs::File::create(path).unwrap(), 8, 8);
    e.set_color(png::ColorType::Grayscale);
    e.write_header().unwrap().write_image_data(&(0..64).map(value).collect::<Vec<u8>>()).unwrap();
}

const CLASSIFY: [&str; 5] = ["classify", "runs/tiny", "--device", "cpu", "--json"];

/// By image, what is said of it.
fn answers(dir: &Path, images: &[&str]) -> Vec<(String, Value)> {
    let (out, _) = succeeds(dir, &[&CLASSIFY[..], images].concat());
    let all = json(&out);
    let all = all.as_array().unwrap().iter().map(|a| {
        let mut a = a.clone();
        let name = a.as_object_mut().unwrap().remove("image").unwrap();
        (name.as_str().unwrap().to_string(), a)
    });
    all.collect()
}

#[test]
fn an_answer_depends_neither_on_its_place_nor_on_the_others() {
    let at = place();
    let (a, b, c) = ("pictures/a.png", "pictures/b.png", "pictures/more/c.png");
    let find = |all: &[(String, Value)], name: &str| all.iter().find(|x| x.0 == name).unwrap().1.clone();
    let alone = answers(at, &[a]);
    for order in [vec![a, b, c], vec![c, b, a], vec![b, b, b, b, b, b, b, a, c]] {
        assert_eq!(find(&answers(at, &order), a), alone[0].1, "to the last bit");
    }
    let said = &alone[0].1;
    let p: Vec<f64> = said["classes"].as_array().unwrap().iter().map(|c| c[1].as_f64().unwrap()).collect();
    assert_eq!((said["probability"].as_f64(), said["class"].as_str()), (Some(p[0]), said["classes"][0][0].as_str()));
    assert!(said["sampled"].is_string() && said["certainty"].is_f64(), "{said}");
}

#[test]
fn images_come_from_folders_lists_and_stdin() {
    let at = place();
    let names = |all: Vec<(String, Value)>| all.into_iter().map(|a| a.0).collect::<Vec<_>>();
    let all = ["pictures/a.png", "pictures/b.png", "pictures/more/c.png"];
    assert_eq!(names(answers(at, &["pictures"])), all);
    fs::write(at.join("list.txt"), "pictures/b.png\n\npictures/more\n").unwrap();
    assert_eq!(names(answers(at, &["@list.txt", "pictures/a.png"])), [all[1], all[2], all[0]]);
    let piped = |bytes: &[u8]| {
        let mut c = tweedie(at, &[&CLASSIFY[..], &["-"]].concat());
        let mut child = c.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let out = child.wait_with_output().unwrap();
        (out.status.success(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (ok, out, err) = piped(b"pictures/a.png\npictures/more/c.png\n");
    assert!(ok, "{err}");
    assert_eq!((&json(&out)[0]["image"], &json(&out)[1]["image"]), (&all[0].into(), &all[2].into()));
    let (ok, out, err) = piped(&fs::read(at.join(all[0])).unwrap());
    assert!(ok, "{err}");
    assert_eq!(
        (json(&out)[0]["image"].as_str(), json(&out)[0]["classes"].clone()),
        (Some("stdin"), answers(at, &[all[0]])[0].1["classes"].clone())
    );
    let (ok, _, err) = piped(b"");
    assert!(!ok && err.contains("names no images"), "{err}");
}

#[test]
fn predictions_have_the_failed_ones_in_them() {
    let at = place();
    let (code, _, err) =
        run(tweedie(at, &["classify", "runs/tiny", "--device", "cpu", "pictures/a.png", "no.png", "--out", "p.csv"]));
    assert!(code == 1 && err.contains("error: 1 of 2 images"), "{err}");
    let csv = fs::read_to_string(at.join("p.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "image,label,class,probability,sampled,certainty,error"));
    assert!(lines[1].starts_with("pictures/a.png,,") && lines[2].starts_with("no.png,,,,,,No such file"), "{csv}");
    let (out, _) =
        succeeds(at, &["eval", "runs/tiny", "--device", "cpu", "--limit", "70", "--out", "p.jsonl", "--json"]);
    assert!(json(&out).as_array().unwrap().iter().all(|r| r["examples"] == 70), "exactly as many: {out}");
    let lines = fs::read_to_string(at.join("p.jsonl")).unwrap();
    let all: Vec<Value> = lines.lines().map(json).collect();
    assert_eq!(all.len(), 70);
    let right = all.iter().filter(|p| p["label"] == p["class"]).count();
    let rows = json(&out);
    let posterior = rows.as_array().unwrap().last().unwrap();
    assert_eq!(right as f64 / 70.0, posterior["top1"].as_f64().unwrap());
    refused(at, &["classify", "runs/tiny", "pictures/a.png", "--out", "p.txt"], &[".csv or .jsonl"]);
}

#[test]
fn flags_of_text_are_refused_on_a_classifier() {
    let at = place();
    let eval = ["eval", "runs/tiny", "--device", "cpu"];
    for flag in [["--bound", "4"], ["--candidates", "2"], ["--samples", "3"], ["--rank", "bound"]] {
        refused(at, &[&eval[..], &flag[..]].concat(), &[flag[0], "has no meaning here", "classes"]);
    }
    refused(at, &[&eval[..], &["--out", "folder"]].concat(), &["--out folder", ".csv or .jsonl"]);
}

#[test]
fn the_temperature_is_kept_and_fitted_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (at, run) = (dir.path(), dir.path().join("old"));
    copy(&place().join("runs/tiny"), &run);
    let kept = json(&fs::read_to_string(run.join("calibration.json")).unwrap());
    let eval = |more: &[&str]| {
        let (out, err) =
            succeeds(at, &[&["eval", "old", "--device", "cpu", "--split", "val", "--json"], more].concat());
        (json(&out).as_array().unwrap().last().unwrap().clone(), err)
    };
    let fitted = eval(&[]);
    assert!((fitted.0["temperature"].as_f64().unwrap() - kept[0]["temperature"].as_f64().unwrap()).abs() < 1e-9);
    fs::remove_file(run.join("calibration.json")).unwrap();
    let (plain, err) = eval(&[]);
    assert_eq!(plain["temperature"], 1.0);
    assert!(err.contains("tweedie eval old --calibrate"), "{err}");
    assert!(plain["nll"].as_f64().unwrap() > fitted.0["nll"].as_f64().unwrap(), "{plain} {fitted:?}");
    let (again, _) = eval(&["--calibrate"]);
    assert_eq!(again, fitted.0);
    assert_eq!(json(&fs::read_to_string(run.join("calibration.json")).unwrap()), kept);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn the_worst_mistakes_are_a_page() {
    let at = place();
    succeeds(at, &["eval", "runs/tiny", "--device", "cpu", "--mistakes", "m.html", "--worst", "7"]);
    let page = fs::read_to_string(at.join("m.html")).unwrap();
    assert_eq!(page.matches("<figure>").count(), 7, "{page}");
    assert_eq!(page.matches("src=\"data:image/png;base64,").count(), 7);
    assert!(!page.contains("http"), "nothing outside it");
    // The surest comes first.
    let first: Vec<f64> = page
        .split("<figure>")
        .skip(1)
        .map(|f| f.split("width:").nth(1).unwrap().split('%').next().unwrap().parse().unwrap())
        .collect();
    assert!(first.is_sorted_by(|a, b| a >= b), "{first:?}");
}

#[test]
fn a_folder_of_runs_names_them() {
    let at = place();
    for command in [&["classify", "runs", "pictures/a.png"][..], &["eval", "runs"]] {
        refused(at, command, &["runs is not a run but a folder of runs", "tiny", "runs/tiny"]);
    }
}
