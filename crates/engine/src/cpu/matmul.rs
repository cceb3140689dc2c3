//! Matrix products on row-major slices: small ones directly, large ones by the `gemm` crate.

use std::cell::Cell;

use pulp::Arch;
use rayon::prelude::*;

use super::direct::{Rows, TILE_ROWS};
use super::par;
use super::pool::Buf;

/// Up to this many rows, an operand is not packed: the library's time over ours is 5 to 12 at 4 rows, 1.2 at 384, 1 at 1400.
const DIRECT_ROWS: usize = 512;
/// Below this many multiplications (about 35 µs) a second thread is not worth waking.
const SHARED_WORK: usize = 1 << 21;
/// Up to this many summands, the columns that a tile reads stay in cache.
const DIRECT_DEPTH: usize = 1024;

/// How an operand is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// As it is used.
    N,
    /// As its transpose.
    T,
}

/// A matrix inside a slice: `data[row * stride + col]` as stored.
#[derive(Clone, Copy)]
pub(crate) struct Mat<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub op: Op,
}

/// Stored as used, rows of `stride`.
pub(crate) fn n(data: &[f32], stride: usize) -> Mat<'_> {
    Mat { data, stride, op: Op::N }
}

/// Stored transposed, rows of `stride`.
pub(crate) fn t(data: &[f32], stride: usize) -> Mat<'_> {
    Mat { data, stride, op: Op::T }
}

fn needed(rows: usize, cols: usize, m: &Mat) -> usize {
    let (r, c) = if m.op == Op::N { (rows, cols) } else { (cols, rows) };
    if r == 0 || c == 0 { 0 } else { (r - 1) * m.stride + c }
}

/// `c[m×n] = alpha · a[m×k] · b[k×n] (+ c if acc)`; rows of `c` lie `c_stride` apart. Uses all threads for large products
/// unless `serial` (a caller that already runs one task per thread).
pub(crate) fn matmul(
    dims: (usize, usize, usize),
    alpha: f32,
    a: Mat,
    b: Mat,
    acc: bool,
    c: &mut [f32],
    c_stride: usize,
    serial: bool,
) {
    let (m, n, k) = dims;
    if m == 0 || n == 0 {
        return;
    }
    assert!(a.data.len() >= needed(m, k, &a), "matmul: left operand too short");
    assert!(b.data.len() >= needed(k, n, &b), "matmul: right operand too short");
    assert!(c.len() >= (m - 1) * c_stride + n, "matmul: output too short");
    // A serial product is a piece of an op whose pieces depend on nothing but an example's own shape.
    if if serial { is_small(m, k) } else { is_direct(m, k) } {
        return direct(dims, alpha, a, b, acc, c, c_stride, serial);
    }
    let strides = |x: &Mat| match x.op {
        Op::N => (1, x.stride as isize),
        Op::T => (x.stride as isize, 1),
    };
    let ((a_cs, a_rs), (b_cs, b_rs)) = (strides(&a), strides(&b));
    let par = if serial || par::is_tiny(m * n * k / 8) {
        gemm::Parallelism::None
    } else {
        gemm::Parallelism::Rayon(rayon::current_num_threads())
    };
    // SAFETY: the asserts above show that every element the strides reach lies inside its slice, and `c` is borrowed
    // mutably, so it overlaps neither operand.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            c_stride as isize,
            acc,
            a.data.as_ptr(),
            a_cs,
            a_rs,
            b.data.as_ptr(),
            b_cs,
            b_rs,
            1.0,
            alpha,
            false,
            false,
            false,
            par,
        );
    }
}

fn direct(
    dims: (usize, usize, usize),
    alpha: f32,
    a: Mat,
    b: Mat,
    acc: bool,
    c: &mut [f32],
    c_stride: usize,
    serial: bool,
) {
    let (m, n, k) = dims;
    let transposed;
    let (b, b_stride) = match b.op {
        Op::N => (b.data, b.stride),
        Op::T => {
            let mut to = Buf::scratch(n * k);
            transpose(b.data, b.stride, n, k, &mut to);
            transposed = to;
            (&transposed[..], n)
        }
    };
    let a_strides = if a.op == Op::N { (a.stride, 1) } else { (1, a.stride) };
    let part = |first: usize, count: usize, c: &mut [f32]| {
        let a = &a.data[first * a_strides.0..];
        Arch::new().dispatch(Rows { dims: (count, n, k), alpha, a, a_strides, b, b_stride, acc, c, c_stride });
    };
    if serial || m * n * k < SHARED_WORK || par::is_tiny(m * n * k) {
        return part(0, m, c);
    }
    let rows = m.div_ceil(rayon::current_num_threads()).next_multiple_of(TILE_ROWS);
    let parts = c[..(m - 1) * c_stride + n].par_chunks_mut(rows * c_stride).enumerate();
    parts.for_each(|(i, c)| part(i * rows, rows.min(m - i * rows), c));
}

