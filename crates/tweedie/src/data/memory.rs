//! Small sets that live decoded in memory: CIFAR, MNIST, embedded digits.

use super::sources::beyond;
use super::{DataError, Image, ImageSource, Item, Result};

/// Images of one size, decoded.
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: String,
    width: usize,
    height: usize,
    channels: usize,
    pixels: Vec<u8>,
    labels: Vec<u32>,
}

impl MemorySource {
    /// From pixels (N, H, W, C) and one label per image. `name` stands in messages.
    pub fn new(
        name: impl Into<String>,
        width: usize,
        height: usize,
        channels: usize,
        pixels: Vec<u8>,
        labels: Vec<u32>,
    ) -> Result<MemorySource> {
        let name = name.into();
        let each = width.checked_mul(height).and_then(|n| n.checked_mul(channels));
        if each.and_then(|n| n.checked_mul(labels.len())) != Some(pixels.len()) {
            return Err(DataError::Setting(format!(
                "{name}: {} pixel values for {} images of {width}x{height}x{channels}",
                pixels.len(),
                labels.len()
            )));
        }
        Ok(MemorySource { name, width, height, channels, pixels, labels })
    }
}

impl ImageSource for MemorySource {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        let &label = self.labels.get(i).ok_or_else(|| beyond(i, self.labels.len()))?;
        let n = self.width * self.height * self.channels;
        let data = self.pixels[i * n..(i + 1) * n].to_vec();
        let image = Image { width: self.width, height: self.height, channels: self.channels, data };
        Ok(Item { image, label })
    }

    fn label(&self, i: usize) -> u32 {
        self.labels.get(i).copied().unwrap_or(u32::MAX)
    }

    fn place(&self, i: usize) -> String {
        format!("{}, image {i}", self.name)
    }
}
