//! The process against its Bayes oracle: for one token with prior π and no condition, p(k|y_t) is known in closed form, and
//! with it what the forward process, the samplers, the loss and a trained network have to give.
//!
//! Seeds are fixed. A bound of 5 standard errors fails by chance once in about two million comparisons.

mod learned;

use std::cell::RefCell;
use std::sync::Arc;

use tweedie::config::{
    Config, GuidanceShape, LossConfig, PosteriorMean, SampleConfig, SamplerKind, Start, TrainConfig,
};
use tweedie::data::{Dataset, Format, MemorySource, Source};
use tweedie::loss::{NoiseOf, Rows};
use tweedie::model::{DenoiserConfig, Pass, VitConfig};
use tweedie::sample::{
    At, ClassSampler, Conditioned, Denoise, argmax, draw, guidance_at, sample_logits, sample_tokens, softmax,
};
use tweedie::train::Trainer;
use tweedie::{Process, Schedule, ScheduleKind, Times, Trained, Update};
use tweedie_engine::ops::cross_entropy::{Loss, Targets, linear_cross_entropy};
use tweedie_engine::ops::noisy_input::{NoisyTokens, noisy_input};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, rng};

const KINDS: [ScheduleKind; 4] =
    [ScheduleKind::Linear, ScheduleKind::Cosine, ScheduleKind::Sigmoid, ScheduleKind::VocabAware];

/// A prior that is far from uniform.
const PRIOR: [f64; 6] = [0.35, 0.25, 0.15, 0.12, 0.08, 0.05];
const K: usize = PRIOR.len();

fn cosine() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap())
}

/// A uniform number for (`stream`, `i`), apart from the streams of the library.
fn uniform(stream: u32, i: u32) -> f64 {
    let w = rng::philox([i, 0, stream, 0x0e57], [17, 0]);
    w[0] as f64 / (1_u64 << 32) as f64
}

/// p(k|y_t) = softmax_k(λ·√ᾱ/(1−ᾱ)·y_t + ln π_k), exactly.
struct Oracle<'a> {
    prior: &'a [f64],
    process: &'a Process,
    /// Every call: time, whether it is guided, y_t.
    seen: RefCell<Vec<(usize, bool, Vec<f32>)>>,
}

impl<'a> Oracle<'a> {
    fn new(prior: &'a [f64], process: &'a Process) -> Oracle<'a> {
        Oracle { prior, process, seen: RefCell::default() }
    }

    fn of(&self, y: &[f32], t: usize) -> Vec<f32> {
        let scale = self.process.signal(t) / (1.0 - self.process.schedule().alpha_bar(t));
        let rows = y.chunks_exact(self.prior.len());
        rows.flat_map(|y| y.iter().zip(self.prior).map(|(y, p)| (scale * *y as f64 + p.ln()) as f32)).collect()
    }

    /// Logits of y_t; `guided`: as pairs.
    fn predict(&self, y: &Tensor, t: usize, guided: bool) -> tweedie::Result<Tensor> {
        let &[_, n, k] = y.shape() else { panic!("{y:?}") };
        let y = y.to_vec()?;
        let mut logits = self.of(&y, t);
        if guided {
            // Without its condition it doubts: half the logits.
            let halves = |c: &[f32]| [c.to_vec(), c.iter().map(|l| l / 2.0).collect()].concat();
            logits = logits.chunks_exact(n * k).flat_map(halves).collect();
        }
        // A record of long runs over many examples would only take memory.
        let kept = if y.len() <= 1000 { y } else { Vec::new() };
        self.seen.borrow_mut().push((t, guided, kept));
        Ok(Tensor::from_f32(&Device::Cpu, &[logits.len() / (n * k), n, k], logits)?)
    }
}

impl Denoise for Oracle<'_> {
    fn vocab(&self) -> usize {
        self.prior.len()
    }

    fn logits(&self, y: &Tensor, at: At) -> tweedie::Result<Tensor> {
        self.predict(y, at.t, false)
    }

    fn logits_of_pairs(&self, y: &Tensor, at: At) -> tweedie::Result<Tensor> {
        self.predict(y, at.t, true)
    }
}

/// The sampler's last logits for `examples`, with the oracle of [`PRIOR`].
fn sampled(config: &SampleConfig, examples: &[u32]) -> Vec<f32> {
    let process = cosine();
    sample_logits(&Oracle::new(&PRIOR, &process), &process, config, (examples, 1), |_| {}).unwrap()
}

