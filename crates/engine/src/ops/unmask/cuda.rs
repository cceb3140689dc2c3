//! Unmasking on the GPU: one block per example.

use super::{Masked, Reveal, SOURCE};
use crate::cuda::{Cuda, args};
use crate::error::Result;
use crate::tensor::{DType, Tensor};

pub(super) fn unmask(
    c: &Cuda,
    state: &Masked,
    (chosen, confidence): (&Tensor, &Tensor),
    mask: u32,
    share: &Tensor,
    how: Reveal,
) -> Result<Masked> {
    let shape = state.tokens.shape();
    let (b, n) = (shape[0], shape[1]);
    let tokens = Tensor::cuda(c, shape, DType::U32)?;
    let log_prob = Tensor::cuda(c, shape, DType::F32)?;
    let (key, key_step, step, ids) = noise_of(how);
    let share_step = (share.len() > 1) as usize;
    let args = args![
        &state.tokens,
        &state.log_prob,
        chosen,
        confidence,
        mask,
        share,
        share_step,
        key,
        key_step,
        step,
        ids,
        n,
        &tokens,
        &log_prob
    ];
    c.launch(&SOURCE, 0, "unmask", (b, 1, 1), block(n), 0, args)?;
    Ok(Masked { tokens, log_prob })
}

pub(super) fn remask(
    c: &Cuda,
    after: &Masked,
    before: &Masked,
    kept: Option<&Tensor>,
    mask: u32,
    share: &Tensor,
    how: Reveal,
) -> Result<Masked> {
    let shape = before.tokens.shape();
    let (b, n) = (shape[0], shape[1]);
    let tokens = Tensor::cuda(c, shape, DType::U32)?;
    let log_prob = Tensor::cuda(c, shape, DType::F32)?;
    let (key, key_step, step, ids) = noise_of(how);
    let (kept, share_step) = (kept.map_or(0, Tensor::ptr), (share.len() > 1) as usize);
    let args = args![
        &before.tokens,
        &before.log_prob,
        &after.tokens,
        &after.log_prob,
        kept,
        mask,
        share,
        share_step,
        key,
        key_step,
        step,
        ids,
        n,
        &tokens,
        &log_prob
    ];
    c.launch(&SOURCE, 0, "remask", (b, 1, 1), block(n), 0, args)?;
    Ok(Masked { tokens, log_prob })
}

/// What a kernel is told of the noise: nothing where it looks at confidence.
fn noise_of(how: Reveal) -> (u64, usize, u32, u64) {
    match how {
        Reveal::Random { noise, examples } => (noise.key().ptr(), noise.key_step(), noise.offset(), examples.ptr()),
        Reveal::Confident => (0, 0, 0, 0),
    }
}

fn block(n: usize) -> usize {
    n.next_multiple_of(32).min(256)
}
