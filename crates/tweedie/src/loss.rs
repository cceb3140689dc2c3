//! The objectives of one batch: cross-entropy of the clean token (the method), regression of noise or clean vector (the
//! ablation), and the masked twin's cross-entropy, for one token or a sequence.

use tweedie_engine::ops::cross_entropy::{Loss, Targets, linear_cross_entropy};
use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::ops::{elementwise, mean_square};
use tweedie_engine::{DType, Device, Noise, Tensor, Var, rng};

use crate::config::{LossConfig, LossKind, MaskWeight};
use crate::error::{Error, Result};
use crate::model::{Context, Input, Model, Pass};
use crate::schedule::{FIRST, Schedule};

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
    /// Targets of the cross-entropy where they are not the clean tokens: a distribution per token, \[rows·N·V\].
    pub targets: Option<Vec<f32>>,
    /// Tokens that are known, \[rows·N\]: shown at the first timestep, whatever that of their row. `None`: no times of their own.
    pub known: Option<Vec<bool>>,
}

impl Rows {
    /// Some of the rows, of `n` tokens over `vocab` classes.
    pub fn part(&self, range: std::ops::Range<usize>, n: usize, vocab: usize) -> Rows {
        let of = |v: &[u32], width: usize| v[range.start * width..range.end * width].to_vec();
        Rows {
            tokens: of(&self.tokens, n),
            t: of(&self.t, 1),
            drop: of(&self.drop, 1),
            examples: of(&self.examples, 1),
            targets: self.targets.as_ref().map(|q| q[range.start * n * vocab..range.end * n * vocab].to_vec()),
            known: self.known.as_ref().map(|k| k[range.start * n..range.end * n].to_vec()),
        }
    }

    /// The timestep of each of `n` tokens of each row, \[rows·N\].
    fn token_times(&self, n: usize) -> Vec<u32> {
        let known = |i: usize| self.known.as_ref().is_some_and(|k| k[i]);
        (0..self.t.len() * n).map(|i| if known(i) { FIRST as u32 } else { self.t[i / n] }).collect()
    }
}

/// Where the noise of a batch comes from.
pub enum NoiseOf<'a> {
    /// Drawn on the device.
    Drawn(&'a Noise),
    /// Given, \[rows, N, V\].
    Given(Tensor),
}

/// The recipe of y_t for rows at their timesteps; where tokens may be known, each at its own.
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
    let (shape, times) = match rows.known {
        Some(_) => (&[b, n][..], rows.token_times(n)),
        None => (&[b][..], rows.t.clone()),
    };
    let level = |f: &dyn Fn(usize) -> f64| {
        Tensor::from_f32(device, shape, times.iter().map(|t| f(*t as usize) as f32).collect())
    };
    Ok(NoisyTokens {
        tokens: Tensor::from_u32(device, &[b, n], rows.tokens.clone())?,
        signal: level(&|t| lambda * schedule.signal(t))?,
        spread: level(&|t| schedule.spread(t))?,
        eps: match noise {
            NoiseOf::Drawn(noise) => {
                Eps::Drawn { noise: (*noise).clone(), examples: Tensor::from_u32(device, &[b], rows.examples.clone())? }
            }
            NoiseOf::Given(eps) => Eps::Given(eps.clone()),
        },
        vocab,
    })
}

/// The chance that a noisy vector belongs to class `a` rather than `b`, where it must be one of the two: Bayes' rule for
/// one-hot vectors under Gaussian noise, with `prior` the chance of `a` and `a − b` the difference of its two coordinates.
pub fn posterior_of_two(prior: f64, difference: f64, signal: f64, spread: f64) -> f64 {
    let odds = (prior / (1.0 - prior)).ln() + signal * difference / (spread * spread);
    1.0 / (1.0 + (-odds).exp())
}

/// Weights of clean tokens for a loss over sequences: `pad_weight` for the ids in `pads`, 1 for the others. `None` if that is
/// 1 for all.
pub fn token_weights(tokens: &[u32], pads: &[u32], pad_weight: f32) -> Option<Vec<f32>> {
    let weight = |t: &u32| if pads.contains(t) { pad_weight } else { 1.0 };
    (pad_weight != 1.0 && !pads.is_empty()).then(|| tokens.iter().map(weight).collect())
}

/// What makes a mean over `weights.len()` terms the weighted mean Σ w·x / Σ w.
fn normaliser(weights: impl Iterator<Item = f32>, terms: usize) -> Result<f64> {
    let sum: f64 = weights.map(f64::from).sum();
    match sum > 0.0 && sum.is_finite() {
        true => Ok(terms as f64 / sum),
        false => Err(Error::Input("every token of the batch has weight 0 (loss.pad_weight)".into())),
    }
}

