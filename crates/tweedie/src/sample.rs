//! Sampling: from pure noise to a class in S steps.

use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::ops::tokens;
use tweedie_engine::{Device, Noise, Tape, Tensor, Var, rng};

use crate::config::{GuidanceShape, SampleConfig, Sampler, Start};
use crate::error::Result;
use crate::model::{Model, Pass};
use crate::schedule::Schedule;

/// Stream of the sampling noise on the device, and of draws on the host.
const STREAM: u32 = 0x5a3e;
const DRAWS: u32 = 0xd4a3;

/// What one sampler step starts from: (t, s) with s the next, cleaner time.
type Step = (usize, usize);

/// The steps of a sampler: pairs (t, s) of trained times from T down to 0.
pub fn steps(schedule: &Schedule, config: &SampleConfig, vocab: usize) -> Result<Vec<Step>> {
    let times = match config.schedule.as_str() {
        "" => schedule.spaced(config.steps),
        name => schedule.spaced_along(&Schedule::new(name.parse()?, schedule.steps(), vocab)?, config.steps),
    };
    Ok(times.windows(2).map(|w| (w[0], w[1])).collect())
}

/// Guidance weight at step `i` of `count`.
pub fn guidance_at(config: &SampleConfig, i: usize, count: usize) -> f32 {
    match config.guidance_shape {
        GuidanceShape::Constant => config.guidance,
        GuidanceShape::Linear => 1.0 + (config.guidance - 1.0) * (i + 1) as f32 / count as f32,
    }
}

