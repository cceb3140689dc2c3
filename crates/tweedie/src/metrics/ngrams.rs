//! Words as numbers and n-grams with their counts: what the scores of captions are made of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::fast::FixedState;
use rayon::prelude::*;

/// Longest n-gram of BLEU and CIDEr-D.
pub(super) const N: usize = 4;

/// Numbers for words, in the order in which they were seen.
#[derive(Default)]
pub(super) struct Words<'a>(HashMap<&'a str, u32, FixedState>);

impl<'a> Words<'a> {
    /// The words of a text: as Python's `split()`, at any white space.
    pub fn ids(&mut self, text: &'a str) -> Vec<u32> {
        let python_space = |c: char| c.is_whitespace() || matches!(c, '\x1c'..='\x1f');
        let words = text.split(python_space).filter(|w| !w.is_empty());
        words.map(|w| self.id(w)).collect()
    }

    /// What lies between single spaces: as Python's `split(" ")`, for which the empty text has one word, which is empty.
    pub fn ids_between_spaces(&mut self, text: &'a str) -> Vec<u32> {
        text.split(' ').map(|w| self.id(w)).collect()
    }

    fn id(&mut self, word: &'a str) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(word).or_insert(next)
    }
}

/// One to four words: their numbers plus one, the last in the lowest bits. So shorter n-grams come before longer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Gram(u128);

impl Gram {
    fn of(words: &[u32]) -> Gram {
        Gram(words.iter().fold(0, |g, &w| g << 32 | (w as u128 + 1)))
    }

    /// Its number of words, less one.
    pub fn order(self) -> usize {
        N - 1 - self.0.leading_zeros() as usize / 32
    }

    /// Which of [`PARTS`] it belongs to.
    fn part(self) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mixed = (((self.0 >> 64) as u64).rotate_left(29) ^ self.0 as u64).wrapping_mul(ODD);
        (mixed >> (64 - PARTS.ilog2())) as usize
    }
}

/// The n-grams of a text with their counts, sorted.
pub(super) struct Grams {
    pub words: usize,
    grams: Vec<Gram>,
    counts: Vec<u32>,
}

impl Grams {
    pub fn of(words: &[u32]) -> Grams {
        let mut grams = Vec::with_capacity(N * words.len());
        for n in 1..=N {
            let start = grams.len();
            grams.extend(words.windows(n).map(Gram::of));
            grams[start..].sort_unstable();
        }
        let mut counts = Vec::with_capacity(grams.len());
        let mut last = None;
        grams.retain(|g| {
            let new = last != Some(*g);
            match counts.last_mut() {
                Some(count) if !new => *count += 1,
                _ => counts.push(1),
            }
            last = Some(*g);
            new
        });
        Grams { words: words.len(), grams, counts }
    }

    /// Each n-gram once, with its count.
    pub fn iter(&self) -> impl Iterator<Item = (Gram, u32)> {
        self.grams.iter().copied().zip(self.counts.iter().copied())
    }

    /// Where both have an n-gram: its place here and there.
    pub fn shared<'s>(&'s self, other: &'s Grams) -> impl Iterator<Item = (usize, usize)> + 's {
        let mut there = 0;
        self.grams.iter().enumerate().filter_map(move |(here, g)| {
            there += other.grams[there..].iter().take_while(|o| *o < g).count();
            (other.grams.get(there) == Some(g)).then_some((here, there))
        })
    }

    /// How many different n-grams there are: places.
    pub fn len(&self) -> usize {
        self.grams.len()
    }

    /// The count at a place.
    pub fn count_at(&self, place: usize) -> u32 {
        self.counts[place]
    }
}

/// How rare the n-grams of references are: log(images / images whose references have it). Every part is counted by one thread.
pub(super) struct Rarity {
    /// Where the weight of an n-gram is.
    parts: Vec<HashMap<Gram, u32, FixedState>>,
    weights: Vec<f64>,
    /// Where the weight of each n-gram of each reference is, one after another: they need not be looked up.
    places: Vec<u32>,
    /// Where each image's begin.
    starts: Vec<usize>,
    unseen: f64,
}

/// Parts of [`Rarity`]: a power of two.
const PARTS: usize = 4;

