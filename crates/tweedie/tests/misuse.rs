//! What cannot be asked for is an error, or nothing, and never a panic.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tweedie::augment::geometry::{self, Interpolation, Padding, Rect};
use tweedie::augment::{Address, AugmentConfig, Crop, Op, Transform, color};
use tweedie::bound::{Bounds, MddBound, Predict, Score, TddBound, TokenBatch};
use tweedie::config::{LossConfig, Method, Rank, SampleConfig};
use tweedie::data::{
    self, Dataset, Image, ImageSource, Item, Items, Layout, Loader, LoaderConfig, Locality, Position, SequenceConfig,
    SequenceOptions, SequenceSet, Sequences, Source, Texts,
};
use tweedie::engine::{DType, Device, Noise, Tape, Tensor};
use tweedie::generate::{CandidateScores, consensus, score_candidates};
use tweedie::loss::{MddLoss, NoiseOf, Rows, TddLoss, draw_clean_tokens, mask_tokens};
use tweedie::metrics::{Classification, captions, clip, diversity};
use tweedie::model::{DenoiserConfig, Input, Model, ModelConfig, Pass, Sizes};
use tweedie::sample::{ClassSampler, Projection, Request, TokenSampler, argmax, draw, softmax};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::train::Trainer;
use tweedie::{Config, Process, Schedule, ScheduleKind, Trained};

const SIZES: Sizes = Sizes { vocab: 10, tokens: 4 };

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A tar file of these members.
fn tar(path: &Path, members: &[(&str, &[u8])]) {
    let mut tar = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append_data(&mut header, name, *bytes).unwrap();
    }
    tar.finish().unwrap();
}

/// Nothing of an example behind the last one.
fn has_no_more_images(source: &Source) {
    for i in [source.len(), source.len() + 7, usize::MAX] {
        let e = source.get(i).unwrap_err().to_string();
        assert!(e.contains(&format!("example {i} was asked for, there are {}", source.len())), "{e}");
        assert!(source.get_top(i, &|_, h| h).is_err() && source.label(i) == u32::MAX);
        source.place(i);
    }
    assert!(source.get(0).is_ok());
}

fn has_no_more_texts(source: &Texts, images: bool) {
    for i in [source.len(), source.len() + 7, usize::MAX] {
        let e = source.texts(i).unwrap_err().to_string();
        assert!(e.contains(&format!("example {i} was asked for, there are {}", source.len())), "{e}");
        assert!(source.texts_and_bad(i).is_err() && source.image(i).is_err() == images);
        assert!(source.file_name(i).is_none());
        source.place(i);
    }
    assert!(source.texts(0).is_ok());
}

#[test]
fn sources_of_images_have_no_more_than_they_have() {
    let (dir, png) = (TempDir::new().unwrap(), Image::filled(3, 2, &[1, 0, 9]).to_png().unwrap());
    for name in ["train/cat/a.png", "train/dog/b.png", "val/cat/c.png"] {
        write(&dir.path().join("folder").join(name), &png);
    }
    tar(&dir.path().join("train.tar"), &[("0.png", &png), ("0.cls", b"0"), ("1.png", &png), ("1.cls", b"1")]);
    let options = data::OpenOptions { val_fraction: 0.0, ..data::OpenOptions::default() };
    for (path, cached) in [("folder", true), ("train.tar", true), ("folder", false), ("train.tar", false)] {
        let decoded_bytes = if cached { options.decoded_bytes } else { 0 };
        let open = data::OpenOptions { decoded_bytes, ..options.clone() };
        let set = data::open(dir.path().join(path), &open).unwrap();
        let source = set.train().unwrap();
        has_no_more_images(source);
        (0..source.len()).for_each(|i| drop(source.get(i).unwrap())); // now all are kept
        has_no_more_images(source);
    }
    let parquet = data::open(fixtures("parquet"), &options).unwrap();
    has_no_more_images(parquet.train().unwrap());
    let digits = Dataset::embedded("digits").unwrap();
    has_no_more_images(digits.train().unwrap());
    has_no_more_images(digits.test.as_ref().unwrap());
}

