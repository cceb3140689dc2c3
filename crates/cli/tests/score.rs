//! `tweedie score` as a user meets it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

fn score(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_tweedie")).arg("score").args(args).output().unwrap();
    let [out, err] = [stdout, stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (status.code().unwrap(), out, err)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tweedie/tests/fixtures")
}

/// A file in `dir`, and its name as an argument.
fn file(dir: &Path, name: &str, content: &Value) -> String {
    let path = dir.join(name);
    std::fs::write(&path, content.to_string()).unwrap();
    path.to_str().unwrap().into()
}

/// References and results as COCO writes them, from the golden captions; gives the golden scores too.
fn golden(dir: &Path) -> (String, String, Value) {
    let text = std::fs::read_to_string(fixtures().join("captions/golden.json")).unwrap();
    let g: Value = serde_json::from_str(&text).unwrap();
    let ids = g["ids"].as_array().unwrap();
    let (mut annotations, mut results) = (Vec::new(), Vec::new());
    for (i, id) in ids.iter().enumerate() {
        for c in g["captions"][i].as_array().unwrap() {
            annotations.push(json!({"image_id": id, "id": annotations.len(), "caption": c}));
        }
        results.push(json!({"image_id": id, "caption": g["corrupted"]["captions"][i]}));
    }
    let images: Vec<Value> = ids.iter().map(|id| json!({"id": id})).collect();
    let references = file(dir, "refs.json", &json!({"images": images, "annotations": annotations}));
    (references, file(dir, "hyps.json", &json!(results)), g["corrupted"].clone())
}

#[test]
fn scores_are_those_of_pycocoevalcap_and_lie_in_their_intervals() {
    let dir = tempfile::tempdir().unwrap();
    let (references, captions, want) = golden(dir.path());
    let (code, _, err) = score(&[&references, &captions]);
    assert_eq!(code, 1);
    assert!(err.contains("hyps.json: [3].caption is empty") && err.contains("hint: --allow-empty"), "{err}");
    let (code, out, err) = score(&[&references, &captions, "--allow-empty", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let v: Value = serde_json::from_str(&out).unwrap();
    let row = &v["rows"][0];
    for (name, got, want, interval) in [
        ("BLEU-4", &row["bleu"][3], &want["bleu"][3], &row["interval95"]["bleu"][3]),
        ("CIDEr-D", &row["cider_d"], &want["cider_d"], &row["interval95"]["cider_d"]),
        ("ROUGE-L", &row["rouge_l"], &want["rouge_l"], &row["interval95"]["rouge_l"]),
    ] {
        let [got, want, low, high] = [got, want, &interval[0], &interval[1]].map(|v| v.as_f64().unwrap());
        assert!((got - want).abs() < 1e-9, "{name}: {got} {want}");
        assert!(low < got && got < high, "{name}: {low} {got} {high}");
    }
    let (code, out, _) = score(&[&references, &captions, &captions, "--allow-empty"]);
    let cider = format!("{:.4}", want["cider_d"].as_f64().unwrap());
    assert_eq!((code, out.matches(&cider).count()), (0, 2), "{out}");
    assert!(out.contains("+0.0000 | 0.0000 – 0.0000"), "{out}"); // a file less itself
}

#[test]
fn mistakes_name_file_and_field_and_say_what_helps() {
    let dir = tempfile::tempdir().unwrap();
    let references = file(dir.path(), "refs.json", &json!({"1": ["a dog"], "2": ["a cat"]}));
    for (content, want) in [
        (
            json!({"1": "a dog"}),
            "hyps.json: no caption for image 2 of the references (1 of 2 are missing)\n\nhint: --subset",
        ),
        (json!({"1": "a", "2": "b", "3": "c"}), "hyps.json: image_id 3 is not in the references"),
        (json!([{"image_id": 1, "caption": 4}]), "hyps.json: [0].caption must be a string, it is 4"),
        (
            json!([{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]),
            "hyps.json: image_id 1 has two captions",
        ),
    ] {
        let captions = file(dir.path(), "hyps.json", &content);
        let (code, out, err) = score(&[&references, &captions]);
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains(want), "{err}");
    }
    let captions = file(dir.path(), "hyps.json", &json!({"1": "a dog"}));
    let (code, out, _) = score(&[&references, &captions, "--subset"]);
    assert!(code == 0 && out.contains("1 images"), "{out}");
    let (code, _, err) = score(&[&references, &captions, "--clip", "x"]);
    assert!(code == 1 && err.contains("--images"), "{err}");
    let (code, _, err) = score(&[&references, "no.json"]);
    assert!(code == 1 && err.contains("no.json"), "{err}");
}

/// Four images; the rows are there, and ground truth and shuffled differ.
#[test]
fn clip_rows_name_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let captions = |a: &str| json!({"image0": a, "image1": "a cat", "image2": "two dogs", "image3": "12"});
    let references = file(dir.path(), "refs.json", &captions("A man riding a wave"));
    let hyps = file(dir.path(), "hyps.json", &captions("A man riding a wave"));
    let (images, clip) = (fixtures().join("clip"), fixtures().join("clip/quick"));
    let [images, clip] = [&images, &clip].map(|p| p.to_str().unwrap());
    let args = [&references, &hyps, "--clip", clip, "--images", images, "--device", "cpu"];
    let (code, out, err) = score(&args);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains(&format!("CLIP: {clip}")) && out.contains("(Hessel)") && out.contains("(torchmetrics)"),
        "{out}"
    );
    let (_, out, _) = score(&[&args[..], &["--json"]].concat());
    let v: Value = serde_json::from_str(&out).unwrap();
    let cosine = |i: usize| v["clip"]["rows"][i][1]["cosine"].as_f64().unwrap();
    // One reference each, and the captions are the references.
    assert_eq!(cosine(0), cosine(2));
    assert_ne!(cosine(0), cosine(1));
    let torchmetrics = v["clip"]["rows"][0][1]["torchmetrics"].as_f64().unwrap();
    assert!((torchmetrics - 100.0 * cosine(0)).abs() < 1e-9);
}
