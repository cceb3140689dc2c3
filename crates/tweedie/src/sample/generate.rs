//! Sequences: tokens with their log-probabilities, by TDD or by its masked twin.

use tweedie_engine::Tensor;
use tweedie_engine::ops::choose::{Chosen, MAX_TOP};

use super::limits::{Ending, Limits};
use super::masked::{Filled, fill};
use super::network::{Conditioned, input_layer};
use super::walk::{Seen, Task, walk};
use super::{Denoise, Projection};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::schedule::Schedule;

/// Candidates of one example are this far apart in the addresses of noise: the first is the one that is drawn alone.
const CANDIDATE_SHIFT: u32 = 24;
const MAX_CANDIDATES: usize = 1 << (32 - CANDIDATE_SHIFT);

/// What to generate.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Images \[B, channels, side, side\]; `None` for an unconditional model.
    pub images: Option<&'a Tensor>,
    /// One id per text: they address the noise, so the same id gets the same text in any batch. Below 2²⁴ with candidates.
    pub examples: &'a [u32],
    /// Tokens that are known, \[B·N\]: they are never changed.
    pub given: Option<&'a [Option<u32>]>,
    /// Where texts end.
    pub ending: Option<Ending>,
    /// Texts per example, each from noise of its own.
    pub candidates: usize,
    /// Tell of every step, with this many of the most likely tokens (at most 8).
    pub trace: Option<usize>,
}

impl<'a> Request<'a> {
    /// One free text for each of `examples`.
    pub fn new(images: Option<&'a Tensor>, examples: &'a [u32]) -> Request<'a> {
        Request { images, examples, given: None, ending: None, candidates: 1, trace: None }
    }
}

/// One step of a trace, over all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The time that the network was told.
    pub t: usize,
    /// The tokens chosen from what it predicts; for the masked twin those revealed so far, V where masked.
    pub tokens: Vec<u32>,
    /// Log-probability of the chosen tokens.
    pub log_probs: Vec<f32>,
    /// Entropy of each prediction, in nats.
    pub entropy: Vec<f32>,
    /// The most likely tokens of each row with their log-probabilities, k for each.
    pub top: Vec<(u32, f32)>,
}

impl Traced {
    fn new(t: usize, tokens: &Tensor, c: &Chosen) -> Result<Traced> {
        let top = match &c.top {
            Some((ids, log_probs)) => ids.to_vec_u32()?.into_iter().zip(log_probs.to_vec()?).collect(),
            None => Vec::new(),
        };
        Ok(Traced {
            t,
            tokens: tokens.to_vec_u32()?,
            log_probs: c.log_prob.to_vec()?,
            entropy: c.entropy.to_vec()?,
            top,
        })
    }
}

/// Texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// \[B·candidates·N\]; candidates of an example follow each other.
    pub tokens: Vec<u32>,
    /// Log-probability of each token in the prediction it was chosen from; 0 for tokens given to the masked twin.
    pub log_probs: Vec<f32>,
    /// Every step, if asked for.
    pub steps: Vec<Traced>,
}

/// A model ready to generate: what depends on its weights alone is computed once.
pub struct Generator<'a> {
    model: &'a Model,
    schedule: &'a Schedule,
    lambda: f64,
    config: &'a SampleConfig,
    /// Of TDD.
    projection: Option<Projection>,
}

impl<'a> Generator<'a> {
    /// `schedule` and `lambda` are those of training.
    pub fn new(
        model: &'a Model,
        schedule: &'a Schedule,
        lambda: f64,
        config: &'a SampleConfig,
    ) -> Result<Generator<'a>> {
        let projection = match model.is_tdd() {
            true => Some(Projection::new(&input_layer(model)?, config.noise)?),
            false => None,
        };
        Ok(Generator { model, schedule, lambda, config, projection })
    }

    /// Generate. Nothing waits for the device before the end, unless a trace is asked for.
    pub fn generate(&self, r: &Request) -> Result<Generated> {
        let (model, config) = (self.model, self.config);
        let sizes = model.sizes();
        let (b, n, k) = (r.examples.len(), sizes.tokens, r.candidates);
        if k == 0 || k > MAX_CANDIDATES {
            return Err(Error::Input(format!("{k} candidates; there can be 1 to {MAX_CANDIDATES}")));
        }
        if r.images.is_some_and(|i| i.shape().first() != Some(&b)) {
            return Err(Error::Input(format!("{b} ids do not go with images {:?}", r.images.map(Tensor::shape))));
        }
        let top = r.trace.unwrap_or(0);
        if top > MAX_TOP.min(sizes.vocab) {
            return Err(Error::Input(format!("a trace tells of at most {} tokens", MAX_TOP.min(sizes.vocab))));
        }
        let candidate = |e: &u32| (0..k as u32).map(|c| e.wrapping_add(c << CANDIDATE_SHIFT)).collect::<Vec<_>>();
        let ids: Vec<u32> = r.examples.iter().flat_map(candidate).collect();
        let given = r.given.map(|g| g.chunks(n).flat_map(|row| row.repeat(k)).collect::<Vec<_>>());
        let limits = Limits::new(&model.device(), (b * k, n, sizes.vocab), given.as_deref(), r.ending.as_ref())?;
        // An unconditional model shows nothing to any row, so that its context serves any number of them.
        let network = Conditioned::new(model, r.images, k, config.guidance != 1.0)?;
        let mut steps = Vec::new();
        let Some(projection) = &self.projection else {
            let each = |f: &Filled| {
                if r.trace.is_some() {
                    steps.push(Traced::new(f.t, &f.state.tokens, f.chosen)?);
                }
                Ok(())
            };
            let state = fill(&network, self.schedule, config, (&ids, n), &limits, top, each)?;
            return Ok(Generated { tokens: state.tokens.to_vec_u32()?, log_probs: state.log_prob.to_vec()?, steps });
        };
        let task = Task { examples: &ids, tokens: n, lambda: self.lambda, limits: &limits, top, choose_last: true };
        let mut last = None;
        let denoiser: &dyn Denoise = &network;
        walk(denoiser, projection, self.schedule, config, &task, |s: &Seen| {
            let Some(c) = s.chosen else { return Ok(()) };
            if r.trace.is_some() {
                steps.push(Traced::new(s.t, &c.tokens, c)?);
            }
            // Handles to what lies on the device; only the last is read.
            last = Some((c.tokens.clone(), c.log_prob.clone()));
            Ok(())
        })?;
        let Some((tokens, log_probs)) = last else {
            return Err(Error::Input("a sampler needs at least one step".into()));
        };
        Ok(Generated { tokens: tokens.to_vec_u32()?, log_probs: log_probs.to_vec()?, steps })
    }
}
