//! Trainings that meet damage: failed saves and reads, torn checkpoints, numbers that are not finite, folders that go away.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tweedie::checkpoint::{self, Component, Snapshot};
use tweedie::config::Precision;
use tweedie::data::{DataError, ImageSource, Item};
use tweedie::run::{self, Weights};
use tweedie::session::{Paused, snapshot};
use tweedie::train::Event;
use tweedie::{Classifier, Config, Dataset, Device, Error, Image, Session};

const CPU: Device = Device::Cpu;
const EXAMPLES: usize = 64;

/// What a source does when it is asked for an example.
type Fault = Arc<dyn Fn(usize) -> Option<DataError> + Send + Sync>;

/// Bars at the place of their class, with faults.
struct Bars(usize, Fault);

impl ImageSource for Bars {
    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, i: usize) -> Result<Item, DataError> {
        match (self.1)(i) {
            Some(e) => Err(e),
            None => Ok(Item { image: Image::filled(8, 8, &[20 * (i % 10) as u8]), label: (i % 10) as u32 }),
        }
    }

    fn label(&self, i: usize) -> u32 {
        (i % 10) as u32
    }
}

fn sound() -> Fault {
    Arc::new(|_| None)
}

fn bars(train: Fault, val: Fault) -> Dataset {
    let names: Vec<String> = (0..10).map(|c| c.to_string()).collect();
    Dataset::classes("bars", names).train(Bars(EXAMPLES, train)).validation(Bars(96, val)).build().unwrap()
}

/// Four steps an epoch, a checkpoint after each.
fn tiny(epochs: usize) -> Config {
    let mut c = Config::preset("digits").unwrap();
    (c.model.encoder.depth, c.model.denoiser.depth, c.sample.steps) = (1, 1, 1);
    (c.train.batch, c.train.epochs, c.train.eval_every, c.train.log_every) = (16, epochs, 0, 1);
    (c.train.checkpoint_every, c.train.keep) = (1, 9);
    c
}

fn undisturbed() -> Dataset {
    bars(sound(), sound())
}

/// What a run of these settings ends with if nothing happens to it.
fn whole(config: &Config) -> Snapshot<'static> {
    let dir = tempfile::tempdir().unwrap();
    let mut s = Session::create(dir.path().join("r"), config, undisturbed(), &CPU).unwrap();
    s.train(|_| {}).unwrap();
    snapshot(s.trainer()).unwrap()
}

/// Train and collect the warnings.
fn train(s: &mut Session, mut each: impl FnMut(&Event)) -> (tweedie::Result<tweedie::Finished>, Vec<String>) {
    let warnings = RefCell::new(Vec::new());
    let result = s.train(|e| {
        if let Event::Warning(w) = e {
            warnings.borrow_mut().push(w.message.clone());
        }
        each(e);
    });
    (result, warnings.into_inner())
}

fn steps_of(run: &Path) -> Vec<String> {
    let mut all: Vec<String> = fs::read_dir(run.join("checkpoints"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("step-"))
        .collect();
    all.sort();
    all
}

fn at(run: &Path, step: usize) -> PathBuf {
    run.join(format!("checkpoints/step-{step:08}"))
}

/// Write a checkpoint again, changed.
fn change(path: &Path, f: impl FnOnce(&mut Snapshot)) {
    let mut s = checkpoint::load(path).unwrap();
    f(&mut s);
    fs::remove_dir_all(path).unwrap();
    checkpoint::save(path.parent().unwrap(), &s).unwrap();
}

fn cut(file: &Path) {
    let f = fs::File::options().write(true).open(file).unwrap();
    f.set_len(f.metadata().unwrap().len() - 1).unwrap();
}

fn unreadable(i: usize) -> DataError {
    DataError::Io { path: format!("bar-{i}").into(), source: std::io::Error::other("the disk does not answer") }
}

#[test]
fn a_checkpoint_of_a_skipped_step_loads() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    let mut c = tiny(1);
    (c.train.lr, c.train.warmup_epochs, c.train.max_skipped) = (1e15, 0.0, 1000);
    Session::create(&run, &c, undisturbed(), &CPU).unwrap().run(|_| {}).unwrap();
    let state = fs::read_to_string(at(&run, 4).join("state.json")).unwrap();
    assert!(state.contains("null"), "{state}");
    let paused = Paused::open(&run, &["train.epochs=2".into()]).unwrap();
    let mut resumed = paused.resume(undisturbed(), &CPU).unwrap();
    assert_eq!(resumed.trainer().step(), 4);
    assert!(resumed.trainer().optimizer().stats().unwrap().grad_norm.is_nan());
    assert!(resumed.train(|_| {}).unwrap().is_complete());
}

