//! Images to rows of patches, so that a patch embedding is a `linear` with the flattened weight of a convolution.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Error, Result, ensure};
use crate::ops::elementwise::add;
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("patchify.cu");

/// How images are cut.
#[derive(Clone, Copy)]
struct Cut {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    patch: usize,
}

impl Cut {
    fn patches(&self) -> usize {
        (self.height / self.patch) * (self.width / self.patch)
    }

    fn patch_len(&self) -> usize {
        self.channels * self.patch * self.patch
    }
}

struct Patchify {
    images: Var,
    cut: Cut,
}

/// `images` f32 \[B, C, H, W\] to \[B, H/p · W/p, C·p·p\] in type `dtype`. Patches go row by row; inside a patch the order is
/// (channel, y, x), that of a Conv2d weight \[d, C, p, p\].
pub fn patchify(tape: &Tape, images: &Var, patch: usize, dtype: DType) -> Result<Var> {
    let x = images.value();
    let &[batch, channels, height, width] = x.shape() else {
        return Err(Error::op("patchify", format!("images must be [B, C, H, W], they are {:?}", x.shape())));
    };
    ensure!(!x.is_empty(), "patchify", "there are no pixels in {:?}", x.shape());
    ensure!(
        patch > 0 && height % patch == 0 && width % patch == 0,
        "patchify",
        "images of {height} × {width} cannot be cut into patches of {patch} × {patch}: both sides must be multiples of {patch}"
    );
    ensure!(x.dtype() == DType::F32, "patchify", "images must be f32, they are {x:?}");
    check::compute_type("patchify", x, dtype)?;
    let cut = Cut { batch, channels, height, width, patch };
    let shape = [batch, cut.patches(), cut.patch_len()];
    let y = match x.cuda_device() {
        Some(c) => cuda::forward(c, x, cut, &shape, dtype)?,
        None => {
            let mut y = Buf::scratch(x.len());
            cpu::forward(x.f32s(), cut, &mut y);
            Tensor::from_buf(y, &shape)
        }
    };
    Ok(tape.record(y, &[images], || Patchify { images: images.clone(), cut }))
}

impl Backward for Patchify {
    fn name(&self) -> &'static str {
        "patchify"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(&self.images, DType::F32)? else { return Ok(()) };
                cuda::backward(c, dy, self.cut, &dst)
            }
            None => grads.write_cpu(&self.images, |dst, acc| cpu::backward(dy.f32s(), self.cut, dst, acc)),
        }
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[([usize; 4], usize)] = match size {
        Size::Tiny => &[([2, 2, 4, 6], 2), ([1, 1, 1, 1], 1)],
        Size::Full => &[
            ([1, 1, 1, 1], 1),
            ([3, 3, 32, 32], 4),
            ([2, 3, 224, 224], 16),
            ([2, 3, 28, 42], 14),
            ([5, 1, 28, 28], 7),
            ([1, 2, 24, 40], 8),
        ],
    };
    let mut out = Vec::new();
    for &(s, p) in shapes {
        let y = [s[0], s[2] / p * (s[3] / p), s[1] * p * p];
        // The sum with x only tells the compute type; images are f32 in any case, as parameters are.
        out.push(
            Case::new("patchify", format!("{s:?} by {p}"), move |t, v| {
                add(t, &v[1], &patchify(t, &v[0], p, v[1].value().dtype())?)
            })
            .normal("images", Role::Weight, &s, 1.0)
            .normal("x", Role::Activation, &y, 1.0),
        );
        out.push(
            Case::new("patchify", format!("{s:?} by {p}, twice"), move |t, v| {
                let once = add(t, &v[1], &patchify(t, &v[0], p, v[1].value().dtype())?)?;
                add(t, &once, &patchify(t, &v[0], p, v[1].value().dtype())?)
            })
            .normal("images", Role::Weight, &s, 1.0)
            .normal("x", Role::Activation, &y, 1.0),
        );
    }
    out
}
