//! Patches on the GPU.

use super::{Cut, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::Result;
use crate::tape::Dst;
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;

fn grid(cut: Cut) -> (usize, usize, usize) {
    let n = cut.batch * cut.patches() * cut.patch_len();
    (n.div_ceil(BLOCK * 8), 1, 1)
}

pub(super) fn forward(c: &Cuda, images: &Tensor, cut: Cut, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let y = Tensor::cuda(c, shape, dtype)?;
    let name = by_type!(dtype, "patchify_fwd");
    let args = args![images, &y, y.len() as i64, cut.channels, cut.height, cut.width, cut.patch];
    c.launch(&SOURCE, 0, name, grid(cut), BLOCK, 0, args)?;
    Ok(y)
}

pub(super) fn backward(c: &Cuda, dy: &Tensor, cut: Cut, dst: &Dst) -> Result<()> {
    let name = by_type!(dy.dtype(), "patchify_bwd");
    let args = args![dy, &dst.tensor, dy.len() as i64, cut.channels, cut.height, cut.width, cut.patch, dst.acc];
    c.launch(&SOURCE, 0, name, grid(cut), BLOCK, 0, args)
}
