use super::*;
use proptest::prelude::*;

const TEXTS: [&str; 6] = [
    "A man's riding a wave on top of a surfboard.",
    "a man rides a surfboard, on a wave!",
    "Two dogs play in the snow; the dogs play.",
    "the cat sits on the t-shirt of a man",
    "A cat\u{e9} t-shirt \u{2014} na\u{ef}ve dogs",
    "the man sees the cat in the snow",
];

fn trained(kind: Kind, vocab: usize) -> Tokenizer {
    Tokenizer::train(kind, vocab, TEXTS).unwrap()
}

const ALL: [(Kind, usize); 5] =
    [(Kind::Chars, 99), (Kind::Word, 40), (Kind::Space, 40), (Kind::Bpe, 300), (Kind::WordPiece, 120)];

#[test]
fn words_of_captions_are_lower_case_without_punctuation() {
    let t = trained(Kind::Word, 40);
    let show = |text: &str| t.encode(text).into_iter().map(|id| t.token(id)).collect::<Vec<_>>().join("|");
    assert_eq!(show("The MAN, on a T-shirt!"), "the|man|on|a|t-shirt");
    // `'s` and `rides` occur once: unknown.
    assert_eq!(show("man's dogs' rides"), "man|<unk>|dogs|<unk>");
    assert_eq!(t.decode(&t.encode("A cat: the dogs.")), "a cat the dogs");
    // The most frequent first, ties in alphabetical order: a and the occur 6 times, man 4 times.
    assert_eq!((0..6).map(|i| t.token(i)).collect::<Vec<_>>(), [PAD, EOS, UNK, "a", "the", "man"]);
}

#[test]
fn a_vocabulary_is_cut_to_its_size_by_count() {
    let t = trained(Kind::Word, 5);
    assert_eq!((t.vocab(), t.encode("the a man")), (5, vec![4, 3, 2]));
    assert!(Tokenizer::train(Kind::Word, 3, TEXTS).unwrap_err().to_string().contains("too small"));
    assert!(Tokenizer::train(Kind::Bpe, 200, TEXTS).unwrap_err().to_string().contains("258"));
    assert!(Tokenizer::train(Kind::Word, 9, [""; 0]).unwrap_err().to_string().contains("no text"));
}

/// Trained twice, with the texts in another order, in several threads: the same file to the byte.
#[test]
fn training_depends_on_the_texts_alone() {
    for (kind, vocab) in ALL {
        let backwards: Vec<&str> = TEXTS.iter().rev().copied().collect();
        let a = trained(kind, vocab).to_json();
        for _ in 0..3 {
            assert_eq!(a, Tokenizer::train(kind, vocab, &backwards).unwrap().to_json(), "{kind}");
        }
    }
}

#[test]
fn a_file_is_read_back_to_the_same_tokenizer() {
    for (kind, vocab) in ALL {
        let t = trained(kind, vocab);
        let back = Tokenizer::from_json(&t.to_json()).unwrap();
        assert_eq!((t.vocab(), t.pad(), t.eos()), (back.vocab(), back.pad(), back.eos()), "{kind}");
        assert_eq!((t.pad(), t.eos(), t.keeps_lines()), (0, 1, kind == Kind::Bpe), "{kind}");
        assert!(t.vocab() <= vocab, "{kind}: {}", t.vocab());
        for text in TEXTS {
            assert_eq!(t.encode(text), back.encode(text), "{kind}");
        }
        assert_eq!(t.to_json(), back.to_json());
    }
}

#[test]
fn marks_end_a_text_and_are_not_read_from_it() {
    for (kind, vocab) in ALL {
        let t = trained(kind, vocab);
        let ids = [t.encode("a man"), vec![t.eos(), t.pad()], t.encode("the cat")].concat();
        assert_eq!(t.decode(&ids), "a man", "{kind}");
        assert_eq!(t.decode_packed(&ids), "a man\nthe cat", "{kind}");
        assert_eq!(t.token(t.eos()), EOS);
        if kind != Kind::Space {
            assert!(!t.encode("a <eos> <pad>").contains(&t.eos()), "{kind}");
        }
        assert_eq!(t.token(t.vocab() as u32 + 7), format!("<{}>", t.vocab() + 7));
    }
}

