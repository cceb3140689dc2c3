//! Layer norm on the CPU.

use crate::cpu::math::{simd, sum_by};
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
                    let mean = sum_by(d, |i| x[i]) / d as f32;
                    let var = sum_by(d, |i| (x[i] - mean) * (x[i] - mean)) / d as f32;
                    let rstd = 1.0 / (var + eps).sqrt();
                    st.copy_from_slice(&[mean, rstd]);
                    for i in 0..d {
                        y[i] = ((x[i] - mean) * rstd).mul_add(gain[i], bias[i]);
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
                    let m1 = sum_by(d, |i| gain[i] * dy[i]) / d as f32;
                    let m2 = sum_by(d, |i| gain[i] * dy[i] * (x[i] - mean)) * rstd / d as f32;
                    for i in 0..d {
                        let v = rstd * (gain[i] * dy[i] - m1 - (x[i] - mean) * rstd * m2);
                        dx[i] = if acc { dx[i] + v } else { v };
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
                    for i in 0..d {
                        dgain[i] = (dy[i] * rstd).mul_add(x[i] - mean, dgain[i]);
                        dbias[i] += dy[i];
                    }
                }
            },
        );
    });
    let dbias = both.split_off(d);
    (both, dbias)
}
