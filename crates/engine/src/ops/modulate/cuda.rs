//! Modulation and gates on the GPU.

use super::{SOURCE, Scaled};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::{Grads, Var};
use crate::tensor::Tensor;

const BLOCK: usize = 256;
/// Columns of one block of the backward pass, as in modulate.cu.
const COLS: usize = 64;

fn grid(n: usize) -> (usize, usize, usize) {
    (n.div_ceil(BLOCK * 8), 1, 1)
}

pub(super) fn modulate(c: &Cuda, x: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let y = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = by_type!(x.dtype(), "modulate_fwd");
    let args = args![x, shift, scale, &y, x.len() as i64, x.shape()[1], x.width()];
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args)?;
    Ok(y)
}

pub(super) fn gate(c: &Cuda, x: &Tensor, y: &Tensor, g: &Tensor) -> Result<Tensor> {
    let out = Tensor::cuda(c, x.shape(), x.dtype())?;
    let name = by_type!(x.dtype(), "gate_fwd");
    let args = args![x, y, g, &out, x.len() as i64, x.shape()[1], x.width()];
    c.launch(&SOURCE, 0, name, grid(x.len()), BLOCK, 0, args)?;
    Ok(out)
}

/// One pass over x and dy for all three gradients.
pub(super) fn backward(c: &Cuda, op: &Scaled, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let (x, b, n, d) = (op.x.value(), dy.shape()[0], dy.shape()[1], dy.width());
    // Fresh, not in place: the same value may be scale and shift, or x.
    let fresh = |v: Option<&Var>| match v {
        Some(v) if v.needs_grad() => Tensor::cuda(c, v.shape(), dy.dtype()).map(Some),
        _ => Ok(None),
    };
    let (dfactor, dshift) = (fresh(Some(op.factor))?, fresh(op.shift)?);
    let dx = grads.dst_cuda(op.x, dy.dtype())?;
    if dx.is_none() && dfactor.is_none() && dshift.is_none() {
        return Ok(());
    }
    let name = by_type!(dy.dtype(), "modulate_bwd");
    let to = dx.as_ref().map(|d| &d.tensor);
    let acc = dx.as_ref().is_some_and(|d| d.acc);
    let args = args![x, op.factor.value(), dy, to, dfactor.as_ref(), dshift.as_ref(), op.one, n, d, acc];
    c.launch(&SOURCE, 0, name, (b, d.div_ceil(COLS), 1), 256, 0, args)?;
    drop(dx);
    if let Some(g) = dfactor {
        grads.give(op.factor, g)?;
    }
    if let (Some(v), Some(g)) = (op.shift, dshift) {
        grads.give(v, g)?;
    }
    Ok(())
}
