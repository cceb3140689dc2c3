//! Images as `transformers`' CLIPImageProcessor makes them: resized, cropped, normalised.

use super::config::{Preprocess, Resize};
use crate::augment::Rect;
use crate::augment::geometry::{resized_crop, short_side_size};
use crate::image::Image;
use crate::limits::PIXELS;

/// The image as \[3, side, side\], or what its size came to be instead.
pub fn prepare(image: Image, p: &Preprocess, side: usize) -> Result<Vec<f32>, String> {
    image.check()?;
    let mut image = image.into_channels(3);
    let (width, height) = match p.resize {
        Some(Resize::Short(short)) => short_side_size(image.width, image.height, short),
        Some(Resize::Exact { height, width }) => (width, height),
        None => (image.width, image.height),
    };
    if (width, height) != (image.width, image.height) {
        PIXELS.check((width as u64).saturating_mul(height as u64))?;
        let whole = Rect { x: 0, y: 0, width: image.width, height: image.height };
        image = resized_crop(&image, whole, width, height, p.filter);
    }
    let (rows, columns) = p.crop.unwrap_or((image.height, image.width));
    if (rows, columns) != (side, side) {
        return Err(format!("images come out {rows}x{columns}, the model takes {side}x{side}"));
    }
    // Half a pixel too much goes to the right and below; a smaller image gets black borders.
    let start = |length: usize, crop: usize| (length as isize - crop as isize).div_euclid(2);
    let (top, left) = (start(image.height, rows), start(image.width, columns));
    let mut out = vec![0.0; 3 * side * side];
    for y in 0..side {
        for x in 0..side {
            let (from_y, from_x) = (y as isize + top, x as isize + left);
            let inside = (0..image.height as isize).contains(&from_y) && (0..image.width as isize).contains(&from_x);
            for c in 0..3 {
                let v = if inside { image.pixel(from_x as usize, from_y as usize)[c] as f32 } else { 0.0 };
                out[(c * side + y) * side + x] = (v * p.scale - p.mean[c]) / p.std[c];
            }
        }
    }
    Ok(out)
}
