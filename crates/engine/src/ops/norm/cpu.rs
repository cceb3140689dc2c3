//! Layer norm on the CPU.

use rayon::prelude::*;

use crate::cpu::math::{dot, simd, sum, sum_of};
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

/// Gradients of gain (Σ dy·x̂) and bias (Σ dy) and, where wanted, dx = rstd·(g·dy − mean(g·dy) − x̂·mean(g·dy·x̂)), in one
/// pass. Blocks of rows do not depend on the number of threads, so neither do the bits of the sums.
pub(super) fn backward(
    x: &[f32],
    gain: &[f32],
    stats: &[f32],
    dy: &[f32],
    dx: Option<(&mut [f32], bool)>,
) -> (Vec<f32>, Vec<f32>) {
    const BLOCK_WORK: usize = 1 << 17;
    let d = gain.len();
    let rows = (BLOCK_WORK / (d * 10)).max(1);
    let tiny = par::is_tiny(x.len() * 10);
    let block = |first: usize, count: usize, mut dx: Option<&mut [f32]>, acc: bool| {
        let mut sums = vec![0.0; 2 * d];
        simd(
            #[inline(always)]
            || {
                let (dgain, dbias) = sums.split_at_mut(d);
                for r in 0..count {
                    let row = first + r;
                    let (x, dy) = (&x[row * d..][..d], &dy[row * d..][..d]);
                    let (mean, rstd) = (stats[row * 2], stats[row * 2 + 1]);
                    for ((dg, db), (x, dy)) in dgain.iter_mut().zip(dbias.iter_mut()).zip(x.iter().zip(dy)) {
                        *dg = (dy * rstd).mul_add(x - mean, *dg);
                        *db += dy;
                    }
                    let Some(dx) = dx.as_mut().map(|dx| &mut dx[r * d..][..d]) else { continue };
                    let m1 = dot(gain, dy) / d as f32;
                    let m2 = sum_of([gain, dy, x], |[g, dy, x]| g * dy * (x - mean)) * rstd / d as f32;
                    for (dx, (x, (g, dy))) in dx.iter_mut().zip(x.iter().zip(gain.iter().zip(dy))) {
                        let v = rstd * (g * dy - m1 - (x - mean) * rstd * m2);
                        *dx = if acc { *dx + v } else { v };
                    }
                }
            },
        );
        sums
    };
    let total = stats.len() / 2;
    let parts: Vec<Vec<f32>> = match dx {
        Some((dx, acc)) => {
            let part = |(i, dx): (usize, &mut [f32])| block(i * rows, dx.len() / d, Some(dx), acc);
            match tiny {
                true => dx.chunks_mut(rows * d).enumerate().map(part).collect(),
                false => dx.par_chunks_mut(rows * d).enumerate().map(part).collect(),
            }
        }
        None => (0..total.div_ceil(rows)).map(|i| block(i * rows, rows.min(total - i * rows), None, false)).collect(),
    };
    let mut sum = vec![0.0; 2 * d];
    for p in parts {
        sum.iter_mut().zip(p).for_each(|(s, p)| *s += p);
    }
    let dbias = sum.split_off(d);
    (sum, dbias)
}
