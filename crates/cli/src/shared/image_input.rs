//! Images between the library and figures.

use tweedie::Image;
use tweedie_figures::Picture;

/// An image as figures take it.
pub fn picture(image: Image) -> Picture {
    Picture { width: image.width, height: image.height, channels: image.channels, pixels: image.data }
}
