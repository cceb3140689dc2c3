//! Vocabularies learnt from texts. Words are counted in one streaming pass; what comes out depends on the counts alone,
//! never on threads or hash seeds.

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;
use tokenizers::decoders::wordpiece::WordPiece as WordPieceDecoder;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::{
    AddedToken, ModelWrapper, Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior, normalizers,
};

use super::chars::Chars;
use super::{EOS, Kind, PAD, Tokenizer, UNK};
use crate::error::{Error, Result};

/// A word occurs at least so often, or it is unknown: a network learns nothing from a single sight.
const WORD_MIN_COUNT: u64 = 2;
/// Letters that may begin a WordPiece vocabulary; rarer ones are unknown.
const WORDPIECE_ALPHABET: usize = 1000;
/// Texts that threads split at a time.
const BLOCK: usize = 8192;

type Failed = tokenizers::Error;

fn wrong(e: Failed) -> Error {
    Error::Input(format!("the tokenizer cannot be trained: {e}"))
}

pub fn train<I, S>(kind: Kind, vocab: usize, texts: I) -> Result<Tokenizer>
where
    I: Iterator<Item = S>,
    S: AsRef<str> + Send + Sync,
{
    if kind == Kind::Chars {
        return train_chars(vocab, texts);
    }
    let (normalizer, splitter) = pipeline(kind).map_err(wrong)?;
    let counts = count(texts, &normalizer, &splitter).map_err(wrong)?;
    if counts.is_empty() {
        return Err(Error::Input("there is no text to train a tokenizer from".into()));
    }
    // Each joining of two pieces makes one token and one piece less: there cannot be more, and room is reserved for as many.
    let pieces: usize = counts.keys().map(|w| 2 * w.len()).sum();
    let vocab = vocab.min(pieces.saturating_add(WORDPIECE_ALPHABET));
    // By falling count, then by word: the one order that everything below is built in.
    let mut words: Vec<(String, u64)> = counts.into_iter().collect();
    words.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let (model, marks): (ModelWrapper, &[&str]) = match kind {
        Kind::Bpe => (train_bpe(vocab, &words)?.into(), &[PAD, EOS]),
        Kind::WordPiece => (train_wordpiece(vocab, &words)?.into(), &[PAD, EOS, UNK]),
        Kind::Word | Kind::Space | Kind::Chars => (train_words(vocab, &words)?.into(), &[PAD, EOS, UNK]),
    };
    let mut t = tokenizers::Tokenizer::new(model);
    t.with_normalizer(normalizer).with_pre_tokenizer(Some(splitter));
    match kind {
        Kind::Bpe => drop(t.with_decoder(Some(ByteLevel::default()))),
        Kind::WordPiece => drop(t.with_decoder(Some(WordPieceDecoder::default()))),
        _ => {}
    }
    // <unk> stays an ordinary token: text that was tokenised before contains it.
    let special: Vec<AddedToken> =
        marks.iter().filter(|m| **m != UNK).map(|m| AddedToken::from(m.to_string(), true)).collect();
    t.add_special_tokens(&special);
    Tokenizer::of_hub(t, Vec::new())
}

fn train_chars<I, S>(vocab: usize, texts: I) -> Result<Tokenizer>
where
    I: Iterator<Item = S>,
    S: AsRef<str>,
{
    let mut counts: HashMap<char, u64> = HashMap::new();
    texts.for_each(|text| text.as_ref().chars().for_each(|c| *counts.entry(c).or_default() += 1));
    if counts.is_empty() {
        return Err(Error::Input("there is no text to train a tokenizer from".into()));
    }
    let mut symbols: Vec<(char, u64)> = counts.into_iter().collect();
    symbols.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    check_size(vocab, 4, "three marks and one character")?;
    symbols.truncate(vocab - 3);
    Ok(Tokenizer::of_chars(Chars::new(symbols.into_iter().map(|(c, _)| c).collect::<BTreeSet<char>>())))
}

/// How text is cleaned and cut into words.
fn pipeline(kind: Kind) -> std::result::Result<(Option<NormalizerWrapper>, PreTokenizerWrapper), Failed> {
    Ok(match kind {
        Kind::Bpe => (None, ByteLevel::new(false, false, true).into()),
        Kind::WordPiece => (Some(BertNormalizer::default().into()), BertPreTokenizer.into()),
        Kind::Word => {
            // Metrics on captions cut words the same way: "the man's t-shirt" is `the man 's t-shirt`.
            let pattern = SplitPattern::Regex(r"\w+(?:-\w+)*|(?<=\w)'\w+".into());
            let words = Split::new(pattern, SplitDelimiterBehavior::Removed, true)?;
            let clean = [NormalizerWrapper::from(normalizers::NFC), normalizers::Lowercase.into()];
            (Some(normalizers::Sequence::new(clean.to_vec()).into()), words.into())
        }
        Kind::Space | Kind::Chars => (None, WhitespaceSplit.into()),
    })
}

type Counts = HashMap<String, u64>;