/// Whether a product of `m` rows and `k` summands reads its right operand where it lies, as it is stored: then a weight that is
/// used often is better kept transposed.
pub(crate) fn is_direct(m: usize, k: usize) -> bool {
    is_small(m, k) || BATCH_INVARIANT.get()
}

fn is_small(m: usize, k: usize) -> bool {
    m <= DIRECT_ROWS && k <= DIRECT_DEPTH
}

thread_local! {
    static BATCH_INVARIANT: Cell<bool> = const { Cell::new(false) };
}

/// Run `f` so that no product of this thread depends on the rows beside each row: an example gets the same bits alone and in any
/// batch, on the CPU. Large products, which a library would compute by blocks that depend on their size, take somewhat longer.
///
/// ```
/// use tweedie_engine::cpu::batch_invariant;
/// use tweedie_engine::ops::linear::linear;
/// use tweedie_engine::{Device, Tape, Tensor};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let tape = Tape::inference();
/// let value = |i: usize| (i * 7919 % 101) as f32 / 53.0 - 0.9;
/// let make = |rows: usize| Tensor::from_f32(&Device::Cpu, &[rows, 1200], (0..rows * 1200).map(value).collect());
/// let (w, many, one) = (tape.constant(make(40)?), tape.constant(make(600)?), tape.constant(make(1)?));
/// let product = |x| batch_invariant(|| linear(&tape, x, &w, None, None, None));
/// assert_eq!(product(&many)?.value().row(0)?.to_vec()?, product(&one)?.value().to_vec()?);
/// # Ok(())
/// # }
/// ```
pub fn batch_invariant<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            BATCH_INVARIANT.set(self.0);
        }
    }
    let _restore = Restore(BATCH_INVARIANT.replace(true));
    f()
}

/// `to[cols×rows]` = the transpose of `from[rows×cols]`, whose rows lie `stride` apart.
pub(crate) fn transpose(from: &[f32], stride: usize, rows: usize, cols: usize, to: &mut [f32]) {
    const BLOCK: usize = 16; // a cache line, so that each is written once
    for r in (0..rows).step_by(BLOCK) {
        let count = BLOCK.min(rows - r);
        for c in 0..cols {
            let to = &mut to[c * rows + r..][..count];
            for (l, to) in to.iter_mut().enumerate() {
                *to = from[(r + l) * stride + c];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_sum_over_k(m in 1usize..40, nn in 1usize..150, k in 1usize..40, ta: bool, tb: bool, acc: bool) {
            let val = |i: usize| ((i * 7919 % 101) as f32 - 50.0) / 50.0;
            let a: Vec<f32> = (0..m * k).map(val).collect();
            let b: Vec<f32> = (0..k * nn).map(|i| val(i + 13)).collect();
            let mut c: Vec<f32> = (0..m * nn).map(|i| val(i + 29)).collect();
            let want: Vec<f32> = (0..m * nn).map(|i| {
                let (r, q) = (i / nn, i % nn);
                let s: f32 = (0..k).map(|j| {
                    let x = if ta { a[j * m + r] } else { a[r * k + j] };
                    let y = if tb { b[q * k + j] } else { b[j * nn + q] };
                    x * y
                }).sum();
                0.5 * s + if acc { c[i] } else { 0.0 }
            }).collect();
            let ma = if ta { t(&a, m) } else { n(&a, k) };
            let mb = if tb { t(&b, k) } else { n(&b, nn) };
            matmul((m, nn, k), 0.5, ma, mb, acc, &mut c, nn, false);
            for (g, w) in c.iter().zip(&want) {
                prop_assert!((g - w).abs() < 1e-5 * (k as f32), "{g} {w}");
            }
        }
    }

    /// One image classified alone and in a batch gives the same bits wherever products are direct.
    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let val = |i: usize| ((i * 7919 % 101) as f32 - 50.0) / 53.0;
        let (m, nn, k) = (311, 150, 90); // enough work for a second thread
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..m * k).map(val).collect(), (0..k * nn).map(|i| val(i + 7)).collect());
        let mut all = vec![0.0; m * nn];
        matmul((m, nn, k), 1.0, n(&a, k), n(&b, nn), false, &mut all, nn, false);
        for r in [0, 5, 100, 310] {
            let mut one = vec![0.0; nn];
            matmul((1, nn, k), 1.0, n(&a[r * k..], k), n(&b, nn), false, &mut one, nn, false);
            assert_eq!(one, all[r * nn..][..nn]);
        }
    }
}
