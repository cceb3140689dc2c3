//! The objectives of one batch: cross-entropy of the clean token (the method), regression of noise or clean vector (the
//! ablation), and the masked twin's cross-entropy.

use tweedie_engine::ops::cross_entropy::{Loss, Targets, linear_cross_entropy};
use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::ops::{elementwise, mean_square};
use tweedie_engine::{DType, Device, Noise, Tensor, Var};

use crate::config::{LossConfig, LossKind};
use crate::error::{Error, Result};
use crate::model::{Input, Model, Pass};
use crate::schedule::Schedule;

/// One noisy copy per row; rows of one image follow each other.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Clean tokens, \[rows·N\].
    pub tokens: Vec<u32>,
    /// Timestep of each row, 1..=T.
    pub t: Vec<u32>,
    /// Rows that lose their condition.
    pub drop: Vec<u32>,
    /// Ids that address each row's noise.
    pub examples: Vec<u32>,
}

/// Where the noise of a batch comes from.
pub enum NoiseOf<'a> {
    /// Drawn on the device.
    Drawn(&'a Noise),
    /// Given, \[rows, N, V\].
    Given(Tensor),
}

/// The recipe of y_t for rows at their timesteps.
pub fn corrupt(
    device: &Device,
    rows: &Rows,
    n: usize,
    vocab: usize,
    schedule: &Schedule,
    lambda: f64,
    noise: &NoiseOf,
) -> Result<NoisyTokens> {
    let b = rows.t.len();
    let per_row = |f: &dyn Fn(usize) -> f64| {
        Tensor::from_f32(device, &[b], rows.t.iter().map(|t| f(*t as usize) as f32).collect())
    };
    Ok(NoisyTokens {
        tokens: Tensor::from_u32(device, &[b, n], rows.tokens.clone())?,
        signal: per_row(&|t| lambda * schedule.signal(t))?,
        spread: per_row(&|t| schedule.spread(t))?,
        eps: match noise {
            NoiseOf::Drawn(noise) => {
                Eps::Drawn { noise: (*noise).clone(), examples: Tensor::from_u32(device, &[b], rows.examples.clone())? }
            }
            NoiseOf::Given(eps) => Eps::Given(eps.clone()),
        },
        vocab,
    })
}

/// TDD's loss of `rows` noisy copies of images whose features are computed once: the mean over rows and tokens, \[\].
pub fn tdd_loss(
    p: &Pass,
    model: &Model,
    images: &Tensor,
    rows: &Rows,
    schedule: &Schedule,
    lambda: f64,
    noise: &NoiseOf,
    loss: &LossConfig,
) -> Result<Var> {
    let device = model.device();
    let (b, r) = (images.shape().first().copied().unwrap_or(0), rows.t.len());
    if b == 0 || r == 0 || r % b != 0 {
        return Err(Error::Input(format!("{r} noisy rows do not go with {b} images")));
    }
    let sizes = model.sizes();
    let noisy = corrupt(&device, rows, sizes.tokens, sizes.vocab, schedule, lambda, noise)?;
    let drop = match rows.drop.iter().any(|d| *d != 0) {
        true => Some(Tensor::from_u32(&device, &[r], rows.drop.clone())?),
        false => None,
    };
    let context = model.context(p, Some(images), drop.is_some())?.rows(p.tape, r / b, drop.as_ref())?;
    let features = model.features(p, &Input::Noisy(&noisy), &rows.t, &context)?;
    let weights = match loss.weighted {
        true => {
            let w = |t: &u32| std::iter::repeat_n(schedule.alpha_bar(*t as usize) as f32, sizes.tokens);
            Some(Tensor::from_f32(&device, &[r * sizes.tokens], rows.t.iter().flat_map(w).collect())?)
        }
        false => None,
    };
    let per_row = match loss.kind {
        LossKind::CrossEntropy => {
            let (w, bias) = model.head(p);
            let targets = Tensor::from_u32(&device, &[r * sizes.tokens], rows.tokens.clone())?;
            let l = Loss { targets: Targets::Hard(&targets), weights: weights.as_ref(), smoothing: loss.smoothing };
            linear_cross_entropy(p.tape, &features, &w, Some(&bias), &l, None)?
        }
        kind => {
            let logits = model.logits(p, &features)?;
            // ε is y_t with no signal and unit spread; y_0 is y_t with no spread.
            let ones = Tensor::from_f32(&device, &[r], vec![1.0; r])?;
            let zeros = Tensor::zeros(&device, &[r], DType::F32)?;
            let (signal, spread) = if kind == LossKind::Noise { (zeros, ones) } else { (ones, zeros) };
            let target = NoisyTokens { signal, spread, ..noisy }.vectors(DType::F32)?;
            mean_square::mean_square(p.tape, &logits, &target, weights.as_ref())?
        }
    };
    Ok(elementwise::mean(p.tape, &per_row)?)
}

/// Targets of the masked twin: a class, or a distribution where images were mixed.
pub enum ClassTargets {
    /// One class per image.
    Hard(Vec<u32>),
    /// A distribution per image, \[B·V\].
    Soft(Vec<f32>),
}

/// The masked twin's loss: cross-entropy of the linear head, \[\].
pub fn mdd_loss(p: &Pass, model: &Model, images: &Tensor, targets: &ClassTargets, smoothing: f32) -> Result<Var> {
    let device = model.device();
    let b = images.shape().first().copied().unwrap_or(0);
    let cond = model.condition(p, images)?;
    let features = model.masked_features(p, &cond)?;
    let (w, bias) = model.head(p);
    let tensor = match targets {
        ClassTargets::Hard(t) => Tensor::from_u32(&device, &[b], t.clone())?,
        ClassTargets::Soft(q) => Tensor::from_f32(&device, &[b, model.sizes().vocab], q.clone())?,
    };
    let targets = match targets {
        ClassTargets::Hard(_) => Targets::Hard(&tensor),
        ClassTargets::Soft(_) => Targets::Soft(&tensor),
    };
    let per_row =
        linear_cross_entropy(p.tape, &features, &w, Some(&bias), &Loss { targets, weights: None, smoothing }, None)?;
    Ok(elementwise::mean(p.tape, &per_row)?)
}
