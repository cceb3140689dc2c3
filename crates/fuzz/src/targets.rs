//! Every parser, with good inputs to spoil.

use std::fs;
use std::io::Write;
use std::path::Path;

use tweedie::config::Precision;
use tweedie::data::{self, OpenOptions, SequenceOptions, Source, Task, Texts};
use tweedie::generate::{infill, prompt};
use tweedie::metrics::{clip::Clip, files};
use tweedie::run::{self, Weights};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::{Device, Generator, Image, Session, checkpoint, recipe, tensors};

use crate::{Scratch, Target, repair, root};

/// All of them.
pub const TARGETS: [Target; 21] = [
    Target { name: "image", run: image, seeds: pictures },
    Target { name: "folder", run: folder, seeds: pictures },
    Target { name: "parquet-classes", run: parquet_classes, seeds: parquet_class_files },
    Target { name: "parquet-captions", run: parquet_captions, seeds: parquet_caption_files },
    Target { name: "tar-classes", run: tar_classes, seeds: tar_class_files },
    Target { name: "tar-captions", run: tar_captions, seeds: tar_caption_files },
    Target { name: "idx", run: idx, seeds: idx_files },
    Target { name: "cifar", run: cifar, seeds: cifar_files },
    Target { name: "class-list", run: class_list, seeds: class_lists },
    Target { name: "coco", run: coco, seeds: coco_files },
    Target { name: "json-lines", run: json_lines, seeds: json_line_files },
    Target { name: "text", run: text, seeds: texts },
    Target { name: "gzip", run: gzip, seeds: gzip_files },
    Target { name: "tokenizer", run: tokenizer, seeds: tokenizers },
    Target { name: "template", run: fill, seeds: templates },
    Target { name: "recipe", run: settings, seeds: recipes },
    Target { name: "safetensors", run: safetensors, seeds: safetensor_files },
    Target { name: "score", run: score, seeds: score_files },
    Target { name: "clip", run: clip, seeds: clip_files },
    Target { name: "run-classes", run: run_classes, seeds: class_run },
    Target { name: "run-texts", run: run_texts, seeds: text_run },
];

/// Tokens, steps and candidates above which an answer takes long.
const LONG: usize = 2048;

/// Examples that are read of a set: enough to reach what is behind the index.
const EXAMPLES: usize = 24;

fn fixture(below: &str) -> Vec<u8> {
    fs::read(root("crates/tweedie/tests/fixtures").join(below)).unwrap_or_default()
}

fn fixtures(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|n| fixture(n)).collect()
}

fn seed(name: &str) -> Vec<u8> {
    fs::read(root("crates/fuzz/seeds").join(name)).unwrap_or_default()
}

/// A small PNG.
fn png(mark: u8) -> Vec<u8> {
    Image::filled(3, 2, &[mark, 0, 9]).to_png().unwrap_or_default()
}

// Pictures.

const PICTURES: [&str; 13] = [
    "lossy.webp",
    "lossless.webp",
    "alpha.webp",
    "moving.webp",
    "rgb.png",
    "palette.png",
    "rgba.png",
    "grey16.png",
    "grey-alpha.png",
    "bits.png",
    "baseline.jpg",
    "progressive.jpg",
    "cmyk.jpg",
];

fn pictures() -> Vec<Vec<u8>> {
    PICTURES.iter().map(|n| seed(n)).collect()
}

fn with_sums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.starts_with(b"\x89PNG") {
        repair::png(&mut bytes);
    }
    bytes
}

fn image(_: &Scratch, bytes: &[u8]) -> bool {
    let bytes = with_sums(bytes);
    let _ = Image::decode_top(&bytes, &|_, height| height / 2);
    let Ok(image) = Image::decode(&bytes) else { return false };
    image.check().is_ok() && image.into_channels(1).to_png().is_ok()
}

