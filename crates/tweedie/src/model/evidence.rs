//! Exact evidence (`model.denoiser.evidence`): by Bayes' rule a class k has, given its noisy vector y_t and what else is known of the token,
//! the chance ∝ exp(κ_t·y_t\[k\])·p(k | all else), with κ_t of the process alone. So the denoiser reads softmax(κ_t·y_t + b), the posterior of the
//! vector alone under a learned prior b, and the logarithm of the same is added to its logits: what its blocks have to learn is what the
//! other tokens and the image say.

use std::sync::Arc;

use tweedie_engine::ops::blend::{First, blend};
use tweedie_engine::ops::softmax::{log_softmax, softmax};
use tweedie_engine::ops::{elementwise, linear};
use tweedie_engine::{DType, Tape, Tensor, Var};

use super::Model;
use super::context::Input;
use super::layers::{Ids, Linear, Pass};
use crate::error::{Error, Result};
use crate::process::Process;

/// Classes up to which it is offered: every step handles vectors as long as the vocabulary.
pub(super) const MOST_CLASSES: usize = 1 << 13;

/// The least logarithm of a chance: evidence alone never rules a class out.
const FLOOR: f32 = -16.0;

/// κ_t·y_t + b, f32 \[B, N, V\].
fn logits(p: &Pass, ids: &Ids, evidence: &Var, prior: usize) -> Result<Var> {
    Ok(elementwise::add_broadcast(p.tape, evidence, &p.tape.param(p.params, ids[prior]))?)
}

/// What the layer `l` reads of the posterior, \[B, N, d\].
pub(super) fn read(p: &Pass, ids: &Ids, evidence: &Var, prior: usize, l: Linear) -> Result<Var> {
    let posterior = elementwise::cast(p.tape, &softmax(p.tape, &logits(p, ids, evidence, prior)?)?, p.dtype)?;
    let param = |i: usize| p.tape.param(p.params, ids[i]);
    Ok(linear::linear(p.tape, &posterior, &param(l.w), Some(&param(l.b)), None, None)?)
}

/// `of` the blocks, \[B, N, V\], with the logarithm of the posterior, in f32.
pub(super) fn add(p: &Pass, ids: &Ids, of: &Var, evidence: &Var, prior: usize) -> Result<Var> {
    let own = log_softmax(p.tape, &logits(p, ids, evidence, prior)?, FLOOR)?;
    Ok(elementwise::add(p.tape, &elementwise::cast(p.tape, of, DType::F32)?, &own)?)
}

/// `y` with the first of the factors `by`, f32 \[3\] or \[B·N, 3\].
pub(crate) fn scaled(y: &Tensor, by: &Tensor) -> Result<Tensor> {
    Ok(blend(by, First::Values(y), Some(y), None)?.reshape(y.shape())?)
}

impl Model {
    /// For this process, whose κ_t a denoiser with exact evidence needs.
    #[must_use]
    pub fn for_process(self, process: &Process) -> Model {
        let kappa: Arc<[f32]> = match self.reads_evidence() {
            true => (0..=process.steps()).map(|t| if t == 0 { 0.0 } else { process.evidence(t) as f32 }).collect(),
            false => Arc::new([]),
        };
        Model { kappa, ..self }
    }

    /// Whether its denoiser reads κ_t·y_t, [`Input::Evidence`], instead of noisy vectors.
    pub fn reads_evidence(&self) -> bool {
        self.is_tdd() && self.has_denoiser() && self.config.denoiser.evidence
    }

    /// κ_t·y_t of noisy vectors `y`, f32 \[B, N, V\], at times `t`: one for all, one for each example, or B·N for their tokens.
    pub fn evidence(&self, y: &Tensor, t: &[u32]) -> Result<Tensor> {
        let rows = y.rows();
        let each = rows / t.len().max(1);
        if t.is_empty() || each * t.len() != rows {
            return Err(Error::Input(format!("{} times for noisy vectors {:?}", t.len(), y.shape())));
        }
        let kappa: Vec<f32> = t.iter().map(|t| self.kappa(*t as usize)).collect::<Result<_>>()?;
        let (shape, factors): (&[usize], Vec<f32>) = match kappa[..] {
            [one] => (&[3], vec![one, 0.0, 0.0]),
            _ => (&[rows, 3], kappa.iter().flat_map(|k| [*k, 0.0, 0.0].repeat(each)).collect()),
        };
        scaled(y, &Tensor::from_f32(&y.device(), shape, factors)?)
    }

    /// κ_t.
    pub(crate) fn kappa(&self, t: usize) -> Result<f32> {
        let of = self.kappa.len().saturating_sub(1);
        let unknown = || format!("exact evidence at time {t} of a process of {of} steps (Model::for_process)");
        self.kappa.get(t).copied().ok_or_else(|| Error::Input(unknown()))
    }

    /// Logits \[B, N, V\] of features that were made from `input`: as [`Model::logits`], and with its evidence.
    pub fn logits_of(&self, p: &Pass, features: &Var, input: &Input) -> Result<Var> {
        let logits = self.logits(p, features)?;
        match input {
            Input::Evidence(evidence) => self.add_evidence(p, &logits, evidence),
            _ => Ok(logits),
        }
    }

    /// `logits` of the blocks with the logarithm of what κ_t·y_t says, where this model reads it.
    pub(crate) fn add_evidence(&self, p: &Pass, logits: &Var, evidence: &Var) -> Result<Var> {
        match self.denoiser_prior() {
            Some(prior) => add(p, &self.ids, logits, evidence, prior),
            None => Ok(logits.clone()),
        }
    }

    /// What this model reads of noisy vectors: their recipe, or what `held` holds of them afterwards.
    pub(crate) fn input_of<'a>(
        &self,
        tape: &Tape,
        noisy: &'a tweedie_engine::ops::noisy_input::NoisyTokens,
        t: &[u32],
        held: &'a mut Option<Var>,
    ) -> Result<Input<'a>> {
        if !self.reads_evidence() {
            return Ok(Input::Noisy(noisy));
        }
        let evidence = self.evidence(&noisy.vectors(DType::F32)?, t)?;
        Ok(Input::Evidence(held.insert(tape.constant(evidence))))
    }
}
