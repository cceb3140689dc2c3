//! BLEU, ROUGE-L and CIDEr-D of captions whose words are already separated by spaces, as `pycocoevalcap`'s scorers take them;
//! [`super::captions::score`] is for captions as they were written.

use rayon::prelude::*;

use super::captions::{BleuCounts, CaptionScores, ImageScores};
use super::ngrams::{Grams, N, Rarity, Words};
use crate::error::{Error, Result};

/// Width of CIDEr-D's penalty on a difference of lengths.
const SIGMA: f64 = 6.0;
/// How much ROUGE-L favours recall.
const BETA: f64 = 1.2;

/// The counts of each image that BLEU is made of: its own by [`BleuCounts::scores`], that of all from their
/// [`BleuCounts::total`].
///
/// ```
/// use tweedie::metrics::tokenized::bleu;
///
/// let counts = bleu(&[vec!["the cat sat down"]], &["the cat sat"])?;
/// assert_eq!((counts[0].correct, counts[0].length, counts[0].reference), ([3, 2, 1, 0], 3, 4));
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn bleu<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<Vec<BleuCounts>> {
    Ok(bleu_of(&texts(references, captions)?))
}

/// The ROUGE-L of each image.
pub fn rouge_l<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<Vec<f64>> {
    check(references, captions)?;
    Ok(rouge_l_of(references, captions))
}

/// The CIDEr-D of each image, with document frequencies of these references.
pub fn cider_d<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<Vec<f64>> {
    Ok(cider_d_of(&grams(&texts(references, captions)?)))
}

/// All scores.
pub fn score<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<CaptionScores> {
    let texts = texts(references, captions)?;
    let counts = bleu_of(&texts);
    let cider_d = cider_d_of(&grams(&texts));
    let rouge_l = rouge_l_of(references, captions);
    let per_image = counts.into_iter().zip(rouge_l).zip(cider_d);
    Ok(CaptionScores::of(per_image.map(|((bleu, rouge_l), cider_d)| ImageScores { bleu, rouge_l, cider_d }).collect()))
}

/// Refuse captions that cannot be paired with references.
pub(super) fn check<S>(references: &[Vec<S>], captions: &[S]) -> Result<()> {
    if references.len() != captions.len() {
        return Err(Error::Input(format!("{} captions for {} images", captions.len(), references.len())));
    }
    if let Some(i) = references.iter().position(|r| r.is_empty()) {
        return Err(Error::Input(format!("image {i} has no reference caption")));
    }
    if captions.is_empty() {
        return Err(Error::Input("there is no caption to score".into()));
    }
    Ok(())
}

/// Of each image the words of its caption and of its references.
type Texts = Vec<(Vec<u32>, Vec<Vec<u32>>)>;

fn texts<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<Texts> {
    check(references, captions)?;
    let mut words = Words::default();
    let pairs = captions.iter().zip(references);
    Ok(pairs.map(|(c, r)| (words.ids(c.as_ref()), r.iter().map(|t| words.ids(t.as_ref())).collect())).collect())
}

fn grams(texts: &Texts) -> Vec<(Grams, Vec<Grams>)> {
    texts.par_iter().map(|(c, r)| (Grams::of(c), r.iter().map(|t| Grams::of(t)).collect())).collect()
}

fn bleu_of(texts: &Texts) -> Vec<BleuCounts> {
    texts.par_iter().map(|(caption, references)| bleu_counts(caption, references)).collect()
}

