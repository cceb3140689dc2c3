//! TIFF: its first picture, of whole numbers and without a palette, which the decoder does not know.

use std::io::Cursor;

use ::tiff::ColorType;
use ::tiff::decoder::{Decoder, DecodingResult, Limits};
use ::tiff::tags::Tag;

use super::uncommon::LZW;
use super::{Image, check_expansion, check_pixels, check_size, exif, rgb};

/// The picture as it is stored, and its orientation.
pub(super) fn decode(bytes: &[u8]) -> Result<(Image, u32), String> {
    let mut file = Decoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let (width, height) = file.dimensions().map_err(|e| e.to_string())?;
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    check_pixels(width, height)?;
    let color = file.colortype().map_err(|e| format!("{e}; save it as RGB"))?;
    let layout = file.image_buffer_layout().map_err(|e| e.to_string())?;
    check_expansion("TIFF", bytes.len(), layout.complete_len, LZW, (width, height))?;
    let mut limits = Limits::default();
    limits.decoding_buffer_size = layout.complete_len;
    limits.intermediate_buffer_size = layout.complete_len.max(bytes.len());
    limits.ifd_value_size = bytes.len();
    let mut file = file.with_limits(limits);
    let mut samples = DecodingResult::U8(Vec::new());
    file.read_image_to_buffer(&mut samples).map_err(|e| e.to_string())?;
    let bits = color.bit_depth();
    let values = match samples {
        DecodingResult::U8(values) if bits == 8 => values,
        DecodingResult::U8(packed) if bits < 8 => {
            unpacked(&packed, width * usize::from(color.num_samples()), height, bits)
        }
        DecodingResult::U16(values) if bits == 16 => values.into_iter().map(|v| (v >> 8) as u8).collect(),
        _ => return Err(format!("a TIFF of {color:?} samples; save it with 8 or 16 bits in whole numbers")),
    };
    let values = if layout.planes > 1 { interleaved(&values, layout.planes) } else { values };
    let data = colored(color, values)?;
    if data.len() != width * height * 3 {
        return Err(format!("{} values where {width}x{height}x3 are expected", data.len()));
    }
    let orientation = file.find_tag_unsigned::<u32>(Tag::Orientation).ok().flatten().unwrap_or(exif::UPRIGHT);
    Ok((Image { width, height, channels: 3, data }, orientation))
}

/// Whole rows of `count` values of less than eight bits each.
fn unpacked(packed: &[u8], count: usize, rows: usize, bits: u8) -> Vec<u8> {
    let stride = (count * usize::from(bits)).div_ceil(8);
    let value = |row: &[u8], i: usize| {
        let at = i * usize::from(bits);
        row[at / 8] >> (8 - usize::from(bits) - at % 8) & ((1 << bits) - 1)
    };
    packed.chunks_exact(stride.max(1)).take(rows).flat_map(|row| (0..count).map(move |i| value(row, i))).collect()
}

/// One plane after another into pixels.
fn interleaved(values: &[u8], planes: usize) -> Vec<u8> {
    let plane = values.len() / planes;
    (0..plane * planes).map(|i| values[i % planes * plane + i / planes]).collect()
}

fn colored(color: ColorType, values: Vec<u8>) -> Result<Vec<u8>, String> {
    Ok(match color {
        ColorType::Gray(bits @ 1..8) => {
            let most = (1_u16 << bits) - 1;
            rgb(values.into_iter().map(|v| (u16::from(v) * 255 / most) as u8).collect(), 1)
        }
        ColorType::CMYK(_) => values.chunks_exact(4).flat_map(|p| [0, 1, 2].map(|c| inked(p[c], p[3]))).collect(),
        ColorType::Gray(_) | ColorType::GrayA(_) | ColorType::RGB(_) | ColorType::RGBA(_) => {
            rgb(values, usize::from(color.num_samples()))
        }
        _ => return Err(format!("a TIFF of {color:?}; save it as RGB")),
    })
}

/// What is left of the light behind a colour and black, rounded as PIL does.
fn inked(ink: u8, black: u8) -> u8 {
    let white = 255 - u32::from(black);
    let product = u32::from(ink) * white + 128;
    (white - (((product >> 8) + product) >> 8)) as u8
}
