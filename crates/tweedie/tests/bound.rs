//! Likelihood bounds against sources of known entropy, with the exact posterior in the network's place.
//!
//! Seeds are fixed; statistical bounds are 5 standard errors.

use tweedie::bound::{
    BoundPath, Bounds, Conditioned, FlowBound, MddBound, Predict, RevealBound, Score, StaggeredBound, TddBound,
    TokenBatch,
};
use tweedie::config::{Method, ModelConfig};
use tweedie::model::{DenoiserConfig, Input, Model, Sizes};
use tweedie::sample::{At, Denoise, draw};
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

/// Three tokens that depend on each other, p(a, b, c) over two classes each, with the exact posterior in the network's place: whatever the
/// times of the tokens are, or whichever are masked.
struct Triples(Process);

const TRIPLES: [f64; 8] = [0.40, 0.02, 0.03, 0.05, 0.04, 0.02, 0.04, 0.40];

/// Bit i of a triple.
fn bit(triple: usize, i: usize) -> u32 {
    (triple >> i) as u32 & 1
}

impl Triples {
    /// −Σ p ln p of the tokens `of`, a bit each.
    fn entropy_of(of: usize) -> f64 {
        let mut sums = [0.0; 8];
        TRIPLES.iter().enumerate().for_each(|(t, p)| sums[t & of] += p);
        entropy(&sums)
    }

    /// The mean over orders of Σ over groups of Σ_i H(token i | the groups before): what the best network of independent tokens can reach.
    fn bound(group: usize) -> f64 {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let of = |order: &[usize; 3]| {
            let mut seen = 0;
            let mut sum = 0.0;
            for group in order.chunks(group) {
                sum += group.iter().map(|i| Self::entropy_of(seen | 1 << i) - Self::entropy_of(seen)).sum::<f64>();
                seen |= group.iter().map(|i| 1 << i).sum::<usize>();
            }
            sum
        };
        orders.iter().map(of).sum::<f64>() / 6.0
    }
}

impl Predict for Triples {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        let clean = clean.to_vec_u32()?;
        // ln p of what is seen of token i, were it k.
        let seen: Box<dyn Fn(usize, u32) -> f64> = match input {
            Input::Noisy(noisy) => {
                let (y, each) = (noisy.vectors(DType::F32)?.to_vec()?, clean.len() / t.len());
                let times = t.to_vec();
                Box::new(move |i, k| self.0.evidence(times[i / each] as usize) * y[2 * i + k as usize] as f64)
            }
            Input::Tokens(ids) => {
                let ids = ids.to_vec_u32()?;
                Box::new(move |i, k| if [k, 2].contains(&ids[i]) { 0.0 } else { f64::NEG_INFINITY })
            }
            Input::Projected(_) | Input::Evidence(_) => panic!("nothing is projected here"),
        };
        let of = |i: usize| {
            let first = i / 3 * 3;
            let l = |t: usize| TRIPLES[t].ln() + (0..3).map(|j| seen(first + j, bit(t, j))).sum::<f64>();
            let most = (0..8).map(l).fold(f64::MIN, f64::max);
            let mut p = [1e-300; 2];
            (0..8).for_each(|t| p[bit(t, i % 3) as usize] += (l(t) - most).exp());
            let sum = p[0] + p[1];
            score(&p.map(|p| p / sum), clean[i])
        };
        Ok((0..clean.len()).map(of).collect())
    }
}

