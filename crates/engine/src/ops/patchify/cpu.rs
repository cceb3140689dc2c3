//! Patches on the CPU: runs of `patch` pixels move between image rows and patch rows.

use super::Cut;
use crate::cpu::par;

pub(super) fn forward(images: &[f32], cut: Cut, y: &mut [f32]) {
    let Cut { channels, height, width, patch, .. } = cut;
    let (len, per_image, across) = (cut.patch_len(), cut.patches(), width / patch);
    par::rows(y, len, len, |first, y| {
        for (r, y) in y.chunks_exact_mut(len).enumerate() {
            let (b, cell) = ((first + r) / per_image, (first + r) % per_image);
            let (top, left) = (cell / across * patch, cell % across * patch);
            for (i, run) in y.chunks_exact_mut(patch).enumerate() {
                let (c, py) = (i / patch, i % patch);
                let from = ((b * channels + c) * height + top + py) * width + left;
                run.copy_from_slice(&images[from..from + patch]);
            }
        }
    });
}

pub(super) fn backward(dy: &[f32], cut: Cut, dimages: &mut [f32], acc: bool) {
    let Cut { channels, height, width, patch, .. } = cut;
    let (len, per_image, across) = (cut.patch_len(), cut.patches(), width / patch);
    par::rows(dimages, width, width, |first, rows| {
        for (r, row) in rows.chunks_exact_mut(width).enumerate() {
            let (plane, y) = ((first + r) / height, (first + r) % height);
            let (b, c) = (plane / channels, plane % channels);
            for (gx, run) in row.chunks_exact_mut(patch).enumerate() {
                let cell = b * per_image + y / patch * across + gx;
                let from = cell * len + (c * patch + y % patch) * patch;
                for (to, g) in run.iter_mut().zip(&dy[from..from + patch]) {
                    *to = if acc { *to + g } else { *g };
                }
            }
        }
    });
}