#[test]
fn a_counter_too_many_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    Session::create(&run, &tiny(1), undisturbed(), &CPU).unwrap().run(|_| {}).unwrap();
    change(&at(&run, 4), |s| {
        let counters = s.state.extra.get_mut("optimizer").and_then(|v| v.as_array_mut()).unwrap();
        counters.push(1.into());
    });
    let Err(Error::Input(e)) = Session::resume_with(&run, undisturbed(), &CPU) else { panic!("not refused") };
    assert!(e.contains("optimizer counters"), "{e}");
}

/// Whatever is wrong with the newest checkpoints, the run goes on from the one before them, and says what it passed over.
#[test]
fn what_cannot_be_restored_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    let want = whole(&tiny(6));
    let mut c = tiny(6);
    c.train.epochs = 6;
    let count = RefCell::new(0);
    let stop = move || {
        *count.borrow_mut() += 1;
        *count.borrow() == 20
    };
    Session::create(&run, &c, undisturbed(), &CPU).unwrap().stop_when(stop).run(|_| {}).unwrap();
    change(&at(&run, 20), |s| s.model[0].shape.insert(0, 1));
    change(&at(&run, 16), |s| s.ema.as_mut().unwrap()[1].data.to_mut()[0] = f32::NAN);
    let state = at(&run, 12).join("state.json");
    fs::remove_file(&state).unwrap();
    fs::create_dir(&state).unwrap();
    fs::write(at(&run, 8).join("state.json"), "{}").unwrap();
    let mut resumed = Session::resume_with(&run, undisturbed(), &CPU).unwrap();
    let notes = resumed.notes().join("\n");
    assert_eq!(notes.matches("passed over").count(), 4, "{notes}");
    for words in [
        "the model has",
        "not finite",
        "step-00000012 is damaged: state.json: a folder",
        "checksum",
        "goes on from step 4 ",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
    assert_eq!(steps_of(&run), ["step-00000004"]);
    resumed.train(|_| {}).unwrap();
    let got = snapshot(resumed.trainer()).unwrap();
    assert!(got == want, "the weights are others");
}

#[test]
fn settings_that_fit_no_checkpoint_are_an_error_that_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    Session::create(&run, &tiny(2), undisturbed(), &CPU).unwrap().run(|_| {}).unwrap();
    let before = steps_of(&run);
    for (set, words) in [
        ("model.encoder.depth=2", "step-00000008: there is no tensor encoder.blocks.1"),
        ("model.denoiser.width=96", "step-00000008: denoiser"),
        ("train.optimizer=\"muon\"", "train.optimizer"),
    ] {
        let paused = Paused::open(&run, &[set.into()]).unwrap();
        let e = paused.resume(undisturbed(), &CPU).err().unwrap().to_string();
        assert!(e.contains(words), "{e}");
        assert_eq!(steps_of(&run), before);
    }
}

/// Nothing is begun on top of checkpoints that are all damaged: what is left of them is named, and is of use.
#[test]
fn all_damaged_is_refused_with_what_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    Session::create(&run, &tiny(2), undisturbed(), &CPU).unwrap().run(|_| {}).unwrap();
    cut(&at(&run, 8).join("optimizer.safetensors"));
    fs::remove_file(at(&run, 4).join("state.json")).unwrap();
    cut(&at(&run, 4).join("model.safetensors"));
    let before = steps_of(&run);
    let e = Session::resume_with(&run, undisturbed(), &CPU).err().unwrap().to_string();
    for words in [
        "none of the 2 checkpoints",
        "optimizer.safetensors should have",
        "model.safetensors and ema.safetensors of",
        "step-00000008, or --set model.pretrained=",
        "ema.safetensors and optimizer.safetensors of",
        "config.toml",
        "metrics.jsonl (",
    ] {
        assert!(e.contains(words), "{words}: {e}");
    }
    assert_eq!(steps_of(&run), before);
    assert_eq!(checkpoint::intact_components(&at(&run, 8)), [Component::Model, Component::Ema]);
    run::load(&at(&run, 8), Weights::Raw, &CPU, Precision::Auto).unwrap();
}

