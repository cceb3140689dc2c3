//! `tweedie reproduce` as a user meets it: trained once, used again, gone on with after Ctrl-C.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// What makes the drawn scenes of `all` small too: ten large steps an epoch.
const TINY_SCENES: &[&str] = &[
    "train.batch=2000",
    "train.noisy_copies=1",
    "model.encoder.width=16",
    "model.denoiser.width=16",
    "train.eval_images=8",
];

/// Digits with the smallest network: 10 steps an epoch, each some milliseconds.
const TINY: &[&str] = &["train.batch=128", "model.encoder.depth=1", "model.denoiser.depth=1", "sample.steps=2"];

fn reproduce(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).args(["--threads", "1", "reproduce"]).args(args).stdin(Stdio::null());
    c
}

fn tiny(dir: &Path, what: &str, more: &[&str]) -> Command {
    let mut c = reproduce(dir, &[what, "--scale", "digits", "--device", "cpu", "--out", "out"]);
    c.args(TINY.iter().flat_map(|s| ["--set", s])).args(more);
    c
}

/// Exit code, stdout, stderr.
fn run(mut c: Command) -> (i32, String, String) {
    let o = c.output().unwrap();
    let [out, err] = [o.stdout, o.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!err.contains("panicked"), "{err}");
    (o.status.code().unwrap(), out, err)
}

fn succeeds(c: Command) -> (String, String) {
    let (code, out, err) = run(c);
    assert_eq!(code, 0, "{err}");
    (out, err)
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Of all runs, in order.
fn checkpoints(out: &Path) -> Vec<PathBuf> {
    let runs = fs::read_dir(out.join("runs")).into_iter().flatten().flatten();
    let of = |run: PathBuf| fs::read_dir(run.join("checkpoints")).into_iter().flatten().flatten();
    let named = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("step-"));
    let mut all: Vec<PathBuf> = runs.flat_map(|r| of(r.path())).map(|e| e.path()).filter(named).collect();
    all.sort();
    all
}

#[test]
fn a_second_time_uses_what_was_trained() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let (first, told) = succeeds(tiny(dir.path(), "main", &["--epochs", "1"]));
    assert!(told.contains("4 runs, 0 finished before, 4 to train") && told.contains("run 4 of 4"), "{told}");
    assert!(first.contains("only the direction can be compared"), "{first}");
    let before: Vec<_> =
        checkpoints(&out).iter().map(|p| (p.clone(), p.metadata().unwrap().modified().unwrap())).collect();
    assert_eq!(before.len(), 4);
    let (second, told) = succeeds(tiny(dir.path(), "main", &["--epochs", "1"]));
    assert!(told.contains("4 runs, 4 finished before, 0 to train") && !told.contains("run 1 of"), "{told}");
    assert_eq!(first, second);
    let after: Vec<_> =
        checkpoints(&out).iter().map(|p| (p.clone(), p.metadata().unwrap().modified().unwrap())).collect();
    assert_eq!(before, after);
    // Other settings are other runs, and another table or figure of the same ones is none.
    let main = read(out.join("report-main.html"));
    let (_, told) = succeeds(tiny(dir.path(), "curves", &["--epochs", "1"]));
    assert!(told.contains("3 runs, 3 finished before"), "{told}");
    // Both reports are there, and the first is as it was.
    assert_eq!(read(out.join("report-main.html")), main);
    assert!(read(out.join("report-curves.html")) != main && !out.join("report.html").exists());
    let (_, told) = succeeds(tiny(dir.path(), "steps", &["--epochs", "1", "--set", "train.lr=0.01"]));
    assert!(told.contains("3 runs, 0 finished before"), "{told}");
}

