//! The gradients of an op against finite differences of its forward pass: what every op here is held to, and an op of one's own
//! should be. See [`Backward`](crate::Backward) for one that is.

use crate::cases::random;
use crate::error::{Error, Result, ensure};
use crate::tape::{Tape, Var};
use crate::tensor::{DType, Tensor};

const OP: &str = "gradients";
/// Single coordinates of an input that are moved, at most.
const COORDINATES: usize = 24;

/// Check that the backward pass of `f` agrees with its forward pass, for each of the f32 `inputs`, within `tolerance` of the
/// gradient's own size; 2e-3 is what f32 allows. Returns how many derivatives were compared; the first that differs is an error.
///
/// What `f` computes must be f32 and differentiable near the inputs, and the same at every call; a few dozen elements are enough.
/// Constants that are not to be moved (ids, masks) belong into the closure.
///
/// ```
/// use tweedie_engine::{Device, Tensor, check, ops::elementwise};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let x = Tensor::from_f32(&Device::Cpu, &[2, 3], vec![0.1, -0.2, 0.3, 0.5, -0.7, 1.1])?;
/// let compared = check::gradients(|tape, v| elementwise::add(tape, &v[0], &v[0]), &[x], 2e-3)?;
/// assert_eq!(compared, 7); // six coordinates, and one direction that moves them all
/// # Ok(())
/// # }
/// ```
pub fn gradients(f: impl Fn(&Tape, &[Var]) -> Result<Var>, inputs: &[Tensor], tolerance: f64) -> Result<usize> {
    for (i, x) in inputs.iter().enumerate() {
        ensure!(x.dtype() == DType::F32, OP, "input {i} is {x:?}; only f32 can be moved by small steps");
    }
    let tape = Tape::new();
    let vars: Vec<Var> = inputs.iter().map(|x| tape.leaf(x.clone())).collect();
    let out = f(&tape, &vars)?;
    if inputs.is_empty() {
        return Ok(0);
    }
    let like = out.value();
    ensure!(like.dtype() == DType::F32, OP, "the output is {like:?}, not f32");
    let weights = random(1000, out.shape(), 1.0).to_device(&like.device())?;
    let dy = weights.to_vec()?;
    let grads = tape.backward_from(&out, weights, None)?;
    let mut compared = 0;
    for (which, v) in vars.iter().enumerate() {
        let Some(grad) = grads.get(v) else {
            return Err(Error::op(OP, format!("input {which} {:?} got no gradient", v.shape())));
        };
        let grad = grad.to_vec()?;
        for d in directions(grad.len()) {
            let moved = |step: f32| projected(&f, inputs, &dy, which, &d, step);
            compare(which, &grad, &d, moved, tolerance)?;
            compared += 1;
        }
    }
    Ok(compared)
}

/// Some single coordinates and one direction that touches all of them.
fn directions(n: usize) -> Vec<Vec<f32>> {
    let count = n.min(COORDINATES);
    let mut all: Vec<Vec<f32>> =
        (0..count).map(|i| (0..n).map(|j| (j == i * n / count) as u8 as f32).collect()).collect();
    all.push((0..n).map(|i| if i * 7 % 3 == 0 { 1.0 } else { -0.5 }).collect());
    all
}

/// Σ dy·f(inputs) in f64, with input `which` moved by `step` along `direction`.
fn projected(
    f: &impl Fn(&Tape, &[Var]) -> Result<Var>,
    inputs: &[Tensor],
    dy: &[f32],
    which: usize,
    direction: &[f32],
    step: f32,
) -> Result<f64> {
    let tape = Tape::inference();
    let mut vars = Vec::new();
    for (i, x) in inputs.iter().enumerate() {
        let mut value = x.clone();
        if i == which {
            let moved = x.to_vec()?.iter().zip(direction).map(|(v, d)| v + step * d).collect();
            value = Tensor::from_f32(&x.device(), x.shape(), moved)?;
        }
        vars.push(tape.constant(value));
    }
    let out = f(&tape, &vars)?.value().to_vec()?;
    ensure!(out.len() == dy.len(), OP, "the output has {} elements, and then {}", dy.len(), out.len());
    Ok(out.iter().zip(dy).map(|(o, d)| *o as f64 * *d as f64).sum())
}

/// The derivative along `d` by `grad` and by differences of `moved`.
fn compare(which: usize, grad: &[f32], d: &[f32], moved: impl Fn(f32) -> Result<f64>, tolerance: f64) -> Result<()> {
    // Richardson extrapolation of central differences: truncation falls as h⁴, so h can be large enough that f32 rounding of
    // the outputs (1e-7 · |f| / h) stays small.
    let central = |h: f32| -> Result<f64> { Ok((moved(h)? - moved(-h)?) / (2.0 * h as f64)) };
    let numeric = (4.0 * central(1.0 / 128.0)? - central(1.0 / 64.0)?) / 3.0;
    let exact: f64 = grad.iter().zip(d).map(|(g, d)| *g as f64 * *d as f64).sum();
    let norm = (grad.iter().map(|g| (*g as f64).powi(2)).sum::<f64>() / grad.len() as f64).sqrt();
    let length = d.iter().map(|x| (*x as f64).powi(2)).sum::<f64>().sqrt();
    // Of the gradient's own scale; the second term covers rounding where the gradient itself vanishes.
    let bound = length * (tolerance * norm.max(exact.abs() / length) + tolerance / 10.0);
    let agree = (numeric - exact).abs() < bound; // not a number: they do not
    ensure!(
        agree,
        OP,
        "a derivative of input {which} is {exact} by the backward pass and {numeric} by finite differences"
    );
    Ok(())
}
