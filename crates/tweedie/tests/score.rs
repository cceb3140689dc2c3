//! The bound of texts that lie in no data set is that of the same texts in one.

use std::path::Path;
use std::sync::Arc;

use tweedie::config::Precision;
use tweedie::data::{CaptionedImages, SequenceConfig, Sequences, Texts};
use tweedie::evaluate::bounds;
use tweedie::generate::TextScore;
use tweedie::run::{self, Loaded, Weights};
use tweedie::{Device, Error, Generator, Image};

const DRAWS: usize = 4;

fn open(name: &str) -> Loaded {
    run::load(Path::new(name), Weights::Ema, &Device::Cpu, Precision::Auto).unwrap()
}

/// Each example by itself, so that its noise is that of number 0.
fn in_a_set(loaded: &Loaded, texts: Texts) -> (f64, f64) {
    let settings =
        SequenceConfig { tokens: loaded.trained.model.sizes().tokens, ..loaded.config.data.sequence_config() };
    let set = Sequences::new(texts, loaded.trained.tokenizer().unwrap().clone(), &settings).unwrap();
    let b = bounds(&loaded.trained, &set, &loaded.config, DRAWS, 0).unwrap().bounds;
    (b.nats.iter().sum(), b.weight.iter().sum())
}

fn same(score: &TextScore, (nats, tokens): (f64, f64)) {
    assert!((score.nats - nats).abs() < 1e-4 * nats.abs(), "{} and {nats}", score.nats);
    assert_eq!(score.tokens as f64, tokens);
}

#[test]
fn captions_have_the_bound_of_their_set() {
    for name in ["embedded:shapes", "embedded:shapes-mdd"] {
        let loaded = open(name);
        let images = [Image::filled(32, 32, &[200, 30, 30]), Image::filled(32, 32, &[255, 255, 255])];
        let texts = ["a small red circle".to_string(), " a blue square above a red circle ".to_string()];
        let generator = Generator::new(&loaded.trained, &loaded.config.sample).unwrap();
        let scores = generator.score(&texts, Some(&images), DRAWS).unwrap();
        for i in 0..2 {
            let one = CaptionedImages::new(vec![(images[i].clone(), vec![texts[i].clone()])]);
            same(&scores[i], in_a_set(&loaded, Arc::new(one)));
            // Alone it has the same bits.
            let alone = generator.score(&texts[i..=i], Some(&images[i..=i]), DRAWS).unwrap();
            assert_eq!(alone[0], scores[i], "{name}");
        }
    }
}

#[test]
fn windows_of_a_stream_have_the_bound_of_their_set() {
    let loaded = open("embedded:shakespeare-mdd");
    let n = loaded.trained.model.sizes().tokens;
    // Three windows, and a rest that does not count.
    let text: String = "What say you to that, my lord? ".chars().cycle().take(3 * n + n / 2).collect();
    let generator = Generator::new(&loaded.trained, &loaded.config.sample).unwrap();
    let scores = generator.score(std::slice::from_ref(&text), None, DRAWS).unwrap();
    let whole: String = text.chars().take(3 * n).collect();
    same(&scores[0], in_a_set(&loaded, Arc::new(vec![whole])));
    assert!(scores[0].bits_per_token() > 0.0);
}

#[test]
fn what_cannot_be_scored_is_told() {
    let (shapes, shakespeare) = (open("embedded:shapes"), open("embedded:shakespeare"));
    let captions = Generator::new(&shapes.trained, &shapes.config.sample).unwrap();
    let text = Generator::new(&shakespeare.trained, &shakespeare.config.sample).unwrap();
    let images = [Image::filled(4, 4, &[0])];
    let why = |g: &Generator, t: &str, images: Option<&[Image]>| match g.score(&[t.to_string()], images, DRAWS) {
        Err(Error::Input(why)) => why,
        other => panic!("{other:?}"),
    };
    assert!(why(&captions, "a", None).contains("give one for each text"));
    assert!(why(&captions, "a", Some(&[])).contains("0 images for 1 texts"));
    assert!(why(&captions, "", Some(&images)).contains("text 0 is empty"));
    let long = "a ".repeat(99);
    assert!(why(&captions, &long, Some(&images)).contains("has 99 tokens, the model has room for 16"));
    assert!(why(&text, "To be", None).contains("the model reads windows of 128"));
}
