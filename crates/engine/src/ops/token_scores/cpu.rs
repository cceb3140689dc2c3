//! Token scores on the CPU.

use super::SCORES;
use crate::cpu::math::{exp, simd, sum_of};
use crate::cpu::par;
use crate::cpu::pool::Buf;

/// logits (rows, v), targets (rows).
pub(super) fn scores(logits: &[f32], targets: &[u32], v: usize) -> Buf {
    let mut y = Buf::scratch(targets.len() * SCORES);
    par::rows(&mut y, SCORES, v * 30, |first, y| {
        simd(
            #[inline(always)]
            || {
                for (r, y) in y.chunks_exact_mut(SCORES).enumerate() {
                    let row = first + r;
                    let l = &logits[row * v..][..v];
                    let max = l.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
                    let t = targets[row] as usize;
                    let (before, after) = (&l[..t], &l[t + 1..]);
                    let sum =
                        |f: fn(f32) -> f32| sum_of([before], |[l]| f(l - max)) + sum_of([after], |[l]| f(l - max));
                    let (own, others, square) = (exp(l[t] - max), sum(exp), sum(|d| exp(2.0 * d)));
                    // A class of no probability adds nothing, even where its logit is −∞.
                    let dot = sum_of([l], |[l]| (l - max).max(-1e4) * exp(l - max));
                    let all = own + others;
                    y[0] = l[t] - max - all.ln();
                    y[1] = (others * others + square) / (all * all);
                    y[2] = all.ln() - dot / all;
                }
            },
        );
    });
    y
}
