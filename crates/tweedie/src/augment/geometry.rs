//! Crops, resizing, flips and affine maps, as PIL and torchvision define them.

use crate::image::Image;
use crate::random::Draw;
use crate::simd::simd;
use fast_image_resize as fir;
use fir::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fir::pixels::U8x3;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;

/// How pixel values between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// Linear in both directions.
    Bilinear,
    /// Cubic convolution with a = −1/2.
    Bicubic,
    /// One of the two, drawn for each image and op, as timm does by default.
    Random,
}

impl Interpolation {
    pub(crate) fn resolve(self, draw: &mut Draw) -> Interpolation {
        match self {
            Interpolation::Random if draw.below(2) == 0 => Interpolation::Bilinear,
            Interpolation::Random => Interpolation::Bicubic,
            fixed => fixed,
        }
    }
}

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// First column.
    pub x: usize,
    /// First row.
    pub y: usize,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

impl Rect {
    /// What of it lies inside an image.
    fn inside(self, image: &Image) -> Rect {
        let (x, y) = (self.x.min(image.width), self.y.min(image.height));
        Rect { x, y, width: self.width.min(image.width - x), height: self.height.min(image.height - y) }
    }
}

thread_local! {
    /// The resizer with its scratch buffers, and the image between the two passes.
    static RESIZER: RefCell<(fir::Resizer, Vec<u8>)> = RefCell::new((fir::Resizer::new(), Vec::new()));
    /// The pixels of an affine map's input.
    static WIDE: RefCell<Vec<[f32; 4]>> = const { RefCell::new(Vec::new()) };
}

/// Crop, then resize with an antialiased filter: PIL's `crop(...).resize(...)` to within one level per value (the
/// filter weights have 15 bits or so here and 22 in PIL). Pixels outside the crop do not bleed in. Of a crop that reaches
/// over the edges what lies inside is taken; where nothing does, or of no image ([`Image::check`]), comes black.
pub fn resized_crop(image: &Image, crop: Rect, width: usize, height: usize, filter: Interpolation) -> Image {
    let crop = crop.inside(image);
    if image.channels == 1 {
        // Small grey images are not worth a second copy of the resizer's code, which is slow to compile.
        return resized_crop(&image.clone().into_channels(3), crop, width, height, filter).into_channels(1);
    }
    let filter =
        if filter == Interpolation::Bilinear { fir::FilterType::Bilinear } else { fir::FilterType::CatmullRom };
    let options = fir::ResizeOptions::new().resize_alg(fir::ResizeAlg::Convolution(filter)).use_alpha(false);
    let mut out = vec![0; width * height * 3];
    let done = RESIZER.with_borrow_mut(|(resizer, narrow)| {
        let whole = TypedImageRef::<U8x3>::from_buffer(image.width as u32, image.height as u32, &image.data).ok()?;
        let [x, y, w, h] = [crop.x, crop.y, crop.width, crop.height].map(|v| v as u32);
        let cut = TypedCroppedImage::from_ref(&whole, x, y, w, h).ok()?;
        // PIL's order, row by row first. It shows where a sharp edge overshoots, since values are clipped in between.
        narrow.resize(width * crop.height * 3, 0);
        let mut to = TypedImage::<U8x3>::from_buffer(width as u32, h, narrow).ok()?;
        resizer.resize_typed(&cut, &mut to, &options).ok()?;
        let from = TypedImageRef::<U8x3>::from_buffer(width as u32, h, narrow).ok()?;
        let mut to = TypedImage::<U8x3>::from_buffer(width as u32, height as u32, &mut out).ok()?;
        resizer.resize_typed(&from, &mut to, &options).ok()
    });
    if done.is_none() {
        out.fill(0);
    }
    Image { width, height, channels: 3, data: out }
}

/// The rectangle of a random-resized crop (torchvision, timm): ten tries at an area of `scale` times the image's and an
/// aspect ratio log-uniform in `ratio`; then the largest centred crop whose ratio is allowed.
pub fn random_crop_rect(draw: &mut Draw, width: usize, height: usize, scale: [f64; 2], ratio: [f64; 2]) -> Rect {
    let (width, height) = (width.max(1), height.max(1));
    let area = width.saturating_mul(height) as f64;
    for _ in 0..10 {
        let target = draw.uniform(scale[0], scale[1]) * area;
        let aspect = draw.uniform(ratio[0].ln(), ratio[1].ln()).exp();
        let w = (target * aspect).sqrt().round_ties_even() as usize;
        let h = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let y = draw.below(height - h + 1);
            let x = draw.below(width - w + 1);
            return Rect { x, y, width: w, height: h };
        }
    }
    central_rect(width, height, ratio)
}

