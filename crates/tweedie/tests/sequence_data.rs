//! Captions and text in every layout, with the rows that are wrong.

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

/// All batches of one pass in order.
fn pass(source: Sequences, images: bool, config: LoaderConfig) -> (Vec<Batch>, data::Skipped) {
    let transform = images.then(eval_transform);
    let mut loader = Loader::sequences(source, transform, LoaderConfig { epochs: Some(1), ..config }).unwrap();
    let batches = loader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (batches, loader.skipped())
}

#[test]
fn parquet_captions_in_every_layout() {
    let want: Vec<Vec<String>> =
        (0..6).map(|i| (0..i % 3 + 1).map(|j| format!("a cat number {i} {j}")).collect()).collect();
    for (name, several) in [("list", true), ("structs", true), ("numbered", true), ("enriched", false)] {
        let task = if name == "enriched" { Task::Class } else { Task::Caption };
        assert_eq!(guess_task(fixture(name)).unwrap(), task, "{name}"); // enriched has labels too
        let set =
            data::open_sequences(fixture(name), &SequenceOptions { task: Some(Task::Caption), ..options() }).unwrap();
        assert_eq!((set.format, set.task), (SequenceFormat::Parquet, Task::Caption));
        let source = set.train().unwrap();
        let all = texts(source);
        for i in [0, 1, 2, 3, 5] {
            assert_eq!(all[i], if several { &want[i][..] } else { &want[i][..1] }, "{name} {i}");
        }
        assert_eq!(source.image(5).unwrap().unwrap().data[0], 5);
        assert_eq!(source.file_name(5).unwrap(), "5.png");
        // Rows 2 (no bytes), 3 (broken image) and 4 (no caption) are named and left out.
        let tokenizer = words(&set);
        let sequences = Sequences::new(source.clone(), tokenizer, &SequenceConfig::lines(8)).unwrap();
        assert_eq!(sequences.references(4).unwrap(), Vec::<String>::new());
        let (batches, skipped) = pass(sequences, true, LoaderConfig::eval(4));
        let indices: Vec<u32> = batches.iter().flat_map(|b| b.indices.clone()).collect();
        assert_eq!(indices, [0, 1, 5], "{name}");
        assert_eq!(skipped.errors.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        for (i, words) in [(2, "no image bytes"), (3, "unreadable image"), (4, "only an empty one")] {
            let e = &skipped.errors[&i];
            assert!(e.contains(&format!("parquet, row {i}")) && e.contains(words), "{e}");
        }
    }
}

#[test]
fn a_wrong_column_is_an_error_that_lists_the_columns() {
    let with = |f: &dyn Fn(&mut SequenceOptions)| {
        let mut o = SequenceOptions { task: Some(Task::Caption), ..options() };
        f(&mut o);
        data::open_sequences(fixture("enriched"), &o).unwrap_err().to_string()
    };
    let e = with(&|o| o.caption_column = Some("words".into()));
    assert!(e.contains("no caption column `words`") && e.contains("`image_id`, `label`"), "{e}");
    assert!(e.contains("train-00000-of-00001.parquet") && e.contains("data.caption_column"), "{e}");
    let e = with(&|o| o.caption_column = Some("label".into())); // numbers
    assert!(e.contains("no caption column `label`"), "{e}");
    let e = with(&|o| o.open.image_column = Some("photo".into()));
    assert!(e.contains("no image column `photo`"), "{e}");
    let e = with(&|o| (o.task, o.text_column) = (Some(Task::Text), Some("body".into())));
    assert!(e.contains("no text column `body`"), "{e}");
    // A field inside structs, and several columns at once.
    let of = |name: &str, column: &str| {
        let o = SequenceOptions { caption_column: Some(column.into()), ..options() };
        texts(data::open_sequences(fixture(name), &o).unwrap().train().unwrap())[1].clone()
    };
    assert_eq!(of("structs", "sentences.raw"), ["a cat number 1 0", "a cat number 1 1"]);
    assert_eq!(of("numbered", "caption_1, caption_0"), ["a cat number 1 1", "a cat number 1 0"]);
}

#[test]
fn parquet_text_is_read_without_images() {
    let o = SequenceOptions { task: Some(Task::Text), text_column: Some("caption_enriched".into()), ..options() };
    let set = data::open_sequences(fixture("enriched"), &o).unwrap();
    let sequences = Sequences::new(set.train().unwrap().clone(), words(&set), &SequenceConfig::packed(7)).unwrap();
    // Five rows of "a cat number I 0" and an end, one row of nothing: 30 tokens.
    assert_eq!(sequences.len(), 30 / 7);
    let (batches, skipped) = pass(sequences.clone(), false, LoaderConfig::eval(2));
    let all: Vec<u32> = batches.iter().flat_map(|b| b.tokens.clone()).collect();
    assert!(skipped.count() == 1 && skipped.errors[&4].contains("parquet, row 4"), "{:?}", skipped.errors);
    assert!(batches.iter().all(|b| b.images.is_empty()));
    let t = sequences.tokenizer();
    // 1, 2, 3 and 5 occur once.
    let start = "a cat number 0 0\n".to_string() + &"a cat number <unk> 0\n".repeat(3);
    assert!(t.decode_packed(&all).starts_with(&start), "{:?}", t.decode_packed(&all));
    assert!(sequences.image(0).unwrap_err().to_string().contains("without images"));
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

#[test]
fn coco_json_with_folders_of_images() {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    let images = [(7, "a.png"), (8, "b.png"), (9, "gone.png"), (10, "bad.png"), (11, "mute.png")];
    let captions = [(8, " Two dogs. "), (7, "A cat"), (7, "one cat\n"), (9, "x"), (10, "y"), (11, ""), (99, "nobody")];
    write(root.join("annotations/captions_train2017.json"), &coco(&images, &captions));
    write(root.join("annotations/captions_val2017.json"), &coco(&[(1, "v.png")], &[(1, "A bird")]));
    write(root.join("annotations/instances_train2017.json"), b"{}");
    for (name, mark) in [("a", 1), ("b", 2), ("mute", 3)] {
        write(root.join(format!("train2017/{name}.png")), &png(mark));
    }
    write(root.join("train2017/bad.png"), b"not an image");
    write(root.join("val2017/v.png"), &png(4));
    assert_eq!(guess_task(root).unwrap(), Task::Caption);
    let set = open(root).unwrap();
    assert_eq!((set.format, set.val_origin.as_str()), (SequenceFormat::Coco, "the validation split"));
    assert_eq!(
        texts(set.train().unwrap())[..2],
        [vec!["A cat".to_string(), "one cat".into()], vec!["Two dogs.".into()]]
    );
    assert_eq!(flat(set.val().unwrap()), ["A bird"]);
    assert!(set.notes[0].contains("1 captions of images that are not listed"), "{:?}", set.notes);
    let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &SequenceConfig::lines(9)).unwrap();
    let (batches, skipped) = pass(sequences.clone(), true, LoaderConfig::eval(8));
    assert_eq!(batches[0].indices, [0, 1]);
    assert!(skipped.errors[&2].contains("train2017/gone.png"), "{:?}", skipped.errors);
    assert!(skipped.errors[&3].contains("bad.png (image 10 of"), "{:?}", skipped.errors);
    assert!(skipped.errors[&4].contains("captions_train2017.json, image 11 (mute.png)"), "{:?}", skipped.errors);
    // Strict: the first bad row is the error.
    let strict = LoaderConfig { on_corrupt: OnCorrupt::Fail, ..LoaderConfig::eval(1) };
    let results: Vec<_> = Loader::sequences(sequences, Some(eval_transform()), strict).unwrap().collect();
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 2);
    assert!(results[2].as_ref().unwrap_err().to_string().contains("gone.png"));
    // One file alone, and images in a folder that is named.
    assert_eq!(open(&root.join("annotations/captions_val2017.json")).unwrap().val().unwrap().len(), 1);
    fs::rename(root.join("val2017"), root.join("elsewhere")).unwrap();
    let e = open(root).unwrap_err().to_string();
    assert!(e.contains("captions_val2017.json") && e.contains("`v.png`") && e.contains("data.image_folder"), "{e}");
    let o = SequenceOptions { image_folder: Some(root.join("elsewhere")), ..options() };
    assert!(data::open_sequences(root.join("annotations/captions_val2017.json"), &o).is_ok());
    write(root.join("annotations/captions_val2017.json"), b"{\"images\": 3}");
    assert!(open(root).unwrap_err().to_string().contains("captions_val2017.json: not COCO captions"));
}

