//! `model.denoiser.direct`: the encoder's output added to the features, past the blocks.

mod common;

use common::assert_gradient;
use tweedie::config::{LossConfig, ModelConfig};
use tweedie::data::Dataset;
use tweedie::loss::{ClassTargets, NoiseOf, Rows, TddLoss, mdd_class_loss};
use tweedie::model::{
    ConditionAttention, DenoiserConfig, DenoiserKind, EncoderGradient, Method, Model, Pass, Pool, Sizes, VitConfig,
};
use tweedie::sample::{Conditioned, Denoise};
use tweedie::train::Trainer;
use tweedie::{Config, Process, Schedule, ScheduleKind};
use tweedie_engine::ops::noisy_input::noisy_input;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, Var, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 7, tokens: 1 };
const IMAGES: usize = 3;
const HEAD: &str = "denoiser.head.weight";
const WIDTH: usize = 24;
const CONDITION: usize = 16;

fn config(kind: DenoiserKind, condition_attention: ConditionAttention) -> ModelConfig {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.encoder = VitConfig {
        image: 8,
        patch: 4,
        channels: 1,
        width: CONDITION,
        depth: 1,
        heads: 2,
        drop_path: 0.0,
        class_tokens: 1,
    };
    c.denoiser = DenoiserConfig { kind, condition_attention, direct: true, ..DenoiserConfig::new(WIDTH, 1, 2) };
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

fn loss(m: &Model, tape: &Tape, config: &LossConfig, rows: &Rows) -> Var {
    let noise = Noise::new(&CPU, 1, 1, 0).unwrap();
    let p = Pass::inference(tape, &m.params, DType::F32);
    let process = process();
    let l = TddLoss { process: &process, config, noise: NoiseOf::Drawn(&noise) };
    l.of(&p, m, Some(&images()), rows).unwrap()
}

/// Weight of the direct path's own loss, and what of the other reaches the encoder.
fn with_loss(direct: f32, encoder_gradient: EncoderGradient) -> LossConfig {
    LossConfig { direct, encoder_gradient, ..LossConfig::default() }
}

fn value(m: &Model, name: &str) -> Vec<f32> {
    m.params.value(m.params.find(name).unwrap()).to_vec().unwrap()
}

fn grad(m: &Model, name: &str) -> Vec<f32> {
    m.params.grad(m.params.find(name).unwrap()).unwrap().to_vec().unwrap()
}

/// The head's weights with those of the direct path changed.
fn with_path(head: &[f32], path: impl Fn(f32) -> f32) -> Vec<f32> {
    let of = |(i, w): (usize, &f32)| if i % (WIDTH + CONDITION) < WIDTH { *w } else { path(*w) };
    head.iter().enumerate().map(of).collect()
}

/// Logits \[2·B, V\] of a batch, each with its condition and without.
fn pairs(m: &Model) -> Vec<f32> {
    let network = Conditioned::new(m, Some(&images()), 1, true).unwrap();
    let noise = Noise::new(&CPU, 2, 1, 0).unwrap();
    let noisy = Rows::new(vec![1, 2, 3], vec![300; 3]);
    let noisy = noisy.corrupt(&process(), &CPU, (1, SIZES.vocab), &NoiseOf::Drawn(&noise)).unwrap();
    let tape = Tape::inference();
    let (w, zero) = (network.weight().unwrap().unwrap().clone(), Tensor::zeros(&CPU, &[WIDTH], DType::F32).unwrap());
    let u = noisy_input(&tape, &noisy, &tape.constant(w), &tape.constant(zero), DType::F32).unwrap();
    network.logits_of_pairs(u.value(), 300.into()).unwrap().to_vec().unwrap()
}

/// W·c on top of what the blocks say, and nothing of it where the condition is dropped; c is the class token also where the blocks read all
/// tokens of the image.
#[test]
fn it_adds_a_linear_map_of_the_condition_where_there_is_one() {
    for ((kind, attention), pool) in KINDS.into_iter().flat_map(|k| [(k, Pool::Cls), (k, Pool::All)]) {
        let c = ModelConfig { pool, ..config(kind, attention) };
        let mut m = Model::new(&c, SIZES, &CPU, DType::F32, 3).unwrap();
        let head = value(&m, HEAD);
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let c = m.condition(&p, &images()).unwrap().value().clone();
        let (tokens, c) = (c.shape()[1], c.to_vec().unwrap());
        assert_eq!(tokens, if pool == Pool::All { 5 } else { 1 });
        let alone = m.direct_logits(&p, &images()).unwrap().unwrap().value().to_vec().unwrap();
        let with = pairs(&m);
        m.params.set(m.params.find(HEAD).unwrap(), &with_path(&head, |_| 0.0)).unwrap();
        let without = pairs(&m);
        for i in 0..IMAGES {
            for v in 0..SIZES.vocab {
                let w = &head[v * (WIDTH + CONDITION) + WIDTH..(v + 1) * (WIDTH + CONDITION)];
                let adds: f32 = (0..CONDITION).map(|k| w[k] * c[i * tokens * CONDITION + k]).sum();
                let at = 2 * i * SIZES.vocab + v;
                let what = format!("{kind:?} {attention:?} {pool:?}");
                assert!((with[at] - without[at] - adds).abs() < 1e-4, "{what}: {adds}");
                assert!((alone[i * SIZES.vocab + v] - adds).abs() < 1e-4, "{what}, alone: {adds}"); // the bias is 0
                assert!(adds.abs() > 1e-6);
                assert_eq!(with[at + SIZES.vocab], without[at + SIZES.vocab], "{what}, dropped");
            }
        }
    }
}

#[test]
fn its_gradients_agree_with_finite_differences() {
    for (kind, attention) in KINDS {
        for config in [LossConfig::default(), with_loss(0.7, EncoderGradient::Full)] {
            let mut m = Model::new(&self::config(kind, attention), SIZES, &CPU, DType::F32, 3).unwrap();
            let value = |m: &Model| loss(m, &Tape::inference(), &config, &rows()).value().item().unwrap();
            let tape = Tape::new();
            let start = loss(&m, &tape, &config, &rows());
            tape.backward(&start, Some(&mut m.params)).unwrap();
            // Of the path itself, and of the encoder that it leads from.
            for name in [HEAD, "encoder.norm.weight"] {
                let every = m.params.value(m.params.find(name).unwrap()).len() / 6;
                assert_gradient(&mut m, name, every, &format!("{kind:?}, {}", config.direct), value);
            }
        }
    }
}

type Gradients = Vec<(String, Vec<f32>)>;

/// The encoder's gradients under a loss.
fn encoder_gradients(m: &mut Model, loss: impl FnOnce(&Model, &Tape) -> Var) -> Gradients {
    let tape = Tape::new();
    m.params.discard_grads();
    let loss = loss(m, &tape);
    tape.backward(&loss, Some(&mut m.params)).unwrap();
    let names: Vec<String> = m.params.iter().map(|p| p.0.to_string()).filter(|n| n.starts_with("encoder.")).collect();
    names.into_iter().map(|n| (n.clone(), grad(m, &n))).collect()
}

fn worst(a: &Gradients, b: &Gradients) -> f32 {
    assert!(a.iter().map(|g| &g.0).eq(b.iter().map(|g| &g.0)));
    let of = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
    a.iter().zip(b).map(|(a, b)| of(&a.1, &b.1)).fold(0.0, f32::max)
}

/// Where the denoising loss does not reach the encoder, that and its path to the head learn exactly what the twin would, whichever copies
/// lose their condition; what the head reads of the blocks learns from the denoising loss alone.
#[test]
fn the_encoder_has_the_twins_gradient_where_the_denoising_loss_does_not_reach_it() {
    for (kind, attention) in KINDS {
        let c = config(kind, attention);
        let mut m = Model::new(&c, SIZES, &CPU, DType::F32, 3).unwrap();
        let mut twin = Model::new(&ModelConfig { method: Method::Mdd, ..c }, SIZES, &CPU, DType::F32, 3).unwrap();
        for name in twin.params.iter().map(|p| p.0.to_string()).collect::<Vec<_>>() {
            let values = match name.as_str() {
                "head.weight" => {
                    value(&m, HEAD).chunks_exact(WIDTH + CONDITION).flat_map(|w| w[WIDTH..].to_vec()).collect()
                }
                "head.bias" => value(&m, "denoiser.head.bias"),
                name => value(&m, name),
            };
            twin.params.set(twin.params.find(&name).unwrap(), &values).unwrap();
        }
        // Mixed images: two labels each, of which a noisy copy has one.
        let soft: Vec<f32> =
            (0..IMAGES * SIZES.vocab).map(|i| [0.7, 0.3][(i % SIZES.vocab > 2) as usize] / 3.0).collect();
        let copies = soft.chunks_exact(SIZES.vocab).flat_map(|q| q.repeat(2)).collect();
        let rows = Rows { direct: Some(copies), ..rows() };
        let want = encoder_gradients(&mut twin, |m, tape| {
            let p = Pass::inference(tape, &m.params, DType::F32);
            mdd_class_loss(&p, m, &images(), &ClassTargets::Soft(soft.clone()), 0.1).unwrap()
        });
        let got = |m: &mut Model, config: LossConfig| encoder_gradients(m, |m, tape| loss(m, tape, &config, &rows));
        let nothing = got(&mut m, with_loss(0.0, EncoderGradient::None)); // of parameters that no loss reached yet: 0
        assert!(nothing.iter().all(|g| g.1.iter().all(|x| *x == 0.0)));
        let none = got(&mut m, with_loss(1.0, EncoderGradient::None));
        assert!(worst(&none, &want) < 1e-6, "{kind:?}: {}", worst(&none, &want));
        let head = grad(&m, HEAD);
        let (blocks, path): (Vec<_>, Vec<_>) = head.chunks_exact(WIDTH + CONDITION).map(|w| w.split_at(WIDTH)).unzip();
        let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart(&path.concat(), &grad(&twin, "head.weight")) < 1e-6, "{kind:?}: W");
        assert!(apart(&grad(&m, "denoiser.head.bias"), &grad(&twin, "head.bias")) < 1e-6, "{kind:?}: bias");
        assert!(blocks.concat().iter().any(|g| g.abs() > 1e-4), "{kind:?}: the blocks learn nothing");
        assert!(worst(&got(&mut m, with_loss(1.0, EncoderGradient::Direct)), &want) > 1e-4);
        let path = got(&mut m, with_loss(0.0, EncoderGradient::Direct));
        let all = got(&mut m, with_loss(0.0, EncoderGradient::Full));
        // Modulated blocks begin as if they were not there.
        assert_eq!(worst(&path, &all) > 1e-5, kind == DenoiserKind::Transformer, "{kind:?}");
    }
}

