//! Token sequences on the CPU. An example's tokens lie together, so that most ops move strips of whole examples.

use std::ops::Range;

use crate::cpu::math::simd;
use crate::cpu::par;

#[inline(always)]
fn add(dst: &mut [f32], src: &[f32]) {
    simd(
        #[inline(always)]
        || dst.iter_mut().zip(src).for_each(|(d, s)| *d += s),
    );
}

fn put(dst: &mut [f32], src: &[f32], acc: bool) {
    if acc { add(dst, src) } else { dst.copy_from_slice(src) }
}

/// Each part with whether it has its own rows for every example; y (batch, …).
pub(super) fn concat(parts: &[(&[f32], bool)], batch: usize, y: &mut [f32]) {
    let stride = y.len() / batch;
    par::rows(y, stride, stride, |first, y| {
        for (r, mut y) in y.chunks_exact_mut(stride).enumerate() {
            for &(part, own) in parts {
                let n = if own { part.len() / batch } else { part.len() };
                let (here, rest) = y.split_at_mut(n);
                here.copy_from_slice(if own { &part[(first + r) * n..][..n] } else { part });
                y = rest;
            }
        }
    });
}

/// dst (examples, len) = `len` values from `at` of each example of src (examples, stride).
pub(super) fn take_strips(src: &[f32], stride: usize, at: usize, len: usize, dst: &mut [f32], acc: bool) {
    par::rows(dst, len, len, |first, dst| {
        for (r, dst) in dst.chunks_exact_mut(len).enumerate() {
            put(dst, &src[(first + r) * stride + at..][..len], acc);
        }
    });
}

/// The reverse: src (examples, len) goes to `at` of each example of dst (examples, stride), which is 0 elsewhere.
pub(super) fn put_strips(src: &[f32], len: usize, dst: &mut [f32], stride: usize, at: usize, acc: bool) {
    par::rows(dst, stride, stride, |first, dst| {
        for (r, dst) in dst.chunks_exact_mut(stride).enumerate() {
            if !acc {
                dst[..at].fill(0.0);
                dst[at + len..].fill(0.0);
            }
            put(&mut dst[at..at + len], &src[(first + r) * len..][..len], acc);
        }
    });
}

/// Sum over the (masked) examples of the strips that [`take_strips`] takes.
pub(super) fn sum_examples(src: &[f32], stride: usize, at: usize, len: usize, mask: Option<&[u32]>) -> Vec<f32> {
    par::sum_vectors(src.len() / stride, len, len, |rows, sum| {
        for r in rows {
            if mask.is_none_or(|m| m[r] != 0) {
                add(sum, &src[r * stride + at..][..len]);
            }
        }
    })
}

pub(super) fn repeat(x: &[f32], k: usize, inner: usize, y: &mut [f32]) {
    par::rows(y, inner, inner, |first, y| {
        for (r, y) in y.chunks_exact_mut(inner).enumerate() {
            y.copy_from_slice(&x[(first + r) / k * inner..][..inner]);
        }
    });
}

pub(super) fn repeat_backward(dy: &[f32], k: usize, inner: usize, dx: &mut [f32], acc: bool) {
    par::rows(dx, inner, k * inner, |first, dx| {
        for (r, dx) in dx.chunks_exact_mut(inner).enumerate() {
            for j in 0..k {
                put(dx, &dy[((first + r) * k + j) * inner..][..inner], acc || j > 0);
            }
        }
    });
}

/// x (examples, n, d), y (examples, d).
pub(super) fn mean(x: &[f32], n: usize, d: usize, range: &Range<usize>, y: &mut [f32]) {
    let by = 1.0 / range.len() as f32;
    par::rows(y, d, range.len() * d, |first, y| {
        for (r, y) in y.chunks_exact_mut(d).enumerate() {
            y.fill(0.0);
            for t in range.clone() {
                add(y, &x[((first + r) * n + t) * d..][..d]);
            }
            y.iter_mut().for_each(|y| *y *= by);
        }
    });
}

pub(super) fn mean_backward(dy: &[f32], n: usize, d: usize, range: &Range<usize>, dx: &mut [f32], acc: bool) {
    let by = 1.0 / range.len() as f32;
    par::rows(dx, d, d, |first, dx| {
        for (r, dx) in dx.chunks_exact_mut(d).enumerate() {
            let (b, t) = ((first + r) / n, (first + r) % n);
            let dy = &dy[b * d..][..d];
            match (range.contains(&t), acc) {
                (true, true) => dx.iter_mut().zip(dy).for_each(|(x, y)| *x += by * y),
                (true, false) => dx.iter_mut().zip(dy).for_each(|(x, y)| *x = by * y),
                (false, true) => {}
                (false, false) => dx.fill(0.0),
            }
        }
    });
}

pub(super) fn select(x: &[f32], other: &[f32], mask: &[u32], y: &mut [f32]) {
    let n = other.len();
    par::rows(y, n, n, |first, y| {
        for (r, y) in y.chunks_exact_mut(n).enumerate() {
            y.copy_from_slice(if mask[first + r] != 0 { other } else { &x[(first + r) * n..][..n] });
        }
    });
}

pub(super) fn select_backward(dy: &[f32], mask: &[u32], n: usize, dx: &mut [f32], acc: bool) {
    par::rows(dx, n, n, |first, dx| {
        for (r, dx) in dx.chunks_exact_mut(n).enumerate() {
            match mask[first + r] {
                0 => put(dx, &dy[(first + r) * n..][..n], acc),
                _ if acc => {}
                _ => dx.fill(0.0),
            }
        }
    });
}

/// y (ids, d) = rows of the table.
pub(super) fn embed(table: &[f32], ids: &[u32], d: usize, y: &mut [f32]) {
    par::rows(y, d, d, |first, y| {
        for (r, y) in y.chunks_exact_mut(d).enumerate() {
            y.copy_from_slice(&table[ids[first + r] as usize * d..][..d]);
        }
    });
}

/// Each task owns some rows of the table and loops over all ids: every row is summed in the order of the ids.
pub(super) fn embed_backward(dy: &[f32], ids: &[u32], d: usize, dtable: &mut [f32], acc: bool) {
    let work = d + ids.len() * d / (dtable.len() / d).max(1);
    par::rows(dtable, d, work, |first, mine| {
        if !acc {
            mine.fill(0.0);
        }
        let rows = mine.len() / d;
        for (i, &id) in ids.iter().enumerate() {
            let row = (id as usize).wrapping_sub(first);
            if row < rows {
                add(&mut mine[row * d..][..d], &dy[i * d..][..d]);
            }
        }
    });
}