/// Coefficients of the reverse step: y_s = a·ŷ_0 + b·y_t + c·z.
pub fn posterior(schedule: &Schedule, t: usize, s: usize) -> (f64, f64, f64) {
    let (at, r#as) = (schedule.alpha_bar(t), schedule.alpha_bar(s));
    let ratio = at / r#as;
    let a = r#as.sqrt() * (1.0 - ratio) / (1.0 - at);
    let b = ratio.sqrt() * (1.0 - r#as) / (1.0 - at);
    let c = ((1.0 - ratio) * (1.0 - r#as) / (1.0 - at)).sqrt();
    (a, b, c)
}

/// softmax over a row, in f64.
pub fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)) as f64;
    let e: Vec<f64> = logits.iter().map(|x| (*x as f64 - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|x| x / sum).collect()
}

/// The most likely class (the first of equals).
pub fn argmax<T: PartialOrd + Copy>(x: &[T]) -> usize {
    x.iter().enumerate().fold(0, |best, (i, v)| if *v > x[best] { i } else { best })
}

/// A class drawn with exact inverse CDF in f64: Gumbel noise in f32 would cut the tail.
pub fn draw(p: &[f64], u: f64) -> usize {
    let mut sum = 0.0;
    for (i, q) in p.iter().enumerate() {
        sum += q;
        if u < sum {
            return i;
        }
    }
    // Rounding may leave the sum just below 1: the last class that has any probability.
    p.iter().rposition(|q| *q > 0.0).unwrap_or(0)
}

/// A uniform f64 in [0, 1) for (seed, example, step).
fn uniform(seed: u64, example: u32, token: u32, step: u32) -> f64 {
    let w = rng::philox([token, example, step, DRAWS], [seed as u32, (seed >> 32) as u32]);
    ((w[0] as u64) << 21 | (w[1] as u64) >> 11) as f64 / (1_u64 << 53) as f64
}

/// The present noisy vectors: a recipe the device draws from, or values on the host.
enum State {
    Recipe { tokens: Vec<u32>, signal: f32, spread: f32 },
    Values(Vec<f32>),
}

/// What a sampler predicts at one step, for all examples.
pub struct Prediction {
    /// Time of the noisy vectors.
    pub t: usize,
    /// Guided logits, \[B·N·V\].
    pub logits: Vec<f32>,
}

/// A denoiser as the sampler sees it: noisy vectors at a time to guided logits. The Bayes oracle is one, a network another.
pub trait Denoise {
    /// Guided logits \[B·N·V\] of the noisy vectors at time `t`, with guidance weight `w`.
    fn logits(&self, noisy: &Noisy, t: usize, w: f32) -> Result<Vec<f32>>;
}

/// Noisy vectors of a batch.
pub struct Noisy {
    /// Recipe or values of y_t, on the sampler's device.
    pub tokens: NoisyTokens,
}

/// The loop: predict, choose, add less noise. `each` sees every step's prediction. Returns the last one's logits.
pub fn run(
    denoiser: &dyn Denoise,
    device: &Device,
    schedule: &Schedule,
    config: &SampleConfig,
    (examples, n, vocab): (&[u32], usize, usize),
    lambda: f64,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    let steps = steps(schedule, config, vocab)?;
    let (b, count) = (examples.len(), steps.len());
    let ids = Tensor::from_u32(device, &[b], examples.to_vec())?;
    let host_ids = Tensor::from_u32(&Device::Cpu, &[b], examples.to_vec())?;
    let dense = matches!(config.sampler, Sampler::Softmax | Sampler::Ddim | Sampler::Ancestral);
    // Step i of the stream: fresh noise for every step of every example.
    let noise = Noise::new(device, config.seed, STREAM, 0)?;
    let host_noise = |i: usize| -> Result<Vec<f32>> {
        Ok(Noise::new(&Device::Cpu, config.seed, STREAM, i as u32)?.normal(&host_ids, n * vocab)?.to_vec()?)
    };
    let begin = if config.start == Start::Noise { 1.0 } else { 0.0 };
    let mut state = match dense {
        true => State::Values(host_noise(0)?.into_iter().map(|z| begin * z).collect()),
        false => State::Recipe { tokens: vec![0; b * n], signal: 0.0, spread: begin },
    };
    let mut logits = Vec::new();
    for (i, &(t, s)) in steps.iter().enumerate() {
        let per_row = |x: f32| Tensor::from_f32(device, &[b], vec![x; b]);
        let (tokens, signal, spread, eps) = match &state {
            State::Recipe { tokens, signal, spread } => {
                let eps = Eps::Drawn { noise: noise.later(i as u32), examples: ids.clone() };
                (tokens.clone(), *signal, *spread, eps)
            }
            State::Values(y) => {
                (vec![0; b * n], 0.0, 1.0, Eps::Given(Tensor::from_f32(device, &[b, n, vocab], y.clone())?))
            }
        };
        let tokens = Tensor::from_u32(device, &[b, n], tokens)?;
        let noisy =
            Noisy { tokens: NoisyTokens { tokens, signal: per_row(signal)?, spread: per_row(spread)?, eps, vocab } };
        let p = Prediction { t, logits: denoiser.logits(&noisy, t, guidance_at(config, i, count))? };
        each(&p);
        logits = p.logits;
        if s == 0 {
            break;
        }
        let rows = logits.chunks_exact(vocab).enumerate();
        let pick = |row: usize, l: &[f32]| match config.sampler {
            Sampler::Multinomial => {
                draw(&softmax(l), uniform(config.seed, examples[row / n], (row % n) as u32, i as u32))
            }
            _ => argmax(l),
        } as u32;
        state = match &state {
            State::Recipe { .. } => State::Recipe {
                tokens: rows.map(|(row, l)| pick(row, l)).collect(),
                signal: (lambda * schedule.signal(s)) as f32,
                spread: schedule.spread(s) as f32,
            },
            State::Values(y) => {
                let z = host_noise(i + 1)?;
                let (a, c, d) = posterior(schedule, t, s);
                let mut next = vec![0.0; y.len()];
                for (row, l) in rows {
                    for (k, p) in softmax(l).into_iter().enumerate() {
                        let at = row * vocab + k;
                        let (y0, y, z) = (lambda * p, y[at] as f64, z[at] as f64);
                        next[at] = match config.sampler {
                            Sampler::Softmax => schedule.signal(s) * y0 + schedule.spread(s) * z,
                            Sampler::Ddim => {
                                let eps = (y - schedule.signal(t) * y0) / schedule.spread(t);
                                schedule.signal(s) * y0 + schedule.spread(s) * eps
                            }
                            _ => a * y0 + c * y + d * z,
                        } as f32;
                    }
                }
                State::Values(next)
            }
        };
    }
    Ok(logits)
}

/// A network and the condition of a batch, computed once.
pub struct Conditioned<'a> {
    model: &'a Model,
    /// Projected condition \[B, C, d\].
    cond: Tensor,
}

impl<'a> Conditioned<'a> {
    /// Encode the images.
    pub fn new(model: &'a Model, images: &Tensor) -> Result<Conditioned<'a>> {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        let cond = model.project_condition(&p, &model.condition(&p, images)?)?;
        Ok(Conditioned { model, cond: cond.value().clone() })
    }
}

/// Every example twice, next to its copy, for a guided step.
fn twice(x: &Tensor) -> Result<Tensor> {
    let shape: Vec<usize> = std::iter::once(2 * x.shape()[0]).chain(x.shape()[1..].iter().copied()).collect();
    let width = x.len() / x.shape()[0];
    let device = x.device();
    Ok(match x.dtype() {
        tweedie_engine::DType::U32 => {
            let v = x.to_vec_u32()?;
            Tensor::from_u32(&device, &shape, v.chunks(width).flat_map(|c| [c, c].concat()).collect())?
        }
        _ => {
            let v = x.to_vec()?;
            Tensor::from_f32(&device, &shape, v.chunks(width).flat_map(|c| [c, c].concat()).collect())?
        }
    })
}

impl Denoise for Conditioned<'_> {
    fn logits(&self, noisy: &Noisy, t: usize, w: f32) -> Result<Vec<f32>> {
        let tape = Tape::inference();
        let m = self.model;
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let cond = tape.constant(self.cond.clone());
        let b = cond.shape()[0];
        let run = |noisy: &NoisyTokens, cond: &Var, drop: Option<&Tensor>, rows: usize| -> Result<Vec<f32>> {
            let f = m.denoise(&p, noisy, &vec![t as u32; rows], cond, drop)?;
            Ok(m.logits(&p, &f)?.value().to_vec()?)
        };
        if w == 1.0 {
            return run(&noisy.tokens, &cond, None, b);
        }
        // Both passes as one batch: each example with its condition, then with the null condition, on the same noise.
        let x = &noisy.tokens;
        let eps = match &x.eps {
            Eps::Drawn { noise, examples } => Eps::Drawn { noise: noise.clone(), examples: twice(examples)? },
            Eps::Given(e) => Eps::Given(twice(e)?),
        };
        let both = NoisyTokens {
            tokens: twice(&x.tokens)?,
            signal: twice(&x.signal)?,
            spread: twice(&x.spread)?,
            eps,
            vocab: x.vocab,
        };
        let drop = Tensor::from_u32(&m.device(), &[2 * b], (0..2 * b as u32).map(|i| i % 2).collect())?;
        let l = run(&both, &tokens::repeat(&tape, &cond, 2)?, Some(&drop), 2 * b)?;
        let width = l.len() / (2 * b);
        let guide = |pair: &[f32]| -> Vec<f32> {
            let (c, u) = pair.split_at(width);
            u.iter().zip(c).map(|(u, c)| u + w * (c - u)).collect()
        };
        Ok(l.chunks_exact(2 * width).flat_map(guide).collect())
    }
}

/// Class logits \[B·V\] of images: sampled for TDD, one pass for its twin. With votes, the logarithm of the mean probability.
pub fn classify(
    model: &Model,
    images: &Tensor,
    examples: &[u32],
    schedule: &Schedule,
    lambda: f64,
    config: &SampleConfig,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    if !model.is_tdd() {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        let f = model.masked_features(&p, &model.condition(&p, images)?)?;
        return Ok(model.logits(&p, &f)?.value().to_vec()?);
    }
    let denoiser = Conditioned::new(model, images)?;
    let vocab = model.sizes().vocab;
    let sizes = (examples, model.sizes().tokens, vocab);
    if config.votes == 1 {
        return run(&denoiser, &model.device(), schedule, config, sizes, lambda, each);
    }
    let mut mean = vec![0.0_f64; examples.len() * vocab];
    for vote in 0..config.votes {
        let config = SampleConfig { seed: config.seed.wrapping_add(vote as u64), ..config.clone() };
        let logits = run(&denoiser, &model.device(), schedule, &config, sizes, lambda, &mut each)?;
        for (m, l) in mean.chunks_exact_mut(vocab).zip(logits.chunks_exact(vocab)) {
            m.iter_mut().zip(softmax(l)).for_each(|(m, p)| *m += p / config.votes as f64);
        }
    }
    Ok(mean.into_iter().map(|p| p.max(1e-30).ln() as f32).collect())
}
