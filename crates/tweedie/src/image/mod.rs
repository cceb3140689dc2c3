//! Decoded images and the decoders: JPEG, PNG, WebP, GIF, BMP and TIFF, found by their first bytes and never by the file's name
//! (ImageNet holds a PNG that is called `.JPEG`). What a camera says of how it was held is applied.

mod exif;
mod jpeg;
mod png;
mod tiff;
mod uncommon;
mod webp;

use std::cell::Cell;
use std::path::Path;

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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

    /// Decode an image file's bytes into three channels, as PIL's `exif_transpose` and `convert("RGB")` do: it stands upright as its
    /// Exif orientation tells, alpha is dropped, palettes are expanded; of a GIF or TIFF with several pictures it is the first. The
    /// error is the decoder's message, or what of [`limits`] is passed: neither time nor memory is spent on what the bytes cannot hold.
    pub fn decode(bytes: &[u8]) -> Result<Image, String> {
        Image::decode_top(bytes, &|_, height| height)
    }

    /// As [`Image::decode`], but of the image's (width, height) only so many rows at the top are `needed`: those below may be black.
    pub fn decode_top(bytes: &[u8], needed: Needed) -> Result<Image, String> {
        let Some(format) = FileFormat::of(bytes) else { return Err(unknown(bytes)) };
        let orientation = match format {
            FileFormat::Jpeg | FileFormat::Png | FileFormat::WebP => exif::orientation(bytes),
            FileFormat::Gif | FileFormat::Bmp | FileFormat::Tiff => exif::UPRIGHT, // a TIFF's is found on the way
        };
        let decoder = format!("the {} decoder", format.name());
        let (image, found) = guarded(&decoder, || {
            let upright = |image: Result<Image, String>| image.map(|image| (image, orientation));
            match format {
                FileFormat::Jpeg if orientation == exif::UPRIGHT => upright(jpeg::decode(bytes, needed)),
                // What is on top may lie anywhere in the file.
                FileFormat::Jpeg => upright(jpeg::decode(bytes, &|_, height| height)),
                FileFormat::Png => upright(png::decode(bytes)),
                FileFormat::WebP => upright(webp::decode(bytes)),
                FileFormat::Gif => upright(uncommon::decode_gif(bytes)),
                FileFormat::Bmp => upright(uncommon::decode_bmp(bytes)),
                FileFormat::Tiff => tiff::decode(bytes),
            }
        })??;
        Ok(exif::turned(image, found))
    }

    /// Encode as PNG, for figures and tests.
    pub fn to_png(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let mut out = Vec::new();
        let mut encoder = ::png::Encoder::new(&mut out, self.width as u32, self.height as u32);
        encoder.set_color(if self.channels == 1 { ::png::ColorType::Grayscale } else { ::png::ColorType::Rgb });
        encoder.set_depth(::png::BitDepth::Eight);
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

/// Endings of the names of image files, in lower case.
pub const EXTENSIONS: [&str; 8] = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"];

/// Whether a file's name ends as those of images do, in capitals or not.
pub fn has_image_name(path: &Path) -> bool {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    EXTENSIONS.iter().any(|e| extension.eq_ignore_ascii_case(e))
}

/// [`EXTENSIONS`] for messages.
pub(crate) fn extensions() -> String {
    let all = EXTENSIONS.map(|e| format!(".{e}"));
    let [some @ .., last] = &all;
    format!("{} or {last}", some.join(", "))
}

/// What a file of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// Photographs.
    Jpeg,
    /// Lossless.
    Png,
    /// Photographs and drawings of the web.
    WebP,
    /// At most 256 colours, perhaps moving.
    Gif,
    /// Of Windows.
    Bmp,
    /// Of scanners.
    Tiff,
}

impl FileFormat {
    /// By the first bytes; none where they are those of no image.
    pub fn of(bytes: &[u8]) -> Option<FileFormat> {
        Some(match bytes {
            [0xff, 0xd8, ..] => FileFormat::Jpeg,
            [0x89, b'P', b'N', b'G', ..] => FileFormat::Png,
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => FileFormat::WebP,
            [b'G', b'I', b'F', b'8', ..] => FileFormat::Gif,
            // Those after the size of the file are zero: text that begins with BM is no image.
            [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => FileFormat::Bmp,
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => FileFormat::Tiff,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            FileFormat::Jpeg => "JPEG",
            FileFormat::Png => "PNG",
            FileFormat::WebP => "WebP",
            FileFormat::Gif => "GIF",
            FileFormat::Bmp => "BMP",
            FileFormat::Tiff => "TIFF",
        }
    }
}

/// What is said of bytes that are no image.
fn unknown(bytes: &[u8]) -> String {
    match bytes {
        [] => "the file is empty".into(),
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => {
            "a HEIC, AVIF or video file, which is not read; save it as JPEG (an iPhone does so with Settings, Camera, Formats, Most \
             Compatible)"
                .into()
        }
        _ => format!(
            "not a JPEG, PNG, WebP, GIF, BMP or TIFF image (it begins with {})",
            bytes.iter().take(4).map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
        ),
    }
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

/// An error where `bytes` of a file cannot become `values` bytes, one at most `ratio`.
fn check_expansion(
    format: &str,
    bytes: usize,
    values: usize,
    ratio: usize,
    (width, height): (usize, usize),
) -> Result<(), String> {
    match values / ratio > bytes {
        true => Err(format!("the {format} is cut off ({bytes} bytes cannot hold {width}x{height} pixels)")),
        false => Ok(()),
    }
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

/// Pixels of `samples` values each (grey, grey and alpha, RGB, RGB and alpha) as RGB.
fn rgb(data: Vec<u8>, samples: usize) -> Vec<u8> {
    match samples {
        1 => data.iter().flat_map(|&v| [v; 3]).collect(),
        2 => data.chunks_exact(2).flat_map(|p| [p[0]; 3]).collect(),
        4 => without_alpha(data),
        _ => data,
    }
}
