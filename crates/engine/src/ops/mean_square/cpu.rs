//! Mean square on the CPU.

use crate::cpu::math::{simd, sum_of};
use crate::cpu::par;
use crate::cpu::pool::Buf;

/// p, t (rows, d); w (rows).
pub(super) fn forward(p: &[f32], t: &[f32], w: Option<&[f32]>, d: usize) -> Buf {
    let mut y = Buf::scratch(p.len() / d);
    par::rows(&mut y, 1, d * 2, |first, y| {
        simd(
            #[inline(always)]
            || {
                for (r, y) in y.iter_mut().enumerate() {
                    let row = first + r;
                    let (p, t) = (&p[row * d..][..d], &t[row * d..][..d]);
                    let mean = sum_of([p, t], |[p, t]| (p - t) * (p - t)) / d as f32;
                    *y = w.map_or(mean, |w| w[row] * mean);
                }
            },
        );
    });
    y
}

/// dp = dy·w·2/d·(p − t).
pub(super) fn backward(p: &[f32], t: &[f32], w: Option<&[f32]>, dy: &[f32], d: usize, dp: &mut [f32], acc: bool) {
    par::rows(dp, d, d * 2, |first, dp| {
        simd(
            #[inline(always)]
            || {
                for (r, dp) in dp.chunks_exact_mut(d).enumerate() {
                    let row = first + r;
                    let (p, t) = (&p[row * d..][..d], &t[row * d..][..d]);
                    let by = dy[row] * w.map_or(1.0, |w| w[row]) * 2.0 / d as f32;
                    if acc {
                        (0..d).for_each(|i| dp[i] += by * (p[i] - t[i]));
                    } else {
                        (0..d).for_each(|i| dp[i] = by * (p[i] - t[i]));
                    }
                }
            },
        );
    });
}
