//! What is timed, at which shapes, and how much work it is. To add an op, write a function like [`layer_norm`] and call it
//! in [`entries`].

use tweedie_engine::ops::{elementwise, norm};
use tweedie_engine::{Device, Result, Tape, Var};

use super::calls::{Setup, TapeOp, Timed};

/// Work of the forward and of the backward pass.
pub type Amount = [f64; 2];

/// What an op is measured by.
pub struct Work {
    /// Bytes that must be moved: each input read once, each output written once.
    pub bytes: Amount,
    /// Floating-point operations, for ops that are limited by arithmetic.
    pub flops: Option<Amount>,
}

type Make = Box<dyn Fn(&Setup) -> Result<Box<dyn Timed>>>;

/// One line of the table. `make` is called when its turn comes, so that only one op's tensors live at a time.
pub struct Entry {
    pub op: &'static str,
    pub shape: String,
    pub work: Work,
    pub make: Make,
}

/// An op on the tape. `moved`: elements of the compute type that forward and backward move.
fn entry(
    s: &Setup,
    op: &'static str,
    activations: &[&[usize]],
    parameters: &[&[usize]],
    moved: [usize; 2],
    run: impl Fn(&Tape, &[Var]) -> Result<Var> + Copy + 'static,
) -> Entry {
    let own = |shapes: &[&[usize]]| -> Vec<Vec<usize>> { shapes.iter().map(|s| s.to_vec()).collect() };
    let (a, p) = (own(activations), own(parameters));
    let make = move |s: &Setup| -> Result<Box<dyn Timed>> {
        fn borrow(v: &[Vec<usize>]) -> Vec<&[usize]> {
            v.iter().map(Vec::as_slice).collect()
        }
        Ok(Box::new(TapeOp::new(s, &borrow(&a), &borrow(&p), run)?))
    };
    let bytes = moved.map(|n| (n * s.dtype.size()) as f64);
    Entry { op, shape: format!("{:?}", activations[0]), work: Work { bytes, flops: None }, make: Box::new(make) }
}

fn layer_norm(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d; // forward: x, y; backward: x, dy, dx
    entry(s, "layer_norm", &[&[rows, d]], &[&[d], &[d]], [2 * n, 3 * n], |t, v| {
        norm::layer_norm(t, &v[0], &v[1], &v[2], 1e-6)
    })
}

fn add(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d; // backward hands dy on without touching it
    entry(s, "add", &[&[rows, d], &[rows, d]], &[], [3 * n, 0], |t, v| elementwise::add(t, &v[0], &v[1]))
}

fn scale(s: &Setup, rows: usize, d: usize) -> Entry {
    let n = rows * d;
    entry(s, "scale", &[&[rows, d]], &[], [2 * n, 2 * n], |t, v| elementwise::scale(t, &v[0], 0.5))
}

/// The product whose speed is the arithmetic ceiling; `None` as long as no product is an op.
pub fn largest_product(_: &Setup) -> Option<Entry> {
    None
}

/// Batches as in training: 256 images of 197 tokens through a ViT-B on the GPU, 32 of 65 through a ViT-Ti on the CPU.
pub fn entries(s: &Setup) -> Vec<Entry> {
    let cpu = s.device == Device::Cpu;
    let few = |n: usize| if s.quick { n / 16 } else { n };
    let (tokens, d) = if cpu { (few(32 * 65), 192) } else { (few(256 * 197), 768) };
    vec![layer_norm(s, tokens, d), add(s, tokens, d), scale(s, tokens, d)]
}
