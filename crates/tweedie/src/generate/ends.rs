//! Where texts end: marks, padding, and what of a row of tokens counts.

use tweedie_engine::Tensor;

use crate::bound::{self, Bounds, Known};
use crate::error::Result;
use crate::sample::Ending;
use crate::tokenize::Tokenizer;
use crate::trained::Trained;

/// Where this tokenizer's texts end, at a length of the model's choice.
pub fn free_ending(tokenizer: &Tokenizer) -> Ending {
    Ending { eos: tokenizer.eos(), pad: tokenizer.pad(), unk: tokenizer.unk(), length: None, min_length: 1 }
}

/// Rows of `n` tokens with padding behind their end: what stands there is not part of a text, nor of its likelihood.
pub(super) fn pad_behind_end(tokens: &mut [u32], n: usize, tokenizer: &Tokenizer) {
    for row in tokens.chunks_exact_mut(n) {
        let end = row.iter().position(|t| *t == tokenizer.eos()).map_or(n, |i| i + 1);
        row[end..].fill(tokenizer.pad());
    }
}

/// Bounds on −ln p of texts as tokens \[B·N\], one image each if the model is told them. What follows the end of a text does not
/// count.
pub fn bound_of_texts(
    t: &Trained,
    images: Option<&Tensor>,
    tokens: &[u32],
    examples: &[u32],
    draws: usize,
) -> Result<Bounds> {
    let sizes = t.model.sizes();
    let weights = counted(tokens, sizes.tokens, t.tokenizer()?);
    let known = Known { tokens, n: sizes.tokens, vocab: sizes.vocab, examples, weights: weights.as_deref() };
    bound::of_trained(t, images, &known, draws)
}

/// 1 for tokens up to the end of each text, 0 behind it; none if all count.
fn counted(tokens: &[u32], n: usize, tokenizer: &Tokenizer) -> Option<Vec<f32>> {
    let (pad, eos) = (tokenizer.pad(), tokenizer.eos());
    let mut weights = vec![1.0; tokens.len()];
    for (row, weights) in tokens.chunks_exact(n).zip(weights.chunks_exact_mut(n)) {
        // Padding at the end of the row; where one token is both, the first of them is the end.
        let text = row.iter().rposition(|t| *t != pad).map_or(0, |i| i + 1);
        let counts = if pad == eos { text + 1 } else { text };
        weights.iter_mut().skip(counts).for_each(|w| *w = 0.0);
    }
    weights.contains(&0.0).then_some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::Kind;

    #[test]
    fn padding_behind_the_end_does_not_count() {
        let t = Tokenizer::train(Kind::Word, 100, ["a red circle"]).unwrap();
        let (p, e) = (t.pad(), t.eos());
        let (a, b) = (t.encode("red")[0], t.encode("circle")[0]);
        let row = [a, b, e, p, p, a, b, a, b, e];
        assert_eq!(counted(&row, 5, &t), Some(vec![1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]));
        assert_eq!(counted(&row[5..], 5, &t), None);
    }
}