fn folder(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("folder/a/good.png", &png(1));
    scratch.file("folder/b/good.png", &png(2));
    for name in ["a/x.jpg", "a/x.png", "b/x.webp", "b/x.JPEG"] {
        scratch.file(&format!("folder/{name}"), &with_sums(bytes));
    }
    read_classes(&scratch.path("folder"), &OpenOptions::default())
}

// Sets of images with classes.

/// Whether any of its examples could be read.
fn read_classes(path: &Path, options: &OpenOptions) -> bool {
    let Ok(set) = data::open(path, options) else { return false };
    let mut any = false;
    for source in [&set.train, &set.val, &set.test].into_iter().flatten() {
        any |= read_source(source);
        let _ = set.class_counts(source).len();
    }
    any
}

fn read_source(source: &Source) -> bool {
    let mut any = false;
    for i in (0..source.len().min(EXAMPLES)).chain([source.len().saturating_sub(1), source.len()]) {
        let _ = (source.label(i), source.place(i));
        any |= source.get(i).is_ok();
    }
    any
}

fn parquet_class_files() -> Vec<Vec<u8>> {
    fixtures(&[
        "parquet/train-00000-of-00002.parquet",
        "parquet/validation-00000-of-00001.parquet",
        "parquet-names/data.parquet",
    ])
}

fn parquet_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_classes(&scratch.file("parquet-classes/train-00000-of-00001.parquet", bytes), &OpenOptions::default())
}

fn parquet_caption_files() -> Vec<Vec<u8>> {
    let file = |layout: &str| fixture(&format!("captions/{layout}/train-00000-of-00001.parquet"));
    ["list", "structs", "numbered", "enriched"].map(file).into()
}

fn parquet_captions(scratch: &Scratch, bytes: &[u8]) -> bool {
    let path = scratch.file("parquet-captions/train-00000-of-00001.parquet", bytes);
    read_sequences(&path, Task::Caption) | read_sequences(&path, Task::Text)
}

fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        let _ = out.append_data(&mut header, name, *bytes);
    }
    out.into_inner().unwrap_or_default()
}

fn tar_class_files() -> Vec<Vec<u8>> {
    let (a, b, c) = (png(1), seed("baseline.jpg"), seed("lossy.webp"));
    let long = format!("{}/0003.png", "deep/".repeat(30));
    vec![
        archive(&[("0001.png", &a), ("0001.cls", b"0"), ("0002.jpg", &b), ("0002.cls", b"1")]),
        archive(&[
            ("a/1.webp", &c),
            ("a/1.json", b"{\"label\": \"cat\"}"),
            ("a/2.png", &a),
            ("a/2.json", b"{\"label\": \"dog\"}"),
        ]),
        archive(&[(&long, &a), (&long.replace("png", "cls"), b"7")]),
    ]
}

fn tar_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_classes(&scratch.file("tar-classes/train.tar", bytes), &OpenOptions::default())
}

fn tar_caption_files() -> Vec<Vec<u8>> {
    let (a, b) = (png(1), seed("baseline.jpg"));
    vec![
        archive(&[("0001.png", &a), ("0001.txt", b"a cat"), ("0002.jpg", &b), ("0002.txt", b"two dogs\nmore dogs")]),
        archive(&[("1.png", &a), ("1.json", b"{\"caption\": \"a cat\", \"captions\": [\"x\", \"y\"]}")]),
    ]
}

fn tar_captions(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_sequences(&scratch.file("tar-captions/train.tar", bytes), Task::Caption)
}

fn idx_files() -> Vec<Vec<u8>> {
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3];
    images.extend(0..24);
    vec![images.clone(), zip(&images)]
}

/// The images, and once more as the labels.
fn idx(scratch: &Scratch, bytes: &[u8]) -> bool {
    let labels = [0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 1];
    scratch.file("idx/train-images-idx3-ubyte", bytes);
    scratch.file("idx/train-labels-idx1-ubyte", &labels);
    let read = read_classes(&scratch.path("idx"), &OpenOptions::default());
    scratch.file("idx/train-labels-idx1-ubyte", bytes);
    read | read_classes(&scratch.path("idx"), &OpenOptions::default())
}

