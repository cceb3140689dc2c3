//! What is timed, at which shapes, and how much work it is. To add an op, write a function like [`layer_norm`] and call it
//! in [`entries`].

use tweedie_engine::ops::{elementwise, norm};
use tweedie_engine::{Device, Result};

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
pub struct Entry {
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
) -> Entry {
    Entry { op, shape, work, make: Box::new(make) }
}

/// Limited by memory: elements of the compute type that are moved.
fn moved(s: &Setup, forward: usize, backward: usize) -> Work {
    Work { bytes: [forward, backward].map(|n| (n * s.dtype.size()) as f64), flops: None }
}

fn layer_norm(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d; // forward: x, y; backward: x, dy, dx
    entry("layer_norm", format!("{rows}×{d}"), moved(s, 2 * n, 3 * n), move |s| {
        TapeOp::make(s, &[&[rows, d]], &[&[d], &[d]], |t, v| norm::layer_norm(t, &v[0], &v[1], &v[2], 1e-6))
    })
}

fn add(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d; // backward hands dy on without touching it
    entry("add", format!("{rows}×{d}"), moved(s, 3 * n, 0), move |s| {
        TapeOp::make(s, &[&[rows, d], &[rows, d]], &[], |t, v| elementwise::add(t, &v[0], &v[1]))
    })
}

fn scale(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d;
    entry("scale", format!("{rows}×{d}"), moved(s, 2 * n, 2 * n), move |s| {
        TapeOp::make(s, &[&[rows, d]], &[], |t, v| elementwise::scale(t, &v[0], 0.5))
    })
}

/// The product whose speed is the arithmetic ceiling; `None` as long as no product is an op.
pub fn largest_product(_: &Setup) -> Option<Entry> {
    None
}

/// Batches as in training: 256 images of 197 tokens through a ViT-B on the GPU, 32 of 65 through a ViT-Ti on the CPU.
pub fn entries(s: &Setup) -> Vec<Entry> {
    let few = |n: usize| if s.quick { n / 16 } else { n };
    let (tokens, d) = if s.device == Device::Cpu { (few(32 * 65), 192) } else { (few(256 * 197), 768) };
    vec![layer_norm(s, tokens, d), add(s, tokens, d), scale(s, tokens, d)]
}
