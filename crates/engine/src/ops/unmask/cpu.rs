//! Unmasking on the CPU.

use super::super::choose::FREE;
use super::{Masked, Reveal};
use crate::device::Device;
use crate::error::Result;
use crate::rng::uniform_of;
use crate::tensor::Tensor;

/// How many of `masked` tokens a share reveals: rounded up, so that something happens at every step.
fn count(masked: usize, share: f32) -> usize {
    ((masked as f32 * share - 1e-3).ceil().max(1.0) as usize).min(masked)
}

/// How many of `revealed` tokens a share masks again: rounded, so that a small share masks none of a few.
fn again(revealed: usize, share: f32) -> usize {
    ((revealed as f32 * share + 0.5).floor() as usize).min(revealed)
}

/// The share of example `b`.
fn share_of(shares: &[f32], b: usize) -> f32 {
    shares[if shares.len() > 1 { b } else { 0 }]
}

/// Not a number is trusted least.
fn trust(confidence: f32) -> f32 {
    if confidence.is_nan() { f32::NEG_INFINITY } else { confidence }
}

pub(super) fn unmask(
    state: &Masked,
    (chosen, confidence): (&Tensor, &Tensor),
    mask: u32,
    shares: &[f32],
    how: Reveal,
) -> Result<Masked> {
    let n = state.tokens.shape()[1];
    let (mut tokens, mut log_prob) = (state.tokens.u32s().to_vec(), state.log_prob.f32s().to_vec());
    let (chosen, confidence) = (chosen.u32s(), confidence.f32s());
    let draw = match how {
        Reveal::Random { noise, examples } => Some((noise, examples.u32s())),
        Reveal::Confident => None,
    };
    for (b, row) in tokens.chunks_exact_mut(n).enumerate() {
        let share = share_of(shares, b);
        let mut open: Vec<usize> = (0..n).filter(|i| row[*i] == mask).collect();
        match &draw {
            Some((noise, ids)) => {
                let words = noise.words_of(b);
                open.retain(|i| uniform_of(words(ids[b], *i as u32)[0]) < share);
            }
            None => {
                let key = |i: &usize| trust(confidence[b * n + i]);
                let all = open.len();
                open.sort_by(|x, y| key(y).total_cmp(&key(x)));
                open.truncate(count(all, share));
            }
        }
        for i in open {
            row[i] = chosen[b * n + i];
            log_prob[b * n + i] = confidence[b * n + i];
        }
    }
    masked(state, tokens, log_prob)
}

pub(super) fn remask(
    after: &Masked,
    before: &Masked,
    kept: Option<&Tensor>,
    mask: u32,
    shares: &[f32],
    how: Reveal,
) -> Result<Masked> {
    let n = before.tokens.shape()[1];
    let (mut tokens, mut log_prob) = (after.tokens.u32s().to_vec(), after.log_prob.f32s().to_vec());
    let (old, confidence, kept) = (before.tokens.u32s(), before.log_prob.f32s(), kept.map(Tensor::u32s));
    for (b, row) in tokens.chunks_exact_mut(n).enumerate() {
        let (share, at) = (share_of(shares, b), |i: usize| b * n + i);
        let loose = |i: &usize| old[at(*i)] != mask && kept.is_none_or(|kept| kept[at(*i)] == FREE);
        let mut revealed: Vec<usize> = (0..n).filter(loose).collect();
        match how {
            Reveal::Random { noise, examples } => {
                let (words, ids) = (noise.words_of(b), examples.u32s());
                revealed.retain(|i| uniform_of(words(ids[b], *i as u32)[0]) < share);
            }
            Reveal::Confident => {
                let all = revealed.len();
                revealed.sort_by(|x, y| trust(confidence[at(*x)]).total_cmp(&trust(confidence[at(*y)])));
                revealed.truncate(again(all, share));
            }
        }
        for i in revealed {
            (row[i], log_prob[at(i)]) = (mask, 0.0);
        }
    }
    masked(after, tokens, log_prob)
}

fn masked(like: &Masked, tokens: Vec<u32>, log_prob: Vec<f32>) -> Result<Masked> {
    let shape = like.tokens.shape();
    Ok(Masked {
        tokens: Tensor::from_u32(&Device::Cpu, shape, tokens)?,
        log_prob: Tensor::from_f32(&Device::Cpu, shape, log_prob)?,
    })
}