/// Over many steps of either optimizer, of mixed images, with dropped branches and conditions: encoder and path begin as the twin's of the same
/// seed, and learn what it learns, to the bit.
#[test]
fn an_encoder_with_the_twins_gradient_is_trained_as_the_twin() {
    const STEPS: usize = 12;
    for (optimizer, pool) in [("adamw", "mean"), ("muon", "cls"), ("muon", "all")] {
        let mut c = Config::preset("digits").unwrap();
        for (key, value) in [
            ("model.denoiser.direct", "true"),
            ("loss.direct", "1"),
            ("loss.encoder_gradient", "none"),
            ("train.clip", "0"),
            ("train.warmup_epochs", "0"),
            ("train.lr", "1e-2"),
            ("model.encoder.drop_path", "0.2"),
            ("train.condition_drop", "0.3"),
            ("augment.mix.mixup_alpha", "0.8"),
            ("train.optimizer", optimizer),
            ("model.pool", pool),
        ] {
            c = c.with(key, value).unwrap();
        }
        let trainer = |c: &Config| Trainer::new(c, Dataset::embedded("digits").unwrap(), &CPU).unwrap();
        let (mut tdd, mut twin) = (trainer(&c), trainer(&c.clone().with("model.method", "mdd").unwrap()));
        let width = c.model.denoiser.width;
        let path = |m: &Model| -> Vec<f32> {
            let head = value(m, HEAD);
            head.chunks_exact(width + c.model.encoder.width).flat_map(|w| w[width..].to_vec()).collect()
        };
        let before = value(&twin.trained.model, "encoder.norm.weight");
        assert_eq!(path(&tdd.trained.model), value(&twin.trained.model, "head.weight"));
        for t in [&mut tdd, &mut twin] {
            for batch in t.loader().unwrap().take(STEPS) {
                t.train_step(&batch.unwrap()).unwrap();
            }
        }
        let (tdd, twin) = (&tdd.trained.model, &twin.trained.model);
        assert!(value(twin, "encoder.norm.weight") != before);
        for name in twin.params.iter().map(|p| p.0.to_string()) {
            let got = match name.as_str() {
                "head.weight" => path(tdd),
                "head.bias" => value(tdd, "denoiser.head.bias"),
                name => value(tdd, name),
            };
            assert_eq!(got, value(twin, &name), "{optimizer} {pool}: {name}");
        }
    }
}

