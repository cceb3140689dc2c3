//! Readers of tokenizers, settings, weights, scores and runs.

use super::*;

pub(super) fn trained(kind: Kind) -> String {
    let texts = ["the cat sat on the mat", "a dog and a cat", "caf\u{e9} & co."];
    Tokenizer::train(kind, if kind == Kind::Bpe { 300 } else { 60 }, texts).map(|t| t.to_json()).unwrap_or_default()
}

pub(super) fn tokenizers() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        [Kind::Word, Kind::Chars, Kind::Bpe, Kind::WordPiece].map(|k| trained(k).into_bytes()).into();
    all.extend([fixture("clip/quick/tokenizer.json"), seed("unigram.json"), seed("split-bpe.json")]);
    all
}

pub(super) fn tokenizer(_: &Scratch, bytes: &[u8]) -> bool {
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

pub(super) fn templates() -> Vec<Vec<u8>> {
    ["the ___ sat", "__ cat _", "a dog and a cat", ""].map(|t| t.as_bytes().to_vec()).into()
}

pub(super) fn fill(_: &Scratch, bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let mut any = false;
    for kind in [Kind::Word, Kind::Chars] {
        let Ok(tokenizer) = Tokenizer::from_json(&trained(kind)) else { return false };
        any |= infill(&tokenizer, 16, &text).is_ok() | prompt(&tokenizer, 16, &text).is_ok();
    }
    any
}

pub(super) fn recipes() -> Vec<Vec<u8>> {
    let recipe = |name: &str| fs::read(root("configs").join(format!("{name}.toml"))).unwrap_or_default();
    ["digits", "shapes", "cifar10", "coco-96", "ptb-chars"].map(recipe).into()
}

pub(super) fn settings(scratch: &Scratch, bytes: &[u8]) -> bool {
    let path = scratch.file("recipe/recipe.toml", bytes);
    let read = recipe::resolve(&path.to_string_lossy(), &[], &[]).is_ok();
    if let Ok(text) = std::str::from_utf8(bytes) {
        let sets: Vec<String> = text.lines().take(8).map(str::to_string).collect();
        let _ = recipe::resolve("digits", &sets, &[]);
    }
    read
}

pub(super) fn safetensor_files() -> Vec<Vec<u8>> {
    let tiny = tensors::NamedTensor::new("w", &[2, 3], vec![1.0; 6]);
    let two = [tiny, tensors::NamedTensor::new("b", &[0], vec![])];
    let made = Scratch::new().and_then(|s| {
        let path = s.path("seed.safetensors");
        let _ = tensors::write(&path, &two);
        fs::read(path)
    });
    vec![made.unwrap_or_default(), fixture("clip/gelu/model-00004-of-00004.safetensors")]
}

pub(super) fn safetensors(scratch: &Scratch, bytes: &[u8]) -> bool {
    tensors::read(&scratch.file("tensors/model.safetensors", bytes)).is_ok()
}

pub(super) fn score_files() -> Vec<Vec<u8>> {
    let mut all = coco_files();
    all.truncate(1); // Karpathy's are data, not references
    all.push(br#"[{"image_id": 7, "caption": "a cat"}, {"image_id": 8, "caption": "dogs"}]"#.to_vec());
    all.push(b"{\"image_id\": 7, \"caption\": \"a cat\"}\n{\"image_id\": \"8\", \"caption\": \"dogs\"}\n".to_vec());
    all.push(br#"{"7": ["a cat", "one cat"], "8": ["two dogs"]}"#.to_vec());
    all
}

pub(super) fn score(scratch: &Scratch, bytes: &[u8]) -> bool {
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

pub(super) const CLIP: [&str; 3] = ["config.json", "preprocessor_config.json", "tokenizer.json"];
pub(super) const CLIP_WORDS: [&str; 5] =
    ["config.json", "preprocessor_config.json", "vocab.json", "merges.txt", "model.safetensors.index.json"];

pub(super) fn chosen(first: u8, content: Vec<u8>) -> Vec<u8> {
    [vec![first], content].concat()
}

pub(super) fn clip_files() -> Vec<Vec<u8>> {
    let whole = CLIP.iter().enumerate().map(|(i, n)| chosen(i as u8, fixture(&format!("clip/quick/{n}"))));
    let parts = CLIP_WORDS.iter().enumerate().map(|(i, n)| chosen(0x80 | i as u8, fixture(&format!("clip/gelu/{n}"))));
    whole.chain(parts).collect()
}

pub(super) fn clip(scratch: &Scratch, bytes: &[u8]) -> bool {
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

pub(super) const RUN: [&str; 4] = ["config.toml", "env.json", "metrics.jsonl", "checkpoints/best"];
pub(super) const CHECKPOINT: [&str; 4] =
    ["state.json", "model.safetensors", "ema.safetensors", "optimizer.safetensors"];

/// The files of a committed run: (name in it, bytes).
pub(super) fn files_of(run: &str) -> Vec<(String, Vec<u8>)> {
    let folder = root("crates/cli/tests/fixtures/runs").join(run).join("run");
    let step = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().flatten();
    let step = step.map(|e| e.file_name().to_string_lossy().into_owned()).find(|n| n.starts_with("step-"));
    let inner = |name: &str| format!("checkpoints/{}/{name}", step.as_deref().unwrap_or_default());
    let names = RUN.iter().map(|n| n.to_string()).chain(CHECKPOINT.map(inner)).chain(["tokenizer.json".into()]);
    names.filter_map(|n| fs::read(folder.join(&n)).ok().map(|bytes| (n, bytes))).collect()
}

pub(super) fn seeds_of(run: &str) -> Vec<Vec<u8>> {
    files_of(run).into_iter().enumerate().map(|(i, (_, bytes))| chosen(i as u8, bytes)).collect()
}

pub(super) fn class_run() -> Vec<Vec<u8>> {
    seeds_of("digits")
}

pub(super) fn text_run() -> Vec<Vec<u8>> {
    seeds_of("lines")
}

/// Write the run with one file of it spoilt. Its checksums are made right, unless the first byte says not to.
pub(super) fn write_run(scratch: &Scratch, run: &str, bytes: &[u8]) -> Option<std::path::PathBuf> {
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
pub(super) fn is_long(loaded: &run::Loaded) -> bool {
    let sample = &loaded.config.sample;
    [loaded.config.sizes().tokens, sample.steps, sample.candidates, sample.votes].iter().any(|n| *n > LONG)
}

pub(super) fn run_classes(scratch: &Scratch, bytes: &[u8]) -> bool {
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

pub(super) fn run_texts(scratch: &Scratch, bytes: &[u8]) -> bool {
    let Some(path) = write_run(scratch, "lines", bytes) else { return false };
    let Ok(loaded) = run::load(&path, Weights::Ema, &Device::Cpu, Precision::Auto) else { return false };
    if is_long(&loaded) {
        return true;
    }
    let Ok(generator) = Generator::open(&path) else { return false };
    generator.texts(1).is_ok()
}