fn config(sampler: SamplerKind, steps: usize, seed: u64) -> SampleConfig {
    SampleConfig { sampler, steps, seed, ..SampleConfig::default() }
}

/// Σ (seen − expected)²/expected.
fn chi_square(counts: &[usize], prior: &[f64]) -> f64 {
    let n = counts.iter().sum::<usize>() as f64;
    counts.iter().zip(prior).map(|(c, p)| (*c as f64 - n * p).powi(2) / (n * p)).sum()
}

fn counts(classes: impl Iterator<Item = usize>) -> [usize; K] {
    classes.fold([0; K], |mut n, k| {
        n[k] += 1;
        n
    })
}

/// With 5 degrees of freedom χ² exceeds this with probability 1e-4.
const CHI_SQUARE_BOUND: f64 = 25.74;

/// Row `i` of `rows` holds `tokens` tokens that depend on i, at time t.
fn noisy(n: usize, tokens: usize, t: usize, lambda: f64, seed: u64, token: impl Fn(usize) -> u32) -> NoisyTokens {
    let rows = Rows::new((0..n * tokens).map(token).collect(), vec![t as u32; n]);
    let noise = Noise::new(&Device::Cpu, seed, 1, t as u32).unwrap();
    let process = cosine().with_lambda(lambda).unwrap();
    rows.corrupt(&process, &Device::Cpu, (tokens, K), &NoiseOf::Drawn(&noise)).unwrap()
}

/// y_t has mean λ·√ᾱ·onehot and covariance (1−ᾱ)·I, over classes and over tokens.
#[test]
fn forward_process_has_its_moments() {
    const N: usize = 20_000;
    const TOKENS: usize = 2;
    const WIDTH: usize = TOKENS * K;
    let (process, token) = (cosine(), |i: usize| (i * 7 / 3 % K) as u32);
    let schedule = process.schedule();
    for t in [1, 250, 500, 750, 1000] {
        for lambda in [1.0, 0.4] {
            let y = noisy(N, TOKENS, t, lambda, 3, token).vectors(DType::F32).unwrap().to_vec().unwrap();
            let (signal, spread) = (lambda * schedule.alpha_bar(t).sqrt(), (1.0 - schedule.alpha_bar(t)).sqrt());
            let residual = |i: usize, c: usize| {
                let hot = token(i * TOKENS + c / K) as usize == c % K;
                y[i * WIDTH + c] as f64 - if hot { signal } else { 0.0 }
            };
            let mean = |f: &dyn Fn(usize) -> f64| (0..N).map(f).sum::<f64>() / N as f64;
            let root = (N as f64).sqrt();
            for a in 0..WIDTH {
                // f32 leaves 6e-8 of a signal near 1 beside the statistical error.
                let m = mean(&|i| residual(i, a));
                assert!(m.abs() < 5.0 * spread / root + 1e-7, "t {t} λ {lambda} mean of {a}: {m}");
                for b in 0..=a {
                    let m = mean(&|i| residual(i, a) * residual(i, b)) / (spread * spread);
                    // The square of a normal has variance 2, the product of two independent ones variance 1.
                    let (want, error) = if a == b { (1.0, 2.0_f64.sqrt() / root) } else { (0.0, 1.0 / root) };
                    // At t = 1 the spread is 0.006: rounding of y near 1 adds less than 1e-4 of its square.
                    assert!((m - want).abs() < 5.0 * error + 1e-4, "t {t} λ {lambda} covariance {a}, {b}: {m}");
                }
            }
        }
    }
}

/// The true reverse process with the true posterior mean ends in samples of the prior.
#[test]
fn ancestral_sampling_reproduces_the_prior() {
    let examples: Vec<u32> = (0..20_000).collect();
    let logits = sampled(&config(SamplerKind::Ancestral, 250, 1), &examples);
    let seen = counts(logits.chunks_exact(K).map(argmax));
    let x = chi_square(&seen, &PRIOR);
    assert!(x < CHI_SQUARE_BOUND, "χ² {x}: {seen:?}");
    // Power: two percent moved from one class to another are noticed.
    let mut other = PRIOR;
    (other[0], other[2]) = (other[0] - 0.02, other[2] + 0.02);
    let x = chi_square(&seen, &other);
    assert!(x > CHI_SQUARE_BOUND, "χ² {x} does not tell two priors apart");
}

