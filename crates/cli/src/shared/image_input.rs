//! Image files.

use std::path::Path;

use tweedie::Image;
use tweedie_figures::Picture;

use crate::failure::{Failure, Result};

/// Decode a file; what is wrong with it names it.
pub fn read(path: &Path) -> Result<Image> {
    let failed = |why: String| Failure::input(format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    Image::decode(&bytes).map_err(|e| failed(e.to_string()))
}

/// An image as figures take it.
pub fn picture(image: Image) -> Picture {
    Picture { width: image.width, height: image.height, channels: image.channels, pixels: image.data }
}
