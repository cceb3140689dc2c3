//! Captions and text in every layout, with the rows that are wrong.

mod captions;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tweedie::augment::{Address, AugmentConfig, Transform};
use tweedie::data::{
    self, Batch, DataError, Image, Layout, Loader, LoaderConfig, OnCorrupt, OpenOptions, Overlong, Position,
    SequenceConfig, SequenceFormat, SequenceOptions, SequenceSet, Sequences, Task, Texts, guess_task,
};
use tweedie::tokenize::{Kind, Tokenizer};

fn options() -> SequenceOptions {
    SequenceOptions { open: OpenOptions { val_fraction: 0.0, ..OpenOptions::default() }, ..SequenceOptions::default() }
}

fn packed() -> SequenceOptions {
    SequenceOptions { layout: Layout::Packed, ..options() }
}

fn open(path: &Path) -> Result<SequenceSet, DataError> {
    data::open_sequences(path, &options())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/captions").join(name)
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn png(mark: u8) -> Vec<u8> {
    Image::filled(8, 6, &[mark, 0, 9]).to_png().unwrap()
}

fn texts(source: &Texts) -> Vec<Vec<String>> {
    (0..source.len()).map(|i| source.texts(i).unwrap()).collect()
}

fn flat(source: &Texts) -> Vec<String> {
    texts(source).concat()
}

fn words(set: &SequenceSet) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::train(Kind::Word, 1000, set.training_texts().unwrap()).unwrap())
}

fn chars(set: &SequenceSet) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::train(Kind::Chars, 1000, set.training_texts().unwrap()).unwrap())
}

fn eval_transform() -> Transform {
    Transform::eval(&AugmentConfig::none(), 8, 3).unwrap()
}

