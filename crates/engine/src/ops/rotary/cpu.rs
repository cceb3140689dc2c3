//! Rotation on the CPU.

use super::Rotation;
use crate::cpu::math::simd;
use crate::cpu::par;

/// Rotate x (b, l, w) in place.
pub(super) fn rotate(x: &mut [f32], l: usize, w: usize, rotation: &Rotation) {
    let (head, columns, rows) = (rotation.angles.head, rotation.columns, &rotation.rows);
    let (half, table) = (head / 2, rotation.angles.table.f32s());
    let sign = if rotation.back { -1.0 } else { 1.0 };
    par::rows(x, w, columns * 2, |first, x| {
        simd(
            #[inline(always)]
            || {
                for (r, x) in x.chunks_exact_mut(w).enumerate() {
                    let place = (first + r) % l;
                    if !rows.contains(&place) {
                        continue;
                    }
                    let (cos, sin) = table[(place - rows.start) * 2 * half..][..2 * half].split_at(half);
                    for x in x[..columns].chunks_exact_mut(head) {
                        let (a, b) = x[..2 * half].split_at_mut(half);
                        for i in 0..half {
                            let (c, s, p, q) = (cos[i], sign * sin[i], a[i], b[i]);
                            a[i] = c * p - s * q;
                            b[i] = s * p + c * q;
                        }
                    }
                }
            },
        );
    });
}
