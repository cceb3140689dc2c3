//! What is timed, at which shapes, and how much work it is. To add an op, write a function like [`layer_norm`] and call it
//! in [`entries`].

use tweedie_engine::ops::attention::{Mask, Rows};
use tweedie_engine::ops::cross_entropy::{Loss, Targets};
use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::ops::rotary::{RotaryTable, rotary as rotate};
use tweedie_engine::ops::{self, elementwise, norm};
use tweedie_engine::optim::{AdamConfig, AdamW};
use tweedie_engine::{Act, DType, Device, Group, Noise, ParamsBuilder, Result, Tensor};

use super::calls::{Setup, TapeOp, Timed};

/// What an op is measured by: first the forward pass, then the backward pass.
pub struct Work {
    /// Bytes that must be moved: each input read once, each output written once.
    pub bytes: [f64; 2],
    /// Floating-point operations, for ops that are limited by arithmetic.
    pub flops: Option<[f64; 2]>,
}

type Make = Box<dyn Fn(&Setup) -> Result<Box<dyn Timed>>>;

/// One line of the table. `make` is called when its turn comes, so that only one op's tensors live at a time.
pub struct BenchOp {
    pub op: &'static str,
    pub shape: String,
    pub work: Work,
    pub make: Make,
}

fn entry(
    op: &'static str,
    shape: String,
    work: Work,
    make: impl Fn(&Setup) -> Result<Box<dyn Timed>> + 'static,
) -> BenchOp {
    BenchOp { op, shape, work, make: Box::new(make) }
}

/// Limited by memory: elements of the compute type that are moved.
fn moved(s: &Setup, forward: usize, backward: usize) -> Work {
    Work { bytes: [forward, backward].map(|n| (n * s.dtype.size()) as f64), flops: None }
}

fn layer_norm(s: &Setup, rows: usize, d: usize) -> BenchOp {
    let n = rows * d; // forward: x, y; backward: x, dy, dx
    entry("layer_norm", format!("{rows}×{d}"), moved(s, 2 * n, 3 * n), move |s| {
        TapeOp::make(s, &[&[rows, d]], &[&[d], &[d]], |t, v| norm::layer_norm(t, &v[0], &v[1], &v[2], 1e-6))
    })
}

fn add(s: &Setup, rows: usize, d: usize) -> BenchOp {
    let n = rows * d; // backward hands dy on without touching it
    entry("add", format!("{rows}×{d}"), moved(s, 3 * n, 0), move |s| {
        TapeOp::make(s, &[&[rows, d], &[rows, d]], &[], |t, v| elementwise::add(t, &v[0], &v[1]))
    })
}

fn scale(s: &Setup, rows: usize, d: usize) -> BenchOp {
    let n = rows * d;
    entry("scale", format!("{rows}×{d}"), moved(s, 2 * n, 2 * n), move |s| {
        TapeOp::make(s, &[&[rows, d]], &[], |t, v| elementwise::scale(t, &v[0], 0.5))
    })
}

/// Queries and keys of packed ones, into fresh memory: what is timed holds its input. In a block two thirds are moved, in place.
fn rotary(s: &Setup, b: usize, heads: usize, l: usize, head: usize) -> BenchOp {
    let (d, n) = (heads * head, b * l * 3 * heads * head);
    entry("rotary", format!("{b}×{heads}×{l}×{head}"), moved(s, 2 * n, 2 * n), move |s| {
        let angles = RotaryTable::new(&s.device, l, head)?;
        TapeOp::make(s, &[&[b, l, 3 * d]], &[], move |t, v| rotate(t, v[0].clone(), &angles, 2 * d, 0..l))
    })
}

/// Limited by arithmetic.
fn computed(forward: f64, backward: f64) -> Work {
    Work { bytes: [0.0; 2], flops: Some([forward, backward]) }
}

fn linear(m: usize, k: usize, n: usize) -> BenchOp {
    let product = 2.0 * (m * k * n) as f64; // backward: one product for the input, one for the weight
    entry("linear", format!("{m}×{k}→{n}"), computed(product, 2.0 * product), move |s| {
        TapeOp::make(s, &[&[m, k]], &[&[n, k], &[n]], |t, v| {
            ops::linear::linear(t, &v[0], &v[1], Some(&v[2]), None, None)
        })
    })
}

fn mlp(op: &'static str, act: Act, m: usize, k: usize, n: usize) -> BenchOp {
    let product = 4.0 * (m * k * n) as f64;
    entry(op, format!("{m}×{k}→{n}→{k}"), computed(product, 2.0 * product), move |s| {
        TapeOp::make(s, &[&[m, k]], &[&[n, k], &[n], &[k, n], &[k]], move |t, v| {
            ops::linear::mlp(t, &v[0], (&v[1], &v[2]), act, (&v[3], &v[4]), None)
        })
    })
}

fn attention(b: usize, heads: usize, l: usize, d: usize) -> BenchOp {
    let product = 2.0 * (b * heads * l * l * d) as f64; // forward: scores and values; backward: the scores again and four more
    entry("attention", format!("{b}×{heads}×{l}×{d}"), computed(2.0 * product, 5.0 * product), move |s| {
        TapeOp::make(s, &[&[b, l, 3 * heads * d]], &[], move |t, v| {
            ops::attention::attention(t, &v[0], heads, &Mask::default())
        })
    })
}

