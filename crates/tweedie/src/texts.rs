//! Captions and text of a trained model, over whole data sets: samples with their references, and likelihood bounds.

use std::collections::HashSet;

use tweedie_engine::{Device, Tensor};

use crate::augment::Transform;
use crate::bound::{self, Bounds, Known, MddBound, TddBound};
use crate::config::{Config, SampleConfig};
use crate::data::{Batch, Layout, Loader, LoaderConfig, Sequences, Skipped};
use crate::error::{Error, Result};
use crate::metrics::captions::{CaptionScores, score};
use crate::rank::merits;
use crate::sample::{Ending, Generator, Request};
use crate::tokenize::Tokenizer;
use crate::train::Trained;

/// Times drawn per sequence for a bound during training.
pub const DRAWS: usize = 4;
/// Times drawn for each bound that candidates are ranked by.
const RANK_DRAWS: usize = 8;

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

/// Asked before each batch: true ends the work with [`Error::Interrupted`].
pub type Stop<'a> = &'a dyn Fn() -> bool;

fn go_on(stop: Stop) -> Result<()> {
    if stop() { Err(Error::Interrupted) } else { Ok(()) }
}

/// How many sequences are worked on at a time.
pub fn batch_size(t: &Trained) -> usize {
    if t.model.device() == Device::Cpu { 32 } else { 256 }
}

/// Batches of every example in order, with images if the model is told them.
fn loader(t: &Trained, source: &Sequences, config: &Config, batch: usize) -> Result<Loader> {
    let e = &config.model.encoder;
    let transform = match t.model.is_conditional() {
        true => Some(Transform::eval(&config.augment, e.image, e.channels)?),
        false => None,
    };
    let config = LoaderConfig {
        threads: config.data.workers,
        on_corrupt: config.data.corrupt.into(),
        ..LoaderConfig::eval(batch)
    };
    Ok(Loader::sequences(source.clone(), transform, config)?)
}

/// The images of a batch on the model's device.
fn images(t: &Trained, config: &Config, batch: &Batch) -> Result<Option<Tensor>> {
    if batch.images.is_empty() {
        return Ok(None);
    }
    let e = &config.model.encoder;
    let shape = [batch.indices.len(), e.channels, e.image, e.image];
    Ok(Some(Tensor::from_f32(&t.model.device(), &shape, batch.images.clone())?))
}

/// Where this tokenizer's texts end, at a length of the model's choice.
pub fn free_ending(tokenizer: &Tokenizer) -> Ending {
    Ending { eos: tokenizer.eos(), pad: tokenizer.pad(), unk: tokenizer.unk(), length: None, min_length: 1 }
}

/// Rows of `n` tokens with padding behind their end: what stands there is not part of a text, nor of its likelihood.
pub fn end(tokens: &mut [u32], n: usize, tokenizer: &Tokenizer) {
    for row in tokens.chunks_exact_mut(n) {
        let end = row.iter().position(|t| *t == tokenizer.eos()).map_or(n, |i| i + 1);
        row[end..].fill(tokenizer.pad());
    }
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
    let tokenizer = t.tokenizer()?;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, sample)?;
    let (n, mut all) = (t.model.sizes().tokens, Captions::default());
    let mut loader = loader(t, source, config, batch_size(t))?;
    for batch in loader.by_ref() {
        go_on(stop)?;
        let mut batch = batch?;
        let wanted = wanted(limit, all.texts.len(), batch.indices.len());
        shorten(&mut batch, wanted, n);
        let images = images(t, config, &batch)?;
        let ending = Some(free_ending(tokenizer));
        let (images, ids, k) = (images.as_ref(), &batch.indices[..], sample.candidates);
        let mut made = generator.generate(&Request { ending, candidates: k, ..Request::new(images, ids) })?.tokens;
        end(&mut made, n, tokenizer);
        let best: Vec<usize> = match k {
            1 => (0..ids.len()).collect(),
            _ => {
                let merit = merits(t, images, ids, &made, k, sample.rank, RANK_DRAWS)?;
                (0..ids.len()).map(|i| merit.best(i * k, k)).collect()
            }
        };
        for (i, row) in batch.indices.iter().zip(best) {
            let tokens = &made[row * n..(row + 1) * n];
            let references = source.references(*i as usize)?;
            let text = tokenizer.decode(tokens);
            let ids = tokenizer.encode(&text);
            let same: HashSet<Vec<u32>> = references.iter().map(|r| tokenizer.encode(r)).collect();
            all.matches.push(same.contains(&ids));
            all.indices.push(*i);
            all.texts.push(text);
            all.references.push(references);
        }
        if limit > 0 && all.texts.len() >= limit {
            break;
        }
    }
    all.skipped = loader.skipped();
    Ok(all)
}

