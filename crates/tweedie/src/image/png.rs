//! PNG.

use std::io::Cursor;

use super::{Image, check_expansion, check_pixels, check_size, rgb};

/// Bytes that one byte of deflate can become, at most.
pub(super) const DEFLATE: usize = 1032;

pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    let mut decoder = ::png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(::png::Transformations::EXPAND | ::png::Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    check_pixels(width, height)?;
    let raw = reader.info().raw_row_length().saturating_mul(height);
    check_expansion("PNG", bytes.len(), raw, DEFLATE, (width, height))?;
    let mut data = vec![0; reader.output_buffer_size().ok_or("the image is too large")?];
    let info = reader.next_frame(&mut data).map_err(|e| e.to_string())?;
    data.truncate(info.buffer_size());
    let (width, height) = (info.width as usize, info.height as usize);
    Ok(Image { width, height, channels: 3, data: rgb(data, info.color_type.samples()) })
}
