//! Softmax on the CPU.

use crate::cpu::math::{exp, simd, sum_of};
use crate::cpu::par;

/// The largest of a row, and Σ exp(x − largest).
#[inline(always)]
fn largest_and_sum(x: &[f32]) -> (f32, f32) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
    (max, sum_of([x], |[x]| exp(x - max)))
}

/// x (rows, d).
pub(super) fn forward(x: &[f32], floor: Option<f32>, d: usize, y: &mut [f32]) {
    par::rows(y, d, d * 20, |first, y| {
        simd(
            #[inline(always)]
            || {
                for (r, y) in y.chunks_exact_mut(d).enumerate() {
                    let x = &x[(first + r) * d..][..d];
                    let (max, sum) = largest_and_sum(x);
                    match floor {
                        None => (0..d).for_each(|i| y[i] = exp(x[i] - max) / sum),
                        Some(floor) => {
                            let ln = sum.ln();
                            (0..d).for_each(|i| y[i] = (x[i] - max - ln).max(floor));
                        }
                    }
                }
            },
        );
    });
}

/// dx = p·(dy − Σ p·dy), or for the logarithm dy − p·Σ dy over what is not cut off.
pub(super) fn backward(x: &[f32], dy: &[f32], floor: Option<f32>, d: usize, dx: &mut [f32], acc: bool) {
    par::rows(dx, d, d * 40, |first, dx| {
        simd(
            #[inline(always)]
            || {
                for (r, dx) in dx.chunks_exact_mut(d).enumerate() {
                    let (x, dy) = (&x[(first + r) * d..][..d], &dy[(first + r) * d..][..d]);
                    let (max, sum) = largest_and_sum(x);
                    let p = |x: f32| exp(x - max) / sum;
                    match floor {
                        None => {
                            let dot = sum_of([x, dy], |[x, dy]| p(x) * dy);
                            give(dx, acc, |i| p(x[i]) * (dy[i] - dot));
                        }
                        Some(floor) => {
                            let ln = sum.ln();
                            let kept = |x: f32, dy: f32| if x - max - ln > floor { dy } else { 0.0 };
                            let all = sum_of([x, dy], |[x, dy]| kept(x, dy));
                            give(dx, acc, |i| kept(x[i], dy[i]) - p(x[i]) * all);
                        }
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn give(dx: &mut [f32], acc: bool, value: impl Fn(usize) -> f32) {
    if acc {
        dx.iter_mut().enumerate().for_each(|(i, d)| *d += value(i));
    } else {
        dx.iter_mut().enumerate().for_each(|(i, d)| *d = value(i));
    }
}
