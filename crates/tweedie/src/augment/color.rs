//! PIL's point operations and enhancers: AutoContrast, Equalize, Invert, Posterize, Solarize, Color, Contrast,
//! Brightness, Sharpness. All in place, all equal to PIL to the bit. [`Op`](super::Op) names them.

use crate::image::{Image, luma};

type Lut = [u8; 256];

fn lut(f: impl Fn(usize) -> u8) -> Lut {
    std::array::from_fn(f)
}

fn apply(image: &mut Image, lut: &Lut) {
    image.data.iter_mut().for_each(|v| *v = lut[*v as usize]);
}

fn apply_each(image: &mut Image, luts: &[Lut]) {
    match luts {
        [one] => apply(image, one),
        _ => image.data.chunks_exact_mut(luts.len()).for_each(|p| {
            for (v, l) in p.iter_mut().zip(luts) {
                *v = l[*v as usize];
            }
        }),
    }
}

fn histograms(image: &Image) -> Vec<[u32; 256]> {
    let channels = image.channels.max(1); // there is no image with none
    let mut h = vec![[0; 256]; channels];
    for pixel in image.data.chunks_exact(channels) {
        for (h, &v) in h.iter_mut().zip(pixel) {
            h[v as usize] += 1;
        }
    }
    h
}

/// `ImageOps.autocontrast`: each channel stretched so that its darkest value is 0 and its lightest 255.
pub fn auto_contrast(image: &mut Image) {
    let luts: Vec<Lut> = histograms(image)
        .iter()
        .map(|h| {
            let low = h.iter().position(|&n| n > 0).unwrap_or(255);
            let high = h.iter().rposition(|&n| n > 0).unwrap_or(0);
            if high <= low {
                return lut(|i| i as u8);
            }
            let scale = 255.0 / (high - low) as f64;
            let offset = -(low as f64) * scale;
            lut(|i| (i as f64 * scale + offset) as u8)
        })
        .collect();
    apply_each(image, &luts);
}

/// `ImageOps.equalize`: each channel's histogram made flat.
pub fn equalize(image: &mut Image) {
    let luts: Vec<Lut> = histograms(image)
        .iter()
        .map(|h| {
            let used = h.iter().filter(|&&n| n > 0).count();
            let last = h.iter().rev().find(|&&n| n > 0).copied().unwrap_or(0);
            let step = (h.iter().sum::<u32>() - last) / 255;
            if used <= 1 || step == 0 {
                return lut(|i| i as u8);
            }
            let mut n = step / 2;
            let mut table = [0; 256];
            for (t, count) in table.iter_mut().zip(h) {
                *t = (n / step).min(255) as u8;
                n += count;
            }
            table
        })
        .collect();
    apply_each(image, &luts);
}

/// `ImageOps.invert`.
pub fn invert(image: &mut Image) {
    image.data.iter_mut().for_each(|v| *v = 255 - *v);
}

/// `ImageOps.posterize`: keep the `bits` highest bits; 8 or more change nothing.
pub fn posterize(image: &mut Image, bits: u32) {
    let mask = if bits >= 8 { 255 } else { !(255_u16 >> bits) as u8 };
    image.data.iter_mut().for_each(|v| *v &= mask);
}

/// `ImageOps.solarize`: invert values at or above `threshold`.
pub fn solarize(image: &mut Image, threshold: u32) {
    apply(image, &lut(|i| if (i as u32) < threshold { i as u8 } else { 255 - i as u8 }));
}

/// timm's `solarize_add`: add to values below 128.
pub fn solarize_add(image: &mut Image, add: u32) {
    apply(image, &lut(|i| if i < 128 { (i as u32).saturating_add(add).min(255) as u8 } else { i as u8 }));
}

/// `Image.blend` of one value: f32 as in PIL, cut to an integer. Beyond [0, 1] the result is clipped, which `as` does.
#[inline(always)]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    (from as f32 + factor * (to as i32 - from as i32) as f32) as u8
}

/// `ImageEnhance.Brightness`: blend with black.
pub fn brightness(image: &mut Image, factor: f32) {
    if factor != 1.0 {
        apply(image, &lut(|i| blend(0, i as u8, factor)));
    }
}

/// `ImageEnhance.Contrast`: blend with the mean grey.
pub fn contrast(image: &mut Image, factor: f32) {
    if factor == 1.0 || image.check().is_err() {
        return;
    }
    let sum: u64 = match image.channels {
        1 => image.data.iter().map(|&v| v as u64).sum(),
        c => image.data.chunks_exact(c).map(|p| luma(p) as u64).sum(),
    };
    let mean = (sum as f64 / (image.width * image.height) as f64 + 0.5) as u8;
    apply(image, &lut(|i| blend(mean, i as u8, factor)));
}

/// `ImageEnhance.Color`: blend with the grey image. Grey images stay as they are.
pub fn color(image: &mut Image, factor: f32) {
    if factor == 1.0 || image.channels != 3 {
        return;
    }
    for p in image.data.as_chunks_mut::<3>().0 {
        let grey = luma(p);
        *p = p.map(|v| blend(grey, v, factor));
    }
}

/// `ImageEnhance.Sharpness`: blend with the image smoothed by 3×3 weights of 1 around 5, over 13; the border is kept.
pub fn sharpness(image: &mut Image, factor: f32) {
    let (w, h, c) = (image.width, image.height, image.channels);
    if factor == 1.0 || w < 3 || h < 3 || image.check().is_err() {
        return;
    }
    let source = image.data.clone();
    let row = w * c;
    for y in 1..h - 1 {
        let lines: [&[u8]; 3] = std::array::from_fn(|k| &source[(y - 1 + k) * row..][..row]);
        let out = &mut image.data[y * row + c..(y + 1) * row - c];
        for (i, v) in out.iter_mut().enumerate() {
            let sum: u32 = lines.iter().map(|l| l[i] as u32 + l[i + c] as u32 + l[i + 2 * c] as u32).sum::<u32>()
                + 4 * lines[1][i + c] as u32;
            // sum / 13 + 1/2 is never a tie, since 13 is odd; PIL's float sum cuts to the same integer.
            let smooth = ((2 * sum + 13) / 26) as u8;
            *v = blend(smooth, lines[1][i + c], factor);
        }
    }
}
