//! Evaluations over several ranks: each looks at some of the batches that one alone would, and all get what that one would have.

use serde::{Deserialize, Serialize};

use super::classes::class_batches_of;
use super::texts::{Asked, bounds_of, captions_of};
use super::{Bounded, Captions};
use crate::bound::BoundPath;
use crate::config::{Config, SampleConfig};
use crate::data::{Part, Sequences, Skipped, Source};
use crate::error::{Error, Result};
use crate::metrics::{Classification, Scored};
use crate::peers::Peers;
use crate::sample::ClassSampler;
use crate::trained::Trained;

fn part_of(peers: &Peers) -> Part {
    Part { rank: peers.rank(), ranks: peers.size() }
}

/// What could not be read by any rank.
fn all_skipped(peers: &Peers, mut own: Skipped) -> Result<Skipped> {
    own.errors = peers.tell(&own.errors)?.into_iter().flatten().collect();
    Ok(own)
}

/// Numbers of all ranks, in their order.
fn all_numbers(peers: &Peers, own: &[f64]) -> Result<Vec<f64>> {
    let all = peers.exchange(own.iter().flat_map(|x| x.to_le_bytes()).collect())?.concat();
    Ok(all.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect())
}

/// Nobody found anything to look at.
fn check_any(count: usize, skipped: &Skipped) -> Result<()> {
    match skipped.errors.values().next() {
        _ if count > 0 => Ok(()),
        Some(one) => Err(Error::Input(format!("no example could be read; one of them: {one}"))),
        None => Err(Error::Input("there is nothing to evaluate".into())),
    }
}

/// As [`classes_quietly`](super::classes_quietly) of all images, over all ranks.
pub fn classes_among(
    peers: &Peers,
    t: &Trained,
    source: &Source,
    config: &Config,
    sample: &SampleConfig,
) -> Result<Classification> {
    let classes = t.model.sizes().vocab;
    let own = || -> Result<(Vec<f64>, Skipped)> {
        let (sampler, mut scored) = (ClassSampler::new(t, sample)?, Vec::new());
        let skipped = class_batches_of(t, source, config, 0, part_of(peers), |images, batch| {
            let logits = sampler.logits(images, &batch.indices)?;
            let rows = logits.chunks_exact(classes.max(1)).zip(&batch.labels);
            scored.extend(rows.filter_map(|(l, label)| Scored::of(l, *label)).flat_map(Scored::numbers));
            Ok(())
        })?;
        Ok((scored, skipped))
    };
    let (own, skipped) = peers.agree(own())?;
    let mut all = Classification::new(classes);
    for numbers in all_numbers(peers, &own)?.as_chunks().0 {
        all.note(Scored::from_numbers(*numbers));
    }
    all.skipped = all_skipped(peers, skipped)?;
    check_any(all.report().examples, &all.skipped)?;
    Ok(all)
}

#[derive(Clone, Serialize, Deserialize)]
struct Written {
    index: u32,
    text: String,
    references: Vec<String>,
    matches: bool,
}

/// As [`captions`](super::captions), over all ranks.
pub fn captions_among(
    peers: &Peers,
    t: &Trained,
    source: &Sequences,
    config: &Config,
    sample: &SampleConfig,
    limit: usize,
) -> Result<Captions> {
    let asked = Asked { limit, part: part_of(peers), stop: &|| false };
    let own = peers.agree(captions_of(t, source, config, sample, &asked))?;
    let each = own.indices.iter().zip(own.texts).zip(own.references).zip(own.matches);
    let written: Vec<Written> = each
        .map(|(((index, text), references), matches)| Written { index: *index, text, references, matches })
        .collect();
    let mut all = Captions { skipped: all_skipped(peers, own.skipped)?, ..Captions::default() };
    for w in peers.tell(&written)?.into_iter().flatten() {
        all.indices.push(w.index);
        all.texts.push(w.text);
        all.references.push(w.references);
        all.matches.push(w.matches);
    }
    check_any(all.texts.len(), &all.skipped)?;
    Ok(all)
}

/// As [`bounds`](super::bounds), over all ranks.
pub fn bounds_among(
    peers: &Peers,
    t: &Trained,
    source: &Sequences,
    config: &Config,
    draws: usize,
    limit: usize,
) -> Result<Bounded> {
    let asked = Asked { limit, part: part_of(peers), stop: &|| false };
    let mut all = peers.agree(bounds_of(BoundPath::own(t), t, source, config, draws, &asked))?;
    let b = &mut all.bounds;
    for numbers in [&mut b.nats, &mut b.weight, &mut b.error, &mut b.tokens] {
        *numbers = all_numbers(peers, numbers)?;
    }
    let counts = peers.tell(&(all.chars, all.unknown))?;
    (all.chars, all.unknown) = counts.iter().fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
    all.skipped = all_skipped(peers, all.skipped)?;
    check_any(all.bounds.nats.len(), &all.skipped)?;
    Ok(all)
}