#[test]
fn everything_is_in_the_report_and_beside_it() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let mut c = tiny(dir.path(), "all", &["--epochs", "1", "--seeds", "2"]);
    c.args(TINY_SCENES.iter().flat_map(|s| ["--caption-set", s]));
    let (text, _) = succeeds(c);
    let html = read(out.join("report.html"));
    // On a phone tables scroll in a box of their own and figures shrink.
    assert_eq!(html.matches("<table").count(), html.matches("<div class=\"wide\"><table").count());
    assert!(
        html.contains(".wide { overflow-x: auto;") && html.contains("figure img { display: block; max-width: 100%;")
    );
    let figures = [
        "main",
        "ablation",
        "overfitting",
        "regression",
        "steps",
        "loss",
        "loss-accuracy",
        "curves",
        "heatmap-tdd-weighted",
        "heatmap-tdd-plain",
        "certainty",
        "captions",
        "captions-scores",
        "clipscore",
        "trajectory-tdd",
        "trajectory-mdd",
        "trajectory-settled",
        "tokens-context",
        "tokens-contested",
        "tokens-contested-heatmap",
    ];
    for name in figures {
        let svg = read(out.join(format!("figures/{name}.svg")));
        assert!(html.contains(svg.trim()), "{name} is not inside the page");
        let png = fs::read(out.join(format!("figures/{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{name}");
    }
    // One file that needs nothing else, and whose elements are closed in order.
    assert!(!html.contains("<script") && !html.contains("<link") && !html.contains("src="));
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("only the direction can be compared"));
    assert!(html.contains("reproduce all --scale digits"));
    assert!(
        html.contains("not captions of photos") && html.contains("No CLIP was given") && html.contains("--clip FOLDER")
    );
    let body = html.trim_start_matches("<!DOCTYPE html>").replace("<meta charset=\"utf-8\">", "");
    let body = body.replace("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">", "");
    roxmltree::Document::parse(body.trim()).unwrap();

    // The table, the page and the files say the same.
    let rows: Vec<Value> = serde_json::from_str(&read(out.join("data/main.json"))).unwrap();
    assert_eq!(rows.len(), 7);
    for r in &rows {
        let seeds: Vec<f64> = r["top1_of_seeds"].as_str().unwrap().split(' ').map(|s| s.parse().unwrap()).collect();
        let [a, b] = seeds[..] else { panic!("{seeds:?}") };
        // Of two values the deviation is half their distance times √2.
        let shown = format!("{:.2} ± {:.2}", (a + b) / 2.0, (a - b).abs() / 2.0_f64.sqrt());
        assert!(html.contains(&shown) && text.contains(&shown), "{shown}\n{text}");
    }
    assert_eq!(rows[0]["paper_top1"], 82.8);
    let rows: Vec<Value> = serde_json::from_str(&read(out.join("data/captions-scores.json"))).unwrap();
    // The paper's two models and the recipe's, many steps and one, two seeds; three metrics and whether every word is right.
    assert_eq!(rows.len(), 4 * 2 * 2 * 4);
    for pair in rows.iter().filter(|r| r["metric"] == "CIDEr-D").collect::<Vec<_>>().chunks(2) {
        let [a, b] = [0, 1].map(|seed| pair[seed]["value"].as_f64().unwrap());
        assert_eq!([&pair[0]["seed"], &pair[1]["seed"]], [0, 1]);
        let shown = format!("{:.3} ± {:.3}", (a + b) / 2.0, (a - b).abs() / 2.0_f64.sqrt());
        assert!(html.contains(&shown) && text.contains(&shown), "{shown}\n{text}");
    }
    let csv = read(out.join("data/ablation.csv"));
    assert_eq!(csv.lines().count(), 1 + 15);
    assert_eq!(read(out.join("data/steps.csv")).lines().count(), 1 + 2 * 2 * 6 + 1);
    // Cross-entropy with and without guidance, and four ways to sample each of two regressions, at five numbers of steps.
    assert_eq!(read(out.join("data/regression.csv")).lines().count(), 1 + (2 + 2 * 4) * 5);
    assert_eq!(read(out.join("data/overfitting-peaks.csv")).lines().count(), 1 + 3 * 2);
    let about: Value = serde_json::from_str(&read(out.join("data/report.json"))).unwrap();
    assert_eq!((about["seeds"].as_u64(), about["runs"].as_array().map(Vec::len)), (Some(2), Some(28)));
}

#[cfg(unix)]
#[test]
fn an_interrupted_plan_goes_on() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    // Far more epochs than the time until the signal allows; the same command then goes on.
    let args = ["--epochs", "20", "--set", "train.checkpoint_every=1"];
    let mut child = tiny(dir.path(), "heatmap", &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while checkpoints(&out).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "ended before its first checkpoint");
        assert!(started.elapsed() < Duration::from_secs(120), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let o = child.wait_with_output().unwrap();
    let told = String::from_utf8(o.stderr).unwrap();
    assert_eq!(o.status.code(), Some(130), "{told}");
    assert!(
        told.contains("interrupted in run 1 of 2")
            && told.contains("Go on with:\n  tweedie --threads 1 reproduce heatmap"),
        "{told}"
    );
    let (_, told) = succeeds(tiny(dir.path(), "heatmap", &args));
    assert!(told.contains("2 runs, 0 finished before") && told.contains(", seed 0, from step "), "{told}");
    assert!(out.join("report-heatmap.html").exists());
}

#[test]
fn a_budget_shortens_runs_and_is_remembered() {
    let dir = TempDir::new().unwrap();
    let epochs = || {
        let about: Value =
            serde_json::from_slice(&fs::read(dir.path().join("out/data/report-heatmap.json")).unwrap()).unwrap();
        about["runs"].as_array().unwrap().iter().map(|r| r["epochs"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    // A thousand epochs would take minutes.
    let with = |budget: &'static str| ["--budget", budget, "--set", "train.epochs=1000"];
    let (_, told) = succeeds(tiny(dir.path(), "heatmap", &with("2s")));
    assert!(told.contains("2 s allow ") && told.contains("2 runs, 0 finished before, 2 to train"), "{told}");
    let first = epochs();
    assert!(first.len() == 2 && first[0] == first[1] && (1..1000).contains(&first[0]), "{first:?}");
    let (_, told) = succeeds(tiny(dir.path(), "heatmap", &with("2s")));
    assert!(!told.contains(" allow ") && told.contains("2 finished before, 0 to train"), "{told}");
    assert_eq!(epochs(), first);
    // More than all of it takes: all epochs.
    let all = ["--budget", "9h", "--set", "train.epochs=2"];
    let (_, told) = succeeds(tiny(dir.path(), "heatmap", &all));
    assert!(told.contains("allow 100.00 % of them"), "{told}");
    assert_eq!(epochs(), [2, 2]);
}

#[test]
fn wrong_words_are_answered_with_the_choices() {
    let dir = TempDir::new().unwrap();
    for (args, words) in [
        (
            &["nothing"][..],
            &[
                "'nothing'",
                "main, ablation, steps, loss, curves, overfitting, regression, heatmap, captions, clipscore, trajectory, tokens, all",
            ][..],
        ),
        (
            &["main", "--scale", "mars"],
            &["'mars'", "digits, cifar10, imagenette, characters, coco, coco-224, imagenet"],
        ),
        (&["main", "--scale", "cifar10"], &["needs data", "--scale cifar10 --data PATH"]),
        (&["captions", "--scale", "coco"], &["needs data", "--scale coco --data PATH"]),
        (&["all", "--scale", "imagenet"], &["needs data"]),
        (&["main", "--scale", "coco"], &["main is about classes", "digits, cifar10, imagenette, characters, imagenet"]),
        (&["tokens", "--scale", "cifar10"], &["tokens is about captions", "digits, coco, coco-224, imagenet"]),
        (&["all", "--set", "augment.mix.mixup_alpha=1"], &["augment.mix", "--class-set"]),
        (&["clipscore", "--clip", "nowhere"], &["nowhere", "config.json"]),
        (&["main", "--budget", "ten"], &["'ten'", "90s, 10m, 2h or 7m30s"]),
        (&["main", "--budget", "1m", "--epochs", "3"], &["--budget", "--epochs"]),
        (&["main", "--use", "mdd"], &["--use mdd", "tdd-weighted, tdd-plain, mdd"]),
        (&["main", "--use", "caption=x"], &["no run called caption", "tdd-weighted, tdd-plain, mdd"]),
        // What another WHAT of the scale needs is no error; what nothing needs is.
        (
            &["main", "--use", "caption-tdd=x", "--use", "caption-tdd-s1=y"],
            &["--use caption-tdd=x: not needed for main", "no run called caption-tdd-s1"],
        ),
        (&["main", "--use", "mdd-s1=x"], &["no run called mdd-s1"]),
        (&["main", "--use", "mdd=nowhere"], &["nowhere"]),
        (&["main", "--seeds", "0"], &["--seeds"]),
        (&["main", "--set", "train.lrr=1"], &["train.lrr"]),
    ] {
        let (code, out, err) = run(reproduce(dir.path(), args));
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}\n{err}");
        words.iter().for_each(|w| assert!(err.contains(w), "no '{w}' after {args:?}\n{err}"));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "something was written");
}

/// A network for 16×16 pictures.
const SMALL_COCO: &[&str] = &[
    "data.tokens=8",
    "data.val_fraction=0.25",
    "model.encoder.image=16",
    "model.encoder.patch=8",
    "model.encoder.width=32",
    "model.encoder.depth=1",
    "model.encoder.heads=2",
    "model.denoiser.width=32",
    "model.denoiser.depth=1",
    "model.denoiser.heads=2",
    "train.batch=8",
    "train.eval_images=8",
    "sample.steps=3",
];

/// Squares of four colours with two captions each, as COCO lays them out.
fn squares(dir: &Path) {
    let (images, notes) = (dir.join("coco/train2017"), dir.join("coco/annotations"));
    [&images, &notes].iter().for_each(|d| fs::create_dir_all(d).unwrap());
    let (mut list, mut annotations) = (Vec::new(), Vec::new());
    let colours = [([200, 0, 0], "red"), ([0, 0, 200], "blue"), ([0, 160, 0], "green"), ([20, 20, 20], "black")];
    for i in 0..48 {
        let (colour, word) = colours[i % 4];
        let mut encoder = png::Encoder::new(fs::File::create(images.join(format!("{i}.png"))).unwrap(), 16, 16);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&colour.repeat(256)).unwrap();
        list.push(json!({ "id": i, "file_name": format!("{i}.png") }));
        for (k, text) in [format!("a {word} square"), format!("one square that is {word}")].into_iter().enumerate() {
            annotations.push(json!({ "id": 2 * i + k, "image_id": i, "caption": text }));
        }
    }
    fs::write(notes.join("captions_train2017.json"), json!({ "images": list, "annotations": annotations }).to_string())
        .unwrap();
}

fn coco(dir: &Path, what: &str, more: &[&str]) -> Command {
    let mut c = reproduce(dir, &[what, "--scale", "coco", "--data", "coco", "--device", "cpu", "--out", "out"]);
    c.args(SMALL_COCO.iter().flat_map(|s| ["--set", s])).args(more);
    c
}

fn rows(path: PathBuf) -> Vec<Value> {
    serde_json::from_str(&read(path)).unwrap()
}

/// What the report says of captions is what `tweedie score` says of the same captions.
#[test]
fn captions_score_as_the_command_that_scores_says() {
    let dir = TempDir::new().unwrap();
    let (dir, out) = (dir.path(), dir.path().join("out"));
    squares(dir);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tweedie/tests/fixtures/clip/quick");
    let clip = fixtures.to_str().unwrap();
    let (text, told) = succeeds(coco(dir, "all", &["--epochs", "3", "--clip", clip]));
    assert!(
        told.contains("4 runs, 0 finished before, 4 to train") && told.contains("measuring 4 of 4: tokens"),
        "{told}"
    );
    assert!(!text.contains("Table 1") && !text.contains("right, %"), "{text}");

    // The report says whose model and whose sampling a row is.
    let html = read(out.join("report.html"));
    for words in [
        "argmax and noise again",
        "the most confident words committed first",
        "the recipe’s model, not the paper’s",
        "train.clean_tokens = 0.8 (the paper: 0.0)",
    ] {
        assert!(html.contains(words), "no '{words}' in the report");
    }
    // A caption by each of four models for every image of the held-out split, of which twelve are in the figure.
    let shown = rows(out.join("data/captions.json"));
    assert_eq!(shown.len(), 4 * 16);
    assert_eq!(shown.iter().filter(|r| r["in_figure"] == true).count(), 4 * 12);
    let (mut references, mut captions) = (serde_json::Map::new(), serde_json::Map::new());
    for r in shown.iter().filter(|r| r["model"] == "TDD") {
        // "…, image 3 (3.png)"
        let file = r["place"].as_str().unwrap().split(['(', ')']).nth(1).and_then(|f| f.strip_suffix(".png")).unwrap();
        let texts: Vec<&str> = r["references"].as_str().unwrap().split(" | ").collect();
        references.insert(file.into(), json!(texts));
        captions.insert(file.into(), r["caption"].clone());
    }
    fs::write(dir.join("refs.json"), Value::from(references).to_string()).unwrap();
    fs::write(dir.join("tdd.json"), Value::from(captions).to_string()).unwrap();
    let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
    c.current_dir(dir).args(["score", "refs.json", "tdd.json", "--allow-empty", "--device", "cpu", "--json"]);
    c.args(["--clip", clip, "--images", "coco/train2017"]);
    let scored: Value = serde_json::from_str(&succeeds(c).0).unwrap();

    let ours = rows(out.join("data/captions-scores.json"));
    let of = |metric: &str| {
        let row = ours.iter().find(|r| r["variant"] == "caption-tdd" && r["metric"] == metric).unwrap();
        row["value"].as_f64().unwrap()
    };
    let want = &scored["rows"][0];
    for (metric, want) in [("CIDEr-D", &want["cider_d"]), ("BLEU-4", &want["bleu"][3]), ("ROUGE-L", &want["rouge_l"])] {
        // Images come in another order, and so do the terms of the sums.
        assert!((of(metric) - want.as_f64().unwrap()).abs() < 1e-9, "{metric}: {} {want}", of(metric));
    }
    let clip_rows = rows(out.join("data/clipscore.json"));
    let cosine = |row: usize| clip_rows[row]["value"].as_f64().unwrap();
    let want = |row: usize| scored["clip"]["rows"][row][1]["cosine"].as_f64().unwrap();
    // Features are f32; batches of another order round otherwise.
    assert!((cosine(0) - want(0)).abs() < 1e-5 && (cosine(2) - want(2)).abs() < 1e-5, "{clip_rows:?} {scored}");
    assert_eq!(clip_rows[2]["paper_clipscore"], 0.25);

    // A story ends with the caption of the table, and begins with the first step.
    let story = rows(out.join("data/trajectory.json"));
    let tdd: Vec<&Value> = story.iter().filter(|r| r["variant"] == "caption-tdd").collect();
    assert!(tdd.len() == 4 * 3 && tdd[0]["step"] == 1 && tdd[2]["step"] == 3);
    for last in tdd.iter().filter(|r| r["step"] == 3) {
        let of_table = shown.iter().find(|r| r["model"] == "TDD" && r["image"] == last["image"]).unwrap();
        assert_eq!(last["caption"], of_table["caption"]);
    }
    // Candidates of one place and step share one probability.
    let tokens = rows(out.join("data/tokens.json"));
    for step in 1..=3 {
        let contested = tokens.iter().filter(|r| r["kind"] == "contested" && r["step"] == step);
        let sum: f64 = contested.map(|r| r["probability"].as_f64().unwrap()).sum();
        assert!(sum > 0.0 && sum < 1.0 + 1e-5, "{sum}");
    }
}

/// Captions go on after an interruption as classes do, tokenizer and all: the same files come out.
#[test]
fn an_interrupted_run_of_captions_goes_on() {
    let dir = TempDir::new().unwrap();
    let (dir, out) = (dir.path(), dir.path().join("out"));
    squares(dir);
    let args = ["--epochs", "4", "--set", "train.checkpoint_every=1", "--set", "train.keep=9"];
    let (_, told) = succeeds(coco(dir, "tokens", &args));
    assert!(told.contains("1 runs, 0 finished before, 1 to train"), "{told}");
    let want = read(out.join("data/tokens.csv"));
    let all = checkpoints(&out);
    assert_eq!(all.len(), 4);
    all[2..].iter().for_each(|c| fs::remove_dir_all(c).unwrap());
    let (_, told) = succeeds(coco(dir, "tokens", &args));
    assert!(told.contains("0 finished before") && told.contains("from step 8"), "{told}");
    assert_eq!(read(out.join("data/tokens.csv")), want);
}

#[test]
fn a_run_trained_elsewhere_is_used_if_it_fits() {
    let dir = TempDir::new().unwrap();
    let (dir, out) = (dir.path(), dir.path().join("out"));
    squares(dir);
    let train = |recipe: &[&str], sets: &[&str], out: &str| {
        let mut c = Command::new(env!("CARGO_BIN_EXE_tweedie"));
        c.current_dir(dir).args(["--threads", "1", "train"]).args(recipe).args(["--device", "cpu", "--out", out]);
        c.args(sets.iter().flat_map(|s| ["--set", s]));
        succeeds(c);
    };
    let coco_sets = [SMALL_COCO, &["train.epochs=1", "train.warmup_epochs=0.1"]].concat();
    train(&["coco-96", "--data", "coco"], &coco_sets, "recipe");
    train(&["coco-96", "--data", "coco"], &[&coco_sets[..], &["train.clean_tokens=0"]].concat(), "mine");
    train(&["digits"], &[TINY, &["train.epochs=1", "train.warmup_epochs=0.1"]].concat(), "digits");
    let (_, told) = succeeds(coco(dir, "trajectory", &["--epochs", "2", "--use", "caption-tdd=mine"]));
    assert!(told.contains("2 runs, 1 existing, 0 finished before, 1 to train"), "{told}");
    let html = read(out.join("report-trajectory.html"));
    for told in
        ["existing", "train.epochs = 1 (plan: 2)", "condition_attention = &quot;prefix&quot; (plan: &quot;full&quot;)"]
    {
        assert!(html.contains(told), "the report does not tell '{told}'");
    }
    let about: Value = serde_json::from_str(&read(out.join("data/report-trajectory.json"))).unwrap();
    assert_eq!((&about["runs"][0]["given"]["run"], &about["runs"][1]["given"]), (&json!("mine"), &Value::Null));
    assert_eq!([0, 1].map(|i| about["runs"][i]["epochs"].as_u64()), [Some(1), Some(2)], "each run's own");
    for (used, words) in [
        ("caption-mdd=mine", &["its method is TDD, not MDD"][..]),
        ("caption-tdd=digits", &["it is about classes, not captions"]),
        ("caption-tdd=recipe", &["its train.clean_tokens is 0.8, not 0"]),
    ] {
        let (code, _, err) = run(coco(dir, "trajectory", &["--use", used]));
        assert!(code == 1 && words.iter().all(|w| err.contains(w)), "{err}");
    }
    // One list of runs for every WHAT: what this one does not need is not even opened. A scale without classes has no mdd.
    let (_, told) = succeeds(coco(dir, "tokens", &["--use", "caption-tdd=mine", "--use", "caption-mdd=nowhere"]));
    assert!(told.contains("--use caption-mdd=nowhere: not needed for tokens") && told.contains("1 existing"), "{told}");
    let (code, _, err) = run(coco(dir, "tokens", &["--use", "mdd=mine"]));
    assert!(code == 1 && err.contains("this plan has no run called mdd"), "{err}");
    let (code, _, err) = run(tiny(dir, "main", &["--use", "tdd-weighted=digits"]));
    assert!(code == 1 && err.contains("its loss.weighted is false, not true"), "{err}");
    let (_, told) = succeeds(tiny(dir, "heatmap", &["--epochs", "1", "--use", "tdd-plain=digits"]));
    assert!(told.contains("2 runs, 1 existing, 0 finished before, 1 to train"), "{told}");
}
