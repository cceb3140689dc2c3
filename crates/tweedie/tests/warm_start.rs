//! `train.init_from`: all weights of a run, for another one.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tweedie::data::{Item, Items};
use tweedie::session::Paused;
use tweedie::train::{Event, TrainingSet};
use tweedie::{Config, Dataset, Device, Image, Session};

const CPU: Device = Device::Cpu;

/// Captions of the embedded scenes by a small network.
fn shapes() -> Config {
    let mut c = Config::preset("shapes").unwrap();
    (c.model.encoder.width, c.model.encoder.depth, c.model.denoiser.width) = (32, 1, 32);
    (c.train.batch, c.train.log_every, c.train.ema, c.train.eval_every) = (16, 1, 0.9, 0);
    c.train.warmup_epochs = 0.02;
    c
}

fn create(path: &Path, config: &Config) -> tweedie::Result<Session> {
    Session::create(path, config, TrainingSet::open(config, None)?, &CPU)
}

fn refused(path: &Path, config: &Config, words: &[&str]) {
    let e = create(path, config).err().unwrap().to_string();
    assert!(words.iter().all(|w| e.contains(w)), "{words:?}: {e}");
    assert!(!path.exists(), "something was written");
}

/// Train for so many steps; gives the loss of the first one.
fn train(session: Session, steps: usize) -> f64 {
    let (done, mut first) = (Rc::new(Cell::new(0)), None);
    let count = done.clone();
    let stop = move || {
        count.set(count.get() + 1);
        count.get() >= steps
    };
    session
        .stop_when(stop)
        .run(|event| {
            if let Event::Step(s) = event {
                first.get_or_insert(s.loss as f64);
            }
        })
        .unwrap();
    first.unwrap()
}

/// A run of a few steps, and the settings of one that starts from it.
fn source(dir: &Path, config: &Config, steps: usize) -> (PathBuf, Config) {
    let run = dir.join("source");
    train(create(&run, config).unwrap(), steps);
    let warm = config.clone().with("train.init_from", run.display()).unwrap();
    (run, warm)
}

#[test]
fn a_run_starts_where_another_one_ended_and_needs_it_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (cold, [first, second, third]) = (shapes(), ["1", "2", "3"].map(|n| dir.path().join(n)));
    let (run, mut warm) = source(dir.path(), &cold, 300);
    (warm.seed, warm.train.lr) = (5, 0.004);
    let session = create(&first, &warm).unwrap();
    let notes = session.notes().join("\n");
    assert!(notes.contains("starts from the averaged weights of") && notes.contains("step-00000300"), "{notes}");
    let (started, cold) = (train(session, 2), train(create(&second, &Config { seed: 5, ..cold }).unwrap(), 1));
    assert!(started < 0.5 * cold, "{started} {cold}");

    // Where it came from stands in the folder.
    let config = fs::read_to_string(first.join("config.toml")).unwrap();
    assert!(config.contains(&format!("init_from = \"{}\"", run.display())), "{config}");
    let env: serde_json::Value = serde_json::from_slice(&fs::read(first.join("env.json")).unwrap()).unwrap();
    assert_eq!(env["init_from"]["checkpoint"], "step-00000300");
    assert_eq!((&env["init_from"]["step"], &env["init_from"]["weights"]), (&300.into(), &"ema".into()));
    assert!(env["init_from"]["crc32c"].as_u64().unwrap() > 0);
    assert_eq!(fs::read(run.join("tokenizer.json")).unwrap(), fs::read(first.join("tokenizer.json")).unwrap());

    // One that never made a step; then the source is gone.
    warm.train.init_weights = tweedie::config::Weights::Raw;
    let begun = create(&third, &warm).unwrap();
    assert!(begun.notes().iter().any(|n| n.contains("starts from the weights of")), "{:?}", begun.notes());
    drop(begun);
    fs::remove_dir_all(&run).unwrap();
    for (path, from) in [(&first, "step 2"), (&third, "step 0")] {
        let paused = Paused::open(path, &[]).unwrap();
        let data = paused.open_data().unwrap();
        let session = paused.resume(data, &CPU).unwrap();
        assert!(session.notes().iter().any(|n| n.contains(from)), "{:?}", session.notes());
        assert_eq!(session.trainer().config.train.init_from, run.display().to_string());
        assert!(train(session, 1) < 0.5 * cold);
    }
    let e = create(&dir.path().join("4"), &warm).err().unwrap().to_string();
    assert!(e.contains("train.init_from") && e.contains("no such folder"), "{e}");
}