#[test]
fn karpathy_splits() {
    let dir = TempDir::new().unwrap();
    let image = |name: &str, split: &str, captions: &[&str]| {
        let sentences: Vec<_> =
            captions.iter().map(|c| serde_json::json!({"raw": c, "tokens": ["x"], "sentid": 1})).collect();
        serde_json::json!({"filepath": "val2014", "filename": name, "split": split, "cocoid": 5, "sentences": sentences})
    };
    let json = serde_json::json!({"dataset": "coco", "images": [
        image("a.png", "train", &["A a.", "B b."]), image("b.png", "restval", &["C"]),
        image("c.png", "test", &["D"]), image("d.png", "val", &["E"]), image("e.png", "spare", &["F"])]});
    write(dir.path().join("dataset_coco.json"), json.to_string().as_bytes());
    write(dir.path().join("val2014/c.png"), &png(1));
    let set = open(dir.path()).unwrap();
    assert_eq!(set.format, SequenceFormat::Karpathy);
    assert_eq!(flat(set.train().unwrap()), ["A a.", "B b.", "C"]);
    assert_eq!((flat(set.val().unwrap()), flat(set.test.as_ref().unwrap())), (vec!["E".to_string()], vec!["D".into()]));
    assert_eq!(set.test.unwrap().image(0).unwrap().unwrap().data[0], 1);
    assert!(set.notes[0].contains("1 images of no known split"));
}