#[test]
fn sources_of_texts_have_no_more_than_they_have() {
    let (dir, png) = (TempDir::new().unwrap(), Image::filled(8, 6, &[1, 0, 9]).to_png().unwrap());
    let root = dir.path();
    write(&root.join("lines/train.txt"), b"a b\n\nc d\n");
    write(&root.join("json/train.jsonl"), b"{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    write(&root.join("coco/images/1.png"), &png);
    let coco = br#"{"images": [{"id": 1, "file_name": "1.png"}], "annotations": [{"image_id": 1, "caption": "x"}]}"#;
    write(&root.join("coco/annotations/captions_train.json"), coco);
    fs::create_dir(root.join("shards")).unwrap();
    tar(&root.join("shards/train.tar"), &[("0.png", &png), ("0.txt", b"a cat")]);
    let open = data::OpenOptions { val_fraction: 0.0, ..data::OpenOptions::default() };
    let open = |path: &str, layout| {
        let options = SequenceOptions { layout, open: open.clone(), ..SequenceOptions::default() };
        data::open_sequences(root.join(path), &options).unwrap().train.unwrap()
    };
    for (path, images) in [("lines", false), ("json", false), ("coco", true), ("shards", true)] {
        has_no_more_texts(&open(path, Layout::Lines), images);
    }
    has_no_more_texts(&open("lines", Layout::Packed), false);
    let parquet = SequenceSet::open(fixtures("captions/structs")).unwrap();
    has_no_more_texts(parquet.train().unwrap(), true);
    has_no_more_texts(SequenceSet::embedded("shapes").unwrap().val().unwrap(), true);
}

#[test]
fn sequences_have_no_more_than_they_have() {
    let texts: Texts = Arc::new(vec!["abc".to_string(), "cab".into()]);
    let chars = Arc::new(Tokenizer::train(Kind::Chars, 99, ["abc"]).unwrap());
    let at = |example: u32| Address { seed: 0, epoch: 0, example };
    for config in [SequenceConfig::lines(4), SequenceConfig::packed(4)] {
        let s = Sequences::new(texts.clone(), chars.clone(), &config).unwrap();
        assert!(s.write(at(0), true, &mut [0; 4]).is_ok());
        for (example, room) in [(2, 4), (u32::MAX, 4), (0, 3), (0, 0), (0, 400)] {
            assert!(s.write(at(example), true, &mut vec![0; room]).is_err(), "{example} {room}");
        }
        assert!(s.image(0).is_err() && s.image(9).is_err());
        s.place(9);
    }
    let lines = Sequences::new(texts.clone(), chars.clone(), &SequenceConfig::lines(4)).unwrap();
    assert!(lines.references(2).is_err());
    assert!(Sequences::new(texts, chars.clone(), &SequenceConfig::lines(0)).is_err());
    assert!(chars.token(12_345).contains("12345") && chars.decode(&[12_345, u32::MAX]).len() < 99);
}

/// Images of which no list of blocks is right.
struct Blocks(Items, Vec<u32>);

impl ImageSource for Blocks {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn get(&self, i: usize) -> data::Result<Item> {
        self.0.get(i)
    }
    fn label(&self, i: usize) -> u32 {
        self.0.label(i)
    }
    fn locality(&self) -> Option<Locality> {
        Some(Locality { starts: self.1.clone(), window: 0, files: vec![] })
    }
}

#[test]
fn loaders_of_nothing_and_from_nowhere() {
    let items: Items = vec![Item { image: Image::filled(8, 8, &[3]), label: 0 }; 5].into();
    let source: Source = Arc::new(items.clone());
    let path = || Transform::eval(&AugmentConfig::none(), 8, 1).unwrap();
    let load = |config: LoaderConfig| Loader::new(source.clone(), path(), config);
    assert!(load(LoaderConfig::eval(0)).is_err() && load(LoaderConfig::train(6, 0)).is_err());
    for start in [Position { epoch: 1, batch: 0 }, Position { epoch: 0, batch: 3 }, Position { epoch: 9, batch: 99 }] {
        assert_eq!(load(LoaderConfig { start, ..LoaderConfig::eval(2) }).unwrap().count(), 0, "{start:?}");
    }
    let far = Position { epoch: u32::MAX, batch: u32::MAX };
    assert!(load(LoaderConfig { start: far, ..LoaderConfig::train(2, 0) }).unwrap().next().is_some());
    let many = LoaderConfig { prefetch: usize::MAX, ..LoaderConfig::eval(usize::MAX) };
    assert_eq!(load(many).unwrap().map(|b| b.unwrap().indices.len()).sum::<usize>(), 5);
    for starts in [vec![], vec![1, 3], vec![0, 9], vec![3, 0], vec![0, 4, 2]] {
        let blocks: Source = Arc::new(Blocks(items.clone(), starts));
        let mut seen = data::epoch_order(&*blocks, 0, 0);
        seen.sort();
        assert_eq!(seen, [0, 1, 2, 3, 4]);
    }
}

#[test]
fn images_of_impossible_sizes() {
    let good = Image::filled(5, 4, &[9, 8, 7]);
    let none = |width, height, channels, data| Image { width, height, channels, data };
    let wrong = [
        none(0, 0, 3, vec![]),
        none(0, 4, 3, vec![]),
        none(5, 0, 1, vec![]),
        none(5, 4, 3, vec![1; 7]),
        none(5, 4, 0, vec![]),
        none(2, 2, 2, vec![1; 8]),
        none(5, 4, 1, vec![1; 99]),
    ];
    let rect = |x, y, width, height| Rect { x, y, width, height };
    for image in wrong.iter().chain([&good]) {
        for crop in [rect(0, 0, 5, 4), rect(9, 9, 1, 1), rect(2, 2, 0, 0), rect(4, 3, usize::MAX, usize::MAX)] {
            for (w, h) in [(3, 3), (0, 3), (3, 0), (0, 0)] {
                let got = geometry::resized_crop(image, crop, w, h, Interpolation::Bicubic);
                assert_eq!((got.width, got.height, got.data.len()), (w, h, w * h * got.channels));
            }
        }
        for size in [0, 3, 9] {
            geometry::center_crop(image, size);
            for (pad, x) in [(0, 0), (4, 99), (usize::MAX, 0), (0, usize::MAX)] {
                geometry::padded_crop(image, pad, x, x, size, Padding::Zero);
                geometry::padded_crop(image, pad, x, x, size, Padding::Reflect);
            }
        }
        geometry::rotate(image, 33.0, Interpolation::Bilinear, &[]);
        geometry::rotate(image, f64::NAN, Interpolation::Bicubic, &[1, 2, 3, 4]);
        geometry::flip(&mut image.clone());
        for op in Op::ALL {
            op.apply(&mut image.clone(), 0.7, Interpolation::Bicubic, &[1]);
        }
        color::solarize_add(&mut image.clone(), u32::MAX);
        color::sharpness(&mut image.clone(), f32::NAN);
    }
    assert_eq!(geometry::short_side_size(0, 0, 7), (7, 7));
    let inside = geometry::resized_crop(&good, rect(4, 3, 9, 9), 2, 2, Interpolation::Bilinear);
    assert_eq!(inside.data, [9, 8, 7].repeat(4));
    let light = AugmentConfig::light();
    assert!(Transform::train(&light, usize::MAX, 3).is_err() && Transform::train(&light, 0, 3).is_err());
    let crop = Crop::Padded { pad: usize::MAX, padding: Padding::Zero };
    assert!(Transform::train(&AugmentConfig { crop, ..light }, 8, 3).is_err());
}

fn model(method: Method) -> Model {
    let mut config = ModelConfig { method, ..ModelConfig::preset("text").unwrap() };
    config.denoiser = DenoiserConfig::new(16, 1, 2);
    Model::new(&config, SIZES, &Device::Cpu, DType::F32, 0).unwrap()
}

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 100, SIZES.vocab).unwrap())
}

