//! Readers of data sets.

use super::*;

pub(super) fn image(_: &Scratch, bytes: &[u8]) -> bool {
    let bytes = with_sums(bytes);
    let _ = Image::decode_top(&bytes, &|_, height| height / 2);
    let Ok(image) = Image::decode(&bytes) else { return false };
    image.check().is_ok() && image.into_channels(1).to_png().is_ok()
}

pub(super) fn folder(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("folder/a/good.png", &png(1));
    scratch.file("folder/b/good.png", &png(2));
    for name in ["a/x.jpg", "a/x.png", "b/x.webp", "b/x.JPEG"] {
        scratch.file(&format!("folder/{name}"), &with_sums(bytes));
    }
    read_classes(&scratch.path("folder"), &OpenOptions::default())
}

// Sets of images with classes.

/// Whether any of its examples could be read.
pub(super) fn read_classes(path: &Path, options: &OpenOptions) -> bool {
    let Ok(set) = data::open(path, options) else { return false };
    let mut any = false;
    for source in [&set.train, &set.val, &set.test].into_iter().flatten() {
        any |= read_source(source);
        let _ = set.class_counts(source).len();
    }
    any
}

pub(super) fn read_source(source: &Source) -> bool {
    let mut any = false;
    for i in (0..source.len().min(EXAMPLES)).chain([source.len().saturating_sub(1), source.len()]) {
        let _ = (source.label(i), source.place(i));
        any |= source.get(i).is_ok();
    }
    any
}

pub(super) fn parquet_class_files() -> Vec<Vec<u8>> {
    fixtures(&[
        "parquet/train-00000-of-00002.parquet",
        "parquet/validation-00000-of-00001.parquet",
        "parquet-names/data.parquet",
    ])
}

pub(super) fn parquet_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_classes(&scratch.file("parquet-classes/train-00000-of-00001.parquet", bytes), &OpenOptions::default())
}

pub(super) fn parquet_caption_files() -> Vec<Vec<u8>> {
    let file = |layout: &str| fixture(&format!("captions/{layout}/train-00000-of-00001.parquet"));
    ["list", "structs", "numbered", "enriched"].map(file).into()
}

pub(super) fn parquet_captions(scratch: &Scratch, bytes: &[u8]) -> bool {
    let path = scratch.file("parquet-captions/train-00000-of-00001.parquet", bytes);
    read_sequences(&path, Task::Caption) | read_sequences(&path, Task::Text)
}

pub(super) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        let _ = out.append_data(&mut header, name, *bytes);
    }
    out.into_inner().unwrap_or_default()
}

pub(super) fn tar_class_files() -> Vec<Vec<u8>> {
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

pub(super) fn tar_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_classes(&scratch.file("tar-classes/train.tar", bytes), &OpenOptions::default())
}

pub(super) fn tar_caption_files() -> Vec<Vec<u8>> {
    let (a, b) = (png(1), seed("baseline.jpg"));
    vec![
        archive(&[("0001.png", &a), ("0001.txt", b"a cat"), ("0002.jpg", &b), ("0002.txt", b"two dogs\nmore dogs")]),
        archive(&[("1.png", &a), ("1.json", b"{\"caption\": \"a cat\", \"captions\": [\"x\", \"y\"]}")]),
    ]
}

pub(super) fn tar_captions(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_sequences(&scratch.file("tar-captions/train.tar", bytes), Task::Caption)
}

pub(super) fn idx_files() -> Vec<Vec<u8>> {
    let mut images = vec![0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3];
    images.extend(0..24);
    vec![images.clone(), zip(&images)]
}

/// The images, and once more as the labels.
pub(super) fn idx(scratch: &Scratch, bytes: &[u8]) -> bool {
    let labels = [0, 0, 8, 1, 0, 0, 0, 4, 0, 1, 2, 1];
    scratch.file("idx/train-images-idx3-ubyte", bytes);
    scratch.file("idx/train-labels-idx1-ubyte", &labels);
    let read = read_classes(&scratch.path("idx"), &OpenOptions::default());
    scratch.file("idx/train-labels-idx1-ubyte", bytes);
    read | read_classes(&scratch.path("idx"), &OpenOptions::default())
}

pub(super) fn cifar_files() -> Vec<Vec<u8>> {
    let one = |label: u8| [vec![label], (0..3072).map(|i| i as u8).collect()].concat();
    vec![[one(1), one(9), one(0)].concat(), one(3)]
}

pub(super) fn cifar(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("cifar/data_batch_1.bin", bytes);
    scratch.file("cifar/test_batch.bin", bytes);
    scratch.file("cifar/batches.meta.txt", &bytes[..bytes.len().min(99)]);
    read_classes(&scratch.path("cifar"), &OpenOptions::default())
}

