//! Sums and scales on the GPU.

use super::{SOURCE, Spread};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Dst;
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;
const PER_THREAD: usize = 8;

fn grid(n: usize) -> (usize, usize, usize) {
    (n.div_ceil(BLOCK * PER_THREAD), 1, 1)
}

pub(crate) fn cast(c: &Cuda, x: &Tensor, to: DType) -> Result<Tensor> {
    let y = Tensor::cuda(c, x.shape(), to)?;
    let name = if to == DType::F32 { "cast_to_f32" } else { "cast_to_bf16" };
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args![x, &y, x.len() as i64])?;
    Ok(y)
}

/// dst = src or dst += src; types may differ.
pub(crate) fn add_into(c: &Cuda, dst: &Tensor, src: &Tensor, acc: bool) -> Result<()> {
    let name = match (dst.dtype(), src.dtype()) {
        (DType::F32, DType::F32) => "add_into_f32_f32",
        (DType::F32, _) => "add_into_f32_bf16",
        (_, DType::F32) => "add_into_bf16_f32",
        _ => "add_into_bf16_bf16",
    };
    c.launch(&SOURCE, 0, name, grid(dst.len()), BLOCK, 0, args![dst, src, dst.len() as i64, acc])
}

pub(super) fn add(c: &Cuda, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let y = Tensor::cuda(c, a.shape(), a.dtype())?;
    let name = by_type!(a.dtype(), "add");
    c.launch(&SOURCE, 0, name, grid(a.len()), BLOCK, 0, args![a, b, &y, a.len() as i64])?;
    Ok(y)
}

pub(super) fn scale(c: &Cuda, x: &Tensor, by: f32) -> Result<Tensor> {
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = by_type!(x.dtype(), "scale");
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args![x, &y, by, x.len() as i64])?;
    Ok(y)
}

/// The operand may be a parameter (f32) or an activation (the type of x).
pub(super) fn add_spread(c: &Cuda, op: &'static str, x: &Tensor, p: &Tensor, how: Spread) -> Result<Tensor> {
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = match (x.dtype(), p.dtype()) {
        (DType::F32, DType::F32) => "add_spread_f32_f32",
        (DType::Bf16, DType::F32) => "add_spread_bf16_f32",
        (DType::Bf16, DType::Bf16) => "add_spread_bf16_bf16",
        (x, p) => return Err(crate::Error::op(op, format!("{x} + {p} is not supported"))),
    };
    let args = args![x, p, &y, x.len() as i64, how.mid, how.inner as i64, how.per_example];
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args)?;
    Ok(y)
}

pub(super) fn sum_spread(c: &Cuda, dy: &Tensor, dst: &Dst, how: Spread) -> Result<()> {
    let Spread { outer, mid, inner, per_example } = how;
    // (groups, terms, inner): each output element sums `terms` rows of its group, in bands of rows to fill the chip.
    let (groups, terms) = if per_example { (outer, mid) } else { (1, outer) };
    let columns = inner.div_ceil(128) * groups;
    let bands = (c.info().multiprocessors * 16 / columns.max(1)).clamp(1, 256).min(terms.max(1));
    let band = terms.div_ceil(bands).max(1);
    let bands = terms.div_ceil(band).max(1);
    let part = Tensor::cuda(c, &[groups, bands, inner], DType::F32)?;
    let name = by_type!(dy.dtype(), "sum_rows");
    let grid = (inner.div_ceil(128), bands, groups);
    c.launch(&SOURCE, 0, name, grid, 128, 0, args![dy, &part, terms, inner, band])?;
    let name = by_type!(dst.tensor.dtype(), "sum_bands");
    let grid = (inner.div_ceil(128), 1, groups);
    c.launch(&SOURCE, 0, name, grid, 128, 0, args![&part, &dst.tensor, bands, inner, dst.acc])
}

/// Sums over the rows of `d`, seen as (rows, width).
pub(crate) fn column_sums(c: &Cuda, d: &Tensor, width: usize, dst: &Dst) -> Result<()> {
    sum_spread(c, d, dst, Spread { outer: d.len() / width, mid: 1, inner: width, per_example: false })
}

pub(super) fn mean(c: &Cuda, x: &Tensor) -> Result<Tensor> {
    let blocks = x.len().div_ceil(BLOCK * PER_THREAD).min(1024);
    let part = Tensor::cuda(c, &[blocks], DType::F32)?;
    let y = Tensor::cuda(c, &[], DType::F32)?;
    let name = by_type!(x.dtype(), "sum_all");
    c.launch(&SOURCE, 0, name, (blocks, 1, 1), BLOCK, 0, args![x, &part, x.len() as i64, 1.0_f32])?;
    c.launch(&SOURCE, 0, "sum_all_f32", (1, 1, 1), BLOCK, 0, args![&part, &y, blocks as i64, 1.0 / x.len() as f32])?;
    Ok(y)
}

/// t = by·(the single number in `value`).
pub(super) fn fill_from(c: &Cuda, t: &Tensor, value: &Tensor, by: f32) -> Result<()> {
    let name = by_type!(t.dtype(), "fill_from");
    c.launch(&SOURCE, 0, name, grid(t.len()), BLOCK, 0, args![t, value, by, t.len() as i64])
}
