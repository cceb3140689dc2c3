//! Layer norm on the GPU.

use super::{Norm, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::{Dst, Grads};
use crate::tensor::{DType, Tensor};

const WARPS: usize = 4; // as in norm.cu
/// Rows per multiprocessor up to which the time of a row counts, and not that of its bytes.
const FEW: usize = 8;

pub(super) fn forward(c: &Cuda, x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let (rows, d) = (x.rows(), x.width());
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let stats = Tensor::cuda(c, &[rows, 2], DType::F32)?;
    let (name, warps) = match rows <= FEW * c.info().multiprocessors {
        true => (by_type!(x.dtype(), "norm_fwd_few"), 1),
        false => (by_type!(x.dtype(), "norm_fwd"), WARPS),
    };
    let grid = (rows.div_ceil(warps), 1, 1);
    c.launch(&SOURCE, 0, name, grid, warps * 32, 0, args![x, gain, bias, &y, &stats, rows, d, eps])?;
    Ok((y, stats))
}

/// The fused backward kernel for rows of `d`, if there is one.
fn fused(dtype: DType, d: usize) -> Option<&'static str> {
    let names: [[&str; 5]; 2] = [
        ["norm_bwd1_f32", "norm_bwd2_f32", "norm_bwd3_f32", "norm_bwd4_f32", "norm_bwd5_f32"],
        ["norm_bwd1_bf16", "norm_bwd2_bf16", "norm_bwd3_bf16", "norm_bwd4_bf16", "norm_bwd5_bf16"],
    ];
    let vectors = d.div_ceil(256).checked_sub(1).filter(|_| d.is_multiple_of(8))?;
    names[(dtype == DType::Bf16) as usize].get(vectors).copied()
}

pub(super) fn backward(c: &Cuda, op: &Norm, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let x = op.x.value();
    let (rows, d) = (x.rows(), x.width());
    let dx = grads.dst_cuda(&op.x, x.dtype())?;
    let (dgain, dbias) = (grads.dst_cuda(&op.gain, DType::F32)?, grads.dst_cuda(&op.bias, DType::F32)?);
    let acc = |x: &Option<Dst>| x.as_ref().is_some_and(|x| x.acc);
    let to = |x: &Option<Dst>| x.as_ref().map_or(0, |x| x.tensor.ptr());
    let (part, bands) = if let Some(name) = fused(x.dtype(), d) {
        // As many blocks as stay resident (a longer row takes more registers): each then loops over its share of rows.
        let resident = [6, 4, 3, 2, 2][d.div_ceil(256).clamp(1, 5) - 1];
        let blocks = (c.info().multiprocessors * resident).min(rows.div_ceil(WARPS)).max(1);
        let part = Tensor::cuda(c, &[blocks, 2, d], DType::F32)?;
        let args = args![x, op.gain.value(), &op.stats, dy, to(&dx), &part, rows, d, acc(&dx)];
        c.launch(&SOURCE, 0, name, (blocks, 1, 1), WARPS * 32, WARPS * 2 * d * 4, args)?;
        (part, blocks)
    } else {
        if let Some(dx) = &dx {
            let name = by_type!(x.dtype(), "norm_bwd_x");
            let args = args![x, op.gain.value(), &op.stats, dy, &dx.tensor, rows, d, dx.acc];
            c.launch(&SOURCE, 0, name, (rows.div_ceil(WARPS), 1, 1), WARPS * 32, 0, args)?;
        }
        let bands = (c.info().multiprocessors * 16 * 128 / d.max(1)).clamp(1, 512).min(rows.max(1));
        let band = rows.div_ceil(bands).max(1);
        let bands = rows.div_ceil(band).max(1);
        let part = Tensor::cuda(c, &[bands, 2, d], DType::F32)?;
        let name = by_type!(x.dtype(), "norm_bwd_params");
        c.launch(&SOURCE, 0, name, (d.div_ceil(128), bands, 1), 128, 0, args![x, &op.stats, dy, &part, rows, d, band])?;
        (part, bands)
    };
    if dgain.is_none() && dbias.is_none() {
        return Ok(());
    }
    let args = args![&part, to(&dgain), to(&dbias), bands, d, acc(&dgain), acc(&dbias)];
    c.launch(&SOURCE, 0, "norm_bwd_reduce", ((2 * d).div_ceil(32), 1, 1), 1024, 0, args)
}
