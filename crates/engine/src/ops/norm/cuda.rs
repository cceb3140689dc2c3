//! Layer norm on the GPU.

use super::{Norm, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Grads;
use crate::tensor::{DType, Tensor};

const WARPS: usize = 4; // as in norm.cu

pub(super) fn forward(c: &Cuda, x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f32) -> Result<(Tensor, Tensor)> {
    let (rows, d) = (x.rows(), x.width());
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let stats = Tensor::cuda(c, &[rows, 2], DType::F32)?;
    let name = by_type!(x.dtype(), "norm_fwd");
    let grid = (rows.div_ceil(WARPS), 1, 1);
    c.launch(&SOURCE, 0, name, grid, WARPS * 32, 0, args![x, gain, bias, &y, &stats, rows, d, eps])?;
    Ok((y, stats))
}

pub(super) fn backward(c: &Cuda, op: &Norm, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let x = op.x.value();
    let (rows, d) = (x.rows(), x.width());
    if op.gain.needs_grad() || op.bias.needs_grad() {
        // Enough bands to fill the chip, few enough that adding them up stays cheap.
        let bands = (c.info().multiprocessors * 16 * 128 / d.max(1)).clamp(1, 512).min(rows.max(1));
        let band = rows.div_ceil(bands).max(1);
        let bands = rows.div_ceil(band);
        let part = Tensor::cuda(c, &[bands, 2, d], DType::F32)?;
        let name = by_type!(x.dtype(), "norm_bwd_params");
        let grid = (d.div_ceil(128), bands, 1);
        c.launch(&SOURCE, 0, name, grid, 128, 0, args![x, &op.stats, dy, &part, rows, d, band])?;
        let (g, b) = (grads.dst_cuda(&op.gain, DType::F32)?, grads.dst_cuda(&op.bias, DType::F32)?);
        let acc = |x: &Option<crate::tape::Dst>| x.as_ref().is_some_and(|x| x.acc);
        let to = |x: &Option<crate::tape::Dst>| x.as_ref().map_or(0, |x| x.tensor.ptr());
        let args = args![&part, to(&g), to(&b), bands, d, acc(&g), acc(&b)];
        c.launch(&SOURCE, 0, "norm_bwd_reduce", (d.div_ceil(128), 1, 1), 128, 0, args)?;
    }
    if let Some(dx) = grads.dst_cuda(&op.x, x.dtype())? {
        let name = by_type!(x.dtype(), "norm_bwd_x");
        let grid = (rows.div_ceil(WARPS), 1, 1);
        let args = args![x, op.gain.value(), &op.stats, dy, &dx.tensor, rows, d, dx.acc];
        c.launch(&SOURCE, 0, name, grid, WARPS * 32, 0, args)?;
    }
    Ok(())
}