/// The deterministic flow maps pure noise to samples of the prior too.
#[test]
fn ddim_with_many_steps_reproduces_the_prior() {
    let examples: Vec<u32> = (0..20_000).collect();
    let seen = counts(sampled(&config(SamplerKind::Ddim, 250, 2), &examples).chunks_exact(K).map(argmax));
    let x = chi_square(&seen, &PRIOR);
    assert!(x < CHI_SQUARE_BOUND, "χ² {x}: {seen:?}");
}

/// A class drawn from the exact posterior and noised again has the marginal of the process: right for any number of steps.
#[test]
fn multinomial_sampling_reproduces_the_prior_in_any_number_of_steps() {
    let examples: Vec<u32> = (0..20_000).collect();
    for steps in [1, 2, 10] {
        let logits = sampled(&config(SamplerKind::Multinomial, steps, 3), &examples);
        let last = |(i, l): (usize, &[f32])| draw(&softmax(l), uniform(steps as u32, i as u32));
        let seen = counts(logits.chunks_exact(K).enumerate().map(last));
        let x = chi_square(&seen, &PRIOR);
        assert!(x < CHI_SQUARE_BOUND, "{steps} steps: χ² {x}: {seen:?}");
    }
}

/// With a class drawn from the exact posterior in place of its mean, the ancestral step is the reverse process itself: right for
/// any number of steps too, where the soft mean needs many.
#[test]
fn ancestral_steps_with_drawn_classes_reproduce_the_prior_in_any_number_of_steps() {
    let examples: Vec<u32> = (0..20_000).collect();
    let chi = |steps, posterior_mean| {
        let c = SampleConfig { posterior_mean, ..config(SamplerKind::Ancestral, steps, 12) };
        let last = |(i, l): (usize, &[f32])| draw(&softmax(l), uniform(100 + steps as u32, i as u32));
        let seen = counts(sampled(&c, &examples).chunks_exact(K).enumerate().map(last));
        chi_square(&seen, &PRIOR)
    };
    for steps in [2, 5, 20] {
        let x = chi(steps, PosteriorMean::Drawn);
        assert!(x < CHI_SQUARE_BOUND, "{steps} steps: χ² {x}");
    }
    // Power: the other means are told apart at few steps.
    for mean in [PosteriorMean::Soft, PosteriorMean::Argmax] {
        let x = chi(5, mean);
        assert!(x > CHI_SQUARE_BOUND, "{mean:?}: χ² {x}");
    }
}

/// The paper's sampler seeks a mode and does not sample, which suits classification; this is the contrast to the samplers
/// above. One step gives every example the most likely class; more steps leave it, but frequent classes stay too frequent.
#[test]
fn argmax_sampling_does_not_reproduce_the_prior() {
    let examples: Vec<u32> = (0..20_000).collect();
    let of = |steps| counts(sampled(&config(SamplerKind::Argmax, steps, 4), &examples).chunks_exact(K).map(argmax));
    assert_eq!(of(1), [examples.len(), 0, 0, 0, 0, 0]);
    let seen = of(20);
    let x = chi_square(&seen, &PRIOR);
    assert!(x > 10.0 * CHI_SQUARE_BOUND, "χ² {x}: {seen:?}");
    // Standard errors above the prior.
    let above = |k: usize| {
        let (n, p) = (examples.len() as f64, PRIOR[k]);
        (seen[k] as f64 - n * p) / (n * p * (1.0 - p)).sqrt()
    };
    assert!(above(0) > 5.0 && above(K - 1) < -5.0, "{seen:?}");
}

/// λ-hot labels: the sampler scales its clean vector by λ, and the oracle of that process still finds the prior.
#[test]
fn lambda_hot_sampling_reproduces_the_prior() {
    let (process, examples): (_, Vec<u32>) = (cosine().with_lambda(0.5).unwrap(), (0..20_000).collect());
    let oracle = Oracle::new(&PRIOR, &process);
    for (sampler, steps) in [(SamplerKind::Ancestral, 250), (SamplerKind::Multinomial, 5)] {
        let c = config(sampler, steps, 5);
        let logits = sample_logits(&oracle, &process, &c, (&examples, 1), |_| {}).unwrap();
        let last = |(i, l): (usize, &[f32])| draw(&softmax(l), uniform(99, i as u32));
        let seen = counts(logits.chunks_exact(K).enumerate().map(last));
        let x = chi_square(&seen, &PRIOR);
        assert!(x < CHI_SQUARE_BOUND, "{sampler:?}: χ² {x}: {seen:?}");
    }
}