/// The condition of each row: computed once per image and handed to its copies.
fn rows_context(p: &Pass, model: &Model, images: Option<&Tensor>, rows: &Rows) -> Result<Context> {
    let r = rows.t.len();
    let b = images.map_or(r, |i| i.shape().first().copied().unwrap_or(0));
    if b == 0 || r == 0 || !r.is_multiple_of(b) {
        return Err(Error::Input(format!("{r} noisy rows do not go with {b} images")));
    }
    let drop = (images.is_some() && rows.drop.iter().any(|d| *d != 0)).then_some(&rows.drop[..]);
    model.context(p, images, drop.is_some())?.rows(p.tape, r / b, drop)
}

/// Sizes of a batch's tokens and weights must agree.
fn check_rows(model: &Model, rows: &Rows, weights: Option<&[f32]>) -> Result<usize> {
    let count = rows.t.len() * model.sizes().tokens;
    if let Some(k) = rows.known.as_ref().filter(|k| k.len() != count) {
        return Err(Error::Input(format!("{} tokens that are known or not, for {count} places", k.len())));
    }
    if rows.tokens.len() != count || weights.is_some_and(|w| w.len() != count) {
        let weights = weights.map_or(String::new(), |w| format!(" and {} weights", w.len()));
        return Err(Error::Input(format!("{} tokens{weights} for {count} places", rows.tokens.len())));
    }
    Ok(count)
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
    tdd_sequence_loss(p, model, Some(images), rows, None, schedule, lambda, noise, loss)
}

