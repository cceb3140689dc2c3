//! The objectives of one batch: cross-entropy of the clean token (the method), regression of noise or clean vector (the
//! ablation), and the masked twin's cross-entropy, for one token or a sequence. Begin with [`TddLoss::of`] over [`Rows`].

mod rows;

pub use rows::{NoiseOf, Rows, draw_clean_tokens, draw_staggered_times, token_weights};
pub(crate) use rows::{staggered, start_of};

use tweedie_engine::ops::choose::{Choose, choose};
use tweedie_engine::ops::cross_entropy::{Loss, Targets, linear_cross_entropy};
use tweedie_engine::ops::noisy_input::NoisyTokens;
use tweedie_engine::ops::{self, elementwise, mean_square};
use tweedie_engine::{DType, Device, Tape, Tensor, Var, rng};

use crate::config::{LossConfig, LossKind, MaskWeight, SmoothingIn};
use crate::error::{Error, Result};
use crate::model::{Context, EncoderGradient, Input, Model, Pass, Sizes};
use crate::process::Process;

/// What makes a mean over `weights.len()` terms the weighted mean Σ w·x / Σ w.
fn normaliser(weights: impl Iterator<Item = f32>, terms: usize) -> Result<f64> {
    let sum: f64 = weights.map(f64::from).sum();
    match sum > 0.0 && sum.is_finite() {
        true => Ok(terms as f64 / sum),
        false => Err(Error::Input("every token of the batch has weight 0 (loss.pad_weight)".into())),
    }
}

/// The condition of each row: computed once per image and handed to its copies. What the direct path reads of each image comes with it,
/// for a loss of its own, which reaches the encoder whatever `reaches` says of the other.
fn rows_context(
    p: &Pass,
    model: &Model,
    images: Option<&Tensor>,
    rows: &Rows,
    reaches: EncoderGradient,
) -> Result<(Context, Option<Var>)> {
    let r = rows.t.len();
    let b = images.map_or(r, |i| i.shape().first().copied().unwrap_or(0));
    if b == 0 || r == 0 || !r.is_multiple_of(b) {
        return Err(Error::Input(format!("{r} noisy rows do not go with {b} images")));
    }
    let drop = (images.is_some() && rows.drop.iter().any(|d| *d != 0)).then_some(&rows.drop[..]);
    let context = model.context_of(p, images, drop.is_some(), reaches)?;
    let direct = context.direct().cloned();
    let context = if reaches == EncoderGradient::None { context.with_direct_detached(p.tape) } else { context };
    Ok((context.rows(p.tape, r / b, drop)?, direct))
}

/// Sizes of a batch's tokens and weights must agree, tokens be classes of the model and times those of a process of `steps` steps.
fn check_rows(model: &Model, rows: &Rows, steps: usize) -> Result<usize> {
    let (weights, Sizes { vocab, tokens }) = (rows.weights.as_deref(), model.sizes());
    let (r, count) = (rows.t.len(), rows.t.len() * tokens);
    if rows.drop.len() != r || rows.examples.len() != r {
        let (drop, ids) = (rows.drop.len(), rows.examples.len());
        return Err(Error::Input(format!("{drop} conditions dropped or not and {ids} ids for {r} rows")));
    }
    if let Some(t) = rows.t.iter().find(|t| !(1..=steps).contains(&(**t as usize))) {
        return Err(Error::Input(format!("the time of a row is {t}, not one of 1 to {steps}")));
    }
    check_tokens(&rows.tokens, vocab)?;
    if let Some(times) = &rows.times {
        if times.len() != count || rows.clean.is_some() {
            let what = if rows.clean.is_some() { " beside clean tokens" } else { "" };
            return Err(Error::Input(format!("{} times of tokens{what}, for {count} places", times.len())));
        }
        if let Some(t) = times.iter().find(|t| !(1..=steps).contains(&(**t as usize))) {
            return Err(Error::Input(format!("the time of a token is {t}, not one of 1 to {steps}")));
        }
    }
    if let Some(k) = rows.clean.as_ref().filter(|k| k.len() != count) {
        return Err(Error::Input(format!("{} tokens that are clean or not, for {count} places", k.len())));
    }
    if rows.tokens.len() != count || weights.is_some_and(|w| w.len() != count) {
        let weights = weights.map_or(String::new(), |w| format!(" and {} weights", w.len()));
        return Err(Error::Input(format!("{} tokens{weights} for {count} places", rows.tokens.len())));
    }
    Ok(count)
}