#[test]
fn ddim_is_a_function_of_its_start() {
    let examples: Vec<u32> = (0..16).collect();
    let of = |c: &SampleConfig| sampled(c, &examples);
    let ddim = |seed| config(SamplerKind::Ddim, 20, seed);
    assert_eq!(of(&ddim(1)), of(&ddim(1)));
    assert_ne!(of(&ddim(1)), of(&ddim(2)));
    // From zeros nothing depends on the seed, for no noise enters on the way; in the ancestral sampler it does.
    let zeros = |c: SampleConfig| of(&SampleConfig { start: Start::Zeros, ..c });
    assert_eq!(zeros(ddim(1)), zeros(ddim(2)));
    assert_ne!(zeros(config(SamplerKind::Ancestral, 20, 1)), zeros(config(SamplerKind::Ancestral, 20, 2)));
}

/// Each step of ddim keeps the noise that the prediction implies.
#[test]
fn ddim_steps_follow_their_closed_form() {
    let process = cosine();
    let (schedule, oracle) = (process.schedule(), Oracle::new(&PRIOR, &process));
    let examples: Vec<u32> = (0..16).collect();
    let c = config(SamplerKind::Ddim, 12, 1);
    sample_logits(&oracle, &process, &c, (&examples, 1), |_| {}).unwrap();
    let seen = oracle.seen.borrow();
    assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), schedule.spaced(12)[..12]);
    for w in seen.windows(2) {
        let ((t, _, y), (s, _, next)) = (&w[0], &w[1]);
        let (at, a_s) = (schedule.alpha_bar(*t), schedule.alpha_bar(*s));
        for ((y, next), l) in y.chunks_exact(K).zip(next.chunks_exact(K)).zip(oracle.of(y, *t).chunks_exact(K)) {
            for ((y, next), p) in y.iter().zip(next).zip(softmax(l)) {
                let eps = (*y as f64 - at.sqrt() * p) / (1.0 - at).sqrt();
                let want = a_s.sqrt() * p + (1.0 - a_s).sqrt() * eps;
                // A few roundings to f32 of numbers of a few units.
                assert!((*next as f64 - want).abs() < 2e-6, "{t} to {s}: {next}, not {want}");
            }
        }
    }
}

/// Cross-entropy of each row, by the op that training uses.
fn cross_entropy(logits: Vec<f32>, targets: &Tensor) -> Vec<f64> {
    let tape = Tape::inference();
    let identity = (0..K * K).map(|i| if i / K == i % K { 1.0 } else { 0.0 }).collect();
    let weight = tape.constant(Tensor::from_f32(&Device::Cpu, &[K, K], identity).unwrap());
    let x = tape.constant(Tensor::from_f32(&Device::Cpu, &[logits.len() / K, K], logits).unwrap());
    let loss = Loss { targets: Targets::Hard(targets), weights: None, smoothing: 0.0 };
    let rows = linear_cross_entropy(&tape, &x, &weight, None, &loss, None).unwrap();
    rows.value().to_vec().unwrap().into_iter().map(f64::from).collect()
}