fn tar(path: &Path, members: &[(&str, &[u8])]) {
    let mut out = tar::Builder::new(fs::File::create(path).unwrap());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        out.append_data(&mut header, name, *bytes).unwrap();
    }
    out.finish().unwrap();
}

#[test]
fn webdataset_with_txt_or_json() {
    let dir = TempDir::new().unwrap();
    let shard = dir.path().join("cc3m-train-0000.tar");
    let p = png(1);
    let members: [(&str, &[u8]); 10] = [
        ("0.jpg", &p),
        ("0.txt", b"a red thing\n"),
        ("1.png", &p),
        ("1.json", br#"{"caption": ["one", "two"], "url": "x"}"#),
        ("2.png", &p),
        ("3.png", &p),
        ("3.json", br#"{"url": "x"}"#),
        ("3.txt.bak", b""),
        ("4.txt", b"a caption alone"),
        ("5.bak", b"neither"),
    ];
    tar(&shard, &members);
    assert_eq!(guess_task(dir.path()).unwrap(), Task::Caption);
    let set = open(dir.path()).unwrap();
    let source = set.train().unwrap();
    assert_eq!((set.format, source.len()), (SequenceFormat::WebDataset, 5));
    assert_eq!(
        (source.texts(0).unwrap(), source.texts(1).unwrap()),
        (vec!["a red thing\n".into()], vec!["one".into(), "two".into()])
    );
    assert_eq!(source.image(1).unwrap().unwrap().data[0], 1);
    let sequences = Sequences::new(source.clone(), chars(&set), &SequenceConfig::lines(20)).unwrap();
    let (batches, skipped) = pass(sequences.clone(), true, LoaderConfig::eval(9));
    assert_eq!((&batches[0].indices[..], skipped.count()), (&[0, 1][..], 3));
    for (i, words) in [
        (2, "member `2.png`: an image without .txt or .json"),
        (3, "member `3.png`: no caption among `url`"),
        (4, "member `4.txt`: a caption without .jpg"),
    ] {
        assert!(skipped.errors[&i].contains(words), "{:?}", skipped.errors);
        assert!(skipped.errors[&i].starts_with(&shard.display().to_string()), "{:?}", skipped.errors);
    }
    let strict = LoaderConfig { on_corrupt: OnCorrupt::Fail, ..LoaderConfig::eval(1) };
    let loader = Loader::sequences(sequences, Some(eval_transform()), strict).unwrap();
    let e = loader.collect::<Result<Vec<_>, _>>().unwrap_err();
    assert!(e.to_string().contains("member `2.png`: an image without"), "{e}");
    let wrong = SequenceOptions { caption_column: Some("alt".into()), ..options() };
    tar(&shard, &members[2..4]);
    assert_eq!(guess_task(dir.path()).unwrap(), Task::Caption);
    let e = data::open_sequences(dir.path(), &wrong).unwrap_err().to_string();
    assert!(e.contains("no caption among `caption`, `url`") && e.contains("data.caption_column"), "{e}");
    tar(&shard, &members[4..5]);
    assert!(open(dir.path()).unwrap_err().to_string().contains("images but no captions"));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn text_line_by_line_plain_and_gzipped() {
    let dir = TempDir::new().unwrap();
    let lines: Vec<String> = (0..100).map(|i| format!("line {i} é{}", "x".repeat(i * 7 % 300))).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        text += line;
        text += if i % 3 == 0 { "\r\n\n  \n" } else { "\n" };
    }
    write(dir.path().join("wiki.train.tokens"), text.trim_end().as_bytes()); // the last line has no end
    write(dir.path().join("wiki.valid.txt.gz"), &gzip(text.as_bytes()));
    write(dir.path().join("README.txt"), b"about");
    write(dir.path().join("notes.txt"), b"more");
    assert_eq!(guess_task(dir.path()).unwrap(), Task::Text);
    let set = open(dir.path()).unwrap();
    assert_eq!((set.format, set.notes.len()), (SequenceFormat::Text, 1)); // notes.txt is left out
    for source in [set.train().unwrap(), set.val().unwrap()] {
        assert_eq!(flat(source), lines);
        // Lines 0 to 2 stand on 1, 4, 5 of the file: blank ones are counted.
        assert!(source.place(2).ends_with(", line 5"), "{}", source.place(2));
    }
    let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &SequenceConfig::lines(12)).unwrap();
    let t = sequences.tokenizer().clone();
    let (batches, skipped) = pass(sequences, false, LoaderConfig::eval(100));
    let row = |i: usize| &batches[0].tokens[i * 12..(i + 1) * 12];
    assert_eq!((t.decode(row(0)), row(0)[8], row(0)[9]), ("line 0 é".into(), t.eos(), t.pad()));
    assert_eq!(t.decode(row(50)), lines[50].chars().take(12).collect::<String>());
    let longer = lines.iter().filter(|l| l.chars().count() > 12).count();
    assert_eq!((skipped.count(), skipped.cut), (0, longer as u64));
}

#[test]
fn long_texts_are_cut_skipped_or_fatal() {
    let dir = TempDir::new().unwrap();
    write(dir.path().join("a.txt"), b"a b\na b c d e\na a\na b c d\n");
    let set = open(dir.path()).unwrap();
    let with = |overlong| {
        let config = SequenceConfig { overlong, ..SequenceConfig::lines(4) };
        let tokenizer = Tokenizer::train(Kind::Space, 99, ["a b c d e a b c d e"]).unwrap();
        Sequences::new(set.train().unwrap().clone(), Arc::new(tokenizer), &config).unwrap()
    };
    let (batches, skipped) = pass(with(Overlong::Cut), false, LoaderConfig::eval(9));
    assert_eq!((batches[0].indices.len(), skipped.cut, skipped.count()), (4, 1, 0)); // four tokens fit without an end
    // Leaving out is not a fault: strict data go on.
    let strict = LoaderConfig { on_corrupt: OnCorrupt::Fail, ..LoaderConfig::eval(9) };
    let (batches, skipped) = pass(with(Overlong::Skip), false, strict);
    assert_eq!(batches[0].indices, [0, 2, 3]);
    assert!(skipped.errors[&1].contains("a.txt, line 2: 5 tokens where 4 fit"), "{:?}", skipped.errors);
    let e = Loader::sequences(with(Overlong::Fail), None, LoaderConfig::eval(9)).unwrap().next().unwrap().unwrap_err();
    assert!(e.to_string().contains("line 2: 5 tokens where 4 fit; set data.tokens"), "{e}");
}

#[test]
fn json_lines() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("corpus.jsonl");
    write(
        path.clone(),
        b"{\"text\": \"one\", \"n\": 1}\n\nbroken\n{\"n\": 2}\n{\"text\": \"\"}\n{\"text\": \"two\"}\n",
    );
    let set = open(&path).unwrap();
    let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &SequenceConfig::lines(4)).unwrap();
    let (batches, skipped) = pass(sequences, false, LoaderConfig::eval(9));
    assert_eq!(batches[0].indices, [0, 4]);
    for (i, words) in
        [(1, "line 3: not JSON"), (2, "line 4: no field text; the fields are `n`"), (3, "line 5: no text")]
    {
        assert!(skipped.errors[&i].contains(words), "{:?}", skipped.errors);
    }
    let wrong = SequenceOptions { text_column: Some("body".into()), ..options() };
    let e = data::open_sequences(&path, &wrong).unwrap_err().to_string();
    assert!(e.contains("no field `body`; the fields are `n`, `text`") && e.contains("data.text_column"), "{e}");
}

