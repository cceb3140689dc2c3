//! What is read from disk when a model is loaded and when a run goes on: each byte that is needed once, as the kernel counts.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};

use tweedie::checkpoint::{self, Component, Snapshot, State};
use tweedie::config::{Config, Precision};
use tweedie::model::Model;
use tweedie::run::{self, Weights};
use tweedie::run_dir::RunDir;
use tweedie::settings;
use tweedie::tensors::NamedTensor;
use tweedie_engine::{DType, Device};

/// Bytes that this thread has read so far, from files, the cache of the system or elsewhere.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/thread-self/io").unwrap();
    io.lines().find_map(|l| l.strip_prefix("rchar: ")?.parse().ok()).unwrap()
}

/// `f`, and the bytes that it read.
fn counted<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = bytes_read();
    let made = f();
    (made, bytes_read() - before)
}

fn config() -> Config {
    let mut config = Config::default();
    config.model.classes = 10;
    config
}

/// A checkpoint of a model of `seed`.
fn snapshot(step: u64, seed: u64) -> Snapshot<'static> {
    let c = config();
    let model = Model::new(&c.model, c.sizes(), &Device::Cpu, DType::F32, seed).unwrap();
    let named = |prefix: &str| -> Vec<NamedTensor<'static>> {
        let one = |(name, shape, id): (&str, &[usize], _)| {
            NamedTensor::new(format!("{prefix}{name}"), shape, model.params.value(id).to_vec().unwrap())
        };
        model.params.iter().map(one).collect()
    };
    let optimizer = [named("m."), named("v.")].concat();
    let state = State { step, classes: (0..10).map(|c| c.to_string()).collect(), ..State::default() };
    Snapshot { state, model: named(""), ema: Some(named("")), optimizer }
}

/// A run of three checkpoints, of which the first was the best.
fn run_of_three(dir: &Path) -> [PathBuf; 3] {
    let run = RunDir::create(dir).unwrap();
    run.write_config(&settings::to_toml(&config()).unwrap()).unwrap();
    let paths = [1, 2, 3].map(|s| checkpoint::save(&run.checkpoints(), &snapshot(s, s)).unwrap());
    checkpoint::link_best(&run.checkpoints(), &paths[0]).unwrap();
    paths
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// Settings and `state.json` of all checkpoints.
const SMALL: u64 = 100_000;

fn loads(path: &Path) -> run::Loaded {
    run::load(path, Weights::Ema, &Device::Cpu, Precision::Auto).unwrap()
}

#[test]
fn loading_a_model_reads_its_weights_once() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let [best, ..] = run_of_three(&run);
    let weights = size(&best.join(Component::Ema.file()));
    assert!(weights > 10 * SMALL);
    let (loaded, read) = counted(|| loads(&run));
    println!("{read} bytes read for weights of {weights}: {:.2} times", read as f64 / weights as f64);
    assert_eq!(loaded.checkpoint, best);
    assert!((weights..weights + SMALL).contains(&read), "{read} bytes read for weights of {weights}");
    let (_, read) = counted(|| loads(&best));
    assert!((weights..weights + SMALL).contains(&read), "{read} bytes read for weights of {weights}");
}

#[test]
fn going_on_reads_each_file_of_the_checkpoint_once() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let [.., last] = run_of_three(&run);
    let all: u64 = fs::read_dir(&last).unwrap().map(|f| size(&f.unwrap().path())).sum();
    let (found, read) = counted(|| checkpoint::load_latest(last.parent().unwrap()).unwrap());
    println!("{read} bytes read for a checkpoint of {all}: {:.2} times", read as f64 / all as f64);
    let (path, got) = found.checkpoint.unwrap();
    assert!(path == last && got == snapshot(3, 3) && found.notes.is_empty());
    assert!((all..all + SMALL).contains(&read), "{read} bytes read for a checkpoint of {all}");
}

fn flip_last_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

/// Damage that sizes do not show: found while reading, the next best is taken, and nothing is read twice on the way.
#[test]
fn damaged_weights_are_not_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let [first, second, third] = run_of_three(&run);
    let weights = size(&first.join(Component::Ema.file()));
    flip_last_bit(&first.join(Component::Ema.file()));
    let (loaded, read) = counted(|| loads(&run));
    assert_eq!(loaded.checkpoint, third);
    assert!((2 * weights..2 * weights + SMALL).contains(&read), "{read} bytes read for weights of {weights}");
    let [note] = &loaded.notes[..] else { panic!("{:?}", loaded.notes) };
    assert!(note.contains("the best checkpoint cannot be used") && note.contains("step-00000001 is damaged"), "{note}");
    assert!(note.ends_with("step-00000003 instead"), "{note}");

    // The best is the newest as well: it is not tried twice.
    flip_last_bit(&third.join(Component::Ema.file()));
    checkpoint::link_best(third.parent().unwrap(), &third).unwrap();
    let (loaded, read) = counted(|| loads(&run));
    assert_eq!(loaded.checkpoint, second);
    assert!((2 * weights..2 * weights + SMALL).contains(&read), "{read} bytes read for weights of {weights}");
    let [passed, note] = &loaded.notes[..] else { panic!("{:?}", loaded.notes) };
    assert!(passed.contains("step-00000003 is damaged") && passed.ends_with("passed over"), "{passed}");
    assert!(note.ends_with("step-00000002 instead"), "{note}");

    // A newer one that is cut short is told of though the best is used; what cannot be used at all is an error.
    checkpoint::link_best(third.parent().unwrap(), &second).unwrap();
    fs::write(third.join(Component::Model.file()), "cut").unwrap();
    let loaded = loads(&run);
    assert!(loaded.checkpoint == second && loaded.notes.len() == 1, "{:?}", loaded.notes);
    flip_last_bit(&second.join(Component::Ema.file()));
    let e = run::load(&run, Weights::Ema, &Device::Cpu, Precision::Auto).err().unwrap().to_string();
    assert!(e.contains("no intact checkpoint") && e.matches("passed over").count() == 3, "{e}");
    // The weights themselves are still there.
    assert_eq!(run::load(&run, Weights::Raw, &Device::Cpu, Precision::Auto).unwrap().checkpoint, second);
}

#[test]
fn a_damaged_checkpoint_is_not_gone_on_from() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let [_, second, third] = run_of_three(&run);
    flip_last_bit(&third.join(Component::Optimizer.file()));
    let found = checkpoint::load_latest(third.parent().unwrap()).unwrap();
    assert_eq!(found.checkpoint.unwrap().0, second);
    assert!(found.notes[0].contains("optimizer.safetensors should have the checksum"), "{:?}", found.notes);
}
