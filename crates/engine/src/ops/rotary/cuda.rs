//! Rotation on the GPU.

use super::{Rotation, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tensor::Tensor;

/// Columns of one thread, as in rotary.cu.
const COLS: usize = 16;

/// `x` \[B, L, W\] rotated: in place if this is the only handle to it.
pub(super) fn rotate(c: &Cuda, x: &Tensor, rotation: &Rotation) -> Result<Tensor> {
    let alone = x.is_unique();
    let y = if alone { x.clone() } else { Tensor::cuda(c, x.shape(), x.dtype())? };
    let (l, w) = (x.shape()[1], x.width());
    let name = by_type!(x.dtype(), "rotary");
    let (rows, threads) = (x.rows(), w.div_ceil(COLS).next_multiple_of(32).min(256));
    let args = args![
        x,
        &y,
        &rotation.angles.table,
        l,
        w,
        rotation.angles.head,
        rotation.columns,
        rotation.rows.start,
        rotation.rows.end,
        rotation.back
    ];
    c.launch(&SOURCE, 0, name, (rows, 1, 1), threads, 0, args)?;
    Ok(y)
}
