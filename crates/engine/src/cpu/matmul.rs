//! Matrix products on row-major slices, by the `gemm` crate.

use super::par;

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_sum_over_k(m in 1usize..40, nn in 1usize..40, k in 1usize..40, ta: bool, tb: bool, acc: bool) {
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
}
