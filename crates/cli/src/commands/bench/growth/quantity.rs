//! What can grow, how far, and how fast time may grow with it.

use serde::Serialize;
use tweedie::data::Task;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    Batch,
    Image,
    Vocab,
    Tokens,
    Steps,
}

impl Quantity {
    pub const ALL: [Quantity; 5] =
        [Quantity::Batch, Quantity::Image, Quantity::Vocab, Quantity::Tokens, Quantity::Steps];

    pub fn flag(self) -> &'static str {
        match self {
            Quantity::Batch => "batch",
            Quantity::Image => "image",
            Quantity::Vocab => "vocab",
            Quantity::Tokens => "tokens",
            Quantity::Steps => "steps",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Quantity::Batch => "batch size",
            Quantity::Image => "image side (pixels)",
            Quantity::Vocab => "vocabulary",
            Quantity::Tokens => "sequence length (tokens)",
            Quantity::Steps => "sampling steps",
        }
    }

    pub fn applies(self, task: Task) -> bool {
        match self {
            Quantity::Image => task != Task::Text,
            Quantity::Tokens => task != Task::Class,
            _ => true,
        }
    }

    /// The range, growing by a constant factor. `side` is the preset's own.
    pub fn values(self, side: usize) -> Vec<usize> {
        let doubling = |first: usize, n: usize| (0..n).map(|i| first << i).collect();
        match self {
            Quantity::Batch => doubling(1, 6),
            Quantity::Image => doubling((side / 2).max(1), 5),
            Quantity::Vocab => (0..5).map(|i| 1000 << (2 * i)).collect(), // 1,000 to 256,000
            Quantity::Tokens => doubling(8, 6),
            Quantity::Steps => doubling(1, 7),
        }
    }

    /// The highest exponent of time that the network's arithmetic explains: attention is quadratic in tokens, and these are
    /// quadratic in the side of an image.
    pub fn bound(self) -> f64 {
        match self {
            Quantity::Batch | Quantity::Vocab | Quantity::Steps => 1.0,
            Quantity::Tokens => 2.0,
            Quantity::Image => 4.0,
        }
    }
}

/// Slope of ln y over ln x by least squares, over the upper half of the points (at least two, given in ascending order).
pub fn exponent(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len().div_ceil(2).max(2);
    let upper = &points[points.len().checked_sub(n)?..];
    let logs: Vec<(f64, f64)> = upper.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = |f: fn(&(f64, f64)) -> f64| logs.iter().map(f).sum::<f64>() / n as f64;
    let (mx, my) = (mean(|p| p.0), mean(|p| p.1));
    let sxy: f64 = logs.iter().map(|(x, y)| (x - mx) * (y - my)).sum();
    let sxx: f64 = logs.iter().map(|(x, _)| (x - mx).powi(2)).sum();
    let slope = sxy / sxx;
    slope.is_finite().then_some(slope)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// y = 3 x^1.5 + 1000: where the constant is small, the power shows.
    #[test]
    fn the_upper_half_gives_the_exponent() {
        let law = |offset: f64| -> Vec<(f64, f64)> {
            (0..10).map(|i| 4_f64.powi(i)).map(|x| (x, 3.0 * x.powf(1.5) + offset)).collect()
        };
        assert!((exponent(&law(0.0)).unwrap() - 1.5).abs() < 1e-12);
        let fitted = exponent(&law(1000.0)).unwrap();
        assert!((fitted - 1.5).abs() < 0.02, "{fitted}"); // 4^5: 1000 beside 98,304
        assert_eq!(exponent(&law(0.0)[..1]), None);
        assert_eq!(exponent(&[]), None);
        assert_eq!(exponent(&[(1.0, 2.0), (2.0, 0.0)]), None);
    }

    #[test]
    fn ranges_grow_by_a_constant_factor() {
        for q in Quantity::ALL {
            let v = q.values(32);
            let factor = v[1] / v[0];
            assert!(factor >= 2 && v.windows(2).all(|w| w[1] == factor * w[0]), "{v:?}");
        }
        assert_eq!(Quantity::Vocab.values(32).last(), Some(&256_000));
    }
}
