//! Given facts and means, which settings: nothing here depends on the machine.

use super::*;
use crate::config::{Config, Optimizer};
use crate::data::{Layout, Task};

/// Two cores of a server, for ten minutes.
const TWO_CORES: Means = Means { speed: 1e11, gpu: false, seconds: 600.0 };
const BIG_GPU: Means = Means { speed: 5e13, gpu: true, seconds: 600.0 };

fn digits() -> Facts {
    Facts {
        path: "mnist".into(),
        name: "mnist".into(),
        format: "MNIST idx".into(),
        task: Task::Class,
        train: 9056,
        val: 944,
        val_origin: "944 of 10000 training images held out (10 %)".into(),
        held_out: Some(0.1),
        classes: 10,
        images: Some(ImageFacts {
            looked_at: 256,
            same_size: Some((28, 28)),
            side: 28,
            grey: true,
            mean: vec![0.131],
            std: vec![0.308],
            paper: 0.8,
        }),
        texts: None,
    }
}

fn photos() -> Facts {
    let images = ImageFacts {
        looked_at: 256,
        same_size: None,
        side: 375,
        grey: false,
        mean: vec![0.46, 0.45, 0.42],
        std: vec![0.27, 0.26, 0.29],
        paper: 0.1,
    };
    Facts { val_origin: "the validation split".into(), held_out: None, val: 3925, images: Some(images), ..digits() }
}

fn captions() -> Facts {
    let texts =
        TextFacts { looked_at: 10_000, bytes: 1_600_000, characters: 60, words: 5500, common_words: 1480, length: 19 };
    Facts { task: Task::Caption, train: 6000, classes: 0, texts: Some(texts), ..photos() }
}

fn text(bytes: u64) -> Facts {
    let texts = TextFacts { looked_at: 61, bytes, characters: 65, words: 12_000, common_words: 9000, length: 3000 };
    let val_origin = "the end of the training text held out (10 %)".into();
    Facts { task: Task::Text, train: 61, val: 7, val_origin, classes: 0, images: None, texts: Some(texts), ..digits() }
}

fn chosen(facts: &Facts, means: &Means) -> Config {
    choose(facts, means).unwrap().config(&[]).unwrap()
}

fn why(facts: &Facts, key: &str) -> String {
    let s = choose(facts, &TWO_CORES).unwrap();
    s.settings().iter().find(|s| s.key == key).unwrap_or_else(|| panic!("{key}")).why.clone()
}

#[test]
fn digits_keep_their_size_and_are_not_mirrored() {
    let c = chosen(&digits(), &Means { seconds: 180.0, ..TWO_CORES });
    let e = &c.model.encoder;
    assert_eq!((e.image, e.patch, e.channels), (28, 4, 1));
    assert_eq!(
        (c.augment.flip, c.augment.mean.as_slice(), c.augment.std.as_slice()),
        (0.0, &[0.131][..], &[0.308][..])
    );
    assert_eq!((c.train.optimizer, c.train.batch, c.data.val_fraction), (Optimizer::Muon, 64, 0.1));
    assert!((64..=128).contains(&e.width), "{}", e.width);
    assert_eq!(why(&digits(), "model.encoder.image"), "the images' own");
    assert!(why(&digits(), "augment.flip").contains("mirrored"));
}

#[test]
fn photos_are_made_smaller_mirrored_and_cropped() {
    let c = chosen(&photos(), &TWO_CORES);
    let e = &c.model.encoder;
    assert_eq!((e.image, e.patch, e.channels, c.augment.flip), (96, 12, 3, 0.5));
    assert!(matches!(c.augment.crop, crate::augment::Crop::Resized { .. }));
    // The data bring their own split.
    assert!(choose(&photos(), &TWO_CORES).unwrap().settings().iter().all(|s| s.key != "data.val_fraction"));
}

#[test]
fn more_time_or_a_gpu_give_larger_networks_and_few_examples_smaller_ones() {
    let width = |facts: &Facts, means: &Means| chosen(facts, means).model.encoder.width;
    for facts in [digits(), photos(), captions()] {
        let (short, long) = (Means { seconds: 60.0, ..TWO_CORES }, Means { seconds: 36_000.0, ..TWO_CORES });
        assert!(width(&facts, &short) < width(&facts, &long), "{}", facts.name);
        assert!(width(&facts, &TWO_CORES) < width(&facts, &BIG_GPU), "{}", facts.name);
        assert!(width(&Facts { train: 100, ..facts.clone() }, &BIG_GPU) <= 64);
        assert!(width(&Facts { train: 1_200_000, ..facts }, &Means { seconds: 86_400.0, ..BIG_GPU }) >= 512);
    }
    assert_eq!(chosen(&Facts { train: 60, ..digits() }, &TWO_CORES).train.batch, 4);
    assert_eq!(chosen(&Facts { train: 3, ..digits() }, &TWO_CORES).train.batch, 2);
}