fn check_tokens(tokens: &[u32], vocab: usize) -> Result<()> {
    match tokens.iter().find(|t| **t as usize >= vocab) {
        Some(t) => Err(Error::Input(format!("token {t} is not below the vocabulary {vocab}"))),
        None => Ok(()),
    }
}

/// TDD's objective.
///
/// ```
/// use tweedie::config::LossConfig;
/// use tweedie::engine::{DType, Device, Noise, Tape, Tensor};
/// use tweedie::loss::{NoiseOf, Rows, TddLoss};
/// use tweedie::model::{Model, ModelConfig, Pass, Sizes};
/// use tweedie::{Process, Schedule, ScheduleKind};
///
/// let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 10)?);
/// let sizes = Sizes { vocab: 10, tokens: 1 };
/// let model = Model::new(&ModelConfig::preset("digits")?, sizes, &Device::Cpu, DType::F32, 0)?;
/// let (tape, noise) = (Tape::new(), Noise::new(&Device::Cpu, 7, 0, 0)?);
/// let p = Pass::inference(&tape, &model.params, model.dtype());
/// let images = Tensor::zeros(&Device::Cpu, &[1, 1, 8, 8], DType::F32)?;
/// let rows = Rows::new(vec![3, 3], vec![200, 900]); // two noisy copies of one image's label
/// let loss = TddLoss { process: &process, config: &LossConfig::default(), noise: NoiseOf::Drawn(&noise) };
/// let nats = loss.of(&p, &model, Some(&images), &rows)?.value().to_vec()?[0];
/// assert!((nats - 10_f32.ln()).abs() < 1.0); // it has learnt nothing yet
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct TddLoss<'a> {
    /// What corrupts the tokens.
    pub process: &'a Process,
    /// Which loss, and its weights.
    pub config: &'a LossConfig,
    /// Where ε comes from.
    pub noise: NoiseOf<'a>,
}

