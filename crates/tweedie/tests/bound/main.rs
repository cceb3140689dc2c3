//! Likelihood bounds against sources of known entropy, with the exact posterior in the network's place.
//!
//! Seeds are fixed; statistical bounds are 5 standard errors.

mod paths;

use tweedie::bound::{Bounds, Conditioned, MddBound, Predict, Score, TddBound, TokenBatch};
use tweedie::config::{Method, ModelConfig};
use tweedie::model::{DenoiserConfig, Input, Model, Sizes};
use tweedie::sample::draw;
use tweedie::{Process, Result, Schedule, ScheduleKind};
use tweedie_engine::{DType, Device, Tensor, rng};

fn uniform(stream: u32, i: u32) -> f64 {
    rng::philox([i, 0, stream, 0x0b0d], [23, 0])[0] as f64 / (1_u64 << 32) as f64
}

fn entropy(p: &[f64]) -> f64 {
    -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

fn score(p: &[f64], token: u32) -> Score {
    let others = |f: &dyn Fn(f64) -> f64| -> f64 {
        p.iter().enumerate().filter(|(k, _)| *k != token as usize).map(|(_, p)| f(*p)).sum()
    };
    let distance = others(&|p| p).powi(2) + others(&|p| p * p);
    Score { log_p: p[token as usize].ln() as f32, distance: distance as f32 }
}

/// p(k|y_t) = softmax_k(λ·√ᾱ/(1−ᾱ)·y_t + ln π_k) for independent tokens.
struct Oracle<'a> {
    prior: &'a [f64],
    process: &'a Process,
}

impl Predict for Oracle<'_> {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        let Input::Noisy(noisy) = input else { panic!("the oracle reads noisy vectors") };
        let (y, clean) = (noisy.vectors(DType::F32)?.to_vec()?, clean.to_vec_u32()?);
        let (k, n) = (self.prior.len(), clean.len() / t.len());
        let of = |(i, y): (usize, &[f32])| {
            let t = t[i / n] as usize;
            let scale = self.process.signal(t) / (1.0 - self.process.schedule().alpha_bar(t));
            let l: Vec<f64> = y.iter().zip(self.prior).map(|(y, p)| scale * *y as f64 + p.ln()).collect();
            let max = l.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = l.iter().map(|l| (l - max).exp()).sum();
            let p: Vec<f64> = l.iter().map(|l| ((l - max).exp() / sum).max(1e-300)).collect();
            score(&p, clean[i])
        };
        Ok(y.chunks_exact(k).enumerate().map(of).collect())
    }
}

/// The bound of `examples` sequences of independent tokens, by batches.
fn tdd(prior: &[f64], kind: ScheduleKind, steps: usize, lambda: f64, examples: u32, n: usize, draws: usize) -> Bounds {
    let vocab = prior.len();
    let process = Process::new(Schedule::new(kind, steps, vocab).unwrap()).with_lambda(lambda).unwrap();
    let oracle = Oracle { prior, process: &process };
    let bound = TddBound::new(&process, vocab, draws, 7).unwrap();
    let mut all = Bounds::default();
    for first in (0..examples).step_by(64) {
        let ids: Vec<u32> = (first..examples.min(first + 64)).collect();
        let place = |e: &u32| (0..n as u32).map(|i| e * n as u32 + i).collect::<Vec<_>>();
        let tokens: Vec<u32> = ids.iter().flat_map(place).map(|i| draw(prior, uniform(1, i)) as u32).collect();
        let batch = TokenBatch { tokens: &tokens, n, vocab, examples: &ids, weights: None };
        all.extend(bound.of(&oracle, &Device::Cpu, &batch).unwrap());
    }
    all
}

/// ln K, up to what T steps cost against infinitely many (below 1 %).
#[test]
fn the_oracle_of_a_uniform_prior_reaches_ln_k() {
    for (k, examples, n, draws) in [(5, 2048, 16, 32), (27, 2048, 16, 16), (1000, 256, 16, 32)] {
        let prior = vec![1.0 / k as f64; k];
        let e = tdd(&prior, ScheduleKind::Cosine, 1000, 1.0, examples, n, draws).per_token();
        let want = (k as f64).ln();
        println!("K {k}: {:.4} ± {:.4}, ln K = {want:.4}", e.mean, e.error);
        assert!(e.error < 0.005 * want, "K {k}: the estimate is too noisy to say anything: ± {}", e.error);
        assert!((e.mean - want).abs() < 0.01 * want + 2.0 * e.error, "K {k}: {} ± {}, not {want}", e.mean, e.error);
    }
}

