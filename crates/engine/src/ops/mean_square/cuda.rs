//! Mean square on the GPU.

use super::{MeanSquare, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Grads;
use crate::tensor::{DType, Tensor};

const WARPS: usize = 4; // as in mean_square.cu

pub(super) fn forward(c: &Cuda, p: &Tensor, t: &Tensor, w: Option<&Tensor>) -> Result<Tensor> {
    let (rows, d) = (p.rows(), p.width());
    let y = Tensor::cuda(c, &[rows], DType::F32)?;
    let name = by_type!(p.dtype(), "mean_square_fwd");
    c.launch(&SOURCE, 0, name, (rows.div_ceil(WARPS), 1, 1), WARPS * 32, 0, args![p, t, w, &y, rows, d])?;
    Ok(y)
}

pub(super) fn backward(c: &Cuda, op: &MeanSquare, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let p = op.prediction.value();
    let (rows, d) = (p.rows(), p.width());
    let Some(dp) = grads.dst_cuda(&op.prediction, p.dtype())? else { return Ok(()) };
    let name = by_type!(p.dtype(), "mean_square_bwd");
    let args = args![p, &op.target, op.weights.as_ref(), dy, &dp.tensor, rows, d, dp.acc];
    c.launch(&SOURCE, 0, name, (rows.div_ceil(WARPS), 1, 1), WARPS * 32, 0, args)
}
