//! BLEU, ROUGE-L and CIDEr-D of captions, as `pycocoevalcap` computes them, with bootstrap intervals over images.

use std::collections::HashMap;

use rayon::prelude::*;
use serde::Serialize;

use super::ptb::tokenize_all;
use crate::error::{Error, Result};
use crate::random::{Draw, Stream};

/// Longest n-gram of BLEU and CIDEr-D.
pub(super) const N: usize = 4;
/// Width of CIDEr-D's penalty on a difference of lengths.
const SIGMA: f64 = 6.0;
/// How much ROUGE-L favours recall.
const BETA: f64 = 1.2;
/// Not a word: fills n-grams shorter than four.
const NO_WORD: u32 = u32::MAX;

/// The scores of a set of captions. BLEU and ROUGE-L lie in 0..1, CIDEr-D in 0..10.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaptionScores {
    /// Images.
    pub images: usize,
    /// BLEU-1 to BLEU-4 of the corpus.
    pub bleu: [f64; N],
    /// Mean ROUGE-L.
    pub rouge_l: f64,
    /// Mean CIDEr-D.
    pub cider_d: f64,
    /// Words of all captions over words of the references closest in length.
    pub length_ratio: f64,
    /// What each image adds.
    #[serde(skip)]
    pub per_image: Vec<ImageScores>,
}

/// What one image adds to the scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageScores {
    /// Counts for BLEU.
    pub bleu: BleuCounts,
    /// ROUGE-L.
    pub rouge_l: f64,
    /// CIDEr-D.
    pub cider_d: f64,
}

/// Counts that BLEU is made of; those of several captions are added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BleuCounts {
    /// n-grams that a reference has too, by n.
    pub correct: [u64; N],
    /// n-grams, by n.
    pub guess: [u64; N],
    /// Words.
    pub length: u64,
    /// Words of the reference closest in length (the shorter of two that are equally close).
    pub reference: u64,
}

/// 95 % intervals: the 2.5 and 97.5 percentiles over resampled sets of images.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Intervals {
    /// Of BLEU-1 to BLEU-4.
    pub bleu: [[f64; 2]; N],
    /// Of ROUGE-L.
    pub rouge_l: [f64; 2],
    /// Of CIDEr-D.
    pub cider_d: [f64; 2],
}

impl BleuCounts {
    fn add(&mut self, o: &BleuCounts) {
        for k in 0..N {
            self.correct[k] += o.correct[k];
            self.guess[k] += o.guess[k];
        }
        self.length += o.length;
        self.reference += o.reference;
    }

    /// BLEU-1 to BLEU-4 of the counts.
    pub fn scores(&self) -> [f64; N] {
        // The constants of the reference keep 0/0 at 0.
        const SMALL: f64 = 1e-9;
        const TINY: f64 = 1e-15;
        let ratio = (self.length as f64 + TINY) / (self.reference as f64 + SMALL);
        let brevity = if ratio < 1.0 { (1.0 - 1.0 / ratio).exp() } else { 1.0 };
        let mut product = 1.0;
        std::array::from_fn(|k| {
            product *= (self.correct[k] as f64 + TINY) / (self.guess[k] as f64 + SMALL);
            product.powf(1.0 / (k + 1) as f64) * brevity
        })
    }
}

/// Score one caption for each image against that image's references.
///
/// ```
/// use tweedie::metrics::captions::score;
///
/// let references = [vec!["a red dog runs on grass".to_string()], vec!["two cats sleep on a bed".to_string()]];
/// let same = score(&references, &references.concat())?;
/// assert!(same.bleu[3] > 0.99 && same.rouge_l > 0.99);
/// assert!(score(&references, &["a dog".into(), "a bed".into()])?.cider_d < same.cider_d);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn score(references: &[Vec<String>], captions: &[String]) -> Result<CaptionScores> {
    if references.len() != captions.len() {
        return Err(Error::Input(format!("{} captions for {} images", captions.len(), references.len())));
    }
    if let Some(i) = references.iter().position(|r| r.is_empty()) {
        return Err(Error::Input(format!("image {i} has no reference caption")));
    }
    if captions.is_empty() {
        return Err(Error::Input("there is no caption to score".into()));
    }
    // References and captions are two texts, each read from top to bottom.
    let flat: Vec<&str> = references.iter().flatten().map(String::as_str).collect();
    let mut flat = tokenize_all(&flat).into_iter();
    let captions: Vec<&str> = captions.iter().map(String::as_str).collect();
    let texts = references.iter().zip(tokenize_all(&captions));
    let texts: Vec<Vec<String>> = texts.map(|(r, c)| flat.by_ref().take(r.len()).chain([c]).collect()).collect();
    Ok(score_tokenized(&texts))
}