#[test]
fn the_oracle_of_any_prior_reaches_its_entropy() {
    let prior = [0.5, 0.2, 0.12, 0.08, 0.05, 0.03, 0.02];
    let want = entropy(&prior);
    for (kind, lambda) in [
        (ScheduleKind::Cosine, 1.0),
        (ScheduleKind::Cosine, 0.5),
        (ScheduleKind::Sigmoid, 1.0),
        (ScheduleKind::VocabAware, 1.0),
    ] {
        let e = tdd(&prior, kind, 1000, lambda, 1024, 16, 32).per_token();
        println!("{kind} λ {lambda}: {:.4} ± {:.4}, entropy {want:.4}", e.mean, e.error);
        assert!((e.mean - want).abs() < 5.0 * e.error + 0.01 * want, "{kind} λ {lambda}: {} ± {}", e.mean, e.error);
    }
    // A process of a single step has no times to draw: what counts is the prediction from y_1 and what y_1 itself tells.
    let one = tdd(&prior, ScheduleKind::Cosine, 1, 1.0, 64, 4, 2).per_token();
    assert!(one.mean.is_finite() && one.mean > 0.5 * want, "{one:?}");
    // What an example gets does not depend on its batch, and another prior would be seen.
    let bounds = tdd(&prior, ScheduleKind::Cosine, 1000, 1.0, 130, 4, 4);
    assert_eq!(bounds.nats[..64], tdd(&prior, ScheduleKind::Cosine, 1000, 1.0, 64, 4, 4).nats[..]);
    assert!((want - 7_f64.ln()).abs() > 0.2);
}

/// The standard error is one: over many seeds the estimate for the same examples spreads as it says, or less (the times are
/// spread evenly, which it does not know).
#[test]
fn the_standard_error_covers_the_draws() {
    let prior = [0.6, 0.3, 0.1];
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 3).unwrap());
    let oracle = Oracle { prior: &prior, process: &process };
    let tokens: Vec<u32> = (0..64).map(|i| draw(&prior, uniform(2, i)) as u32).collect();
    let ids: Vec<u32> = (0..16).collect();
    let batch = TokenBatch { tokens: &tokens, n: 4, vocab: 3, examples: &ids, weights: None };
    let runs: Vec<_> = (0..100)
        .map(|seed| {
            let bound = TddBound::new(&process, 3, 8, seed).unwrap();
            bound.of(&oracle, &Device::Cpu, &batch).unwrap().of_these()
        })
        .collect();
    let mean = runs.iter().map(|r| r.mean).sum::<f64>() / 100.0;
    let spread = (runs.iter().map(|r| (r.mean - mean).powi(2)).sum::<f64>() / 99.0).sqrt();
    let said = runs.iter().map(|r| r.error).sum::<f64>() / 100.0;
    println!("spread {spread:.4}, said {said:.4}");
    assert!(spread < 1.3 * said && spread > 0.3 * said, "spread {spread}, said {said}");
}

/// A chain that mostly stays: p(x_1) even, p(x_{i+1} = x_i) = stay.
struct Markov {
    stay: f64,
}

const STATES: usize = 3;

impl Markov {
    fn step(&self, a: usize, b: usize) -> f64 {
        if a == b { self.stay } else { (1.0 - self.stay) / (STATES - 1) as f64 }
    }

    fn sample(&self, n: usize, e: u32) -> Vec<u32> {
        let mut x = vec![(uniform(3, e * n as u32) * STATES as f64) as u32];
        for i in 1..n as u32 {
            let p: Vec<f64> = (0..STATES).map(|b| self.step(x[i as usize - 1] as usize, b)).collect();
            x.push(draw(&p, uniform(3, e * n as u32 + i)) as u32);
        }
        x
    }

    /// p(x_i | those that are not masked), by forward and backward sums.
    fn posterior(&self, seen: &[u32], i: usize) -> Vec<f64> {
        let allowed = |j: usize, s: usize| if seen[j] as usize == STATES || seen[j] as usize == s { 1.0 } else { 0.0 };
        let pass = |order: &[usize]| -> Vec<f64> {
            let mut m = vec![1.0; STATES];
            for j in order {
                let here: Vec<f64> = (0..STATES).map(|s| m[s] * allowed(*j, s)).collect();
                m = (0..STATES).map(|b| (0..STATES).map(|a| here[a] * self.step(a, b)).sum()).collect();
            }
            m
        };
        let (left, right) = (pass(&(0..i).collect::<Vec<_>>()), pass(&(i + 1..seen.len()).rev().collect::<Vec<_>>()));
        let p: Vec<f64> = (0..STATES).map(|s| left[s] * right[s] * allowed(i, s)).collect();
        let sum: f64 = p.iter().sum();
        p.into_iter().map(|p| p / sum).collect()
    }
}

