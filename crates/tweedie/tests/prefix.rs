//! `condition_attention = "prefix"`: the condition computed once per image equals the condition computed beside every noisy
//! copy, in values and in all gradients.

use tweedie::config::ModelConfig;
use tweedie::loss::{NoiseOf, Rows};
use tweedie::model::{
    ConditionAttention, Context, DenoiserConfig, Input, Model, Pass, Pool, Positions, Sizes, VitConfig,
};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::ops::noisy_input::NoisyTokens;
use tweedie_engine::ops::tokens;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, cases};

const SIZES: Sizes = Sizes { vocab: 11, tokens: 5 };
const IMAGES: usize = 3;
const COPIES: usize = 2;
/// The second copy of the first image and the first copy of the last have no condition.
const DROP: [u32; IMAGES * COPIES] = [0, 1, 0, 0, 1, 0];

fn model(attention: ConditionAttention) -> Model {
    placed(attention, Positions::Waves)
}

fn placed(attention: ConditionAttention, positions: Positions) -> Model {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.pool = Pool::All;
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig { condition_attention: attention, positions, ..DenoiserConfig::new(24, 3, 2) };
    let mut m = Model::new(&c, SIZES, &Device::Cpu, DType::F32, 3).unwrap();
    // Biases, gains and positions start at zero, one or nearly so: move them, so that each of them counts.
    let all: Vec<_> = m.params.iter().map(|(_, s, id)| (s.to_vec(), id)).collect();
    for (i, (shape, id)) in all.into_iter().enumerate() {
        let shift = cases::random(i as u32, &shape, 0.1).to_vec().unwrap();
        let moved: Vec<f32> = m.params.value(id).to_vec().unwrap().iter().zip(shift).map(|(v, s)| v + s).collect();
        m.params.set(id, &moved).unwrap();
    }
    m
}

fn images() -> Tensor {
    cases::random(900, &[IMAGES, 1, 8, 8], 1.0)
}

fn noisy() -> (NoisyTokens, Vec<u32>) {
    let r = IMAGES * COPIES;
    let rows = Rows {
        drop: DROP.to_vec(),
        ..Rows::new(
            (0..r * SIZES.tokens).map(|i| (i * 7 % SIZES.vocab) as u32).collect(),
            (0..r as u32).map(|i| 50 + 170 * i).collect(),
        )
    };
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, SIZES.vocab).unwrap());
    let noise = Noise::new(&Device::Cpu, 5, 1, 0).unwrap();
    let sizes = (SIZES.tokens, SIZES.vocab);
    let y = rows.corrupt(&process, &Device::Cpu, sizes, &NoiseOf::Drawn(&noise)).unwrap();
    (y, rows.t)
}

/// Features and the gradient of every parameter, against a fixed gradient of the features.
fn run(m: &mut Model, split: bool, drop: bool, recompute: bool) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let (noisy, t) = noisy();
    let tape = Tape::new();
    m.params.discard_grads();
    let features = {
        let p = Pass { recompute, ..Pass::inference(&tape, &m.params, DType::F32) };
        let mask = Tensor::from_u32(&Device::Cpu, &[DROP.len()], DROP.to_vec()).unwrap();
        let mask = drop.then_some(&mask);
        if split {
            let context =
                m.context(&p, Some(&images()), drop).unwrap().rows(&tape, COPIES, drop.then_some(&DROP[..])).unwrap();
            m.features(&p, &Input::Noisy(&noisy), &t, &context).unwrap()
        } else {
            let cond = m.project_condition(&p, &m.condition(&p, &images()).unwrap()).unwrap();
            let cond = tokens::repeat(&tape, &cond, COPIES).unwrap();
            m.denoise(&p, &noisy, &t, &cond, mask).unwrap()
        }
    };
    let values = features.value().to_vec().unwrap();
    tape.backward_from(&features, cases::random(901, features.shape(), 1.0), Some(&mut m.params)).unwrap();
    let names: Vec<_> = m.params.iter().map(|(n, _, id)| (n.to_string(), id)).collect();
    let grad = |id| m.params.grad(id).unwrap().to_vec().unwrap();
    (values, names.into_iter().filter(|(n, _)| !n.contains("head.")).map(|(n, id)| (n, grad(id))).collect())
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn the_condition_computed_once_equals_the_joint_pass() {
    for positions in [Positions::Waves, Positions::Rotary] {
        once_equals_joint(placed(ConditionAttention::Prefix, positions));
    }
}

