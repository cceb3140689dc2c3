//! Every layout is opened, read and refused in the ways it can be wrong.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tweedie::data::{self, DataError, Dataset, Format, Image, OpenOptions, Source};

fn open(path: &Path) -> Result<Dataset, DataError> {
    data::open(path, &OpenOptions::default())
}

fn error(path: &Path) -> String {
    open(path).expect_err("must be refused").to_string()
}

fn write(path: PathBuf, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A PNG of one colour whose red value is `mark`.
fn png(mark: u8) -> Vec<u8> {
    Image::filled(3, 2, &[mark, 0, 9]).to_png().unwrap()
}

/// (mark, label) of every example.
fn marks(source: &Source) -> Vec<(u8, u32)> {
    (0..source.len())
        .map(|i| {
            let item = source.get(i).unwrap();
            assert_eq!(item.label, source.label(i));
            (item.image.data[0], item.label)
        })
        .collect()
}

#[test]
fn folders_with_splits() {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    write(root.join("train/dog/a.png"), &png(1));
    write(root.join("train/cat/b.PNG"), &png(2));
    write(root.join("train/cat/deep/c.png"), &png(3));
    write(root.join("train/cat/notes.txt"), b"");
    write(root.join("val/dog/d.png"), &png(4));
    let set = open(root).unwrap();
    assert_eq!((set.format, set.class_names.clone()), (Format::Folder, vec!["cat".to_string(), "dog".into()]));
    assert_eq!(marks(set.train().unwrap()), [(2, 0), (3, 0), (1, 1)]);
    assert_eq!(marks(set.val().unwrap()), [(4, 1)]);
    assert_eq!(set.class_counts(set.train().unwrap()), [2, 1]);

    write(root.join("val/wolf/e.png"), &png(5));
    assert!(error(root).contains("`wolf` is not among the training classes"));
}

#[test]
fn class_lists_name_and_order_classes() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("set");
    for (i, class) in ["n01", "n02", "n03"].iter().enumerate() {
        write(root.join(class).join("a.png"), &png(i as u8));
    }
    let with = |text: &str| {
        let list = dir.path().join("classes.txt");
        fs::write(&list, text).unwrap();
        data::open(&root, &OpenOptions { classes: Some(list), val_fraction: 0.0, ..OpenOptions::default() })
    };
    // Identifiers alone set the order; identifiers with names name too; bare names follow the sorted folders.
    let set = with("n03\nn01\nn02\n").unwrap();
    assert_eq!(marks(set.train().unwrap()), [(0, 1), (1, 2), (2, 0)]);
    let set = with("n02 house cat\nn03 great white shark, Jaws\nn01 tench\n").unwrap();
    assert_eq!(set.class_names, ["house cat", "great white shark, Jaws", "tench"]);
    assert_eq!(marks(set.train().unwrap()), [(0, 2), (1, 0), (2, 1)]);
    let set = with("tench\nhouse cat\nshark\n").unwrap();
    assert_eq!(set.class_names, ["tench", "house cat", "shark"]);
    assert_eq!(marks(set.train().unwrap()), [(0, 0), (1, 1), (2, 2)]);
    assert!(with("one\ntwo\n").unwrap_err().to_string().contains("2 lines for 3 classes"));
    assert!(with("one\n\nthree\n").unwrap_err().to_string().contains("line 2 is empty"));
    assert!(with("").unwrap_err().to_string().contains("empty"));
}

#[test]
fn wrong_folders_are_refused_with_a_reason() {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    assert!(error(&root.join("nowhere")).contains("nowhere: no such file or folder"));
    assert!(error(root).contains("the folder is empty"));
    write(root.join("readme.md"), b"hello");
    assert!(error(root).contains("the folder holds readme.md"));
    assert!(error(&root.join("readme.md")).contains("not a data set file"));
    write(root.join("a.png"), &png(1));
    assert!(error(root).contains("1 images but no class folders"));
    let split = TempDir::new().unwrap();
    write(split.path().join("train/a.png"), &png(1));
    assert!(error(split.path()).contains("1 images but no class folders"));
    write(split.path().join("x.tar.gz"), b"");
    assert!(error(&split.path().join("x.tar.gz")).contains("unpack it"));
    let python = TempDir::new().unwrap();
    write(python.path().join("data_batch_1"), b"pickle");
    assert!(error(python.path()).contains("binary version"));
    let bad = OpenOptions { val_fraction: 1.5, ..OpenOptions::default() };
    assert!(data::open(root, &bad).unwrap_err().to_string().contains("1.5"));
}

