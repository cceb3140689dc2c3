//! `model.denoiser.self_condition`: the denoiser reads its own first prediction.

mod common;

use common::assert_gradient;
use tweedie::config::{LossConfig, ModelConfig};
use tweedie::loss::{MddLoss, NoiseOf, Rows, TddLoss, mask_tokens};
use tweedie::model::{Conditioning, DenoiserConfig, DenoiserKind, Input, Method, Model, Pass, Positions, Sizes};
use tweedie::sample::{Conditioned, Denoise, softmax};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, Var, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 6, tokens: 4 };
const WIDTH: usize = 24;
const SELF_IN: &str = "denoiser.self_in.weight";

fn config(method: Method, self_condition: bool) -> ModelConfig {
    let mut c = ModelConfig::preset("text").unwrap();
    assert_eq!(c.condition, Conditioning::None);
    c.denoiser = DenoiserConfig { self_condition, positions: Positions::Rotary, ..DenoiserConfig::new(WIDTH, 2, 2) };
    c.method = method;
    c
}

/// A model whose layer for its own prediction is not 0 any more.
fn model(method: Method) -> Model {
    let mut m = Model::new(&config(method, true), SIZES, &CPU, DType::F32, 5).unwrap();
    let values = cases::random(77, &[WIDTH, SIZES.vocab], 0.5).to_vec().unwrap();
    m.params.set(m.params.find(SELF_IN).unwrap(), &values).unwrap();
    m
}

fn rows() -> Rows {
    Rows::new((0..12).map(|i| i * 5 % 6).collect(), vec![900, 500, 100])
}

fn loss(m: &Model, tape: &Tape) -> Var {
    let p = Pass::inference(tape, &m.params, DType::F32);
    let (config, rows) = (LossConfig::default(), rows());
    if !m.is_tdd() {
        let masked = mask_tokens(&rows, SIZES.tokens, 1000, 1, 0);
        return MddLoss { steps: 1000, config: &config, masked: &masked }.of(&p, m, None, &rows).unwrap();
    }
    let noise = Noise::new(&CPU, 1, 1, 0).unwrap();
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, SIZES.vocab).unwrap());
    TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) }.of(&p, m, None, &rows).unwrap()
}

fn logits(m: &Model, u: &Tensor, t: u32, self_condition: bool) -> Vec<f32> {
    let tape = Tape::inference();
    let p = Pass { self_condition, ..Pass::inference(&tape, &m.params, DType::F32) };
    let context = m.context(&p, None, false).unwrap().rows(&tape, 1, None).unwrap();
    let rows = u.shape()[0];
    let f = m.features(&p, &Input::Projected(&tape.constant(u.clone())), &vec![t; rows], &context).unwrap();
    m.logits(&p, &f).unwrap().value().to_vec().unwrap()
}

/// The second pass reads W·y_t + S·softmax(first), with first the logits of a pass over W·y_t alone.
#[test]
fn it_is_two_passes_the_second_of_which_reads_the_first() {
    let m = model(Method::Tdd);
    let u = cases::random(3, &[2, SIZES.tokens, WIDTH], 1.0);
    let first = logits(&m, &u, 700, false);
    let s = m.params.value(m.params.find(SELF_IN).unwrap()).to_vec().unwrap();
    let mut own = u.to_vec().unwrap();
    for (u, first) in own.chunks_exact_mut(WIDTH).zip(first.chunks_exact(SIZES.vocab)) {
        let p = softmax(first);
        for (j, u) in u.iter_mut().enumerate() {
            *u += (0..SIZES.vocab).map(|v| s[j * SIZES.vocab + v] * p[v] as f32).sum::<f32>();
        }
    }
    let want = logits(&m, &Tensor::from_f32(&CPU, u.shape(), own).unwrap(), 700, false);
    let got = logits(&m, &u, 700, true);
    assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4), "{got:?} {want:?}");
    assert!(got.iter().zip(&first).any(|(g, w)| (g - w).abs() > 1e-2), "the first prediction is not read");
}

/// Nothing is kept between calls and no example sees another's: what a bound needs.
#[test]
fn it_depends_on_the_noisy_tokens_of_the_example_alone() {
    let m = model(Method::Tdd);
    let network = Conditioned::new(&m, None, 2, false).unwrap();
    let u = cases::random(3, &[2, SIZES.tokens, WIDTH], 1.0);
    let both = network.logits(&u, 700.into()).unwrap().to_vec().unwrap();
    network.logits(&cases::random(8, u.shape(), 1.0), 30.into()).unwrap();
    assert_eq!(network.logits(&u, 700.into()).unwrap().to_vec().unwrap(), both);
    let other = cases::random(9, &[1, SIZES.tokens, WIDTH], 1.0).to_vec().unwrap();
    let mixed = [u.to_vec().unwrap()[..SIZES.tokens * WIDTH].to_vec(), other].concat();
    let mixed = network.logits(&Tensor::from_f32(&CPU, u.shape(), mixed).unwrap(), 700.into()).unwrap();
    let first = SIZES.tokens * SIZES.vocab;
    assert_eq!(mixed.to_vec().unwrap()[..first], both[..first]);
}

#[test]
fn its_layer_starts_at_zero_and_its_gradient_agrees_with_finite_differences() {
    for method in [Method::Tdd, Method::Mdd] {
        let value = |m: &Model| loss(m, &Tape::inference()).value().item().unwrap();
        let new = |own| Model::new(&config(method, own), SIZES, &CPU, DType::F32, 5).unwrap();
        let (with, without) = (new(true), new(false));
        let names = |m: &Model| m.params.iter().map(|p| p.0.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&with).len(), names(&without).len() + 1);
        assert!(with.params.value(with.params.find(SELF_IN).unwrap()).to_vec().unwrap().iter().all(|w| *w == 0.0));
        let mut m = model(method);
        let tape = Tape::new();
        let start = loss(&m, &tape);
        tape.backward(&start, Some(&mut m.params)).unwrap();
        assert_gradient(&mut m, SELF_IN, 11, &format!("{method:?}"), value);
    }
}

#[test]
fn every_kind_of_denoiser_can_read_itself() {
    for kind in [DenoiserKind::Transformer, DenoiserKind::Dit, DenoiserKind::Mlp] {
        let mut c = ModelConfig::preset("digits").unwrap();
        c.denoiser = DenoiserConfig { kind, self_condition: true, direct: true, ..DenoiserConfig::new(WIDTH, 1, 2) };
        let sizes = Sizes { vocab: 6, tokens: 1 };
        let m = Model::new(&c, sizes, &CPU, DType::F32, 5).unwrap();
        let images = cases::random(4, &[2, 1, 8, 8], 1.0);
        let network = Conditioned::new(&m, Some(&images), 1, true).unwrap();
        let u = cases::random(3, &[2, 1, WIDTH], 1.0);
        assert_eq!(network.logits_of_pairs(&u, 700.into()).unwrap().shape(), [4, 1, 6]);
    }
}
