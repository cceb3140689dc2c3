//! Captions.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::{json, refused, run, succeeds};

const CAPTIONS: &str = r#"
[data]
task = "caption"
tokens = 8
tokenizer = "word:50"
val_fraction = 0.25
[model]
preset = "shapes"
encoder = { image = 16, patch = 8, width = 32, depth = 1, heads = 2 }
denoiser = { width = 32, depth = 1, heads = 2 }
[loss]
smoothing = 0.0
[train]
batch = 8
warmup_epochs = 0.1
eval_images = 8
[sample]
steps = 3
"#;

/// Red and blue squares with a caption each, as COCO lays them out.
fn captions(dir: &Path) {
    let (images, notes) = (dir.join("coco/train2017"), dir.join("coco/annotations"));
    [&images, &notes].iter().for_each(|d| fs::create_dir_all(d).unwrap());
    let (mut list, mut annotations) = (Vec::new(), Vec::new());
    for i in 0..32 {
        let (name, color, word) = (format!("{i}.png"), [[200, 0, 0], [0, 0, 200]][i % 2], ["red", "blue"][i % 2]);
        let mut encoder = png::Encoder::new(fs::File::create(images.join(&name)).unwrap(), 16, 16);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&color.repeat(256)).unwrap();
        list.push(serde_json::json!({ "id": i, "file_name": name }));
        annotations.push(serde_json::json!({ "id": i, "image_id": i, "caption": format!("a {word} square") }));
    }
    let all = serde_json::json!({ "images": list, "annotations": annotations });
    fs::write(notes.join("captions_train2017.json"), all.to_string()).unwrap();
    fs::write(dir.join("captions.toml"), CAPTIONS).unwrap();
}

/// The first number called `name`.
fn number(v: &Value, name: &str) -> Option<f64> {
    match v {
        Value::Object(m) => m.get(name).and_then(Value::as_f64).or_else(|| m.values().find_map(|v| number(v, name))),
        Value::Array(a) => a.iter().find_map(|v| number(v, name)),
        _ => None,
    }
}

#[test]
fn captions_are_learned_written_and_measured() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    captions(dir);
    for (out, method) in [("tdd", "tdd"), ("mdd", "mdd")] {
        let method = format!("model.method={method}");
        let sets = ["--set", "train.epochs=2", "--set", &method];
        succeeds(dir, &[&["train", "captions.toml", "--data", "coco", "--out", out], &sets[..]].concat());
    }
    let image = "coco/train2017/0.png";
    captions_are_written(dir, image);
    captions_are_measured(dir);
    clip_scores_captions(dir);
    flags_of_captions_are_refused(dir, image);
    a_curve_is_drawn(dir);
    a_folder_is_captioned(dir, image);
}

/// Captions with a gap, several candidates, and an image that is missing.
fn captions_are_written(dir: &Path, image: &str) {
    for model in ["tdd", "mdd"] {
        let v = json(dir, &["caption", model, image, "--infill", "a _ square", "--length", "3", "--json"]);
        let text = v[0]["captions"][0]["text"].as_str().unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        assert!(words.len() == 3 && words[0] == "a" && words[2] == "square", "{model}: '{text}'");
    }
    let out = succeeds(dir, &["caption", "tdd", image, "--candidates", "2"]);
    assert_eq!(out.matches(" nats ").count(), 2, "{out}");
    // A missing image is named and the others are still captioned.
    let (code, out, err) = run(dir, &["caption", "tdd", "none.png", image]);
    assert!(code == 1 && out.contains(image) && err.contains("none.png") && err.contains("1 of 2"), "{out}{err}");
}

/// Settings beside each other; what was written can be scored by itself.
fn captions_are_measured(dir: &Path) {
    let sweep = ["--steps", "1,3", "--guidance", "1,2", "--bound", "2", "--examples", "1", "--out", "res"];
    let v = json(dir, &[&["eval", "tdd", "--json"], &sweep[..]].concat());
    let rows = v["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for r in rows {
        assert!(r["cider_d"].as_f64().unwrap() >= 0.0 && r["exact"].as_f64().unwrap() <= 1.0, "{r}");
        let ci = &r["intervals"]["cider_d"];
        assert!(ci[0].as_f64().unwrap() <= ci[1].as_f64().unwrap());
    }
    assert!(v["bound"]["nats_per_token"].as_f64().unwrap() > 0.0 && v["examples"][0]["references"][0].is_string());
    // What it wrote can be scored by itself, with the same result.
    let scored = json(dir, &["score", "res/references.json", "res/captions.json", "--allow-empty", "--json"]);
    assert_eq!(number(&scored, "cider_d"), number(&rows[3], "cider_d"), "{scored}");
}

