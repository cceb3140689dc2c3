//! Muon's step on the CPU: a matrix is a task.

use rayon::prelude::*;

use super::{EPS, Muon, POLYNOMIAL, ROUNDS, SIZE, Step};
use crate::cpu::math::{simd, sum_of};
use crate::cpu::matmul::{matmul, n, t};
use crate::cpu::pool::Buf;

/// Over the flat buffers of weights and gradient, and the momentum from the first matrix on.
pub(in crate::optim) fn step<'a>(muon: &Muon, w: &'a mut [f32], mut m: &'a mut [f32], g: &[f32], step: Step) {
    let mut tasks = Vec::with_capacity(muon.matrices.len());
    let mut done = muon.first();
    let mut w = &mut w[done..];
    for at in &muon.matrices {
        let len = at.rows * at.cols;
        let [weights, momentum] = [&mut w, &mut m].map(|all| {
            let (part, rest) = std::mem::take(all)[at.start - done..].split_at_mut(len);
            *all = rest;
            part
        });
        tasks.push((at, weights, momentum, &g[at.start..][..len]));
        done = at.start + len;
    }
    tasks.into_par_iter().with_max_len(1).for_each(|(at, w, m, g)| {
        let mut x = Buf::scratch(w.len());
        direction(muon.momentum, step.scale, m, g, &mut x);
        orthogonalise(&mut x, at.rows, at.cols);
        let shrink = 1.0 - step.lr * step.decay;
        let rate = step.lr * SIZE * (at.rows.max(at.cols) as f32).sqrt();
        simd(
            #[inline(always)]
            || w.iter_mut().zip(&x[..]).for_each(|(w, x)| *w = w.mul_add(shrink, -rate * x)),
        );
    });
}

/// m ← μ·m + g, and where it will be one step on (Nesterov): x = g + μ·m.
fn direction(mu: f32, scale: f32, m: &mut [f32], g: &[f32], x: &mut [f32]) {
    simd(
        #[inline(always)]
        || {
            for ((m, g), x) in m.iter_mut().zip(g).zip(x) {
                let g = g * scale;
                *m = mu.mul_add(*m, g);
                *x = mu.mul_add(*m, g);
            }
        },
    );
}

/// The singular values of `x` to about one, by Newton-Schulz iterations over its shorter side.
pub(super) fn orthogonalise(x: &mut Buf, rows: usize, cols: usize) {
    let (a, b, c) = POLYNOMIAL;
    let factor = 1.0
        / (EPS
            + simd(
                #[inline(always)]
                || sum_of([&x[..]], |[x]| x * x),
            )
            .sqrt());
    x.iter_mut().for_each(|x| *x *= factor);
    let side = rows.min(cols);
    let (mut gram, mut square, mut next) =
        (Buf::scratch(side * side), Buf::scratch(side * side), Buf::scratch(rows * cols));
    for _ in 0..ROUNDS {
        let dims = (side, side, rows.max(cols));
        match rows <= cols {
            true => matmul(dims, 1.0, n(x, cols), t(x, cols), false, &mut gram, side, true),
            false => matmul(dims, 1.0, t(x, cols), n(x, cols), false, &mut gram, side, true),
        }
        matmul((side, side, side), 1.0, n(&gram, side), n(&gram, side), false, &mut square, side, true);
        simd(
            #[inline(always)]
            || square.iter_mut().zip(&gram[..]).for_each(|(s, g)| *s = c.mul_add(*s, b * g)),
        );
        square.iter_mut().step_by(side + 1).for_each(|s| *s += a);
        let dims = (rows, cols, side);
        match rows <= cols {
            true => matmul(dims, 1.0, n(&square, side), n(x, cols), false, &mut next, cols, true),
            false => matmul(dims, 1.0, n(x, cols), n(&square, side), false, &mut next, cols, true),
        }
        std::mem::swap(x, &mut next);
    }
}
