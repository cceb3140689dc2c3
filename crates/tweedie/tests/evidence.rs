//! `model.denoiser.evidence`: Bayes' rule for each noisy vector is part of the network.

mod common;

use common::assert_gradient;
use tweedie::bound::{self, TddBound, TokenBatch};
use tweedie::config::{Config, LossConfig, ModelConfig, SampleConfig, SamplerKind};
use tweedie::loss::{NoiseOf, Rows, TddLoss};
use tweedie::model::{DenoiserConfig, Input, Method, Model, Pass, Positions, Sizes, count_parameters};
use tweedie::sample::{Conditioned, Denoise, sample_tokens};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::ops::noisy_input::Eps;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, Var, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 5, tokens: 3 };
const PRIOR: [f64; 5] = [0.4, 0.3, 0.15, 0.1, 0.05];
const T: usize = 1000;

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::VocabAware, T, SIZES.vocab).unwrap()).with_lambda(0.9).unwrap()
}

fn config(evidence: bool) -> ModelConfig {
    let mut c = ModelConfig::preset("text").unwrap();
    c.denoiser = DenoiserConfig { evidence, positions: Positions::Rotary, ..DenoiserConfig::new(24, 2, 2) };
    c
}

fn model(c: &ModelConfig, sizes: Sizes) -> Model {
    Model::new(c, sizes, &CPU, DType::F32, 5).unwrap().for_process(&process())
}

fn set(m: &mut Model, name: &str, value: impl Fn(usize) -> f32) {
    let id = m.params.find(name).unwrap();
    let len = m.params.value(id).len();
    m.params.set(id, &(0..len).map(value).collect::<Vec<_>>()).unwrap();
}

/// A network whose blocks say nothing and whose prior is that of the tokens: the Bayes oracle of independent tokens.
fn oracle() -> Model {
    let mut m = model(&config(true), SIZES);
    set(&mut m, "denoiser.head.weight", |_| 0.0);
    set(&mut m, "denoiser.prior", |k| PRIOR[k].ln() as f32);
    m
}

fn log_softmax(l: &[f32]) -> Vec<f64> {
    let most = l.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let all: f64 = l.iter().map(|l| (*l as f64 - most).exp()).sum();
    l.iter().map(|l| *l as f64 - most - all.ln()).collect()
}

#[test]
fn a_network_that_says_nothing_is_the_bayes_oracle() {
    let (m, process) = (oracle(), process());
    let network = Conditioned::new(&m, None, 1, false).unwrap();
    assert!(network.weight().unwrap().is_none());
    for t in [1, 300, 700, T] {
        let tokens = Tensor::from_u32(&CPU, &[2, 3], vec![0, 4, 2, 1, 3, 0]).unwrap();
        let eps = Eps::Given(cases::random(3, &[2, 3, SIZES.vocab], 1.0));
        let y = process.corrupt(tokens, &[t as u32; 2], SIZES.vocab, eps).unwrap().vectors(DType::F32).unwrap();
        let logits = network.logits(&y, t.into()).unwrap().to_vec().unwrap();
        for (l, y) in logits.chunks_exact(SIZES.vocab).zip(y.to_vec().unwrap().chunks_exact(SIZES.vocab)) {
            let want = process.posterior(y, &PRIOR, t);
            for (l, p) in log_softmax(l).iter().zip(want) {
                assert!((l - p.ln().max(-16.0)).abs() < 2e-3, "t {t}: {l} {}", p.ln());
            }
        }
    }
}

/// So its bound is that of the oracle: the entropy of independent tokens, but for the steps between times.
#[test]
fn its_bound_is_the_entropy_of_independent_tokens() {
    let (m, process) = (oracle(), process());
    let mut uniform =
        (0_u32..).map(|i| tweedie_engine::rng::uniform_of(tweedie_engine::rng::philox([i, 0, 0, 0], [3, 4])[0]) as f64);
    let mut token = || {
        let mut u = uniform.next().unwrap();
        PRIOR
            .iter()
            .position(|p| {
                u -= p;
                u < 0.0
            })
            .unwrap_or(4) as u32
    };
    const B: u32 = 800;
    let tokens: Vec<u32> = (0..B * 3).map(|_| token()).collect();
    let ids: Vec<u32> = (0..B).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: SIZES.vocab, examples: &ids, weights: None };
    let network = bound::Conditioned::new(&m, None).unwrap();
    let got = TddBound::new(&process, SIZES.vocab, 16, 0).unwrap().of(&network, &CPU, &batch).unwrap();
    let nats: f64 = tokens.iter().map(|t| -PRIOR[*t as usize].ln()).sum::<f64>() / tokens.len() as f64;
    let of = got.of_these();
    assert!((of.mean - nats).abs() < 4.0 * of.error + 0.01, "{of:?}, the tokens have {nats} nats each");
    assert!(of.error < 0.02, "{of:?}");
}

/// And it writes tokens by their chances, along any number of steps.
#[test]
fn its_samples_have_the_prior() {
    let (m, process) = (oracle(), process());
    let network = Conditioned::new(&m, None, 1, false).unwrap();
    let ids: Vec<u32> = (0..2000).collect();
    for (sampler, steps) in [(SamplerKind::Multinomial, 1), (SamplerKind::Ancestral, 64)] {
        let config = SampleConfig { sampler, steps, guidance: 1.0, ..SampleConfig::default() };
        let made = sample_tokens(&network, &process, &config, (&ids, 3), None).unwrap().tokens;
        for (k, p) in PRIOR.iter().enumerate() {
            let share = made.iter().filter(|t| **t as usize == k).count() as f64 / made.len() as f64;
            let error = (p * (1.0 - p) / made.len() as f64).sqrt();
            assert!((share - p).abs() < 4.0 * error + 0.01, "{sampler:?}: {share} of class {k}, {p} expected");
        }
    }
}