/// The largest centred rectangle with an aspect ratio inside `ratio`.
fn central_rect(width: usize, height: usize, ratio: [f64; 2]) -> Rect {
    let is = width as f64 / height as f64;
    let (w, h) = if is < ratio[0] {
        (width, ((width as f64 / ratio[0]).round_ties_even() as usize).clamp(1, height))
    } else if is > ratio[1] {
        (((height as f64 * ratio[1]).round_ties_even() as usize).clamp(1, width), height)
    } else {
        (width, height)
    };
    Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
}

/// The whole image, or the middle of one that is more than eight times as long as it is wide: a centre crop shows no more
/// of it, and resizing all of it could take gigabytes.
pub(crate) fn central_part(width: usize, height: usize) -> Rect {
    let (w, h) = (width.min(8 * height), height.min(8 * width));
    Rect { x: (width - w) / 2, y: (height - h) / 2, width: w, height: h }
}

/// The size that torchvision's `Resize(short)` gives: the shorter side becomes `short`, the longer is cut to an integer. A side of
/// 0 counts as 1.
pub fn short_side_size(width: usize, height: usize, short: usize) -> (usize, usize) {
    let (width, height) = (width.max(1), height.max(1));
    if width <= height {
        (short, short.saturating_mul(height) / width)
    } else {
        (short.saturating_mul(width) / height, short)
    }
}

/// The centred square of `size` (torchvision's `CenterCrop`, which rounds half to even); smaller images are padded with
/// zeros.
pub fn center_crop(image: &Image, size: usize) -> Image {
    let offset = |length: usize| (((length as f64 - size as f64) / 2.0).round_ties_even()) as isize;
    if image.width >= size && image.height >= size {
        return window(image, offset(image.width), offset(image.height), size, size, |_, _| None);
    }
    // torchvision pads (size − length)/2 before and (size − length + 1)/2 after, then crops what is still too large.
    let before = |length: usize| {
        if length < size { -(((size - length) / 2) as isize) } else { offset(length) }
    };
    window(image, before(image.width), before(image.height), size, size, |_, _| None)
}

/// Further from an edge than any window.
const FAR: usize = 1 << 40;

/// How a border is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Padding {
    /// Black.
    Zero,
    /// The image mirrored, the edge pixel not repeated.
    Reflect,
}

/// The `size`×`size` window at (`x`, `y`) of the image padded by `pad` on all sides, and further where it reaches beyond.
pub fn padded_crop(image: &Image, pad: usize, x: usize, y: usize, size: usize, padding: Padding) -> Image {
    let mirror = |at: isize, n: usize| {
        let period = 2 * (n as isize - 1).max(1);
        let m = at.rem_euclid(period);
        if m < n as isize { m } else { (period - m).min(n as isize - 1) }
    };
    let from = |at: usize| at.min(FAR) as isize - pad.min(FAR) as isize;
    window(image, from(x), from(y), size, size, |x, y| match padding {
        Padding::Zero => None,
        Padding::Reflect => Some((mirror(x, image.width) as usize, mirror(y, image.height) as usize)),
    })
}

/// Copy a window that may reach over the edges; `outside` says where a pixel beyond them comes from (none: zero). Of no image it
/// is black.
fn window(
    image: &Image,
    left: isize,
    top: isize,
    width: usize,
    height: usize,
    outside: impl Fn(isize, isize) -> Option<(usize, usize)>,
) -> Image {
    let c = image.channels;
    let mut out = Image { width, height, channels: c, data: vec![0; width * height * c] };
    let (w, h) = (image.width as isize, image.height as isize);
    if image.check().is_err() {
        return out;
    }
    for (row, line) in out.data.chunks_exact_mut((width * c).max(1)).enumerate() {
        let y = top + row as isize;
        if (0..h).contains(&y) && left >= 0 && left + width as isize <= w {
            let at = (y * w + left) as usize * c;
            line.copy_from_slice(&image.data[at..at + width * c]);
            continue;
        }
        for (column, pixel) in line.chunks_exact_mut(c).enumerate() {
            let x = left + column as isize;
            let from =
                if (0..w).contains(&x) && (0..h).contains(&y) { Some((x as usize, y as usize)) } else { outside(x, y) };
            if let Some((x, y)) = from {
                pixel.copy_from_slice(image.pixel(x, y));
            }
        }
    }
    out
}

/// Mirror left and right, in place.
pub fn flip(image: &mut Image) {
    match image.channels {
        _ if image.check().is_err() => {}
        1 => image.data.chunks_exact_mut(image.width).for_each(<[u8]>::reverse),
        c => image.data.chunks_exact_mut(image.width * c).for_each(|row| row.as_chunks_mut::<3>().0.reverse()),
    }
}

