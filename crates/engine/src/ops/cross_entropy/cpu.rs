//! Cross-entropy on the CPU.

use super::{CHUNK_STEP, Chunk, Linear, Objective, STATE, STATS, chunks};
use crate::cpu::math::{dot, exp, max, simd, sum};
use crate::cpu::matmul::{matmul, n, t};
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::error::Result;
use crate::tape::{Grads, Var, add_or_copy};
use crate::tensor::Tensor;

/// Logits of up to this many bytes are kept for the backward pass; memory is cheaper here than a product.
pub(super) const KEEP: usize = 256 << 20;

/// Cost of one logit in the units of [`par`]: an exponential and a few sums.
const LOGIT_WORK: usize = 16;

/// Classes per chunk: a chunk's logits should stay in the second-level caches between the product and what reads it.
pub(super) fn chunk(rows: usize) -> usize {
    const FLOATS: usize = 1 << 19;
    (FLOATS / rows.max(1) / CHUNK_STEP * CHUNK_STEP).clamp(512, 8192)
}

/// Subtracting −∞ from −∞ would give NaN; any finite number in its place gives exp = 0.
#[inline(always)]
fn base_of(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}

impl Objective {
    /// The soft targets of `row` in `c`.
    #[inline(always)]
    fn soft_row(&self, row: usize, c: Chunk) -> Option<&[f32]> {
        self.soft.as_ref().map(|q| &q.f32s()[row * self.classes + c.first..][..c.count])
    }

    /// The position in `c` of the class of `row`, if it has one there.
    #[inline(always)]
    fn hard_at(&self, row: usize, c: Chunk) -> Option<usize> {
        let at = (self.hard.as_ref()?.u32s()[row] as usize).checked_sub(c.first)?;
        (at < c.count).then_some(at)
    }

    fn weight(&self, row: usize) -> f32 {
        self.weights.as_ref().map_or(1.0, |w| w.f32s()[row])
    }
}

/// One vector register of logits.
const LANES: usize = 16;

/// Σ exp(l − base). The last few elements fill a vector of their own: one by one they would take longer than the rest.
#[inline(always)]
fn sum_exp(l: &[f32], base: f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (full, rest) = l.as_chunks::<LANES>();
    for v in full {
        acc.iter_mut().zip(v).for_each(|(a, v)| *a += exp(v - base));
    }
    if !rest.is_empty() {
        let mut last = [f32::NEG_INFINITY; LANES];
        last[..rest.len()].copy_from_slice(rest);
        acc.iter_mut().zip(last).for_each(|(a, v)| *a += exp(v - base));
    }
    acc.iter().sum()
}