fn coco(images: &[(u32, &str)], captions: &[(u32, &str)]) -> Vec<u8> {
    let images: Vec<_> =
        images.iter().map(|(id, f)| serde_json::json!({"id": id, "file_name": f, "width": 8})).collect();
    let captions: Vec<_> = captions
        .iter()
        .enumerate()
        .map(|(i, (id, c))| serde_json::json!({"id": i, "image_id": id, "caption": c}))
        .collect();
    serde_json::json!({"info": {}, "images": images, "annotations": captions}).to_string().into_bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// All batches of one pass in order.
fn pass(source: Sequences, images: bool, config: LoaderConfig) -> (Vec<Batch>, data::Skipped) {
    let transform = images.then(eval_transform);
    let mut loader = Loader::sequences(source, transform, LoaderConfig { epochs: Some(1), ..config }).unwrap();
    let batches = loader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (batches, loader.skipped())
}

/// The same batches whatever the threads and wherever the stream is entered; captions alternate over epochs.
#[test]
fn batches_depend_on_seed_epoch_and_number_alone() {
    let dir = TempDir::new().unwrap();
    let images: Vec<(u32, String)> = (0..40).map(|i| (i, format!("{i}.png"))).collect();
    let images: Vec<(u32, &str)> = images.iter().map(|(i, f)| (*i, f.as_str())).collect();
    let names: Vec<String> = (0..200).map(|i| format!("caption {} of {}", i % 5, i / 5)).collect();
    let captions: Vec<(u32, &str)> = names.iter().enumerate().map(|(i, c)| (i as u32 / 5, c.as_str())).collect();
    write(dir.path().join("captions_train.json"), &coco(&images, &captions));
    for i in 0..40u8 {
        write(dir.path().join(format!("train/{i}.png")), &png(i));
    }
    let set = open(dir.path()).unwrap();
    let tokenizer = words(&set);
    let sequences = Sequences::new(set.train().unwrap().clone(), tokenizer.clone(), &SequenceConfig::lines(6)).unwrap();
    let run = |threads: usize, start: Position, n: usize| -> Vec<Batch> {
        let config = LoaderConfig { threads, start, ..LoaderConfig::train(8, 5) };
        let transform = Transform::train(&AugmentConfig::light(), 8, 3).unwrap();
        let loader = Loader::sequences(sequences.clone(), Some(transform), config).unwrap();
        loader.take(n).collect::<Result<_, _>>().unwrap()
    };
    let (a, b) = (run(1, Position::default(), 15), run(3, Position { epoch: 1, batch: 2 }, 8));
    for (x, y) in a[7..].iter().zip(&b) {
        assert_eq!((x.position, &x.indices, &x.tokens), (y.position, &y.indices, &y.tokens));
        assert_eq!(x.images, y.images);
        assert!(x.labels.is_empty() && x.images.len() == 8 * 3 * 64 && x.tokens.len() == 48);
    }
    // Each image has its own caption; over 200 epochs all five appear about equally often.
    for (i, row) in a[0].indices.iter().zip(a[0].tokens.chunks(6)) {
        assert!(tokenizer.decode(row).ends_with(&format!("of {i}")), "{i}: {}", tokenizer.decode(row));
    }
    let mut counts = [0f64; 5];
    for epoch in 0..1000 {
        let mut out = [0; 6];
        sequences.write(Address { seed: 5, epoch, example: 3 }, true, &mut out).unwrap();
        let text = tokenizer.decode(&out);
        counts[text.split(' ').nth(1).unwrap().parse::<usize>().unwrap()] += 1.0;
    }
    let chi2: f64 = counts.iter().map(|c| (c - 200.0).powi(2) / 200.0).sum();
    assert!(chi2 < 24.0, "{counts:?}"); // 4 degrees of freedom: P(χ² > 24) < 1e-4
    assert_eq!(sequences.references(3).unwrap().len(), 5);
}

#[test]
fn what_is_not_captions_or_text_is_refused_with_a_reason() {
    let dir = TempDir::new().unwrap();
    let e = |path: &Path| open(path).unwrap_err().to_string();
    assert!(e(&dir.path().join("nowhere")).contains("no such file or folder"));
    assert!(e(dir.path()).contains("known layouts of captions and text"));
    write(dir.path().join("x.zip"), b"");
    assert!(e(&dir.path().join("x.zip")).contains("unpack it"));
    write(dir.path().join("x.jpg"), b"");
    assert!(e(&dir.path().join("x.jpg")).contains("not a file of captions or text"));
    write(dir.path().join("t/empty.txt"), b" \n\n");
    assert!(e(&dir.path().join("t")).contains("the train split holds no examples"));
    write(dir.path().join("g/a.txt.gz"), &gzip(&[b'a'; 5000])[..20]);
    assert!(e(&dir.path().join("g")).contains("a.txt.gz: cannot be unpacked"));
    let caption = SequenceOptions { task: Some(Task::Caption), ..options() };
    write(dir.path().join("t/a.txt"), b"a");
    let e = data::open_sequences(dir.path().join("t"), &caption).unwrap_err().to_string();
    assert!(e.contains("text does not hold images with captions"), "{e}");
    let zero = Sequences::new(
        open(&dir.path().join("t")).unwrap().train.unwrap(),
        Arc::new(Tokenizer::train(Kind::Chars, 9, ["a"]).unwrap()),
        &SequenceConfig::lines(0),
    );
    assert!(zero.err().unwrap().to_string().contains("at least 1 token"));
}

/// Files of classes that bring text along are not text.
#[test]
fn labels_come_first() {
    let dir = TempDir::new().unwrap();
    write(dir.path().join("cifar/data_batch_1.bin"), &[0; 3073]);
    write(dir.path().join("cifar/batches.meta.txt"), b"a\nb\n");
    write(dir.path().join("folder/cat/a.png"), &png(1));
    write(dir.path().join("folder/classes.txt"), b"cat\n");
    for name in ["cifar", "folder"] {
        assert_eq!(guess_task(dir.path().join(name)).unwrap(), Task::Class, "{name}");
    }
    assert_eq!(guess_task("embedded:digits").unwrap(), Task::Class);
    assert!(guess_task("nowhere").is_err());
}
