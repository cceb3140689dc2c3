//! Token scores on the GPU.

use super::{SCORES, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tensor::{DType, Tensor};

pub(super) fn scores(c: &Cuda, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (rows, v) = (logits.rows(), logits.width());
    let y = Tensor::cuda(c, &[rows, SCORES], DType::F32)?;
    let name = by_type!(logits.dtype(), "token_scores");
    c.launch(&SOURCE, 0, name, (rows, 1, 1), 256, 0, args![logits, targets, &y, v])?;
    Ok(y)
}
