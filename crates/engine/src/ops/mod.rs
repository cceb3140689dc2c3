//! The ops: one folder each, forward beside backward, CPU beside CUDA.
//!
//! `mod.rs` checks shapes, chooses the device and holds the saved values; `cpu.rs` works on slices, `cuda.rs` launches,
//! and the `.cu` file holds the kernels.

pub mod attention;
pub mod blend;
pub(crate) mod check;
pub mod choose;
pub mod cross_entropy;
pub mod dropout;
pub mod elementwise;
pub mod linear;
pub mod mean_square;
pub mod modulate;
pub mod noisy_input;
pub mod norm;
pub mod patchify;
pub mod rotary;
pub mod softmax;
pub mod token_scores;
pub mod tokens;
pub mod unmask;

use crate::cases::{Case, Size};
use crate::cuda::Source;

/// Kernel files with the parameters they are compiled for (0: none).
pub(crate) fn sources() -> Vec<(&'static Source, &'static [u32])> {
    vec![
        (&crate::rng::SOURCE, &[0]),
        (&crate::optim::SOURCE, &[0]),
        (&crate::optim::muon::SOURCE, &[0]),
        (&attention::SOURCE, &attention::SIZES),
        (&attention::SOURCE_FEW, &attention::SIZES),
        (&attention::SOURCE_BWD, &attention::SIZES),
        (&attention::SOURCE_SHORT, &attention::SIZES),
        (&attention::SOURCE_GROUP, &attention::GROUP_SIZES),
        (&attention::SOURCE_GROUP_BWD, &attention::GROUP_SIZES),
        (&attention::SOURCE_F32, &attention::SIZES),
        (&attention::SOURCE_PAD, &[0]),
        (&attention::SOURCE_KEYS, &[0]),
        (&blend::SOURCE, &[0]),
        (&choose::SOURCE, &[0]),
        (&cross_entropy::SOURCE, &[0]),
        (&dropout::SOURCE, &[0]),
        (&elementwise::SOURCE, &[0]),
        (&linear::SOURCE, &[0]),
        (&mean_square::SOURCE, &[0]),
        (&modulate::SOURCE, &[0]),
        (&noisy_input::SOURCE, &[0]),
        (&norm::SOURCE, &[0]),
        (&patchify::SOURCE, &[0]),
        (&rotary::SOURCE, &[0]),
        (&softmax::SOURCE, &[0]),
        (&token_scores::SOURCE, &[0]),
        (&tokens::SOURCE, &[0]),
        (&tokens::EMBED_SOURCE, &[0]),
        (&unmask::SOURCE, &[0]),
    ]
}

/// Examples of every op: for finite differences, for the self-test and for benchmarks.
pub(crate) fn cases(size: Size) -> Vec<Case> {
    let lists = [
        attention::cases,
        blend::cases,
        choose::cases,
        cross_entropy::cases,
        dropout::cases,
        elementwise::cases,
        linear::cases,
        mean_square::cases,
        modulate::cases,
        noisy_input::cases,
        norm::cases,
        patchify::cases,
        rotary::cases,
        softmax::cases,
        token_scores::cases,
        tokens::cases,
        unmask::cases,
    ];
    lists.iter().flat_map(|cases| cases(size)).collect()
}
