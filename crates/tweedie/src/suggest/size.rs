//! How large a network: what a training step of it costs, and the sizes to choose from.

use crate::config::{Config, Method};
use crate::data::Task;
use crate::model::Conditioning;

/// Shape of a network: of an encoder with so many patches along a side, or of a denoiser of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// Patches along a side of the image; windows of text are so many times eight tokens long.
    pub grid: usize,
    pub width: usize,
    pub depth: usize,
    pub heads: usize,
}

const fn size(grid: usize, width: usize, depth: usize, heads: usize) -> Size {
    Size { grid, width, depth, heads }
}

/// From the smallest to the largest, each about two to three times the work of the one before. Small ones have the shape of the
/// recipes for a CPU, large ones of those for a GPU.
pub(super) const SIZES: [Size; 11] = [
    size(4, 32, 2, 2),
    size(4, 64, 3, 4),
    size(8, 64, 3, 4),
    size(8, 96, 4, 3),
    size(8, 128, 4, 4),
    size(8, 192, 5, 3),
    size(12, 192, 6, 3),
    size(12, 256, 7, 4),
    size(14, 384, 7, 6),
    size(14, 512, 8, 8),
    size(14, 768, 12, 12),
];

/// The widest network that so many examples are enough for: wider ones know them by heart before they have learned from them.
pub(super) fn widest(examples: usize) -> usize {
    match examples {
        0..300 => 64,
        300..2_000 => 128,
        2_000..8_000 => 192,
        8_000..40_000 => 384,
        40_000..400_000 => 512,
        _ => 768,
    }
}

/// Multiplications and additions of training on one example, forward and backward, for `vocab` classes.
pub(super) fn work(c: &Config, vocab: usize) -> f64 {
    let (e, d) = (&c.model.encoder, &c.model.denoiser);
    // A block has 12 width² weights, each used once by every token; attention has two products with every other token.
    let blocks = |tokens: usize, others: usize, width: usize, depth: usize| {
        (tokens * depth) as f64 * (24 * width * width + 4 * others * width) as f64
    };
    let encoder = match c.model.condition {
        Conditioning::Image => {
            let patches = 2 * e.channels * e.patch * e.patch * e.width * e.grid().pow(2);
            blocks(e.tokens(), e.tokens(), e.width, e.depth) + patches as f64
        }
        Conditioning::None => 0.0,
    };
    let tokens = c.sizes().tokens;
    let condition = if c.data.task == Task::Caption { e.tokens() } else { 1 };
    // Classes go in and out.
    let head = (4 * tokens * d.width * vocab) as f64;
    let copies = match c.model.method {
        Method::Tdd => c.train.noisy_copies,
        Method::Mdd => 1,
    };
    // Keys of the condition are made once for all copies.
    let keys = blocks(condition, 0, d.width, d.depth) / 6.0;
    3.0 * (encoder + keys + copies as f64 * (blocks(tokens, tokens + condition, d.width, d.depth) + head))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tiny` at 32×32 with ten classes: 27.2 MFLOP forward for the 6 blocks of 192 over 65 tokens, by hand.
    #[test]
    fn work_is_three_forward_passes() {
        let mut c = Config::default().with("train.noisy_copies", 1).unwrap();
        c.model = crate::model::ModelConfig::preset("tiny").unwrap();
        let by_hand = 65.0 * 6.0 * (24.0 * 192.0 * 192.0 + 4.0 * 65.0 * 192.0);
        let got = work(&c, 10);
        assert!((3.0 * by_hand..3.06 * by_hand).contains(&got), "{got} {by_hand}");
        // Eight copies cost little beside the encoder.
        let many = work(&c.with("train.noisy_copies", 8).unwrap(), 10);
        assert!(many > got && many < 1.1 * got);
    }

    #[test]
    fn sizes_grow() {
        let of = |s: &Size| s.grid * s.grid * s.width * s.width * s.depth;
        assert!(SIZES.windows(2).all(|p| of(&p[0]) < of(&p[1]) && p[1].width.is_multiple_of(p[1].heads)));
    }
}
