//! WebP.

use std::io::Cursor;

use super::{Image, check_pixels, check_size, without_alpha};

/// Pixels that any file may have, and how many more there may be for each of its bytes: the format knows no bound of its own, and
/// decoding takes up to 12 bytes of memory a pixel.
const PIXELS: usize = 1 << 24;
const PIXELS_PER_BYTE: usize = 256;

pub(super) fn decode(bytes: &[u8]) -> Result<Image, String> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    decoder.set_memory_limit(bytes.len());
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    check_pixels(width, height)?;
    if width * height > PIXELS.max(bytes.len().saturating_mul(PIXELS_PER_BYTE)) {
        return Err(format!("a WebP of {} bytes that claims {width}x{height} pixels", bytes.len()));
    }
    let mut data = vec![0; decoder.output_buffer_size().ok_or("the image is too large")?];
    decoder.read_image(&mut data).map_err(|e| e.to_string())?;
    if decoder.has_alpha() {
        data = without_alpha(data);
    }
    Ok(Image { width, height, channels: 3, data })
}
