//! The ops: one folder each, forward beside backward, CPU beside CUDA.
//!
//! `mod.rs` checks shapes, chooses the device and holds the saved values; `cpu.rs` works on slices, `cuda.rs` launches,
//! and the `.cu` file holds the kernels.

pub mod elementwise;
pub mod norm;

use crate::cuda::Source;

/// Kernel files with the parameters they are compiled for (0: none).
pub(crate) fn sources() -> Vec<(&'static Source, &'static [u32])> {
    vec![(&crate::rng::SOURCE, &[0]), (&elementwise::SOURCE, &[0]), (&norm::SOURCE, &[0])]
}

/// One example of every op: for finite differences, for the self-test and for benchmarks.
pub(crate) fn cases(size: crate::cases::Size) -> Vec<crate::cases::Case> {
    [elementwise::cases(size), norm::cases(size)].into_iter().flatten().collect()
}