/// Images of written captions are found by their names, and CLIP scores them the same. That CLIP is a tiny random one.
fn clip_scores_captions(dir: &Path) {
    let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tweedie/tests/fixtures/clip/quick");
    let clip = clip.to_str().unwrap();
    let v = json(dir, &["eval", "tdd", "--steps", "1,3", "--clip", clip, "--out", "res", "--json"]);
    let rows = v["clip"]["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|r| r[0].as_str().unwrap()).collect();
    let want = ["ground truth", "ground truth, shuffled", "argmax, 1 steps, guidance 1", "argmax, 3 steps, guidance 1"];
    assert_eq!(names, want);
    let refs: Value = serde_json::from_slice(&fs::read(dir.join("res/references.json")).unwrap()).unwrap();
    for (image, note) in refs["images"].as_array().unwrap().iter().zip(refs["annotations"].as_array().unwrap()) {
        let number: usize = image["file_name"].as_str().unwrap().trim_end_matches(".png").parse().unwrap();
        assert_eq!(note["image_id"], image["id"]);
        assert_eq!(note["caption"], format!("a {} square", ["red", "blue"][number % 2]), "{image}");
    }
    let of = ["score", "res/references.json", "res/captions.json", "--allow-empty", "--json"];
    let scored = json(dir, &[&of[..], &["--clip", clip, "--images", "coco/train2017"]].concat());
    let scored = scored["clip"]["rows"].as_array().unwrap();
    assert_eq!([&rows[0][1], &rows[1][1], &rows[3][1]], [&scored[0][1], &scored[1][1], &scored[2][1]]);
    assert_ne!(rows[0][1]["cosine"], rows[1][1]["cosine"]);
    assert!(succeeds(dir, &["eval", "tdd", "--clip", clip]).contains(&format!("CLIP: {clip}")));
    refused(dir, &["eval", "tdd", "--clip", "coco"], &["coco"]);
}

fn flags_of_captions_are_refused(dir: &Path, image: &str) {
    refused(dir, &["eval", "tdd", "--samples", "3"], &["--samples has no meaning here"]);

    let v = json(dir, &["eval", "mdd", "--json", "--unmask", "random,confident"]);
    assert_eq!(v["rows"].as_array().unwrap().len(), 2);
    refused(dir, &["generate", "tdd"], &["looks at images", "tweedie caption tdd"]);
    refused(dir, &["caption", "tdd", image, "--infill", "a zebra"], &["lacks 'zebra'"]);
    refused(dir, &["trace", "tdd"], &["name one"]);
    for flag in ["--unmask=random", "--uncommitted=0.5", "--correction=0.1", "--stagger=4"] {
        let name = flag.split('=').next().unwrap();
        refused(dir, &["eval", "tdd", flag], &[name, "has no meaning here", "train.clean_tokens"]);
        refused(dir, &["caption", "tdd", image, flag], &[name, "has no meaning here", "train.clean_tokens"]);
    }
    refused(dir, &["caption", "mdd", image, "--uncommitted", "0.5"], &["--uncommitted has no meaning here"]);
    refused(dir, &["caption", "mdd", image, "--sampler", "ddim"], &["--sampler", "has no meaning here", "--unmask"]);
    refused(dir, &["eval", "mdd", "--sampler", "argmax,softmax"], &["--sampler", "has no meaning here", "--unmask"]);
    refused(dir, &["caption", "mdd", image, "--schedule", "cosine"], &["--schedule has no meaning here"]);
    succeeds(dir, &["caption", "mdd", image, "--unmask", "confident"]);
    refused(dir, &["caption", "mdd", image, "--correction", "0.1", "--steps", "2"], &["--steps 3 or more"]);
    succeeds(dir, &["caption", "mdd", image, "--correction", "0.3", "--steps", "4"]);

    refused(dir, &["eval", "tdd", "--path", "shared"], &["--path has no meaning here", "--bound"]);
    refused(dir, &["eval", "tdd", "--bound", "1", "--path", "reveal"], &["train.clean_tokens"]);
    refused(dir, &["eval", "mdd", "--bound", "1", "--path", "shared"], &["masked path"]);
    refused(dir, &["eval", "mdd", "--bound", "1", "--path", "groups:0"], &["groups:N"]);
    let v = json(dir, &["eval", "mdd", "--limit", "4", "--bound", "1", "--path", "groups:2", "--json"]);
    assert_eq!(v["bound"]["path"], "masked path, 2 tokens at a time");
}

/// Both models over steps in one table and one figure; guidance takes two passes a step.
fn a_curve_is_drawn(dir: &Path) {
    refused(dir, &["eval", "tdd", "--figure", "curve.pdf"], &["FILE.svg"]);
    refused(dir, &["eval", "tdd", "--limit", "4", "--steps", "2", "--figure", "curve.svg"], &["--steps 1,2,4"]);
    refused(dir, &["eval", "tdd", "--twin", "none"], &["none"]);
    let flags = ["--limit", "4", "--steps", "1,2,50", "--guidance", "1,2", "--unmask", "confident", "--json"];
    let v = json(dir, &[&["eval", "mdd", "--twin", "tdd", "--figure", "curve.svg"], &flags[..]].concat());
    let rows = v["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(of("passes"), of("steps") * of("guidance"), "{row}");
    }
    let steps =
        |tdd: bool| rows.iter().filter(move |r| r["unmask"].is_null() == tdd).map(|r| r["steps"].as_u64().unwrap());
    let most = steps(false).max().unwrap();
    assert!(most < 50 && steps(true).max() == Some(50), "no more steps than tokens: {most}");
    assert!(fs::read_to_string(dir.join("curve.svg")).unwrap().starts_with("<svg"));
}

/// A folder of images, each captioned as by itself; more than fit in a batch, with one in it that cannot be read.
fn a_folder_is_captioned(dir: &Path, image: &str) {
    fs::write(dir.join("coco/train2017/10bad.png"), "no image").unwrap();
    let copies = ["coco/train2017", image, image];
    for model in ["tdd", "mdd"] {
        let (code, out, err) = run(dir, &[&["caption", model], &copies[..]].concat());
        assert!(code == 1 && err.contains("10bad.png") && err.contains("1 of 35"), "{err}");
        assert_eq!(out.lines().count(), 34);
        for i in 0..8 {
            let one = succeeds(dir, &["caption", model, &format!("coco/train2017/{i}.png")]);
            assert!(out.contains(&one), "{one}");
        }
        // A trace is of the first image that can be read, and changes nothing.
        let (_, traced, _) = run(dir, &[&["caption", model, "none.png"], &copies[..], &["--trace", "t.html"]].concat());
        assert_eq!(traced, out);
        let page = fs::read_to_string(dir.join("t.html")).unwrap();
        let result = serde_json::to_string(out.lines().next().unwrap().split_once(": ").map_or("", |l| l.1)).unwrap();
        assert!(page.contains("data:image/png") && page.contains(&format!("\"result\":{result}")), "{result}");
    }
}

/// What a model with per-token time does not heed is refused, if the user asked for it and not the run's own settings.
#[test]
fn a_model_with_per_token_time_heeds_every_flag_it_takes() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    captions(dir);
    let sets =
        ["train.epochs=1", "train.clean_tokens=0.5", "sample.unmask=\"confident\"", "sample.schedule=\"linear\""];
    let sets: Vec<&str> = sets.into_iter().flat_map(|s| ["--set", s]).collect();
    succeeds(dir, &[&["train", "captions.toml", "--data", "coco", "--out", "r"], &sets[..]].concat());
    let commands = [&["eval", "r", "--limit", "4"][..], &["caption", "r", "coco/train2017/0.png"]];
    for command in commands {
        let with =
            |flags: &'static str| [command, &flags.split(' ').filter(|f| !f.is_empty()).collect::<Vec<_>>()].concat();
        for (flags, words) in [
            ("--uncommitted 0.5 --unmask random", "--uncommitted has no meaning here"),
            ("--unmask confident --sampler ddim", "--unmask confident has no meaning here"),
            ("--unmask confident --sampler softmax", "--unmask confident has no meaning here"),
            ("--uncommitted 0.5 --sampler ancestral", "--uncommitted has no meaning here"),
            ("--schedule cosine", "--schedule has no meaning here"),
            ("--correction 0.1 --unmask random", "--correction has no meaning here"),
            ("--correction 0.1 --steps 2", "--steps 3 or more"),
            ("--correction 1", "must lie in [0, 1)"),
        ] {
            refused(dir, &with(flags), &[words]);
        }
        for flags in ["", "--sampler ddim --schedule cosine", "--unmask random", "--schedule cosine --uncommitted 0.5"]
        {
            succeeds(dir, &with(flags));
        }
    }
    refused(
        dir,
        &["eval", "r", "--uncommitted", "0,.5,1", "--unmask", "random"],
        &["--uncommitted has no meaning here"],
    );
    let v = json(dir, &["eval", "r", "--limit", "4", "--correction", "0,.5", "--steps", "4", "--json"]);
    let corrections: Vec<_> = v["rows"].as_array().unwrap().iter().map(|r| r["correction"].as_f64()).collect();
    assert_eq!(corrections, [None, Some(0.5)]);
    let v = json(dir, &["eval", "r", "--limit", "4", "--bound", "1", "--path", "reveal", "--json"]);
    assert_eq!(v["bound"]["path"], "masked path, one token at a time");
    let v = json(dir, &["eval", "r", "--limit", "4", "--uncommitted", "0,.5", "--schedule", "cosine", "--json"]);
    assert_eq!(v["rows"].as_array().unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_evaluation_between_batches() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    captions(dir);
    succeeds(dir, &["train", "captions.toml", "--data", "coco", "--out", "r", "--set", "train.epochs=1"]);
    // So many settings that it would take minutes.
    let guidance: Vec<String> = (0..2000).map(|i| format!("{}", 1.0 + i as f64 / 1000.0)).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tweedie"))
        .current_dir(dir)
        .args(["--threads", "1", "eval", "r", "--device", "cpu", "--steps", "50", "--guidance", &guidance.join(",")])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|l| l.unwrap());
    assert!(lines.any(|l| l.contains("sequences (")), "ended before it began");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|l| l.starts_with("interrupted while captions were written")), "{rest:?}");
}
