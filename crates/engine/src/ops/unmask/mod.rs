//! Replace masked tokens by chosen ones: each by chance, or the most confident of each example first; and mask revealed ones again.
//! For sampling only, so nothing is recorded on a tape.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use super::check;
use super::choose::FREE;
use crate::cases::{Case, Role, Size};
use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::rng::Noise;
use crate::tensor::{DType, Tensor};

crate::cuda::source!("unmask.cu");

/// Which masked tokens are revealed.
#[derive(Clone, Copy)]
pub enum Reveal<'a> {
    /// Each with the same probability: token n of an example where word n of its stream is below the share.
    Random {
        /// The stream.
        noise: &'a Noise,
        /// Example ids, u32 \[B\].
        examples: &'a Tensor,
    },
    /// The share of an example's masked tokens (at least one) whose log-probability is highest, the first of equals first.
    Confident,
}

/// Sequences that are partly masked.
#[derive(Clone)]
pub struct Masked {
    /// u32 \[B, N\].
    pub tokens: Tensor,
    /// Log-probability with which each was chosen, f32 \[B, N\].
    pub log_prob: Tensor,
}

/// `state` with a `share` (f32 \[1\], or \[B\] with that of each example; on the device) of the tokens that are `mask` replaced by `chosen` (tokens u32 and
/// log-probabilities f32 of \[B·N\]). Other tokens stay. A share of 1 leaves none masked.
pub fn unmask(state: &Masked, chosen: (&Tensor, &Tensor), mask: u32, share: &Tensor, how: Reveal) -> Result<Masked> {
    let t = &state.tokens;
    let [b, n] = sizes("unmask", t)?;
    check::integers("unmask", "chosen tokens", chosen.0, t)?;
    numbers("unmask", t, &[(&state.log_prob, b * n), (chosen.1, b * n), shares(share, b)])?;
    ensure!(chosen.0.len() == b * n, "unmask", "{:?} chosen tokens for {:?}", chosen.0.shape(), t.shape());
    check_reveal("unmask", how, b, t)?;
    match t.cuda_device() {
        Some(c) => cuda::unmask(c, state, chosen, mask, share, how),
        None => cpu::unmask(state, chosen, mask, share.f32s(), how),
    }
}

/// What a step came to, `after`, with a `share` of the tokens that were revealed `before` it masked again, at a log-probability of 0:
/// each by chance, or with [`Reveal::Confident`] the least confident by the log-probabilities of `before`, the first of equals first,
/// as many as the share comes to when rounded. So what the step itself has revealed stays. `kept`, u32 of \[B·N\]: tokens that are never
/// masked, and [`FREE`] where a token may be.
pub fn remask(
    after: &Masked,
    before: &Masked,
    kept: Option<&Tensor>,
    mask: u32,
    share: &Tensor,
    how: Reveal,
) -> Result<Masked> {
    let t = &before.tokens;
    let [b, n] = sizes("remask", t)?;
    ensure!(after.tokens.shape() == t.shape(), "remask", "{:?} after {:?}", after.tokens.shape(), t.shape());
    check::integers("remask", "tokens", &after.tokens, t)?;
    if let Some(kept) = kept {
        check::integers("remask", "kept tokens", kept, t)?;
        ensure!(kept.len() == b * n, "remask", "{:?} kept tokens for {:?}", kept.shape(), t.shape());
    }
    numbers("remask", t, &[(&before.log_prob, b * n), (&after.log_prob, b * n), shares(share, b)])?;
    check_reveal("remask", how, b, t)?;
    match t.cuda_device() {
        Some(c) => cuda::remask(c, after, before, kept, mask, share, how),
        None => cpu::remask(after, before, kept, mask, share.f32s(), how),
    }
}

/// Examples and tokens of each.
fn sizes(op: &'static str, t: &Tensor) -> Result<[usize; 2]> {
    let &[b, n] = t.shape() else {
        return Err(Error::op(op, format!("tokens must be [B, N], they are {:?}", t.shape())));
    };
    ensure!(b * n > 0 && b * n < i32::MAX as usize, op, "{t:?} is empty or too large");
    check::integers(op, "tokens", t, t)?;
    Ok([b, n])
}

