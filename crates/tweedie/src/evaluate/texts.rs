//! Captions and text of a trained model, over whole data sets: samples with their references, and likelihood bounds.

use std::collections::HashSet;
use std::ops::Range;

use super::{Stop, batches_of, from_batch, go_on, how_many, in_order, nothing_read};
use crate::bound::{BoundPath, Bounds};
use crate::config::{Config, SampleConfig};
use crate::data::{Batch, Loader, Part, Sequences, Skipped};
use crate::error::{Error, Result};
use crate::generate::{Generator, TextRequest, batch_size, bound_of_texts_along};
use crate::metrics::captions::{CaptionScores, score};
use crate::progress::{self, Work};
use crate::tokenize::Tokenizer;
use crate::trained::Trained;

/// Times drawn per sequence for a bound during training.
pub const DRAWS: usize = 4;

/// Generated captions with what people wrote.
#[derive(Clone, Debug, Default)]
pub struct Captions {
    /// Number of each example in its source.
    pub indices: Vec<u32>,
    /// What was generated.
    pub texts: Vec<String>,
    /// References of each.
    pub references: Vec<Vec<String>>,
    /// Whether a reference has the same tokens.
    pub matches: Vec<bool>,
    /// Examples that could not be read.
    pub skipped: Skipped,
}

impl Captions {
    /// BLEU, ROUGE-L and CIDEr-D.
    pub fn scores(&self) -> Result<CaptionScores> {
        score(&self.references, &self.texts)
    }

    /// Share of captions whose tokens are those of a reference.
    pub fn exact(&self) -> f64 {
        self.matches.iter().filter(|m| **m).count() as f64 / self.matches.len().max(1) as f64
    }
}

/// Which sequences, and until when.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    /// At most so many, 0: all.
    pub limit: usize,
    /// Whose batches.
    pub part: Part,
    pub stop: Stop<'a>,
}

impl Asked<'_> {
    /// Numbers of the batches of one part; one that is all there is goes on until it has its examples.
    fn batches(&self, t: &Trained, source: &Sequences) -> Range<usize> {
        let limit = if self.part.ranks > 1 { self.limit } else { 0 };
        batches_of(self.part, source.len(), limit, batch_size(t))
    }
}

/// Batches of the examples in order from number `first` on, with images if the model is told them.
fn loader(t: &Trained, source: &Sequences, config: &Config, first: usize) -> Result<Loader> {
    let settings = from_batch(in_order(config, batch_size(t)), first);
    Ok(Loader::sequences(source.clone(), t.transform.clone(), settings)?)
}

/// A caption for every image of `source` (at most `limit`, 0: all).
pub fn captions(
    t: &Trained,
    source: &Sequences,
    config: &Config,
    sample: &SampleConfig,
    limit: usize,
) -> Result<Captions> {
    captions_until(t, source, config, sample, limit, &|| false)
}

/// As [`captions`], unless `stop` says so.
pub fn captions_until(
    t: &Trained,
    source: &Sequences,
    config: &Config,
    sample: &SampleConfig,
    limit: usize,
    stop: Stop,
) -> Result<Captions> {
    captions_of(t, source, config, sample, &Asked { limit, part: Part::default(), stop })
}

/// As [`captions_until`], of one part; an empty one has none.
pub(super) fn captions_of(
    t: &Trained,
    source: &Sequences,
    config: &Config,
    sample: &SampleConfig,
    asked: &Asked,
) -> Result<Captions> {
    let (Asked { limit, part, stop }, batches) = (*asked, asked.batches(t, source));
    if batches.is_empty() && part.ranks > 1 {
        return Ok(Captions::default());
    }
    let before = batches.start * batch_size(t);
    let (tokenizer, generator) = (t.tokenizer()?, Generator::new(t, sample)?);
    let (n, mut all) = (t.model.sizes().tokens, Captions::default());
    let mut loader = loader(t, source, config, batches.start)?;
    for batch in loader.by_ref().take(batches.len()) {
        progress::tell(Work::Evaluation, all.texts.len(), how_many(source.len(), limit) / part.ranks);
        go_on(stop)?;
        let mut batch = batch?;
        if batch.indices.is_empty() {
            continue; // none of its examples could be read
        }
        let wanted = wanted(limit, before + all.texts.len(), batch.indices.len());
        shorten(&mut batch, wanted, n);
        let images = t.batch_images(&batch)?;
        let request = TextRequest { images: images.as_ref(), ..TextRequest::new(&batch.indices) };
        for (i, texts) in batch.indices.iter().zip(generator.generate(&request)?) {
            let Some(best) = texts.into_iter().next() else { continue };
            let references = source.references(*i as usize)?;
            let ids = tokenizer.encode(&best.text);
            let same: HashSet<Vec<u32>> = references.iter().map(|r| tokenizer.encode(r)).collect();
            all.matches.push(same.contains(&ids));
            all.indices.push(*i);
            all.texts.push(best.text);
            all.references.push(references);
        }
        if limit > 0 && before + all.texts.len() >= limit {
            break;
        }
    }
    if all.texts.is_empty() && part.ranks == 1 {
        return Err(nothing_read(&loader));
    }
    all.skipped = loader.skipped();
    Ok(all)
}

