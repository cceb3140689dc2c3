//! `tokenizer` and `data inspect` for captions and text, as a user meets them.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn tweedie(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_tweedie")).args(args).output().unwrap();
    let [stdout, stderr] = [out.stdout, out.stderr].map(|b| String::from_utf8(b).unwrap());
    assert!(!stderr.contains("panicked"), "{stderr}");
    (out.status.code().unwrap(), stdout, stderr)
}

fn json(args: &[&str]) -> Value {
    let (code, out, err) = tweedie(args);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

fn captions(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tweedie/tests/fixtures/captions");
    folder.join(name).display().to_string()
}

#[test]
fn a_tokenizer_is_trained_and_shown() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tok.json").display().to_string();
    let v = json(&["tokenizer", "train", &captions("list"), "--vocab", "50", "--out", &file, "--json"]);
    assert_eq!((&v["pad"], &v["eos"]), (&Value::from(0), &Value::from(1)));
    let v = json(&["tokenizer", "show", &file, "A CAT, a dog", "--json"]);
    assert_eq!(v["cut"]["tokens"], serde_json::json!(["a", "cat", "a", "<unk>"]));
    let (code, out, _) = tweedie(&["tokenizer", "show", &file, "a cat"]);
    assert!(code == 0 && out.contains("`cat`") && out.contains("decoded: a cat"), "{out}");

    let (before, other) = (std::fs::read(&file).unwrap(), format!("{file}.other"));
    for (args, words) in [
        (&["tokenizer", "train", "nowhere", "--out", &other][..], "nowhere: no such file"),
        (&["tokenizer", "train", &captions("list"), "--out", &file], "is there already"),
        (&["tokenizer", "train", &captions("list"), "--kind", "letters"], "chars, word, space, bpe, wordpiece"),
        (&["tokenizer", "train", &captions("list"), "--kind", "bpe", "--vocab", "9"], "too small"),
        (&["tokenizer", "train", &captions("enriched"), "--out", &other], "no captions or text"),
        (&["tokenizer", "show", "nowhere.json"], "nowhere.json"),
    ] {
        let (code, _, err) = tweedie(args);
        assert!(code == 1 && err.contains(words), "{args:?}: {err}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), before, "what was there is as it was");
    json(&["tokenizer", "train", &captions("list"), "--vocab", "8", "--out", &file, "--force", "--json"]);
    assert!(std::fs::read(&file).unwrap() != before);
}

#[test]
fn captions_are_inspected_with_their_bad_rows() {
    let v = json(&["data", "inspect", &captions("list"), "--all", "--tokens", "4", "--json"]);
    assert_eq!((&v["task"], &v["format"]), (&Value::from("caption"), &Value::from("Parquet")));
    let bad: Vec<&str> = v["splits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|s| s["bad_rows"].as_array().unwrap())
        .map(|b| b.as_str().unwrap())
        .collect();
    assert_eq!(bad.len(), 3, "{bad:?}");
    for row in ["row 2", "row 3", "row 4"] {
        assert!(bad.iter().any(|b| b.contains(row)), "{row}: {bad:?}");
    }
    assert_eq!(v["splits"][0]["over_long"], 1.0); // "a cat number I J" has five tokens
    let long = |v: &Value| -> usize {
        v["splits"].as_array().unwrap().iter().map(|s| s["over_long_rows"].as_array().unwrap().len()).sum()
    };
    assert_eq!(long(&v), 5, "{v}"); // all but the row without a caption
    let (_, out, _) = tweedie(&["data", "inspect", &captions("list"), "--all", "--tokens", "4"]);
    assert!(
        out.contains("over-long: ") && out.contains("parquet, row 5") && out.contains(": 5 tokens where 4 fit"),
        "{out}"
    );
    assert_eq!(long(&json(&["data", "inspect", &captions("list"), "--all", "--tokens", "5", "--json"])), 0);
    // Labels come first unless captions are asked for.
    let v = json(&["data", "inspect", &captions("enriched"), "--json"]);
    assert_eq!(v["classes"].as_array().unwrap().len(), 6);
    let (code, out, _) = tweedie(&["data", "inspect", &captions("enriched"), "--task", "caption"]);
    assert!(code == 0 && out.contains("captions; evaluation") && out.contains("a|cat|number"), "{out}");
    let (code, _, err) = tweedie(&["data", "inspect", &captions("list"), "--caption-column", "words"]);
    assert!(code == 1 && err.contains("the columns are `image`, `captions`"), "{err}");
}

#[test]
fn text_is_inspected_packed_and_by_lines() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x.train.txt"), "ab ab\n\nabc\n".repeat(50)).unwrap();
    fs::write(dir.path().join("x.valid.txt"), "ab abc\n").unwrap();
    fs::write(dir.path().join("x.test.txt"), b"ab ab ab\na\xff\n").unwrap();
    let path = dir.path().display().to_string();
    let v = json(&["data", "inspect", &path, "--layout", "packed", "--tokens", "8", "--json"]);
    assert_eq!((&v["task"], &v["layout"], &v["classes"]), (&"text".into(), &"packed".into(), &Value::from(3 + 5)));
    assert_eq!(v["splits"][0]["sequences"], 50 * 11 / 8);
    let bad = v["splits"][2]["bad_rows"][0].as_str().unwrap();
    assert!(bad.ends_with("x.test.txt, line 2: not UTF-8 text"), "{bad}");
    let v = json(&["data", "inspect", &path, "--tokenizer", "space:9", "--tokens", "8", "--json"]);
    assert_eq!((&v["splits"][0]["sequences"], &v["splits"][0]["tokens_longest"]), (&Value::from(100), &Value::from(2)));
    assert_eq!(v["examples"][0]["tokens"], serde_json::json!(["ab", "ab", "<eos>"]));
    let (code, _, err) = tweedie(&["data", "inspect", &path, "--tokenizer", "word:many"]);
    assert!(code == 1 && err.contains("'many'"), "{err}");
}

/// Whatever the mark is called: three of four tokens are not in the vocabulary.
#[test]
fn unknown_tokens_are_counted_for_every_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::write(at("words.txt"), "a dog sees zebras\n".repeat(400)).unwrap();
    fs::write(at("letters.txt"), "abcd".repeat(2000)).unwrap();
    fs::write(at("chars.json"), r#"{"type":"tweedie-chars","symbols":["<","a"]}"#).unwrap();
    let bert = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"[PAD]":0,"[SEP]":1,"[UNK]":2,"a":3},"unk_token":"[UNK]"}}"#;
    fs::write(at("bert.json"), bert).unwrap();
    fs::write(at("word.json"), bert.replace("[UNK]", "<unk>")).unwrap();
    for (text, tokenizer) in [("letters", "chars"), ("words", "bert"), ("words", "word")] {
        let (path, file) = (at(&format!("{text}.txt")), at(&format!("{tokenizer}.json")));
        let v =
            json(&["data", "inspect", &path, "--tokenizer", &file, "--layout", "packed", "--tokens", "8", "--json"]);
        for split in v["splits"].as_array().unwrap() {
            let unknown = split["unknown"].as_f64().unwrap();
            assert!((unknown - 0.75).abs() < 0.03, "{tokenizer}: {unknown}");
        }
    }
}
