//! Captions and text as a user meets them: trained on small files, then `caption`, `generate`, `eval`, `trace`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    let Output { status, stdout, stderr } =
        c.current_dir(dir).args(["--threads", "1"]).args(args).args(["--device", "cpu"]).output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn succeeds(dir: &Path, args: &[&str]) -> String {
    let (code, out, err) = run(dir, args);
    assert_eq!(code, 0, "{args:?}\n{err}");
    out
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let out = succeeds(dir, args);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    let (code, _, err) = run(dir, args);
    assert!(code == 1 && words.iter().all(|w| err.contains(w)), "{args:?}\n{err}");
}

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
batch = 16
kfold = 2
warmup_epochs = 0.1
eval_images = 16
checkpoint_every = 1
[sample]
steps = 3
"#;

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

/// A lowercase text of 6,000 characters.
fn text(dir: &Path) {
    let words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"];
    let line = |i: usize| (0..8).map(|j| words[(i * 7 + j * 3) % 10]).collect::<Vec<_>>().join(" ");
    fs::write(dir.join("text.txt"), (0..200).map(|i| line(i) + "\n").collect::<String>()).unwrap();
    fs::write(dir.join("text.toml"), TEXT).unwrap();
}

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

    // A run that is stopped after two of four epochs and goes on ends with the same weights.
    train("half", &["--set", "train.epochs=4", "--set", "train.keep=9"]);
    let steps: Vec<String> = {
        let all = fs::read_dir(dir.join("half/checkpoints")).unwrap().map(|e| e.unwrap().file_name());
        let mut all: Vec<String> = all.map(|n| n.into_string().unwrap()).filter(|n| n.starts_with("step-")).collect();
        all.sort();
        all
    };
    assert_eq!(steps.len(), 4);
    let model =
        |run: &str| fs::read(dir.join(run).join("checkpoints").join(&steps[3]).join("model.safetensors")).unwrap();
    let want = model("tdd");
    steps[2..].iter().for_each(|s| fs::remove_dir_all(dir.join("half/checkpoints").join(s)).unwrap());
    succeeds(dir, &["train", "--resume", "half"]);
    assert!(model("half") == want, "the resumed run has other weights");

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

    refused(dir, &["generate", "tdd", "--prompt", "THE"], &["vocabulary lacks"]);
    refused(dir, &["generate", "tdd", "--prompt", "the cat sat on a mat and saw"], &["28 tokens", "16"]);
    refused(dir, &["generate", "tdd", "--prompt", "a", "--infill", "a_"], &["not both"]);
    refused(dir, &["caption", "tdd", "x.png"], &["without images", "tweedie generate tdd"]);
    refused(dir, &["classify", "tdd", "x.png"], &["writes text"]);
    refused(
        dir,
        &["train", "text.toml", "--data", "text.txt", "--set", "model.condition=\"image\"", "--out", "x"],
        &["model.condition"],
    );

    // The masked twin on the same text.
    train("mdd", &["--set", "train.epochs=2", "--set", "model.method=mdd"]);
    let v = json(dir, &["generate", "mdd", "--prompt", "the cat", "--json"]);
    assert!(v[0][0]["text"].as_str().unwrap().starts_with("the cat"));
    assert!(json(dir, &["eval", "mdd", "--json", "--limit", "32"])["bits_per_char"].as_f64().unwrap() > 0.0);
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
    let text = scored.to_string();
    assert!(text.contains("cider_d"), "{text}");
    let v = json(dir, &["eval", "mdd", "--json", "--unmask", "random,confident"]);
    assert_eq!(v["rows"].as_array().unwrap().len(), 2);
    refused(dir, &["generate", "tdd"], &["looks at images", "tweedie caption tdd"]);
    refused(dir, &["caption", "tdd", image, "--infill", "a zebra"], &["lacks a word", "zebra"]);
    refused(dir, &["trace", "tdd"], &["name one"]);
}
