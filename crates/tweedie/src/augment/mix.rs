//! Mixup and cutmix on whole batches, as timm's `Mixup(mode="batch")`: image i is mixed with image B−1−i, all with the
//! same λ.

use super::geometry::Rect;
use crate::random::{Draw, Stream};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Settings of mixup and cutmix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MixConfig {
    /// λ ~ Beta(α, α) for mixup; 0 switches it off (the paper's recipe has none; 0.8 is DeiT's).
    pub mixup_alpha: f64,
    /// λ ~ Beta(α, α) for cutmix; 0 switches it off (1.0 is DeiT's).
    pub cutmix_alpha: f64,
    /// Share of batches that are mixed.
    pub prob: f64,
    /// Share of cutmix among mixed batches when both are on.
    pub switch_prob: f64,
}

impl Default for MixConfig {
    fn default() -> MixConfig {
        MixConfig { mixup_alpha: 0.0, cutmix_alpha: 0.0, prob: 1.0, switch_prob: 0.5 }
    }
}

/// How a batch was mixed: the target of image i is λ·y(i) + (1 − λ)·y(partner(i)).
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Weight of the image's own label; for cutmix the share of its own pixels.
    pub lambda: f32,
    /// Position in the batch of each image's partner.
    pub partner: Vec<u32>,
    /// The rectangle that was exchanged (cutmix), or none (mixup).
    pub cut: Option<Rect>,
}

impl MixConfig {
    /// Whether any batch can be mixed.
    pub fn is_on(&self) -> bool {
        (self.mixup_alpha > 0.0 || self.cutmix_alpha > 0.0) && self.prob > 0.0
    }

    /// The mix of batch number `batch` of an epoch, if it is mixed.
    pub fn draw(&self, seed: u64, epoch: u32, batch: u32, images: usize, width: usize, height: usize) -> Option<Mix> {
        let draw = &mut Draw::new(seed, Stream::Mix, epoch, batch);
        let (mixup, cutmix) = (self.mixup_alpha > 0.0, self.cutmix_alpha > 0.0);
        if !self.is_on() || !draw.chance(self.prob) {
            return None;
        }
        let cutmix = cutmix && (!mixup || draw.chance(self.switch_prob));
        let lambda = draw.beta(if cutmix { self.cutmix_alpha } else { self.mixup_alpha });
        let partner = (0..images as u32).rev().collect();
        if !cutmix {
            return Some(Mix { lambda: lambda as f32, partner, cut: None });
        }
        let cut = cut_rect(draw, lambda, width, height);
        // The box may reach over the edge, so λ is what is left of the image's own area.
        let lambda = 1.0 - (cut.width * cut.height) as f64 / (width * height).max(1) as f64;
        Some(Mix { lambda: lambda as f32, partner, cut: Some(cut) })
    }
}

/// timm's `rand_bbox`: sides √(1−λ) of the image's, centre anywhere, clipped at the edges.
fn cut_rect(draw: &mut Draw, lambda: f64, width: usize, height: usize) -> Rect {
    let side = |n: usize| (n as f64 * (1.0 - lambda).sqrt()) as usize;
    let (w, h) = (side(width), side(height));
    let (cy, cx) = (draw.below(height), draw.below(width));
    let (x0, x1) = (cx.saturating_sub(w / 2), (cx + w.div_ceil(2)).min(width));
    let (y0, y1) = (cy.saturating_sub(h / 2), (cy + h.div_ceil(2)).min(height));
    Rect { x: x0, y: y0, width: x1 - x0, height: y1 - y0 }
}

impl Mix {
    /// Mix a batch (B, C, H, W) in place. Runs on the current rayon pool.
    pub fn apply(&self, images: &mut [f32], channels: usize, width: usize, height: usize) {
        let n = images.len() / channels.saturating_mul(width).saturating_mul(height).max(1);
        self.apply_to(images, &(0..n).rev().collect::<Vec<_>>(), channels, width, height);
    }

    /// Mix the first of some images (N, C, H, W), each with the one that `partners` names by its place among them; those
    /// behind are there to be mixed with. Partners of each other are mixed in place.
    pub(crate) fn apply_to(
        &self,
        images: &mut [f32],
        partners: &[usize],
        channels: usize,
        width: usize,
        height: usize,
    ) {
        let size = channels.saturating_mul(width).saturating_mul(height);
        let inside = |cut: Rect| {
            cut.x.checked_add(cut.width).is_some_and(|x| x <= width)
                && cut.y.checked_add(cut.height).is_some_and(|y| y <= height)
        };
        if size == 0 || !self.cut.is_none_or(inside) {
            return; // nothing to mix, or the mix of other images
        }
        let n = images.len() / size;
        if partners.len() == n && partners.iter().rev().copied().eq(0..n) {
            let (first, second) = images.split_at_mut(n / 2 * size);
            // With an odd number the middle image is its own partner and stays as it is.
            let pairs = first.par_chunks_exact_mut(size).zip(second.par_chunks_exact_mut(size).rev());
            return pairs.for_each(|(a, b)| self.exchange(a, b, channels, width, height));
        }
        let before = images.to_vec();
        let own = images.par_chunks_exact_mut(size).zip(partners).enumerate();
        own.filter(|(i, (_, partner))| i != *partner).for_each(|(_, (own, &partner))| {
            if let Some(partner) = before.get(partner * size..(partner + 1) * size) {
                self.exchange(own, &mut partner.to_vec(), channels, width, height);
            }
        });
    }