impl Rarity {
    /// Of the references of each image.
    pub fn of(references: &[&[Grams]]) -> Rarity {
        let mut starts = vec![0];
        for texts in references {
            starts.push(starts[starts.len() - 1] + texts.iter().map(Grams::len).sum::<usize>());
        }
        let all = starts[references.len()];
        let places: Vec<AtomicU32> = (0..all).map(|_| AtomicU32::new(0)).collect();
        let count = |part: usize| {
            let mut numbers: HashMap<Gram, u32, FixedState> = HashMap::default();
            numbers.reserve(all / PARTS / 2);
            // Of each n-gram, the images that have it and the last of them.
            let mut seen: Vec<(u32, usize)> = Vec::with_capacity(all / PARTS / 2);
            for (image, texts) in references.iter().enumerate() {
                let grams = texts.iter().flat_map(|t| &t.grams);
                for (g, place) in grams.zip(&places[starts[image]..]).filter(|(g, _)| g.part() == part) {
                    let number = *numbers.entry(*g).or_insert(seen.len() as u32);
                    match seen.get_mut(number as usize) {
                        Some((images, last)) if *last != image => (*images, *last) = (*images + 1, image),
                        Some(_) => {}
                        None => seen.push((1, image)),
                    }
                    place.store(number * PARTS as u32 + part as u32, Ordering::Relaxed);
                }
            }
            (numbers, seen)
        };
        let counted: Vec<_> = (0..PARTS).into_par_iter().map(count).collect();
        let unseen = (references.len() as f64).ln();
        let longest = counted.iter().map(|(_, seen)| seen.len()).max().unwrap_or(0);
        let mut weights = vec![unseen; longest * PARTS];
        for (part, (_, seen)) in counted.iter().enumerate() {
            for (weight, (images, _)) in weights.iter_mut().skip(part).step_by(PARTS).zip(seen) {
                if *images > 1 {
                    *weight = unseen - (*images as f64).ln();
                }
            }
        }
        let places = places.into_iter().map(AtomicU32::into_inner).collect();
        Rarity { parts: counted.into_iter().map(|(numbers, _)| numbers).collect(), weights, places, starts, unseen }
    }

    /// The weight of any n-gram.
    pub fn of_gram(&self, g: Gram) -> f64 {
        let part = g.part();
        self.parts[part].get(&g).map_or(self.unseen, |number| self.weights[*number as usize * PARTS + part])
    }

    /// The weights of the n-grams of all references of an image, one after another.
    pub fn of_references(&self, image: usize) -> impl Iterator<Item = f64> {
        self.places[self.starts[image]..self.starts[image + 1]].iter().map(|p| self.weights[*p as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grams(words: &[u32]) -> Grams {
        Grams::of(words)
    }

    #[test]
    fn n_grams_are_counted_and_know_their_length() {
        let g = grams(&[0, 1, 0, 1, u32::MAX - 1]);
        let all: Vec<(usize, u32)> = g.iter().map(|(g, n)| (g.order(), n)).collect();
        // 0, 1, x; 01, 10, 1x; 010, 01x, 101; 0101, 101x
        let want = [(0, 2), (0, 2), (0, 1), (1, 2), (1, 1), (1, 1), (2, 1), (2, 1), (2, 1), (3, 1), (3, 1)];
        assert_eq!(all, want);
        assert!(g.grams.is_sorted());
        assert_eq!((grams(&[]).len(), grams(&[]).words), (0, 0));
    }

    #[test]
    fn shared_n_grams_are_those_found_one_by_one() {
        let texts = [vec![], vec![3], vec![1, 2, 3, 1, 2], vec![2, 3, 1, 1, 2, 9], vec![0, 1, 2, 3]];
        for a in texts.iter().map(|t| grams(t)) {
            for b in texts.iter().map(|t| grams(t)) {
                let got: Vec<(Gram, Gram)> = a.shared(&b).map(|(i, j)| (a.grams[i], b.grams[j])).collect();
                let want: Vec<(Gram, Gram)> =
                    a.grams.iter().filter(|g| b.grams.contains(g)).map(|g| (*g, *g)).collect();
                assert_eq!(got, want);
            }
        }
    }

    /// An image counts once, however often its references say the same.
    #[test]
    fn rarity_counts_images() {
        let texts = [vec![grams(&[1, 2]), grams(&[1, 1])], vec![grams(&[2])], vec![grams(&[1])]];
        let rarity = Rarity::of(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let of = |words: &[u32]| rarity.of_gram(Gram::of(words));
        let (once, twice) = (3.0f64.ln(), 3.0f64.ln() - 2.0f64.ln());
        assert_eq!([of(&[1]), of(&[2]), of(&[1, 2]), of(&[2, 1]), of(&[7])], [twice, twice, once, once, once]);
        for (image, texts) in texts.iter().enumerate() {
            let want: Vec<f64> = texts.iter().flat_map(|t| t.iter().map(|(g, _)| rarity.of_gram(g))).collect();
            assert_eq!(rarity.of_references(image).collect::<Vec<_>>(), want);
        }
    }

    #[test]
    fn words_are_split_as_python_does() {
        let mut words = Words::default();
        assert_eq!(words.ids(" a\u{a0}b\x1ca  c "), [0, 1, 0, 2]);
        assert_eq!(words.ids_between_spaces("a  c"), [0, 3, 2]);
        assert_eq!((words.ids(""), words.ids_between_spaces("")), (vec![], vec![3]));
    }
}
