//! Products that read their operands where they lie. A library packs both first, which a product of few rows does not repay: of
//! four rows it is four fifths of the time. Each element is one sum in a fixed order, whatever rows and columns surround it, so a
//! result depends neither on the number of threads nor on the batch it was computed in.

use pulp::{Simd, WithSimd};

/// Rows of a tile: with four vectors of columns they fill the 32 registers of AVX-512.
pub(super) const TILE_ROWS: usize = 6;

/// `c[m×n] = alpha · a[m×k] · b[k×n] (+ c if acc)`, `b` as stored in rows. Element (i, q) of `a` lies at
/// `i·a_strides.0 + q·a_strides.1`.
pub(super) struct Rows<'a> {
    pub dims: (usize, usize, usize),
    pub alpha: f32,
    pub a: &'a [f32],
    pub a_strides: (usize, usize),
    pub b: &'a [f32],
    pub b_stride: usize,
    pub acc: bool,
    pub c: &'a mut [f32],
    pub c_stride: usize,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (n, lanes, p) = (self.dims.1, S::F32_LANES, &mut self);
        let mut j = 0;
        if S::REGISTER_COUNT >= 32 {
            while j + 4 * lanes <= n {
                p.columns::<S, 6, 4>(simd, j);
                j += 4 * lanes;
            }
        }
        while j + 2 * lanes <= n {
            p.columns::<S, 6, 2>(simd, j);
            j += 2 * lanes;
        }
        while j + lanes <= n {
            p.columns::<S, 6, 1>(simd, j);
            j += lanes;
        }
        if j < n {
            for i in 0..p.dims.0 {
                p.rest(simd, i, j);
            }
        }
    }
}

impl Rows<'_> {
    /// NR vectors of columns from column `j`, MR rows at a time.
    #[inline(always)]
    fn columns<S: Simd, const MR: usize, const NR: usize>(&mut self, simd: S, j: usize) {
        let m = self.dims.0;
        let mut i = 0;
        while i + MR <= m {
            self.tile::<S, MR, NR>(simd, i, j);
            i += MR;
        }
        match m - i {
            1 => self.tile::<S, 1, NR>(simd, i, j),
            2 => self.tile::<S, 2, NR>(simd, i, j),
            3 => self.tile::<S, 3, NR>(simd, i, j),
            4 => self.tile::<S, 4, NR>(simd, i, j),
            5 => self.tile::<S, 5, NR>(simd, i, j),
            _ => {}
        }
    }

    #[inline(always)]
    fn tile<S: Simd, const MR: usize, const NR: usize>(&mut self, simd: S, i: usize, j: usize) {
        let (k, width) = (self.dims.2, NR * S::F32_LANES);
        let (rs, cs) = self.a_strides;
        let a = &self.a[i * rs..];
        let b = &self.b[j..];
        assert!(k == 0 || ((MR - 1) * rs + (k - 1) * cs < a.len() && (k - 1) * self.b_stride + width <= b.len()));
        let mut sums = [[simd.splat_f32s(0.0); NR]; MR];
        for q in 0..k {
            // SAFETY: q < k and r < MR, so by the assert above all indices lie inside. A check for each of them takes longer
            // than the arithmetic.
            let (b, a) = unsafe {
                let b = b.get_unchecked(q * self.b_stride..q * self.b_stride + width);
                (b, std::array::from_fn::<f32, MR, _>(|r| *a.get_unchecked(r * rs + q * cs)))
            };
            let b = S::as_simd_f32s(b).0;
            let b: [S::f32s; NR] = std::array::from_fn(|c| b[c]);
            for r in 0..MR {
                let a = simd.splat_f32s(a[r]);
                for c in 0..NR {
                    sums[r][c] = simd.mul_add_f32s(a, b[c], sums[r][c]);
                }
            }
        }
        let alpha = simd.splat_f32s(self.alpha);
        for (r, sums) in sums.iter().enumerate() {
            let out = S::as_mut_simd_f32s(&mut self.c[(i + r) * self.c_stride + j..][..width]).0;
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = if self.acc { simd.mul_add_f32s(alpha, *sum, *out) } else { simd.mul_f32s(alpha, *sum) };
            }
        }
    }

    /// Row `i` of the last columns, which do not fill a vector.
    #[inline(always)]
    fn rest<S: Simd>(&mut self, simd: S, i: usize, j: usize) {
        let (_, n, k) = self.dims;
        let (rs, cs) = self.a_strides;
        let mut sum = simd.splat_f32s(0.0);
        for q in 0..k {
            let a = simd.splat_f32s(self.a[i * rs + q * cs]);
            sum = simd.mul_add_f32s(a, simd.partial_load_f32s(&self.b[q * self.b_stride + j..][..n - j]), sum);
        }
        let (alpha, out) = (simd.splat_f32s(self.alpha), &mut self.c[i * self.c_stride + j..][..n - j]);
        let value = match self.acc {
            true => simd.mul_add_f32s(alpha, sum, simd.partial_load_f32s(out)),
            false => simd.mul_f32s(alpha, sum),
        };
        simd.partial_store_f32s(out, value);
    }
}