/// Tokens over cached keys of a condition and over themselves, as in sampling with prefix attention; each example has a row.
fn joint_attention(b: usize, heads: usize, n: usize, keys: usize, d: usize) -> BenchOp {
    let product = 2.0 * (b * heads * n * (n + keys) * d) as f64;
    let shape = format!("{b}×{heads}×{n} over {keys}+{n}×{d}");
    entry("joint_attention", shape, computed(2.0 * product, 5.0 * product), move |s| {
        let of: Vec<u32> = (0..b as u32).collect();
        let rows = Rows::new(&s.device, &of, b)?;
        let (qkv, keys) = ([b, n, 3 * heads * d], [b, keys, 2 * heads * d]);
        TapeOp::make(s, &[&qkv, &keys], &[], move |t, v| ops::attention::joint_attention(t, &v[0], &v[1], &rows, heads))
    })
}

fn ids(s: &Setup, n: usize, bound: usize) -> Result<Tensor> {
    Tensor::from_u32(&s.device, &[n], (0..n).map(|i| (i * 7919 % bound) as u32).collect())
}

fn linear_cross_entropy(rows: usize, d: usize, vocab: usize) -> BenchOp {
    let product = 2.0 * (rows * d * vocab) as f64;
    entry("linear_cross_entropy", format!("{rows}×{d}→{vocab}"), computed(product, 2.0 * product), move |s| {
        let targets = ids(s, rows, vocab)?;
        TapeOp::make(s, &[&[rows, d]], &[&[vocab, d], &[vocab]], move |t, v| {
            let loss = Loss { targets: Targets::Hard(&targets), weights: None, smoothing: 0.0 };
            ops::cross_entropy::linear_cross_entropy(t, &v[0], &v[1], Some(&v[2]), &loss, None)
        })
    })
}

fn noisy_input(batch: usize, n: usize, vocab: usize, d: usize) -> BenchOp {
    let product = 2.0 * (batch * n * d * vocab) as f64;
    entry("noisy_input", format!("{batch}×{n} of {vocab}→{d}"), computed(product, product), move |s| {
        let dtype = s.dtype;
        let factor = || Tensor::from_f32(&s.device, &[batch], vec![0.7; batch]);
        let eps = Eps::Drawn { noise: Noise::new(&s.device, 1, 2, 3)?, examples: ids(s, batch, batch)? };
        let tokens = ids(s, batch * n, vocab)?.reshape(&[batch, n])?;
        let from = NoisyTokens { tokens, signal: factor()?, spread: factor()?, eps, vocab };
        TapeOp::make(s, &[], &[&[d, vocab], &[d]], move |t, v| {
            ops::noisy_input::noisy_input(t, &from, &v[0], &v[1], dtype)
        })
    })
}

fn token_scores(s: &Setup, rows: usize, classes: usize) -> BenchOp {
    entry("token_scores", format!("{rows} of {classes}"), moved(s, rows * classes, 0), move |s| {
        let logits = s.normal(0, &[rows, classes], 1.0)?.cast(s.dtype)?;
        let targets = Tensor::from_u32(&s.device, &[rows], (0..rows as u32).map(|i| i % classes as u32).collect())?;
        Ok(Box::new(move || ops::token_scores::token_scores(&logits, &targets).map(|_| ())))
    })
}

/// Guided and drawn: both rows of a pair are read once, whatever a kernel reads again.
fn choose(s: &Setup, rows: usize, classes: usize) -> BenchOp {
    entry("choose", format!("{rows} pairs of {classes}"), moved(s, 2 * rows * classes, 0), move |s| {
        let logits = s.normal(0, &[2 * rows, 1, classes], 1.0)?.cast(s.dtype)?;
        let weight = Tensor::from_f32(&s.device, &[1], vec![2.0])?;
        let examples = Tensor::from_u32(&s.device, &[rows], (0..rows as u32).collect())?;
        let noise = Noise::new(&s.device, 0, 0, 0)?;
        Ok(Box::new(move || {
            let how = ops::choose::How::Drawn { noise: &noise, examples: &examples };
            let plain = ops::choose::Choose::argmax(1);
            let guided = ops::choose::Choose { guidance: Some(&weight), how, ..plain };
            ops::choose::choose(&logits, &guided).map(|_| ())
        }))
    })
}

/// The most likely class of each row, as in most steps of a sampler: rows start aligned.
fn argmax(s: &Setup, rows: usize, classes: usize) -> BenchOp {
    entry("argmax", format!("{rows} of {classes}"), moved(s, rows * classes, 0), move |s| {
        let logits = s.normal(0, &[rows, 1, classes.next_multiple_of(8)], 1.0)?.cast(s.dtype)?;
        let how = ops::choose::Choose { classes: Some(classes), ..ops::choose::Choose::argmax(1) };
        Ok(Box::new(move || ops::choose::choose(&logits, &how).map(|_| ())))
    })
}

