//! Which of several texts for the same image is the best: by what the model or the other texts say of it.

use std::collections::HashMap;

use rayon::prelude::*;
use tweedie_engine::Tensor;

use super::Text;
use super::ends::bound_of_texts;
use crate::config::Rank;
use crate::error::{Error, Result};
use crate::trained::Trained;

/// Longest n-gram that two texts are compared by.
const N: usize = 4;

/// How good each candidate is; higher is better.
#[derive(Clone, Debug, PartialEq)]
pub enum CandidateScores {
    /// Bound on −ln p in nats with its standard error.
    Nats(Vec<(f64, f64)>),
    /// Likeness to the other candidates, 0 to 1.
    Consensus(Vec<f64>),
}

impl CandidateScores {
    /// What candidate `i` is ranked by, if there is such; higher is better.
    pub fn of(&self, i: usize) -> Option<f64> {
        match self {
            CandidateScores::Nats(all) => all.get(i).map(|nats| -nats.0),
            CandidateScores::Consensus(all) => all.get(i).copied(),
        }
    }

    /// The best of candidates `first..first + k` (the first of equals), if there is any of them.
    pub fn best(&self, first: usize, k: usize) -> Option<usize> {
        let all = (first..first.saturating_add(k)).map_while(|i| Some((i, self.of(i)?)));
        all.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|best| best.0)
    }
}

/// Scores of `k` candidates for each of `examples`: tokens \[B·k·N\], padded behind their end, those of an example in a row.
/// `images` has one for each example, if the model looks at them.
pub fn score_candidates(
    t: &Trained,
    images: Option<&Tensor>,
    examples: &[u32],
    tokens: &[u32],
    k: usize,
    rank: Rank,
    draws: usize,
) -> Result<CandidateScores> {
    let (n, tokenizer) = (t.model.sizes().tokens, t.tokenizer()?);
    if k == 0 || Some(tokens.len()) != examples.len().checked_mul(k).and_then(|rows| rows.checked_mul(n)) {
        let (b, len) = (examples.len(), tokens.len());
        return Err(Error::Input(format!("{len} tokens are not {k} candidates of {n} for each of {b} examples")));
    }
    let rows: Vec<&[u32]> = tokens.chunks_exact(n).collect();
    match rank {
        Rank::Consensus => {
            let text = |row: &&[u32]| row.iter().rposition(|x| *x != tokenizer.pad()).map_or(0, |i| i + 1);
            let texts: Vec<&[u32]> = rows.iter().map(|row| &row[..text(row)]).collect();
            Ok(CandidateScores::Consensus(texts.par_chunks_exact(k).flat_map_iter(consensus).collect()))
        }
        Rank::Bound => {
            let mut all = vec![(0.0, 0.0); rows.len()];
            // One candidate of every example at a time, each with the noise of its example, so that candidates differ by
            // their text alone.
            for c in 0..k {
                let tokens: Vec<u32> = rows.iter().skip(c).step_by(k).flat_map(|row| row.iter().copied()).collect();
                let b = bound_of_texts(t, images, &tokens, examples, draws)?;
                for (i, bound) in b.nats.into_iter().zip(b.error).enumerate() {
                    all[i * k + c] = bound;
                }
            }
            Ok(CandidateScores::Nats(all))
        }
    }
}

/// `k` candidates of each example as `all` with their `tokens`, the best first; ranked by bounds of so many draws where those rank.
pub(crate) fn ranked(
    t: &Trained,
    (images, examples): (Option<&Tensor>, &[u32]),
    mut all: Vec<Text>,
    tokens: &[u32],
    (k, rank, draws): (usize, Rank, usize),
) -> Result<Vec<Text>> {
    let scores = score_candidates(t, images, examples, tokens, k, rank, draws)?;
    for (i, text) in all.iter_mut().enumerate() {
        match &scores {
            CandidateScores::Nats(nats) => text.nats = nats.get(i).copied(),
            CandidateScores::Consensus(likeness) => text.consensus = likeness.get(i).copied(),
        }
    }
    let score = |i: usize| scores.of(i).unwrap_or(f64::NEG_INFINITY);
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.chunks_mut(k).for_each(|o| o.sort_by(|a, b| score(*b).total_cmp(&score(*a))));
    let mut all: Vec<Option<Text>> = all.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| all[i].take()).collect())
}

/// How alike each text is to the others, on average: the mean over n = 1…4 of the share of n-grams that two texts have in
/// common. A text that says what most of them say is rarely wrong (minimum Bayes risk).
pub fn consensus(texts: &[&[u32]]) -> Vec<f64> {
    let grams: Vec<[HashMap<&[u32], usize>; N]> =
        texts.iter().map(|t| std::array::from_fn(|i| counts(t, i + 1))).collect();
    let likeness = |a: usize, b: usize| {
        let share = |n: usize| {
            let all = texts[a].len().saturating_sub(n) + texts[b].len().saturating_sub(n);
            let common = |(gram, count): (&&[u32], &usize)| grams[b][n].get(gram).map_or(0, |other| *count.min(other));
            let common: usize = grams[a][n].iter().map(common).sum();
            if all == 0 { 0.0 } else { 2.0 * common as f64 / all as f64 }
        };
        (0..N).map(share).sum::<f64>() / N as f64
    };
    let others = texts.len().saturating_sub(1).max(1) as f64;
    let mean = |a: usize| (0..texts.len()).filter(|b| *b != a).map(|b| likeness(a, b)).sum::<f64>() / others;
    (0..texts.len()).map(mean).collect()
}

/// How often each n-gram occurs.
fn counts(text: &[u32], n: usize) -> HashMap<&[u32], usize> {
    let mut all = HashMap::new();
    text.windows(n).for_each(|gram| *all.entry(gram).or_insert(0) += 1);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_is_the_share_of_common_n_grams() {
        // 1: 2 of 3 + 3 words; 2: 1 of 2 + 2 pairs; none of three or four.
        let c = consensus(&[&[1, 2, 3], &[1, 2, 4]]);
        let want = (2.0 * 2.0 / 6.0 + 2.0 * 1.0 / 4.0) / 4.0;
        assert!((c[0] - want).abs() < 1e-12 && c[0] == c[1], "{c:?}");
        // A word said twice counts twice only if both say it twice.
        assert!((consensus(&[&[7, 7], &[7, 8]])[0] - (2.0 / 4.0) / 4.0).abs() < 1e-12);
    }

    #[test]
    fn the_text_most_agree_with_is_the_best() {
        let c = CandidateScores::Consensus(consensus(&[&[9, 8, 7, 6], &[1, 2, 3, 4], &[1, 2, 3, 5], &[1, 2, 3, 4]]));
        assert_eq!(c.best(0, 4), Some(1));
        assert_eq!(CandidateScores::Consensus(consensus(&[&[1]])), CandidateScores::Consensus(vec![0.0]));
        assert_eq!(CandidateScores::Nats(vec![(3.0, 0.1), (2.0, 0.1), (2.5, 0.0)]).best(0, 3), Some(1));
    }
}
