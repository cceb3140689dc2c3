//! Dropout of elements and of whole examples (drop path). Masks are drawn from addressed noise, so that they depend on the
//! example alone and are drawn again in the backward pass instead of being stored.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::rng::Noise;
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

crate::cuda::source!("dropout.cu");

/// What is kept or dropped as one.
#[derive(Clone, Copy, PartialEq)]
enum Unit {
    Element,
    Example,
}

/// A mask and its application; it is its own backward pass.
struct Dropout {
    x: Var,
    op: &'static str,
    unit: Unit,
    p: f32,
    noise: Noise,
    examples: Tensor,
}

/// Each element of `x` \[B, …\] becomes 0 with probability `p`, the others are divided by 1 − p. Element i of the example
/// with id e (`examples`, u32 \[B\]) is dropped where number i of row e of `noise` is below p: give each layer a stream of its
/// own. The key of `noise` must not be reset between forward and backward. p = 0 is x itself.
pub fn dropout(tape: &Tape, x: &Var, p: f32, noise: &Noise, examples: &Tensor) -> Result<Var> {
    masked(tape, x, p, noise, examples, "dropout", Unit::Element)
}

/// As [`dropout`] for whole examples: a residual branch `x` \[B, …\] is dropped for an example with probability `p`, else
/// divided by 1 − p (timm's drop path).
pub fn drop_path(tape: &Tape, x: &Var, p: f32, noise: &Noise, examples: &Tensor) -> Result<Var> {
    masked(tape, x, p, noise, examples, "drop_path", Unit::Example)
}

fn masked(tape: &Tape, x: &Var, p: f32, noise: &Noise, examples: &Tensor, op: &'static str, unit: Unit) -> Result<Var> {
    ensure!((0.0..1.0).contains(&p), op, "the probability must be in [0, 1), it is {p}");
    if p == 0.0 {
        return Ok(x.clone());
    }
    ensure!(
        !x.value().is_empty() && x.shape().first() == Some(&examples.len()),
        op,
        "{:?} example ids do not go with x {:?}",
        examples.shape(),
        x.shape()
    );
    check::alike(op, x.value(), &[])?;
    check::integers(op, "example ids", examples, x.value())?;
    check::integers(op, "noise keys", noise.key(), x.value())?;
    ensure!(noise.key_step() == 0, op, "dropout has one noise key for all examples");
    let all = Dropout { x: x.clone(), op, unit, p, noise: noise.clone(), examples: examples.clone() };
    let y = match x.value().cuda_device() {
        Some(c) => {
            let y = Tensor::cuda(c, x.shape(), x.value().dtype())?;
            cuda::apply(c, &all, x.value(), &y, false)?;
            y
        }
        None => {
            let mut y = Buf::scratch(x.value().len());
            cpu::apply(&all, x.value().f32s(), &mut y, false);
            Tensor::from_buf(y, x.shape())
        }
    };
    Ok(tape.record(y, &[x], || all))
}

impl Backward for Dropout {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(&self.x, dy.dtype())? else { return Ok(()) };
                cuda::apply(c, self, dy, &dst.tensor, dst.acc)
            }
            None => grads.write_cpu(&self.x, |dst, acc| cpu::apply(self, dy.f32s(), dst, acc)),
        }
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    type Op = fn(&Tape, &Var, f32, &Noise, &Tensor) -> Result<Var>;
    let shapes: &[&[usize]] = match size {
        Size::Tiny => &[&[3, 2, 5], &[1, 1]],
        Size::Full => &[&[1, 1], &[1, 197, 64], &[3, 5, 7], &[4, 197, 192], &[130, 33], &[9]],
    };
    let noise = |v: &Var| Noise::new(&v.value().device(), 5, 6, 7).map(|n| n.later(8));
    let mut out = Vec::new();
    for &s in shapes {
        for p in [0.0, 0.25, 0.9] {
            for (name, op) in [("dropout", dropout as Op), ("drop_path", drop_path as Op)] {
                out.push(
                    Case::new(name, format!("{s:?} p = {p}"), move |t, v| {
                        op(t, &v[0], p, &noise(&v[0])?, v[1].value())
                    })
                    .normal("x", Role::Activation, s, 1.0)
                    .ids("examples", &[s[0]], 1 << 31),
                );
            }
        }
        out.push(
            Case::new("dropout", format!("{s:?} and its drop path"), move |t, v| {
                let n = noise(&v[0])?;
                let a = dropout(t, &v[0], 0.5, &n, v[1].value())?;
                let b = drop_path(t, &v[0], 0.3, &n, v[1].value())?;
                crate::ops::elementwise::add(t, &a, &b)
            })
            .normal("x", Role::Activation, s, 1.0)
            .ids("examples", &[s[0]], 100),
        );
    }
    out
}
