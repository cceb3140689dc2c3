//! How a text or a class came about, step by step, in words.

use serde::Serialize;

use crate::error::Result;
use crate::sample::Traced;
use crate::trained::Trained;

/// One step: what the network says when it is told time `t`.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The time.
    pub t: usize,
    /// Share ᾱ of the signal in the noisy vectors that it sees.
    pub alpha_bar: f64,
    /// One for each place.
    pub tokens: Vec<Token>,
}

/// One place of the sequence.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    /// The chosen token; of the masked twin, `None` while it is masked.
    pub text: Option<String>,
    /// Its probability.
    pub p: f64,
    /// Nats.
    pub entropy: f64,
    /// The most likely ones.
    pub top: Vec<(String, f64)>,
}

/// The steps of one of the rows that were generated with a trace of `top` candidates.
pub(super) fn steps_of(t: &Trained, steps: &[Traced], row: usize, top: usize) -> Result<Vec<Step>> {
    let tokenizer = t.tokenizer()?;
    let (n, vocab) = (t.model.sizes().tokens, t.model.sizes().vocab as u32);
    let step = |s: &Traced| {
        let token = |i: usize| Token {
            text: (s.tokens[i] < vocab).then(|| tokenizer.token(s.tokens[i])),
            p: (s.log_probs[i] as f64).exp(),
            entropy: s.entropy[i] as f64,
            top: s.top[i * top..(i + 1) * top]
                .iter()
                .map(|(id, lp)| (tokenizer.token(*id), (*lp as f64).exp()))
                .collect(),
        };
        let tokens = (row * n..(row + 1) * n).map(token).collect();
        Step { t: s.t, alpha_bar: t.process.schedule().alpha_bar(s.t), tokens }
    };
    Ok(steps.iter().map(step).collect())
}
