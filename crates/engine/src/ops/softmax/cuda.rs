//! Softmax on the GPU.

use super::{SOURCE, Softmax};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Grads;
use crate::tensor::Tensor;

const WARPS: usize = 4; // as in softmax.cu

/// Stands for "no logarithm": every floor is negative.
const PLAIN: f32 = 0.0;

pub(super) fn forward(c: &Cuda, x: &Tensor, floor: Option<f32>) -> Result<Tensor> {
    let (rows, d, floor) = (x.rows(), x.width(), floor.unwrap_or(PLAIN));
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = by_type!(x.dtype(), "softmax_fwd");
    c.launch(&SOURCE, 0, name, (rows.div_ceil(WARPS), 1, 1), WARPS * 32, 0, args![x, &y, rows, d, floor])?;
    Ok(y)
}

pub(super) fn backward(c: &Cuda, op: &Softmax, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let x = op.x.value();
    let (rows, d, floor) = (x.rows(), x.width(), op.floor.unwrap_or(PLAIN));
    let Some(dx) = grads.dst_cuda(&op.x, x.dtype())? else { return Ok(()) };
    let name = by_type!(x.dtype(), "softmax_bwd");
    let args = args![x, dy, &dx.tensor, rows, d, floor, dx.acc];
    c.launch(&SOURCE, 0, name, (rows.div_ceil(WARPS), 1, 1), WARPS * 32, 0, args)
}
