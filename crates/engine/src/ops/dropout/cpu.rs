//! Dropout on the CPU.

use super::{Dropout, Unit};
use crate::cpu::math::simd;
use crate::cpu::par;
use crate::rng::uniform_of;

/// The kept share of x, or nothing where the uniform number `u` is below p.
#[inline(always)]
fn put(y: &mut f32, x: f32, u: f32, (p, by, acc): (f32, f32, bool)) {
    let v = if u < p { 0.0 } else { by * x };
    *y = if acc { *y + v } else { v };
}

/// y = or += x·mask/(1 − p).
pub(super) fn apply(op: &Dropout, x: &[f32], y: &mut [f32], acc: bool) {
    let (ids, words) = (op.examples.u32s(), op.noise.words_of(0));
    let how = (op.p, 1.0 / (1.0 - op.p), acc);
    let inner = x.len() / ids.len();
    let work = inner * if op.unit == Unit::Element { 30 } else { 1 };
    par::rows(y, inner, work, |first, y| {
        for (r, y) in y.chunks_exact_mut(inner).enumerate() {
            let (x, id) = (&x[(first + r) * inner..][..inner], ids[first + r]);
            simd(
                #[inline(always)]
                || match op.unit {
                    Unit::Element => {
                        for (i, (y, x)) in y.chunks_mut(4).zip(x.chunks(4)).enumerate() {
                            let w = words(id, i as u32);
                            for j in 0..y.len() {
                                put(&mut y[j], x[j], uniform_of(w[j]), how);
                            }
                        }
                    }
                    Unit::Example => {
                        let u = uniform_of(words(id, 0)[0]);
                        y.iter_mut().zip(x).for_each(|(y, &x)| put(y, x, u, how));
                    }
                },
            );
        }
    });
}