/// Weights that are not finite are never saved nor the best; the training goes back to those that were.
#[test]
fn a_diverged_training_goes_back() {
    for (most, why) in [(3, "3 steps in a row had no finite gradient"), (1000, "holds values that are not finite")] {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("r");
        let mut c = tiny(4);
        (c.train.max_skipped, c.train.eval_every, c.train.log_every) = (most, 1, 1000);
        let mut saved = 0;
        let mut s = Session::create(&run, &c, undisturbed(), &CPU).unwrap().with_preview(move |t, _| {
            saved += 1;
            if saved == 2 {
                let params = &mut t.trained.model.params;
                let (id, n) = params.iter().map(|(_, s, id)| (id, s.iter().product())).next().unwrap();
                params.set(id, &vec![f32::NAN; n])?;
            }
            Ok(())
        });
        let (result, warnings) = train(&mut s, |_| {});
        let e = result.unwrap_err();
        assert!(matches!(&e, Error::Diverged { step, .. } if *step == 8 + most.min(8) as usize), "{e}");
        let text = e.to_string();
        assert!(text.contains(why) && text.contains("step-00000008") && text.contains("train.lr"), "{text}");
        assert!(warnings.last().unwrap().contains("went back to"), "{warnings:?}");
        assert_eq!(steps_of(&run), ["step-00000004", "step-00000008"]);
        let best = checkpoint::best(&run.join("checkpoints")).unwrap().unwrap();
        assert!(best == at(&run, 4) || best == at(&run, 8), "{}", best.display());
        assert_eq!(s.trainer().step(), 8);
        // The same session goes on from there, and so does another.
        assert!(s.train(|_| {}).unwrap().is_complete());
        assert!(snapshot(s.trainer()).unwrap() == whole(&c));
        let told = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        assert!(told.contains("diverged at step"), "{told}");
    }
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    Session::create(&run, &tiny(1), undisturbed(), &CPU).unwrap().run(|_| {}).unwrap();
    let mut name = String::new();
    change(&at(&run, 4), |s| {
        let ema = &mut s.ema.as_mut().unwrap()[3];
        ema.data.to_mut()[0] = f32::INFINITY;
        name = ema.name.clone();
    });
    for path in [run.clone(), at(&run, 4)] {
        let e = Classifier::open(&path).err().unwrap().to_string();
        assert!(e.contains(&name) && e.contains("step-00000004") && e.contains("not finite"), "{e}");
    }
    run::load(&run, Weights::Raw, &CPU, Precision::Auto).unwrap();
}

/// The folder of checkpoints is a file for a while: saves fail, the training goes on and loses nothing.
#[test]
fn a_failed_save_does_not_end_a_training() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    let (place, away) = (run.join("checkpoints"), run.join("away"));
    let mut s = Session::create(&run, &tiny(3), undisturbed(), &CPU).unwrap();
    let (result, warnings) = train(&mut s, |e| match e {
        Event::Step(e) if e.step == 1 => {
            fs::rename(&place, &away).unwrap();
            fs::write(&place, "in the way").unwrap();
        }
        Event::Warning(_) => {
            fs::remove_file(&place).unwrap();
            fs::rename(&away, &place).unwrap();
        }
        _ => {}
    });
    assert!(result.unwrap().is_complete());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("step 4 is not saved, the training goes on"), "{warnings:?}");
    assert_eq!(steps_of(&run), ["step-00000008", "step-00000012"]);
    assert!(snapshot(s.trainer()).unwrap() == whole(&tiny(3)));

    // One at the end is an error, and the model is still there to be saved.
    let run = dir.path().join("never");
    let place = run.join("checkpoints");
    let mut s = Session::create(&run, &tiny(1), undisturbed(), &CPU).unwrap();
    let (result, _) = train(&mut s, |e| {
        if matches!(e, Event::Step(e) if e.step == 1) {
            fs::remove_dir(&place).unwrap();
            fs::write(&place, "in the way").unwrap();
        }
    });
    let e = result.unwrap_err();
    assert!(matches!(&e, Error::Stopped { saved, .. } if saved.contains("step 4")), "{e}");
    assert_eq!(s.trainer().step(), 4);
}

#[test]
fn a_read_that_fails_for_a_while_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let left = AtomicU32::new(2);
    let armed = Arc::new(AtomicBool::new(false));
    let on = armed.clone();
    let passing: Fault = Arc::new(move |i| {
        let fails = i == 7
            && on.load(Ordering::SeqCst)
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        fails.then(|| unreadable(i))
    });
    let data = bars(passing, sound());
    let mut s = Session::create(dir.path().join("r"), &tiny(2), data, &CPU).unwrap();
    armed.store(true, Ordering::SeqCst);
    let (result, warnings) = train(&mut s, |_| {});
    assert!(result.unwrap().is_complete());
    assert!(warnings.iter().any(|w| w.contains("2 reads failed") && w.contains("bar-7")), "{warnings:?}");
    assert!(snapshot(s.trainer()).unwrap() == whole(&tiny(2)));
}