fn mean_and_error(x: &[f64]) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// The loss of the method is least at the oracle: other temperatures, another prior, another weight of y_t all cost more.
#[test]
fn cross_entropy_is_least_at_the_oracle() {
    const N: usize = 40_000;
    let process = cosine();
    let oracle = Oracle::new(&PRIOR, &process);
    let uniform_prior = [1.0 / K as f64; K];
    for t in [300, 500, 700, 1000] {
        let token = |i: usize| draw(&PRIOR, uniform(t as u32, i as u32)) as u32;
        let noisy = noisy(N, 1, t, 1.0, 7, token);
        let y = noisy.vectors(DType::F32).unwrap().to_vec().unwrap();
        let targets = Tensor::from_u32(&Device::Cpu, &[N], (0..N).map(token).collect()).unwrap();
        let exact = cross_entropy(oracle.of(&y, t), &targets);
        let scaled = |f: f32| oracle.of(&y, t).into_iter().map(|l| f * l).collect();
        let others: [(&str, Vec<f32>); 3] = [
            ("temperature 0.7", scaled(1.0 / 0.7)),
            ("temperature 1.4", scaled(1.0 / 1.4)),
            ("a uniform prior", Oracle::new(&uniform_prior, &process).of(&y, t)),
        ];
        for (name, logits) in others {
            // The same rows under both: the error of the mean difference.
            let d: Vec<f64> = cross_entropy(logits, &targets).into_iter().zip(&exact).map(|(o, e)| o - e).collect();
            let (mean, error) = mean_and_error(&d);
            assert!(mean > 5.0 * error, "t {t}, {name}: {mean} ± {error}");
        }
        // A posterior's expected loss is its own mean entropy: the oracle is calibrated, not only the best of four.
        let entropy = |l: &[f32]| softmax(l).into_iter().map(|p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum::<f64>();
        let d: Vec<f64> = oracle.of(&y, t).chunks_exact(K).zip(&exact).map(|(l, e)| e - entropy(l)).collect();
        let (mean, error) = mean_and_error(&d);
        assert!(mean.abs() < 5.0 * error, "t {t}: loss − entropy {mean} ± {error}");
    }
}

/// One reverse step takes the marginal of time t to that of time s, whatever y_0 is.
#[test]
fn posterior_steps_keep_the_marginals() {
    for kind in KINDS {
        let process = Process::new(Schedule::new(kind, 1000, 50).unwrap());
        let schedule = process.schedule();
        let times: Vec<usize> = [1, 2, 3].into_iter().chain((10..=1000).step_by(33)).chain([1000]).collect();
        for &t in &times {
            let exact = Update { clean: 1.0, keep: 0.0, noise: 0.0 };
            assert_eq!(process.reverse(Times { t, s: 0 }), exact, "{kind}: {t} to 0");
            for &s in times.iter().filter(|s| **s <= t) {
                let Update { clean: a, keep: b, noise: c } = process.reverse(Times { t, s });
                // Where 1 − ᾱ_t is small, its own rounding is what remains.
                let bound = 1e-12_f64.max(4.0 * f64::EPSILON / (1.0 - schedule.alpha_bar(t)));
                let mean = a + b * schedule.signal(t) - schedule.signal(s);
                let variance = (b * schedule.spread(t)).powi(2) + c * c - schedule.spread(s).powi(2);
                assert!(mean.abs() < bound, "{kind}: {t} to {s}: mean off by {mean:e}");
                assert!(variance.abs() < bound, "{kind}: {t} to {s}: variance off by {variance:e}");
            }
        }
    }
}

#[test]
fn guidance_follows_its_shape() {
    let process = cosine();
    // Whether each step was guided, and its logits as parts of those with condition: 1 + (w − 1)/2 for this oracle.
    let weights = |c: &SampleConfig| {
        let oracle = Oracle::new(&PRIOR, &process);
        let mut steps = Vec::new();
        sample_logits(&oracle, &process, c, (&[0, 1], 1), |p| steps.push(p.logits().unwrap())).unwrap();
        let seen = oracle.seen.take();
        assert_eq!(seen.len(), steps.len(), "one call per step");
        let weight = |(s, logits): (&(usize, bool, Vec<f32>), &Vec<f32>)| {
            let want = oracle.of(&s.2, s.0);
            let w = (logits[0] / want[0] - 0.5) / 0.5;
            for (l, c) in logits.iter().zip(want) {
                assert!((l - c * (0.5 + 0.5 * w)).abs() < 1e-4 * (1.0 + c.abs()));
            }
            ((w * 100.0).round() / 100.0, s.1)
        };
        seen.iter().zip(&steps).map(weight).unzip::<f32, bool, Vec<_>, Vec<_>>()
    };
    let of = |guidance, guidance_shape| SampleConfig { guidance, guidance_shape, ..config(SamplerKind::Argmax, 4, 0) };
    assert_eq!(weights(&of(3.0, GuidanceShape::Constant)), (vec![3.0; 4], vec![true; 4]));
    assert_eq!(weights(&of(3.0, GuidanceShape::Linear)), (vec![1.5, 2.0, 2.5, 3.0], vec![true; 4]));
    assert_eq!(guidance_at(&of(5.0, GuidanceShape::Linear), 9, 10), 5.0);
    // At exactly 1 a network runs without its second pass.
    for shape in [GuidanceShape::Constant, GuidanceShape::Linear] {
        assert_eq!(weights(&of(1.0, shape)), (vec![1.0; 4], vec![false; 4]));
    }
    // The choice follows the guided logits, not those of one pass: w = −1 turns this oracle's around.
    let guided = |guidance| {
        let c = SampleConfig { guidance, ..config(SamplerKind::Argmax, 2, 0) };
        let oracle = Oracle::new(&PRIOR, &process);
        sample_logits(&oracle, &process, &c, (&[0], 1), |_| {}).unwrap();
        oracle.seen.take()[1].2.clone()
    };
    // At time 500 the chosen class stands out by √ᾱ = 0.7; the noise is the same.
    let moved = guided(3.0).iter().zip(guided(-3.0)).filter(|(a, b)| (*a - b).abs() > 0.5).count();
    assert_eq!(moved, 2, "another class is chosen");
}

/// Two tokens that depend on each other: p(x | y_t) from Bayes' rule over all pairs.
struct Pairs<'a> {
    joint: [[f64; 3]; 3],
    process: &'a Process,
}