impl Predict for Markov {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        let Input::Tokens(seen) = input else { panic!("it reads tokens") };
        let (seen, clean) = (seen.to_vec_u32()?, clean.to_vec_u32()?);
        let n = clean.len() / t.len();
        let of = |i: usize| score(&self.posterior(&seen[i / n * n..][..n], i % n), clean[i]);
        Ok((0..clean.len()).map(of).collect())
    }
}

/// The exact posterior of a chain reaches the chain's entropy: any order of unmasking is a chain rule.
#[test]
fn the_masked_bound_reaches_the_entropy_of_a_markov_chain() {
    const N: usize = 6;
    for stay in [1.0 / STATES as f64, 0.8] {
        let source = Markov { stay };
        let other = (1.0 - stay) / (STATES - 1) as f64;
        let step = entropy(&[stay, other, other]);
        let want = ((STATES as f64).ln() + (N - 1) as f64 * step) / N as f64;
        let ids: Vec<u32> = (0..3000).collect();
        let tokens: Vec<u32> = ids.iter().flat_map(|e| source.sample(N, *e)).collect();
        let batch = TokenBatch { tokens: &tokens, n: N, vocab: STATES, examples: &ids, weights: None };
        let bound = MddBound { steps: 1000, draws: 6, seed: 3 };
        let e = bound.of(&source, &Device::Cpu, &batch).unwrap().per_token();
        println!("stay {stay:.2}: {:.4} ± {:.4}, entropy {want:.4}", e.mean, e.error);
        // Even steps: every term is ln 3 exactly.
        assert!((e.mean - want).abs() < 5.0 * e.error + 1e-6, "stay {stay}: {} ± {}, not {want}", e.mean, e.error);
        assert!(e.error < 0.02 * want);
    }
}

/// Weight 0 takes tokens out of the sum and out of the mean.
#[test]
fn weights_choose_which_tokens_count() {
    struct ByToken;
    impl Predict for ByToken {
        fn scores(&self, _: &Input, _: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
            // Token k costs k + 1 nats.
            Ok(clean.to_vec_u32()?.iter().map(|k| Score { log_p: -1.0 - *k as f32, distance: 0.0 }).collect())
        }
    }
    let (tokens, ids) = ([0, 1, 2, 2, 1, 2, 2, 2], [0, 1]);
    let bound = MddBound { steps: 10, draws: 400, seed: 0 };
    let of = |weights: Option<&[f32]>| {
        let batch = TokenBatch { tokens: &tokens, n: 4, vocab: 3, examples: &ids, weights };
        bound.of(&ByToken, &Device::Cpu, &batch).unwrap()
    };
    let all = of(None);
    assert!((all.of(0).unwrap() - 9.0 / 4.0).abs() < 0.1 && (all.of(1).unwrap() - 11.0 / 4.0).abs() < 0.1, "{all:?}");
    let weights: Vec<f32> = tokens.iter().map(|t| if *t == 2 { 0.0 } else { 1.0 }).collect();
    let some = of(Some(&weights));
    assert_eq!(some.weight, [2.0, 1.0]);
    assert!((some.of(0).unwrap() - 1.5).abs() < 0.15 && (some.of(1).unwrap() - 2.0).abs() < 0.3, "{some:?}");
    assert!((some.of_these().mean - 5.0 / 3.0).abs() < 0.2);
    let bits = all.per_token().in_bits();
    assert!((bits.mean * 2_f64.ln() - all.per_token().mean).abs() < 1e-12);
    // One draw per example of all of N tokens, none of them masked twice: the sum over l is exact where all cost the same.
    let same = MddBound { steps: 10, draws: 1, seed: 0 };
    let batch = TokenBatch { tokens: &[2; 8], n: 4, vocab: 3, examples: &ids, weights: None };
    assert_eq!(same.of(&ByToken, &Device::Cpu, &batch).unwrap().nats, [12.0, 12.0]);
}