/// Rows of packed text that are of no use are named once, whether the text is held in memory or read where it lies, and
/// are fatal where that is set.
#[test]
fn bad_rows_of_packed_text_are_named_or_fatal() {
    let dir = TempDir::new().unwrap();
    let good = "{\"text\": \"good\"}\n".repeat(20);
    let bad = "broken\n{\"n\": 2}\n{\"text\": \" \"}\n{\"text\": 7}\n";
    write(dir.path().join("a.jsonl"), format!("{good}{bad}{good}").as_bytes());
    // Two lines of a piece, with blank ones, which are no fault.
    write(dir.path().join("b.txt"), b"good\n\n  \nb\xffd\ngood\n\xe9\n\xc3\xa9 good\ngood good good");
    let json = ["line 21: not JSON", "line 22: no field text", "line 23: no text", "line 24: no text"];
    for (file, words, text) in [
        ("a.jsonl", &json[..], "good\n".repeat(40)),
        ("b.txt", &["lines 4, 6: not UTF-8"], "good\n\n  \ngood\né good\ngood good good".into()),
    ] {
        let set = data::open_sequences(dir.path().join(file), &packed()).unwrap();
        for memory_bytes in [1 << 20, 10] {
            let config = SequenceConfig { memory_bytes, ..SequenceConfig::packed(8) };
            let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &config).unwrap();
            let train = || LoaderConfig { epochs: Some(3), ..LoaderConfig::train(2, 1) };
            let mut loader = Loader::sequences(sequences.clone(), None, train()).unwrap();
            let batches = loader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
            let marks =
                sequences.tokenizer().decode_packed(&batches.iter().flat_map(|b| b.tokens.clone()).collect::<Vec<_>>());
            assert!(!marks.contains('\u{fffd}') && !marks.contains('7'), "{marks}");
            if memory_bytes > 10 {
                let mut all = Vec::new();
                for b in pass(sequences.clone(), false, LoaderConfig::eval(1)).0 {
                    all.extend(b.tokens);
                }
                assert_eq!(sequences.tokenizer().decode_packed(&all)[..20], text[..20]);
            }
            let skipped = loader.take_skipped();
            let errors: Vec<&String> = skipped.errors.values().collect();
            assert_eq!((errors.len(), skipped.count()), (words.len(), words.len()), "{errors:?}");
            for (e, words) in errors.iter().zip(words) {
                assert!(e.contains(&format!("{file}, {words}")), "{e}");
            }
            let again = loader.take_skipped();
            assert!(again.errors.is_empty() && again.count() == words.len());
            let strict = LoaderConfig { on_corrupt: OnCorrupt::Fail, ..train() };
            let e = match Loader::sequences(sequences, None, strict) {
                Ok(loader) => loader.collect::<Result<Vec<_>, _>>().unwrap_err(),
                Err(e) => e,
            };
            assert!(words.iter().any(|w| e.to_string().contains(w)), "{e}");
        }
    }
    // Line by line the same text is bad in the same places.
    let set = open(&dir.path().join("b.txt")).unwrap();
    let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &SequenceConfig::lines(20)).unwrap();
    let (batches, skipped) = pass(sequences, false, LoaderConfig::eval(9));
    assert_eq!(batches[0].indices, [0, 2, 4, 5]);
    assert!(skipped.errors[&1].ends_with("b.txt, line 4: not UTF-8 text"), "{:?}", skipped.errors);
    assert!(skipped.errors[&3].ends_with("b.txt, line 6: not UTF-8 text"), "{:?}", skipped.errors);
}

