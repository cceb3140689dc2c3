//! Text: line by line and packed, from files, JSON lines and Parquet.

use super::*;

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