#[test]
fn captions_have_words_and_their_length() {
    let c = chosen(&captions(), &TWO_CORES);
    assert_eq!((c.data.tokenizer.as_str(), c.data.tokens, c.data.task), ("word:1500", 20, Task::Caption));
    assert!(c.model.is_conditional() && c.augment.mix.mixup_alpha == 0.0);
    let long = chosen(&captions(), &BIG_GPU);
    assert!(c.clean_tokens() == 0.0 && long.clean_tokens() > 0.0 && long.sample.commits());
    let huge = TextFacts { common_words: 20_000, ..captions().texts.unwrap() };
    let facts = Facts { texts: Some(huge), ..captions() };
    assert_eq!(chosen(&facts, &TWO_CORES).data.tokenizer, "word:2000");
    assert_eq!(chosen(&facts, &BIG_GPU).data.tokenizer, "word:8000");
}

#[test]
fn text_is_one_stream_of_characters() {
    let c = chosen(&text(1_000_000), &TWO_CORES);
    assert_eq!((c.data.tokenizer.as_str(), c.data.layout, c.data.task), ("chars", Layout::Packed, Task::Text));
    assert!(!c.model.is_conditional());
    let mut many = text(1_000_000);
    many.texts.as_mut().unwrap().characters = 3000;
    assert_eq!(chosen(&many, &TWO_CORES).data.tokenizer, "bpe:4000");
}

#[test]
fn every_size_of_image_is_cut_into_whole_patches() {
    for side in 1..300 {
        for seconds in [10.0, 600.0, 86_400.0] {
            let mut facts = photos();
            facts.images.as_mut().unwrap().side = side;
            let c = chosen(&facts, &Means { seconds, ..BIG_GPU }); // checked when it is resolved
            assert!(c.model.encoder.image <= side.max(28), "{side}: {}", c.model.encoder.image);
        }
    }
}

fn fitted(pace: &Pace, seconds: f64) -> (Config, Forecast) {
    let mut s = choose(&digits(), &TWO_CORES).unwrap();
    let forecast = fit(&mut s, pace, seconds, &[]).unwrap();
    (s.config(&[]).unwrap(), forecast)
}

#[test]
fn epochs_fill_the_time_and_no_more() {
    let pace =
        Pace { step: 0.02, first_epoch: 0.01, evaluated: 0.001, setup: 0.1, rows: 9056, examples: 9056, val: 944 };
    for seconds in [5.0, 20.0, 60.0, 180.0, 600.0, 3600.0] {
        let (c, f) = fitted(&pace, seconds);
        assert!(f.seconds <= 1.01 * seconds && f.seconds >= 0.85 * seconds, "{seconds}: {f:?}");
        let examples = if c.data.train_limit > 0 { c.data.train_limit } else { 9056 };
        assert_eq!(f.steps, c.train.epochs * (examples / c.train.batch));
        assert!(f64::from(c.train.warmup_epochs) < 0.5 * c.train.epochs as f64, "{seconds}");
        assert!((0.5..1.0).contains(&c.train.ema));
        assert!(c.train.eval_every == c.train.checkpoint_every && f.evaluations <= 8);
    }
    // Less than an epoch: fewer images.
    let (c, f) = fitted(&Pace { rows: 1_000_000, examples: 1_000_000, ..pace }, 60.0);
    assert_eq!((c.train.epochs, f.evaluations), (1, 1));
    assert!((50_000..300_000).contains(&c.data.train_limit) && f.seconds > 51.0, "{} {f:?}", c.data.train_limit);
    // Of a long text, so many of its pieces.
    let (c, _) = fitted(&Pace { rows: 6100, examples: 1_000_000, ..pace }, 60.0);
    assert!((500..2000).contains(&c.data.train_limit), "{}", c.data.train_limit);
    // Evaluations that are dear look at fewer examples.
    let (c, f) = fitted(&Pace { evaluated: 0.1, ..pace }, 600.0);
    assert!((64..100).contains(&c.train.eval_images) && f.seconds <= 606.0);
}
