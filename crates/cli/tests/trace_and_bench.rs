//! Commands that show and time a model: `trace`, `bench train`, `bench sample`, `bench growth`, `bench data`.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    let Output { status, stdout, stderr } = c.current_dir(dir).args(["--threads", "1"]).args(args).output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let (code, out, err) = run(dir, args);
    assert_eq!(code, 0, "{args:?}\n{err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

/// An 8×8 grey picture.
fn picture(path: &Path) {
    let mut encoder = png::Encoder::new(std::fs::File::create(path).unwrap(), 8, 8);
    encoder.set_color(png::ColorType::Grayscale);
    let data: Vec<u8> = (0..64).map(|i| (i * 4) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&data).unwrap();
}

fn digits(dir: &Path, out: &str, more: &[&str]) {
    let mut args = vec!["train", "digits", "--device", "cpu", "--out", out];
    for s in ["train.epochs=1", "train.warmup_epochs=0", "train.batch=256", "train.eval_images=32", "sample.steps=4"] {
        args.extend(["--set", s]);
    }
    args.extend(more);
    let (code, _, err) = run(dir, &args);
    assert_eq!(code, 0, "{err}");
}

#[test]
fn a_trace_has_every_step_and_its_page_needs_nothing_else() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    picture(&dir.join("x.png"));
    digits(dir, "tdd", &[]);
    let v = json(dir, &["trace", "tdd", "x.png", "--steps", "3", "--top", "4", "--json", "--device", "cpu"]);
    let steps = v["steps"].as_array().unwrap();
    assert_eq!((steps.len(), v["method"].as_str(), v["task"].as_str()), (3, Some("TDD"), Some("class")));
    assert_eq!(steps[0]["t"], 1000);
    for s in steps {
        let token = &s["tokens"][0];
        let top: Vec<f64> = token["top"].as_array().unwrap().iter().map(|t| t[1].as_f64().unwrap()).collect();
        assert!(top.len() == 4 && top.is_sorted_by(|a, b| a >= b) && top.iter().sum::<f64>() <= 1.0 + 1e-9, "{top:?}");
        assert_eq!(token["text"], token["top"][0][0]);
        let entropy = token["entropy"].as_f64().unwrap();
        assert!((0.0..=10_f64.ln() + 1e-6).contains(&entropy), "{entropy}");
    }
    assert_eq!(v["result"], steps[2]["tokens"][0]["text"]);
    // Class by step: the last row is that of the steps, the surest class first.
    let (classes, rows) = (v["heat"]["classes"].as_array().unwrap(), v["heat"]["p"].as_array().unwrap());
    assert_eq!((classes.len(), rows.len(), &classes[0]), (10, 3, &v["result"]));
    let (p, top) = (rows[2][0].as_f64().unwrap(), steps[2]["tokens"][0]["top"][0][1].as_f64().unwrap());
    assert!((p - top).abs() < 1e-6, "{p} and {top}");
    let (code, out, err) = run(dir, &["trace", "tdd", "x.png", "--html", "page.html", "--device", "cpu"]);
    assert_eq!(code, 0, "{err}");
    let page = std::fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(page.contains("data:image/png;base64,") && !page.contains("http"), "something outside the page");
    assert!(page.contains(&format!("\"result\":\"{}\"", out.trim())));
    // One line per step where there is no screen.
    let (_, out, _) = run(dir, &["trace", "tdd", "x.png", "--steps", "5", "--device", "cpu"]);
    assert_eq!(out.lines().filter(|l| l.starts_with("step ")).count(), 5, "{out}");
    for (args, word) in [
        (vec!["trace", "tdd"], "name one"),
        (vec!["trace", "tdd", "none.png"], "none.png"),
        (vec!["trace", "tdd", "x.png", "--top", "9"], "--top"),
        (vec!["trace", "tdd", "x.png", "--sampler", "best"], "best"),
    ] {
        let (code, _, err) = run(dir, &args);
        assert!(code == 1 && err.contains(word), "{args:?}\n{err}");
    }
    digits(dir, "mdd", &["--set", "model.method=mdd"]);
    let v = json(dir, &["trace", "mdd", "x.png", "--json", "--device", "cpu"]);
    assert_eq!((v["steps"].as_array().unwrap().len(), v["method"].as_str()), (1, Some("MDD")));
}