impl Denoise for Pairs<'_> {
    fn vocab(&self) -> usize {
        3
    }

    fn logits(&self, u: &Tensor, at: At) -> tweedie::Result<Tensor> {
        let scale = self.process.signal(at.t) / (1.0 - self.process.schedule().alpha_bar(at.t));
        let y = u.to_vec()?;
        let logits = y.chunks_exact(6).flat_map(|y| {
            let max = y.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x)) as f64;
            let of =
                |i: usize, j: usize| (scale * (y[i] as f64 + y[3 + j] as f64 - 2.0 * max)).exp() * self.joint[i][j];
            let first = (0..3).map(|i| (0..3).map(|j| of(i, j)).sum::<f64>());
            let second = (0..3).map(|j| (0..3).map(|i| of(i, j)).sum::<f64>());
            first.chain(second).map(|p| p.max(1e-300).ln() as f32).collect::<Vec<_>>()
        });
        Ok(Tensor::from_f32(&Device::Cpu, u.shape(), logits.collect())?)
    }
}

/// The reverse process of several tokens finds how they depend on each other, though each is predicted on its own.
#[test]
fn ancestral_sampling_reproduces_a_joint_distribution() {
    let (process, examples): (_, Vec<u32>) = (cosine(), (0..10_000).collect());
    let joint = [[0.30, 0.05, 0.02], [0.03, 0.25, 0.05], [0.05, 0.05, 0.20]];
    let oracle = Pairs { joint, process: &process };
    let seen = |sampler, steps| {
        let c = config(sampler, steps, 9);
        let logits = sample_logits(&oracle, &process, &c, (&examples, 2), |_| {}).unwrap();
        let mut n = [0_usize; 9];
        logits.chunks_exact(6).for_each(|l| n[3 * argmax(&l[..3]) + argmax(&l[3..])] += 1);
        chi_square(&n, joint.as_flattened())
    };
    // With 8 degrees of freedom χ² exceeds this with probability 1e-4.
    let x = seen(SamplerKind::Ancestral, 250);
    assert!(x < 31.8, "χ² {x}");
    // Power: one step decides each token by its own marginal.
    let x = seen(SamplerKind::Ancestral, 1);
    assert!(x > 1000.0, "χ² {x}");
}

/// What an example gets is a matter of its id, not of its neighbours.
#[test]
fn samples_do_not_depend_on_the_batch() {
    let examples: Vec<u32> = (0..8).collect();
    for sampler in
        [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral]
    {
        let c = config(sampler, 10, 6);
        let alone: Vec<f32> = examples.iter().flat_map(|e| sampled(&c, &[*e])).collect();
        assert_eq!(sampled(&c, &examples), alone, "{sampler:?}");
        assert_ne!(alone[..K], alone[K..2 * K], "{sampler:?}: two examples share their noise");
    }
}

/// Sampling by posterior steps with the soft mean draws its last token, as the process does that the bound is about: with one step from
/// pure noise that is a draw from the prior, where the most likely token would always be the same.
#[test]
fn ancestral_sampling_draws_its_last_token() {
    let process = cosine();
    let examples: Vec<u32> = (0..20_000).collect();
    for steps in [1, 100] {
        let c = config(SamplerKind::Ancestral, steps, 5);
        let made = sample_tokens(&Oracle::new(&PRIOR, &process), &process, &c, (&examples, 1), None).unwrap();
        let chi = chi_square(&counts(made.tokens.iter().map(|t| *t as usize)), &PRIOR);
        assert!(chi < CHI_SQUARE_BOUND, "{steps} steps: {chi}");
    }
}