/// A network, through the engine's scores: about ln V nats per token before training for MDD.
#[test]
fn an_untrained_network_knows_nothing() {
    const V: usize = 9;
    let mut c = ModelConfig::preset("text").unwrap();
    c.denoiser = DenoiserConfig::new(16, 1, 2);
    let (tokens, ids): (Vec<u32>, Vec<u32>) = ((0..40).map(|i| i * 5 % V as u32).collect(), (0..8).collect());
    let batch = TokenBatch { tokens: &tokens, n: 5, vocab: V, examples: &ids, weights: None };
    c.method = Method::Mdd;
    let m = Model::new(&c, Sizes { vocab: V, tokens: 5 }, &Device::Cpu, DType::F32, 1).unwrap();
    let predict = Conditioned::new(&m, None).unwrap();
    let e = MddBound { steps: 100, draws: 4, seed: 0 }.of(&predict, &Device::Cpu, &batch).unwrap().per_token();
    assert!((e.mean - (V as f64).ln()).abs() < 0.6, "{e:?}");
    c.method = Method::Tdd;
    let m = Model::new(&c, Sizes { vocab: V, tokens: 5 }, &Device::Cpu, DType::F32, 1).unwrap();
    let predict = Conditioned::new(&m, None).unwrap();
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 100, V).unwrap());
    let bound = TddBound::new(&process, V, 4, 0).unwrap();
    // It is wrong at t = 1 too, where SNR is large: the bound is far above ln V.
    assert!(bound.of(&predict, &Device::Cpu, &batch).unwrap().per_token().mean > 10.0);
    assert!(bound.of(&predict, &Device::Cpu, &TokenBatch { vocab: 8, ..batch }).is_err());
}

/// ln p of what is seen of an example, were it this text.
type LogP<'a> = dyn Fn(usize, &[u32; 4]) -> f64 + 'a;

/// One of two texts, with their ends (2) and padding (3), known up to what is seen of them.
struct TwoTexts(Process);

const TWO: [[u32; 4]; 2] = [[0, 2, 3, 3], [0, 1, 2, 3]];

impl Predict for TwoTexts {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        let clean = clean.to_vec_u32()?;
        let seen: Box<LogP> = match input {
            Input::Noisy(noisy) => {
                let (y, evidence) = (noisy.vectors(DType::F32)?.to_vec()?, |e: usize| self.0.evidence(t[e] as usize));
                let y = move |e: usize, i: usize, k: u32| y[(e * 4 + i) * 4 + k as usize] as f64;
                Box::new(move |e, text| (0..4).map(|i| evidence(e) * y(e, i, text[i])).sum())
            }
            Input::Tokens(ids) => {
                let ids = ids.to_vec_u32()?;
                let fits = move |e: usize, i: usize, k: u32| [k, 4].contains(&ids[e * 4 + i]);
                Box::new(move |e, text| if (0..4).all(|i| fits(e, i, text[i])) { 0.0 } else { f64::NEG_INFINITY })
            }
            Input::Projected(_) | Input::Evidence(_) => panic!("nothing is projected here"),
        };
        let of = |i: usize| {
            let l = TWO.map(|text| seen(i / 4, &text));
            let most = l[0].max(l[1]);
            let sum: f64 = l.iter().map(|l| (l - most).exp()).sum();
            let mut p = [1e-300; 4];
            TWO.iter().zip(l).for_each(|(text, l)| p[text[i % 4] as usize] += (l - most).exp() / sum);
            score(&p, clean[i])
        };
        Ok((0..clean.len()).map(of).collect())
    }
}

/// Padding is shown, and it tells where a text ends: the bound of a text that is one of two is ln 2 with it, and below that, and so no
/// bound, without.
#[test]
fn padding_counts_in_a_bound() {
    const EXAMPLES: u32 = 512;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 4).unwrap());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let tokens: Vec<u32> = ids.iter().flat_map(|e| TWO[*e as usize % 2]).collect();
    let of = |weights: Option<&[f32]>| {
        let batch = TokenBatch { tokens: &tokens, n: 4, vocab: 4, examples: &ids, weights };
        let predict = TwoTexts(process.clone());
        let tdd = TddBound::new(&process, 4, 64, 0).unwrap().of(&predict, &Device::Cpu, &batch).unwrap();
        let mdd = MddBound { steps: 1000, draws: 64, seed: 0 }.of(&predict, &Device::Cpu, &batch).unwrap();
        [tdd, mdd].map(|b| b.nats.iter().sum::<f64>() / EXAMPLES as f64)
    };
    let without: Vec<f32> = tokens.iter().map(|t| if *t == 3 { 0.0 } else { 1.0 }).collect();
    for (all, some) in of(None).into_iter().zip(of(Some(&without))) {
        assert!((all - 2_f64.ln()).abs() < 0.02, "{all} nats");
        assert!(some < 0.6, "{some} nats without padding");
    }
}
