//! The conditioning of a DiT block (adaLN): `modulate` x·(1 + scale) + shift, and `gate` x + g·y, with one shift, scale and
//! gate per example.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var, add_or_copy};
use crate::tensor::Tensor;

crate::cuda::source!("modulate.cu");

/// `v` holds one row of `d` for each of `b` examples: \[B, d\], or \[B, 1, d\] as a slice of tokens gives it.
fn per_example(op: &'static str, what: &str, v: &Var, x: &Var, b: usize, d: usize) -> Result<()> {
    ensure!(
        v.shape() == [b, d] || v.shape() == [b, 1, d],
        op,
        "{what} {:?} must be [{b}, {d}] or [{b}, 1, {d}] to go with x {:?}",
        v.shape(),
        x.shape()
    );
    Ok(())
}

/// The backward pass of both ops: an input of the product, its factor, and whether 1 is added to that.
struct Scaled<'a> {
    x: &'a Var,
    factor: &'a Var,
    one: f32,
    shift: Option<&'a Var>,
}

impl Scaled<'_> {
    /// dx = dy·(one + factor), dfactor = Σ_tokens dy·x, dshift = Σ_tokens dy.
    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(c) = dy.cuda_device() {
            return cuda::backward(c, self, dy, grads);
        }
        let Scaled { x, factor, one, shift } = *self;
        let (n, d) = (dy.shape()[1], dy.width());
        if factor.needs_grad() || shift.is_some_and(Var::needs_grad) {
            let (dfactor, dshift) = cpu::backward_rows(x.value().f32s(), dy.f32s(), n, d);
            grads.write_cpu(factor, |dst, acc| add_or_copy(dst, &dfactor, acc))?;
            if let Some(shift) = shift {
                grads.write_cpu(shift, |dst, acc| add_or_copy(dst, &dshift, acc))?;
            }
        }
        grads.write_cpu(x, |dst, acc| cpu::backward_input(factor.value().f32s(), one, dy.f32s(), n, d, dst, acc))
    }
}

struct Modulate {
    x: Var,
    shift: Var,
    scale: Var,
}

/// `x` \[B, N, d\]·(1 + `scale`) + `shift`, both \[B, d\] (or \[B, 1, d\]).
pub fn modulate(tape: &Tape, x: &Var, shift: &Var, scale: &Var) -> Result<Var> {
    let [b, n, d] = check::tokens("modulate", x.value())?;
    per_example("modulate", "shift", shift, x, b, d)?;
    per_example("modulate", "scale", scale, x, b, d)?;
    check::alike("modulate", x.value(), &[shift.value(), scale.value()])?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::modulate(c, x.value(), shift.value(), scale.value())?,
        None => {
            let mut y = Buf::scratch(b * n * d);
            cpu::modulate(x.value().f32s(), shift.value().f32s(), scale.value().f32s(), n, d, &mut y);
            Tensor::from_buf(y, x.shape())
        }
    };
    let keep = || Modulate { x: x.clone(), shift: shift.clone(), scale: scale.clone() };
    Ok(tape.record(y, &[x, shift, scale], keep))
}

impl Backward for Modulate {
    fn name(&self) -> &'static str {
        "modulate"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        Scaled { x: &self.x, factor: &self.scale, one: 1.0, shift: Some(&self.shift) }.backward(dy, grads)
    }
}

struct Gate {
    x: Var,
    y: Var,
    g: Var,
}

/// `x` + `g`·`y`: the residual sum of x and y \[B, N, d\] with `g` \[B, d\] (or \[B, 1, d\]) as y's weight.
pub fn gate(tape: &Tape, x: &Var, y: &Var, g: &Var) -> Result<Var> {
    let [b, n, d] = check::tokens("gate", x.value())?;
    ensure!(x.shape() == y.shape(), "gate", "shapes differ: {:?} and {:?}", x.shape(), y.shape());
    per_example("gate", "g", g, x, b, d)?;
    check::alike("gate", x.value(), &[y.value(), g.value()])?;
    let out = match x.value().cuda_device() {
        Some(c) => cuda::gate(c, x.value(), y.value(), g.value())?,
        None => {
            let mut out = Buf::scratch(b * n * d);
            cpu::gate(x.value().f32s(), y.value().f32s(), g.value().f32s(), n, d, &mut out);
            Tensor::from_buf(out, x.shape())
        }
    };
    Ok(tape.record(out, &[x, y, g], || Gate { x: x.clone(), y: y.clone(), g: g.clone() }))
}

impl Backward for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.x, dy.clone())?;
        Scaled { x: &self.y, factor: &self.g, one: 0.0, shift: None }.backward(dy, grads)
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    use Role::Activation;
    let shapes: &[[usize; 3]] = match size {
        Size::Tiny => &[[2, 3, 4], [1, 1, 1]],
        Size::Full => &[[1, 1, 1], [1, 197, 64], [3, 5, 7], [4, 197, 192], [9, 33, 70], [5, 17, 1152]],
    };
    let mut out = Vec::new();
    for &s in shapes {
        let [b, _, d] = s;
        let l = format!("{s:?}");
        out.extend([
            Case::new("modulate", &l, |t, v| modulate(t, &v[0], &v[1], &v[2]))
                .normal("x", Activation, &s, 1.0)
                .normal("shift", Activation, &[b, d], 1.0)
                .normal("scale", Activation, &[b, 1, d], 1.0),
            Case::new("gate", &l, |t, v| gate(t, &v[0], &v[1], &v[2]))
                .normal("x", Activation, &s, 1.0)
                .normal("y", Activation, &s, 1.0)
                .normal("g", Activation, &[b, d], 1.0),
            // Every input has two users, so that each gradient is also added to another.
            Case::new("modulate", format!("{l}, gated by its scale"), |t, v| {
                let y = modulate(t, &v[0], &v[1], &v[2])?;
                gate(t, &v[0], &modulate(t, &y, &v[2], &v[1])?, &v[2])
            })
            .normal("x", Activation, &s, 1.0)
            .normal("shift", Activation, &[b, d], 0.5)
            .normal("scale", Activation, &[b, d], 0.5),
            Case::new("gate", format!("{l} of x with itself"), |t, v| gate(t, &v[0], &v[0], &v[1]))
                .normal("x", Activation, &s, 1.0)
                .normal("g", Activation, &[b, d], 1.0),
        ]);
    }
    out
}