fn count<I, S>(
    mut texts: I,
    normalizer: &Option<NormalizerWrapper>,
    splitter: &PreTokenizerWrapper,
) -> std::result::Result<Counts, Failed>
where
    I: Iterator<Item = S>,
    S: AsRef<str> + Send + Sync,
{
    let words = |counts: &mut Counts, text: &str| -> std::result::Result<(), Failed> {
        let mut pieces = PreTokenizedString::from(text);
        if let Some(n) = normalizer {
            pieces.normalize(|text| n.normalize(text))?;
        }
        splitter.pre_tokenize(&mut pieces)?;
        for (word, ..) in pieces.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match counts.get_mut(word) {
                Some(n) => *n += 1,
                None => drop(counts.insert(word.to_string(), 1)),
            }
        }
        Ok(())
    };
    let mut all = Counts::new();
    loop {
        let block: Vec<S> = texts.by_ref().take(BLOCK).collect();
        if block.is_empty() {
            return Ok(all);
        }
        let parts = block.par_chunks(BLOCK / 16).map(|texts| {
            let mut counts = Counts::new();
            texts.iter().try_for_each(|text| words(&mut counts, text.as_ref()))?;
            Ok(counts)
        });
        for part in parts.collect::<std::result::Result<Vec<_>, Failed>>()? {
            part.into_iter().for_each(|(word, n)| *all.entry(word).or_default() += n);
        }
    }
}

/// Room for the marks, the alphabet and something more, or an error.
fn check_size(vocab: usize, least: usize, why: &str) -> Result<()> {
    if vocab < least {
        return Err(Error::Input(format!("a vocabulary of {vocab} is too small: {why} take {least}")));
    }
    Ok(())
}

fn train_words(vocab: usize, words: &[(String, u64)]) -> Result<WordLevel> {
    check_size(vocab, 4, "three marks and one word")?;
    let marks = [PAD, EOS, UNK];
    let known = words.iter().filter(|(w, n)| *n >= WORD_MIN_COUNT && !marks.contains(&w.as_str()));
    let list = marks.into_iter().map(String::from).chain(known.map(|(w, _)| w.clone()));
    let list = list.take(vocab).zip(0..).collect();
    WordLevel::builder().vocab(list).unk_token(UNK.into()).build().map_err(wrong)
}

fn trainer(vocab: usize, marks: &[String]) -> tokenizers::models::bpe::BpeTrainerBuilder {
    let marks = marks.iter().map(|m| AddedToken::from(m.as_str(), true)).collect();
    BpeTrainer::builder().show_progress(false).vocab_size(vocab).min_frequency(2).special_tokens(marks)
}

fn train_bpe(vocab: usize, words: &[(String, u64)]) -> Result<BPE> {
    check_size(vocab, 258, "two marks and all bytes")?;
    let trainer =
        trainer(vocab, &[PAD, EOS].map(String::from)).initial_alphabet(ByteLevel::alphabet().into_iter().collect());
    let mut model = BPE::default();
    let counts = words.iter().map(|(w, n)| (w.as_str().into(), *n)).collect();
    trainer.build().do_train(&counts, &mut model).map_err(wrong)?;
    Ok(model)
}

fn train_wordpiece(vocab: usize, words: &[(String, u64)]) -> Result<WordPiece> {
    let mut letters: HashMap<char, u64> = HashMap::new();
    words.iter().for_each(|(w, n)| w.chars().for_each(|c| *letters.entry(c).or_default() += n));
    let mut letters: Vec<(char, u64)> = letters.into_iter().collect();
    letters.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    letters.truncate(WORDPIECE_ALPHABET);
    let letters: BTreeSet<char> = letters.into_iter().map(|(c, _)| c).collect();
    let inside: BTreeSet<char> =
        words.iter().flat_map(|(w, _)| w.chars().skip(1)).filter(|c| letters.contains(c)).collect();
    check_size(vocab, 3 + letters.len() + inside.len(), "marks and letters, at the beginning and inside of words,")?;
    // The trainer numbers "##a" and the like in the order of a hash table. Given beforehand, they have an order.
    let mut first: Vec<String> = [PAD, EOS, UNK].map(String::from).to_vec();
    first.extend(letters.iter().map(char::to_string));
    first.extend(inside.iter().map(|c| format!("##{c}")));
    let counts = words
        .iter()
        .map(|(w, n)| (w.chars().filter(|c| letters.contains(c)).collect::<String>().into(), *n))
        .filter(|(w, _): &(_, u64)| !is_empty(w))
        .collect();
    let mut bpe = BPE::default();
    let trainer = trainer(vocab, &first).continuing_subword_prefix("##".into()).limit_alphabet(letters.len());
    trainer.build().do_train(&counts, &mut bpe).map_err(wrong)?;
    let mut model = WordPiece::from_bpe(&bpe);
    model.unk_token = UNK.into();
    Ok(model)
}

fn is_empty(word: &impl std::ops::Deref<Target = str>) -> bool {
    word.is_empty()
}