/// PIL's `transform(size, AFFINE, m)`: the output pixel with centre (x, y) is the input at (m₀x + m₁y + m₂,
/// m₃x + m₄y + m₅), `fill` (a value per channel; 0 for those that it lacks) where that lies outside. Equal to PIL to the bit: the
/// same f64 expressions, cut to an integer. Something that is no image stays as it is.
pub fn affine(image: &Image, m: [f64; 6], filter: Interpolation, fill: &[u8]) -> Image {
    if image.check().is_err() {
        return image.clone();
    }
    match (image.channels, filter) {
        (1, Interpolation::Bilinear) => affine_typed::<1, false>(image, m, fill),
        (1, _) => affine_typed::<1, true>(image, m, fill),
        (_, Interpolation::Bilinear) => affine_typed::<3, false>(image, m, fill),
        _ => affine_typed::<3, true>(image, m, fill),
    }
}

fn affine_typed<const C: usize, const CUBIC: bool>(image: &Image, m: [f64; 6], fill: &[u8]) -> Image {
    let fill: [u8; C] = std::array::from_fn(|c| fill.get(c).copied().unwrap_or(0));
    let mut out = Image::filled(image.width, image.height, &fill);
    WIDE.with_borrow_mut(|pixels| {
        // A pixel as four lanes: one vector of f64 in the loop.
        pixels.clear();
        let lanes = |p: &[u8; C]| std::array::from_fn(|c| if c < C { p[c] as f32 } else { 0.0 });
        pixels.extend(image.data.as_chunks::<C>().0.iter().map(lanes));
        simd(
            #[inline(always)]
            || affine_loop::<C, CUBIC>(pixels, image.width, image.height, m, &mut out.data),
        );
    });
    out
}

#[inline(always)]
fn affine_loop<const C: usize, const CUBIC: bool>(
    pixels: &[[f32; 4]],
    w: usize,
    h: usize,
    m: [f64; 6],
    out: &mut [u8],
) {
    let (right, bottom) = (w as isize - 1, h as isize - 1);
    for (row, line) in out.chunks_exact_mut(w * C).enumerate() {
        let y = row as f64 + 0.5;
        for (column, to) in line.as_chunks_mut::<C>().0.iter_mut().enumerate() {
            let x = column as f64 + 0.5;
            let sx = m[0] * x + m[1] * y + m[2];
            let sy = m[3] * x + m[4] * y + m[5];
            if sx < 0.0 || sx >= w as f64 || sy < 0.0 || sy >= h as f64 {
                continue;
            }
            let (sx, sy) = (sx - 0.5, sy - 0.5);
            let (fx, fy) = (sx.floor(), sy.floor());
            let (dx, dy) = (sx - fx, sy - fy);
            let (x0, y0) = (fx as isize, fy as isize);
            // Shears and shifts along one axis leave the other at whole pixels, where both curves pass through them: the value
            // is the same to the bit without their neighbours.
            let line = |k: isize| &pixels[(y0 + k).clamp(0, bottom) as usize * w..][..w];
            let at = |k: isize| (x0 + k).clamp(0, right) as usize;
            let value = if dy == 0.0 {
                let line = line(0);
                if CUBIC {
                    cubic([wide(line[at(-1)]), wide(line[at(0)]), wide(line[at(1)]), wide(line[at(2)])], dx)
                } else {
                    linear(wide(line[at(0)]), wide(line[at(1)]), dx)
                }
            } else if dx == 0.0 {
                let x = at(0);
                if CUBIC {
                    cubic([wide(line(-1)[x]), wide(line(0)[x]), wide(line(1)[x]), wide(line(2)[x])], dy)
                } else {
                    linear(wide(line(0)[x]), wide(line(1)[x]), dy)
                }
            } else if CUBIC {
                let xs: [usize; 4] = std::array::from_fn(|k| (x0 + k as isize - 1).clamp(0, right) as usize);
                let mut v = [[0.0; 4]; 4];
                for (k, v) in v.iter_mut().enumerate() {
                    let line = &pixels[(y0 + k as isize - 1).clamp(0, bottom) as usize * w..][..w];
                    *v = cubic([wide(line[xs[0]]), wide(line[xs[1]]), wide(line[xs[2]]), wide(line[xs[3]])], dx);
                }
                cubic(v, dy)
            } else {
                let xs: [usize; 2] = std::array::from_fn(|k| (x0 + k as isize).clamp(0, right) as usize);
                let mut v = [[0.0; 4]; 2];
                for (k, v) in v.iter_mut().enumerate() {
                    let line = &pixels[(y0 + k as isize).clamp(0, bottom) as usize * w..][..w];
                    *v = linear(wide(line[xs[0]]), wide(line[xs[1]]), dx);
                }
                linear(v[0], v[1], dy)
            };
            *to = std::array::from_fn(|c| value[c] as u8); // `as` saturates, as PIL's clipping does
        }
    }
}