fn loss(m: &Model, tape: &Tape) -> Var {
    let rows = Rows::new((0..9).map(|i| i * 3 % 5).collect(), vec![900, 500, 100]);
    let (noise, config) = (Noise::new(&CPU, 1, 1, 0).unwrap(), LossConfig::default());
    let loss = TddLoss { process: &process(), config: &config, noise: NoiseOf::Drawn(&noise) };
    loss.of(&Pass::inference(tape, &m.params, DType::F32), m, None, &rows).unwrap()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for self_condition in [false, true] {
        let mut c = config(true);
        c.denoiser.self_condition = self_condition;
        let mut m = model(&c, SIZES);
        set(&mut m, "denoiser.prior", |k| 0.3 * k as f32 - 0.5);
        if self_condition {
            let values = cases::random(77, &[24, SIZES.vocab], 0.5).to_vec().unwrap();
            m.params.set(m.params.find("denoiser.self_in.weight").unwrap(), &values).unwrap();
        }
        let tape = Tape::new();
        let start = loss(&m, &tape);
        tape.backward(&start, Some(&mut m.params)).unwrap();
        let value = |m: &Model| loss(m, &Tape::inference()).value().item().unwrap();
        // No gradient goes through the first pass of self-conditioning: what it depends on has not all of its own.
        let names: &[&str] = match self_condition {
            true => &["denoiser.self_in.weight"],
            false => &["denoiser.prior", "denoiser.token_in.weight", "denoiser.head.weight"],
        };
        for name in names {
            let every = if *name == "denoiser.prior" { 1 } else { 11 };
            assert_gradient(&mut m, name, every, name, value);
        }
    }
}

/// Off, nothing changes; on, there is one parameter more; the twin takes no notice.
#[test]
fn it_costs_one_prior() {
    let of = |c: &ModelConfig| count_parameters(c, SIZES).unwrap().0;
    assert_eq!(of(&config(true)), of(&config(false)) + SIZES.vocab);
    let twin = |evidence| ModelConfig { method: Method::Mdd, ..config(evidence) };
    assert_eq!(of(&twin(true)), of(&twin(false)));
    assert!(!model(&twin(true), SIZES).reads_evidence());
}

#[test]
fn guidance_leaves_the_evidence_alone() {
    for (vocab, what) in [(6, "pairs of logits"), (150, "features")] {
        let mut c = ModelConfig::preset("digits").unwrap();
        c.denoiser = DenoiserConfig { evidence: true, ..DenoiserConfig::new(24, 1, 2) };
        let m = model(&c, Sizes { vocab, tokens: 1 });
        let images = cases::random(4, &[2, 1, 8, 8], 1.0);
        let network = Conditioned::new(&m, Some(&images), 1, true).unwrap();
        let y = cases::random(3, &[2, 1, vocab], 1.0);
        let pairs = network.logits_of_pairs(&y, 700.into()).unwrap();
        assert_eq!(pairs.shape(), [4, 1, vocab]);
        let plain = network.logits(&y, 700.into()).unwrap().to_vec().unwrap();
        let pairs = pairs.to_vec().unwrap();
        assert!(pairs[..vocab].iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-5), "{what}");
        let w = 3.0;
        let Some(guided) = network.guided(&y, 700.into(), w).unwrap() else {
            assert_eq!(vocab, 6);
            continue;
        };
        let guided = guided.to_vec().unwrap();
        for (row, guided) in guided.chunks_exact(vocab).enumerate() {
            let (c, u) = (&pairs[2 * row * vocab..][..vocab], &pairs[(2 * row + 1) * vocab..][..vocab]);
            let want: Vec<f32> = c.iter().zip(u).map(|(c, u)| u + w * (c - u)).collect();
            assert!(guided.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4), "{what}");
        }
    }
}

#[test]
fn what_does_not_go_with_it_is_refused() {
    let many = Sizes { vocab: 8193, tokens: 3 };
    let e = Model::new(&config(true), many, &CPU, DType::F32, 0).err().unwrap().to_string();
    assert!(e.contains("model.denoiser.evidence = true is for up to 8192 classes") && e.contains("8193"), "{e}");
    let e = Config::preset("digits").unwrap().with("model.denoiser.evidence", true).unwrap();
    let e = e.with("loss.kind", "x0").unwrap().check().unwrap_err().to_string();
    assert!(e.contains("model.denoiser.evidence") && e.contains("loss.kind"), "{e}");
    // A denoiser with evidence reads nothing else, and one without no evidence.
    let (with, without) = (model(&config(true), SIZES), model(&config(false), SIZES));
    let tape = Tape::inference();
    let x = tape.constant(cases::random(1, &[2, 3, 24], 1.0));
    for (m, input, what) in
        [(&with, Input::Projected(&x), "exact evidence"), (&without, Input::Evidence(&x), "noisy vectors")]
    {
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let context = m.context(&p, None, false).unwrap();
        let e = m.features(&p, &input, &[5, 5], &context).err().unwrap().to_string();
        assert!(e.contains(what), "{e}");
    }
    // And κ_t is the process's.
    let alone = Model::new(&config(true), SIZES, &CPU, DType::F32, 0).unwrap();
    let e = alone.evidence(&cases::random(1, &[2, 3, 5], 1.0), &[5]).err().unwrap().to_string();
    assert!(e.contains("for_process"), "{e}");
    assert!(with.evidence(&cases::random(1, &[2, 3, 5], 1.0), &[5; 4]).is_err());
}