#[test]
fn an_example_that_is_never_read_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let gone: Fault = Arc::new(|i| (i == 7).then(|| unreadable(i)));
    let mut named = Vec::new();
    let mut s = Session::create(dir.path().join("r"), &tiny(2), bars(gone, sound()), &CPU).unwrap();
    let (result, _) = train(&mut s, |e| {
        if let Event::Skipped(s) = e {
            named.extend(s.errors.clone());
        }
    });
    assert!(result.unwrap().is_complete());
    assert!(named.len() == 1 && named[0].contains("bar-7"), "{named:?}");
}

/// A source that fails from some moment on ends the training with an error, after the last finished step was saved.
#[test]
fn a_source_that_is_gone_ends_a_training_that_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("r");
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let fault: Fault = Arc::new(move |i| is_gone.load(Ordering::SeqCst).then(|| unreadable(i)));
    let mut c = tiny(50);
    c.train.checkpoint_every = 50;
    let mut s = Session::create(&run, &c, bars(fault, sound()), &CPU).unwrap();
    let (result, _) = train(&mut s, |e| {
        if matches!(e, Event::Step(e) if e.step == 6) {
            gone.store(true, Ordering::SeqCst);
        }
    });
    let e = result.unwrap_err();
    let text = e.to_string();
    assert!(matches!(e, Error::Stopped { .. }) && text.contains("in a row could not be read"), "{text}");
    let step = s.trainer().step();
    assert!(step >= 6 && text.contains(&format!("step {step} was saved before, in ")), "{text}");
    drop(s);
    let mut resumed = Session::resume_with(&run, undisturbed(), &CPU).unwrap();
    assert_eq!(resumed.trainer().step(), step);
    resumed.train(|_| {}).unwrap();
    assert!(snapshot(resumed.trainer()).unwrap() == whole(&c));
}

#[test]
fn evaluation_images_that_are_not_readable_end_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let torn = |i: usize| DataError::Corrupt { place: format!("bar-{i}"), message: "torn".into() };
    let mut c = tiny(2);
    c.train.eval_every = 1;
    // The first batch of an evaluation has no readable image, the second has.
    let first: Fault = Arc::new(move |i| (i < 64).then(|| torn(i)));
    let mut seen = Vec::new();
    let mut s = Session::create(dir.path().join("some"), &c, bars(sound(), first), &CPU).unwrap();
    let (result, warnings) = train(&mut s, |e| {
        if let Event::Eval(e) = e {
            seen.push(e.examples);
        }
    });
    assert!(result.unwrap().is_complete() && warnings.is_empty(), "{warnings:?}");
    assert_eq!(seen, [32, 32]);
    let all: Fault = Arc::new(move |i| Some(torn(i)));
    let mut s = Session::create(dir.path().join("none"), &c, bars(sound(), all), &CPU).unwrap();
    let (result, warnings) = train(&mut s, |_| {});
    assert!(result.unwrap().is_complete());
    assert!(warnings.len() == 2 && warnings[0].contains("none of 96 examples could be read"), "{warnings:?}");
}

/// A folder that is moved or deleted is noticed: the run goes on beside its place, and from there.
#[test]
fn a_folder_that_goes_away_is_noticed() {
    for deleted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (run, moved) = (dir.path().join("r"), dir.path().join("moved"));
        let mut s = Session::create(&run, &tiny(4), undisturbed(), &CPU).unwrap();
        let (result, warnings) = train(&mut s, |e| match e {
            Event::Step(e) if e.step == 6 && deleted => fs::remove_dir_all(&run).unwrap(),
            Event::Step(e) if e.step == 6 => fs::rename(&run, &moved).unwrap(),
            _ => {}
        });
        let rescued = dir.path().join("r.rescued-1");
        assert_eq!(result.unwrap().path, rescued);
        assert!(warnings.len() == 1 && warnings[0].contains("r.rescued-1"), "{warnings:?}");
        assert!(!run.exists());
        assert_eq!(steps_of(&rescued), ["step-00000008", "step-00000012", "step-00000016"]);
        let told = fs::read_to_string(rescued.join("metrics.jsonl")).unwrap();
        assert_eq!(told.lines().filter(|l| l.contains("\"event\":\"step\"")).count(), 16, "{told}");
        assert!(snapshot(s.trainer()).unwrap() == whole(&tiny(4)));
        drop(s);
        let again = Session::resume_with(&rescued, undisturbed(), &CPU).unwrap();
        assert_eq!(again.trainer().step(), 16);
    }
}