/// As [`tdd_loss`], with or without images, and with a weight per clean token \[rows·N\] (see [`token_weights`]):
/// Σ w·(ᾱ_t·)ce / Σ w. Known tokens weigh nothing.
pub fn tdd_sequence_loss(
    p: &Pass,
    model: &Model,
    images: Option<&Tensor>,
    rows: &Rows,
    weights: Option<&[f32]>,
    schedule: &Schedule,
    lambda: f64,
    noise: &NoiseOf,
    loss: &LossConfig,
) -> Result<Var> {
    let device = model.device();
    let (sizes, r) = (model.sizes(), rows.t.len());
    let count = check_rows(model, rows, weights)?;
    let context = rows_context(p, model, images, rows)?;
    let noisy = corrupt(&device, rows, sizes.tokens, sizes.vocab, schedule, lambda, noise)?;
    let times = rows.token_times(sizes.tokens);
    let shown = if rows.known.is_some() { &times } else { &rows.t };
    let features = model.features(p, &Input::Noisy(&noisy), shown, &context)?;
    let coefficient = |i: usize| match loss.weighted {
        true => schedule.alpha_bar(times[i] as usize),
        false => 1.0,
    };
    // Known tokens tell of others; what they are themselves is no question.
    let open = |i: usize| rows.known.as_ref().is_none_or(|k| !k[i]);
    let weights = match (weights, &rows.known) {
        (None, None) => loss.weighted.then(|| (0..count).map(|i| coefficient(i) as f32).collect()),
        (w, _) => {
            let weight = |i: usize| if open(i) { w.map_or(1.0, |w| w[i]) } else { 0.0 };
            let by = match normaliser((0..count).map(weight), count) {
                // Where all is known there is nothing to learn: a loss of 0, not an error.
                Err(_) if rows.known.as_ref().is_some_and(|k| k.contains(&true)) => 0.0,
                by => by?,
            };
            Some((0..count).map(|i| (coefficient(i) * weight(i) as f64 * by) as f32).collect())
        }
    };
    let weights = weights.map(|w| Tensor::from_f32(&device, &[count], w)).transpose()?;
    let per_row = match loss.kind {
        LossKind::CrossEntropy => {
            let (w, bias) = model.head(p);
            let tensor = match &rows.targets {
                None => Tensor::from_u32(&device, &[count], rows.tokens.clone())?,
                Some(q) => Tensor::from_f32(&device, &[count, sizes.vocab], q.clone())?,
            };
            let targets = if rows.targets.is_none() { Targets::Hard(&tensor) } else { Targets::Soft(&tensor) };
            let l = Loss { targets, weights: weights.as_ref(), smoothing: loss.smoothing };
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

/// Stream of the masks.
const MASKS: u32 = 0x3a5c;

/// Which tokens of `rows` are masked, \[rows·N\]: each with chance t/T, a pure function of seed, training step, row and place.
pub fn mask_tokens(rows: &Rows, n: usize, steps: usize, seed: u64, step: u32) -> Vec<bool> {
    let key = [seed as u32, (seed >> 32) as u32];
    let masked = |example: u32, t: u32, place: u32| {
        let u = rng::uniform_of(rng::philox([place, example, step, MASKS], key)[0]);
        (u as f64) < t as f64 / steps as f64
    };
    rows.examples.iter().zip(&rows.t).flat_map(|(e, t)| (0..n as u32).map(move |i| masked(*e, *t, i))).collect()
}

/// Stream of the known tokens.
const KNOWN: u32 = 0x6b17;

/// Which tokens of `rows` are known, \[rows·N\]: none of a row, or with chance `share` each with one and the same chance that is
/// uniform over rows; a pure function of seed, training step, row and place.
pub fn known_tokens(rows: &Rows, n: usize, share: f32, seed: u64, step: u32) -> Vec<bool> {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = |example: u32, place: u32| rng::philox([place, example, step, KNOWN], key);
    let of = |example: u32| {
        let row = words(example, u32::MAX);
        let chance = if rng::uniform_of(row[0]) < share { rng::uniform_of(row[1]) } else { 0.0 };
        (0..n as u32).map(move |place| rng::uniform_of(words(example, place)[0]) < chance)
    };
    rows.examples.iter().flat_map(|e| of(*e)).collect()
}

/// The masked twin's loss of sequences: cross-entropy of the tokens that `masked` hides, \[\]. `steps` is T, and t/T the chance
/// with which a row's tokens were masked. With [`MaskWeight::Inverse`] it is Σ_masked w·ce·T/t / Σ w, otherwise
/// Σ_masked w·ce / Σ_masked w; `weights` \[rows·N\] as in [`tdd_sequence_loss`].
pub fn mdd_sequence_loss(
    p: &Pass,
    model: &Model,
    images: Option<&Tensor>,
    rows: &Rows,
    masked: &[bool],
    weights: Option<&[f32]>,
    steps: usize,
    loss: &LossConfig,
) -> Result<Var> {
    let device = model.device();
    let (sizes, r) = (model.sizes(), rows.t.len());
    let count = check_rows(model, rows, weights)?;
    if masked.len() != count {
        return Err(Error::Input(format!("{} masks for {count} tokens", masked.len())));
    }
    let context = rows_context(p, model, images, rows)?;
    let hidden = |(t, m): (&u32, &bool)| if *m { sizes.vocab as u32 } else { *t };
    let seen = Tensor::from_u32(&device, &[r, sizes.tokens], rows.tokens.iter().zip(masked).map(hidden).collect())?;
    let features = model.features(p, &Input::Tokens(&seen), &rows.t, &context)?;
    let weight = |i: usize| weights.map_or(1.0, |w| w[i]);
    let masked_weight = |i: usize| if masked[i] { weight(i) } else { 0.0 };
    let factors: Vec<f32> = match loss.mask_weight {
        MaskWeight::Inverse => {
            let by = normaliser((0..count).map(weight), count)? * steps as f64;
            (0..count).map(|i| (masked_weight(i) as f64 * by / rows.t[i / sizes.tokens] as f64) as f32).collect()
        }
        MaskWeight::Plain => {
            // Where nothing is masked there is nothing to learn: a loss of 0, not an error.
            let by = normaliser((0..count).map(masked_weight), count).unwrap_or(0.0);
            (0..count).map(|i| (masked_weight(i) as f64 * by) as f32).collect()
        }
    };
    let factors = Tensor::from_f32(&device, &[count], factors)?;
    let targets = Tensor::from_u32(&device, &[count], rows.tokens.clone())?;
    let l = Loss { targets: Targets::Hard(&targets), weights: Some(&factors), smoothing: loss.smoothing };
    let (w, bias) = model.head(p);
    let per_row = linear_cross_entropy(p.tape, &features, &w, Some(&bias), &l, None)?;
    Ok(elementwise::mean(p.tape, &per_row)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::rng;

    /// Of the noisy vectors that the rule gives `a` with chance p, a share p was made from `a`: checked in ten bins, and the
    /// rule is informative (not the prior everywhere).
    #[test]
    fn the_posterior_of_two_labels_is_calibrated() {
        let (prior, signal, spread, n) = (0.3, 0.6, 0.8, 200_000);
        let mut bins = [(0.0, 0.0, 0.0); 10];
        for i in 0..n {
            let w = rng::philox([i, 0, 0, 0], [1, 2]);
            let [e1, e2, ..] = rng::normals_of(rng::philox([i, 1, 0, 0], [1, 2]));
            let is_a = (rng::uniform_of(w[0]) as f64) < prior;
            let sign = if is_a { 1.0 } else { -1.0 };
            let p = posterior_of_two(prior, sign * signal + spread * (e1 - e2) as f64, signal, spread);
            let bin = &mut bins[(p * 10.0) as usize];
            *bin = (bin.0 + 1.0, bin.1 + p, bin.2 + is_a as u32 as f64);
        }
        for (count, p, a) in bins.into_iter().filter(|b| b.0 > 1000.0) {
            let (p, share): (f64, f64) = (p / count, a / count);
            assert!(
                (share - p).abs() < 4.0 * (p * (1.0 - p) / count).sqrt(),
                "{share} of {count} where the rule says {p}"
            );
        }
        assert!(bins.iter().filter(|b| b.0 > 1000.0).count() >= 7);
        assert_eq!(posterior_of_two(1.0, -3.0, signal, spread), 1.0);
        assert_eq!(posterior_of_two(0.25, 0.0, 0.0, 1.0), 0.25);
    }
}