/// Windows follow each other; a shuffled epoch begins anywhere on the circle and is another each time.
#[test]
fn packed_windows_cover_the_stream() {
    let dir = TempDir::new().unwrap();
    let text: String = (0..3000).map(|i| format!("w{i} {}", if i % 9 == 8 { "\n\n" } else { "" })).collect();
    write(dir.path().join("input.txt"), text.as_bytes());
    let set = data::open_sequences(dir.path(), &packed()).unwrap();
    let source = set.train().unwrap();
    assert!(source.len() > 1, "several pieces");
    assert_eq!(flat(source).concat(), text);
    let tokenizer = chars(&set);
    let sequences = Sequences::new(source.clone(), tokenizer.clone(), &SequenceConfig::packed(64)).unwrap();
    assert_eq!(sequences.len(), text.len() / 64);
    let (batches, _) = pass(sequences.clone(), false, LoaderConfig::eval(7));
    let all: Vec<u32> = batches.iter().flat_map(|b| b.tokens.clone()).collect();
    assert_eq!(tokenizer.decode_packed(&all), text[..all.len()]);
    let window = |epoch, example| {
        let mut out = [0; 64];
        sequences.write(Address { seed: 3, epoch, example }, true, &mut out).unwrap();
        tokenizer.decode_packed(&out)
    };
    let circle = text.repeat(2);
    let at = |w: &str| circle.find(w).unwrap();
    let (a, b) = (window(1, 10), window(1, 11));
    assert_eq!((at(&a) + 64) % text.len(), at(&b) % text.len());
    assert_ne!(at(&a), at(&window(2, 10)));
    let short = Sequences::new(source.clone(), tokenizer, &SequenceConfig::packed(99_999));
    assert!(short.err().unwrap().to_string().contains("fewer than one window"));
    // The end is held out, not lines here and there.
    let set = data::open_sequences(
        dir.path(),
        &SequenceOptions { open: OpenOptions { val_fraction: 0.5, ..OpenOptions::default() }, ..packed() },
    )
    .unwrap();
    assert_eq!([flat(set.train().unwrap()), flat(set.val().unwrap())].concat().concat(), text);
}

