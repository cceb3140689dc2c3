//! Images with captions: Parquet, COCO JSON, WebDataset.

use super::*;

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