#[test]
fn a_share_is_held_out_when_there_is_no_validation_split() {
    let dir = TempDir::new().unwrap();
    for i in 0..200 {
        write(dir.path().join(format!("{}/{i:03}.png", ["a", "b"][i % 2])), &png(i as u8));
    }
    let held = |fraction, seed| {
        let set =
            data::open(dir.path(), &OpenOptions { val_fraction: fraction, split_seed: seed, ..OpenOptions::default() })
                .unwrap();
        let all = |s: &Source| marks(s).into_iter().map(|(m, _)| m).collect::<Vec<u8>>();
        (all(set.train().unwrap()), set.val.as_ref().map(all).unwrap_or_default())
    };
    let (train, val) = held(0.2, 0);
    let mut both = [&train[..], &val[..]].concat();
    both.sort();
    assert_eq!(both, (0..200).map(|i| i as u8).collect::<Vec<_>>());
    assert!((20..60).contains(&val.len()), "{}", val.len()); // 40 expected; 5.7 is a standard deviation
    assert_eq!((train, val.clone()), held(0.2, 0));
    assert_ne!(val, held(0.2, 1).1);
    assert!(held(0.0, 0).1.is_empty());
}

fn cifar_record(labels: &[u8], mark: u8) -> Vec<u8> {
    let mut r = labels.to_vec();
    r.extend((0..3 * 1024).map(|i| if i % 1024 == 33 { mark + (i / 1024) as u8 } else { 0 }));
    r
}

#[test]
fn cifar_binary() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("cifar-10-batches-bin");
    write(root.join("data_batch_1.bin"), &[cifar_record(&[3], 10), cifar_record(&[9], 20)].concat());
    write(root.join("data_batch_2.bin"), &cifar_record(&[0], 30));
    write(root.join("test_batch.bin"), &cifar_record(&[1], 40));
    write(root.join("batches.meta.txt"), b"airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
    let set = open(dir.path()).unwrap();
    assert_eq!((set.format, set.class_names[3].as_str()), (Format::Cifar10, "cat"));
    assert_eq!(set.val_origin, "the test split, for want of a validation split");
    assert!(set.notes[0].contains("2 of CIFAR-10's 5"));
    let item = set.train().unwrap().get(1).unwrap();
    assert_eq!((item.label, item.image.width, item.image.height), (9, 32, 32));
    assert_eq!(item.image.pixel(1, 1), [20, 21, 22]); // value 33 of each plane is row 1, column 1
    assert_eq!(item.image.pixel(0, 1), [0, 0, 0]);

    write(root.join("data_batch_2.bin"), &cifar_record(&[0], 30)[..3000]);
    assert!(error(dir.path()).contains("3000 bytes are not a whole number of records of 3073"));
    write(root.join("data_batch_2.bin"), &cifar_record(&[12], 30));
    assert!(error(dir.path()).contains("record 0 has label 12"));
}

#[test]
fn cifar_100_uses_fine_labels() {
    let dir = TempDir::new().unwrap();
    write(dir.path().join("train.bin"), &cifar_record(&[4, 77], 10));
    write(dir.path().join("test.bin"), &cifar_record(&[4, 99], 10));
    let names: Vec<String> = (0..100).map(|i| format!("fine{i}")).collect();
    write(dir.path().join("fine_label_names.txt"), names.join("\n").as_bytes());
    let set = open(dir.path()).unwrap();
    assert_eq!(set.format, Format::Cifar100);
    assert_eq!((set.train().unwrap().label(0), set.class_names[77].as_str()), (77, "fine77"));
    assert_eq!(set.test.unwrap().label(0), 99);
}