/// A small text has pieces small enough for a fifth of it to be held out, and none of it is lost.
#[test]
fn the_end_of_a_small_text_is_held_out() {
    let fifth = SequenceOptions { open: OpenOptions { val_fraction: 0.2, ..OpenOptions::default() }, ..packed() };
    let lines: String = (0..9000).map(|i| if i % 5 == 4 { "ten\n".into() } else { format!("{i} ") }).collect();
    let unbroken = "größe".repeat(6000);
    for (text, bytes) in [(&lines, 600), (&lines, 3000), (&lines, 32_000), (&unbroken, 3003), (&unbroken, 32_004)] {
        let dir = TempDir::new().unwrap();
        let text = &text[..text.floor_char_boundary(bytes)];
        write(dir.path().join("input.txt"), text.as_bytes());
        let set = data::open_sequences(dir.path(), &fifth).unwrap();
        let [rest, held] = [set.train(), set.val()].map(|s| flat(s.unwrap()).concat());
        assert_eq!(rest.clone() + &held, text);
        // Pieces of 256 bytes up to the end of a line or word, for the shortest ones.
        let share = held.len() as f64 / text.len() as f64;
        assert!((0.05..0.4).contains(&share), "{share} of {bytes} bytes");
        assert!(bytes < 30_000 || (0.15..0.25).contains(&share), "{share} of {bytes} bytes");
    }
}

