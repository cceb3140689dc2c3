//! Small sets that live decoded in memory: CIFAR, MNIST, embedded digits.

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
        if pixels.len() != labels.len() * width * height * channels {
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
        let n = self.width * self.height * self.channels;
        let data = self.pixels[i * n..(i + 1) * n].to_vec();
        let image = Image { width: self.width, height: self.height, channels: self.channels, data };
        Ok(Item { image, label: self.labels[i] })
    }

    fn label(&self, i: usize) -> u32 {
        self.labels[i]
    }

    fn place(&self, i: usize) -> String {
        format!("{}, image {i}", self.name)
    }
}