fn shares(share: &Tensor, b: usize) -> (&Tensor, usize) {
    (share, if share.len() == 1 { 1 } else { b })
}

/// Numbers of the right count, where the tokens `t` are.
fn numbers(op: &'static str, t: &Tensor, all: &[(&Tensor, usize)]) -> Result<()> {
    for (x, len) in all {
        ensure!(
            x.dtype() == DType::F32 && x.len() == *len && x.is_beside(t),
            op,
            "{x:?} must be {len} f32 on {}",
            t.device()
        );
    }
    Ok(())
}

fn check_reveal(op: &'static str, how: Reveal, b: usize, t: &Tensor) -> Result<()> {
    let Reveal::Random { noise, examples } = how else { return Ok(()) };
    check::integers(op, "example ids", examples, t)?;
    noise.check(op, b, t)?;
    ensure!(examples.len() == b, op, "{:?} example ids for {:?}", examples.shape(), t.shape());
    Ok(())
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[[usize; 2]] = match size {
        Size::Tiny => &[[2, 3]],
        Size::Full => &[[1, 1], [3, 20], [5, 197], [2, 1025]],
    };
    let mut out = Vec::new();
    for &[b, n] in shapes {
        for (random, share) in [(true, 0.4), (false, 0.4), (false, 0.01), (true, 1.0), (false, 1.0)] {
            let label = format!("[{b}, {n}] {} of {share}", if random { "random" } else { "confident" });
            let case = Case::new("unmask", label, move |t, vars| {
                let [tokens, log_prob, ids, confidence] = [0, 1, 2, 3].map(|i: usize| vars[i].value().clone());
                let device = tokens.device();
                // One key and share for all, or for each example its own.
                let each = share < 0.1 || b > 2;
                let keys: Vec<(u64, u32)> = (0..b).map(|e| (1 + e as u64, 3 + e as u32)).collect();
                let noise = if each { Noise::of_each(&device, 2, &keys)? } else { Noise::new(&device, 1, 2, 3)? };
                let examples = Tensor::from_u32(&device, &[b], (0..b as u32).map(|e| 7 * e).collect())?;
                let how =
                    if random { Reveal::Random { noise: &noise, examples: &examples } } else { Reveal::Confident };
                let shares: Vec<f32> =
                    if each { (0..b).map(|e| share / (1 + e) as f32).collect() } else { vec![share] };
                let share = Tensor::from_f32(&device, &[shares.len()], shares)?;
                let before = Masked { tokens, log_prob };
                let got = unmask(&before, (&ids, &confidence), 2, &share, how)?;
                // Every fifth token is kept.
                let kept = (0..(b * n) as u32).map(|i| if i % 5 == 0 { i } else { FREE }).collect();
                let kept = Tensor::from_u32(&device, &[b * n], kept)?;
                let again = remask(&got, &before, Some(&kept), 2, &share, how)?;
                let mut v = Vec::new();
                for state in [got, again] {
                    v.extend(state.tokens.to_vec_u32()?.into_iter().map(|t| t as f32));
                    v.extend(state.log_prob.to_vec()?);
                }
                Ok(t.constant(Tensor::from_f32(&Device::Cpu, &[v.len()], v)?))
            });
            // A third of the tokens are masked (2), and chosen tokens are told from those that stay.
            let ids = |seed: u32, base: u32, bound: u32| {
                let v = (0..(b * n) as u32).map(|i| base + crate::rng::philox([i, seed, 0, 0], [1, 2])[0] % bound);
                match Tensor::from_u32(&Device::Cpu, &[b, n], v.collect()) {
                    Ok(t) => t,
                    Err(e) => unreachable!("the length is that of the shape: {e}"),
                }
            };
            out.push(
                case.data("tokens", ids(0, 0, 3))
                    .normal("log_prob", Role::Data, &[b, n], 1.0)
                    .data("chosen", ids(1, 10, 5))
                    .normal("confidence", Role::Data, &[b, n], 1.0),
            );
        }
    }
    out
}
