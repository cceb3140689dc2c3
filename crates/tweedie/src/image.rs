//! Decoded images and the decoders: JPEG, PNG and WebP, found by their first bytes and never by the file's name (ImageNet
//! holds a PNG that is called `.JPEG`).

use std::cell::Cell;
use std::io::Cursor;
use std::path::Path;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

use crate::error::Error;
use crate::guard::guarded;
use crate::{files, limits};

/// An image of 8-bit values, row by row, the channels of a pixel side by side (H, W, C).
///
/// ```
/// use tweedie::image::Image;
///
/// let red = Image::filled(3, 2, &[255, 0, 0]);
/// let again = Image::decode(&red.to_png()?)?;
/// assert_eq!((again.pixel(2, 1), &again), (&[255, 0, 0][..], &red));
/// assert_eq!(red.into_channels(1).data, [76; 6]);
/// assert!(Image::new(3, 2, 1, vec![0; 5]).unwrap_err().contains("5 values"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
    /// `height · width · channels` values.
    pub data: Vec<u8>,
}

/// Refuse to decode anything wider or higher: a broken header must not ask for terabytes.
const MAX_SIDE: usize = 1 << 15;
/// Bytes that one byte of deflate can become, at most.
const DEFLATE: usize = 1032;
/// Pixels of a WebP that any file may have, and how many more there may be for each of its bytes: the format knows no bound of its
/// own, and decoding takes up to 12 bytes of memory a pixel.
const WEBP_PIXELS: usize = 1 << 24;
const WEBP_PIXELS_PER_BYTE: usize = 256;
/// Bytes of an image that are kept for the next one.
const KEPT: usize = 64 << 20;

thread_local! {
    /// The last image that was done with, so that a decoding thread need not ask the system for memory again and again.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory for `n` values. Zeroed, so that a decoder that stops early shows nothing of an earlier image.
fn scratch(n: usize) -> Vec<u8> {
    let mut data = SPARE.take();
    data.clear();
    data.resize(n, 0);
    data
}

/// Rows from the top that are needed of an image of a width and a height.
pub type Needed<'a> = &'a dyn Fn(usize, usize) -> usize;

impl Image {
    /// An image of these values; an error if there are too few or too many, or if it has no pixels.
    pub fn new(width: usize, height: usize, channels: usize, data: Vec<u8>) -> Result<Image, String> {
        let image = Image { width, height, channels, data };
        image.check().map(|()| image)
    }

    /// Whether it is what it says: sides of 1 to 32,768 pixels, 1 or 3 channels, and a value for each.
    pub fn check(&self) -> Result<(), String> {
        let Image { width, height, channels, data } = self;
        check_size(*width, *height)?;
        if *channels != 1 && *channels != 3 {
            return Err(format!("an image of {channels} channels; there must be 1 or 3"));
        }
        if data.len() != width * height * channels {
            return Err(format!("an image of {width}x{height}x{channels} with {} values", data.len()));
        }
        Ok(())
    }

    /// The image if it is one, else a black pixel.
    pub(crate) fn or_black(self) -> Image {
        if self.check().is_ok() { self } else { Image::filled(1, 1, &[0; 3]) }
    }

    /// Leave the memory to the next image that this thread decodes.
    pub(crate) fn recycle(self) {
        if self.data.capacity() <= KEPT {
            SPARE.set(self.data);
        }
    }

    /// The same image, in memory of the last one that this thread was done with.
    pub(crate) fn copied(&self) -> Image {
        let mut data = SPARE.take();
        data.clear();
        data.extend_from_slice(&self.data);
        Image { data, ..*self }
    }

    /// An image filled with `color`, which has one value for each channel.
    pub fn filled(width: usize, height: usize, color: &[u8]) -> Image {
        Image { width, height, channels: color.len(), data: color.repeat(width * height) }
    }

    /// The values of the pixel in column `x` of row `y`; none outside the image.
    pub fn pixel(&self, x: usize, y: usize) -> &[u8] {
        let at = y.saturating_mul(self.width).saturating_add(x).saturating_mul(self.channels);
        if x < self.width { self.data.get(at..at.saturating_add(self.channels)).unwrap_or(&[]) } else { &[] }
    }

    /// Whether it shows no colour, whatever its channels: that all but one pixel in 200 have about the same value in each. JPEG
    /// moves grey ones apart by a few levels.
    pub fn is_grey(&self) -> bool {
        const APART: u8 = 12;
        let coloured = |p: &&[u8]| p.iter().max().zip(p.iter().min()).is_some_and(|(max, min)| max - min > APART);
        let pixels = self.data.chunks_exact(self.channels.max(1));
        self.channels < 3 || pixels.clone().filter(coloured).count() * 200 <= pixels.len()
    }

    /// The same picture with 1 or 3 channels. Grey is ITU-R 601 luma in PIL's fixed-point form.
    pub fn into_channels(self, channels: usize) -> Image {
        let data = match (self.channels, channels) {
            (3, 1) => self.data.chunks_exact(3).map(luma).collect(),
            (1, 3) => self.data.iter().flat_map(|&v| [v; 3]).collect(),
            _ => return self,
        };
        Image { channels, data, ..self }
    }

    /// Read and decode a file; what is wrong with it names it.
    pub fn open(path: impl AsRef<Path>) -> crate::Result<Image> {
        let path = path.as_ref();
        let bytes = files::read(path, &limits::IMAGE_BYTES).map_err(|e| Error::file(path, e))?;
        Image::decode(&bytes).map_err(|why| Error::Input(format!("{}: {why}", path.display())))
    }

    /// Decode JPEG, PNG or WebP bytes into three channels, as PIL's `convert("RGB")` does: alpha is dropped, palettes
    /// are expanded, an orientation tag is ignored. The error is the decoder's message, or what of [`limits`] is
    /// passed: neither time nor memory is spent on what the bytes cannot hold.
    pub fn decode(bytes: &[u8]) -> Result<Image, String> {
        Image::decode_top(bytes, &|_, height| height)
    }

    /// As [`Image::decode`], but of the image's (width, height) only so many rows at the top are `needed`: those below may be black.
    pub fn decode_top(bytes: &[u8], needed: Needed) -> Result<Image, String> {
        match bytes {
            [0xff, 0xd8, ..] => guarded("the JPEG decoder", || decode_jpeg(bytes, needed))?,
            [0x89, b'P', b'N', b'G', ..] => guarded("the PNG decoder", || decode_png(bytes))?,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
                guarded("the WebP decoder", || decode_webp(bytes))?
            }
            [] => Err("the file is empty".into()),
            _ => Err(format!(
                "not a JPEG, PNG or WebP image (it begins with {})",
                bytes.iter().take(4).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
            )),
        }
    }

    /// Encode as PNG, for figures and tests.
    pub fn to_png(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, self.width as u32, self.height as u32);
        encoder.set_color(if self.channels == 1 { png::ColorType::Grayscale } else { png::ColorType::Rgb });
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().map_err(|e| e.to_string())?;
        writer.write_image_data(&self.data).map_err(|e| e.to_string())?;
        writer.finish().map_err(|e| e.to_string())?;
        Ok(out)
    }
}