/// Texts of a model that is told nothing, from the noise of ids 0 to `count`, unless `stop` says so.
pub fn samples(t: &Trained, sample: &SampleConfig, count: u32, stop: Stop) -> Result<Vec<String>> {
    let generator = Generator::new(t, &SampleConfig { candidates: 1, ..sample.clone() })?;
    let ids: Vec<u32> = (0..count).collect();
    let mut all = Vec::new();
    for part in ids.chunks(batch_size(t)) {
        progress::tell(Work::Evaluation, all.len(), ids.len());
        go_on(stop)?;
        let made = generator.generate(&TextRequest::new(part))?;
        all.extend(made.into_iter().flatten().map(|t| t.text));
    }
    Ok(all)
}

/// Bounds of sequences, and what they are of.
#[derive(Default)]
pub struct Bounded {
    /// On −ln p.
    pub bounds: Bounds,
    /// Characters of the sequences, for bits per character.
    pub chars: u64,
    /// Tokens that stand for what the vocabulary lacks. They count as tokens, and as the characters they decode to.
    pub unknown: u64,
    /// Examples that could not be read.
    pub skipped: Skipped,
}

/// Bounds on −ln p of every sequence of `source` (at most `limit`, 0: all), each from `draws` times. Padding behind
/// the end of a text counts as the tokens it is ([`bound_of_texts`](crate::generate::bound_of_texts)).
pub fn bounds(t: &Trained, source: &Sequences, config: &Config, draws: usize, limit: usize) -> Result<Bounded> {
    bounds_until(t, source, config, draws, limit, &|| false)
}

/// As [`bounds`], unless `stop` says so.
pub fn bounds_until(
    t: &Trained,
    source: &Sequences,
    config: &Config,
    draws: usize,
    limit: usize,
    stop: Stop,
) -> Result<Bounded> {
    bounds_along(BoundPath::own(t), t, source, config, (draws, limit), stop)
}

/// As [`bounds_until`], along a path that the model can go: `draws` and `limit`.
pub fn bounds_along(
    path: BoundPath,
    t: &Trained,
    source: &Sequences,
    config: &Config,
    (draws, limit): (usize, usize),
    stop: Stop,
) -> Result<Bounded> {
    bounds_of(path, t, source, config, draws, &Asked { limit, part: Part::default(), stop })
}

/// As [`bounds_along`], of one part; an empty one has none.
pub(super) fn bounds_of(
    path: BoundPath,
    t: &Trained,
    source: &Sequences,
    config: &Config,
    draws: usize,
    asked: &Asked,
) -> Result<Bounded> {
    path.check(t)?;
    let (Asked { limit, part, stop }, batches) = (*asked, asked.batches(t, source));
    if batches.is_empty() && part.ranks > 1 {
        return Ok(Bounded::default());
    }
    let before = batches.start * batch_size(t);
    let tokenizer = t.tokenizer()?;
    let n = t.model.sizes().tokens;
    let mut all = Bounded::default();
    let mut loader = loader(t, source, config, batches.start)?;
    for batch in loader.by_ref().take(batches.len()) {
        progress::tell(Work::Evaluation, all.bounds.nats.len(), how_many(source.len(), limit) / part.ranks);
        go_on(stop)?;
        let mut batch = batch?;
        if batch.indices.is_empty() {
            continue; // none of its examples could be read
        }
        let wanted = wanted(limit, before + all.bounds.nats.len(), batch.indices.len());
        shorten(&mut batch, wanted, n);
        let images = t.batch_images(&batch)?;
        let of = (&batch.tokens[..], &batch.indices[..]);
        all.bounds.extend(bound_of_texts_along(path, t, images.as_ref(), of, draws)?);
        all.chars += characters(&batch.tokens, n, tokenizer);
        all.unknown += batch.tokens.iter().filter(|id| Some(**id) == tokenizer.unk()).count() as u64;
        if limit > 0 && before + all.bounds.nats.len() >= limit {
            break;
        }
    }
    if all.bounds.nats.is_empty() && part.ranks == 1 {
        return Err(nothing_read(&loader));
    }
    if all.bounds.nats.iter().any(|n| n.is_nan()) {
        return Err(Error::Input("the model's predictions are not numbers; evaluate an earlier checkpoint".into()));
    }
    all.skipped = loader.skipped();
    Ok(all)
}

/// How many of `there` more examples are wanted, `limit` in all (0: every one), of which there are `have`.
fn wanted(limit: usize, have: usize, there: usize) -> usize {
    if limit == 0 { there } else { there.min(limit - have) }
}

/// The first `keep` examples of a batch.
fn shorten(batch: &mut Batch, keep: usize, n: usize) {
    let values = batch.images.len() / batch.indices.len().max(1);
    batch.images.truncate(keep * values);
    batch.tokens.truncate(keep * n);
    batch.indices.truncate(keep);
}

/// Characters of rows of tokens: what they decode to, where an end mark reads as a line end and padding as nothing.
fn characters(tokens: &[u32], n: usize, tokenizer: &Tokenizer) -> u64 {
    let one_mark = tokenizer.pad() == tokenizer.eos();
    let of = |row: &[u32]| {
        // One mark for both: of the run of them at the end, the first is the end.
        let kept = row.iter().rposition(|t| *t != tokenizer.pad()).map_or(0, |i| i + 1);
        let row = if one_mark { &row[..(kept + 1).min(row.len())] } else { row };
        tokenizer.decode_packed(row).chars().count() as u64
    };
    tokens.chunks_exact(n).map(of).sum()
}
