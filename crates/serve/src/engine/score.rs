//! How likely a model finds a text.

use tweedie::bound::{self, TokenBatch};
use tweedie::{Tensor, Trained};

use super::Reply;
use crate::app::Place;
use crate::error::{Problem, Result};

/// A text whose likelihood is to be bounded.
pub struct ScoreAsk {
    /// The model's name.
    pub model: String,
    /// The image as the network reads it.
    pub image: Option<Vec<f32>>,
    /// Rows of N tokens.
    pub tokens: Vec<u32>,
    /// Which of them count.
    pub weights: Vec<f32>,
    /// Times drawn.
    pub draws: usize,
    /// Its place in the queue.
    pub place: Place,
    /// Where the answer goes.
    pub reply: Reply<Scored>,
}

/// The bound.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// Nats of all tokens.
    pub nats: f64,
    /// Standard error of that.
    pub error: f64,
    /// Of each token.
    pub tokens: Vec<f64>,
}

impl ScoreAsk {
    /// Compute it.
    pub fn run(&self, trained: &Trained) -> Result<Scored> {
        self.bound(trained).map_err(|e| Problem::internal(e.to_string()))
    }

    fn bound(&self, t: &Trained) -> tweedie::Result<Scored> {
        let (sizes, e) = (t.model.sizes(), &t.model.config().encoder);
        let rows = self.tokens.len() / sizes.tokens.max(1);
        let image = match &self.image {
            Some(values) => {
                let shape = [rows, e.channels, e.image, e.image];
                Some(Tensor::from_f32(&t.model.device(), &shape, values.repeat(rows))?)
            }
            None => None,
        };
        let examples: Vec<u32> = (0..rows as u32).collect();
        let (n, vocab) = (sizes.tokens, sizes.vocab);
        let batch = TokenBatch { tokens: &self.tokens, n, vocab, examples: &examples, weights: Some(&self.weights) };
        let all = bound::of_trained(t, image.as_ref(), &batch, self.draws)?;
        let error = all.error.iter().map(|e| e * e).sum::<f64>().sqrt();
        Ok(Scored { nats: all.nats.iter().sum(), error, tokens: all.tokens })
    }
}
