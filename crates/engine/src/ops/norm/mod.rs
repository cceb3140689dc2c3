//! Layer norm over the last axis: y = gain·(x − mean)/√(variance + eps) + bias. Statistics are f32 in every mode.

mod cpu;
mod cuda;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var, add_or_copy};
use crate::tensor::Tensor;

crate::cuda::source!("norm.cu");

struct Norm {
    x: Var,
    gain: Var,
    bias: Var,
    /// Mean and reciprocal deviation of each row, (rows, 2).
    stats: Tensor,
}

/// Layer norm of `x` \[…, d\] with `gain` and `bias` \[d\].
pub fn layer_norm(tape: &Tape, x: &Var, gain: &Var, bias: &Var, eps: f32) -> Result<Var> {
    let d = x.value().width();
    check::values("layer_norm", "x", x.value())?;
    check::f32s("layer_norm", "gain", gain.value(), x.value())?;
    check::f32s("layer_norm", "bias", bias.value(), x.value())?;
    ensure!(
        gain.shape() == [d] && bias.shape() == [d],
        "layer_norm",
        "gain {:?} and bias {:?} must be [{d}], the last axis of x {:?}",
        gain.shape(),
        bias.shape(),
        x.shape()
    );
    let (y, stats) = match x.value().cuda_device() {
        Some(c) => cuda::forward(c, x.value(), gain.value(), bias.value(), eps)?,
        None => {
            let rows = x.value().rows();
            let (mut y, mut stats) = (Buf::scratch(rows * d), Buf::scratch(rows * 2));
            cpu::forward(x.value().f32s(), gain.value().f32s(), bias.value().f32s(), eps, &mut y, &mut stats);
            (Tensor::from_buf(y, x.shape()), Tensor::from_buf(stats, &[rows, 2]))
        }
    };
    Ok(tape.record(y, &[x, gain, bias], || Norm { x: x.clone(), gain: gain.clone(), bias: bias.clone(), stats }))
}

impl Backward for Norm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let Norm { x, gain, bias, stats } = self;
        if let Some(c) = dy.cuda_device() {
            return cuda::backward(c, self, dy, grads);
        }
        let (xs, g, st, d) = (x.value().f32s(), gain.value().f32s(), stats.f32s(), dy.f32s());
        let mut sums = None;
        grads.write_cpu(x, |dst, acc| sums = Some(cpu::backward(xs, g, st, d, Some((dst, acc)))))?;
        let (dgain, dbias) = sums.unwrap_or_else(|| cpu::backward(xs, g, st, d, None));
        grads.write_cpu(gain, |dst, acc| add_or_copy(dst, &dgain, acc))?;
        grads.write_cpu(bias, |dst, acc| add_or_copy(dst, &dbias, acc))
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[&[usize]] = match size {
        Size::Tiny => &[&[3, 5], &[2, 1, 8]],
        Size::Full => {
            &[&[1, 1], &[3, 10], &[5, 197, 64], &[2, 197, 768], &[7, 1280], &[4, 2048], &[2100, 40], &[2100, 33]]
        }
    };
    let make = |s: &&[usize]| {
        let d = [s[s.len() - 1]];
        Case::new("layer_norm", format!("{s:?}"), |t, v| layer_norm(t, &v[0], &v[1], &v[2], 1e-6))
            .normal("x", Role::Activation, s, 1.0)
            .normal("gain", Role::Weight, &d, 1.0)
            .normal("bias", Role::Weight, &d, 1.0)
    };
    shapes.iter().map(make).collect()
}
