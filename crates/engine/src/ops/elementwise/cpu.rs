//! Sums and scales on the CPU.

use super::Spread;
use crate::cpu::math::simd;
use crate::cpu::par;

pub(super) fn add(a: &[f32], b: &[f32], y: &mut [f32]) {
    par::rows(y, 1, 1, |first, y| {
        let (a, b) = (&a[first..first + y.len()], &b[first..first + y.len()]);
        simd(
            #[inline(always)]
            || y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (a, b))| *y = a + b),
        );
    });
}

pub(super) fn scale(x: &[f32], by: f32, y: &mut [f32]) {
    par::rows(y, 1, 1, |first, y| {
        let x = &x[first..first + y.len()];
        simd(
            #[inline(always)]
            || y.iter_mut().zip(x).for_each(|(y, x)| *y = by * x),
        );
    });
}

/// The operand's row for row `r` of x seen as (outer·mid, inner).
fn operand(p: &[f32], how: Spread, r: usize) -> &[f32] {
    let start = if how.per_example { r / how.mid * how.inner } else { 0 };
    &p[start..start + how.inner]
}

pub(super) fn add_spread(x: &[f32], p: &[f32], how: Spread, y: &mut [f32]) {
    par::rows(y, how.inner, how.inner, |first, y| {
        for (r, y) in y.chunks_exact_mut(how.inner).enumerate() {
            let x = &x[(first + r) * how.inner..][..how.inner];
            let p = operand(p, how, first + r);
            simd(
                #[inline(always)]
                || y.iter_mut().zip(x.iter().zip(p)).for_each(|(y, (x, p))| *y = x + p),
            );
        }
    });
}

/// Sum dy (outer, mid, inner) over the axes along which the operand was repeated.
pub(super) fn sum_spread(dy: &[f32], how: Spread) -> Vec<f32> {
    let Spread { outer, mid, inner, per_example } = how;
    let add_rows = |rows: std::ops::Range<usize>, sum: &mut [f32]| {
        for r in rows {
            let row = &dy[r * inner..][..inner];
            simd(
                #[inline(always)]
                || sum.iter_mut().zip(row).for_each(|(s, v)| *s += v),
            );
        }
    };
    if !per_example {
        return par::sum_vectors(outer, inner, inner, add_rows);
    }
    let mut out = vec![0.0; outer * inner];
    par::rows(&mut out, inner, mid * inner, |first, out| {
        for (b, sum) in out.chunks_exact_mut(inner).enumerate() {
            add_rows((first + b) * mid..(first + b + 1) * mid, sum);
        }
    });
    out
}
