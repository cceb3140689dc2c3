//! Noisy one-hot input on the CPU.

use super::{Eps, NoisyTokens};
use crate::cpu::math::simd;
use crate::cpu::matmul::{matmul, n as plain, t as transposed};
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::error::Result;
use crate::rng::{fill_row, normals_of};
use crate::tape::{Grads, Var, add_or_copy};
use crate::tensor::Tensor;

/// y_t, (b, n, vocab).
pub(super) fn vectors(from: &NoisyTokens, b: usize, n: usize) -> Tensor {
    let v = from.vocab;
    let mut y = Buf::scratch(b * n * v);
    let (tokens, signal, spread) = (from.tokens.u32s(), from.signal.f32s(), from.spread.f32s());
    let (fours, sharing) = (v.div_ceil(4), from.sharing());
    let draw = match &from.eps {
        Eps::Drawn { noise, examples } => Ok((noise, examples.u32s())),
        Eps::Given(e) => Err(e.f32s()),
    };
    par::rows(&mut y, v.max(1), v * 30, |first, y| {
        for (i, y) in y.chunks_exact_mut(v).enumerate() {
            let row = first + i;
            let (example, token, scale) = (row / n, row % n, spread[row / sharing]);
            match &draw {
                Ok((noise, ids)) => {
                    let words = noise.words_of(example);
                    simd(
                        #[inline(always)]
                        || {
                            fill_row(
                                y,
                                (token * fours) as u32,
                                #[inline(always)]
                                |i| words(ids[example], i),
                                #[inline(always)]
                                |w| normals_of(w),
                            );
                            for y in y.iter_mut() {
                                *y *= scale;
                            }
                        },
                    )
                }
                Err(e) => y.iter_mut().zip(&e[row * v..]).for_each(|(y, e)| *y = scale * e),
            }
            y[tokens[row] as usize] += signal[row / sharing];
        }
    });
    Tensor::from_buf(y, &[b, n, v])
}

pub(super) fn forward(vectors: &Tensor, w: &Tensor, b: &Tensor, shape: &[usize]) -> Tensor {
    let (rows, v, d) = (vectors.rows(), w.shape()[1], w.shape()[0]);
    let mut y = Buf::scratch(rows * d);
    y.chunks_exact_mut(d).for_each(|y| y.copy_from_slice(b.f32s()));
    matmul((rows, d, v), 1.0, plain(vectors.f32s(), v), transposed(w.f32s(), v), true, &mut y, d, false);
    Tensor::from_buf(y, shape)
}

pub(super) fn backward(vectors: &Tensor, w: &Var, b: &Var, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let (rows, v, d) = (vectors.rows(), w.shape()[1], w.shape()[0]);
    if b.needs_grad() {
        let mut sum = vec![0.0; d];
        for row in dy.f32s().chunks_exact(d) {
            sum.iter_mut().zip(row).for_each(|(s, x)| *s += x);
        }
        grads.write_cpu(b, |dst, acc| add_or_copy(dst, &sum, acc))?;
    }
    grads.write_cpu(w, |dst, acc| {
        matmul((d, v, rows), 1.0, transposed(dy.f32s(), d), plain(vectors.f32s(), v), acc, dst, v, false);
    })
}