fn idx(dims: &[u32], values: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 8, dims.len() as u8];
    dims.iter().for_each(|d| out.extend(d.to_be_bytes()));
    out.extend(values);
    out
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn mnist_idx_plain_dotted_and_gzipped() {
    let images = idx(&[2, 2, 3], &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]);
    let labels = idx(&[2], &[7, 1]);
    for (dotted, packed) in [(false, false), (true, false), (false, true)] {
        let dir = TempDir::new().unwrap();
        let dash = if dotted { "." } else { "-" };
        let end = if packed { ".gz" } else { "" };
        let pack = |b: &[u8]| if packed { gzip(b) } else { b.to_vec() };
        for part in ["train", "t10k"] {
            write(dir.path().join(format!("{part}-images{dash}idx3-ubyte{end}")), &pack(&images));
            write(dir.path().join(format!("{part}-labels{dash}idx1-ubyte{end}")), &pack(&labels));
        }
        let set = open(dir.path()).unwrap();
        assert_eq!((set.format, set.channels, set.class_names.len()), (Format::Idx, 1, 8));
        let item = set.train().unwrap().get(1).unwrap();
        assert_eq!((item.label, item.image.width, item.image.height), (1, 3, 2));
        assert_eq!(item.image.data, [10, 11, 12, 13, 14, 15]);
        assert_eq!(set.test.unwrap().len(), 2);
    }
}