/// As [`score`]; each image has its references and, last, the caption, all tokenized.
fn score_tokenized(texts: &[Vec<String>]) -> CaptionScores {
    let mut words = Words::default();
    let images: Vec<Vec<Vec<u32>>> = texts.iter().map(|image| image.iter().map(|t| words.ids(t)).collect()).collect();
    let grams: Vec<Vec<Grams>> = images.par_iter().map(|i| i.iter().map(|t| Grams::of(t)).collect()).collect();
    let frequency = document_frequency(&grams);
    let log_images = (images.len() as f64).ln();
    let per_image: Vec<ImageScores> = grams
        .par_iter()
        .zip(texts)
        .map(|(grams, texts)| {
            let Some((caption, references)) = grams.split_last() else {
                return ImageScores { bleu: BleuCounts::default(), rouge_l: 0.0, cider_d: 0.0 };
            };
            let (text, others) = texts.split_last().map_or(("", &texts[..]), |(t, o)| (t.as_str(), o));
            ImageScores {
                bleu: bleu_counts(caption, references),
                rouge_l: rouge_l(text, others),
                cider_d: cider_d(caption, references, &frequency, log_images),
            }
        })
        .collect();
    let mut counts = BleuCounts::default();
    per_image.iter().for_each(|i| counts.add(&i.bleu));
    let mean = |f: fn(&ImageScores) -> f64| per_image.iter().map(f).sum::<f64>() / per_image.len().max(1) as f64;
    CaptionScores {
        images: per_image.len(),
        bleu: counts.scores(),
        rouge_l: mean(|i| i.rouge_l),
        cider_d: mean(|i| i.cider_d),
        length_ratio: counts.length as f64 / counts.reference.max(1) as f64,
        per_image,
    }
}

impl CaptionScores {
    /// Bootstrap over images: `draws` sets of as many images, drawn with replacement. The document frequencies of CIDEr-D
    /// stay those of all images.
    pub fn bootstrap(&self, draws: usize, seed: u64) -> Intervals {
        Intervals::of(&self.resampled(draws, seed))
    }

    /// Intervals of this set's scores less those of `other`, for the same images: both are drawn alike, so what makes an
    /// image easy or hard for both does not blur the difference.
    pub fn bootstrap_difference(&self, other: &CaptionScores, draws: usize, seed: u64) -> Result<Intervals> {
        if self.images != other.images {
            return Err(Error::Input(format!("{} images cannot be compared with {}", self.images, other.images)));
        }
        let (a, b) = (self.resampled(draws, seed), other.resampled(draws, seed));
        let difference = |(a, b): (&[f64; 6], &[f64; 6])| std::array::from_fn(|k| a[k] - b[k]);
        Ok(Intervals::of(&a.iter().zip(&b).map(difference).collect::<Vec<_>>()))
    }

    /// BLEU-1 to BLEU-4, ROUGE-L and CIDEr-D of each draw.
    fn resampled(&self, draws: usize, seed: u64) -> Vec<[f64; 6]> {
        let n = self.per_image.len();
        let draw = |i: usize| {
            let mut random = Draw::new(seed, Stream::Bootstrap, 0, i as u32);
            let (mut counts, mut rouge, mut cider) = (BleuCounts::default(), 0.0, 0.0);
            for _ in 0..n {
                let image = &self.per_image[random.below(n)];
                counts.add(&image.bleu);
                rouge += image.rouge_l;
                cider += image.cider_d;
            }
            let [b1, b2, b3, b4] = counts.scores();
            [b1, b2, b3, b4, rouge / n as f64, cider / n as f64]
        };
        (0..draws.max(1)).into_par_iter().map(draw).collect()
    }
}

impl Intervals {
    fn of(all: &[[f64; 6]]) -> Intervals {
        let interval = |k: usize| interval95(all.iter().map(|s| s[k]).collect());
        Intervals { bleu: std::array::from_fn(interval), rouge_l: interval(4), cider_d: interval(5) }
    }
}

/// The 2.5 and 97.5 percentiles, linear between values as numpy's are.
fn interval95(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    let at = |q: f64| {
        let x = q * (values.len() - 1) as f64;
        let (low, high) = (values[x.floor() as usize], values[x.ceil() as usize]);
        low + (high - low) * x.fract()
    };
    [at(0.025), at(0.975)]
}

/// Numbers for words.
#[derive(Default)]
pub(super) struct Words(HashMap<String, u32>);

impl Words {
    /// The words of a tokenized text: as Python's `split()`, at any white space.
    pub fn ids(&mut self, text: &str) -> Vec<u32> {
        let python_space = |c: char| c.is_whitespace() || matches!(c, '\x1c'..='\x1f');
        let words = text.split(python_space).filter(|w| !w.is_empty());
        words.map(|w| self.id(w)).collect()
    }

