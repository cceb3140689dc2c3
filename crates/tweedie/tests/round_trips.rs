//! What is written is read again, whatever it is: every file format of the project, on drawn contents.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tweedie::checkpoint::{self, Snapshot, State};
use tweedie::data::{Dataset, Fingerprint, Item, Items};
use tweedie::run_dir::RunDir;
use tweedie::tensors::{self, NamedTensor};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::{Config, Image, settings};

/// A tensor of up to three axes with any bits, NaN and infinities among them.
fn tensor() -> impl Strategy<Value = (Vec<usize>, Vec<f32>)> {
    prop::collection::vec(0_usize..4, 0..3).prop_flat_map(|shape| {
        let n: usize = shape.iter().product();
        (Just(shape), prop::collection::vec(any::<u32>().prop_map(f32::from_bits), n))
    })
}

fn named(all: Vec<(Vec<usize>, Vec<f32>)>) -> Vec<NamedTensor<'static>> {
    all.into_iter()
        .enumerate()
        .map(|(i, (shape, data))| NamedTensor::new(format!("t{i}.weight"), &shape, data))
        .collect()
}

fn bits(all: &[NamedTensor]) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let one = |t: &NamedTensor| (t.name.clone(), t.shape.clone(), t.data.iter().map(|v| v.to_bits()).collect());
    let mut all: Vec<_> = all.iter().map(one).collect();
    all.sort();
    all
}

fn folder(f: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    f(dir.path());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn weights(all in prop::collection::vec(tensor(), 0..5)) {
        folder(|dir| {
            let (file, all) = (dir.join("w.safetensors"), named(all));
            tensors::write(&file, &all).unwrap();
            assert_eq!(bits(&tensors::read(&file).unwrap()), bits(&all));
        });
    }

    #[test]
    fn checkpoints(all in prop::collection::vec(tensor(), 1..4), step in 0_u64..99_999_999, seed: u64, classes in prop::collection::vec(".*", 0..4)) {
        folder(|dir| {
            let all = named(all);
            let state = State { step, seed, classes, ..State::default() };
            let snapshot = Snapshot { state, model: all.clone(), ema: Some(all.clone()), optimizer: all };
            let path = checkpoint::save(dir, &snapshot).unwrap();
            let again = checkpoint::load(&path).unwrap();
            assert_eq!(again.state, snapshot.state);
            assert_eq!(bits(&again.model), bits(&snapshot.model));
            assert_eq!(bits(again.ema.as_ref().unwrap()), bits(&snapshot.optimizer));
        });
    }

    #[test]
    fn images(width in 1_usize..9, height in 1_usize..9, grey: bool, seed: u8) {
        let channels = if grey { 1 } else { 3 };
        let data: Vec<u8> = (0..width * height * channels).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
        let image = Image::new(width, height, channels, data).unwrap();
        prop_assert_eq!(Image::decode(&image.to_png().unwrap()).unwrap().into_channels(channels), image);
    }

    #[test]
    fn tokenizers(texts in prop::collection::vec("[a-zé ]{1,12}", 1..6)) {
        for kind in [Kind::Chars, Kind::Word, Kind::Space] {
            let Ok(tokenizer) = Tokenizer::train(kind, 200, texts.iter().map(String::as_str)) else { continue };
            let again = Tokenizer::from_json(&tokenizer.to_json()).unwrap();
            prop_assert_eq!(again.vocab(), tokenizer.vocab());
            for text in &texts {
                prop_assert_eq!(again.encode(text), tokenizer.encode(text));
                prop_assert_eq!(again.decode(&again.encode(text)), tokenizer.decode(&tokenizer.encode(text)));
            }
        }
    }

    #[test]
    fn settings_of_a_run(seed in 0..i64::MAX as u64, lr in 1e-6_f32..1.0, epochs in 1_usize..1000, path in "[^\0-\u{1f}]{1,20}") {
        let mut config = Config::preset("digits").unwrap();
        (config.seed, config.train.lr, config.train.epochs, config.data.path) = (seed, lr, epochs, path);
        let text = settings::to_toml(&config).unwrap();
        prop_assert_eq!(Config::of_run("config.toml", &text, &[]).unwrap(), config);
    }

    #[test]
    fn metrics(values in prop::collection::vec(any::<f64>().prop_filter("JSON has no NaN", |v| v.is_finite()), 1..9), word in ".*") {
        folder(|dir| {
            let run = RunDir::create(&dir.join("r")).unwrap();
            run.write_config("seed = 1\n").unwrap();
            let mut log = run.metrics(None).unwrap();
            let lines: Vec<Value> = values.iter().enumerate().map(|(i, v)| json!({"step": i, "v": v, "word": word})).collect();
            lines.iter().for_each(|l| log.append(l).unwrap());
            log.sync().unwrap();
            assert_eq!(run.read_metrics().unwrap(), lines);
        });
    }

    #[test]
    fn fingerprints(values in prop::collection::vec((any::<u8>(), 0_u32..2), 2..40)) {
        folder(|dir| {
            let items: Vec<Item> = values.iter().map(|(v, l)| Item { image: Image::filled(2, 3, &[*v; 3]), label: *l }).collect();
            let set = Dataset::classes("x", ["a", "b"]).train(Items::new(items.clone())).validation(Items::new(items)).build().unwrap();
            let run = RunDir::create(&dir.join("r")).unwrap();
            let data = Fingerprint::of_classes(&set);
            run.write_fingerprint(&data).unwrap();
            assert_eq!(run.read_fingerprint().unwrap(), data);
        });
    }
}