#[test]
fn a_tokenizer_without_marks_gets_them_at_the_end() {
    let json = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"a":0,"b":1,"?":2},"unk_token":"?"}}"#;
    let t = Tokenizer::from_json(json).unwrap();
    assert_eq!((t.vocab(), t.pad(), t.eos(), t.encode("b c a")), (5, 3, 4, vec![1, 2, 0]));
    assert!(t.notes()[0].contains("<pad> (3) and <eos> (4) were added to its 3 tokens"), "{:?}", t.notes());
    let back = Tokenizer::from_json(&t.to_json()).unwrap();
    assert_eq!((back.vocab(), back.pad(), back.eos(), back.notes().len()), (5, 3, 4, 0));
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tok.json");
    assert!(Tokenizer::from_file(&path).unwrap_err().to_string().contains("tok.json"));
    for (text, words) in [
        ("{", "not JSON"),
        ("{}", "not a tokenizer.json"),
        (r#"{"type":"tweedie-chars","symbols":["a","a"]}"#, "twice"),
        (r#"{"type":"tweedie-chars","symbols":["ab"]}"#, "not a list of characters"),
    ] {
        std::fs::write(&path, text).unwrap();
        let e = Tokenizer::from_file(&path).unwrap_err().to_string();
        assert!(e.contains("tok.json") && e.contains(words), "{e}");
    }
}

#[test]
fn settings_name_a_kind_or_a_file() {
    let spec = |s: &str| s.parse::<TokenizerSpec>();
    assert_eq!(spec("word:5000").unwrap(), TokenizerSpec::Train(Kind::Word, 5000));
    assert_eq!(spec("bpe").unwrap(), TokenizerSpec::Train(Kind::Bpe, 8000));
    assert_eq!(spec("a/tokenizer.json").unwrap(), TokenizerSpec::File("a/tokenizer.json".into()));
    assert!(spec("word:many").unwrap_err().to_string().contains("'many'"));
    assert!(spec("words").unwrap_err().to_string().contains("chars, word, space, bpe, wordpiece"));
    assert!(spec("").is_err());
}

/// Against Hugging Face's Python package: `tokenizers.Tokenizer.from_file(F).encode(TEXT, add_special_tokens=False).ids`,
/// version 0.23, on the published files of bert-base-uncased and gpt2. Skipped where they are not at hand.
#[test]
fn published_files_encode_as_in_python() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tokenizers");
    let golden: serde_json::Value = serde_json::from_str(include_str!("../../tests/fixtures/tokens.json")).unwrap();
    for name in ["bert-uncased", "gpt2"] {
        let Ok(t) = Tokenizer::from_file(folder.join(format!("{name}.json"))) else { continue };
        let marks = if name == "gpt2" { (50257, 50256, 50256) } else { (30522, 0, 102) };
        assert_eq!((t.vocab(), t.pad(), t.eos()), marks);
        let cases = golden[name].as_array().unwrap();
        assert!(cases.len() > 10);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
            assert_eq!(t.encode(text), ids, "{name}: {text:?}");
            assert_eq!(t.decode(&ids), case["decoded"].as_str().unwrap(), "{name}: {text:?}");
        }
        let back = Tokenizer::from_json(&t.to_json()).unwrap();
        assert_eq!(back.encode("A surfer, naïvely."), t.encode("A surfer, naïvely."));
    }
}

proptest! {
    /// Bytes and known characters lose nothing.
    #[test]
    fn bytes_and_characters_round_trip(text in "\\PC{0,40}", known in "[ a-zA-Z.,;!'-]{0,40}") {
        let bpe = trained(Kind::Bpe, 300);
        prop_assert_eq!(bpe.decode(&bpe.encode(&text)), text);
        let chars = Tokenizer::train(Kind::Chars, 99, [" .,;!'-", "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]).unwrap();
        prop_assert_eq!(chars.decode(&chars.encode(&known)), known);
    }

    /// Any text gives classes below the vocabulary; known words come back as they were.
    #[test]
    fn classes_stay_below_the_vocabulary(text in "\\PC{0,60}", words in proptest::collection::vec("(a|the|man|cat|dogs)", 1..9)) {
        for (kind, vocab) in ALL {
            let t = trained(kind, vocab);
            prop_assert!(t.encode(&text).iter().all(|&id| (id as usize) < t.vocab()));
        }
        let text = words.join(" ");
        for kind in [Kind::Word, Kind::Space] {
            let t = trained(kind, 40);
            prop_assert_eq!(&t.decode(&t.encode(&text)), &text);
        }
    }
}

/// A tokenizer.json with some parts of its own.
fn foreign(changes: &[(&str, serde_json::Value)]) -> crate::Result<Tokenizer> {
    let mut json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
    });
    changes.iter().for_each(|(part, value)| json[*part] = value.clone());
    Tokenizer::from_json(&json.to_string())
}

