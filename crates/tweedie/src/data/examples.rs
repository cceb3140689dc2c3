//! What a loader makes batches of: an image and its class, or a sequence with or without an image.

use super::sequence::OnBad;
use super::{DataError, Extent, Image, Locality, Result, Sequences, Source};
use crate::augment::Transform;
use crate::random::Address;

pub(crate) trait Examples: Send + Sync {
    fn len(&self) -> usize;

    fn locality(&self) -> Option<Locality>;

    fn extent(&self, example: u32) -> Option<Extent>;

    fn read_ahead(&self, examples: &[u32]);

    /// Values of one image after the transform; 0 if there are no images.
    fn image_values(&self) -> usize;

    /// Numbers in one target: 1 for a class, N for a sequence.
    fn target_len(&self) -> usize;

    /// Write an example. True if its text was cut. Rows of packed text that are left out are told to `on_bad`.
    fn read(&self, at: Address, image: &mut [f32], target: &mut [u32], on_bad: OnBad) -> Result<bool>;

    /// Rows of packed text that are left out, as far as they are known at the start.
    fn bad_rows(&self) -> &[(u32, String)] {
        &[]
    }

    /// Where an example lies, for messages.
    fn place(&self, example: u32) -> String;

    /// Whether images of a batch are mixed with each other.
    fn mixes(&self) -> bool {
        self.class_transform().is_some_and(|t| t.is_train() && t.config().mix.is_on())
    }

    /// For classes: what is done to images, and with it how they are mixed.
    fn class_transform(&self) -> Option<&Transform>;

    /// What one calls them.
    fn noun(&self) -> &'static str;
}

/// Sources may be anybody's: an image that is not what it says is one that cannot be read.
fn sound(image: &Image, place: impl FnOnce() -> String) -> Result<()> {
    image.check().map_err(|message| DataError::Corrupt { place: place(), message })
}

pub(crate) struct Classes {
    pub source: Source,
    pub transform: Transform,
}

impl Examples for Classes {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn locality(&self) -> Option<Locality> {
        self.source.locality()
    }

    fn extent(&self, example: u32) -> Option<Extent> {
        self.source.extent(example as usize)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(examples);
    }

    fn image_values(&self) -> usize {
        self.transform.values()
    }

    fn target_len(&self) -> usize {
        1
    }

    fn read(&self, at: Address, image: &mut [f32], target: &mut [u32], _: OnBad) -> Result<bool> {
        let needed = |width, height| self.transform.rows_needed(width, height, at);
        let item = self.source.get_top(at.example as usize, &needed)?;
        sound(&item.image, || self.place(at.example))?;
        self.transform.apply(item.image, at, image);
        target[0] = item.label;
        Ok(false)
    }

    fn place(&self, example: u32) -> String {
        self.source.place(example as usize)
    }

    fn class_transform(&self) -> Option<&Transform> {
        Some(&self.transform)
    }

    fn noun(&self) -> &'static str {
        "images"
    }
}

pub(crate) struct Captioned {
    pub source: Sequences,
    pub transform: Option<Transform>,
    pub shuffled: bool,
}

impl Examples for Captioned {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn locality(&self) -> Option<Locality> {
        self.source.locality()
    }

    fn extent(&self, example: u32) -> Option<Extent> {
        self.source.extent(example as usize)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.source.read_ahead(examples);
    }

    fn image_values(&self) -> usize {
        self.transform.as_ref().map_or(0, Transform::values)
    }

    fn target_len(&self) -> usize {
        self.source.tokens()
    }

    fn read(&self, at: Address, image: &mut [f32], target: &mut [u32], on_bad: OnBad) -> Result<bool> {
        let cut = self.source.write_noting(at, self.shuffled, target, on_bad)?; // before the image, which costs more
        if let Some(transform) = &self.transform {
            let picture = self.source.image(at.example as usize)?;
            sound(&picture, || self.place(at.example))?;
            transform.apply(picture, at, image);
        }
        Ok(cut)
    }

    fn bad_rows(&self) -> &[(u32, String)] {
        self.source.bad_rows()
    }

    fn place(&self, example: u32) -> String {
        self.source.place(example as usize)
    }

    fn class_transform(&self) -> Option<&Transform> {
        None
    }

    fn noun(&self) -> &'static str {
        "sequences"
    }
}
