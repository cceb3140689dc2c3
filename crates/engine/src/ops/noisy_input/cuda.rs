//! Noisy one-hot input on the GPU, in bands of rows so that the vectors of a large vocabulary never all exist at once.

use super::{Eps, NoisyTokens, SOURCE};
use crate::cuda::{Cuda, Epilogue, Gemm, Mat, args, by_type};
use crate::error::Result;
use crate::ops::elementwise::column_sums_cuda;
use crate::ops::linear::few_rows_cuda;
use crate::tape::{Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

/// Elements of y_t that live at once: 256 MiB in bf16.
const BAND: usize = 1 << 27;
/// Share of the device's memory that may hold them until the backward pass, together with what else is kept there: captions of
/// 30,522 words at batch 128 take 1 GB, and drawing them again 1.6 % of the step. Twice what MLPs may fill, which save less time
/// with a byte and come first where there is an encoder.
const ROOM: usize = 36;

/// Classes in rows of y_t and of the weight, with zeros after the last: products are several times slower on rows that are
/// not aligned, and twice as slow over a number that is not a multiple of 8, as few vocabularies are.
fn stride(vocab: usize) -> usize {
    vocab.next_multiple_of(8)
}

/// Write rows `first..first + rows` of y_t into `y`, whose last axis may be longer: zeros fill it.
pub(super) fn fill(c: &Cuda, from: &NoisyTokens, first: usize, rows: usize, y: &Tensor) -> Result<()> {
    let (n, v) = (from.tokens.shape()[1], from.vocab);
    let name = by_type!(y.dtype(), "noisy_rows");
    let fours = y.width().div_ceil(4);
    let block = fours.next_multiple_of(32).min(256);
    let (key, key_step, step, ids, given) = match &from.eps {
        Eps::Drawn { noise, examples } => (noise.key().ptr(), noise.key_step(), noise.offset(), examples.ptr(), 0),
        Eps::Given(e) => (0, 0, 0, 0, e.ptr()),
    };
    let (levels, sharing) = ((&from.signal, &from.spread), from.sharing());
    let args =
        args![y, &from.tokens, levels.0, levels.1, sharing, given, key, key_step, step, ids, first, n, v, y.width()];
    c.launch(&SOURCE, 0, name, (rows, fours.div_ceil(block), 1), block, 0, args)
}

/// Copy a matrix into one with rows of another width, adding to the target if `acc`; zeros fill wider rows.
fn restride(c: &Cuda, from: &Tensor, to: &Tensor, acc: bool) -> Result<()> {
    let name = by_type!(to.dtype(), "restride");
    let grid = (to.width().div_ceil(256), to.rows(), 1);
    c.launch(&SOURCE, 0, name, grid, 256, 0, args![from, to, from.width(), to.width(), acc])
}

fn band_rows(vocab: usize) -> usize {
    (BAND / vocab.max(1)).max(1)
}

/// The product and, if the tape has room for them, the bands of y_t.
pub(super) fn forward(
    c: &Cuda,
    tape: &Tape,
    from: &NoisyTokens,
    w: &Var,
    b: &Var,
    dtype: DType,
    shape: &[usize],
) -> Result<(Tensor, Vec<Tensor>)> {
    let (rows, v, d) = (from.tokens.len(), from.vocab, w.shape()[0]);
    let (mut w, b) = (w.value_as(dtype)?, b.value_as(dtype)?);
    if stride(v) != v {
        let aligned = Tensor::cuda(c, &[d, stride(v)], dtype)?;
        restride(c, &w, &aligned, false)?;
        w = aligned;
    }
    let out = Tensor::cuda(c, shape, dtype)?;
    let keep = tape.spares(rows * stride(v) * dtype.size(), c.info().memory / ROOM);
    let mut kept = Vec::new();
    for first in (0..rows).step_by(band_rows(v)) {
        let m = band_rows(v).min(rows - first);
        let y = Tensor::cuda(c, &[m, stride(v)], dtype)?;
        fill(c, from, first, m, &y)?;
        if keep {
            kept.push(y.clone());
        }
        let to = out.view(first * d, &[m, d]);
        if stride(v) == v && few_rows_cuda(c, &y, &w, Some(&b), None, &to, None)? {
            continue;
        }
        let (a, b_mat) = (Mat::of(&y), Mat::of(&w).t());
        let product = |epilogue| Gemm { m, n: d, k: stride(v), a, b: b_mat, c: Mat::of(&to), add: None, epilogue };
        if !c.try_gemm(&product(Epilogue::Bias(b.ptr())))? {
            c.gemm(&product(Epilogue::None))?;
            let name = by_type!(dtype, "add_bias");
            let args = args![&to, &b, (m * d) as i64, d, d];
            c.launch(&crate::ops::linear::SOURCE, 0, name, ((m * d).div_ceil(256), 1, 1), 256, 0, args)?;
        }
    }
    Ok((out, kept))
}

/// `bands`: those of the forward pass, if it kept them.
pub(super) fn backward(
    c: &Cuda,
    from: &NoisyTokens,
    bands: &[Tensor],
    w: &Var,
    b: &Var,
    dy: &Tensor,
    grads: &mut Grads,
) -> Result<()> {
    let (rows, v, d, dtype) = (from.tokens.len(), from.vocab, w.shape()[0], dy.dtype());
    if let Some(db) = grads.dst_cuda(b, DType::F32)? {
        column_sums_cuda(c, dy, d, &db)?;
    }
    let Some(dw) = grads.dst_cuda(w, DType::F32)? else { return Ok(()) };
    let aligned = stride(v) == v;
    let sum = if aligned { dw.tensor.clone() } else { Tensor::cuda(c, &[d, stride(v)], DType::F32)? };
    for (i, first) in (0..rows).step_by(band_rows(v)).enumerate() {
        let k = band_rows(v).min(rows - first);
        let y = match bands.get(i) {
            Some(y) => y.clone(),
            None => {
                let y = Tensor::cuda(c, &[k, stride(v)], dtype)?;
                fill(c, from, first, k, &y)?;
                y
            }
        };
        let d_band = dy.view(first * d, &[k, d]);
        let add = (first > 0 || (aligned && dw.acc)).then(|| sum.ptr());
        let (a, b) = (Mat::of(&d_band).t(), Mat::of(&y));
        c.gemm(&Gemm { m: d, n: stride(v), k, a, b, c: Mat::of(&sum), add, epilogue: Epilogue::None })?;
    }
    if aligned { Ok(()) } else { restride(c, &sum, &dw.tensor, dw.acc) }
}
