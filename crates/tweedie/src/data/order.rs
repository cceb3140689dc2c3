//! The order in which an epoch visits its examples: a pure function of (seed, epoch, source).

use super::{ImageSource, Locality};
use crate::random::{Draw, Stream};

/// A permutation of the examples of `source`. Sources with [`ImageSource::locality`] are shuffled block by block, then
/// inside windows of blocks.
pub fn epoch_order(source: &dyn ImageSource, seed: u64, epoch: u32) -> Vec<u32> {
    order(source.len(), source.locality(), seed, epoch)
}

/// The same for `n` examples of any kind.
pub(crate) fn order(n: usize, locality: Option<Locality>, seed: u64, epoch: u32) -> Vec<u32> {
    let n = n as u32;
    let draw = &mut Draw::new(seed, Stream::Order, epoch, 0);
    // Blocks that do not make up the whole, of a source of anybody's, are none.
    let whole = |l: &Locality| l.starts.first() == Some(&0) && l.starts.is_sorted() && l.starts.last() < Some(&n);
    let Some(locality) = locality.filter(whole) else {
        let mut order: Vec<u32> = (0..n).collect();
        shuffle(&mut order, draw);
        return order;
    };
    let ends = locality.starts.iter().skip(1).copied().chain([n]);
    let mut blocks: Vec<(u32, u32)> = locality.starts.iter().copied().zip(ends).collect();
    shuffle(&mut blocks, draw);
    let mut order = Vec::with_capacity(n as usize);
    for window in blocks.chunks(locality.window.max(1)) {
        let first = order.len();
        window.iter().for_each(|&(a, b)| order.extend(a..b));
        shuffle(&mut order[first..], draw);
    }
    order
}

/// Fisher and Yates.
fn shuffle<T>(items: &mut [T], draw: &mut Draw) {
    for i in (1..items.len()).rev() {
        items.swap(i, draw.below(i + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Item, Result};

    struct Blocks(usize, Option<Locality>);

    impl ImageSource for Blocks {
        fn len(&self) -> usize {
            self.0
        }
        fn get(&self, _: usize) -> Result<Item> {
            unreachable!()
        }
        fn label(&self, _: usize) -> u32 {
            0
        }
        fn place(&self, _: usize) -> String {
            String::new()
        }
        fn locality(&self) -> Option<Locality> {
            self.1.clone()
        }
    }

    #[test]
    fn an_order_is_a_permutation_of_its_own() {
        let local = Locality { starts: vec![0, 10, 30, 31, 70], window: 2 };
        for source in [Blocks(100, None), Blocks(100, Some(local))] {
            let order = epoch_order(&source, 7, 3);
            let mut sorted = order.clone();
            sorted.sort();
            assert_eq!(sorted, (0..100).collect::<Vec<_>>());
            assert_eq!(order, epoch_order(&source, 7, 3));
            assert_ne!(order, epoch_order(&source, 7, 4));
            assert_ne!(order, epoch_order(&source, 8, 3));
        }
    }

    #[test]
    fn windows_stay_together() {
        let source = Blocks(1000, Some(Locality { starts: (0..100).map(|b| b * 10).collect(), window: 4 }));
        for part in epoch_order(&source, 1, 0).chunks(40) {
            let mut blocks: Vec<u32> = part.iter().map(|i| i / 10).collect();
            blocks.sort();
            blocks.dedup();
            assert_eq!(blocks.len(), 4);
        }
    }

    /// Each example comes first equally often.
    #[test]
    fn orders_are_uniform() {
        let mut counts = [0f64; 10];
        (0..10_000).for_each(|e| counts[epoch_order(&Blocks(10, None), 1, e)[0] as usize] += 1.0);
        let chi2: f64 = counts.iter().map(|c| (c - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 34.0, "{chi2}"); // 9 degrees of freedom: P(χ² > 34) < 1e-4
    }
}
