//! `positions = "rotary"`: the network against one computed here from the distances of its tokens.

use tweedie::config::{Method, ModelConfig};
use tweedie::model::{
    ConditionAttention, Conditioning, DenoiserConfig, DenoiserKind, Input, Model, Pass, Pool, Positions, Sizes,
    VitConfig,
};
use tweedie_engine::{DType, Device, Tape, Tensor, cases};

const WIDTH: usize = 20;
const HEADS: usize = 2;
const SIZES: Sizes = Sizes { vocab: 7, tokens: 9 };
const TOKENS: [u32; SIZES.tokens] = [3, 1, 4, 1, 5, 7, 2, 6, 5];

fn config(condition: Conditioning, kind: DenoiserKind) -> ModelConfig {
    let mut c = ModelConfig::preset("shapes").unwrap();
    (c.method, c.condition, c.pool) = (Method::Mdd, condition, Pool::All);
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    let d = DenoiserConfig::new(WIDTH, 1, HEADS);
    c.denoiser =
        DenoiserConfig { kind, condition_attention: ConditionAttention::Full, positions: Positions::Rotary, ..d };
    c
}

/// With every weight moved, so that biases, gains and gates count too.
fn model(c: &ModelConfig) -> Model {
    let mut m = Model::new(c, SIZES, &Device::Cpu, DType::F32, 3).unwrap();
    let all: Vec<_> = m.params.iter().map(|(_, s, id)| (s.to_vec(), id)).collect();
    for (i, (shape, id)) in all.into_iter().enumerate() {
        let shift = cases::random(i as u32, &shape, 0.2).to_vec().unwrap();
        let moved: Vec<f32> = m.params.value(id).to_vec().unwrap().iter().zip(shift).map(|(v, s)| v + s).collect();
        m.params.set(id, &moved).unwrap();
    }
    m
}

/// Features of the tokens and what they are told of the time.
fn features(m: &Model, ids: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &m.params, DType::F32);
    let context = m.context(&p, None, false).unwrap();
    let ids = Tensor::from_u32(&Device::Cpu, &[1, ids.len()], ids.to_vec()).unwrap();
    let time = m.times(&p, &[300]).unwrap();
    let y = m.features_at(&p, &Input::Tokens(&ids), &time, &context).unwrap();
    (y.value().to_vec().unwrap(), time.value().to_vec().unwrap())
}

struct Weights<'a>(&'a Model);

impl Weights<'_> {
    fn get(&self, name: &str) -> Vec<f64> {
        let name = format!("denoiser.{name}");
        let id = self.0.params.iter().find(|p| p.0 == name).unwrap().2;
        self.0.params.value(id).to_vec().unwrap().into_iter().map(f64::from).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (w, b) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        w.chunks_exact(x.len()).zip(b).map(|(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let by = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-6).sqrt();
        let (g, b) = (self.get(&format!("{name}.weight")), self.get(&format!("{name}.bias")));
        x.iter().zip(g).zip(b).map(|((x, g), b)| (x - mean) / by * g + b).collect()
    }
}

fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Attention where the query at i meets the key at j through their distance: pair c of a head, read as complex numbers, adds
/// Re(q·k̄·e^{i(i − j)θ_c}). Values are not rotated, and no token has a position of its own.
fn by_distances(qkv: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (head, half) = (WIDTH / HEADS, WIDTH / HEADS / 2);
    let score = |i: usize, j: usize, h: usize| {
        let (q, k) = (&qkv[i][h * head..][..head], &qkv[j][WIDTH + h * head..][..head]);
        let pair = |c: usize| {
            let (s, cos) = ((i as f64 - j as f64) / 10_000_f64.powf(2.0 * c as f64 / head as f64)).sin_cos();
            let (re, im) = (q[c] * k[c] + q[c + half] * k[c + half], q[c + half] * k[c] - q[c] * k[c + half]);
            re * cos - im * s
        };
        (0..half).map(pair).sum::<f64>() / (head as f64).sqrt()
    };
    let row = |i: usize| {
        let mut out = vec![0.0; WIDTH];
        for h in 0..HEADS {
            let e: Vec<f64> = (0..qkv.len()).map(|j| score(i, j, h).exp()).collect();
            let sum: f64 = e.iter().sum();
            for (e, from) in e.iter().zip(qkv) {
                let v = &from[2 * WIDTH + h * head..][..head];
                out[h * head..][..head].iter_mut().zip(v).for_each(|(o, v)| *o += e / sum * v);
            }
        }
        out
    };
    (0..qkv.len()).map(row).collect()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

#[test]
fn a_network_of_one_block_sees_distances_alone() {
    let mut c = config(Conditioning::None, DenoiserKind::Transformer);
    c.gelu = tweedie::model::Gelu::Tanh;
    let m = model(&c);
    let (got, time) = features(&m, &TOKENS);
    let w = Weights(&m);
    let time: Vec<f64> = time.into_iter().map(f64::from).collect();
    let table = w.get("token_embed.weight");
    let x: Vec<_> = TOKENS.iter().map(|t| add(&table[*t as usize * WIDTH..][..WIDTH], &time)).collect();
    let qkv: Vec<_> = x.iter().map(|x| w.linear("blocks.0.attn.qkv", &w.norm("blocks.0.norm1", x))).collect();
    for ((x, a), got) in x.iter().zip(by_distances(&qkv)).zip(got.chunks_exact(WIDTH)) {
        let x = add(x, &w.linear("blocks.0.attn.proj", &a));
        let h = w.linear("blocks.0.mlp.fc1", &w.norm("blocks.0.norm2", &x));
        let x = add(&x, &w.linear("blocks.0.mlp.fc2", &h.into_iter().map(gelu_tanh).collect::<Vec<_>>()));
        let want = w.norm("norm", &x);
        // f32 rounding of features of size 1.
        assert!(got.iter().zip(&want).all(|(g, w)| (*g as f64 - w).abs() < 2e-5), "{got:?}\n{want:?}");
    }
}

/// Without positions a network does not see an order: it answers for two exchanged tokens as before, in exchanged places.
#[test]
fn either_kind_of_network_sees_the_order() {
    for kind in [DenoiserKind::Transformer, DenoiserKind::Dit] {
        let m = model(&config(Conditioning::None, kind));
        let mut exchanged = TOKENS;
        exchanged.swap(2, 6);
        let (a, b) = (features(&m, &TOKENS).0, features(&m, &exchanged).0);
        let moved = |i: usize, j: usize| {
            let (a, b) = (&a[i * WIDTH..][..WIDTH], &b[j * WIDTH..][..WIDTH]);
            a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(moved(2, 6) > 1e-3 && moved(0, 0) > 1e-3, "{kind:?}: {} {}", moved(2, 6), moved(0, 0));
    }
}

#[test]
fn learned_positions_are_those_of_the_condition() {
    let shape = |condition: Conditioning, positions: Positions| {
        let mut c = config(condition, DenoiserKind::Transformer);
        c.denoiser.positions = positions;
        let m = Model::new(&c, SIZES, &Device::Cpu, DType::F32, 3).unwrap();
        m.params.iter().find(|p| p.0 == "denoiser.pos_embed").map(|p| p.1.to_vec())
    };
    assert_eq!(shape(Conditioning::None, Positions::Rotary), None);
    assert_eq!(shape(Conditioning::Image, Positions::Rotary), Some(vec![1, 5, WIDTH])); // four patches and the class token
    assert_eq!(shape(Conditioning::Image, Positions::Waves), Some(vec![1, 5 + SIZES.tokens, WIDTH]));
    // Settings from before there was a choice.
    let old: DenoiserConfig = serde_json::from_str(r#"{"width": 8, "depth": 1, "heads": 2}"#).unwrap();
    assert_eq!(old.positions, Positions::Waves);
    let new: DenoiserConfig =
        serde_json::from_str(r#"{"width": 8, "depth": 1, "heads": 2, "positions": "rotary"}"#).unwrap();
    assert_eq!(new.positions, Positions::Rotary);
}
