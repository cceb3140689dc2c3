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

/// The first number called `name`.
fn number(v: &Value, name: &str) -> Option<f64> {
    match v {
        Value::Object(m) => m.get(name).and_then(Value::as_f64).or_else(|| m.values().find_map(|v| number(v, name))),
        Value::Array(a) => a.iter().find_map(|v| number(v, name)),
        _ => None,
    }
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
batch = 64
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

/// A lowercase text of some 35,000 characters: the end of it can be held out.
fn text(dir: &Path) {
    let words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs"];
    let line = |i: usize| (0..8).map(|j| words[(i * 7 + j * 3) % 10]).collect::<Vec<_>>().join(" ");
    fs::write(dir.join("text.txt"), (0..1200).map(|i| line(i) + "\n").collect::<String>()).unwrap();
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

    goes_on_the_same(dir, &train, "tdd", "half", &[]);
    let known = ["--set", "train.known=0.5"];
    train("knows", &[&["--set", "train.epochs=4"], &known[..]].concat());
    goes_on_the_same(dir, &train, "knows", "half-known", &known);
    let muon = ["--set", "train.optimizer=muon"];
    train("muon", &[&["--set", "train.epochs=4"], &muon[..]].concat());
    goes_on_the_same(dir, &train, "muon", "half-muon", &muon);
    let resume = ["train", "--resume", "half-muon", "--set", "train.optimizer=adamw"];
    refused(dir, &resume, &["train.optimizer", "\"muon\"", "\"adamw\""]);
    let bits = |run: &str| json(dir, &["eval", run, "--json"])["bits_per_char"].as_f64().unwrap();
    assert_ne!(bits("muon"), bits("tdd"), "the setting has no effect");
    // Settings that runs of earlier versions do not have take their defaults.
    let path = dir.join("half/config.toml");
    let old = fs::read_to_string(&path).unwrap();
    let new = |l: &str| ["known =", "guesses =", "optimizer ="].iter().any(|key| l.starts_with(key));
    fs::write(&path, old.lines().filter(|l| !new(l)).collect::<Vec<_>>().join("\n")).unwrap();
    assert_eq!(json(dir, &["eval", "half", "--json"]), json(dir, &["eval", "tdd", "--json"]));

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

    // Samples are those of `generate`, and the bound stands beside them.
    let v =
        json(dir, &["eval", "tdd", "--samples", "40", "--examples", "3", "--out", "made", "--limit", "5", "--json"]);
    assert!(v["bits_per_char"].as_f64().unwrap() > 0.0 && v["samples"]["steps"] == 3, "{v}");
    assert_eq!(v["samples"]["diversity"]["captions"], 40);
    let alone = json(dir, &["generate", "tdd", "-n", "40", "--json"]);
    let alone: Vec<&Value> = alone.as_array().unwrap().iter().map(|t| &t[0]["text"]).collect();
    assert_eq!(v["samples"]["examples"].as_array().unwrap().iter().collect::<Vec<_>>(), alone[..3]);
    let made: Value = serde_json::from_slice(&fs::read(dir.join("made/samples.json")).unwrap()).unwrap();
    assert_eq!(made.as_array().unwrap().iter().collect::<Vec<_>>(), alone);
    let out =
        succeeds(dir, &["eval", "tdd", "--samples", "2", "--examples", "1", "--limit", "5", "--sampler", "softmax"]);
    assert!(out.contains("bits/char") && out.contains("self-BLEU-4") && out.contains("| softmax"), "{out}");

    // The trace is that of the first text, the best if there are several, and changes nothing.
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

    refused(dir, &["generate", "tdd", "--prompt", "THE"], &["vocabulary lacks 'THE'"]);
    refused(dir, &["generate", "tdd", "--prompt", "the cat sat on a mat and saw"], &["28 tokens", "16"]);
    refused(dir, &["generate", "tdd", "--prompt", "a", "--infill", "a_"], &["not both"]);
    refused(dir, &["generate", "tdd", "--unmask", "confident"], &["--unmask has no meaning here"]);
    refused(dir, &["generate", "tdd", "--guesses", "0.5"], &["--guesses has no meaning here"]);
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

    // The masked twin on the same text.
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
    // What the recipe says is no flag, and the table says what is done.
    train("mdd-ddim", &["--set", "train.epochs=1", "--set", "model.method=mdd", "--set", "sample.sampler=ddim"]);
    let out = succeeds(dir, &["eval", "mdd-ddim", "--samples", "2", "--limit", "5"]);
    assert!(out.contains("MDD random, argmax"), "{out}");
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
    assert_eq!(number(&scored, "cider_d"), number(&rows[3], "cider_d"), "{scored}");
    // And its images found by their names, which CLIP then scores the same. That CLIP is a tiny random one.
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
    refused(dir, &["eval", "tdd", "--samples", "3"], &["--samples has no meaning here"]);

    let v = json(dir, &["eval", "mdd", "--json", "--unmask", "random,confident"]);
    assert_eq!(v["rows"].as_array().unwrap().len(), 2);
    refused(dir, &["generate", "tdd"], &["looks at images", "tweedie caption tdd"]);
    refused(dir, &["caption", "tdd", image, "--infill", "a zebra"], &["lacks 'zebra'"]);
    refused(dir, &["trace", "tdd"], &["name one"]);
    for flag in ["--unmask=random", "--guesses=0.5"] {
        let name = flag.split('=').next().unwrap();
        refused(dir, &["eval", "tdd", flag], &[name, "has no meaning here", "train.known"]);
        refused(dir, &["caption", "tdd", image, flag], &[name, "has no meaning here", "train.known"]);
    }
    refused(dir, &["caption", "mdd", image, "--guesses", "0.5"], &["--guesses has no meaning here"]);
    refused(dir, &["caption", "mdd", image, "--sampler", "ddim"], &["--sampler", "has no meaning here", "--unmask"]);
    refused(dir, &["eval", "mdd", "--sampler", "argmax,softmax"], &["--sampler", "has no meaning here", "--unmask"]);
    refused(dir, &["caption", "mdd", image, "--schedule", "cosine"], &["--schedule has no meaning here"]);
    succeeds(dir, &["caption", "mdd", image, "--unmask", "confident"]);
    // A folder of images, each captioned as by itself; more than fit in a batch, with one in it that cannot be read.
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

/// What a model that knows does not heed is refused, if the user asked for it and not the run's own settings.
#[test]
fn a_model_that_knows_heeds_every_flag_it_takes() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    captions(dir);
    let sets = ["train.epochs=1", "train.known=0.5", "sample.unmask=\"confident\"", "sample.schedule=\"linear\""];
    let sets: Vec<&str> = sets.into_iter().flat_map(|s| ["--set", s]).collect();
    succeeds(dir, &[&["train", "captions.toml", "--data", "coco", "--out", "r"], &sets[..]].concat());
    let commands = [&["eval", "r", "--limit", "4"][..], &["caption", "r", "coco/train2017/0.png"]];
    for command in commands {
        let with =
            |flags: &'static str| [command, &flags.split(' ').filter(|f| !f.is_empty()).collect::<Vec<_>>()].concat();
        for (flags, words) in [
            ("--guesses 0.5 --unmask random", "--guesses has no meaning here"),
            ("--unmask confident --sampler ddim", "--unmask confident has no meaning here"),
            ("--unmask confident --sampler softmax", "--unmask confident has no meaning here"),
            ("--guesses 0.5 --sampler ancestral", "--guesses has no meaning here"),
            ("--schedule cosine", "--schedule has no meaning here"),
        ] {
            refused(dir, &with(flags), &[words]);
        }
        for flags in ["", "--sampler ddim --schedule cosine", "--unmask random", "--schedule cosine --guesses 0.5"] {
            succeeds(dir, &with(flags));
        }
    }
    refused(dir, &["eval", "r", "--guesses", "0,.5,1", "--unmask", "random"], &["--guesses has no meaning here"]);
    let v = json(dir, &["eval", "r", "--limit", "4", "--guesses", "0,.5", "--schedule", "cosine", "--json"]);
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
    }
    let v = json(dir, &["eval", "chars", "--json"]);
    let chars = v["chars"].as_u64().unwrap();
    assert!((240..=800).contains(&chars), "about a fifth of 2400, not {chars}");
    let (code, _, err) = train("word.txt", "data.tokenizer=bpe:300");
    assert!(code == 1 && err.contains("validation"), "{err}");
}
