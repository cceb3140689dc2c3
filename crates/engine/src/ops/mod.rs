//! The ops: one folder each, forward beside backward, CPU beside CUDA.
//!
//! `mod.rs` checks shapes, chooses the device and holds the saved values; `cpu.rs` works on slices, `cuda.rs` launches,
//! and the `.cu` file holds the kernels.

pub mod attention;
pub mod elementwise;
pub mod norm;

use crate::cases::{Case, Size};
use crate::cuda::Source;

/// Kernel files with the parameters they are compiled for (0: none).
pub(crate) fn sources() -> Vec<(&'static Source, &'static [u32])> {
    let mut all: Vec<(&'static Source, &'static [u32])> = Vec::new();
    all.push((&crate::rng::SOURCE, &[0]));
    all.push((&attention::SOURCE, &attention::SIZES));
    all.push((&attention::SOURCE_F32, &attention::SIZES));
    all.push((&attention::SOURCE_PAD, &[0]));
    all.push((&elementwise::SOURCE, &[0]));
    all.push((&norm::SOURCE, &[0]));
    all
}

/// Examples of every op: for finite differences, for the self-test and for benchmarks.
pub(crate) fn cases(size: Size) -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(attention::cases(size));
    all.extend(elementwise::cases(size));
    all.extend(norm::cases(size));
    all
}
