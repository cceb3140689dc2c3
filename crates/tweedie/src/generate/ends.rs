//! Where texts end: marks, padding, and what of a row of tokens counts.

use tweedie_engine::Tensor;

use crate::bound::{self, BoundPath, Bounds, TokenBatch};
use crate::data::Layout;
use crate::error::Result;
use crate::sample::Ending;
use crate::tokenize::Tokenizer;
use crate::trained::Trained;

/// Where this tokenizer's texts end, at a length of the model's choice.
pub fn free_ending(tokenizer: &Tokenizer) -> Ending {
    Ending { eos: tokenizer.eos(), pad: tokenizer.pad(), unk: tokenizer.unk(), length: None, min_length: 1 }
}

/// Where texts end that have so many tokens, or at least so many; `None` for windows of a stream, which have no end of their own
/// unless a length is asked for.
pub(crate) fn ending_of(t: &Trained, length: Option<usize>, min_length: usize) -> Result<Option<Ending>> {
    let ends = t.layout == Layout::Lines || length.is_some();
    let tokenizer = t.tokenizer()?;
    Ok(ends.then(|| Ending { length, min_length, ..free_ending(tokenizer) }))
}

/// Rows of `n` tokens with padding behind their end: what stands there is not part of a text, nor of its likelihood.
pub(super) fn pad_behind_end(tokens: &mut [u32], n: usize, tokenizer: &Tokenizer) {
    for row in tokens.chunks_exact_mut(n) {
        let end = row.iter().position(|t| *t == tokenizer.eos()).map_or(n, |i| i + 1);
        row[end..].fill(tokenizer.pad());
    }
}

/// Bounds on −ln p of texts as tokens \[B·N\], one image each if the model is told them. Padding counts as the tokens it is: the network
/// is shown it, and so it tells where a text ends. [`Bounds::weight`] is the number of tokens up to the end, which bits per token
/// are of.
pub fn bound_of_texts(
    t: &Trained,
    images: Option<&Tensor>,
    tokens: &[u32],
    examples: &[u32],
    draws: usize,
) -> Result<Bounds> {
    bound_of_texts_along(BoundPath::own(t), t, images, (tokens, examples), draws)
}

/// As [`bound_of_texts`], along a path that the model can go.
pub fn bound_of_texts_along(
    path: BoundPath,
    t: &Trained,
    images: Option<&Tensor>,
    (tokens, examples): (&[u32], &[u32]),
    draws: usize,
) -> Result<Bounds> {
    let sizes = t.model.sizes();
    let batch = TokenBatch { tokens, n: sizes.tokens, vocab: sizes.vocab, examples, weights: None };
    let bounds = bound::of_trained_along(path, t, images, &batch, draws)?;
    Ok(Bounds { weight: lengths(tokens, sizes.tokens, t.tokenizer()?), ..bounds })
}

/// Tokens of each row up to its end, which counts.
fn lengths(tokens: &[u32], n: usize, tokenizer: &Tokenizer) -> Vec<f64> {
    let (pad, eos) = (tokenizer.pad(), tokenizer.eos());
    let of = |row: &[u32]| {
        // Padding at the end of the row; where one token is both, the first of them is the end.
        let text = row.iter().rposition(|t| *t != pad).map_or(0, |i| i + 1);
        (if pad == eos { text + 1 } else { text }).min(n) as f64
    };
    tokens.chunks_exact(n).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::Kind;

    #[test]
    fn a_text_is_as_long_as_its_tokens_and_its_end() {
        let t = Tokenizer::train(Kind::Word, 100, ["a red circle"]).unwrap();
        let (p, e) = (t.pad(), t.eos());
        let (a, b) = (t.encode("red")[0], t.encode("circle")[0]);
        assert_eq!(lengths(&[a, b, e, p, p, a, b, a, b, e], 5, &t), [3.0, 5.0]);
        assert_eq!(lengths(&[e, p, p, p, p, a, b, a, b, a], 5, &t), [1.0, 5.0]);
    }
}
