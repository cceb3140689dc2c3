//! The ops: one folder each, forward beside backward, CPU beside CUDA.
//!
//! `mod.rs` checks shapes, chooses the device and holds the saved values; `cpu.rs` works on slices, `cuda.rs` launches,
//! and the `.cu` file holds the kernels.

pub mod cross_entropy;
pub mod elementwise;
pub mod linear;
pub mod noisy_input;
pub mod mean_square;
mod check;
pub mod dropout;
pub mod elementwise;
pub mod modulate;
pub mod norm;
pub mod patchify;
pub mod tokens;

use crate::cases::{Case, Size};
use crate::cuda::Source;

/// Kernel files with the parameters they are compiled for (0: none).
pub(crate) fn sources() -> Vec<(&'static Source, &'static [u32])> {
    let mut all: Vec<(&'static Source, &'static [u32])> = Vec::new();
    all.push((&crate::rng::SOURCE, &[0]));
    all.push((&crate::optim::SOURCE, &[0]));
    all.push((&elementwise::SOURCE, &[0]));
    all.push((&linear::SOURCE, &[0]));
    all.push((&noisy_input::SOURCE, &[0]));
    all.push((&cross_entropy::SOURCE, &[0]));
    all.push((&elementwise::SOURCE, &[0]));
    all.push((&mean_square::SOURCE, &[0]));
    all.push((&norm::SOURCE, &[0]));
    all.push((&tokens::SOURCE, &[0]));
    all.push((&tokens::EMBED_SOURCE, &[0]));
    all.push((&modulate::SOURCE, &[0]));
    all.push((&patchify::SOURCE, &[0]));
    all.push((&dropout::SOURCE, &[0]));
    all
}

/// Examples of every op: for finite differences, for the self-test and for benchmarks.
pub(crate) fn cases(size: Size) -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(cross_entropy::cases(size));
    all.extend(elementwise::cases(size));
    all.extend(linear::cases(size));
    all.extend(noisy_input::cases(size));
    all.extend(mean_square::cases(size));
    all.extend(norm::cases(size));
    all.extend(tokens::cases(size));
    all.extend(modulate::cases(size));
    all.extend(patchify::cases(size));
    all.extend(dropout::cases(size));
    all
}
