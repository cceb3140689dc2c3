//! How much captions differ from each other.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use serde::Serialize;

use super::captions::BleuCounts;
use super::ngrams::{Gram, Grams, N, Words};
use super::ptb::tokenize_all;

/// How varied a set of captions is. All values lie in 0..1.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Diversity {
    /// Captions.
    pub captions: usize,
    /// Different n-grams over all n-grams, for n = 1, 2, 3.
    pub distinct: [f64; 3],
    /// Mean BLEU-4 of a caption with all the others as its references: 1 if every caption occurs twice.
    pub self_bleu4: f64,
    /// Different captions over all captions.
    pub unique: f64,
    /// Share of captions in which a word follows itself.
    pub repeated: f64,
}

/// Measure captions, split into words as the caption metrics do.
pub fn diversity<S: AsRef<str>>(captions: &[S]) -> Diversity {
    let captions: Vec<&str> = captions.iter().map(|s| s.as_ref()).collect();
    let tokenized = tokenize_all(&captions);
    let mut numbers = Words::default();
    let words: Vec<Vec<u32>> = tokenized.iter().map(|t| numbers.ids(t)).collect();
    let all = words.len().max(1) as f64;
    let distinct = |n: usize| {
        let grams = || words.iter().flat_map(|w| w.windows(n));
        grams().collect::<HashSet<_>>().len() as f64 / grams().count().max(1) as f64
    };
    Diversity {
        captions: words.len(),
        distinct: [1, 2, 3].map(distinct),
        self_bleu4: self_bleu4(&words),
        unique: words.iter().collect::<HashSet<_>>().len() as f64 / all,
        repeated: words.iter().filter(|w| w.windows(2).any(|p| p[0] == p[1])).count() as f64 / all,
    }
}

/// The two largest counts of an n-gram in a caption, and whose the largest is: what all captions but one have at most.
#[derive(Clone, Copy, Default)]
struct Most {
    first: u32,
    owner: usize,
    second: u32,
}

fn self_bleu4(words: &[Vec<u32>]) -> f64 {
    if words.len() < 2 {
        return 0.0;
    }
    let grams: Vec<Grams> = words.par_iter().map(|w| Grams::of(w)).collect();
    let mut most: HashMap<Gram, Most> = HashMap::new();
    let mut lengths = vec![0usize; words.iter().map(Vec::len).max().unwrap_or(0) + 1];
    for (i, t) in grams.iter().enumerate() {
        lengths[t.words] += 1;
        for (g, n) in t.iter() {
            let m = most.entry(g).or_default();
            if n > m.first {
                *m = Most { first: n, owner: i, second: m.first };
            } else {
                m.second = m.second.max(n);
            }
        }
    }
    let one = |i: usize| {
        let t = &grams[i];
        let mut counts = BleuCounts {
            guess: std::array::from_fn(|k| t.words.saturating_sub(k) as u64),
            length: t.words as u64,
            reference: closest(&lengths, t.words) as u64,
            ..BleuCounts::default()
        };
        for (g, n) in t.iter() {
            let others = most.get(&g).map_or(0, |m| if m.owner == i { m.second } else { m.first });
            counts.correct[g.order()] += n.min(others) as u64;
        }
        counts.scores()[N - 1]
    };
    let scores: Vec<f64> = (0..grams.len()).into_par_iter().map(one).collect();
    scores.iter().sum::<f64>() / scores.len() as f64
}

/// The length nearest to that of one caption among all the others, the shorter of two.
fn closest(lengths: &[usize], own: usize) -> usize {
    let others = |l: usize| lengths[l] - (l == own) as usize;
    let have = (0..lengths.len()).filter(|&l| others(l) > 0);
    have.min_by_key(|&l| (l.abs_diff(own), l)).unwrap_or(own)
}

#[cfg(test)]
mod tests {
    use super::super::tokenized::bleu_counts;
    use super::*;

    fn of(captions: &[&str]) -> Diversity {
        diversity(captions)
    }

    #[test]
    fn by_hand() {
        let d = of(&["a dog dog runs", "a dog sits", "A dog sits."]);
        // Words a, dog, runs, sits of 10; pairs a-dog, dog-dog, dog-runs, dog-sits of 7; triples 3 of 4.
        assert_eq!(d.distinct, [4.0 / 10.0, 4.0 / 7.0, 3.0 / 4.0]);
        assert_eq!((d.captions, d.unique, d.repeated), (3, 2.0 / 3.0, 1.0 / 3.0));
    }

    #[test]
    fn captions_that_all_occur_twice_have_a_self_bleu_of_one() {
        let twice = of(&["a b c d e", "f g h i", "a b c d e", "f g h i"]);
        assert!((twice.self_bleu4 - 1.0).abs() < 1e-6, "{twice:?}");
        let apart = of(&["a b c d e", "f g h i"]);
        assert!(apart.self_bleu4 < 1e-3, "{apart:?}");
    }

    /// The shortcut through the two largest counts against BLEU with the others as references.
    #[test]
    fn self_bleu_agrees_with_its_definition() {
        let text = ["a a b", "a b a b c d e", "b b b a", "c d e a b c", "a b c d", "d", "", "a b c d e a a a"];
        let words: Vec<Vec<u32>> =
            text.iter().map(|t| t.split_whitespace().map(|w| w.as_bytes()[0] as u32).collect()).collect();
        let mut want = 0.0;
        for i in 0..words.len() {
            let others: Vec<Vec<u32>> = (0..words.len()).filter(|&j| j != i).map(|j| words[j].clone()).collect();
            want += bleu_counts(&words[i], &others).scores()[N - 1] / words.len() as f64;
        }
        assert!((self_bleu4(&words) - want).abs() < 1e-12, "{} {want}", self_bleu4(&words));
    }

    #[test]
    fn nothing_and_one_caption() {
        assert_eq!(of(&[]).distinct, [0.0; 3]);
        assert_eq!((of(&["a b"]).self_bleu4, of(&["a b"]).unique), (0.0, 1.0));
    }
}
