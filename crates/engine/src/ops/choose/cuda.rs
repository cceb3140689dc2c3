//! Choosing tokens on the GPU: one block per row.

use super::{Choose, Chosen, How, Plan, SOURCE};
use crate::cuda::{Cuda, args, by_type};
use crate::error::{Result, ensure};
use crate::tensor::{DType, Tensor};

/// Logits of one thread at a time, and tiles whose sums a block keeps, as in choose.cu.
const PER_THREAD: usize = 8;
const MAX_TILES: usize = 512;

pub(super) fn choose(c: &Cuda, logits: &Tensor, how: &Choose, plan: Plan) -> Result<Chosen> {
    let Plan { rows, vocab, tokens: n, top } = plan;
    let block = vocab.div_ceil(PER_THREAD).next_multiple_of(32).min(256);
    ensure!(vocab <= block * PER_THREAD * MAX_TILES, "choose", "a vocabulary of {vocab} is too large");
    let float = |shape: &[usize]| Tensor::cuda(c, shape, DType::F32);
    let tokens = Tensor::cuda(c, &[rows], DType::U32)?;
    let (log_prob, entropy) = (float(&[rows])?, float(&[rows])?);
    let probabilities = match how.probabilities {
        true => Some(Tensor::cuda(c, &[rows, vocab], logits.dtype())?),
        false => None,
    };
    let best = match top {
        0 => None,
        k => Some((Tensor::cuda(c, &[rows, k], DType::U32)?, float(&[rows, k])?)),
    };
    let (key, step, ids) = match how.how {
        How::Argmax => (0, 0, 0),
        How::Drawn { noise, examples } => (noise.key().ptr(), noise.offset(), examples.ptr()),
    };
    let (classes, bans, bits) = how.banned.map_or((0, 0, 0), |b| (b.classes.ptr(), b.classes.len(), b.rows.ptr()));
    let args = args![
        logits,
        n,
        vocab,
        how.guidance,
        key,
        step,
        ids,
        classes,
        bans,
        bits,
        how.given,
        &tokens,
        &log_prob,
        &entropy,
        probabilities.as_ref(),
        top,
        best.as_ref().map(|b| &b.0),
        best.as_ref().map(|b| &b.1),
    ];
    c.launch(&SOURCE, 0, by_type!(logits.dtype(), "choose"), (rows, 1, 1), block, 0, args)?;
    Ok(Chosen { tokens, log_prob, entropy, probabilities, top: best })
}
