//! Random choices as a pure function of their address: Philox keyed by the seed, counted by (draw, example, epoch,
//! stream). So an augmentation depends neither on threads nor on order nor on where a run was resumed.

use tweedie_engine::rng::{normal_pair, normals_of, philox};

use crate::simd::simd;

/// What a sequence of draws is for. Streams never share numbers.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Stream {
    /// Augmentation of one example.
    Augment = 0x4155_474d,
    /// The order of an epoch.
    Order = 0x4f52_4452,
    /// Mixup and cutmix of one batch.
    Mix = 0x4d49_5858,
    /// Which examples are held out for validation.
    Split = 0x5350_4c54,
    /// Noise in an erased rectangle.
    Erase = 0x4552_4153,
    /// Examples drawn in place of unreadable ones.
    Replace = 0x5245_504c,
    /// Images drawn again to see how sure a score is.
    Bootstrap = 0x424f_4f54,
    /// Captions dealt to other images.
    Shuffle = 0x5348_5546,
    /// Which caption of an image is shown.
    Caption = 0x4341_5054,
    /// Where packed text begins.
    Offset = 0x4f46_4653,
}

/// The address of an example's random choices.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The run's seed.
    pub seed: u64,
    /// Pass over the data.
    pub epoch: u32,
    /// Number of the example in its source.
    pub example: u32,
}

/// A sequence of random numbers with its own address.
///
/// ```
/// use tweedie::random::{Draw, Stream};
///
/// let mut a = Draw::new(7, Stream::Augment, 0, 41);
/// let mut b = Draw::new(7, Stream::Augment, 0, 41);
/// assert_eq!(a.below(1000), b.below(1000));
/// ```
#[derive(Clone, Debug)]
pub struct Draw {
    key: [u32; 2],
    address: [u32; 3], // example, epoch, stream
    block: u32,
    words: [u32; 4],
    left: usize,
}

impl Draw {
    /// The sequence at (seed, epoch, example) of `stream`.
    pub fn new(seed: u64, stream: Stream, epoch: u32, example: u32) -> Draw {
        Draw {
            key: [seed as u32, (seed >> 32) as u32],
            address: [example, epoch, stream as u32],
            block: 0,
            words: [0; 4],
            left: 0,
        }
    }

    #[inline(always)]
    fn next_block(&mut self) -> [u32; 4] {
        let [example, epoch, stream] = self.address;
        let w = philox([self.block, example, epoch, stream], self.key);
        self.block = self.block.wrapping_add(1);
        w
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        if self.left == 0 {
            self.words = self.next_block();
            self.left = 4;
        }
        self.left -= 1;
        self.words[3 - self.left]
    }

    /// Uniform in [0, 1) with 32 bits.
    pub fn unit(&mut self) -> f64 {
        self.word() as f64 / 4294967296.0
    }

    /// Uniform in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Uniform in 0..n; the bias of the 32-bit product is below n / 2³².
    pub fn below(&mut self, n: usize) -> usize {
        ((self.word() as u64 * n as u64) >> 32) as usize
    }

    /// A standard normal.
    pub fn normal(&mut self) -> f64 {
        let (a, b) = (self.word(), self.word());
        normal_pair(a, b).0 as f64
    }

    /// Fill with standard normals.
    pub fn fill_normal(&mut self, out: &mut [f32]) {
        simd(
            #[inline(always)]
            || {
                for four in out.chunks_mut(4) {
                    let z = normals_of(self.next_block());
                    four.copy_from_slice(&z[..four.len()]);
                }
            },
        );
    }

    /// Beta(α, α): two Gamma numbers by Marsaglia and Tsang, for α > 0 (others count as the nearest that is possible).
    pub fn beta(&mut self, alpha: f64) -> f64 {
        let alpha = if alpha > 0.0 { alpha.min(1e100) } else { f64::MIN_POSITIVE };
        let (a, b) = (self.log_gamma(alpha), self.log_gamma(alpha));
        // In logarithms, because both may underflow when α is small.
        1.0 / (1.0 + (b - a).exp())
    }

    /// The logarithm of a Gamma(α, 1) number.
    fn log_gamma(&mut self, alpha: f64) -> f64 {
        if alpha < 1.0 {
            let u = 1.0 - self.unit();
            return self.log_gamma(alpha + 1.0) + u.ln() / alpha;
        }
        let d = alpha - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.unit();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return (d * v).ln();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean 1/2 and variance 1/(4(2α+1)); bounds are five standard errors.
    #[test]
    fn beta_has_its_moments() {
        for alpha in [0.1, 0.8, 1.0, 3.0] {
            let n = 100_000;
            let mut draw = Draw::new(1, Stream::Mix, 0, 0);
            let x: Vec<f64> = (0..n).map(|_| draw.beta(alpha)).collect();
            let mean = x.iter().sum::<f64>() / n as f64;
            let var = x.iter().map(|v| (v - 0.5).powi(2)).sum::<f64>() / n as f64;
            let want = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 5.0 * (want / n as f64).sqrt(), "{alpha}: {mean}");
            assert!((var - want).abs() < 5.0 * 0.25 * want.sqrt() / (n as f64).sqrt() * 2.0, "{alpha}: {var} {want}");
        }
    }

    #[test]
    fn integers_are_even() {
        let mut draw = Draw::new(3, Stream::Order, 1, 2);
        let mut counts = [0f64; 7];
        (0..70_000).for_each(|_| counts[draw.below(7)] += 1.0);
        let chi2: f64 = counts.iter().map(|c| (c - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 30.0, "{chi2}"); // 6 degrees of freedom: P(χ² > 30) < 1e-4
    }

    #[test]
    fn addresses_do_not_share_numbers() {
        let first = |s, t, e, i| Draw::new(s, t, e, i).word();
        let base = first(1, Stream::Augment, 2, 3);
        assert_eq!(base, first(1, Stream::Augment, 2, 3));
        let others = [
            first(2, Stream::Augment, 2, 3),
            first(1, Stream::Mix, 2, 3),
            first(1, Stream::Augment, 3, 3),
            first(1, Stream::Augment, 2, 4),
        ];
        assert!(others.iter().all(|&w| w != base));
    }
}