#[inline(always)]
fn wide(p: [f32; 4]) -> [f64; 4] {
    std::array::from_fn(|c| p[c] as f64) // `map` leaves calls in the loop
}

#[inline(always)]
fn linear(a: [f64; 4], b: [f64; 4], d: f64) -> [f64; 4] {
    std::array::from_fn(|c| a[c] + (b[c] - a[c]) * d)
}

#[inline(always)]
fn cubic([v1, v2, v3, v4]: [[f64; 4]; 4], d: f64) -> [f64; 4] {
    std::array::from_fn(|c| {
        let p2 = -v1[c] + v3[c];
        let p3 = 2.0 * (v1[c] - v2[c]) + v3[c] - v4[c];
        let p4 = -v1[c] + v2[c] - v3[c] + v4[c];
        v2[c] + d * (p2 + d * (p3 + d * p4))
    })
}

/// PIL's `rotate(degrees)` about the centre, counter-clockwise, size unchanged.
pub fn rotate(image: &Image, degrees: f64, filter: Interpolation, fill: &[u8]) -> Image {
    if degrees.rem_euclid(360.0) == 0.0 {
        return image.clone();
    }
    let (cx, cy) = (image.width as f64 / 2.0, image.height as f64 / 2.0);
    let angle = -degrees.rem_euclid(360.0).to_radians();
    let round15 = |v: f64| (v * 1e15).round() / 1e15;
    let (cos, sin) = (round15(angle.cos()), round15(angle.sin()));
    let m = [cos, sin, cos * -cx + sin * -cy + cx, -sin, cos, -sin * -cx + cos * -cy + cy];
    affine(image, m, filter, fill)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(width: usize, height: usize, channels: usize) -> Image {
        Image { width, height, channels, data: (0..width * height * channels).map(|i| i as u8).collect() }
    }

    #[test]
    fn flipping_mirrors_columns() {
        for channels in [1, 3] {
            let image = counted(5, 3, channels);
            let mut flipped = image.clone();
            flip(&mut flipped);
            for (x, y) in (0..5).flat_map(|x| (0..3).map(move |y| (x, y))) {
                assert_eq!(flipped.pixel(x, y), image.pixel(4 - x, y));
            }
        }
    }

    /// numpy: `np.pad([0, 1, 2, 3], 2, mode="reflect")` is 2 1 0 1 2 3 2 1.
    #[test]
    fn padded_crops_are_windows_of_the_padded_image() {
        let image = counted(4, 4, 1);
        let row = |padding, x, y| padded_crop(&image, 2, x, y, 4, padding).data[..4].to_vec();
        assert_eq!(padded_crop(&image, 2, 2, 2, 4, Padding::Zero), image);
        assert_eq!(row(Padding::Reflect, 0, 2), [2, 1, 0, 1]);
        assert_eq!(row(Padding::Reflect, 4, 2), [2, 3, 2, 1]);
        assert_eq!(row(Padding::Reflect, 2, 0), [8, 9, 10, 11]);
        assert_eq!(row(Padding::Zero, 0, 2), [0, 0, 0, 1]);
        assert_eq!(row(Padding::Zero, 2, 1), [0, 0, 0, 0]);
        // A border wider than the image goes back and forth.
        assert_eq!(padded_crop(&counted(2, 1, 1), 4, 0, 4, 4, Padding::Reflect).data[..4], [0, 1, 0, 1]);
    }

    /// torchvision rounds half to even: 5 → 2 starts at round(1.5) = 2, 7 → 2 at round(2.5) = 2; 3 → 4 is padded below.
    #[test]
    fn centre_crops_follow_torchvision() {
        assert_eq!(center_crop(&counted(5, 2, 1), 2).data, [2, 3, 7, 8]);
        assert_eq!(center_crop(&counted(7, 2, 1), 2).data, [2, 3, 9, 10]);
        let padded = center_crop(&counted(3, 3, 1), 4);
        assert_eq!(padded.data, [0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_quarter_turn_is_exact() {
        let image = counted(4, 4, 3);
        let rotated = rotate(&image, 90.0, Interpolation::Bilinear, &[0; 3]);
        for (x, y) in (0..4).flat_map(|x| (0..4).map(move |y| (x, y))) {
            assert_eq!(rotated.pixel(x, y), image.pixel(3 - y, x)); // counter-clockwise
        }
    }
}