#[test]
fn losses_of_a_path_that_is_not_there_are_refused() {
    let wrong = |sets: &[(&str, &str)]| {
        let mut c = Config::preset("digits").unwrap();
        for (key, value) in sets {
            c = c.with(key, *value).unwrap();
        }
        c.check().unwrap_err().to_string()
    };
    assert!(
        wrong(&[("model.denoiser.direct", "false"), ("loss.encoder_gradient", "direct")])
            .contains("model.denoiser.direct")
    );
    let e = wrong(&[("loss.encoder_gradient", "none"), ("model.denoiser.direct", "true")]);
    assert!(e.contains("loss.direct = 1"), "{e}");
}

#[test]
fn what_has_no_direct_path_is_refused() {
    let wrong = |c: &ModelConfig, sizes| Model::new(c, sizes, &CPU, DType::F32, 0).err().unwrap().to_string();
    let c = config(DenoiserKind::Transformer, ConditionAttention::Full);
    let e = wrong(&c, Sizes { vocab: 7, tokens: 4 });
    assert!(e.contains("direct = true") && e.contains("4 tokens"), "{e}");
    let e = wrong(&ModelConfig { condition: tweedie::model::Conditioning::None, ..c }, SIZES);
    assert!(e.contains("model.condition"), "{e}");
}