fn cifar_files() -> Vec<Vec<u8>> {
    let one = |label: u8| [vec![label], (0..3072).map(|i| i as u8).collect()].concat();
    vec![[one(1), one(9), one(0)].concat(), one(3)]
}

fn cifar(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("cifar/data_batch_1.bin", bytes);
    scratch.file("cifar/test_batch.bin", bytes);
    scratch.file("cifar/batches.meta.txt", &bytes[..bytes.len().min(99)]);
    read_classes(&scratch.path("cifar"), &OpenOptions::default())
}

fn class_lists() -> Vec<Vec<u8>> {
    vec![b"n01 tench\nn02 house cat\n".to_vec(), b"cat\ndog\n".to_vec(), b"n02\r\nn01\r\n".to_vec()]
}

fn class_list(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("classes/set/n01/a.png", &png(1));
    scratch.file("classes/set/n02/a.png", &png(2));
    let list = scratch.file("classes/list.txt", bytes);
    read_classes(&scratch.path("classes/set"), &OpenOptions { classes: Some(list), ..OpenOptions::default() })
}

// Sets of texts, with images or without.

/// Whether any of its texts could be read.
fn read_sequences(path: &Path, task: Task) -> bool {
    let _ = data::guess_task(path);
    let options = SequenceOptions { task: Some(task), ..SequenceOptions::default() };
    let Ok(set) = data::open_sequences(path, &options) else { return false };
    let mut any = false;
    for source in [&set.train, &set.val, &set.test].into_iter().flatten() {
        any |= read_texts(source);
    }
    if let Ok(all) = set.training_texts() {
        let some: Vec<String> = all.take(200).collect();
        for kind in [Kind::Word, Kind::Chars] {
            let _ =
                Tokenizer::train(kind, 300, some.iter().map(String::as_str)).map(|t| (t.vocab(), t.to_json().len()));
        }
    }
    any
}

fn read_texts(source: &Texts) -> bool {
    let mut any = false;
    for i in (0..source.len().min(EXAMPLES)).chain([source.len().saturating_sub(1), source.len()]) {
        let _ = (source.image(i), source.place(i), source.file_name(i));
        any |= source.texts_and_bad(i).is_ok_and(|(texts, _)| !texts.is_empty());
    }
    let _ = (source.bytes(), source.at_byte(source.bytes() / 2));
    any
}

fn coco_files() -> Vec<Vec<u8>> {
    vec![
        br#"{"images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
            "annotations": [{"id": 1, "image_id": 7, "caption": "A cat"}, {"id": 2, "image_id": 8, "caption": "two dogs"}]}"#
            .to_vec(),
        br#"{"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": "a cat", "tokens": ["a", "cat"]}]},
            {"filename": "b.png", "split": "val", "sentences": [{"raw": "a dog"}]}], "dataset": "flickr8k"}"#
            .to_vec(),
    ]
}

fn coco(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("coco/train2017/a.png", &png(1));
    scratch.file("coco/train2017/b.png", &png(2));
    scratch.file("coco/annotations/captions_train2017.json", bytes);
    let read = read_sequences(&scratch.path("coco"), Task::Caption);
    scratch.file("karpathy/images/a.png", &png(1));
    scratch.file("karpathy/dataset_flickr8k.json", bytes);
    read | read_sequences(&scratch.path("karpathy"), Task::Caption)
}

fn json_line_files() -> Vec<Vec<u8>> {
    vec![
        b"{\"text\": \"one line\", \"id\": 1}\n{\"text\": \"another \\u00e9\", \"id\": 2}\n".to_vec(),
        b"{\"image\": \"a.png\", \"caption\": \"a cat\"}\n{\"file_name\": \"a.png\", \"captions\": [\"x\", \"y\"]}\n"
            .to_vec(),
    ]
}