#[test]
fn the_vocabulary_must_be_that_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (run, warm) = source(dir.path(), &shapes(), 1);
    let out = dir.path().join("out");
    let with = |name: &str| {
        let mut c = warm.clone();
        c.data.tokenizer = name.into();
        c
    };
    let wrong = ["data.tokenizer = \"word:100\"", "say \"word:9\"", "set data.tokenizer = \"\""];
    refused(&out, &with("word:9"), &wrong);
    refused(&out, &with("chars"), &["train.init_from", "\"chars\"", "set data.tokenizer = \"\""]);
    // Its own by name, by its file, or by saying nothing; a checkpoint instead of the run.
    let own = run.join("tokenizer.json").display().to_string();
    for (i, name) in ["", "word:100", &own].iter().enumerate() {
        create(&dir.path().join(format!("ok-{i}")), &with(name)).unwrap();
    }
    let checkpoint = run.join("checkpoints/step-00000001");
    create(&dir.path().join("ok"), &with("").with("train.init_from", checkpoint.display()).unwrap()).unwrap();
    // The file of another one.
    let other = dir.path().join("other.json");
    let text = tweedie::tokenize::Tokenizer::train(tweedie::tokenize::Kind::Word, 9, ["a b a b"]).unwrap().to_json();
    fs::write(&other, text).unwrap();
    refused(&out, &with(&other.display().to_string()), &["is not its tokenizer", "its token"]);
    // Nothing to take it from.
    let cold = with("").with("train.init_from", "\"\"").unwrap();
    refused(&out, &cold, &["data.tokenizer is empty", "word:5000"]);
}

#[test]
fn a_network_that_does_not_fit_is_refused_by_the_settings_that_differ() {
    let dir = tempfile::tempdir().unwrap();
    let (run, warm) = source(dir.path(), &shapes(), 1);
    let out = dir.path().join("out");
    let with = |key: &str, value: &str| warm.clone().with(key, value).unwrap();
    refused(&out, &with("model.denoiser.width", "64"), &["set model.denoiser.width = 32 (here 64)"]);
    refused(&out, &with("model.encoder.class_tokens", "2"), &["model.encoder.class_tokens = 1 (here 2)"]);
    refused(&out, &with("model.method", "mdd"), &["model.method = \"tdd\" (here \"mdd\")"]);
    refused(&out, &with("data.tokens", "20"), &["data.tokens = 16 (here 20)"]);
    refused(&out, &with("model.classes", "99"), &["model.classes", "here 99"]);
    refused(
        &out,
        &with("model.pretrained", "w.safetensors"),
        &["train.init_from", "model.pretrained", "one of the two"],
    );
    let digits = Config::preset("digits").unwrap().with("train.init_from", run.display()).unwrap();
    refused(&out, &digits, &["data.task = \"caption\"", "\"class\""]);

    // Another size of image is none of these: what is stored for each patch is resized, in the denoiser too.
    let session = create(&out, &with("model.encoder.image", "64")).unwrap();
    assert!(session.notes().iter().any(|n| n.contains("from 4 × 4 to 8 × 8 patches")), "{:?}", session.notes());
    let params = &session.trainer().trained.model.params;
    let shape = |name: &str| params.value(params.find(name).unwrap()).shape().to_vec();
    assert_eq!((shape("encoder.pos_embed"), shape("denoiser.null_cond")), (vec![1, 65, 32], vec![1, 65, 32]));
    assert_eq!(shape("denoiser.pos_embed"), [1, 65 + 16, 32]);
    train(session, 1);
}

/// Bars, with these names of classes.
fn bars(names: [&str; 2]) -> Dataset {
    let item = |i: u32| Item { image: Image::filled(8, 8, &[99 * (i % 2) as u8]), label: i % 2 };
    let items = Items::new((0..64).map(item).collect());
    Dataset::classes("bars", names.map(String::from).to_vec()).train(items).hold_out(0.2).build().unwrap()
}

#[test]
fn classes_must_be_the_same_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = Config::preset("digits").unwrap();
    (c.model.encoder.depth, c.model.denoiser.depth, c.train.epochs, c.train.eval_every) = (1, 1, 1, 0);
    let run = dir.path().join("source");
    Session::create(&run, &c, bars(["dark", "light"]), &CPU).unwrap().run(|_| {}).unwrap();
    c.train.init_from = run.display().to_string();
    let out = dir.path().join("out");
    let e = Session::create(&out, &c, bars(["dark", "grey"]), &CPU).err().unwrap().to_string();
    assert!(e.contains("classes are not those of the data") && e.contains("model.pretrained"), "{e}");
    let warm = Session::create(&out, &c, bars(["dark", "light"]), &CPU).unwrap();
    warm.run(|_| {}).unwrap();
    // The hint works.
    let file = fs::read_dir(run.join("checkpoints")).unwrap().map(|e| e.unwrap().path().join("ema.safetensors"));
    let file = file.into_iter().find(|p| p.is_file()).unwrap();
    (c.train.init_from, c.model.pretrained) = (String::new(), file.display().to_string());
    Session::create(dir.path().join("other"), &c, bars(["dark", "grey"]), &CPU).unwrap();
}