impl TddLoss<'_> {
    /// The loss of `rows`, noisy copies of `images` whose features are computed once: Σ w·(ᾱ_t·)ce / Σ w over rows and tokens, \[\].
    /// Clean tokens weigh nothing.
    pub fn of(&self, p: &Pass, model: &Model, images: Option<&Tensor>, rows: &Rows) -> Result<Var> {
        let (device, sizes) = (model.device(), model.sizes());
        let count = check_rows(model, rows, self.process.steps())?;
        let (context, direct) = rows_context(p, model, images, rows, self.config.encoder_gradient)?;
        let noisy = rows.corrupt(self.process, &device, (sizes.tokens, sizes.vocab), &self.noise)?;
        let times = rows.token_times(sizes.tokens);
        let shown = if rows.per_token() { &times } else { &rows.t };
        let mut evidence = None;
        let input = model.input_of(p.tape, &noisy, shown, &mut evidence)?;
        let features = model.features(p, &input, shown, &context)?;
        let weights = self.weights(rows, &times)?.map(|w| Tensor::from_f32(&device, &[count], w)).transpose()?;
        let per_token = match self.config.kind {
            LossKind::CrossEntropy => {
                let (targets, smoothing) = match self.smooths_prior() {
                    true => (self.posterior_targets(rows, noisy, shown)?, 0.0),
                    false => {
                        let soft = rows.targets.as_deref();
                        (Target::new(&rows.tokens, soft, &device, sizes.vocab)?, self.config.smoothing)
                    }
                };
                let head = match self.config.encoder_gradient {
                    EncoderGradient::None if direct.is_some() && self.config.direct > 0.0 => model.head_of_blocks(p)?,
                    _ => model.head(p),
                };
                let last = Last { features: &features, head, evidence: evidence.as_ref() };
                cross_entropy(p, model, last, &targets, weights.as_ref(), smoothing)?
            }
            kind => {
                let logits = model.logits(p, &features)?;
                // ε is y_t with no signal and unit spread; y_0, which is λ-hot, is y_t with no spread.
                let all = |x: f64| Tensor::from_f32(&device, &[rows.t.len()], vec![x as f32; rows.t.len()]);
                let (signal, spread) = match kind {
                    LossKind::Noise => (all(0.0)?, all(1.0)?),
                    _ => (all(self.process.lambda())?, all(0.0)?),
                };
                let target = NoisyTokens { signal, spread, ..noisy }.vectors(DType::F32)?;
                mean_square::mean_square(p.tape, &logits, &target, weights.as_ref())?
            }
        };
        let loss = elementwise::mean(p.tape, &per_token)?;
        match direct.filter(|_| self.config.direct > 0.0) {
            Some(direct) => self.add_direct_loss(p, model, &loss, &direct, rows),
            None => Ok(loss),
        }
    }

    /// `loss` with that of the direct path alone: the cross-entropy of `direct` \[images, 1, width\] by the head, which is the twin's.
    fn add_direct_loss(&self, p: &Pass, model: &Model, loss: &Var, direct: &Var, rows: &Rows) -> Result<Var> {
        let (images, v) = (direct.shape()[0], model.sizes().vocab);
        // The copies of an image have the same targets; where it was mixed, not the same token.
        let copies = rows.t.len() / images.max(1);
        let tokens: Vec<u32> = rows.tokens.iter().step_by(copies.max(1)).copied().collect();
        let soft =
            rows.direct.as_deref().map(|q| q.chunks(v).step_by(copies.max(1)).flatten().copied().collect::<Vec<_>>());
        let targets = Target::new(&tokens, soft.as_deref(), &model.device(), v)?;
        let last = Last { features: direct, head: model.head_of_path(p)?, evidence: None };
        let each = cross_entropy(p, model, last, &targets, None, self.config.smoothing)?;
        let mean = elementwise::mean(p.tape, &each)?;
        Ok(elementwise::add(p.tape, loss, &elementwise::scale(p.tape, &mean, self.config.direct)?)?)
    }

    fn smooths_prior(&self) -> bool {
        self.config.smoothing > 0.0 && self.config.smoothing_in == SmoothingIn::Prior
    }

    /// What the noisy vectors at `times` say of their classes where labels are smoothed before they are corrupted: softmax(κ·y_t + ln prior),
    /// made on the device. κ·y_t is a noisy vector itself, with other factors.
    fn posterior_targets(&self, rows: &Rows, noisy: NoisyTokens, times: &[u32]) -> Result<Target> {
        let (device, v, smoothing) = (noisy.tokens.device(), noisy.vocab, self.config.smoothing as f64);
        let (shape, count) = (noisy.signal.shape().to_vec(), noisy.tokens.len());
        // ln of the prior of the token's own class over that of others, where it is the same for all of these.
        let own = match rows.prior {
            None => ((1.0 - smoothing + smoothing / v as f64) / (smoothing / v as f64)).ln(),
            Some(_) => 0.0,
        };
        let level = |f: &dyn Fn(usize) -> f64| {
            Tensor::from_f32(&device, &shape, times.iter().map(|t| f(*t as usize) as f32).collect())
        };
        let signal = level(&|t| self.process.evidence(t) * self.process.signal(t) + own)?;
        let spread = level(&|t| self.process.evidence(t) * self.process.spread(t))?;
        let tokens = noisy.tokens.shape()[1];
        let mut logits = NoisyTokens { signal, spread, ..noisy }.vectors(DType::F32)?;
        if let Some(prior) = &rows.prior {
            let tape = Tape::inference();
            let prior = Tensor::from_f32(&device, logits.shape(), prior.iter().map(|p| p.ln()).collect())?;
            logits = elementwise::add(&tape, &tape.constant(logits), &tape.constant(prior))?.value().clone();
        }
        let chosen = choose(&logits, &Choose { probabilities: true, ..Choose::argmax(tokens) })?;
        match chosen.probabilities {
            Some(q) => Ok(Target::Soft(q.reshape(&[count, v])?)),
            None => Err(Error::Input("there are no probabilities of the smoothed labels".into())),
        }
    }

    /// A factor for each token, such that the mean over all is the loss; `None`: 1 for all.
    fn weights(&self, rows: &Rows, times: &[u32]) -> Result<Option<Vec<f32>>> {
        let (count, weighted) = (times.len(), self.config.weighted);
        let of_time = |i: usize| if weighted { self.process.schedule().alpha_bar(times[i] as usize) } else { 1.0 };
        if rows.weights.is_none() && rows.clean.is_none() {
            return Ok(weighted.then(|| (0..count).map(|i| of_time(i) as f32).collect()));
        }
        let by = match rows.normaliser {
            Some(by) => by,
            None => TddLoss::normaliser(rows)?,
        };
        Ok(Some((0..count).map(|i| (of_time(i) * rows.open_weight(i) as f64 * by) as f32).collect()))
    }

    /// What makes the mean over the tokens of `rows` their weighted mean.
    pub fn normaliser(rows: &Rows) -> Result<f64> {
        let count = rows.tokens.len();
        match normaliser((0..count).map(|i| rows.open_weight(i)), count) {
            // Where all is clean there is nothing to learn: a loss of 0, not an error.
            Err(_) if rows.clean.as_ref().is_some_and(|k| k.contains(&true)) => Ok(0.0),
            by => by,
        }
    }
}

