//! GIF (its first picture) and BMP.

use std::borrow::Cow;
use std::io::Cursor;

use zune_core::bytestream::ZCursor;
use zune_core::options::DecoderOptions;

use super::{Image, MAX_SIDE, check_expansion, check_pixels, check_size, rgb};

/// Pixels that a byte of LZW can become, at most: a code of twelve bits stands for up to 4096 of them.
pub(super) const LZW: usize = 4096;
/// Pixels that a byte of a BMP's run lengths can become, at most.
const RUNS: usize = 128;

pub(super) fn decode_gif(bytes: &[u8]) -> Result<Image, String> {
    let mut options = gif::DecodeOptions::new();
    options.set_color_output(gif::ColorOutput::Indexed);
    options.check_frame_consistency(true);
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    check_size(width, height)?;
    check_pixels(width, height)?;
    check_expansion("GIF", bytes.len(), width * height, LZW, (width, height))?;
    let background = decoder.bg_color();
    let frame = decoder.next_frame_info().map_err(|e| e.to_string())?.ok_or("the GIF holds no picture")?;
    let [left, top, across, down] = [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    if left + across > width || top + down > height {
        return Err(format!("a picture of {across}x{down} at {left}, {top} in a GIF of {width}x{height} pixels"));
    }
    let mut indices = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut indices).map_err(|e| e.to_string())?;
    let palette = decoder.palette().map_err(|e| e.to_string())?;
    let color = |palette: &[u8], i: usize| -> [u8; 3] {
        palette.get(3 * i..3 * i + 3).and_then(|c| c.try_into().ok()).unwrap_or_default()
    };
    let around = decoder.global_palette().zip(background).map_or([0; 3], |(palette, i)| color(palette, i));
    let mut data = around.repeat(width * height);
    for (y, row) in indices.chunks_exact(across.max(1)).enumerate() {
        for (x, &i) in row.iter().enumerate() {
            data[((top + y) * width + left + x) * 3..][..3].copy_from_slice(&color(palette, usize::from(i)));
        }
    }
    Ok(Image { width, height, channels: 3, data })
}

pub(super) fn decode_bmp(bytes: &[u8]) -> Result<Image, String> {
    let bytes = &*without_padding(bytes);
    let options = DecoderOptions::default().set_max_width(MAX_SIDE).set_max_height(MAX_SIDE);
    let mut decoder = zune_bmp::BmpDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| format!("{e:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("no header")?;
    check_size(width, height)?;
    check_pixels(width, height)?;
    check_expansion("BMP", bytes.len(), width * height, RUNS, (width, height))?;
    let data = decoder.decode().map_err(|e| format!("{e:?}"))?;
    match data.len() / (width * height) {
        samples @ (1 | 3 | 4) if data.len() == samples * width * height => {
            Ok(Image { width, height, channels: 3, data: rgb(data, samples) })
        }
        _ => Err(format!("{} values for {width}x{height} pixels", data.len())),
    }
}

/// Rows of a BMP end at multiples of four bytes; zune-bmp 0.5 takes no notice of that where a pixel has less than a byte, so such rows are
/// handed to it without their padding.
fn without_padding(bytes: &[u8]) -> Cow<'_, [u8]> {
    let u16_at = |at: usize| bytes.get(at..at + 2).map(|b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let u32_at = |at: usize| Some(u16_at(at)? | u16_at(at + 2)? << 16);
    let strides = || {
        let (start, width, depth, compression) = (u32_at(10)?, u32_at(18)?, u16_at(28)?, u32_at(30)?);
        let row = (width * depth).div_ceil(8);
        let padded = depth < 8 && compression == 0 && row > 0 && !row.is_multiple_of(4);
        padded.then_some((bytes.get(..start)?, bytes.get(start..)?, row))
    };
    match strides() {
        Some((header, rows, row)) => {
            let rows = rows.chunks(row.next_multiple_of(4)).flat_map(|r| &r[..r.len().min(row)]);
            Cow::Owned(header.iter().chain(rows).copied().collect())
        }
        None => Cow::Borrowed(bytes),
    }
}
