//! How likely a model holds texts to be: [`Generator::score`].

use super::{Generator, batch_size, ends::bound_of_texts};
use crate::data::{Image, Layout};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::tokenize::Tokenizer;

/// An upper bound on −ln p of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TextScore {
    /// Nats, of the whole text.
    pub nats: f64,
    /// Standard error of that: the bound is an estimate.
    pub error: f64,
    /// Tokens it is of, the end of the text among them.
    pub tokens: usize,
}

impl TextScore {
    /// Bits per token.
    pub fn bits_per_token(&self) -> f64 {
        self.nats / self.tokens as f64 / std::f64::consts::LN_2
    }
}

/// A text as rows of N tokens: one with its end and padding, or the windows of a stream.
fn rows_of(tokenizer: &Tokenizer, layout: Layout, n: usize, (i, text): (usize, &str)) -> Result<Vec<u32>> {
    let mut tokens = tokenizer.try_encode(if layout == Layout::Lines { text.trim() } else { text })?;
    let all = tokens.len();
    let wrong = |what: String| Err(Error::Input(format!("text {i} {what}")));
    match layout {
        _ if all == 0 => wrong("is empty; there is nothing to score".into()),
        Layout::Lines if all > n => wrong(format!("has {all} tokens, the model has room for {n}; shorten it")),
        Layout::Lines => {
            tokens.resize(n, tokenizer.pad());
            if let Some(end) = tokens.get_mut(all) {
                *end = tokenizer.eos();
            }
            Ok(tokens)
        }
        Layout::Packed if all < n => {
            wrong(format!("has {all} tokens, the model reads windows of {n}; hand it a longer text"))
        }
        Layout::Packed => {
            tokens.truncate(all / n * n);
            Ok(tokens)
        }
    }
}

impl Generator<'_> {
    /// Upper bounds on −ln p of texts, each with its image if the model looks at them, from `draws` times each. Of a model that reads
    /// windows of a stream, whole windows count and what is left at the end does not. A score does not depend on what else is asked for,
    /// on the CPU to the last bit.
    ///
    /// ```
    /// use tweedie::Generator;
    ///
    /// let generator = Generator::open("embedded:shapes")?;
    /// # let texts = ["a red circle".to_string()];
    /// # assert!(generator.score(&texts, None, 4).is_err());
    /// # let image = tweedie::Image::filled(32, 32, &[255, 255, 255]);
    /// let scores = generator.score(&texts, Some(&[image]), 4)?;
    /// println!("{:.2} bits per token", scores[0].bits_per_token());
    /// # Ok::<(), tweedie::Error>(())
    /// ```
    pub fn score(&self, texts: &[String], images: Option<&[Image]>, draws: usize) -> Result<Vec<TextScore>> {
        let (t, tokenizer) = (self.trained(), self.trained().tokenizer()?);
        let n = t.model.sizes().tokens;
        match images {
            None if t.model.is_conditional() => {
                return Err(Error::Input("this model looks at images; give one for each text".into()));
            }
            Some(images) if images.len() != texts.len() => {
                return Err(Error::Input(format!("{} images for {} texts", images.len(), texts.len())));
            }
            _ => {}
        }
        let mut scores = vec![TextScore::default(); texts.len()];
        // Of each row the text it is of, and its number there, which addresses the noise.
        let (mut rows, mut tokens): (Vec<(usize, u32)>, Vec<u32>) = Default::default();
        for (i, text) in texts.iter().enumerate() {
            let of_text = rows_of(tokenizer, t.layout, n, (i, text))?;
            rows.extend((0..of_text.len() / n).map(|row| (i, row as u32)));
            tokens.extend(of_text);
        }
        let size = batch_size(t);
        for (rows, tokens) in rows.chunks(size).zip(tokens.chunks(size * n)) {
            interrupt::check()?;
            let images = match images {
                Some(images) => {
                    let own: Vec<Image> = rows.iter().map(|(i, _)| images[*i].clone()).collect();
                    Some(t.images(&own)?)
                }
                None => None,
            };
            let ids: Vec<u32> = rows.iter().map(|(_, row)| *row).collect();
            let b = super::batch_invariant(|| bound_of_texts(t, images.as_ref(), tokens, &ids, draws))?;
            for (k, (i, _)) in rows.iter().enumerate() {
                let score = &mut scores[*i];
                score.nats += b.nats[k];
                score.error = score.error.hypot(b.error[k]);
                score.tokens += b.weight[k] as usize;
            }
        }
        match scores.iter().any(|s| s.nats.is_nan()) {
            true => Err(Error::Input("the model's predictions are not numbers; use an earlier checkpoint".into())),
            false => Ok(scores),
        }
    }
}