/// l = by·exp(l − base) − less, the last few elements as in [`sum_exp`].
#[inline(always)]
fn exp_in_place(l: &mut [f32], base: f32, by: f32, less: f32) {
    let (full, rest) = l.as_chunks_mut::<LANES>();
    for v in full.as_flattened_mut() {
        *v = by.mul_add(exp(*v - base), -less);
    }
    if !rest.is_empty() {
        let mut last = [0.0; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for v in &mut last {
            *v = by.mul_add(exp(*v - base), -less);
        }
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Take the logits `l` of `row` in `c` into the row's running numbers.
#[inline(always)]
fn update(o: &Objective, row: usize, c: Chunk, l: &[f32], s: &mut [f32]) {
    let before = s[0];
    let largest = before.max(max(l));
    let base = base_of(largest);
    s[0] = largest;
    s[1] = s[1] * exp(before - base) + sum_exp(l, base);
    if let Some(q) = o.soft_row(row, c) {
        s[2] += dot(q, l);
        s[4] += sum(q);
    } else if let Some(at) = o.hard_at(row, c) {
        s[2] = l[at];
        s[4] = 1.0;
    }
    if o.smoothing > 0.0 {
        s[3] += sum(l);
    }
}

fn start(rows: usize) -> Buf {
    let mut state = Buf::zeros(rows * STATE);
    state.iter_mut().step_by(STATE).for_each(|s| *s = f32::NEG_INFINITY);
    state
}

/// Losses and what the gradient needs, from the running numbers.
fn finish(o: &Objective, state: &[f32]) -> (Tensor, Tensor) {
    let (mut y, mut stats) = (Buf::scratch(o.rows), Buf::scratch(o.rows * STATS));
    for (row, s) in state.chunks_exact(STATE).enumerate() {
        let [largest, sum, dot, total, mass] = [s[0], s[1], s[2], s[3], s[4]];
        let ln = sum.ln();
        // Grouped so that a common offset of the logits cancels before the logarithm is added.
        let mut loss = mass.mul_add(ln, mass * largest - dot);
        if o.smoothing > 0.0 {
            let even = mass * (ln + (largest - total / o.classes as f32));
            loss = (1.0 - o.smoothing) * loss + o.smoothing * even;
        }
        y[row] = o.weight(row) * loss;
        stats[row * STATS..][..STATS].copy_from_slice(&[largest, 1.0 / sum, mass]);
    }
    (Tensor::from_buf(y, &[o.rows]), Tensor::from_buf(stats, &[o.rows, STATS]))
}

/// Turn the logits `l` of `row` in `c` into g·w·(Σq·p − q′).
#[inline(always)]
fn differentiate(o: &Objective, row: usize, c: Chunk, stats: &[f32], dy: f32, l: &mut [f32]) {
    let (base, inverse, mass) = (base_of(stats[0]), stats[1], stats[2]);
    let g = dy * o.weight(row);
    let by = g * mass * inverse;
    let even = g * mass * o.smoothing / o.classes as f32;
    let sharp = g * (1.0 - o.smoothing);
    exp_in_place(l, base, by, even);
    if let Some(q) = o.soft_row(row, c) {
        l.iter_mut().zip(q).for_each(|(l, q)| *l -= sharp * q);
    } else if let Some(at) = o.hard_at(row, c) {
        l[at] -= sharp;
    }
}

/// (losses, stats) of logits (rows, V).
pub(super) fn forward(logits: &[f32], o: &Objective) -> (Tensor, Tensor) {
    let mut state = start(o.rows);
    let all = Chunk { first: 0, count: o.classes };
    par::rows(&mut state, STATE, o.classes * LOGIT_WORK, |first, state| {
        simd(
            #[inline(always)]
            || {
                for (r, s) in state.chunks_exact_mut(STATE).enumerate() {
                    update(o, first + r, all, &logits[(first + r) * o.classes..][..o.classes], s);
                }
            },
        );
    });
    finish(o, &state)
}

/// The gradient of the logits (rows, V).
pub(super) fn gradient(logits: &[f32], o: &Objective, stats: &[f32], dy: &[f32]) -> Buf {
    let mut out = Buf::scratch(logits.len());
    let (v, all) = (o.classes, Chunk { first: 0, count: o.classes });
    par::rows(&mut out, v, v * LOGIT_WORK, |first, out| {
        simd(
            #[inline(always)]
            || {
                for (r, l) in out.chunks_exact_mut(v).enumerate() {
                    let row = first + r;
                    l.copy_from_slice(&logits[row * v..][..v]);
                    differentiate(o, row, all, &stats[row * STATS..][..STATS], dy[row], l);
                }
            },
        );
    });
    out
}

type Head<'a> = (&'a Var, &'a Var, Option<&'a Var>);

/// x·Wᵀ of one chunk, without the bias.
fn product((x, weight, _): Head, rows: usize, c: Chunk) -> Buf {
    let d = x.value().width();
    let mut l = Buf::scratch(rows * c.count);
    let w = &weight.value().f32s()[c.first * d..];
    matmul((rows, c.count, d), 1.0, n(x.value().f32s(), d), t(w, d), false, &mut l, c.count, false);
    l
}

fn bias_of<'a>((_, _, bias): Head<'a>, c: Chunk) -> Option<&'a [f32]> {
    bias.map(|b| &b.value().f32s()[c.first..][..c.count])
}