#[test]
fn losses_of_rows_that_do_not_fit() {
    let good = Rows::new(vec![1; 8], vec![1, 100]);
    let masked = [true; 8];
    let losses = |rows: &Rows| {
        [Method::Tdd, Method::Mdd].map(|method| {
            let (m, process, noise) = (model(method), process(), Noise::new(&Device::Cpu, 1, 0, 0).unwrap());
            let (tape, config) = (Tape::new(), LossConfig::default());
            let p = Pass::inference(&tape, &m.params, DType::F32);
            match method {
                Method::Tdd => TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) }
                    .of(&p, &m, None, rows)
                    .is_ok(),
                Method::Mdd => MddLoss { steps: 100, config: &config, masked: &masked }.of(&p, &m, None, rows).is_ok(),
            }
        })
    };
    assert_eq!(losses(&good), [true, true]);
    let like = || good.clone();
    for (what, rows) in [
        ("token", Rows { tokens: vec![10; 8], ..like() }),
        ("tokens", Rows { tokens: vec![1; 7], ..like() }),
        ("none", Rows::new(vec![], vec![])),
        ("t = 0", Rows { t: vec![0, 1], ..like() }),
        ("t > T", Rows { t: vec![1, 101], ..like() }),
        ("drop", Rows { drop: vec![1], ..like() }),
        ("examples", Rows { examples: vec![1; 3], ..like() }),
        ("clean", Rows { clean: Some(vec![true]), ..like() }),
        ("weights", Rows { weights: Some(vec![1.0]), ..like() }),
    ] {
        assert_eq!(losses(&rows), [false, false], "{what}");
    }
    let soft = Rows { targets: Some(vec![0.1; 3]), ..like() };
    assert!(!losses(&soft)[0]);
    let eps = NoiseOf::Given(Tensor::zeros(&Device::Cpu, &[2, 4, 10], DType::F32).unwrap());
    let short = Rows { clean: Some(vec![true]), ..like() };
    assert!(short.corrupt(&process(), &Device::Cpu, (4, 10), &eps).is_ok());
    assert_eq!(good.part(1..9, 4, 10).t, [100]);
    assert!(good.part(7..9, 4, 10).tokens.is_empty() && good.part(0..usize::MAX, usize::MAX, 9).t.len() == 2);
    #[expect(clippy::reversed_empty_ranges)]
    let backwards = 2..0;
    assert!(good.part(backwards, 4, 10).t.is_empty());
    assert_eq!(mask_tokens(&good, 4, 0, 0, 0), [true; 8]);
    assert!(mask_tokens(&good, 0, 9, 0, 0).is_empty() && draw_clean_tokens(&good, 0, f32::NAN, 0, 0).is_empty());
}