fn json_lines(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("lines/a.png", &png(1));
    let path = scratch.file("lines/train.jsonl", bytes);
    read_sequences(&path, Task::Text) | read_sequences(&scratch.path("lines"), Task::Caption)
}

fn texts() -> Vec<Vec<u8>> {
    vec![b"the cat sat\non the mat\n\n\xc3\xa9t\xc3\xa9 e\xcc\x81\r\n".to_vec(), fixture("captions/nasty.txt")]
}

fn text(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_sequences(&scratch.file("text/train.txt", bytes), Task::Text)
}

fn zip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

fn gzip_files() -> Vec<Vec<u8>> {
    vec![
        zip(b"the cat sat\non the mat\n"),
        zip(&vec![b'a'; 1 << 16]),
        zip(&[b"{\"text\": \"x\"}\n".repeat(50)].concat()),
    ]
}

/// As a file of text and as one of MNIST.
fn gzip(scratch: &Scratch, bytes: &[u8]) -> bool {
    let texts = read_sequences(&scratch.file("gzip/text/train.txt.gz", bytes), Task::Text)
        | read_sequences(&scratch.file("gzip/lines/train.jsonl.gz", bytes), Task::Text);
    scratch.file("gzip/idx/train-images-idx3-ubyte.gz", bytes);
    scratch.file("gzip/idx/train-labels-idx1-ubyte.gz", bytes);
    texts | read_classes(&scratch.path("gzip/idx"), &OpenOptions::default())
}

// Words, settings, weights.

fn trained(kind: Kind) -> String {
    let texts = ["the cat sat on the mat", "a dog and a cat", "caf\u{e9} & co."];
    Tokenizer::train(kind, if kind == Kind::Bpe { 300 } else { 60 }, texts).map(|t| t.to_json()).unwrap_or_default()
}

fn tokenizers() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        [Kind::Word, Kind::Chars, Kind::Bpe, Kind::WordPiece].map(|k| trained(k).into_bytes()).into();
    all.extend([fixture("clip/quick/tokenizer.json"), seed("unigram.json"), seed("split-bpe.json")]);
    all
}

fn tokenizer(_: &Scratch, bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(tokenizer) = Tokenizer::from_json(text) else { return false };
    for text in ["", "the cat", "caf\u{e9} \u{1f600}\u{0} e\u{301}", &"a ".repeat(300)] {
        let ids = tokenizer.encode(text);
        let _ = (tokenizer.decode(&ids), tokenizer.decode_packed(&ids));
        let _ = infill(&tokenizer, 16, text);
    }
    let _ = tokenizer.decode(&[0, 1, 5, u32::MAX]);
    for id in [0, 3, tokenizer.vocab() as u32, tokenizer.pad(), tokenizer.eos(), u32::MAX] {
        let _ = tokenizer.token(id);
    }
    let _ = (tokenizer.to_json().len(), tokenizer.notes().len());
    true
}

fn templates() -> Vec<Vec<u8>> {
    ["the ___ sat", "__ cat _", "a dog and a cat", ""].map(|t| t.as_bytes().to_vec()).into()
}

fn fill(_: &Scratch, bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut any = false;
    for kind in [Kind::Word, Kind::Chars] {
        let Ok(tokenizer) = Tokenizer::from_json(&trained(kind)) else { return false };
        any |= infill(&tokenizer, 16, &text).is_ok() | prompt(&tokenizer, 16, &text).is_ok();
    }
    any
}

fn recipes() -> Vec<Vec<u8>> {
    let recipe = |name: &str| fs::read(root("configs").join(format!("{name}.toml"))).unwrap_or_default();
    ["digits", "shapes", "cifar10", "coco-96", "ptb-chars"].map(recipe).into()
}

fn settings(scratch: &Scratch, bytes: &[u8]) -> bool {
    let path = scratch.file("recipe/recipe.toml", bytes);
    let read = recipe::resolve(&path.to_string_lossy(), &[], &[]).is_ok();
    if let Ok(text) = std::str::from_utf8(bytes) {
        let sets: Vec<String> = text.lines().take(8).map(str::to_string).collect();
        let _ = recipe::resolve("digits", &sets, &[]);
    }
    read
}