/// The counts of a caption against its references. Captions are short: comparing all places costs less than sorting n-grams.
pub(super) fn bleu_counts(caption: &[u32], references: &[Vec<u32>]) -> BleuCounts {
    let length = caption.len();
    let closest = references.iter().map(|r| (r.len().abs_diff(length), r.len())).min().map_or(0, |c| c.1);
    let mut counts = BleuCounts {
        guess: std::array::from_fn(|k| length.saturating_sub(k) as u64),
        length: length as u64,
        reference: closest as u64,
        ..BleuCounts::default()
    };
    let mut most = vec![[0u32; N]; length];
    let mut here = vec![[0u32; N]; length];
    for r in references {
        here.fill([0; N]);
        each_run(caption, r, |i, _, run| here[i][..run].iter_mut().for_each(|c| *c += 1));
        most.iter_mut().flatten().zip(here.iter().flatten()).for_each(|(m, h)| *m = u32::max(*m, *h));
    }
    // Those of the caption itself; an n-gram counts where it is seen first.
    here.fill([0; N]);
    let mut earlier = vec![0; length];
    each_run(caption, caption, |i, j, run| {
        here[i][..run].iter_mut().for_each(|c| *c += 1);
        if j < i {
            earlier[i] = run.max(earlier[i]);
        }
    });
    for ((most, here), earlier) in most.iter().zip(&here).zip(earlier) {
        for n in earlier..N {
            counts.correct[n] += u64::from(u32::min(most[n], here[n]));
        }
    }
    counts
}

/// Each pair of places from which `a` and `b` have the same words, and how many, up to N.
fn each_run(a: &[u32], b: &[u32], mut see: impl FnMut(usize, usize, usize)) {
    // Of the place behind in `a`, by place in `b`.
    let mut behind = vec![0u8; b.len() + 1];
    for (i, x) in a.iter().enumerate().rev() {
        for (j, y) in b.iter().enumerate() {
            behind[j] = if x == y { (behind[j + 1] + 1).min(N as u8) } else { 0 };
            if behind[j] > 0 {
                see(i, j, behind[j] as usize);
            }
        }
    }
}

fn cider_d_of(images: &[(Grams, Vec<Grams>)]) -> Vec<f64> {
    let references: Vec<&[Grams]> = images.iter().map(|i| i.1.as_slice()).collect();
    let rarity = Rarity::of(&references);
    (0..images.len()).into_par_iter().map(|i| cider_d_of_one(&images[i], i, &rarity)).collect()
}

/// Lengths of a text's vectors of counts by rarity, one for each n.
fn norms(grams: &Grams, weights: impl Iterator<Item = f64>) -> [f64; N] {
    let mut squares = [0.0; N];
    grams.iter().zip(weights).for_each(|((g, n), weight)| squares[g.order()] += (n as f64 * weight).powi(2));
    squares.map(f64::sqrt)
}

/// The length of a text is that of the original: its number of bigrams.
fn bigrams(grams: &Grams) -> f64 {
    grams.words.saturating_sub(1) as f64
}

fn cider_d_of_one((caption, references): &(Grams, Vec<Grams>), image: usize, rarity: &Rarity) -> f64 {
    let weights: Vec<f64> = caption.iter().map(|(g, _)| rarity.of_gram(g)).collect();
    let orders: Vec<usize> = caption.iter().map(|(g, _)| g.order()).collect();
    let norm = norms(caption, weights.iter().copied());
    let mut reference_weights = rarity.of_references(image);
    let mut total = 0.0;
    for r in references {
        let reference_norm = norms(r, reference_weights.by_ref().take(r.len()));
        let mut dot = [0.0; N];
        for (here, there) in caption.shared(r) {
            let (n, m, w) = (caption.count_at(here), r.count_at(there), weights[here]);
            dot[orders[here]] += (n.min(m) as f64 * w) * (m as f64 * w);
        }
        let penalty = (-(bigrams(caption) - bigrams(r)).powi(2) / (2.0 * SIGMA * SIGMA)).exp();
        for k in 0..N {
            let norms = norm[k] * reference_norm[k];
            total += penalty * if norms != 0.0 { dot[k] / norms } else { dot[k] };
        }
    }
    10.0 * total / N as f64 / references.len() as f64
}

fn rouge_l_of<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Vec<f64> {
    let mut words = Words::default();
    let texts: Vec<_> = captions
        .iter()
        .zip(references)
        .map(|(c, r)| {
            let caption = words.ids_between_spaces(c.as_ref());
            (caption, r.iter().map(|t| words.ids_between_spaces(t.as_ref())).collect::<Vec<_>>())
        })
        .collect();
    texts.par_iter().map(|(caption, references)| rouge_l_of_one(caption, references)).collect()
}