/// Texts of a model that is told nothing, from the noise of ids 0 to `count`, unless `stop` says so.
pub fn samples(t: &Trained, config: &Config, sample: &SampleConfig, count: u32, stop: Stop) -> Result<Vec<String>> {
    let tokenizer = t.tokenizer()?;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, sample)?;
    let (n, lines) = (t.model.sizes().tokens, config.data.sequence_config().layout == Layout::Lines);
    let ids: Vec<u32> = (0..count).collect();
    let mut all = Vec::new();
    for part in ids.chunks(batch_size(t)) {
        go_on(stop)?;
        let ending = lines.then(|| free_ending(tokenizer));
        let made = generator.generate(&Request { ending, ..Request::new(None, part) })?.tokens;
        all.extend(made.chunks_exact(n).map(|row| match lines {
            true => tokenizer.decode(row),
            false => tokenizer.decode_packed(row),
        }));
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
}

/// Bounds on −ln p of every sequence of `source` (at most `limit`, 0: all), each from `draws` times. What follows the end of
/// a text does not count.
pub fn bound(t: &Trained, source: &Sequences, config: &Config, draws: usize, limit: usize) -> Result<Bounded> {
    bound_until(t, source, config, draws, limit, &|| false)
}

/// As [`bound`], unless `stop` says so.
pub fn bound_until(
    t: &Trained,
    source: &Sequences,
    config: &Config,
    draws: usize,
    limit: usize,
    stop: Stop,
) -> Result<Bounded> {
    let tokenizer = t.tokenizer()?;
    let n = t.model.sizes().tokens;
    let mut all = Bounded::default();
    for batch in loader(t, source, config, batch_size(t))? {
        go_on(stop)?;
        let mut batch = batch?;
        let wanted = wanted(limit, all.bounds.nats.len(), batch.indices.len());
        shorten(&mut batch, wanted, n);
        let images = images(t, config, &batch)?;
        all.bounds.extend(bound_of(t, images.as_ref(), &batch.tokens, &batch.indices, draws)?);
        all.chars += characters(&batch.tokens, n, tokenizer);
        all.unknown += batch.tokens.iter().filter(|id| Some(**id) == tokenizer.unk()).count() as u64;
        if limit > 0 && all.bounds.nats.len() >= limit {
            break;
        }
    }
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

/// Bounds of tokens \[B·N\], one image each if the model is told them.
pub fn bound_of(
    t: &Trained,
    images: Option<&Tensor>,
    tokens: &[u32],
    examples: &[u32],
    draws: usize,
) -> Result<Bounds> {
    let (sizes, device) = (t.model.sizes(), t.model.device());
    let weights = counted(tokens, sizes.tokens, t.tokenizer()?);
    let known = Known { tokens, n: sizes.tokens, vocab: sizes.vocab, examples, weights: weights.as_deref() };
    let network = bound::Conditioned::new(&t.model, images)?;
    let seed = 0;
    match t.model.is_tdd() {
        true => TddBound::new(&t.schedule, t.lambda, sizes.vocab, draws, seed)?.of(&network, &device, &known),
        false => MddBound { steps: t.schedule.steps(), draws, seed }.of(&network, &device, &known),
    }
}

/// 1 for tokens up to the end of each text, 0 behind it; none if all count.
fn counted(tokens: &[u32], n: usize, tokenizer: &Tokenizer) -> Option<Vec<f32>> {
    let (pad, eos) = (tokenizer.pad(), tokenizer.eos());
    let mut weights = vec![1.0; tokens.len()];
    for (row, weights) in tokens.chunks_exact(n).zip(weights.chunks_exact_mut(n)) {
        // Padding at the end of the row; where one token is both, the first of them is the end.
        let text = row.iter().rposition(|t| *t != pad).map_or(0, |i| i + 1);
        let counts = if pad == eos { text + 1 } else { text };
        weights.iter_mut().skip(counts).for_each(|w| *w = 0.0);
    }
    weights.contains(&0.0).then_some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::Kind;

    #[test]
    fn padding_behind_the_end_does_not_count() {
        let t = Tokenizer::train(Kind::Word, 100, ["a red circle"]).unwrap();
        let (p, e) = (t.pad(), t.eos());
        let (a, b) = (t.encode("red")[0], t.encode("circle")[0]);
        let row = [a, b, e, p, p, a, b, a, b, e];
        assert_eq!(counted(&row, 5, &t), Some(vec![1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]));
        assert_eq!(counted(&row[5..], 5, &t), None);
    }
}
