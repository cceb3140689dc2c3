//! Runs on data of a program's own, and what a session refuses before it writes anything.

use std::cell::Cell;
use std::rc::Rc;

use tweedie::config::SampleConfig;
use tweedie::data::Item;
use tweedie::data::{Items, SequenceSet};
use tweedie::session::{Paused, snapshot};
use tweedie::train::TrainingSet;
use tweedie::{Classifier, Config, Dataset, Device, Error, Image, Session};

const CPU: Device = Device::Cpu;

/// Bars at the place of their class.
fn bars(classes: u32) -> Dataset {
    let item = |i: u32| {
        let label = i % classes;
        let image = Image::filled(8, 8, &[20 * label as u8]);
        Item { image, label }
    };
    let items = Items::new((0..128).map(item).collect());
    let names = (0..classes).map(|c| c.to_string());
    Dataset::classes("bars", names.collect::<Vec<_>>()).train(items).hold_out(0.2).build().unwrap()
}

fn tiny() -> Config {
    let mut c = Config::preset("digits").unwrap();
    (c.model.encoder.depth, c.model.denoiser.depth, c.train.epochs, c.sample.steps) = (1, 1, 2, 2);
    c.train.eval_every = 0;
    c
}

fn texts(words: &str) -> SequenceSet {
    let lines: Vec<String> = (0..64).map(|i| words.chars().cycle().skip(i % 3).take(3).collect()).collect();
    SequenceSet::texts("lines").train(lines).hold_out(0.2).build().unwrap()
}

fn text_config() -> Config {
    let mut c = Config::preset("ptb-chars").unwrap().with("data.layout", "lines").unwrap();
    (c.data.tokens, c.train.epochs, c.train.batch, c.train.eval_every) = (4, 1, 16, 0);
    (c.model.denoiser.width, c.model.denoiser.depth, c.model.denoiser.heads) = (16, 1, 2);
    c
}

/// What the data looked like stands in the run; others are refused with what changed, and taken if they are meant.
#[test]
fn a_run_notices_other_data() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    Session::create(&run, &tiny(), bars(10), &CPU).unwrap().stop_when(|| true).run(|_| {}).unwrap();
    assert!(Session::resume_with(&run, bars(10), &CPU).unwrap().notes().iter().all(|n| !n.contains("other data")));
    let other = || {
        let item = |i: u32| Item { image: Image::filled(8, 8, &[9]), label: i % 10 };
        let names: Vec<String> = (0..10).map(|c| c.to_string()).collect();
        let items = Items::new((0..128).map(item).collect());
        Dataset::classes("bars", names).train(items).hold_out(0.2).build().unwrap()
    };
    let Err(e @ Error::OtherData { .. }) = Session::resume_with(&run, other(), &CPU) else { panic!("not noticed") };
    assert!(e.to_string().contains("of the training split") && e.to_string().contains("something else"), "{e}");
    let go_on = |data| Paused::open(&run, &[]).unwrap().with_other_data().resume(data, &CPU).unwrap();
    let mut session = go_on(other());
    assert!(session.notes().iter().any(|n| n.contains("other data: example 0")), "{:?}", session.notes());
    assert!(session.train(|_| {}).unwrap().is_complete());
    drop(session);
    assert!(Session::resume_with(&run, other(), &CPU).is_ok()); // they are the run's own from now on
    std::fs::remove_file(run.join("data.json")).unwrap(); // a run of a version that did not note them
    assert!(Session::resume_with(&run, bars(10), &CPU).is_ok());
}

/// Stopped after any step and gone on with, a run on own data ends with the same weights; without the data it is refused, though the
/// recipe that its settings came from names others.
#[test]
fn a_run_on_own_data_goes_on_with_them_and_not_with_others() {
    let dir = tempfile::tempdir().unwrap();
    let [whole, parts] = ["whole", "parts"].map(|n| dir.path().join(n));
    let mut session = Session::create(&whole, &tiny(), bars(10), &CPU).unwrap();
    let finished = session.train(|_| {}).unwrap();
    assert!(finished.is_complete());
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let third = move || {
        count.set(count.get() + 1);
        count.get() == 3
    };
    let stopped = Session::create(&parts, &tiny(), bars(10), &CPU).unwrap().stop_when(third).run(|_| {}).unwrap();
    assert_eq!((stopped.step, asked.get(), stopped.is_complete()), (3, 3, false));
    let e = Session::resume(&parts, &CPU).err().unwrap().to_string();
    assert!(e.contains("\"bars\"") && e.contains("made by a program"), "{e}");
    let e = Session::resume_with(&parts, bars(9), &CPU).err().unwrap().to_string();
    assert!(e.contains("classes"), "{e}");
    let mut resumed = Session::resume_with(&parts, bars(10), &CPU).unwrap();
    resumed.train(|_| {}).unwrap();
    let of = |s: &Session| snapshot(s.trainer()).unwrap();
    assert_eq!((of(&resumed).model, of(&resumed).ema), (of(&session).model, of(&session).ema));
}

