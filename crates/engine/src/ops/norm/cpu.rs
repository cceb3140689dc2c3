//! Layer norm on the CPU.

use crate::cpu::math::{simd, sum, sum_of};
use crate::cpu::par;

/// x, y (rows, d); stats (rows, 2).
pub(super) fn forward(x: &[f32], gain: &[f32], bias: &[f32], eps: f32, y: &mut [f32], stats: &mut [f32]) {
    let d = gain.len();
    par::rows2(y, d, stats, 2, d * 4, |first, y, stats| {
        simd(
            #[inline(always)]
            || {
                for (r, (y, st)) in y.chunks_exact_mut(d).zip(stats.chunks_exact_mut(2)).enumerate() {
                    let x = &x[(first + r) * d..][..d];
                    let mean = sum(x) / d as f32;
                    let var = sum_of([x], |[x]| (x - mean) * (x - mean)) / d as f32;
                    let rstd = 1.0 / (var + eps).sqrt();
                    st.copy_from_slice(&[mean, rstd]);
                    for (y, (x, (g, b))) in y.iter_mut().zip(x.iter().zip(gain.iter().zip(bias))) {
                        *y = ((x - mean) * rstd).mul_add(*g, *b);
                    }
                }
            },
        );
    });
}

/// dx = rstd·(g·dy − mean(g·dy) − x̂·mean(g·dy·x̂)).
pub(super) fn backward_input(x: &[f32], gain: &[f32], stats: &[f32], dy: &[f32], dx: &mut [f32], acc: bool) {
    let d = gain.len();
    par::rows(dx, d, d * 6, |first, dx| {
        simd(
            #[inline(always)]
            || {
                for (r, dx) in dx.chunks_exact_mut(d).enumerate() {
                    let row = first + r;
                    let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                    let (mean, rstd) = (stats[row * 2], stats[row * 2 + 1]);
                    let m1 = sum_of([gain, dy], |[g, dy]| g * dy) / d as f32;
                    let m2 = sum_of([gain, dy, x], |[g, dy, x]| g * dy * (x - mean)) * rstd / d as f32;
                    let inputs = x.iter().zip(gain.iter().zip(dy));
                    for (dx, (x, (g, dy))) in dx.iter_mut().zip(inputs) {
                        let v = rstd * (g * dy - m1 - (x - mean) * rstd * m2);
                        *dx = if acc { *dx + v } else { v };
                    }
                }
            },
        );
    });
}

/// Gradients of gain (Σ dy·x̂) and bias (Σ dy).
pub(super) fn backward_params(x: &[f32], stats: &[f32], dy: &[f32], d: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = stats.len() / 2;
    let mut both = par::sum_vectors(rows, 2 * d, d * 4, |range, sum| {
        simd(
            #[inline(always)]
            || {
                let (dgain, dbias) = sum.split_at_mut(d);
                for row in range {
                    let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                    let (mean, rstd) = (stats[row * 2], stats[row * 2 + 1]);
                    for ((dg, db), (x, dy)) in dgain.iter_mut().zip(dbias.iter_mut()).zip(x.iter().zip(dy)) {
                        *dg = (dy * rstd).mul_add(x - mean, *dg);
                        *db += dy;
                    }
                }
            },
        );
    });
    let dbias = both.split_off(d);
    (both, dbias)
}