#[test]
fn files_of_others_are_refused_with_the_reason() {
    use serde_json::json;
    let replace = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaa"});
    let mut deep = json!({"type": "NFC"});
    (0..20).for_each(|_| deep = json!({"type": "Sequence", "normalizers": [deep]}));
    let drops = json!({"type": "Replace", "pattern": {"Regex": "(?s:.)"}, "content": ""});
    let words = |vocab| json!({"type": "WordLevel", "vocab": vocab, "unk_token": "?"});
    let bpe = |merges| json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "##": 2}, "merges": merges, "continuing_subword_prefix": "######"});
    for (part, value, why) in [
        ("normalizer", json!({"type": "Sequence", "normalizers": vec![replace; 30]}), "times as long"),
        ("normalizer", deep, "inside each other"),
        ("normalizer", drops, "none of its own tokens"),
        ("normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "////////////"}), "claims more"),
        ("model", words(json!({"?": 0, "a": 4_294_967_295_u32})), "the number of token \"a\" is 4294967295"),
        ("model", words(json!({"?": 0, "a": -1})), "the number of token \"a\" is -1"),
        ("model", words(json!({"?": 0, "a": 1_000_000})), "numbers up to 1000000"),
        ("model", words(json!({"?": 0, "a": 1, "b": 1})), "\"a\" and \"b\" both have the number 1"),
        ("model", words(json!({})), "empty"),
        ("model", bpe(json!([["a", "b"]])), "not a tokenizer.json"), // a panic of its crate
    ] {
        let e = foreign(&[(part, value)]).err().unwrap_or_else(|| panic!("{why}")).to_string();
        assert!(e.contains(why), "'{why}' is not in: {e}");
    }
}

#[test]
fn what_files_of_others_leave_out_is_told() {
    use serde_json::json;
    let bpe = |dropout| json!({"type": "BPE", "dropout": dropout, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]});
    let t = foreign(&[("model", bpe(json!(0.5)))]).unwrap();
    let told = |t: &Tokenizer, what: &str| t.notes().iter().any(|n| n.contains(what));
    assert!(told(&t, "model.dropout = 0.5") && told(&t, "are left out of texts"), "{:?}", t.notes());
    assert!((0..50).all(|_| t.encode("ababab") == [2, 2, 2]) && t.encode("xyz").is_empty());
    // No mark for unknown words: such a text is an error, and empty for who does not ask.
    let t = foreign(&[("model", json!({"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "?"}))]).unwrap();
    assert!(told(&t, "as if they were empty"), "{:?}", t.notes());
    assert!(t.encode("a zebra").is_empty() && t.try_encode("a b").unwrap() == [0, 1]);
    assert!(t.try_encode("a zebra").unwrap_err().to_string().contains("'a zebra' cannot be encoded"));
    // Lengths are the caller's.
    let t = foreign(&[(
        "truncation",
        json!({"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}),
    )]);
    assert_eq!(t.unwrap().encode("a b a"), [0, 1, 0]);
}

#[test]
fn vocabularies_without_room_or_text_are_refused() {
    for (kind, _) in ALL {
        let e = Tokenizer::train(kind, 0, TEXTS).unwrap_err().to_string();
        assert!(e.contains("a vocabulary of 0 is too small"), "{kind}: {e}");
        let e = Tokenizer::train(kind, 300, ["", ""]).unwrap_err().to_string();
        assert!(e.contains("no text"), "{kind}: {e}");
        let t = Tokenizer::train(kind, usize::MAX, TEXTS).unwrap(); // no room is reserved for what cannot come
        assert!(t.vocab() < 2000, "{kind}: {}", t.vocab());
    }
    let e = Tokenizer::from_json(r#"{"type":"tweedie-chars","symbols":[]}"#).unwrap_err().to_string();
    assert!(e.contains("empty"), "{e}");
}
