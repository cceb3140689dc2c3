//! Modulation and gates on the CPU.

use crate::cpu::math::simd;
use crate::cpu::par;

/// x, y (b, n, d); shift, scale (b, d).
pub(super) fn modulate(x: &[f32], shift: &[f32], scale: &[f32], n: usize, d: usize, y: &mut [f32]) {
    par::rows(y, d, d * 2, |first, y| {
        simd(
            #[inline(always)]
            || {
                for (r, y) in y.chunks_exact_mut(d).enumerate() {
                    let (row, b) = (first + r, (first + r) / n);
                    let (x, shift, scale) = (&x[row * d..][..d], &shift[b * d..][..d], &scale[b * d..][..d]);
                    for i in 0..d {
                        y[i] = x[i].mul_add(1.0 + scale[i], shift[i]);
                    }
                }
            },
        );
    });
}

/// out = x + g·y.
pub(super) fn gate(x: &[f32], y: &[f32], g: &[f32], n: usize, d: usize, out: &mut [f32]) {
    par::rows(out, d, d * 2, |first, out| {
        simd(
            #[inline(always)]
            || {
                for (r, out) in out.chunks_exact_mut(d).enumerate() {
                    let row = first + r;
                    let (x, y, g) = (&x[row * d..][..d], &y[row * d..][..d], &g[row / n * d..][..d]);
                    for i in 0..d {
                        out[i] = g[i].mul_add(y[i], x[i]);
                    }
                }
            },
        );
    });
}

/// dx = dy·(one + factor).
pub(super) fn backward_input(factor: &[f32], one: f32, dy: &[f32], n: usize, d: usize, dx: &mut [f32], acc: bool) {
    par::rows(dx, d, d * 2, |first, dx| {
        simd(
            #[inline(always)]
            || {
                for (r, dx) in dx.chunks_exact_mut(d).enumerate() {
                    let row = first + r;
                    let (dy, factor) = (&dy[row * d..][..d], &factor[row / n * d..][..d]);
                    for i in 0..d {
                        let v = dy[i] * (one + factor[i]);
                        dx[i] = if acc { dx[i] + v } else { v };
                    }
                }
            },
        );
    });
}

/// Sums over the tokens of each example: dy·x and dy, each (b, d).
pub(super) fn backward_rows(x: &[f32], dy: &[f32], n: usize, d: usize) -> (Vec<f32>, Vec<f32>) {
    let b = dy.len() / (n * d);
    let (mut product, mut plain) = (vec![0.0; b * d], vec![0.0; b * d]);
    par::rows2(&mut product, d, &mut plain, d, n * d * 2, |first, product, plain| {
        simd(
            #[inline(always)]
            || {
                for (r, (product, plain)) in product.chunks_exact_mut(d).zip(plain.chunks_exact_mut(d)).enumerate() {
                    for row in (first + r) * n..(first + r + 1) * n {
                        let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                        for i in 0..d {
                            product[i] = dy[i].mul_add(x[i], product[i]);
                            plain[i] += dy[i];
                        }
                    }
                }
            },
        );
    });
    (product, plain)
}
