//! Token sequences on the GPU.

use std::ops::Range;

use super::SOURCE;
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Dst;
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;
const PER_THREAD: usize = 8;
/// Columns of one block in `mean_fwd`, as in tokens.cu.
const COLS: usize = 64;

fn grid(n: usize) -> (usize, usize, usize) {
    (n.div_ceil(BLOCK * PER_THREAD), 1, 1)
}

/// dst row r (`rows` rows of `len`, `to_stride` apart) = or += src row r (`from_stride` apart; 0: the same for all).
pub(super) fn strips(
    c: &Cuda,
    from: &Tensor,
    from_stride: usize,
    to: &Tensor,
    to_stride: usize,
    len: usize,
    rows: usize,
    acc: bool,
) -> Result<()> {
    let name = by_type!(from.dtype(), "strips");
    let args = args![from, to, rows as i64, len as i64, 1_usize, from_stride as i64, to_stride as i64, acc];
    c.launch(&SOURCE, 0, name, grid(rows * len), BLOCK, 0, args)
}

pub(super) fn concat(c: &Cuda, parts: &[Tensor], shape: [usize; 3], dtype: DType) -> Result<Tensor> {
    let [batch, tokens, d] = shape;
    let y = Tensor::cuda(c, &shape, dtype)?;
    let mut at = 0;
    for p in parts {
        let n = p.shape()[1] * d;
        let own = if p.shape()[0] == batch { n } else { 0 };
        let to = y.view(at, &[(batch - 1) * tokens * d + n]);
        strips(c, p, own, &to, tokens * d, n, batch, false)?;
        at += n;
    }
    Ok(y)
}

/// dst[i] = or += Σ over the (masked) examples of src[example·stride + i].
pub(super) fn sum_examples(
    c: &Cuda,
    from: &Tensor,
    stride: usize,
    rows: usize,
    mask: Option<&Tensor>,
    dst: &Dst,
) -> Result<()> {
    let name = match (from.dtype(), dst.tensor.dtype()) {
        (DType::F32, DType::F32) => "sum_examples_f32_f32",
        (DType::Bf16, DType::F32) => "sum_examples_bf16_f32",
        (DType::Bf16, DType::Bf16) => "sum_examples_bf16_bf16",
        (from, to) => return Err(crate::Error::op("sum_examples", format!("{from} into {to} is not supported"))),
    };
    let n = dst.tensor.len();
    let args = args![from, stride as i64, rows, n as i64, mask, &dst.tensor, dst.acc];
    c.launch(&SOURCE, 0, name, (n.div_ceil(32), 1, 1), 1024, 0, args)
}

/// The reverse of taking strips: what lies outside of them has no gradient.
pub(super) fn put_strips(c: &Cuda, dy: &Tensor, dst: &Dst, stride: usize, at: usize, len: usize) -> Result<()> {
    let rows = dst.tensor.len() / stride;
    if dst.acc {
        let to = dst.tensor.view(at, &[(rows - 1) * stride + len]);
        return strips(c, dy, len, &to, stride, len, rows, true);
    }
    let name = by_type!(dy.dtype(), "put_strips");
    let args = args![dy, &dst.tensor, rows as i64, stride as i64, at as i64, len as i64];
    c.launch(&SOURCE, 0, name, grid(rows * stride), BLOCK, 0, args)
}

pub(super) fn repeat(c: &Cuda, x: &Tensor, shape: &[usize], k: usize, inner: usize) -> Result<Tensor> {
    let y = Tensor::cuda(c, shape, x.dtype())?;
    // Integers travel as floats of their size: nothing is computed, so the bits stay.
    let as_moved = if x.dtype() == DType::U32 { DType::F32 } else { x.dtype() };
    let name = by_type!(as_moved, "strips");
    let args = args![x, &y, shape[0] as i64, inner as i64, k, inner as i64, inner as i64, false];
    c.launch(&SOURCE, 0, name, grid(y.len()), BLOCK, 0, args)?;
    Ok(y)
}

pub(super) fn repeat_backward(c: &Cuda, dy: &Tensor, dst: &Dst, k: usize, inner: usize) -> Result<()> {
    let name = by_type!(dy.dtype(), "repeat_bwd");
    let n = dst.tensor.len();
    c.launch(&SOURCE, 0, name, grid(n), BLOCK, 0, args![dy, &dst.tensor, n as i64, k, inner as i64, dst.acc])
}

pub(super) fn mean(c: &Cuda, x: &Tensor, range: &Range<usize>) -> Result<Tensor> {
    let (b, n, d) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let y = Tensor::cuda(c, &[b, 1, d], x.dtype())?;
    let name = by_type!(x.dtype(), "mean_fwd");
    c.launch(&SOURCE, 0, name, (b, d.div_ceil(COLS), 1), 256, 0, args![x, &y, n, range.start, range.len(), d])?;
    Ok(y)
}

pub(super) fn mean_backward(c: &Cuda, dy: &Tensor, dst: &Dst, range: &Range<usize>) -> Result<()> {
    let (n, d, total) = (dst.tensor.shape()[1], dst.tensor.shape()[2], dst.tensor.len());
    let name = by_type!(dy.dtype(), "mean_bwd");
    let args = args![dy, &dst.tensor, total as i64, n, range.start, range.len(), d, dst.acc];
    c.launch(&SOURCE, 0, name, grid(total), BLOCK, 0, args)
}

pub(super) fn select(c: &Cuda, x: &Tensor, other: &Tensor, mask: &Tensor) -> Result<Tensor> {
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = by_type!(x.dtype(), "select_fwd");
    let args = args![x, other, mask, &y, x.len() as i64, other.len() as i64];
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args)?;
    Ok(y)
}

pub(super) fn select_backward(c: &Cuda, dy: &Tensor, mask: &Tensor, dst: &Dst) -> Result<()> {
    let name = by_type!(dy.dtype(), "select_bwd");
    let args = args![dy, mask, &dst.tensor, dy.len() as i64, (dy.len() / mask.len()) as i64, dst.acc];
    c.launch(&SOURCE, 0, name, grid(dy.len()), BLOCK, 0, args)
}