/// Along the masked path the exact posterior reaches the entropy, one token at a time; in groups it pays for what tokens of a group tell of
/// each other, to the closed form; TDD and its twin alike. The shared time, from one example to the next, is another bound.
#[test]
fn the_masked_path_reaches_the_entropy_one_token_at_a_time() {
    const EXAMPLES: u32 = 4000;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let triple = |e: &u32| draw(&TRIPLES, uniform(5, *e));
    let tokens: Vec<u32> = ids.iter().map(triple).flat_map(|t| [0, 1, 2].map(|i| bit(t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    let whole = Triples::entropy_of(0b111);
    assert!((Triples::bound(1) - whole).abs() < 1e-12);
    let alone: f64 = (0..3).map(|i| Triples::entropy_of(1 << i)).sum();
    assert!(
        (Triples::bound(3) - alone).abs() < 1e-12
            && Triples::bound(2) > whole + 0.05
            && alone > Triples::bound(2) + 0.05
    );
    for group in [1, 2, 3, 9] {
        let want = Triples::bound(group.min(3)) / 3.0;
        let tdd = RevealBound { process: &process, group, draws: 12, seed: 3 };
        let tdd = tdd.of(&predict, &Device::Cpu, &batch).unwrap();
        let mdd = MddBound { steps: 1000, draws: 12, seed: 3 };
        let mdd = mdd.of_groups(group, &predict, &Device::Cpu, &batch).unwrap();
        for (name, all) in [("TDD", &tdd), ("MDD", &mdd)] {
            let e = all.per_token();
            println!("{name}, groups of {group}: {:.4} ± {:.4}, closed form {want:.4}", e.mean, e.error);
            assert!(
                (e.mean - want).abs() < 5.0 * e.error + 1e-3,
                "{name}, {group}: {} ± {}, not {want}",
                e.mean,
                e.error
            );
            assert!(e.error < 0.01, "{name}: too noisy to say anything");
            let sum: f64 = all.tokens[..3].iter().sum();
            assert!((sum - all.nats[0]).abs() < 1e-9 * (1.0 + sum));
        }
        // The same stages: the same numbers, but for what the oracle reads into noise at T, where ᾱ is not quite 0.
        let apart = tdd.nats.iter().zip(&mdd.nats).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 0.05, "TDD and MDD differ by {apart}");
    }
    // What an example gets does not depend on its batch.
    let few = TokenBatch { tokens: &tokens[..30], examples: &ids[..10], ..batch };
    let bound = RevealBound { process: &process, group: 1, draws: 4, seed: 3 };
    let all = bound.of(&predict, &Device::Cpu, &batch).unwrap();
    assert_eq!(bound.of(&predict, &Device::Cpu, &few).unwrap().nats[..], all.nats[..10]);
    assert!(RevealBound { group: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
    assert!(RevealBound { draws: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
    let shared = TddBound::new(&process, 2, 32, 3).unwrap().of(&predict, &Device::Cpu, &batch).unwrap().per_token();
    assert!(shared.mean > whole / 3.0 - 5.0 * shared.error, "{} ± {}, entropy {whole}", shared.mean, shared.error);
}

/// Whichever tokens are ahead of others, and by how much, the exact posterior reaches the entropy: all paths tell the same. One moment of all
/// tokens is the shared time's.
#[test]
fn every_staggered_path_reaches_the_entropy() {
    const EXAMPLES: u32 = 4000;
    let process = Process::new(Schedule::new(ScheduleKind::VocabAware, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let tokens: Vec<u32> =
        ids.iter().map(|e| draw(&TRIPLES, uniform(5, *e))).flat_map(|t| [0, 1, 2].map(|i| bit(t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    // Of these examples: what the draws alone must reach.
    let nats: f64 = tokens.chunks(3).map(|t| -TRIPLES[(t[0] + 2 * t[1] + 4 * t[2]) as usize].ln()).sum();
    let want = nats / tokens.len() as f64;
    let bound = StaggeredBound { process: &process, stagger: 1, draws: 24, seed: 3 };
    for stagger in [1, 2, 5, 40] {
        let got = StaggeredBound { stagger, ..bound }.of(&predict, &Device::Cpu, &batch).unwrap();
        let e = got.of_these();
        println!("{stagger}: {:.4} ± {:.4}, entropy {want:.4}", e.mean, e.error);
        assert!((e.mean - want).abs() < 5.0 * e.error + 2e-3, "{stagger}: {} ± {}, not {want}", e.mean, e.error);
        assert!(e.error < 0.01, "{stagger}: too noisy to say anything");
        let sum: f64 = got.tokens[..3].iter().sum();
        assert!((sum - got.nats[0]).abs() < 1e-9 * (1.0 + sum));
    }
    // What an example gets does not depend on its batch.
    let few = TokenBatch { tokens: &tokens[..30], examples: &ids[..10], ..batch };
    let of = |batch| StaggeredBound { stagger: 3, ..bound }.of(&predict, &Device::Cpu, batch).unwrap().nats;
    assert_eq!(of(&few)[..], of(&batch)[..10]);
    assert!(StaggeredBound { draws: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
}

/// The exact posterior as a denoiser, at the time of each token.
impl Denoise for Triples {
    fn vocab(&self) -> usize {
        2
    }

    fn per_token_time(&self) -> bool {
        true
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let y = noisy.to_vec()?;
        let times: Vec<usize> = match at.tokens {
            None => vec![at.t; y.len() / 2],
            Some(own) => own
                .which
                .to_vec_u32()?
                .into_iter()
                .map(|w| if w == 0 { at.t } else { own.times[w as usize - 1] })
                .collect(),
        };
        let of = |i: usize| {
            let first = i / 3 * 3;
            let seen = |j: usize, k: u32| self.0.evidence(times[j]) * y[2 * j + k as usize] as f64;
            let l = |t: usize| TRIPLES[t].ln() + (0..3).map(|j| seen(first + j, bit(t, j))).sum::<f64>();
            let most = (0..8).map(l).fold(f64::MIN, f64::max);
            let mut p = [1e-300; 2];
            (0..8).for_each(|t| p[bit(t, i % 3) as usize] += (l(t) - most).exp());
            p.map(|p| p.ln() as f32)
        };
        Ok(Tensor::from_f32(&Device::Cpu, noisy.shape(), (0..times.len()).flat_map(of).collect())?)
    }
}

/// Along the flow each text pays for where it ends alone, so that the bound of the exact posterior comes to each text's own −ln p.
#[test]
fn the_flow_reaches_the_entropy() {
    const EXAMPLES: u32 = 400;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let texts: Vec<usize> = ids.iter().map(|e| draw(&TRIPLES, uniform(5, *e))).collect();
    let tokens: Vec<u32> = texts.iter().flat_map(|t| [0, 1, 2].map(|i| bit(*t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    let off = |stagger: usize, steps: usize| {
        let got = FlowBound { process: &process, stagger, steps, seed: 3 }.of(&predict, &batch).unwrap();
        assert_eq!(got.tokens.len(), tokens.len());
        let off: Vec<f64> = got.nats.iter().zip(&texts).map(|(nats, t)| nats + TRIPLES[*t].ln()).collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        let spread = off.iter().map(|x| (x - mean).powi(2)).sum::<f64>().sqrt() / off.len() as f64;
        (mean, spread)
    };
    for stagger in [1, 3] {
        let (mean, error) = off(stagger, 256 * stagger);
        assert!(mean.abs() < 5.0 * error + 2e-3 && error < 5e-3, "stagger {stagger}: off by {mean:.4} ± {error:.4}");
        // What a step gets wrong can be seen: few steps are not a bound's end.
        let few = off(stagger, 16 * stagger);
        assert!(few.0.abs() > mean.abs(), "stagger {stagger}: {few:?}");
    }
    let refused = FlowBound { process: &process, stagger: 3, steps: 47, seed: 0 }.of(&predict, &batch).unwrap_err();
    assert!(refused.to_string().contains("48 or more"), "{refused}");
    let wrong = TokenBatch { vocab: 3, ..batch };
    assert!(FlowBound { process: &process, stagger: 1, steps: 16, seed: 0 }.of(&predict, &wrong).is_err());
}

#[test]
fn paths_have_names() {
    for (name, path) in [
        ("shared", BoundPath::Shared),
        ("staggered:1", BoundPath::Shared),
        ("staggered:4", BoundPath::Staggered(4)),
        ("reveal", BoundPath::Masked(1)),
        ("groups:4", BoundPath::Masked(4)),
        ("flow", BoundPath::Flow(1)),
        ("flow:4", BoundPath::Flow(4)),
    ] {
        assert_eq!(name.parse(), Ok(path));
    }
    assert_eq!((BoundPath::Shared.usual_draws(), BoundPath::Flow(4).usual_draws()), (8, 256));
    assert!(
        BoundPath::Masked(1).to_string().contains("masked path")
            && BoundPath::Masked(4).to_string().contains("4 tokens")
    );
    for name in
        ["", "groups", "groups:0", "groups:-1", "groups:99999999", "masked", "staggered:0", "staggered:1025", "flow:0"]
    {
        let e = name.parse::<BoundPath>().unwrap_err();
        assert!(e.contains("groups:N"), "{e}");
    }
}