/// Targets of a cross-entropy, on the device: classes, or distributions.
enum Target {
    Hard(Tensor),
    Soft(Tensor),
}

impl Target {
    /// The distributions `soft`, or else the classes `tokens`.
    fn new(tokens: &[u32], soft: Option<&[f32]>, device: &Device, vocab: usize) -> Result<Target> {
        let count = tokens.len();
        Ok(match soft {
            None => Target::Hard(Tensor::from_u32(device, &[count], tokens.to_vec())?),
            Some(q) => Target::Soft(Tensor::from_f32(device, &[count, vocab], q.to_vec())?),
        })
    }
}

/// What logits are made of.
struct Last<'a> {
    features: &'a Var,
    /// Weight and bias of the head.
    head: (Var, Var),
    /// κ_t·y_t, of exact evidence.
    evidence: Option<&'a Var>,
}

impl<'a> Last<'a> {
    /// Features and the model's head.
    fn of(p: &Pass, model: &Model, features: &'a Var) -> Last<'a> {
        Last { features, head: model.head(p), evidence: None }
    }
}

/// Cross-entropy of each token, without ever holding all logits but for those of exact evidence.
fn cross_entropy(
    p: &Pass,
    model: &Model,
    last: Last,
    targets: &Target,
    weights: Option<&Tensor>,
    smoothing: f32,
) -> Result<Var> {
    let targets = match targets {
        Target::Hard(t) => Targets::Hard(t),
        Target::Soft(q) => Targets::Soft(q),
    };
    let loss = Loss { targets, weights, smoothing };
    let Last { features, head: (w, bias), evidence } = last;
    match evidence {
        Some(evidence) => {
            let logits = ops::linear::linear(p.tape, features, &w, Some(&bias), None, None)?;
            Ok(ops::cross_entropy::cross_entropy(p.tape, &model.add_evidence(p, &logits, evidence)?, &loss)?)
        }
        None => Ok(linear_cross_entropy(p.tape, features, &w, Some(&bias), &loss, None)?),
    }
}

/// Targets of the masked twin: a class, or a distribution where images were mixed.
pub enum ClassTargets {
    /// One class per image.
    Hard(Vec<u32>),
    /// A distribution per image, \[B·V\].
    Soft(Vec<f32>),
}

/// The masked twin's loss of one token: cross-entropy of the linear head, \[\].
pub fn mdd_class_loss(p: &Pass, model: &Model, images: &Tensor, targets: &ClassTargets, smoothing: f32) -> Result<Var> {
    let device = model.device();
    let b = images.shape().first().copied().unwrap_or(0);
    if let ClassTargets::Hard(t) = targets {
        check_tokens(t, model.sizes().vocab)?;
    }
    let features = model.masked_features(p, &model.condition(p, images)?)?;
    let targets = match targets {
        ClassTargets::Hard(t) => Target::Hard(Tensor::from_u32(&device, &[b], t.clone())?),
        ClassTargets::Soft(q) => Target::Soft(Tensor::from_f32(&device, &[b, model.sizes().vocab], q.clone())?),
    };
    let each = cross_entropy(p, model, Last::of(p, model, &features), &targets, None, smoothing)?;
    Ok(elementwise::mean(p.tape, &each)?)
}

/// Stream of the masks.
const MASKS: u32 = 0x3a5c;

/// Which tokens of `rows` are masked, \[rows·N\]: each with chance t/T, a pure function of seed, training step, row and place. For
/// T = `steps` = 0 that is all of them.
pub fn mask_tokens(rows: &Rows, n: usize, steps: usize, seed: u64, step: u32) -> Vec<bool> {
    let key = [seed as u32, (seed >> 32) as u32];
    let masked = |example: u32, t: u32, place: u32| {
        let u = rng::uniform_of(rng::philox([place, example, step, MASKS], key)[0]);
        (u as f64) < t as f64 / steps as f64
    };
    rows.examples.iter().zip(&rows.t).flat_map(|(e, t)| (0..n as u32).map(move |i| masked(*e, *t, i))).collect()
}

/// The masked twin's objective for sequences.
pub struct MddLoss<'a> {
    /// T; t/T is the chance with which a row's tokens were masked.
    pub steps: usize,
    /// How masked tokens weigh.
    pub config: &'a LossConfig,
    /// Which tokens are hidden, \[rows·N\].
    pub masked: &'a [bool],
}

