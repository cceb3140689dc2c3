//! Work splitting. Tiny work runs on the calling thread: waking a pool thread costs more than it brings.

use rayon::prelude::*;

/// Work below this many elementary operations is not worth a second thread (about 20 µs of one core).
const MIN_WORK: usize = 1 << 16;

/// Rows that one task should hold so that it does at least [`MIN_WORK`] when a row costs `row_work`.
fn rows_per_task(rows: usize, row_work: usize) -> usize {
    let threads = rayon::current_num_threads();
    let least = MIN_WORK.div_ceil(row_work.max(1));
    rows.div_ceil(threads * 4).max(least).max(1)
}

/// True where `work` elementary operations should run on one thread.
pub(crate) fn is_tiny(work: usize) -> bool {
    work < MIN_WORK || rayon::current_num_threads() == 1
}

/// Split `out` (rows of `width`) into tasks and run `f(first_row, rows)` on each.
pub(crate) fn rows(out: &mut [f32], width: usize, row_work: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    if out.is_empty() {
        return;
    }
    let n = out.len() / width;
    if is_tiny(n * row_work) {
        return f(0, out);
    }
    let per = rows_per_task(n, row_work);
    out.par_chunks_mut(per * width).enumerate().for_each(|(i, c)| f(i * per, c));
}

/// As [`rows`], over two outputs of the same number of rows.
pub(crate) fn rows2(
    a: &mut [f32],
    a_width: usize,
    b: &mut [f32],
    b_width: usize,
    row_work: usize,
    f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    if a.is_empty() {
        return;
    }
    let n = a.len() / a_width;
    if is_tiny(n * row_work) {
        return f(0, a, b);
    }
    let per = rows_per_task(n, row_work);
    a.par_chunks_mut(per * a_width)
        .zip(b.par_chunks_mut(per * b_width))
        .enumerate()
        .for_each(|(i, (x, y))| f(i * per, x, y));
}

/// Add up vectors of length `width` computed over fixed blocks of `0..n`: `f(range, sum)` adds its range to `sum`.
/// The blocks do not depend on the number of threads, so neither do the bits of the result.
pub(crate) fn sum_vectors(
    n: usize,
    width: usize,
    row_work: usize,
    f: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) -> Vec<f32> {
    let blocks = (n * row_work).div_ceil(MIN_WORK * 4).clamp(1, 64).min(n.max(1));
    let per = n.div_ceil(blocks).max(1);
    let part = |i: usize| {
        let mut s = vec![0.0; width];
        f(i * per..((i + 1) * per).min(n), &mut s);
        s
    };
    let blocks = n.div_ceil(per).max(1);
    let parts: Vec<Vec<f32>> = if is_tiny(n * row_work) {
        (0..blocks).map(part).collect()
    } else {
        (0..blocks).into_par_iter().map(part).collect()
    };
    let mut parts = parts.into_iter();
    let mut total = parts.next().unwrap_or_else(|| vec![0.0; width]);
    for p in parts {
        for (t, v) in total.iter_mut().zip(p) {
            *t += v;
        }
    }
    total
}