    fn id(&mut self, word: &str) -> u32 {
        if let Some(&i) = self.0.get(word) {
            return i;
        }
        let i = self.0.len() as u32;
        self.0.insert(word.into(), i);
        i
    }
}

/// The n-grams of a text with their counts, sorted.
pub(super) struct Grams {
    pub words: usize,
    pub counts: Vec<(Gram, u32)>,
}

pub(super) type Gram = [u32; N];

/// n of an n-gram, less one.
pub(super) fn order(g: &Gram) -> usize {
    g.iter().filter(|w| **w != NO_WORD).count() - 1
}

impl Grams {
    pub fn of(words: &[u32]) -> Grams {
        let mut all = Vec::with_capacity(N * words.len());
        for n in 1..=N {
            for w in words.windows(n) {
                let mut g = [NO_WORD; N];
                g[..n].copy_from_slice(w);
                all.push(g);
            }
        }
        all.sort_unstable();
        let mut counts: Vec<(Gram, u32)> = Vec::with_capacity(all.len());
        for g in all {
            match counts.last_mut() {
                Some(last) if last.0 == g => last.1 += 1,
                _ => counts.push((g, 1)),
            }
        }
        Grams { words: words.len(), counts }
    }

    pub fn count(&self, g: &Gram) -> u32 {
        self.counts.binary_search_by(|c| c.0.cmp(g)).map_or(0, |i| self.counts[i].1)
    }
}

pub(super) fn bleu_counts(caption: &Grams, references: &[Grams]) -> BleuCounts {
    let length = caption.words;
    let closest = references.iter().map(|r| (r.words.abs_diff(length), r.words)).min().map_or(0, |c| c.1);
    let mut counts = BleuCounts {
        guess: std::array::from_fn(|k| length.saturating_sub(k) as u64),
        length: length as u64,
        reference: closest as u64,
        ..BleuCounts::default()
    };
    for (g, n) in &caption.counts {
        let most = references.iter().map(|r| r.count(g)).max().unwrap_or(0);
        counts.correct[order(g)] += most.min(*n) as u64;
    }
    counts
}

/// In how many images' references an n-gram occurs; each image's caption, the last, does not count.
fn document_frequency(images: &[Vec<Grams>]) -> HashMap<Gram, u32> {
    let mut frequency: HashMap<Gram, u32> = HashMap::new();
    let mut here: Vec<Gram> = Vec::new();
    for image in images {
        here.clear();
        here.extend(image[..image.len().saturating_sub(1)].iter().flat_map(|t| t.counts.iter().map(|c| c.0)));
        here.sort_unstable();
        here.dedup();
        here.iter().for_each(|g| *frequency.entry(*g).or_default() += 1);
    }
    frequency
}

fn cider_d(caption: &Grams, references: &[Grams], frequency: &HashMap<Gram, u32>, log_images: f64) -> f64 {
    let weight = |g: &Gram| log_images - (frequency.get(g).copied().unwrap_or(0).max(1) as f64).ln();
    let norm = |t: &Grams| {
        let mut sum = [0.0; N];
        for (g, n) in &t.counts {
            sum[order(g)] += (*n as f64 * weight(g)).powi(2);
        }
        sum.map(f64::sqrt)
    };
    // The length of the reference is its number of bigrams.
    let bigrams = |t: &Grams| t.words.saturating_sub(1) as f64;
    let caption_norm = norm(caption);
    let mut total = 0.0;
    for r in references {
        let mut dot = [0.0; N];
        for (g, n) in &caption.counts {
            let in_reference = r.count(g);
            if in_reference > 0 {
                let w = weight(g);
                dot[order(g)] += (*n.min(&in_reference) as f64 * w) * (in_reference as f64 * w);
            }
        }
        let reference_norm = norm(r);
        let penalty = (-(bigrams(caption) - bigrams(r)).powi(2) / (2.0 * SIGMA * SIGMA)).exp();
        for k in 0..N {
            let norms = caption_norm[k] * reference_norm[k];
            total += penalty * if norms != 0.0 { dot[k] / norms } else { dot[k] };
        }
    }
    10.0 * total / N as f64 / references.len() as f64
}

fn rouge_l(caption: &str, references: &[String]) -> f64 {
    // Python's `split(" ")`: the empty text has one word, which is empty.
    let words: Vec<&str> = caption.split(' ').collect();
    let (mut precision, mut recall) = (0.0f64, 0.0f64);
    for r in references {
        let other: Vec<&str> = r.split(' ').collect();
        let common = common_subsequence(&words, &other) as f64;
        precision = precision.max(common / words.len() as f64);
        recall = recall.max(common / other.len() as f64);
    }
    match precision > 0.0 && recall > 0.0 {
        true => (1.0 + BETA * BETA) * precision * recall / (recall + BETA * BETA * precision),
        false => 0.0,
    }
}