#[test]
fn models_are_timed_on_data_made_up() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let common = ["--device", "cpu", "--repeats", "2", "--format", "json"];
    let with = |args: &[&'static str]| [args, &common].concat();
    let v = json(dir, &with(&["bench", "train", "--preset", "digits", "--batch", "4,8"]));
    let rows = v.as_array().unwrap();
    assert_eq!(rows.iter().map(|r| r["batch"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 8]);
    for r in rows {
        let (ms, floor) = (r["ms"].as_f64().unwrap(), r["floor_ms"].as_f64().unwrap());
        assert!(ms > 0.0 && floor > 0.0 && r["fastest"].as_f64().unwrap() <= ms && r["peak"].as_u64().unwrap() > 0);
        assert!((r["share_of_floor"].as_f64().unwrap() - floor / ms).abs() < 1e-9);
    }
    // A captioner, and a model of text alone, which knows no guidance.
    for (preset, tokens) in [("shapes", 14), ("text", 16)] {
        let more = ["--preset", preset, "--batch", "2", "--steps", "1,2", "--vocab", "40", "--tokens"];
        let tokens = tokens.to_string();
        let v = json(dir, &[&["bench", "sample"], &more[..], &[tokens.as_str()], &common[..]].concat());
        assert_eq!(v.as_array().unwrap().len(), 2);
        assert_eq!((v[1]["steps"].as_u64(), v[1]["vocab"].as_u64()), (Some(2), Some(40)));
    }
    let (_, out, _) = run(dir, &["bench", "sample", "--preset", "digits", "--repeats", "1", "--format", "csv"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines.len(), lines[0].split(',').count()), (3, lines[1].split(',').count()), "{out}");
    let v = json(dir, &["bench", "sample", "--preset", "digits", "--repeats", "1", "--device", "cpu", "--json"]);
    assert_eq!(v.as_array().unwrap().len(), 2);
    let (code, _, err) = run(dir, &["bench", "sample", "--json", "--format", "csv"]);
    assert!(code == 1 && err.contains("--format"), "{err}");
    let (code, _, err) = run(dir, &["bench", "train", "--preset", "vit"]);
    assert!(code == 1 && err.contains("vit-b16"), "{err}");
}

#[test]
fn growth_is_measured_point_by_point() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let growth = ["bench", "growth", "--preset", "digits", "--device", "cpu", "--repeats", "1", "--points", "3"];
    let v = json(dir, &[&growth[..], &["--over", "batch,steps", "--out", "g", "--format", "json"]].concat());
    let curves = v["curves"].as_array().unwrap();
    // Training knows no sampling steps.
    let names: Vec<_> = curves.iter().map(|c| (c["what"].as_str().unwrap(), c["over"].as_str().unwrap())).collect();
    assert_eq!(names, [("train", "batch"), ("sample", "batch"), ("sample", "steps")]);
    for c in curves {
        let points = c["points"].as_array().unwrap();
        assert_eq!(points.iter().map(|p| p["value"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 4]);
        assert!(points.iter().all(|p| p["ms"].as_f64().unwrap() > 0.0 && p["peak"].as_f64().unwrap() > 0.0));
        // The fit is that of the last two points.
        let ms = |i: usize| points[i]["fastest"].as_f64().unwrap();
        assert!((c["time_exponent"].as_f64().unwrap() - (ms(2) / ms(1)).log2()).abs() < 1e-9);
        assert!(c["stopped"].is_null());
    }
    for name in ["growth-digits.md", "growth-digits.csv", "growth-digits.json", "growth-digits-batch-time.svg"] {
        assert!(dir.join("g").join(name).exists(), "{name}");
    }
    assert!(dir.join("g/growth-digits-steps-memory.png").exists());
    let csv = std::fs::read_to_string(dir.join("g/growth-digits.csv")).unwrap();
    assert!(csv.lines().count() == 10 && csv.lines().all(|l| l.split(',').count() == 9), "{csv}");
    // A point that takes too long ends its series and says so.
    let train = [&growth[..], &["--over", "batch", "--what", "train", "--format", "json"]].concat();
    let v = json(dir, &[&train[..], &["--limit", "1e-9"]].concat()); // no process starts so fast
    let c = &v["curves"][0];
    assert!(c["stopped"].as_str().unwrap().contains("more than 0.000000001 s") && c["time_exponent"].is_null(), "{c}");
    for limit in ["0", "nan", "-1", "inf"] {
        let (code, out, err) = run(dir, &[&train[..], &[&format!("--limit={limit}")]].concat());
        let told = "error: --limit must be a number of seconds above 0";
        assert!(code == 1 && out.is_empty() && err.starts_with(told), "{limit}: {err}");
    }
    // A file that cannot be written costs no point: here a folder stands in its place.
    std::fs::create_dir_all(dir.join("full/growth-digits.md")).unwrap();
    let (code, out, err) = run(dir, &[&train[..], &["--out", "full"]].concat());
    let v: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    assert_eq!((code, v["curves"][0]["points"][0]["value"].as_u64()), (1, Some(1)), "{err}");
    assert!(err.contains("error: ") && err.contains("growth-digits.md"), "{err}");
    let (code, _, err) = run(dir, &[&growth[..], &["--over", "tokens"]].concat());
    assert!(code == 1 && err.contains("digits has no sequence length"), "{err}");
}

/// Ctrl-C in a terminal reaches the command and the process that measures a point.
#[cfg(unix)]
#[test]
fn ctrl_c_loses_no_point_of_growth() {
    use std::io::{BufRead, BufReader, Read};
    use std::os::unix::process::CommandExt;
    use std::process::Stdio;
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    // The last of five points takes minutes by its size alone: however late this test is to hear of the first one, there is
    // something to stop. The signal ends the point that is being measured.
    let args = ["bench", "growth", "--preset", "digits", "--device", "cpu", "--over", "image", "--what", "train"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_tweedie"))
        .current_dir(dir)
        .args(["--threads", "1"])
        .args(args)
        .args(["--repeats", "300", "--limit", "3600", "--out", "g", "--format", "json"])
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|l| l.unwrap());
    let told = lines.find(|l| l.starts_with("train over image 4: ")).expect("no first point");
    assert!(told.contains(" ms, ") && told.ends_with("iB"), "{told}");
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|l| l.starts_with("interrupted; 0 of 1 series are complete")), "{rest:?}");
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let v: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    let curve = &v["curves"][0];
    let values: Vec<_> = curve["points"].as_array().unwrap().iter().map(|p| p["value"].as_u64().unwrap()).collect();
    assert!((1..5).contains(&values.len()) && [4, 8, 16, 32].starts_with(&values), "{values:?}");
    assert_eq!((curve["stopped"].as_str(), v["curves"].as_array().unwrap().len()), (Some("interrupted"), 1));
    assert_eq!(std::fs::read_to_string(dir.join("g/growth-digits.json")).unwrap(), out);
    assert_eq!(dir.join("g/growth-digits-image-time.svg").exists(), values.len() > 1, "a line has two points");
    let table = std::fs::read_to_string(dir.join("g/growth-digits.md")).unwrap();
    assert!(table.contains("| interrupted |"), "{table}");
}

#[test]
fn reading_data_is_timed() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    for i in 0..4 {
        let class = dir.join(format!("set/train/{}", i % 2));
        std::fs::create_dir_all(&class).unwrap();
        picture(&class.join(format!("{i}.png")));
    }
    let v = json(dir, &["bench", "data", "set", "--image", "16", "--batch", "2", "--seconds", "0.1", "--json"]);
    assert!(v["per_second"].as_f64().unwrap() > 0.0 && v["skipped"] == 0);
    let cached = ["bench", "data", "set", "--recipe", "digits", "--cache", "auto", "--batch", "2", "--seconds", "0.1"];
    let v = json(dir, &[&cached[..], &["--json"]].concat());
    assert!(v["cache"] == "auto" && v["augment"] == "digits" && v["image"] == 8, "{v}");
    let (code, _, err) = run(dir, &["bench", "data", "set", "--augment", "wild"]);
    assert!(code == 1 && err.contains("imagenet, crop, light, eval"), "{err}");
}
