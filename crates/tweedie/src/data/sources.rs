//! Sources that are made in a line or two: a list of what is there, or a function of the number of an example.

use super::{DataError, Extent, Image, ImageSource, Item, Locality, Needed, Result, TextSource};
use std::sync::Arc;

/// An error for an example that a source does not have.
pub(crate) fn beyond(i: usize, len: usize) -> DataError {
    DataError::Setting(format!("example {i} was asked for, there are {len}"))
}

/// Number `i` of what a source has, or an error that says that it has not so many.
pub(crate) fn at<T>(all: &[T], i: usize) -> Result<&T> {
    all.get(i).ok_or_else(|| beyond(i, all.len()))
}

/// The place of an example, as `f` tells it if there is one.
pub(crate) fn place_of<T>(found: Result<T>, f: impl FnOnce(T) -> String) -> String {
    found.map_or_else(|e| e.to_string(), f)
}

/// Labelled images in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Items(Vec<Item>);

impl Items {
    /// A source of these.
    pub fn new(items: Vec<Item>) -> Items {
        Items(items)
    }
}

impl From<Vec<Item>> for Items {
    fn from(items: Vec<Item>) -> Items {
        Items(items)
    }
}

impl ImageSource for Items {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        self.0.get(i).cloned().ok_or_else(|| beyond(i, self.0.len()))
    }

    fn label(&self, i: usize) -> u32 {
        self.0.get(i).map_or(u32::MAX, |item| item.label)
    }
}

/// A source of [`from_fn`].
#[derive(Clone, Debug)]
pub struct FromFn<F> {
    labels: Vec<u32>,
    image: F,
}

/// A source of as many images as there are labels; `image` reads or makes number `i`, from any thread.
///
/// ```
/// use tweedie::data::{ImageSource, Image, from_fn};
///
/// let stripes = from_fn([0, 1, 0], |i| Ok(Image::filled(4, 4, &[i as u8])));
/// assert_eq!((stripes.len(), stripes.get(1)?.label), (3, 1));
/// # Ok::<(), tweedie::data::DataError>(())
/// ```
pub fn from_fn<F>(labels: impl Into<Vec<u32>>, image: F) -> FromFn<F>
where
    F: Fn(usize) -> Result<Image> + Send + Sync,
{
    FromFn { labels: labels.into(), image }
}

impl<F: Fn(usize) -> Result<Image> + Send + Sync> ImageSource for FromFn<F> {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        let &label = self.labels.get(i).ok_or_else(|| beyond(i, self.labels.len()))?;
        Ok(Item { image: (self.image)(i)?, label })
    }

    fn label(&self, i: usize) -> u32 {
        self.labels.get(i).copied().unwrap_or(u32::MAX)
    }
}

impl<S: ImageSource + ?Sized> ImageSource for Arc<S> {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        (**self).get(i)
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        (**self).get_top(i, needed)
    }

    fn label(&self, i: usize) -> u32 {
        (**self).label(i)
    }

    fn place(&self, i: usize) -> String {
        (**self).place(i)
    }

    fn locality(&self) -> Option<Locality> {
        (**self).locality()
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        (**self).extent(i)
    }

    fn read_ahead(&self, examples: &[u32]) {
        (**self).read_ahead(examples);
    }
}

/// Each text stands alone.
impl TextSource for Vec<String> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        let text = self.get(i).ok_or_else(|| beyond(i, Vec::len(self)))?;
        Ok(vec![text.clone()])
    }

    fn bytes(&self) -> u64 {
        self.iter().map(|t| t.len() as u64).sum()
    }
}

/// Images in memory, each with its captions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptionedImages(Vec<(Image, Vec<String>)>);

impl CaptionedImages {
    /// A source of these.
    pub fn new(images: Vec<(Image, Vec<String>)>) -> CaptionedImages {
        CaptionedImages(images)
    }

    fn at(&self, i: usize) -> Result<&(Image, Vec<String>)> {
        self.0.get(i).ok_or_else(|| beyond(i, self.0.len()))
    }
}

impl TextSource for CaptionedImages {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        Ok(self.at(i)?.1.clone())
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        Ok(Some(self.at(i)?.0.clone()))
    }

    fn bytes(&self) -> u64 {
        self.0.iter().flat_map(|(_, texts)| texts).map(|t| t.len() as u64).sum()
    }
}