fn rouge_l_of_one(caption: &[u32], references: &[Vec<u32>]) -> f64 {
    let (mut precision, mut recall) = (0.0f64, 0.0f64);
    for r in references {
        let common = common_subsequence(caption, r) as f64;
        precision = precision.max(common / caption.len() as f64);
        recall = recall.max(common / r.len() as f64);
    }
    match precision > 0.0 && recall > 0.0 {
        true => (1.0 + BETA * BETA) * precision * recall / (recall + BETA * BETA * precision),
        false => 0.0,
    }
}

/// Length of the longest common subsequence.
fn common_subsequence(a: &[u32], b: &[u32]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut diagonal = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { diagonal + 1 } else { above.max(row[j]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closest_reference_is_the_shorter_of_two() {
        let g = |n: usize| vec![0; n];
        assert_eq!(bleu_counts(&g(5), &[g(7), g(3), g(9)]).reference, 3);
        // Clipped: five times the word where a reference has it at most nine times, twice where at most twice.
        assert_eq!(bleu_counts(&g(5), &[g(2)]).correct, [2, 1, 0, 0]);
    }

    /// Against the definition: for each different n-gram the least of its counts, the caption's and the most of a reference.
    #[test]
    fn correct_n_grams_are_those_counted_one_by_one() {
        let mut state = 1u32;
        let mut text = |most: u32| -> Vec<u32> {
            let mut next = |n: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % n
            };
            (0..next(most)).map(|_| next(3)).collect()
        };
        for _ in 0..500 {
            let (caption, references) = (text(12), vec![text(15), text(15), text(3)]);
            let got = bleu_counts(&caption, &references).correct;
            for n in 1..=N {
                let count = |t: &[u32], g: &[u32]| t.windows(n).filter(|w| *w == g).count();
                let different: std::collections::BTreeSet<&[u32]> = caption.windows(n).collect();
                let most = |g: &[u32]| references.iter().map(|r| count(r, g)).max().unwrap_or(0);
                let want: usize = different.iter().map(|g| count(&caption, g).min(most(g))).sum();
                assert_eq!(got[n - 1], want as u64, "{caption:?} {references:?}");
            }
        }
    }

    #[test]
    fn common_subsequences() {
        assert_eq!(common_subsequence(&[0, 1, 2, 3], &[9, 0, 2, 8, 3]), 3);
        assert_eq!(common_subsequence(&[0], &[1]), 0);
    }

    /// Nothing is taken out of words that are already apart: case and punctuation count.
    #[test]
    fn words_are_what_lies_between_spaces() {
        let rouge = rouge_l(&[vec!["A dog ."], vec![""]], &["a dog .", ""]).unwrap();
        assert!((rouge[0] - 2.0 / 3.0).abs() < 1e-12, "{rouge:?}");
        assert_eq!(rouge[1], 1.0, "both empty, which is one empty word to ROUGE-L as the reference has it");
    }

    #[test]
    fn each_score_alone_is_that_of_all_together() {
        let references = [vec!["a big red dog runs", "a dog"], vec!["two small cats sleep here"], vec!["", "a cat"]];
        let captions = ["a red dog runs fast", "two cats", "a cat a cat a cat"];
        let all = score(&references, &captions).unwrap();
        let (b, r) = (bleu(&references, &captions).unwrap(), rouge_l(&references, &captions).unwrap());
        let c = cider_d(&references, &captions).unwrap();
        for (i, image) in all.per_image.iter().enumerate() {
            assert_eq!((image.bleu, image.rouge_l, image.cider_d), (b[i], r[i], c[i]));
        }
        assert_eq!(all.bleu, BleuCounts::total(&b).scores());
        assert!(c[0] > 0.0 && c[1] > 0.0, "{c:?}");
    }
}
