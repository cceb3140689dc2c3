//! JPEG: the decoder, and what is looked at before it may begin.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use super::{Image, MAX_SIDE, Needed, check_pixels, scratch};

/// Most rows of a block of pixels, and rows below those that are needed: halved colours are mixed with those of the next row.
const BLOCK: usize = 16;
const BELOW: usize = 2;

pub(super) fn decode(bytes: &[u8], needed: Needed) -> Result<Image, String> {
    // The decoder fills what is missing with grey, which is right for a viewer and wrong for a training set.
    if !jpeg_has_end(bytes) {
        return Err("the JPEG is cut off (no end marker after the image data)".into());
    }
    let frame = Frame::find(bytes);
    if let Some(frame) = &frame {
        check_pixels(frame.width, frame.height)?;
        frame.check_blocks(bytes.len())?;
    }
    // Blocks come row by row: a decoder that is told of fewer rows is done after them.
    let shorter = frame.filter(|f| f.is_sequential()).and_then(|Frame { at, width, height, .. }| {
        let rows = needed(width, height).saturating_add(BELOW).next_multiple_of(BLOCK);
        (rows < height).then_some((at, rows as u16, height))
    });
    let Some((at, rows, height)) = shorter else { return decode_whole(bytes, None) };
    let mut told = bytes.to_vec();
    told[at..at + 2].copy_from_slice(&rows.to_be_bytes());
    decode_whole(&told, Some(height))
}

/// `height`: that of the image, where the bytes tell of fewer rows.
fn decode_whole(bytes: &[u8], height: Option<usize>) -> Result<Image, String> {
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| e.to_string())?;
    let info = decoder.info().ok_or("no header")?;
    let (width, rows) = (info.width as usize, info.height as usize);
    check_pixels(width, rows)?;
    check_blocks(width.div_ceil(8) * rows.div_ceil(8), bytes.len())?; // where the header was too crooked for `Frame`
    let values = decoder.output_buffer_size().ok_or("no header")?;
    if values != width * rows * 3 {
        return Err(format!("{values} values where {width}x{rows}x3 are expected"));
    }
    let height = height.unwrap_or(rows);
    let mut data = scratch(width * height * 3);
    decoder.decode_into(&mut data[..values]).map_err(|e| e.to_string())?;
    Ok(Image { width, height, channels: 3, data })
}

/// What a JPEG says of its size.
struct Frame<'a> {
    /// The marker's second byte: 0xc0 and 0xc1 for blocks that come once.
    marker: u8,
    /// Where the height is written.
    at: usize,
    width: usize,
    height: usize,
    /// Three bytes for each component: its name, its sampling factors, its table.
    parts: &'a [u8],
}

impl Frame<'_> {
    fn find(bytes: &[u8]) -> Option<Frame<'_>> {
        let mut at = 2;
        loop {
            let &[0xff, marker, a, b] = bytes.get(at..at + 4)? else { return None };
            match marker {
                0xff => at += 1, // fill byte
                0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                    let &[h1, h2, w1, w2, parts] = bytes.get(at + 5..at + 10)? else { return None };
                    let side = |a, b| u16::from_be_bytes([a, b]) as usize;
                    let parts = bytes.get(at + 10..at + 10 + 3 * parts as usize)?;
                    return Some(Frame { marker, at: at + 5, width: side(w1, w2), height: side(h1, h2), parts });
                }
                0xd8..=0xda => return None, // the image data or the end
                _ => at += 2 + u16::from_be_bytes([a, b]) as usize,
            }
        }
    }

    /// Sampling factors of a component, across and down.
    fn factors(&self) -> impl Iterator<Item = (usize, usize)> {
        self.parts.chunks_exact(3).map(|p| (usize::from(p[1] >> 4), usize::from(p[1] & 15)))
    }

    /// Blocks come once and from the top, none of more than [`BLOCK`] rows: colours at half the rows, not at a quarter.
    fn is_sequential(&self) -> bool {
        matches!(self.marker, 0xc0 | 0xc1) && self.factors().all(|(_, down)| down <= 2)
    }

    /// An error if `bytes` cannot hold all blocks of all components.
    fn check_blocks(&self, bytes: usize) -> Result<(), String> {
        let across = self.factors().map(|f| f.0).max().unwrap_or(1).max(1);
        let down = self.factors().map(|f| f.1).max().unwrap_or(1).max(1);
        let side = |n: usize, factor: usize, most: usize| (n * factor).div_ceil(8 * most);
        let blocks = self.factors().map(|(h, v)| side(self.width, h, across) * side(self.height, v, down)).sum();
        check_blocks(blocks, bytes)
    }
}

/// Every block of 8x8 takes a bit at least, for the difference of its mean to that of the last one.
fn check_blocks(blocks: usize, bytes: usize) -> Result<(), String> {
    if blocks / 8 <= bytes {
        return Ok(());
    }
    Err(format!("the JPEG is cut off ({bytes} bytes cannot hold {blocks} blocks of pixels)"))
}

/// True if an end-of-image marker follows the start of the first scan. Thumbnails inside the header do not count.
fn jpeg_has_end(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[0xff, marker, a, b]) = bytes.get(at..at + 4) {
        if marker == 0xff {
            at += 1; // fill byte
            continue;
        }
        if marker == 0xda {
            return bytes[at..].windows(2).rev().any(|w| w == [0xff, 0xd9]);
        }
        at += 2 + u16::from_be_bytes([a, b]) as usize;
    }
    // Headers this crooked are left to the decoder.
    bytes.get(at..).is_some_and(|rest| rest.windows(2).rev().any(|w| w == [0xff, 0xd9]))
}
