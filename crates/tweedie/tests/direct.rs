//! `model.denoiser.direct`: the encoder's output added to the features, past the blocks.

mod common;

use common::assert_gradient;
use tweedie::config::{LossConfig, ModelConfig};
use tweedie::loss::{NoiseOf, Rows, TddLoss};
use tweedie::model::{ConditionAttention, DenoiserConfig, DenoiserKind, Model, Pass, Sizes, VitConfig};
use tweedie::sample::{Conditioned, Denoise};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::ops::noisy_input::noisy_input;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 7, tokens: 1 };
const IMAGES: usize = 3;
const DIRECT: &str = "denoiser.direct.weight";

fn config(kind: DenoiserKind, condition_attention: ConditionAttention) -> ModelConfig {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig { kind, condition_attention, direct: true, ..DenoiserConfig::new(24, 1, 2) };
    c
}

const KINDS: [(DenoiserKind, ConditionAttention); 4] = [
    (DenoiserKind::Transformer, ConditionAttention::Full),
    (DenoiserKind::Transformer, ConditionAttention::Prefix),
    (DenoiserKind::Dit, ConditionAttention::Full),
    (DenoiserKind::Mlp, ConditionAttention::Full),
];

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, SIZES.vocab).unwrap())
}

fn images() -> Tensor {
    cases::random(9, &[IMAGES, 1, 8, 8], 1.0)
}

/// Two copies of each image; some lose their condition.
fn rows() -> Rows {
    let tokens = (0..2 * IMAGES as u32).map(|i| i * 5 % 7).collect();
    Rows { drop: vec![0, 1, 0, 0, 1, 0], ..Rows::new(tokens, vec![1000, 800, 600, 400, 200, 1]) }
}

fn loss(m: &Model, tape: &Tape) -> tweedie_engine::Var {
    let noise = Noise::new(&CPU, 1, 1, 0).unwrap();
    let p = Pass { tape, params: &m.params, dtype: DType::F32, drop: None, recompute: false };
    let (process, config) = (process(), LossConfig::default());
    let l = TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) };
    l.of(&p, m, Some(&images()), &rows()).unwrap()
}

/// Logits \[2·B, V\] of a batch, each with its condition and without.
fn pairs(m: &Model) -> Vec<f32> {
    let network = Conditioned::new(m, Some(&images()), 1, true).unwrap();
    let noise = Noise::new(&CPU, 2, 1, 0).unwrap();
    let noisy = Rows::new(vec![1, 2, 3], vec![300; 3]);
    let noisy = noisy.corrupt(&process(), &CPU, (1, SIZES.vocab), &NoiseOf::Drawn(&noise)).unwrap();
    let tape = Tape::inference();
    let (w, zero) = (network.weight().unwrap().unwrap().clone(), Tensor::zeros(&CPU, &[24], DType::F32).unwrap());
    let u = noisy_input(&tape, &noisy, &tape.constant(w), &tape.constant(zero), DType::F32).unwrap();
    network.logits_of_pairs(u.value(), 300.into()).unwrap().to_vec().unwrap()
}

/// W_head·P·c on top of what the blocks say, and nothing of it where the condition is dropped.
#[test]
fn it_adds_a_linear_map_of_the_condition_where_there_is_one() {
    for (kind, attention) in KINDS {
        let mut m = Model::new(&config(kind, attention), SIZES, &CPU, DType::F32, 3).unwrap();
        let value = |m: &Model, name: &str| m.params.value(m.params.find(name).unwrap()).to_vec().unwrap();
        let (direct, head) = (value(&m, DIRECT), value(&m, "denoiser.head.weight"));
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let c = m.condition(&p, &images()).unwrap().value().to_vec().unwrap();
        let with = pairs(&m);
        m.params.set(m.params.find(DIRECT).unwrap(), &vec![0.0; direct.len()]).unwrap();
        let without = pairs(&m);
        for i in 0..IMAGES {
            let f: Vec<f32> = (0..24).map(|j| (0..16).map(|k| direct[j * 16 + k] * c[i * 16 + k]).sum()).collect();
            for v in 0..SIZES.vocab {
                let adds: f32 = (0..24).map(|j| head[v * 24 + j] * f[j]).sum();
                let at = 2 * i * SIZES.vocab + v;
                assert!((with[at] - without[at] - adds).abs() < 1e-4, "{kind:?} {attention:?}: {adds}");
                assert!(adds.abs() > 1e-6);
                assert_eq!(with[at + SIZES.vocab], without[at + SIZES.vocab], "{kind:?} {attention:?}, dropped");
            }
        }
    }
}

#[test]
fn its_gradients_agree_with_finite_differences() {
    let value = |m: &Model| loss(m, &Tape::inference()).value().item().unwrap();
    for (kind, attention) in KINDS {
        let mut m = Model::new(&config(kind, attention), SIZES, &CPU, DType::F32, 3).unwrap();
        let tape = Tape::new();
        let start = loss(&m, &tape);
        tape.backward(&start, Some(&mut m.params)).unwrap();
        // Of the path itself, and of the encoder that it leads from.
        for name in [DIRECT, "encoder.norm.weight"] {
            let every = m.params.value(m.params.find(name).unwrap()).len() / 6;
            assert_gradient(&mut m, name, every, &format!("{kind:?}"), value);
        }
    }
}

#[test]
fn what_has_no_direct_path_is_refused() {
    let wrong = |c: &ModelConfig, sizes| Model::new(c, sizes, &CPU, DType::F32, 0).err().unwrap().to_string();
    let c = config(DenoiserKind::Transformer, ConditionAttention::Full);
    let e = wrong(&c, Sizes { vocab: 7, tokens: 4 });
    assert!(e.contains("direct = true") && e.contains("4 tokens"), "{e}");
    let e = wrong(&ModelConfig { pool: tweedie::model::Pool::All, ..c.clone() }, SIZES);
    assert!(e.contains("direct = true") && e.contains("pool"), "{e}");
    let e = wrong(&ModelConfig { condition: tweedie::model::Conditioning::None, ..c }, SIZES);
    assert!(e.contains("model.condition"), "{e}");
}
