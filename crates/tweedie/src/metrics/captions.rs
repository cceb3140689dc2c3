//! BLEU, ROUGE-L and CIDEr-D of captions, as `pycocoevalcap` computes them, with bootstrap intervals over images.

use rayon::prelude::*;
use serde::Serialize;

use super::ngrams::N;
use super::ptb::tokenize_all;
use super::tokenized;
use crate::error::{Error, Result};
use crate::random::{Draw, Stream};

/// The scores of a set of captions. BLEU and ROUGE-L lie in 0..1, CIDEr-D in 0..10.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Intervals {
    /// Of BLEU-1 to BLEU-4.
    pub bleu: [[f64; 2]; N],
    /// Of ROUGE-L.
    pub rouge_l: [f64; 2],
    /// Of CIDEr-D.
    pub cider_d: [f64; 2],
}

impl BleuCounts {
    /// The counts of several captions as one.
    pub fn total(all: &[BleuCounts]) -> BleuCounts {
        let mut total = BleuCounts::default();
        all.iter().for_each(|c| total.add(c));
        total
    }

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
pub fn score<S: AsRef<str>>(references: &[Vec<S>], captions: &[S]) -> Result<CaptionScores> {
    tokenized::check(references, captions)?;
    // References and captions are two texts, each read from top to bottom.
    let flat: Vec<&str> = references.iter().flatten().map(|s| s.as_ref()).collect();
    let mut flat = tokenize_all(&flat).into_iter();
    let captions: Vec<&str> = captions.iter().map(|s| s.as_ref()).collect();
    let references: Vec<Vec<String>> = references.iter().map(|r| flat.by_ref().take(r.len()).collect()).collect();
    tokenized::score(&references, &tokenize_all(&captions))
}

impl CaptionScores {
    /// Of what each image adds.
    pub fn of(per_image: Vec<ImageScores>) -> CaptionScores {
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
            assert!(score(&refs, &captions).is_err());
        }
    }
}
