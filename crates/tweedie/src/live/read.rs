//! What is read back from the device after a step, and what is told of it.

use tweedie_engine::ops::choose::{Chosen, FREE};

use super::lane::Row;
use super::network::Network;
use super::plan::Walk;
use super::{LiveStep, Place};
use crate::error::Result;
use crate::sample::{BuiltIn, softmax};

/// A step's numbers, on the host.
pub(super) struct Read {
    pub tokens: Vec<u32>,
    pub log_probs: Vec<f32>,
    pub entropy: Vec<f32>,
    pub top: Vec<(u32, f32)>,
    /// How many in `top` for each token.
    pub k: usize,
}

impl Read {
    pub fn of(chosen: &Chosen, k: usize) -> Result<Read> {
        let top = match &chosen.top {
            Some((ids, log_probs)) => ids.to_vec_u32()?.into_iter().zip(log_probs.to_vec()?).collect(),
            None => Vec::new(),
        };
        let numbers = chosen.numbers()?;
        Ok(Read {
            tokens: chosen.tokens.to_vec_u32()?,
            log_probs: numbers.log_prob.to_vec()?,
            entropy: numbers.entropy.to_vec()?,
            top,
            k,
        })
    }
}

/// What is told of a step besides the tokens, for each row.
pub(super) enum All {
    Untold,
    /// Logits of the classes.
    Classes(Vec<Vec<f32>>),
    /// Probabilities of all tokens.
    Tokens(Vec<Vec<f64>>),
}

impl All {
    /// What a class is told by at the end of row `r`.
    pub fn logits(&self, r: usize) -> Vec<f32> {
        match self {
            All::Classes(logits) => logits[r].clone(),
            All::Tokens(_) | All::Untold => Vec::new(),
        }
    }
}

/// What is told of the step that `row`, number `r` of its lane, has just taken.
pub(super) fn live_step(net: &Network, row: &Row, t: usize, read: &Read, r: usize, all: &All) -> LiveStep {
    let (n, vocab) = (row.tokens.len(), net.model().sizes().vocab as u32);
    let place = |i: usize| {
        let k = r * n + i;
        let top = read.top[k * read.k..][..row.top.min(read.k)].iter();
        Place {
            id: Some(row.tokens[i]).filter(|id| *id < vocab),
            p: f64::from(read.log_probs[k]).exp(),
            entropy: f64::from(read.entropy[k]),
            fixed: row.pinned[i],
            committed: match row.path.kind.walk {
                Walk::Masked { .. } => row.tokens[i] < vocab,
                Walk::Noisy(BuiltIn::Confident(_)) => row.fixed[i] != FREE,
                Walk::Noisy(BuiltIn::Linear(_) | BuiltIn::Staggered(_)) => false,
            },
            top: top.map(|(id, log_p)| (*id, f64::from(*log_p).exp())).collect(),
        }
    };
    let mut places: Vec<Place> = (0..n).map(place).collect();
    let probabilities = match all {
        All::Classes(logits) => Some(softmax(&logits[r])),
        All::Tokens(p) if row.probabilities => Some(p[r].clone()),
        All::Tokens(_) | All::Untold => None,
    };
    // Of a class the likeliest one is told, whichever the sampler goes on with.
    if let (All::Classes(_), Some(p), Some(place)) = (all, &probabilities, places.first_mut()) {
        *place = Place { fixed: place.fixed, committed: place.committed, ..Place::of_class(p, row.top) };
    }
    LiveStep {
        step: row.at,
        of: row.path.steps.len(),
        t,
        alpha_bar: net.trained.process.schedule().alpha_bar(t),
        places,
        probabilities,
    }
}