fn safetensor_files() -> Vec<Vec<u8>> {
    let tiny = tensors::NamedTensor::new("w", &[2, 3], vec![1.0; 6]);
    let two = [tiny, tensors::NamedTensor::new("b", &[0], vec![])];
    let made = Scratch::new().and_then(|s| {
        let path = s.path("seed.safetensors");
        let _ = tensors::write(&path, &two);
        fs::read(path)
    });
    vec![made.unwrap_or_default(), fixture("clip/gelu/model-00004-of-00004.safetensors")]
}

fn safetensors(scratch: &Scratch, bytes: &[u8]) -> bool {
    tensors::read(&scratch.file("tensors/model.safetensors", bytes)).is_ok()
}

fn score_files() -> Vec<Vec<u8>> {
    let mut all = coco_files();
    all.truncate(1); // Karpathy's are data, not references
    all.push(br#"[{"image_id": 7, "caption": "a cat"}, {"image_id": 8, "caption": "dogs"}]"#.to_vec());
    all.push(b"{\"image_id\": 7, \"caption\": \"a cat\"}\n{\"image_id\": \"8\", \"caption\": \"dogs\"}\n".to_vec());
    all.push(br#"{"7": ["a cat", "one cat"], "8": ["two dogs"]}"#.to_vec());
    all
}

fn score(scratch: &Scratch, bytes: &[u8]) -> bool {
    let path = scratch.file("score/file.json", bytes);
    let (captions, references) = (files::read_captions(&path, true), files::read_references(&path));
    let any = captions.is_ok() | references.is_ok();
    if let Ok(mut references) = references {
        let _ = files::image_files(&references, &scratch.path("score"));
        let _ = captions.and_then(|c| files::pair(&mut references, &[(&path, c)], true));
    }
    any
}

// Whole folders, one file of which is spoilt: the first byte chooses it, the rest is what it holds.

const CLIP: [&str; 3] = ["config.json", "preprocessor_config.json", "tokenizer.json"];
const CLIP_WORDS: [&str; 5] =
    ["config.json", "preprocessor_config.json", "vocab.json", "merges.txt", "model.safetensors.index.json"];

fn chosen(first: u8, content: Vec<u8>) -> Vec<u8> {
    [vec![first], content].concat()
}

fn clip_files() -> Vec<Vec<u8>> {
    let whole = CLIP.iter().enumerate().map(|(i, n)| chosen(i as u8, fixture(&format!("clip/quick/{n}"))));
    let parts = CLIP_WORDS.iter().enumerate().map(|(i, n)| chosen(0x80 | i as u8, fixture(&format!("clip/gelu/{n}"))));
    whole.chain(parts).collect()
}

fn clip(scratch: &Scratch, bytes: &[u8]) -> bool {
    let Some((&first, content)) = bytes.split_first() else { return false };
    let (folder, names) = if first < 0x80 { ("quick", &CLIP[..]) } else { ("gelu", &CLIP_WORDS[..]) };
    let name = names[usize::from(first & 0x7f) % names.len()];
    let Ok(all) = fs::read_dir(root("crates/tweedie/tests/fixtures/clip").join(folder)) else { return false };
    for entry in all.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let own = fs::read(entry.path()).unwrap_or_default();
        scratch.file(&format!("clip/{folder}/{file}"), if file == name { content } else { &own });
    }
    let Ok(clip) = Clip::load(&scratch.path(&format!("clip/{folder}")), &Device::Cpu) else { return false };
    let _ = clip.tokens("a photo of a cat");
    let _ = clip.text_features(&["a photo of a cat".into()]);
    clip.image_features(vec![Image::filled(9, 7, &[1, 2, 3])]).is_ok()
}

const RUN: [&str; 4] = ["config.toml", "env.json", "metrics.jsonl", "checkpoints/best"];
const CHECKPOINT: [&str; 4] = ["state.json", "model.safetensors", "ema.safetensors", "optimizer.safetensors"];

/// The files of a committed run: (name in it, bytes).
fn files_of(run: &str) -> Vec<(String, Vec<u8>)> {
    let folder = root("crates/cli/tests/fixtures/runs").join(run).join("run");
    let step = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let step = step.map(|e| e.file_name().to_string_lossy().into_owned()).find(|n| n.starts_with("step-"));
    let inner = |name: &str| format!("checkpoints/{}/{name}", step.as_deref().unwrap_or_default());
    let names = RUN.iter().map(|n| n.to_string()).chain(CHECKPOINT.map(inner)).chain(["tokenizer.json".into()]);
    names.filter_map(|n| fs::read(folder.join(&n)).ok().map(|bytes| (n, bytes))).collect()
}

fn seeds_of(run: &str) -> Vec<Vec<u8>> {
    files_of(run).into_iter().enumerate().map(|(i, (_, bytes))| chosen(i as u8, bytes)).collect()
}

fn class_run() -> Vec<Vec<u8>> {
    seeds_of("digits")
}

fn text_run() -> Vec<Vec<u8>> {
    seeds_of("lines")
}

/// Write the run with one file of it spoilt. Its checksums are made right, unless the first byte says not to.
fn write_run(scratch: &Scratch, run: &str, bytes: &[u8]) -> Option<std::path::PathBuf> {
    let (&first, content) = bytes.split_first()?;
    let mut files = files_of(run);
    let at = usize::from(first & 0x7f) % files.len().max(1);
    files.get_mut(at)?.1 = content.to_vec();
    if first < 0x80 {
        let of = |name: &str| files.iter().find(|f| f.0.ends_with(name)).map_or(&[][..], |f| &f.1);
        let parts: Vec<(&str, &[u8])> = CHECKPOINT[1..].iter().map(|n| (*n, of(n))).collect();
        let spoilt_state = files.get(at).is_some_and(|f| f.0.ends_with("state.json"));
        let manifest = repair::manifest(of("state.json"), if spoilt_state { &[] } else { &parts });
        files.iter_mut().filter(|f| f.0.ends_with("state.json")).for_each(|f| f.1.clone_from(&manifest));
    }
    let _ = fs::remove_dir_all(scratch.path("run"));
    for (name, bytes) in &files {
        scratch.file(&format!("run/{name}"), bytes);
    }
    Some(scratch.path("run"))
}

/// Whether settings that were spoilt ask, in good order, for more work than an attack has time for.
fn is_long(loaded: &run::Loaded) -> bool {
    let sample = &loaded.config.sample;
    [loaded.config.sizes().tokens, sample.steps, sample.candidates, sample.votes].iter().any(|n| *n > LONG)
}

fn run_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
    let Some(path) = write_run(scratch, "digits", bytes) else { return false };
    let _ = checkpoint::latest(&path.join("checkpoints"));
    let _ = run::load(&path, Weights::Raw, &Device::Cpu, Precision::Auto);
    let loaded = run::load(&path, Weights::Ema, &Device::Cpu, Precision::Auto);
    if loaded.is_ok_and(|l| !is_long(&l))
        && let Ok(classifier) = tweedie::Classifier::open(&path)
    {
        let _ = classifier.classify(&Image::filled(8, 8, &[9])).map(|r| r.top(3).to_string());
    }
    Session::resume(&path, &Device::Cpu).is_ok()
}

fn run_texts(scratch: &Scratch, bytes: &[u8]) -> bool {
    let Some(path) = write_run(scratch, "lines", bytes) else { return false };
    let Ok(loaded) = run::load(&path, Weights::Ema, &Device::Cpu, Precision::Auto) else { return false };
    if is_long(&loaded) {
        return true;
    }
    let Ok(generator) = Generator::open(&path) else { return false };
    generator.texts(1).is_ok()
}