/// Text too large for memory: windows are real text of the right places, spread evenly, in epochs of their own.
#[test]
fn large_text_is_packed_where_it_lies() {
    let dir = TempDir::new().unwrap();
    let text: String = (0..40_000).map(|i| format!("w{i}{}", if i % 20 == 19 { "\n" } else { " " })).collect();
    write(dir.path().join("a.train.txt"), text.as_bytes());
    let docs: String = (0..4000)
        .map(|i| {
            let words: Vec<String> = (0..10).map(|k| format!("w{}", i * 10 + k)).collect();
            format!("{}\n", serde_json::json!({ "text": words.join(" ") }))
        })
        .collect();
    write(dir.path().join("docs.jsonl"), docs.as_bytes());
    let vocabulary: Vec<String> = (0..40_000).flat_map(|i| [format!("w{i}"), format!("w{i}")]).collect();
    let tokenizer = Arc::new(Tokenizer::train(Kind::Space, 50_000, &vocabulary).unwrap());
    for file in ["a.train.txt", "docs.jsonl"] {
        let set = data::open_sequences(dir.path().join(file), &packed()).unwrap();
        let config = SequenceConfig { memory_bytes: 1000, ..SequenceConfig::packed(50) };
        let sequences = Sequences::new(set.train().unwrap().clone(), tokenizer.clone(), &config).unwrap();
        let expected = 40_000.0 * if file == "docs.jsonl" { 1.1 } else { 1.05 } / 50.0; // words and ends
        // JSON's own characters are counted as text, so windows overlap a little there.
        let range = if file == "docs.jsonl" { 0.9..1.3 } else { 0.95..1.05 };
        assert!(range.contains(&(sequences.len() as f64 / expected)), "{file}: {} {expected}", sequences.len());
        let mut seen = BTreeSet::new();
        let mut first = Vec::new();
        for example in 0..sequences.len() as u32 {
            let mut out = [0; 50];
            sequences.write(Address { seed: 0, epoch: 1, example }, true, &mut out).unwrap();
            let numbers: Vec<u32> =
                tokenizer.decode_packed(&out).split_whitespace().map(|w| w[1..].parse().unwrap()).collect();
            assert!(numbers.windows(2).all(|w| (w[0] + 1) % 40_000 == w[1]), "{file}: {numbers:?}");
            seen.extend(numbers.iter().copied());
            first.push(numbers[0]);
        }
        assert!(seen.len() > 38_000, "{file}: {} of 40000 words seen", seen.len());
        let mut out = [0; 50];
        sequences.write(Address { seed: 0, epoch: 2, example: 5 }, true, &mut out).unwrap();
        assert_ne!(tokenizer.decode_packed(&out).split_whitespace().next().unwrap()[1..].parse(), Ok(first[5]));
    }
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

/// Real data, where it is at hand.
#[test]
fn tiny_shakespeare_has_its_known_characters() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/text/tinyshakespeare");
    if !path.exists() {
        return;
    }
    let set = data::open_sequences(&path, &packed()).unwrap();
    let sequences = Sequences::new(set.train().unwrap().clone(), chars(&set), &SequenceConfig::packed(256)).unwrap();
    assert_eq!(sequences.tokenizer().vocab(), 3 + 65);
    assert_eq!(sequences.len(), 1_115_394 / 256);
}

/// Real data, where it is at hand.
#[test]
fn coco_96_has_its_known_counts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/coco-96");
    if !path.exists() {
        return;
    }
    assert_eq!(guess_task(&path).unwrap(), Task::Caption);
    let set = open(&path).unwrap();
    let test = set.test.clone().unwrap();
    assert_eq!((set.train().unwrap().len(), set.val().unwrap().len(), test.len()), (29_555, 1000, 4407));
    assert_eq!(flat(set.train().unwrap()).len(), 62_909);
    assert_eq!(test.texts(0).unwrap()[3], "A small dog is curled up on top of the shoes");
    let t = words(&set);
    assert_eq!(t.vocab(), 1000);
    let full = Tokenizer::train(Kind::Word, 5000, set.training_texts().unwrap()).unwrap();
    assert_eq!(full.vocab(), 5000);
    let image = test.image(17).unwrap().unwrap();
    assert_eq!((image.width, image.height, image.channels), (96, 96, 3));
}