    /// Mix two images with each other.
    fn exchange(&self, a: &mut [f32], b: &mut [f32], channels: usize, width: usize, height: usize) {
        let Some(cut) = self.cut else {
            let l = self.lambda;
            for (a, b) in a.iter_mut().zip(b) {
                (*a, *b) = (*a * l + *b * (1.0 - l), *b * l + *a * (1.0 - l));
            }
            return;
        };
        let rows = |plane: usize| (0..cut.height).map(move |r| (plane * height + cut.y + r) * width + cut.x);
        for at in (0..channels).flat_map(rows) {
            a[at..at + cut.width].swap_with_slice(&mut b[at..at + cut.width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixup_is_the_convex_sum_with_the_flipped_batch() {
        let mix = Mix { lambda: 0.75, partner: vec![2, 1, 0], cut: None };
        let mut x: Vec<f32> = vec![0.0, 1.0, 10.0, 11.0, 20.0, 21.0];
        mix.apply(&mut x, 1, 2, 1);
        assert_eq!(x, [5.0, 6.0, 10.0, 11.0, 15.0, 16.0]);
    }

    /// A part of a batch, with its partners behind it, is mixed as the whole is, to the bit.
    #[test]
    fn a_part_is_mixed_as_the_whole() {
        let config = MixConfig { mixup_alpha: 0.8, cutmix_alpha: 1.0, ..MixConfig::default() };
        let (w, h, size) = (5, 3, 2 * 5 * 3);
        let plain: Vec<f32> = (0..7 * size).map(|i| (i * 37 % 101) as f32 / 7.0).collect();
        for batch in 0..20 {
            let mix = config.draw(1, 0, batch, 7, w, h).unwrap();
            let mut whole = plain.clone();
            mix.apply(&mut whole, 2, w, h);
            // Rows 1 to 3: the partners 5 and 4 come behind, 3 is its own.
            let mut part: Vec<f32> =
                [1, 2, 3, 4, 5].iter().flat_map(|r| plain[r * size..(r + 1) * size].to_vec()).collect();
            mix.apply_to(&mut part, &[4, 3, 2], 2, w, h);
            assert_eq!(part[..3 * size], whole[size..4 * size]);
            assert_eq!(part[3 * size..], plain[4 * size..6 * size]);
        }
    }

    #[test]
    fn cutmix_lambda_is_the_share_of_own_pixels() {
        let config = MixConfig { cutmix_alpha: 1.0, ..MixConfig::default() };
        let (w, h) = (14, 9);
        for batch in 0..200 {
            let mix = config.draw(3, 0, batch, 4, w, h).unwrap();
            let mut x: Vec<f32> = (0..4).flat_map(|i| vec![i as f32; 2 * w * h]).collect();
            mix.apply(&mut x, 2, w, h);
            for (i, image) in x.chunks(2 * w * h).enumerate() {
                let own = image.iter().filter(|&&v| v == i as f32).count() as f32 / image.len() as f32;
                assert!((own - mix.lambda).abs() < 1e-6);
                assert!(image.iter().all(|&v| v == i as f32 || v == mix.partner[i] as f32));
            }
        }
    }

    #[test]
    fn both_kinds_occur_at_their_rates() {
        let config = MixConfig { mixup_alpha: 0.8, cutmix_alpha: 1.0, prob: 0.5, switch_prob: 0.25 };
        let mixes: Vec<Mix> = (0..8000).filter_map(|b| config.draw(3, 1, b, 2, 8, 8)).collect();
        let share = mixes.len() as f64 / 8000.0;
        assert!((share - 0.5).abs() < 5.0 * (0.25f64 / 8000.0).sqrt());
        let cut = mixes.iter().filter(|m| m.cut.is_some()).count() as f64 / mixes.len() as f64;
        assert!((cut - 0.25).abs() < 5.0 * (0.1875 / mixes.len() as f64).sqrt());
        assert_eq!(MixConfig::default().draw(3, 1, 0, 2, 8, 8), None);
    }
}