impl MddLoss<'_> {
    /// Cross-entropy of the hidden tokens, \[\]: with [`MaskWeight::Inverse`] Σ_masked w·ce·T/t / Σ w, otherwise
    /// Σ_masked w·ce / Σ_masked w.
    pub fn of(&self, p: &Pass, model: &Model, images: Option<&Tensor>, rows: &Rows) -> Result<Var> {
        let (device, sizes) = (model.device(), model.sizes());
        let count = check_rows(model, rows, self.steps)?;
        if self.masked.len() != count {
            return Err(Error::Input(format!("{} masks for {count} tokens", self.masked.len())));
        }
        let (context, _) = rows_context(p, model, images, rows, EncoderGradient::Full)?;
        let hidden = |(t, m): (&u32, &bool)| if *m { sizes.vocab as u32 } else { *t };
        let seen = rows.tokens.iter().zip(self.masked).map(hidden).collect();
        let seen = Tensor::from_u32(&device, &[rows.t.len(), sizes.tokens], seen)?;
        let features = model.features(p, &Input::Tokens(&seen), &rows.t, &context)?;
        let weights = Tensor::from_f32(&device, &[count], self.weights(rows, sizes.tokens)?)?;
        let targets = Target::Hard(Tensor::from_u32(&device, &[count], rows.tokens.clone())?);
        let last = Last::of(p, model, &features);
        let per_token = cross_entropy(p, model, last, &targets, Some(&weights), self.config.smoothing)?;
        Ok(elementwise::mean(p.tape, &per_token)?)
    }

    /// A factor for each token, such that the mean over all is the loss.
    fn weights(&self, rows: &Rows, n: usize) -> Result<Vec<f32>> {
        let by = match rows.normaliser {
            Some(by) => by,
            None => self.normaliser(rows)?,
        };
        let weight = |i: usize| self.masked_weight(rows, i) as f64;
        let factor = |i: usize| match self.config.mask_weight {
            MaskWeight::Inverse => weight(i) * (by * self.steps as f64) / rows.t[i / n] as f64,
            MaskWeight::Plain => weight(i) * by,
        };
        Ok((0..self.masked.len()).map(|i| factor(i) as f32).collect())
    }

    /// What makes the mean over the tokens of `rows` the weighted mean that [`MddLoss::of`] is.
    pub fn normaliser(&self, rows: &Rows) -> Result<f64> {
        let count = rows.tokens.len();
        match self.config.mask_weight {
            MaskWeight::Inverse => normaliser((0..count).map(|i| rows.open_weight(i)), count),
            // Where nothing is masked there is nothing to learn: a loss of 0, not an error.
            MaskWeight::Plain => Ok(normaliser((0..count).map(|i| self.masked_weight(rows, i)), count).unwrap_or(0.0)),
        }
    }

    fn masked_weight(&self, rows: &Rows, i: usize) -> f32 {
        if self.masked.get(i).copied().unwrap_or(false) { rows.open_weight(i) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Schedule, ScheduleKind};
    use tweedie_engine::Noise;

    /// Smoothing in the prior is Bayes' rule with the smoothed label: of single labels, and of mixed ones.
    #[test]
    fn targets_smoothed_in_the_prior_are_the_posterior() {
        const V: usize = 5;
        let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, V).unwrap()).with_lambda(0.9).unwrap();
        let (noise, smoothing) = (Noise::new(&Device::Cpu, 4, 1, 0).unwrap(), 0.2);
        let config = LossConfig { smoothing, smoothing_in: SmoothingIn::Prior, ..LossConfig::default() };
        let loss = TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) };
        let rows = Rows::new(vec![0, 3, 4, 1], vec![1000, 700, 300, 1]);
        let smooth = |q: f64| (1.0 - smoothing as f64) * q + smoothing as f64 / V as f64;
        let single = |row: usize| (0..V).map(|k| smooth((rows.tokens[row] as usize == k) as u8 as f64)).collect();
        let mixed = |_: usize| vec![smooth(0.3), smooth(0.0), smooth(0.0), smooth(0.7), smooth(0.0)];
        let check = |rows: &Rows, prior: &dyn Fn(usize) -> Vec<f64>| {
            let noisy = rows.corrupt(&process, &Device::Cpu, (1, V), &loss.noise).unwrap();
            let y = noisy.vectors(DType::F32).unwrap().to_vec().unwrap();
            let Target::Soft(q) = loss.posterior_targets(rows, noisy, &rows.t).unwrap() else { panic!("hard targets") };
            let q = q.to_vec().unwrap();
            for (row, (q, y)) in q.chunks_exact(V).zip(y.chunks_exact(V)).enumerate() {
                let want = process.posterior(y, &prior(row), rows.t[row] as usize);
                assert!(q.iter().zip(&want).all(|(q, w)| (*q as f64 - w).abs() < 1e-4), "{row}: {q:?} {want:?}");
            }
            q
        };
        let q = check(&rows, &single);
        // Smoothed at pure noise, sure where it is clean.
        assert!(q[0] < 0.9 && q[3 * V + 1] > 0.999, "{q:?}");
        let prior = (0..4).flat_map(mixed).map(|p| p as f32).collect();
        check(&Rows { prior: Some(prior), ..rows.clone() }, &mixed);
    }
}