/// Tells of so many tokens, however many there are.
struct Says(usize);

impl Predict for Says {
    fn scores(&self, _: &Input, _: &[u32], _: &Tensor) -> tweedie::Result<Vec<Score>> {
        Ok(vec![Score { log_p: -1.0, distance: 0.5 }; self.0])
    }
}

#[test]
fn bounds_and_ranks_of_nothing() {
    let batch = TokenBatch { tokens: &[1; 4], n: 4, vocab: 10, examples: &[0], weights: None };
    let (tdd, mdd) = (TddBound::new(&process(), 10, 2, 0).unwrap(), MddBound { steps: 9, draws: 2, seed: 0 });
    for n in [0, 3, 5, 4] {
        assert_eq!(tdd.of(&Says(n), &Device::Cpu, &batch).is_ok(), n == 4);
        assert_eq!(mdd.of(&Says(n), &Device::Cpu, &batch).is_ok(), n == 4);
    }
    let bounds = tdd.of(&Says(4), &Device::Cpu, &batch).unwrap();
    assert!(bounds.of(0).is_some() && bounds.of(1).is_none());
    assert!(Bounds::default().per_token().mean.is_nan() && Bounds::default().of_these().error.is_nan());
    let scores = CandidateScores::Nats(vec![(3.0, 0.1), (2.0, 0.1)]);
    assert_eq!((scores.of(1), scores.of(2)), (Some(-2.0), None));
    assert_eq!(
        (scores.best(0, 9), scores.best(0, 0), scores.best(2, 2), scores.best(9, usize::MAX)),
        (Some(1), None, None, None)
    );
    assert!(consensus(&[]).is_empty());
    let tokenizer = Some(Arc::new(Tokenizer::train(Kind::Chars, 99, ["abcdefg"]).unwrap()));
    let t = Trained { tokenizer, ..Trained::bare(model(Method::Tdd), process()) };
    for (tokens, k) in [(8, 2), (8, 0), (7, 2), (0, 2), (8, 1), (8, usize::MAX)] {
        for rank in [Rank::Consensus, Rank::Bound] {
            let made = score_candidates(&t, None, &[0], &vec![1; tokens], k, rank, 1);
            assert_eq!(made.is_ok(), (tokens, k) == (8, 2), "{tokens} {k}");
        }
    }
}

