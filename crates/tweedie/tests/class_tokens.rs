//! `model.encoder.class_tokens`: several learnable class tokens beside the patches.

mod common;

use common::assert_gradient;
use tweedie::Config;
use tweedie::config::{LossConfig, ModelConfig};
use tweedie::loss::{ClassTargets, NoiseOf, Rows, TddLoss, mdd_class_loss};
use tweedie::model::{
    ConditionAttention, DenoiserConfig, DenoiserKind, Method, Model, Pass, Pool, Sizes, VitConfig, count_parameters,
};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::{DType, Device, Noise, Params, Tape, Tensor, Var, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 7, tokens: 1 };
const IMAGES: usize = 3;
const CLS: &str = "encoder.cls_token";

fn config(method: Method, pool: Pool, class_tokens: usize) -> ModelConfig {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 2, heads: 2, drop_path: 0.0, class_tokens };
    (c.method, c.pool, c.denoiser) = (method, pool, DenoiserConfig::new(24, 1, 2));
    c
}

fn model(c: &ModelConfig) -> Model {
    let mut m = Model::new(c, SIZES, &CPU, DType::F32, 3).unwrap();
    // They begin at zero, where a mean of them looks like each of them.
    set(&mut m.params, CLS, |i| (i as f32 * 0.7).sin());
    m
}

fn set(params: &mut Params, name: &str, value: impl Fn(usize) -> f32) {
    let id = params.find(name).unwrap();
    let n: usize = params.value(id).shape().iter().product();
    params.set(id, &(0..n).map(value).collect::<Vec<_>>()).unwrap();
}

fn images() -> Tensor {
    cases::random(9, &[IMAGES, 1, 8, 8], 1.0)
}

fn loss(m: &Model, tape: &Tape) -> Var {
    let p = Pass::inference(tape, &m.params, DType::F32);
    if !m.has_denoiser() {
        let targets = ClassTargets::Hard(vec![4, 0, 6]);
        return mdd_class_loss(&p, m, &images(), &targets, 0.1).unwrap();
    }
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, SIZES.vocab).unwrap());
    let noise = Noise::new(&CPU, 1, 1, 0).unwrap();
    let config = LossConfig::default();
    let tokens = (0..2 * IMAGES as u32).map(|i| i * 5 % 7).collect();
    let rows = Rows { drop: vec![0, 1, 0, 0, 1, 0], ..Rows::new(tokens, vec![1000, 800, 600, 400, 200, 1]) };
    let l = TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) };
    l.of(&p, m, Some(&images()), &rows).unwrap()
}

/// Both methods, every pool that takes class tokens, every denoiser; and the direct path.
fn variants(class_tokens: usize) -> Vec<ModelConfig> {
    let with = |kind, condition_attention, direct| {
        let denoiser = DenoiserConfig { kind, condition_attention, direct, ..DenoiserConfig::new(24, 1, 2) };
        ModelConfig { denoiser, ..config(Method::Tdd, Pool::Cls, class_tokens) }
    };
    let (full, prefix) = (ConditionAttention::Full, ConditionAttention::Prefix);
    vec![
        config(Method::Mdd, Pool::Cls, class_tokens),
        config(Method::Tdd, Pool::All, class_tokens),
        config(Method::Tdd, Pool::Mean, class_tokens),
        with(DenoiserKind::Transformer, full, false),
        with(DenoiserKind::Transformer, full, true),
        with(DenoiserKind::Transformer, prefix, true),
        with(DenoiserKind::Dit, full, true),
        with(DenoiserKind::Mlp, full, true),
    ]
}

#[test]
fn all_of_them_are_condition_tokens() {
    for (pool, class_tokens, want) in [(Pool::Cls, 3, 3), (Pool::All, 3, 7), (Pool::Mean, 3, 1), (Pool::Cls, 1, 1)] {
        let m = model(&config(Method::Tdd, pool, class_tokens));
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        assert_eq!(m.condition(&p, &images()).unwrap().shape(), [IMAGES, want, 16]);
    }
    // The twin's linear head has their mean.
    let m = model(&config(Method::Mdd, Pool::Cls, 3));
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &m.params, DType::F32);
    let c = m.condition(&p, &images()).unwrap();
    let mean = m.masked_features(&p, &c).unwrap().value().to_vec().unwrap();
    let c = c.value().to_vec().unwrap();
    for (i, m) in mean.iter().enumerate() {
        let (image, k) = (i / 16, i % 16);
        let want: f32 = (0..3).map(|t| c[(image * 3 + t) * 16 + k] / 3.0).sum();
        assert!((m - want).abs() < 1e-6);
    }
}

#[test]
fn their_gradients_agree_with_finite_differences() {
    let value = |m: &Model| loss(m, &Tape::inference()).value().item().unwrap();
    for c in variants(3) {
        let mut m = model(&c);
        let tape = Tape::new();
        let start = loss(&m, &tape);
        tape.backward(&start, Some(&mut m.params)).unwrap();
        for name in [CLS, "encoder.pos_embed"] {
            let grad = assert_gradient(&mut m, name, 5, &format!("{c:?}"), value);
            for (token, g) in grad.chunks(16).take(3).enumerate() {
                assert!(g.iter().any(|g| g.abs() > 1e-6), "nothing reaches class token {token} of {name}: {c:?}");
            }
        }
    }
}

/// Each is a token and a position in the encoder, and in the denoiser a position and a part of the null condition.
#[test]
fn each_has_its_parameters() {
    let count = |c: &ModelConfig| count_parameters(c, SIZES).unwrap().0;
    for (one, four) in variants(1).iter().zip(&variants(4)) {
        let denoiser = if one.method == Method::Mdd || one.pool == Pool::Mean { 0 } else { 2 * 24 };
        assert_eq!(count(four) - count(one), 3 * (2 * 16 + denoiser), "{four:?}");
    }
    let m = model(&config(Method::Tdd, Pool::Cls, 4));
    let shape = |name: &str| m.params.value(m.params.find(name).unwrap()).shape().to_vec();
    assert_eq!(shape(CLS), [1, 4, 16]);
    assert_eq!(shape("encoder.pos_embed"), [1, 8, 16]);
    assert_eq!(shape("denoiser.null_cond"), [1, 4, 24]);
}

#[test]
fn none_and_too_many_are_refused_and_old_settings_have_one() {
    let base = Config::preset("digits").unwrap();
    assert_eq!(base.model.encoder.class_tokens, 1);
    for n in ["0", "257"] {
        let e = base.clone().with("model.encoder.class_tokens", n).unwrap().check().unwrap_err().to_string();
        assert!(e.contains("model.encoder.class_tokens") && e.contains(n) && e.contains("256"), "{e}");
    }
    // As a run of an earlier version has them.
    let old = tweedie::settings::to_toml(&base).unwrap().replace("class_tokens = 1\n", "");
    assert!(!old.contains("class_tokens"));
    assert_eq!(Config::of_run("config.toml", &old, &[]).unwrap(), base);
}