/// Weights, gradient, both moments and the average are read, all but the gradient written, and the bf16 shadow on a GPU.
fn adamw(s: &Setup, n: usize) -> BenchOp {
    let low = s.dtype == DType::Bf16;
    let bytes = n * (9 * 4 + 4 + if low { 2 } else { 0 }); // the norm reads the gradient once more
    let work = Work { bytes: [bytes as f64, 0.0], flops: None };
    entry("adamw", format!("{:.1} M", n as f64 / 1e6), work, move |s| {
        let mut builder = ParamsBuilder::default();
        builder.add("w", &[n], Group::Decay, s.normal(0, &[n], 0.02)?.to_vec()?)?;
        let mut params = builder.build(&s.device, low)?;
        let mut opt = AdamW::new(&params, AdamConfig { ema: 0.999, weight_decay: 0.1, ..AdamConfig::default() })?;
        Ok(Box::new(move || opt.apply(&mut params, 1e-3)))
    })
}

/// The matrices of `blocks` blocks of a transformer: five rounds of three products, for a square one of 2·d³ operations each, for one
/// of the MLP's of 8, 2 and 8.
fn muon(s: &Setup, blocks: usize, d: usize) -> BenchOp {
    let low = s.dtype == DType::Bf16;
    let (n, d3) = (blocks * 12 * d * d, (d as f64).powi(3));
    let bytes = n * (7 * 4 + 4 + if low { 2 } else { 0 });
    let flops = blocks as f64 * 5.0 * (4.0 * 6.0 + 2.0 * 18.0) * d3;
    let work = Work { bytes: [bytes as f64, 0.0], flops: Some([flops, 0.0]) };
    entry("muon", format!("{blocks} blocks of {d}"), work, move |s| {
        let mut builder = ParamsBuilder::default();
        for block in 0..blocks {
            for (name, rows, cols, parts) in
                [("qkv", 3 * d, d, 3), ("proj", d, d, 1), ("fc1", 4 * d, d, 1), ("fc2", d, 4 * d, 1)]
            {
                let values = s.normal(block as u32, &[rows, cols], 0.02)?.to_vec()?;
                builder.add(format!("{block}.{name}"), &[rows, cols], Group::Hidden { parts }, values)?;
            }
        }
        let mut params = builder.build(&s.device, low)?;
        let config = AdamConfig { ema: 0.999, weight_decay: 0.1, muon: Some(0.95), ..AdamConfig::default() };
        let mut opt = AdamW::new(&params, config)?;
        // There are no gradients here, and products of zeros take less power.
        opt.restore("m", s.normal(0, &[params.flat_len()], 1.0)?.to_vec()?)?;
        Ok(Box::new(move || opt.apply(&mut params, 1e-3)))
    })
}

/// The product whose speed is the arithmetic ceiling.
pub fn largest_product(s: &Setup) -> BenchOp {
    let n = if s.device == Device::Cpu { 1024 } else { 8192 } / if s.quick { 4 } else { 1 };
    linear(n, n, n)
}

/// Batches as in training: 256 images of 197 tokens through a ViT-B, 128 captions, on the GPU; 32 images of 65 tokens
/// through a ViT-Ti, 8 captions, on the CPU.
pub fn bench_ops(s: &Setup) -> Vec<BenchOp> {
    let few = |n: usize| if s.quick { n / 16 } else { n };
    if s.device == Device::Cpu {
        let (m, d) = (few(32 * 65), 192);
        return vec![
            linear(m, d, 4 * d),
            mlp("mlp", Act::GeluErf, m, d, 4 * d),
            attention(few(32), 3, 65, 64),
            joint_attention(few(32), 3, 24, 65, 64),
            layer_norm(s, m, d),
            add(s, m, d),
            scale(s, m, d),
            rotary(s, few(32), 3, 65, 64),
            linear_cross_entropy(few(192), d, 8000),
            noisy_input(few(16), 24, 8000, d),
            token_scores(s, few(192), 8000),
            choose(s, few(96), 8000),
            argmax(s, few(96), 8000),
            adamw(s, few(1 << 22)),
            muon(s, 2, if s.quick { 64 } else { d }),
        ];
    }
    let (m, d) = (few(256 * 197), 768);
    vec![
        linear(m, d, 4 * d),
        mlp("mlp", Act::GeluTanh, m, d, 4 * d),
        mlp("mlp_erf", Act::GeluErf, m, d, 4 * d),
        attention(few(256), 12, 197, 64),
        attention(few(128), 12, 229, 64),
        attention(few(1024), 6, 65, 64),
        joint_attention(few(256), 12, 32, 197, 64),
        layer_norm(s, m, d),
        add(s, m, d),
        scale(s, m, d),
        rotary(s, few(128), 8, 256, 64),
        linear_cross_entropy(few(4096), d, 30522),
        noisy_input(few(128), 32, 30522, d),
        token_scores(s, few(4096), 30522),
        choose(s, few(2048), 30522),
        argmax(s, few(4096), 30522),
        adamw(s, few(110 << 20)),
        muon(s, 8, if s.quick { 128 } else { 512 }),
    ]
}