#[inline(always)]
fn add_bias(l: &mut [f32], bias: Option<&[f32]>) {
    if let Some(b) = bias {
        l.iter_mut().zip(b).for_each(|(l, b)| *l += b);
    }
}

/// (losses, stats, logits by chunk if `keep`).
pub(super) fn linear_forward(head: Head, o: &Objective, size: usize, keep: bool) -> (Tensor, Tensor, Vec<Buf>) {
    let mut state = start(o.rows);
    let mut kept = Vec::new();
    for c in chunks(o.classes, size) {
        let mut l = product(head, o.rows, c);
        let bias = bias_of(head, c);
        par::rows2(&mut l, c.count, &mut state, STATE, c.count * LOGIT_WORK, |first, l, state| {
            simd(
                #[inline(always)]
                || {
                    for (r, (l, s)) in l.chunks_exact_mut(c.count).zip(state.chunks_exact_mut(STATE)).enumerate() {
                        add_bias(l, bias);
                        update(o, first + r, c, l, s);
                    }
                },
            );
        });
        if keep {
            kept.push(l);
        }
    }
    let (y, stats) = finish(o, &state);
    (y, stats, kept)
}

pub(super) fn linear_backward(op: &Linear<Buf>, dy: &[f32], grads: &mut Grads) -> Result<()> {
    let Linear { x, weight, bias, target: o, stats, chunk, logits } = op;
    let head = (x, weight, bias.as_ref());
    let (xs, w, stats, d) = (x.value().f32s(), weight.value().f32s(), stats.f32s(), x.value().width());
    let mut kept = logits.take().into_iter();
    let mut dx = x.needs_grad().then(|| Buf::scratch(o.rows * d));
    let mut db = bias.as_ref().filter(|b| b.needs_grad()).map(|_| Buf::scratch(o.classes));
    // All chunks in one pass, since all of dW has one writer.
    let mut each_chunk = |mut dw: Option<(&mut [f32], bool)>| {
        for c in chunks(o.classes, *chunk) {
            let ready = kept.next();
            let bias = if ready.is_some() { None } else { bias_of(head, c) };
            let mut l = ready.unwrap_or_else(|| product(head, o.rows, c));
            par::rows(&mut l, c.count, c.count * LOGIT_WORK, |first, l| {
                simd(
                    #[inline(always)]
                    || {
                        for (r, l) in l.chunks_exact_mut(c.count).enumerate() {
                            let row = first + r;
                            add_bias(l, bias);
                            differentiate(o, row, c, &stats[row * STATS..][..STATS], dy[row], l);
                        }
                    },
                );
            });
            let dl = &l[..];
            if let Some(dx) = &mut dx {
                let w = n(&w[c.first * d..], d);
                matmul((o.rows, d, c.count), 1.0, n(dl, c.count), w, c.first > 0, dx, d, false);
            }
            if let Some((dw, acc)) = &mut dw {
                let dw = &mut dw[c.first * d..][..c.count * d];
                matmul((c.count, d, o.rows), 1.0, t(dl, c.count), n(xs, d), *acc, dw, d, false);
            }
            if let Some(db) = &mut db {
                db[c.first..][..c.count].copy_from_slice(&column_sums(dl, o.rows, c.count));
            }
        }
    };
    if weight.needs_grad() {
        grads.write_cpu(weight, |dw, acc| each_chunk(Some((dw, acc))))?;
    } else {
        each_chunk(None);
    }
    if let Some(dx) = dx {
        grads.give(x, Tensor::from_buf(dx, x.shape()))?;
    }
    if let (Some(bias), Some(db)) = (bias, db) {
        grads.write_cpu(bias, |dst, acc| add_or_copy(dst, &db, acc))?;
    }
    Ok(())
}

fn column_sums(x: &[f32], rows: usize, width: usize) -> Vec<f32> {
    par::sum_vectors(rows, width, width, |range, sum| {
        simd(
            #[inline(always)]
            || {
                for row in range {
                    let x = &x[row * width..][..width];
                    sum.iter_mut().zip(x).for_each(|(s, x)| *s += x);
                }
            },
        );
    })
}
