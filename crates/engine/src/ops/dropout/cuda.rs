//! Dropout on the GPU.

use super::{Dropout, SOURCE, Unit};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tensor::Tensor;

const BLOCK: usize = 256;

/// y = or += x·mask/(1 − p).
pub(super) fn apply(c: &Cuda, op: &Dropout, x: &Tensor, y: &Tensor, acc: bool) -> Result<()> {
    let rows = op.examples.len();
    let inner = x.len() / rows;
    let name = by_type!(x.dtype(), "dropout");
    let grid = ((rows * inner.div_ceil(8)).div_ceil(BLOCK), 1, 1);
    let whole = op.unit == Unit::Example;
    let by = 1.0 / (1.0 - op.p);
    let args = args![x, y, &op.examples, op.noise.key(), op.noise.offset(), rows, inner as i64, op.p, by, whole, acc];
    c.launch(&SOURCE, 0, name, grid, BLOCK, 0, args)
}