/// Length of the longest common subsequence.
fn common_subsequence(a: &[&str], b: &[&str]) -> usize {
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

    fn strings(s: &[&str]) -> Vec<String> {
        s.iter().map(|s| s.to_string()).collect()
    }

    /// By hand: "the cat sat" against "the cat sat down": 3/3, 2/2, 1/1 n-grams, no 4-gram; brevity e^(1 − 4/3).
    #[test]
    fn bleu_and_rouge_by_hand() {
        let s = score(&[strings(&["the cat sat down"])], &strings(&["The cat sat."])).unwrap();
        let brevity = (1.0f64 - 4.0 / 3.0).exp();
        for k in 0..3 {
            assert!((s.bleu[k] - brevity).abs() < 1e-6, "{:?}", s.bleu);
        }
        // (1e-15 / 1e-9)^(1/4): what the reference makes of a caption without any 4-gram.
        assert!((s.bleu[3] - brevity * 1e-6f64.powf(0.25)).abs() < 1e-6);
        let (p, r) = (1.0, 0.75);
        assert!((s.rouge_l - (1.0 + 1.44) * p * r / (r + 1.44 * p)).abs() < 1e-12);
        // One image: every n-gram is in every document, so no n-gram tells anything.
        assert_eq!(s.cider_d, 0.0);
    }

    /// Two images that share no word: a caption equal to its only reference has cosine 1 for every n.
    #[test]
    fn cider_d_of_the_reference_itself_is_ten() {
        let refs = [strings(&["a big red dog runs"]), strings(&["two small cats sleep here"])];
        let s = score(&refs, &strings(&["a big red dog runs", "two small cats sleep here"])).unwrap();
        assert!((s.cider_d - 10.0).abs() < 1e-12 && (s.bleu[3] - 1.0).abs() < 1e-6 && s.rouge_l == 1.0, "{s:?}");
        let swapped = score(&refs, &strings(&["two small cats sleep here", "a big red dog runs"])).unwrap();
        assert_eq!((swapped.cider_d, swapped.rouge_l), (0.0, 0.0));
    }

    #[test]
    fn the_closest_reference_is_the_shorter_of_two() {
        let g = |n: usize| Grams::of(&vec![0; n]);
        assert_eq!(bleu_counts(&g(5), &[g(7), g(3), g(9)]).reference, 3);
        // Clipped: five times the word where a reference has it at most nine times, twice where at most twice.
        assert_eq!(bleu_counts(&g(5), &[g(2)]).correct, [2, 1, 0, 0]);
    }

    #[test]
    fn common_subsequences() {
        let split = |s: &'static str| s.split(' ').collect::<Vec<_>>();
        assert_eq!(common_subsequence(&split("a b c d"), &split("x a c y d")), 3);
        assert_eq!(common_subsequence(&split("a"), &split("b")), 0);
    }

    /// Half of the images score 0 and half 10: the standard error of the mean is 5/√n.
    #[test]
    fn bootstrap_intervals_have_the_width_of_the_standard_error() {
        let n = 400;
        let image =
            |i: usize| ImageScores { bleu: BleuCounts::default(), rouge_l: 1.0, cider_d: 10.0 * (i % 2) as f64 };
        let s = CaptionScores {
            images: n,
            bleu: [0.0; N],
            rouge_l: 1.0,
            cider_d: 5.0,
            length_ratio: 1.0,
            per_image: (0..n).map(image).collect(),
        };
        let i = s.bootstrap(2000, 7);
        let half = 1.96 * 5.0 / (n as f64).sqrt();
        // 2,000 draws place a percentile to about 5 % of the width.
        assert!(
            (i.cider_d[0] - (5.0 - half)).abs() < 0.1 * half && (i.cider_d[1] - (5.0 + half)).abs() < 0.1 * half,
            "{i:?}"
        );
        assert_eq!((i.rouge_l, &i), ([1.0, 1.0], &s.bootstrap(2000, 7)));
        assert_ne!(i, s.bootstrap(2000, 8));
        // Drawn alike, a set does not differ from itself, and one that is better by 1 everywhere is so in every draw.
        let mut better = s.clone();
        better.per_image.iter_mut().for_each(|i| i.cider_d += 1.0);
        let d = better.bootstrap_difference(&s, 200, 7).unwrap();
        assert!(
            (d.cider_d[0] - 1.0).abs() < 1e-9 && (d.cider_d[1] - 1.0).abs() < 1e-9 && d.rouge_l == [0.0; 2],
            "{d:?}"
        );
    }

    #[test]
    fn what_cannot_be_scored_is_refused() {
        for (refs, captions) in [(vec![], vec!["a"]), (vec![vec![]], vec!["a"]), (vec![], vec![])] {
            assert!(score(&refs, &strings(&captions)).is_err());
        }
    }
}