fn once_equals_joint(mut m: Model) {
    for (drop, recompute) in [(false, false), (true, false), (true, true)] {
        let (want, want_grads) = run(&mut m, false, drop, false);
        let (got, got_grads) = run(&mut m, true, drop, recompute);
        assert!(worst(&got, &want) < 1e-5, "features differ by {:e}", worst(&got, &want));
        let mut live = 0;
        for ((name, want), (_, got)) in want_grads.iter().zip(&got_grads) {
            let scale = want.iter().fold(1.0_f32, |m, x| m.max(x.abs()));
            let e = worst(got, want) / scale;
            assert!(e < 1e-4, "drop {drop}, recompute {recompute}: the gradient of {name} differs by {e:e}");
            live += want.iter().any(|x| *x != 0.0) as usize;
        }
        // Without dropped rows the null condition alone has no gradient.
        assert_eq!(want_grads.len() - live, !drop as usize);
    }
}

/// In "full" attention the context holds the tokens themselves, and both ways are the same ops.
#[test]
fn full_attention_is_the_same_through_a_context() {
    let mut m = model(ConditionAttention::Full);
    assert_eq!(run(&mut m, true, true, false).0, run(&mut m, false, true, false).0);
    // And it is another network than prefix attention.
    let prefix = run(&mut model(ConditionAttention::Prefix), false, true, false).0;
    assert!(worst(&run(&mut m, false, true, false).0, &prefix) > 1e-3);
}

/// A context outlives its tape and serves other noisy tokens and times: what a sampler keeps between its steps.
#[test]
fn a_context_serves_every_step() {
    let m = model(ConditionAttention::Prefix);
    let keep = {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        m.context(&p, Some(&images()), true).unwrap().rows(&tape, COPIES, None).unwrap()
    };
    let (noisy, _) = noisy();
    for t in [1_u32, 400, 1000] {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let times = vec![t; IMAGES * COPIES];
        let cond = m.project_condition(&p, &m.condition(&p, &images()).unwrap()).unwrap();
        let want = m.denoise(&p, &noisy, &times, &tokens::repeat(&tape, &cond, COPIES).unwrap(), None).unwrap();
        let step =
            |input: &Input, keep: &Context| m.features(&p, input, &times, keep).unwrap().value().to_vec().unwrap();
        assert!(worst(&step(&Input::Noisy(&noisy), &keep), &want.value().to_vec().unwrap()) < 1e-5);

        // The product W·y_t may be computed elsewhere; its bias is added here.
        let w = m.params.iter().find(|p| p.0 == "denoiser.token_in.weight").unwrap().2;
        let w = m.params.value(w).to_vec().unwrap();
        let y = noisy.vectors(DType::F32).unwrap().to_vec().unwrap();
        let (v, d) = (SIZES.vocab, 24);
        let dot = |y: &[f32], j: usize| (0..v).map(|k| y[k] * w[j * v + k]).sum::<f32>();
        let wy: Vec<f32> = y.chunks_exact(v).flat_map(|y| (0..d).map(|j| dot(y, j)).collect::<Vec<_>>()).collect();
        let wy = Tensor::from_f32(&Device::Cpu, &[IMAGES * COPIES, SIZES.tokens, d], wy).unwrap();
        assert!(worst(&step(&Input::Projected(&tape.constant(wy)), &keep), &want.value().to_vec().unwrap()) < 1e-5);
    }
}

#[test]
fn a_context_without_the_null_condition_says_so() {
    let m = model(ConditionAttention::Prefix);
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &m.params, DType::F32);
    let e = m.context(&p, Some(&images()), false).unwrap().rows(&tape, COPIES, Some(&DROP)).unwrap_err();
    assert!(e.to_string().contains("without the null condition"), "{e}");
    assert!(m.context(&p, None, false).unwrap_err().to_string().contains("needs images"));
}