#[test]
fn samples_of_nothing() {
    assert_eq!((argmax::<f32>(&[]), softmax(&[]).len(), draw(&[], 0.5), draw(&[0.0], 2.0)), (0, 0, 0, 0));
    let fixed = [None; 3];
    for method in [Method::Tdd, Method::Mdd] {
        let t = Trained::bare(model(method), process());
        let sampler = TokenSampler::new(&t, &SampleConfig { steps: 2, ..SampleConfig::default() }).unwrap();
        let one = Request::new(None, &[0]);
        assert!(sampler.generate(&one).is_ok());
        let images = Tensor::zeros(&Device::Cpu, &[1, 1, 8, 8], DType::F32).unwrap();
        let beyond = [Some(10); 4];
        for r in [
            Request { fixed: Some(&fixed), ..one },
            Request { fixed: Some(&beyond), ..one },
            Request { fixed: Some(&[]), ..one },
            Request { candidates: 0, ..one },
            Request { candidates: usize::MAX, ..one },
            Request { trace: Some(99), ..one },
            Request { images: Some(&images), ..one },
            Request::new(Some(&images), &[0, 1]),
            Request::new(None, &[]),
        ] {
            assert!(sampler.generate(&r).is_err());
        }
        assert!(t.images(&[]).is_err(), "it takes no images");
    }
    let flat = Tensor::zeros(&Device::Cpu, &[3], DType::F32).unwrap();
    assert!(Projection::with_factor(&flat, None).is_err());

    let config = Config::preset("digits").unwrap().with("model.classes", 10).unwrap();
    let model = Model::new(&config.model, config.sizes(), &Device::Cpu, DType::F32, 0).unwrap();
    let t = Trained::new(&config, model, vec!["a".into(); 10], None).unwrap();
    let images = Tensor::zeros(&Device::Cpu, &[2, 1, 8, 8], DType::F32).unwrap();
    let of = |votes: usize, ids: &[u32], images: &Tensor| {
        let config = SampleConfig { votes, steps: 1, ..SampleConfig::default() };
        ClassSampler::new(&t, &config)?.logits(images, ids)
    };
    assert_eq!(of(1, &[0, 1], &images).unwrap().len(), 20);
    assert!(of(0, &[0, 1], &images).is_err() && of(1, &[0], &images).is_err() && of(1, &[], &images).is_err());
    assert!(of(1, &[0, 1], &images.reshape(&[2, 8, 8]).unwrap()).is_err());
    if let Ok(none) = t.images(&[]) {
        assert!(of(1, &[], &none).is_err());
    }
}

#[test]
fn steps_on_batches_of_other_models() {
    let config = Config::preset("digits").unwrap().with("train.batch", 4).unwrap();
    for method in ["tdd", "mdd"] {
        let config = config.clone().with("model.method", method).unwrap().with("augment.mix.mixup_alpha", 0.5).unwrap();
        let digits = Dataset::embedded("digits").unwrap();
        let mut trainer = Trainer::new(&config, digits, &Device::Cpu).unwrap();
        let good = trainer.loader().unwrap().next().unwrap().unwrap();
        assert!(good.mix.is_some() && trainer.train_step(&good).is_ok());
        let mut wrong = vec![good.clone(); 6];
        wrong[0].labels = vec![10; 4];
        wrong[1].labels.pop();
        wrong[2].images.pop();
        wrong[3].indices.clear();
        wrong[4].mix.as_mut().unwrap().partner = vec![4; 4];
        wrong[5].mix.as_mut().unwrap().partner.pop();
        for (i, batch) in wrong.iter().enumerate() {
            assert!(trainer.train_step(batch).is_err(), "{method} {i}");
        }
        assert_eq!(trainer.step(), 1);
    }
}

#[test]
fn scores_of_nothing() {
    let mut c = Classification::new(3);
    c.add(&[], &[0, 1]);
    c.add(&[1.0, 2.0, 3.0], &[]);
    c.add(&[1.0, 2.0], &[0]);
    c.add(&[f32::NAN; 3], &[3]);
    assert_eq!(c.report().examples, 0);
    c.add(&[f32::NAN; 3], &[1]);
    assert_eq!(c.report().examples, 1);
    let mut none = Classification::new(0);
    none.add(&[1.0], &[0]);
    assert_eq!(none.report().examples, 0);
    let text = || "a dog".to_string();
    assert!(captions::score::<String>(&[], &[]).is_err() && captions::score(&[vec![]], &[text()]).is_err());
    assert!(captions::score(&[vec![text()]], &[]).is_err());
    let one = captions::score(&[vec![text()]], &[String::new()]).unwrap();
    let two = captions::score(&[vec![text()], vec![text()]], &[text(), text()]).unwrap();
    assert!(one.bootstrap_difference(&two, 3, 0).is_err());
    one.bootstrap(0, 0);
    captions::CaptionScores { per_image: vec![], ..one }.bootstrap(2, 0);
    assert_eq!((diversity::<String>(&[]).captions, diversity(&[String::new()]).captions), (0, 1));
    assert_eq!((clip::ClipScore::of(&[]).pairs, clip::cosine(&[1.0], &[]), clip::derangement(0, 1).len()), (0, 0.0, 0));
}