pub(super) fn class_lists() -> Vec<Vec<u8>> {
    vec![b"n01 tench\nn02 house cat\n".to_vec(), b"cat\ndog\n".to_vec(), b"n02\r\nn01\r\n".to_vec()]
}

pub(super) fn class_list(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("classes/set/n01/a.png", &png(1));
    scratch.file("classes/set/n02/a.png", &png(2));
    let list = scratch.file("classes/list.txt", bytes);
    read_classes(&scratch.path("classes/set"), &OpenOptions { classes: Some(list), ..OpenOptions::default() })
}

// Sets of texts, with images or without.

/// Whether any of its texts could be read.
pub(super) fn read_sequences(path: &Path, task: Task) -> bool {
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

pub(super) fn read_texts(source: &Texts) -> bool {
    let mut any = false;
    for i in (0..source.len().min(EXAMPLES)).chain([source.len().saturating_sub(1), source.len()]) {
        let _ = (source.image(i), source.place(i), source.file_name(i));
        any |= source.texts_and_bad(i).is_ok_and(|(texts, _)| !texts.is_empty());
    }
    let _ = (source.bytes(), source.at_byte(source.bytes() / 2));
    any
}

pub(super) fn coco_files() -> Vec<Vec<u8>> {
    vec![
        br#"{"images": [{"id": 7, "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
            "annotations": [{"id": 1, "image_id": 7, "caption": "A cat"}, {"id": 2, "image_id": 8, "caption": "two dogs"}]}"#
            .to_vec(),
        br#"{"images": [{"filename": "a.png", "split": "train", "sentences": [{"raw": "a cat", "tokens": ["a", "cat"]}]},
            {"filename": "b.png", "split": "val", "sentences": [{"raw": "a dog"}]}], "dataset": "flickr8k"}"#
            .to_vec(),
    ]
}

pub(super) fn coco(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("coco/train2017/a.png", &png(1));
    scratch.file("coco/train2017/b.png", &png(2));
    scratch.file("coco/annotations/captions_train2017.json", bytes);
    let read = read_sequences(&scratch.path("coco"), Task::Caption);
    scratch.file("karpathy/images/a.png", &png(1));
    scratch.file("karpathy/dataset_flickr8k.json", bytes);
    read | read_sequences(&scratch.path("karpathy"), Task::Caption)
}

pub(super) fn json_line_files() -> Vec<Vec<u8>> {
    vec![
        b"{\"text\": \"one line\", \"id\": 1}\n{\"text\": \"another \\u00e9\", \"id\": 2}\n".to_vec(),
        b"{\"image\": \"a.png\", \"caption\": \"a cat\"}\n{\"file_name\": \"a.png\", \"captions\": [\"x\", \"y\"]}\n"
            .to_vec(),
    ]
}

pub(super) fn json_lines(scratch: &Scratch, bytes: &[u8]) -> bool {
    scratch.file("lines/a.png", &png(1));
    let path = scratch.file("lines/train.jsonl", bytes);
    read_sequences(&path, Task::Text) | read_sequences(&scratch.path("lines"), Task::Caption)
}

pub(super) fn texts() -> Vec<Vec<u8>> {
    vec![b"the cat sat\non the mat\n\n\xc3\xa9t\xc3\xa9 e\xcc\x81\r\n".to_vec(), fixture("captions/nasty.txt")]
}

pub(super) fn text(scratch: &Scratch, bytes: &[u8]) -> bool {
    read_sequences(&scratch.file("text/train.txt", bytes), Task::Text)
}

pub(super) fn zip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

pub(super) fn gzip_files() -> Vec<Vec<u8>> {
    vec![
        zip(b"the cat sat\non the mat\n"),
        zip(&vec![b'a'; 1 << 16]),
        zip(&[b"{\"text\": \"x\"}\n".repeat(50)].concat()),
    ]
}

/// As a file of text and as one of MNIST.
pub(super) fn gzip(scratch: &Scratch, bytes: &[u8]) -> bool {
    let texts = read_sequences(&scratch.file("gzip/text/train.txt.gz", bytes), Task::Text)
        | read_sequences(&scratch.file("gzip/lines/train.jsonl.gz", bytes), Task::Text);
    scratch.file("gzip/idx/train-images-idx3-ubyte.gz", bytes);
    scratch.file("gzip/idx/train-labels-idx1-ubyte.gz", bytes);
    texts | read_classes(&scratch.path("gzip/idx"), &OpenOptions::default())
}

// Words, settings, weights.