#[test]
fn data_of_another_kind_than_the_settings_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let refused = |config: &Config, data: TrainingSet, words: &[&str]| {
        let e = Session::create(&path, config, data, &CPU).err().unwrap().to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{e}");
        assert!(!path.exists());
    };
    refused(&text_config(), bars(3).into(), &["data.task", "class", "text"]);
    let lines = |c: &Config| TrainingSet::sequences(texts("abc"), c, None).unwrap();
    refused(&tiny(), lines(&text_config()), &["data.task", "class", "text"]);
    refused(&text_config().with("data.layout", "packed").unwrap(), lines(&text_config()), &["lines", "packed"]);
    refused(&tiny().with("sample.steps", 0).unwrap(), bars(3).into(), &["sample.steps = 0"]);
    let e = tiny().with("train.epocs", 3).unwrap_err().to_string();
    assert!(e.contains("train.epochs") && !e.contains("--set"), "{e}");
}

#[test]
fn another_vocabulary_of_the_same_size_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let config = text_config();
    let set =
        |words: &str, stored: Option<&std::path::Path>| TrainingSet::sequences(texts(words), &config, stored).unwrap();
    Session::create(&path, &config, set("abc", None), &CPU).unwrap().stop_when(|| true).run(|_| {}).unwrap();
    let e = Session::resume_with(&path, set("xyz", None), &CPU).err().unwrap().to_string();
    assert!(e.contains("tokenizer.json") && e.contains("token"), "{e}");
    let data = set("abc", Some(&path.join("tokenizer.json")));
    assert!(Session::resume_with(&path, data, &CPU).unwrap().run(|_| {}).unwrap().is_complete());
}

#[test]
fn what_cannot_be_classified_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = Session::create(dir.path().join("r"), &tiny(), bars(3), &CPU).unwrap();
    let trained = &run.trainer().trained;
    let c = Classifier::new(trained, &tiny().sample).unwrap();
    for bad in [(8, 8, 1, 1), (8, 8, 1, 65), (0, 0, 1, 0), (4, 4, 4, 64)] {
        let (width, height, channels, values) = bad;
        assert!(c.classify(&Image { width, height, channels, data: vec![9; values] }).is_err(), "{bad:?}");
    }
    assert_eq!(c.classify_all(&[]).unwrap(), []);
    let one = trained.images(&[Image::filled(8, 8, &[9])]).unwrap();
    assert!(c.classify_batch(&one, &[1, 2]).unwrap_err().to_string().contains("2 ids"));
    for (wrong, word) in [
        (SampleConfig { steps: 0, ..SampleConfig::default() }, "sample.steps"),
        (SampleConfig { votes: 0, ..SampleConfig::default() }, "sample.votes"),
        (SampleConfig { guidance: f32::NAN, ..SampleConfig::default() }, "sample.guidance"),
    ] {
        assert!(Classifier::new(trained, &wrong).err().unwrap().to_string().contains(word));
    }
}

/// To the last bit, alone or among others, wherever it stands.
#[test]
fn an_answer_does_not_depend_on_the_batch() {
    let dir = tempfile::tempdir().unwrap();
    let run = Session::create(dir.path().join("r"), &tiny(), bars(3), &CPU).unwrap().run(|_| {}).unwrap();
    let c = Classifier::open(&run).unwrap();
    assert!(c.trained().temperature.is_some(), "fitted at the end of the training");
    let images: Vec<Image> = (0..9_u8).map(|i| Image::filled(8, 8, &[28 * i])).collect();
    let all = c.classify_all(&images).unwrap();
    let alone: Vec<_> = images.iter().map(|i| c.classify(i).unwrap()).collect();
    assert_eq!(all, alone);
    let turned: Vec<Image> = images.iter().rev().cloned().collect();
    assert!(c.classify_all(&turned).unwrap().iter().rev().eq(&all));
    let sum: f64 = all[0].posterior.0.iter().map(|c| c.1).sum();
    assert!((sum - 1.0).abs() < 1e-9 && all[0].probability() == all[0].posterior.0[0].1);
}
