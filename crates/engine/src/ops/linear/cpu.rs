//! Linear layers on the CPU.

use super::Affine;
use crate::cpu::math::{self, Act, simd};
use crate::cpu::matmul::{is_direct, matmul, n, t};
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::error::Result;
use crate::tape::{Grads, Var, add_or_copy};
use crate::tensor::Tensor;

/// Output and, with an activation, the pre-activation.
pub(super) fn forward(
    x: &Tensor,
    layer: &Affine,
    act: Option<Act>,
    residual: Option<&Tensor>,
    shape: &[usize],
) -> (Tensor, Option<Tensor>) {
    let (rows, inner, out) = (x.rows(), layer.inner(), layer.out());
    let mut y = Buf::scratch(rows * out);
    // The product is added to what stands in y already: the bias, the residual, or both.
    let bias = layer.b.as_ref().map(|b| b.value().f32s());
    let start = bias.is_some() || residual.is_some();
    if start {
        let residual = residual.map(Tensor::f32s);
        par::rows(&mut y, out, out, |first, y| {
            for (r, y) in y.chunks_exact_mut(out).enumerate() {
                match (bias, residual.map(|x| &x[(first + r) * out..][..out])) {
                    (Some(b), Some(x)) => simd(
                        #[inline(always)]
                        || y.iter_mut().zip(b.iter().zip(x)).for_each(|(y, (b, x))| *y = b + x),
                    ),
                    (Some(v), None) | (None, Some(v)) => y.copy_from_slice(v),
                    (None, None) => {}
                }
            }
        });
    }
    let transposed = if is_direct(rows, inner) { layer.w.transposed() } else { None };
    let w = match transposed {
        Some(w) => n(w.f32s(), out),
        None => t(layer.w.value().f32s(), inner),
    };
    matmul((rows, out, inner), 1.0, n(x.f32s(), inner), w, start, &mut y, out, false);
    let Some(act) = act else { return (Tensor::from_buf(y, shape), None) };
    let mut h = Buf::scratch(rows * out);
    math::act_forward(act, &y, &mut h);
    (Tensor::from_buf(h, shape), Some(Tensor::from_buf(y, shape)))
}

/// dy·act'(pre).
pub(super) fn act_backward(act: Act, pre: &Tensor, dy: &Tensor) -> Tensor {
    let mut d = Buf::scratch(dy.len());
    d.copy_from_slice(dy.f32s());
    math::act_backward(act, pre.f32s(), &mut d);
    Tensor::from_buf(d, dy.shape())
}

pub(super) fn backward_weights(layer: &Affine, x: &Tensor, d: &Tensor, grads: &mut Grads) -> Result<()> {
    let (rows, inner, out) = (x.rows(), layer.inner(), layer.out());
    if let Some(b) = layer.b.as_ref().filter(|b| b.needs_grad()) {
        let d = d.f32s();
        let sum = par::sum_vectors(rows, out, out, |range, sum| {
            for r in range {
                let row = &d[r * out..][..out];
                simd(
                    #[inline(always)]
                    || sum.iter_mut().zip(row).for_each(|(s, v)| *s += v),
                );
            }
        });
        grads.write_cpu(b, |dst, acc| add_or_copy(dst, &sum, acc))?;
    }
    grads.write_cpu(&layer.w, |dst, acc| {
        matmul((out, inner, rows), 1.0, t(d.f32s(), out), n(x.f32s(), inner), acc, dst, inner, false);
    })
}

pub(super) fn backward_input(layer: &Affine, x: &Var, d: &Tensor, grads: &mut Grads) -> Result<()> {
    let (rows, inner, out) = (x.value().rows(), layer.inner(), layer.out());
    let w = layer.w.value().f32s();
    grads.write_cpu(x, |dst, acc| {
        matmul((rows, inner, out), 1.0, n(d.f32s(), out), n(w, inner), acc, dst, inner, false);
    })
}

/// Gradient of the first layer's pre-activation.
pub(super) fn backward_hidden(down: &Affine, act: Act, pre: &Tensor, dy: &Tensor) -> Tensor {
    let (rows, mid, out) = (dy.rows(), down.inner(), down.out());
    let mut d = Buf::scratch(rows * mid);
    matmul((rows, mid, out), 1.0, n(dy.f32s(), out), n(down.w.value().f32s(), mid), false, &mut d, mid, false);
    math::act_backward(act, pre.f32s(), &mut d);
    Tensor::from_buf(d, pre.shape())
}
