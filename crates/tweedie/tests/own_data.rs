//! Data sets of own sources: what is built, what is refused and how it is named; and misuse that must not panic.

use std::sync::Arc;

use tweedie::augment::{Address, AugmentConfig, Erase, Mix, Rect, Transform};
use tweedie::data::*;
use tweedie::metrics::Classification;
use tweedie::model::{ModelConfig, Sizes, count_parameters};
use tweedie::random::{Draw, Stream};
use tweedie::tokenize::{Kind, Tokenizer};

fn grey(value: u8, label: u32) -> Item {
    Item { image: Image::filled(8, 8, &[value]), label }
}

fn greys(n: usize) -> Items {
    (0..n).map(|i| grey(i as u8, i as u32 % 2)).collect::<Vec<_>>().into()
}

fn refused(builder: DatasetBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn a_set_is_built_of_what_it_is_given() {
    let set = Dataset::classes("mine", ["even", "odd"]).train(greys(100)).hold_out(0.2).seed(3).build().unwrap();
    assert_eq!((set.name.as_str(), set.format, set.channels), ("mine", Format::Custom, 1));
    let (train, val) = (set.train().unwrap(), set.val().unwrap());
    assert!(train.len() + val.len() == 100 && (10..30).contains(&val.len()));
    assert_eq!(set.val_origin, format!("{} of 100 training images held out (20 %)", val.len()));
    let other = Dataset::classes("mine", ["even", "odd"]).train(greys(100)).hold_out(0.2).seed(4).build().unwrap();
    assert_ne!(other.val().unwrap().get(0).unwrap(), val.get(0).unwrap());

    // A shared source, a function, and all three splits.
    let shared: Source = Arc::new(greys(4));
    let made = from_fn(vec![1; 5], |i| Ok(Image::filled(8, 8, &[i as u8])));
    let set = Dataset::classes("mine", ["a", "b"]).train(shared).validation(made).test(greys(6)).build().unwrap();
    assert_eq!(
        (set.train().unwrap().len(), set.val().unwrap().len(), set.val_origin.as_str()),
        (4, 5, "the validation split")
    );
    assert_eq!(set.final_split().unwrap().0.len(), 6);
    assert_eq!(set.val().unwrap().place(3), "example 3");

    // Nothing held out: the test split stands in; without one there is none, and that is said.
    let set = Dataset::classes("mine", ["a", "b"]).train(greys(4)).test(greys(6)).build().unwrap();
    assert_eq!(set.val().unwrap().len(), 6);
    let set = Dataset::classes("mine", ["a", "b"]).train(greys(4)).build().unwrap();
    let e = set.val().err().unwrap().to_string();
    assert!(e.contains("no validation split") && e.contains(".hold_out"), "{e}");
}

#[test]
fn it_is_trained_on() {
    let set = Dataset::classes("mine", ["even", "odd"]).train(greys(10)).build().unwrap();
    let path = Transform::eval(&AugmentConfig::none(), 8, set.channels).unwrap();
    let mut loader = Loader::new(set.train().unwrap().clone(), path, LoaderConfig::eval(4)).unwrap();
    let batches: Vec<Batch> = loader.by_ref().map(|b| b.unwrap()).collect();
    assert_eq!(batches.len(), 3);
    assert_eq!(batches[0].labels, [0, 1, 0, 1]);
}

#[test]
fn what_is_wrong_with_a_set_is_named() {
    let mine = || Dataset::classes("mine", ["a", "b"]);
    for (builder, says) in [
        (mine(), "it has no examples"),
        (mine().train(greys(0)), "the training split holds no examples"),
        (mine().train(greys(4)).test(greys(0)), "the test split holds no examples"),
        (Dataset::classes("mine", ["a"]).train(greys(4)), "training split, example 1: its label is 1, and 1 classes"),
        (Dataset::classes("mine", ["a", "a"]).train(greys(4)), "two classes are called \"a\""),
        (mine().train(greys(4)).hold_out(1.5), "the share to hold out is 1.5"),
        (mine().train(greys(4)).validation(greys(2)).hold_out(0.5), "it has a validation split"),
        (mine().test(greys(4)).hold_out(0.5), "no training examples to hold out"),
        (mine().train(greys(1)).hold_out(0.5), "of 1 training examples leaves one part without any"),
        (mine().train(greys(4)).channels(2), "images of 2 channels"),
        (
            mine().train(from_fn([0], |_| Err(DataError::Setting("torn".into())))),
            "none of the first images can be read (torn)",
        ),
    ] {
        let e = refused(builder);
        assert!(e.contains("\"mine\"") && e.contains(says), "{e}");
    }
    // The first that can be read decides.
    let some =
        from_fn(
            [0, 1],
            |i| if i == 0 { Err(DataError::Setting("x".into())) } else { Ok(Image::filled(1, 1, &[0; 3])) },
        );
    assert_eq!(mine().train(some).build().unwrap().channels, 3);
}

struct Sums;

impl TextSource for Sums {
    fn len(&self) -> usize {
        100
    }
    fn texts(&self, i: usize) -> Result<Vec<String>> {
        Ok(vec![format!("{} + {} = {}", i / 10, i % 10, i / 10 + i % 10)])
    }
}

#[test]
fn texts_and_captions_are_built_too() {
    let set = SequenceSet::texts("sums").train(Sums).hold_out(0.2).build().unwrap();
    assert_eq!((set.task, set.format.to_string().as_str(), set.layout), (Task::Text, "own code", Layout::Lines));
    assert_eq!(set.train().unwrap().len() + set.val().unwrap().len(), 100);
    let exact: u64 = (0..100).map(|i| Sums.texts(i).unwrap()[0].len() as u64).sum();
    assert!(Sums.bytes().abs_diff(exact) < exact / 10, "{} {exact}", Sums.bytes());
    assert_eq!((Sums.place(7), Sums.at_byte(exact / 2).unwrap().0 / 10), ("example 7".into(), 4));

    // Packed, through the tokenizer to batches.
    let set = SequenceSet::texts("sums").train(Sums).packed().hold_out(0.1).build().unwrap();
    assert_eq!(
        (set.train().unwrap().len(), set.val_origin.as_str()),
        (90, "the end of the training text held out (10 %)")
    );
    let tokenizer = Arc::new(Tokenizer::train(Kind::Chars, 99, set.training_texts().unwrap()).unwrap());
    let sequences = Sequences::new(set.train().unwrap().clone(), tokenizer, &SequenceConfig::packed(16)).unwrap();
    let batch = Loader::sequences(sequences, None, LoaderConfig::train(4, 0)).unwrap().next().unwrap().unwrap();
    assert_eq!(batch.tokens.len(), 4 * 16);

    let lines: Vec<String> = vec!["a b".into(), "c".into()];
    assert_eq!(SequenceSet::texts("l").train(lines.clone()).build().unwrap().train().unwrap().bytes(), 4);
    let pictures = CaptionedImages::new(vec![(Image::filled(4, 4, &[9; 3]), vec!["nine".into()])]);
    let set = SequenceSet::captions("c").train(pictures.clone()).build().unwrap();
    assert_eq!(set.train().unwrap().image(0).unwrap().unwrap().width, 4);
    let wrong = |b: SequenceSetBuilder| b.build().unwrap_err().to_string();
    assert!(wrong(SequenceSet::captions("c").train(lines)).contains("example 0: a caption without an image"));
    assert!(wrong(SequenceSet::captions("c").train(pictures).packed()).contains("cannot be packed"));
    assert!(wrong(SequenceSet::texts("t")).contains("no examples"));
    assert_eq!(SequenceSet::embedded("shapes").unwrap().train().unwrap().len(), 20_000);
}

#[test]
fn examples_that_do_not_exist_are_errors() {
    let source: Source = Arc::new(greys(3));
    let e = Subset::new(source.clone(), vec![0, 3]).err().unwrap().to_string();
    assert!(e.contains("example 3 was asked for, there are 3"), "{e}");
    let part = Subset::new(source, vec![2]).unwrap();
    assert!(part.get(0).is_ok() && part.get(1).is_err() && part.label(1) == u32::MAX);
    let memory = MemorySource::new("m", 2, 1, 1, vec![1, 2], vec![0]).unwrap();
    assert!(memory.get(0).is_ok() && memory.get(1).is_err() && memory.label(9) == u32::MAX);
    assert!(MemorySource::new("m", usize::MAX, 2, 2, vec![], vec![0]).is_err());
    assert!(greys(2).get(2).is_err());
}

/// A source that lies about its image is skipped or refused as an unreadable one.
#[test]
fn an_image_that_is_none_is_unreadable() {
    let lies =
        from_fn([0, 0], |i| Ok(Image { width: 8, height: 8, channels: 1, data: vec![0; if i == 0 { 64 } else { 5 }] }));
    let path = Transform::eval(&AugmentConfig::none(), 8, 1).unwrap();
    let mut loader = Loader::new(Arc::new(lies), path, LoaderConfig::eval(2)).unwrap();
    assert_eq!(loader.next().unwrap().unwrap().indices, [0]);
    let skipped = loader.skipped();
    assert!(skipped.errors[&1].contains("8x8x1 with 5 values"), "{:?}", skipped.errors);
}

#[test]
fn misuse_does_not_panic() {
    let at = Address { seed: 0, epoch: 0, example: 0 };
    for (config, channels) in [(AugmentConfig::imagenet(), 3), (AugmentConfig::light(), 3), (AugmentConfig::none(), 1)]
    {
        let path = Transform::train(&config, 8, channels).unwrap();
        let whole = || Image::filled(9, 12, &[1, 2, 3]);
        let mut right = vec![0.0; path.values()];
        path.apply(whole(), at, &mut right);
        for n in [0, 1, 64, 100, 500] {
            let mut out = vec![7.0; n];
            path.apply(whole(), at, &mut out);
            assert!(out.iter().skip(path.values()).all(|v| *v == 7.0));
            if config.erase.prob == 0.0 {
                assert!(out.iter().zip(&right).all(|(a, b)| a == b), "{n}");
            }
        }
        for (width, height, channels, n) in [(0, 0, 3, 0), (4, 4, 2, 32), (4, 4, 3, 1), (1, 1, 0, 0)] {
            path.apply(Image { width, height, channels, data: vec![0; n] }, at, &mut right);
        }
        path.rows_needed(0, 0, at);
    }
    let image = Image::filled(2, 2, &[1]);
    assert_eq!((image.pixel(1, 1), image.pixel(2, 0), image.pixel(0, usize::MAX)), (&[1][..], &[][..], &[][..]));
    let draw = &mut Draw::new(0, Stream::Mix, 0, 0);
    assert!([0.0, -1e9, f64::NAN, f64::INFINITY].iter().all(|a| (0.0..=1.0).contains(&draw.beta(*a))));
    let rect = Rect { x: 5, y: 5, width: usize::MAX, height: 9 };
    Mix { lambda: 0.5, partner: vec![], cut: Some(rect) }.apply(&mut [0.0; 8], 1, 2, 2);
    Mix { lambda: 0.5, partner: vec![], cut: None }.apply(&mut [0.0; 8], 0, 2, 2);
    Erase::fill(&mut [0.0; 8], 2, 2, rect, draw);
    Erase::fill(&mut [0.0; 8], 0, 2, rect, draw);
    let mut counted = Classification::new(2);
    counted.add(&[0.0; 5], &[0, 9, 1]);
    assert_eq!(counted.report().examples, 1);
    Classification::new(0).add(&[1.0], &[0]);

    let sizes = Sizes { vocab: 10, tokens: 1 };
    let mut c = ModelConfig::preset("digits").unwrap();
    c.encoder.patch = 0;
    assert!(c.encoder.tokens() > 0 && count_parameters(&c, sizes).is_err());
    for huge in [1 << 20, usize::MAX] {
        let mut c = ModelConfig::preset("digits").unwrap();
        (c.denoiser.width, c.denoiser.heads) = (huge, 1);
        assert!(count_parameters(&c, sizes).unwrap_err().to_string().contains("model.denoiser.width"));
    }
    let c = ModelConfig::preset("text").unwrap();
    for sizes in [Sizes { vocab: usize::MAX / 2, tokens: 4 }, Sizes { vocab: 9, tokens: usize::MAX / 2 }] {
        let e = count_parameters(&c, sizes).unwrap_err().to_string();
        assert!(e.contains("must lie in") || e.contains("parameters; this program takes up to"), "{e}");
    }
}

/// Of a set that is sorted by class, an evaluation of some images sees all classes, and the same ones each time.
#[test]
fn some_of_a_sorted_set_are_of_all_classes() {
    use tweedie::data::{ImageSource, Items, Source, some_of};
    let item = |i: u32| tweedie::data::Item { image: tweedie::Image::filled(2, 2, &[0]), label: i / 100 };
    let sorted: Source = std::sync::Arc::new(Items::new((0..1000).map(item).collect()));
    let some = some_of(&sorted, 100, 7).unwrap();
    let labels = |s: &Source| (0..s.len()).map(|i| s.label(i)).collect::<Vec<_>>();
    assert_eq!(some.len(), 100);
    assert!((0..10).all(|c| labels(&some).iter().filter(|l| **l == c).count() >= 3), "{:?}", labels(&some));
    assert!(labels(&some).is_sorted() && labels(&some) == labels(&some_of(&sorted, 100, 7).unwrap()));
    assert_ne!(labels(&some), labels(&some_of(&sorted, 100, 8).unwrap()));
    assert_eq!(some_of(&sorted, 5000, 7).unwrap().len(), 1000);
}
