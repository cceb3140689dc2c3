//! Random erasing in timm's pixel mode: after normalisation, a rectangle becomes standard normal noise.

use super::geometry::Rect;
use crate::random::Draw;
use serde::{Deserialize, Serialize};

/// Settings of random erasing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Erase {
    /// Probability per image; 0.25 in the paper's recipe, 0 switches it off.
    pub prob: f64,
    /// Range of the erased share of the image.
    pub area: [f64; 2],
    /// Range of height over width, drawn log-uniformly. timm: 0.3 and its inverse.
    pub ratio: [f64; 2],
}

impl Default for Erase {
    fn default() -> Erase {
        Erase { prob: 0.25, area: [0.02, 1.0 / 3.0], ratio: [0.3, 1.0 / 0.3] }
    }
}

impl Erase {
    /// The rectangle to erase, if any: ten tries at one that is smaller than the image in both directions.
    pub fn rect(&self, draw: &mut Draw, width: usize, height: usize) -> Option<Rect> {
        if !draw.chance(self.prob) {
            return None;
        }
        for _ in 0..10 {
            let area = draw.uniform(self.area[0], self.area[1]) * width.saturating_mul(height) as f64;
            let ratio = draw.uniform(self.ratio[0].ln(), self.ratio[1].ln()).exp();
            let h = (area * ratio).sqrt().round_ties_even() as usize;
            let w = (area / ratio).sqrt().round_ties_even() as usize;
            if w < width && h < height {
                let y = draw.below(height - h + 1);
                let x = draw.below(width - w + 1);
                return Some(Rect { x, y, width: w, height: h });
            }
        }
        None
    }

    /// Fill `rect` of all channels of `image` (C, H, W) with standard normals from `noise`.
    pub fn fill(image: &mut [f32], width: usize, height: usize, rect: Rect, noise: &mut Draw) {
        let Some(size) = width.checked_mul(height).filter(|n| *n > 0) else { return };
        let (from, to) = (rect.x.min(width), rect.x.saturating_add(rect.width).min(width));
        for plane in image.chunks_exact_mut(size) {
            for row in plane.chunks_exact_mut(width).skip(rect.y).take(rect.height) {
                noise.fill_normal(&mut row[from..to]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Stream;

    #[test]
    fn rectangles_keep_their_bounds_and_rate() {
        let erase = Erase::default();
        let n = 20_000;
        let rects: Vec<Rect> =
            (0..n).filter_map(|i| erase.rect(&mut Draw::new(1, Stream::Augment, 0, i), 224, 224)).collect();
        // Five standard errors of a share of 1/4 (a miss in ten tries is rarer than that).
        let error = (0.25f64 * 0.75 / n as f64).sqrt();
        assert!((rects.len() as f64 / n as f64 - 0.25).abs() < 5.0 * error);
        for r in &rects {
            let share = (r.width * r.height) as f64 / (224.0 * 224.0);
            assert!(share > 0.019 && share < 0.336, "{share}"); // rounding of the sides moves it by up to a pixel
            assert!(r.x + r.width <= 224 && r.y + r.height <= 224);
            let ratio = r.height as f64 / r.width as f64;
            assert!(ratio > 0.28 && ratio < 3.55, "{ratio}");
        }
        // The share is uniform up to the rejected tries: its mean is that of U(0.02, 1/3) or a little less.
        let mean = rects.iter().map(|r| (r.width * r.height) as f64).sum::<f64>() / rects.len() as f64 / 50176.0;
        assert!(mean > 0.155 && mean < 0.18, "{mean}");
    }

    #[test]
    fn only_the_rectangle_changes_and_becomes_normal() {
        let (w, h) = (64, 48);
        let mut image = vec![9.0; 3 * w * h];
        let rect = Rect { x: 5, y: 7, width: 51, height: 40 };
        Erase::fill(&mut image, w, h, rect, &mut Draw::new(1, Stream::Erase, 0, 0));
        let mut inside = vec![];
        for (i, &v) in image.iter().enumerate() {
            let (x, y) = (i % w, i / w % h);
            if (5..56).contains(&x) && (7..47).contains(&y) {
                inside.push(v as f64);
            } else {
                assert_eq!(v, 9.0);
            }
        }
        let n = inside.len() as f64;
        assert_eq!(inside.len(), 3 * 51 * 40);
        assert!((inside.iter().sum::<f64>() / n).abs() < 5.0 / n.sqrt());
        assert!((inside.iter().map(|v| v * v).sum::<f64>() / n - 1.0).abs() < 5.0 * (2.0 / n).sqrt());
    }
}
