//! Blending on the GPU.

use super::{First, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tensor::{DType, Tensor};

pub(super) fn blend(
    c: &Cuda,
    by: &Tensor,
    first: First,
    second: Option<&Tensor>,
    third: Option<&Tensor>,
    like: &Tensor,
) -> Result<Tensor> {
    let out = Tensor::cuda(c, like.shape(), DType::F32)?;
    let (values, matrix, ids, v) = match first {
        First::Columns { matrix, ids } => (None, Some(matrix), Some(ids), matrix.shape()[1]),
        First::Values(x) => (Some(x), None, None, 0),
    };
    let name = by_type!(values.map_or(DType::F32, Tensor::dtype), "blend");
    let step: usize = if by.shape().len() == 2 { 3 } else { 0 };
    let args = args![&out, by, step, values, matrix, ids, v, second, third, like.len() as i64, like.width()];
    c.launch(&SOURCE, 0, name, (like.len().div_ceil(256), 1, 1), 256, 0, args)?;
    Ok(out)
}

pub(super) fn guide(c: &Cuda, pairs: &Tensor, weight: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let out = Tensor::cuda(c, shape, pairs.dtype())?;
    let (name, grid) = (by_type!(pairs.dtype(), "guide"), (out.len().div_ceil(256 * 8), 1, 1));
    let args = args![&out, pairs, weight, (weight.len() > 1) as usize, out.len() as i64, (out.len() / shape[0]) as i64];
    c.launch(&SOURCE, 0, name, grid, 256, 0, args)?;
    Ok(out)
}
