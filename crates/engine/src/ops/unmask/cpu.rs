//! Unmasking on the CPU.

use super::{Masked, Reveal};
use crate::device::Device;
use crate::error::Result;
use crate::rng::uniform_of;
use crate::tensor::Tensor;

/// How many of `masked` tokens a share reveals: rounded up, so that something happens at every step.
fn count(masked: usize, share: f32) -> usize {
    ((masked as f32 * share - 1e-3).ceil().max(1.0) as usize).min(masked)
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
        let share = shares[if shares.len() > 1 { b } else { 0 }];
        let mut open: Vec<usize> = (0..n).filter(|i| row[*i] == mask).collect();
        let trust = |i: &usize| confidence[b * n + i];
        match &draw {
            Some((noise, ids)) => {
                let words = noise.words_of(b);
                open.retain(|i| uniform_of(words(ids[b], *i as u32)[0]) < share);
            }
            None => {
                // Not a number is trusted least.
                let key = |i: &usize| if trust(i).is_nan() { f32::NEG_INFINITY } else { trust(i) };
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
    let shape = state.tokens.shape();
    Ok(Masked {
        tokens: Tensor::from_u32(&Device::Cpu, shape, tokens)?,
        log_prob: Tensor::from_f32(&Device::Cpu, shape, log_prob)?,
    })
}