#[test]
fn broken_idx_files_say_what_was_expected() {
    let dir = TempDir::new().unwrap();
    let (images, labels) = (dir.path().join("train-images-idx3-ubyte"), dir.path().join("train-labels-idx1-ubyte"));
    write(images.clone(), &idx(&[2, 2, 2], &[0; 7]));
    assert!(error(dir.path()).contains("`train-labels-idx1-ubyte` is missing"));
    write(labels.clone(), &idx(&[2], &[1, 2]));
    let text = error(dir.path());
    assert!(text.contains("train-images-idx3-ubyte: 24 bytes expected for 2x2x2, 23 found"), "{text}");
    write(images.clone(), &idx(&[3, 1, 1], &[0; 3]));
    assert!(error(dir.path()).contains("2 labels for 3 images"));
    write(images.clone(), b"<html>not found</html>");
    assert!(error(dir.path()).contains("it begins with 3c 68 74 6d"));
    write(images, &gzip(&idx(&[2, 2, 2], &[0; 8]))[..20]);
    assert!(error(dir.path()).contains("gzip stream is broken"));
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

#[test]
fn parquet_as_hugging_face_writes_it() {
    let set = open(&fixture("parquet")).unwrap();
    assert_eq!(
        (set.format, set.class_names.clone()),
        (Format::Parquet, vec!["cat".to_string(), "dog".into(), "emu".into()])
    );
    let want = [(0, 0), (10, 2), (20, 1), (30, 0), (40, 2), (50, 1), (60, 1), (0, 2), (10, 2)];
    assert_eq!(marks(set.train().unwrap()), want);
    assert!(set.test.is_none() && set.notes[0].contains("the test split has no labels"));
    // In any order, and with a cache that holds one row group at most.
    let tight = OpenOptions { cache_bytes: 1, ..OpenOptions::default() };
    let set = data::open(fixture("parquet"), &tight).unwrap();
    let train = set.train().unwrap();
    for i in [8, 0, 7, 3, 1, 6, 2, 5, 4, 0] {
        assert_eq!(train.get(i).unwrap().image.data[0], want[i].0);
    }
    let locality = train.locality().unwrap();
    assert_eq!((locality.starts, locality.window), (vec![0, 3, 6, 7], 1));
    assert_eq!(set.val().unwrap().len(), 4);
}

#[test]
fn a_broken_parquet_row_names_its_place() {
    let set = open(&fixture("parquet")).unwrap();
    let val = set.val().unwrap();
    assert!(val.get(0).is_ok() && val.get(1).is_ok());
    for (row, why) in [(2, "unreadable image"), (3, "no image bytes")] {
        let e = val.get(row).unwrap_err();
        assert!(e.is_corrupt());
        let text = e.to_string();
        let place = format!("validation-00000-of-00001.parquet, row {row}, column `image.bytes`");
        assert!(text.contains(&place) && text.contains(why), "{text}");
    }
}

#[test]
fn parquet_labels_may_be_names() {
    let set =
        data::open(fixture("parquet-names"), &OpenOptions { val_fraction: 0.0, ..OpenOptions::default() }).unwrap();
    assert_eq!(set.class_names, ["cat", "dog", "emu"]);
    assert_eq!(marks(set.train().unwrap()), [(0, 2), (10, 0), (20, 2), (30, 1)]);
}

#[test]
fn wrong_parquet_columns_are_listed() {
    let with = |image: Option<&str>, label: Option<&str>| {
        let options = OpenOptions {
            image_column: image.map(Into::into),
            label_column: label.map(Into::into),
            ..OpenOptions::default()
        };
        data::open(fixture("parquet"), &options).unwrap_err().to_string()
    };
    let text = with(Some("photo"), None);
    assert!(text.contains("no image column `photo`") && text.contains("`id`, `image`, `label`"), "{text}");
    assert!(with(None, Some("species")).contains("no label column `species`; the columns are `id`, `image`, `label`"));
    let dir = TempDir::new().unwrap();
    write(dir.path().join("train.parquet"), b"PAR1 and then nothing");
    assert!(error(dir.path()).contains("not a readable Parquet file"));
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn webdataset_shards() {
    let dir = TempDir::new().unwrap();
    let long = format!("{}/0003", "folder".repeat(30)); // longer than a tar header holds
    let first = tar(&[
        ("0001.png", &png(1)),
        ("0001.cls", b"4\n"),
        ("0002.json", br#"{"label": 2, "caption": "x"}"#),
        ("0002.png", &png(2)),
        (&format!("{long}.jpg"), &png(3)),
        (&format!("{long}.cls"), b"0"),
    ]);
    write(dir.path().join("set-train-000.tar"), &first);
    write(
        dir.path().join("set-train-001.tar"),
        &tar(&[("0009.png", &png(9)), ("0009.cls", b"1"), ("0010.png", &png(10))]),
    );
    write(dir.path().join("set-val-000.tar"), &tar(&[("a.png", &png(7)), ("a.cls", b"3")]));
    let set = open(dir.path()).unwrap();
    assert_eq!((set.format, set.class_names.len()), (Format::WebDataset, 5));
    assert_eq!(marks(set.train().unwrap()), [(1, 4), (2, 2), (3, 0), (9, 1)]);
    assert_eq!(marks(set.val().unwrap()), [(7, 3)]);
    assert!(set.notes[0].contains("1 images without"));

    // Labels may be names; a single file can be opened too.
    let named = dir.path().join("named.tar");
    write(named.clone(), &tar(&[("a.png", &png(1)), ("a.cls", b"zebra"), ("b.png", &png(2)), ("b.cls", b"ant")]));
    let set = data::open(&named, &OpenOptions { val_fraction: 0.0, ..OpenOptions::default() }).unwrap();
    assert_eq!(
        (set.class_names.clone(), marks(set.train().unwrap())),
        (vec!["ant".to_string(), "zebra".into()], vec![(1, 1), (2, 0)])
    );
}

#[test]
fn broken_tar_files_are_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("x.tar");
    write(path.clone(), &tar(&[("a.png", &png(1)), ("b.png", &png(2))]));
    assert!(error(&path).contains("2 images but no labels"));
    write(path.clone(), &tar(&[("a.txt", b"hello")]));
    assert!(error(&path).contains("no .jpg"));
    let whole = tar(&[("a.cls", b"1"), ("a.png", &png(1))]);
    write(path.clone(), &whole[..1024 + 512 + 10]);
    assert!(error(&path).contains("cut off"), "{}", error(&path));
    write(path.clone(), &tar(&[("a.png", &png(1)), ("a.cls", b"-1")]));
    assert!(error(&path).contains("label -1"));
    write(path.clone(), &tar(&[("a.png", b"no image"), ("a.cls", b"0")]));
    let text = open(&path).unwrap().train().unwrap().get(0).unwrap_err().to_string();
    assert!(text.contains("x.tar, member `a.png`") && text.contains("6e 6f 20 69"), "{text}");
}

/// Real files, where they are at hand.
#[test]
fn imagenette_opens() {
    let shared =
        std::env::var("TWEEDIE_SHARED").unwrap_or(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").into());
    let path = Path::new(&shared).join("data/imagenette-96");
    if !path.exists() {
        return;
    }
    let set = open(&path).unwrap();
    assert_eq!((set.train().unwrap().len(), set.val().unwrap().len(), set.class_names.len()), (9469, 3925, 10));
    for i in [0, 5000, 9468] {
        let item = set.train().unwrap().get(i).unwrap();
        assert_eq!((item.image.width, item.image.height, item.image.channels), (96, 96, 3));
    }
}