/// PIL's `L = (19595 R + 38470 G + 7471 B + 32768) >> 16`.
#[inline]
pub(crate) fn luma(p: &[u8]) -> u8 {
    ((19595 * p[0] as u32 + 38470 * p[1] as u32 + 7471 * p[2] as u32 + 0x8000) >> 16) as u8
}

/// Most rows of a block of pixels, and rows below those that are needed: halved colours are mixed with those of the next row.
const BLOCK: usize = 16;
const BELOW: usize = 2;

fn decode_jpeg(bytes: &[u8], needed: Needed) -> Result<Image, String> {
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
    let Some((at, rows, height)) = shorter else { return decode_whole_jpeg(bytes, None) };
    let mut told = bytes.to_vec();
    told[at..at + 2].copy_from_slice(&rows.to_be_bytes());
    decode_whole_jpeg(&told, Some(height))
}

/// `height`: that of the image, where the bytes tell of fewer rows.
fn decode_whole_jpeg(bytes: &[u8], height: Option<usize>) -> Result<Image, String> {
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

fn decode_png(bytes: &[u8]) -> Result<Image, String> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|e| e.to_string())?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    check_size(width, height)?;
    check_pixels(width, height)?;
    let raw = reader.info().raw_row_length().saturating_mul(height);
    if raw / DEFLATE > bytes.len() {
        return Err(format!("the PNG is cut off ({} bytes cannot hold {width}x{height} pixels)", bytes.len()));
    }
    let mut data = vec![0; reader.output_buffer_size().ok_or("the image is too large")?];
    let info = reader.next_frame(&mut data).map_err(|e| e.to_string())?;
    data.truncate(info.buffer_size());
    let (width, height) = (info.width as usize, info.height as usize);
    let data = match info.color_type.samples() {
        1 => data.iter().flat_map(|&v| [v; 3]).collect(),
        2 => data.chunks_exact(2).flat_map(|p| [p[0]; 3]).collect(),
        4 => without_alpha(data),
        _ => data,
    };
    Ok(Image { width, height, channels: 3, data })
}

fn decode_webp(bytes: &[u8]) -> Result<Image, String> {
    let mut decoder = image_webp::WebPDecoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    decoder.set_memory_limit(bytes.len());
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    check_size(width, height)?;
    check_pixels(width, height)?;
    if width * height > WEBP_PIXELS.max(bytes.len().saturating_mul(WEBP_PIXELS_PER_BYTE)) {
        return Err(format!("a WebP of {} bytes that claims {width}x{height} pixels", bytes.len()));
    }
    let mut data = vec![0; decoder.output_buffer_size().ok_or("the image is too large")?];
    decoder.read_image(&mut data).map_err(|e| e.to_string())?;
    if decoder.has_alpha() {
        data = without_alpha(data);
    }
    Ok(Image { width, height, channels: 3, data })
}

/// Three values of each four, in the same memory.
fn without_alpha(mut data: Vec<u8>) -> Vec<u8> {
    let pixels = data.len() / 4;
    for i in 0..pixels {
        data.copy_within(4 * i..4 * i + 3, 3 * i);
    }
    data.truncate(3 * pixels);
    data
}

fn check_pixels(width: usize, height: usize) -> Result<(), String> {
    limits::PIXELS.check((width as u64).saturating_mul(height as u64))
}

fn check_size(width: usize, height: usize) -> Result<(), String> {
    if width == 0 || height == 0 || width > MAX_SIDE || height > MAX_SIDE {
        return Err(format!("an image of {width}x{height} pixels; sides must lie between 1 and {MAX_SIDE}"));
    }
    Ok(())
}
