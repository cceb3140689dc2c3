//! Choosing tokens on the GPU: one block per row.

use super::{Choose, Chosen, How, Numbers, Plan, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::{Result, ensure};
use crate::tensor::{DType, Tensor};

/// Logits of one thread at a time, and tiles whose sums a block keeps, as in choose.cu.
const PER_THREAD: usize = 8;
const MAX_TILES: usize = 512;

pub(super) fn choose(c: &Cuda, logits: &Tensor, how: &Choose, plan: Plan) -> Result<Chosen> {
    let Plan { rows, vocab, stride, tokens: n, top } = plan;
    let block = vocab.div_ceil(PER_THREAD).next_multiple_of(32).min(256);
    ensure!(vocab <= block * PER_THREAD * MAX_TILES, "choose", "a vocabulary of {vocab} is too large");
    let float = |shape: &[usize]| Tensor::cuda(c, shape, DType::F32);
    let tokens = Tensor::cuda(c, &[rows], DType::U32)?;
    let numbers = match how.numbers {
        true => Some(Numbers { log_prob: float(&[rows])?, entropy: float(&[rows])? }),
        false => None,
    };
    let probabilities = match how.probabilities {
        true => Some(Tensor::cuda(c, &[rows, vocab], logits.dtype())?),
        false => None,
    };
    let best = match top {
        0 => None,
        k => Some((Tensor::cuda(c, &[rows, k], DType::U32)?, float(&[rows, k])?)),
    };
    let (key, key_step, step, ids) = match how.how {
        How::Argmax => (0, 0, 0, 0),
        How::Drawn { noise, examples } => (noise.key().ptr(), noise.key_step(), noise.offset(), examples.ptr()),
    };
    let weight_step = how.guidance.map_or(0, |w| (w.len() > 1) as usize);
    let (classes, bans, bits) = how.banned.map_or((0, 0, 0), |b| (b.classes.ptr(), b.classes.len(), b.rows.ptr()));
    let args = args![
        logits,
        n,
        vocab,
        stride,
        how.guidance,
        weight_step,
        key,
        key_step,
        step,
        ids,
        classes,
        bans,
        bits,
        how.fixed,
        how.sums(),
        &tokens,
        numbers.as_ref().map(|n| &n.log_prob),
        numbers.as_ref().map(|n| &n.entropy),
        probabilities.as_ref(),
        top,
        best.as_ref().map(|b| &b.0),
        best.as_ref().map(|b| &b.1),
    ];
    // A sum for each warp and tile.
    let shared = if how.sums() { vocab.div_ceil(block * PER_THREAD) * (block / 32) * 8 } else { 0 };
    c.launch(&SOURCE, 0, by_type!(logits.dtype(), "choose"), (rows, 1, 1), block, shared, args)?;
    Ok(Chosen { tokens, numbers, probabilities, top: best })
}
