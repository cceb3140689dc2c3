//! Folders, lists and texts.

use super::*;

#[test]
#[cfg(unix)]
fn folders_with_links_pipes_and_strange_names() {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("set");
    for class in 0..12 {
        let class = root.join(format!("class{class:02}"));
        write(class.join("a.png"), &png(1));
        // Into itself, to the root and to every other class: a traversal that follows them all sees millions of folders.
        symlink(&class, class.join("self")).unwrap();
        symlink(&root, class.join("root")).unwrap();
        (0..12).for_each(|n| symlink(root.join(format!("class{n:02}")), class.join(format!("to{n}"))).unwrap());
    }
    symlink("loop", root.join("loop")).unwrap();
    let set = soon("links", || data::open(&root, &plain())).unwrap();
    assert_eq!((set.class_names.len(), set.train.unwrap().len()), (12, 144));
    soon("links", || open_texts(&root)).unwrap_err();

    // A pipe that nobody writes to would be waited for, for ever.
    let pipe = root.join("class00/pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let errors = soon("a pipe", || read_images(&root));
    assert!(errors.iter().all(|e| e.is_corrupt()), "{errors:?}");
    assert!(first(errors).contains("not a regular file"));
    assert!(data::open(&pipe, &plain()).unwrap_err().to_string().contains("a pipe, a socket or a device"));
    assert!(open_texts(&pipe).unwrap_err().to_string().contains("a pipe, a socket or a device"));
    for name in ["train.parquet", "train.tar", "captions.json", "a.jsonl", "a.txt", "a.txt.gz"] {
        let folder = TempDir::new().unwrap();
        let pipe = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(!soon(name, || read_images(folder.path())).is_empty());
        assert!(!soon(name, || read_texts(folder.path())).is_empty());
        assert!(!soon(name, || read_texts(&pipe)).is_empty());
    }

    let other = dir.path().join("other");
    write(other.join("cat").join(std::ffi::OsStr::from_bytes(b"\xff\xfe.png")), &png(1));
    assert!(read_images(&other).is_empty()); // an image may have any name
    write(other.join(std::ffi::OsStr::from_bytes(b"d\xffg")).join("a.png"), &png(1));
    assert!(first(read_images(&other)).contains("not UTF-8 text"));

    let deep = dir.path().join("deep");
    write(deep.join("cat/a.png"), &png(1));
    write(deep.join(format!("cat/{}b.png", "d/".repeat(300))), &png(1));
    assert_eq!(soon("depth", || data::open(&deep, &plain())).unwrap().train.unwrap().len(), 1);
}

#[test]
fn accents_are_one_however_they_are_written() {
    let (composed, apart) = ("caf\u{e9}", "cafe\u{301}");
    let dir = TempDir::new().unwrap();
    // A path that is typed is composed; macOS keeps names apart. Class lists and captions may have either.
    let root = dir.path().join(apart);
    write(root.join(apart).join("a.png"), &png(1));
    write(root.join("zebra/a.png"), &png(2));
    let list = dir.path().join("classes.txt");
    fs::write(&list, format!("zebra\n{composed}\n")).unwrap();
    let options = OpenOptions { classes: Some(list), ..plain() };
    let set = data::open(dir.path().join(composed), &options).unwrap();
    assert_eq!(set.class_names, ["zebra", composed]);
    assert_eq!(set.train.unwrap().label(0), 1);

    let captions = dir.path().join(format!("captions-{apart}"));
    write(captions.join(format!("images/{apart}.png")), &png(1));
    let json = format!(
        r#"{{"images": [{{"id": 1, "file_name": "{composed}.png"}}], "annotations": [{{"image_id": 1, "caption": "c"}}]}}"#
    );
    write(captions.join("captions_train.json"), json.as_bytes());
    let errors = read_texts(&dir.path().join(format!("captions-{composed}")));
    assert!(errors.is_empty(), "{errors:?}");
}

#[test]
fn captions_name_no_files_elsewhere() {
    let dir = TempDir::new().unwrap();
    let root = dir.path().join("set");
    write(dir.path().join("secret.png"), &png(1));
    write(root.join("images/a.png"), &png(1));
    let json = |images: &str, annotations: &str| {
        let text = format!(r#"{{"images": [{images}], "annotations": [{annotations}]}}"#);
        write(root.join("captions_train.json"), text.as_bytes());
        soon("captions", || read_texts(&root))
    };
    let good = r#"{"id": 1, "file_name": "a.png"}"#;
    assert!(json(good, r#"{"image_id": 1, "caption": "c"}"#).is_empty());
    let absolute = dir.path().join("secret.png").display().to_string();
    for name in ["../../secret.png", "x/../../../secret.png", &absolute] {
        let bad = format!(r#"{{"id": 2, "file_name": {name:?}}}"#);
        let errors = json(&format!("{good}, {bad}"), "");
        assert!(errors.len() == 1 && errors[0].is_corrupt(), "{errors:?}");
        assert!(first(errors).contains("leads out of the folder of images"));
        assert!(first(json(&bad, "")).contains("leads out of the folder of images"));
    }
    // Numbers of every kind, the same one twice, and names with zeros.
    let ids = ["-5", "9007199254740993", "18446744073709551615", "7.0", "1e300", r#""seven""#];
    for id in ids {
        let image = format!(r#"{{"id": {id}, "file_name": "a.png"}}"#);
        let errors = json(&image, &format!(r#"{{"image_id": {id}, "caption": "c"}}"#));
        assert!(errors.is_empty(), "{id}: {errors:?}");
    }
    json(r#"{"id": 7, "file_name": "a.png"}"#, r#"{"image_id": 7.0, "caption": "float"}"#);
    assert_eq!(open_texts(&root).unwrap().train.unwrap().texts(0).unwrap(), ["float"]);
    json(&format!("{good}, {good}"), r#"{"image_id": 1, "caption": "c"}"#);
    let set = open_texts(&root).unwrap();
    assert!(set.train.unwrap().len() == 1 && set.notes[0].contains("with the id of another"), "{:?}", set.notes);
    let errors = json(&format!(r#"{good}, {{"id": 3, "file_name": "a\u0000.png"}}"#), "");
    assert!(errors.len() == 1 && errors[0].is_corrupt(), "{errors:?}");
    for bad in [format!("{}1", "[".repeat(1_000_000)), r#"{"id": 1e999, "file_name": "a"}"#.into(), "{".into()] {
        assert!(first(json(&bad, "")).contains("not COCO captions"));
    }
    let karpathy = r#"{"images": [{"filepath": "..", "filename": "secret.png", "split": "train", "sentences": []}]}"#;
    fs::remove_file(root.join("captions_train.json")).unwrap();
    write(root.join("dataset_x.json"), karpathy.as_bytes());
    assert!(first(read_texts(&root)).contains("leads out of the folder of images"));
}

#[test]
fn text_of_any_bytes_is_text_or_bad_rows() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("train.txt");
    let mut random = Random(5);
    let rubbish: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    fs::write(&path, &rubbish).unwrap();
    let errors = soon("rubbish", || read_texts(&path));
    assert!(!errors.is_empty() && errors.iter().all(|e| e.is_corrupt()));
    // A line of many megabytes is read as far as it can matter.
    fs::write(&path, [vec![b'a'; 64 << 20], b"\nnext\n".to_vec()].concat()).unwrap();
    let train = soon("a long line", || open_texts(&path)).unwrap().train.unwrap();
    assert_eq!(
        (train.len(), train.texts(0).unwrap()[0].len(), train.texts(1).unwrap()),
        (2, 1 << 20, vec!["next".into()])
    );
    // Many of them, blank ones and short ones between: each is found without the others being read.
    let lines = |i: usize| format!("{i} {}\n{}", "x".repeat([5, 2 << 20, 0][i % 3]), "\n".repeat(i % 7));
    fs::write(&path, (0..120).map(lines).collect::<String>()).unwrap();
    let train = open_texts(&path).unwrap().train.unwrap();
    let begins = |i: usize| train.texts(i).unwrap()[0].starts_with(&format!("{i} "));
    assert!(train.len() == 120 && soon("long lines", || (0..120).all(begins)));
    fs::write(&path, b"a\0b\n\0\n").unwrap();
    assert_eq!(open_texts(&path).unwrap().train.unwrap().texts(0).unwrap(), ["a\0b"]);

    let path = dir.path().join("lines.jsonl");
    let nested = format!("{}1", r#"{"text":"#.repeat(50_000));
    let long = format!(r#"{{"text": "{}"}}"#, "x".repeat(3 << 20));
    let fields: Vec<String> = (0..5_000).map(|i| format!(r#""field{i}": 0"#)).collect();
    let many = format!("{{{}}}", fields.join(","));
    let good = r#"{"text": "good"}"#;
    fs::write(&path, [good, &nested, &long, &many, "\0", "[]", "1e999", good].join("\n")).unwrap();
    let errors = soon("JSON lines", || read_texts(&path));
    assert!(errors.len() == 6 && errors.iter().all(|e| e.is_corrupt()), "{errors:?}");
    assert!(errors[1].to_string().contains("more than 1048576 bytes"), "{}", errors[1]);
    assert!(errors[2].to_string().len() < 2_000 && errors[2].to_string().contains("4950 more"), "{}", errors[2]);
}
