//! CLIPScore of images with their own captions, with those of another image, and with captions that were made for them: what
//! `score`, `eval` and `reproduce` share.

use std::ops::Range;

use serde::Serialize;
use tweedie::data::Image;
use tweedie::metrics::clip::{Clip, ClipScore, cosine, derangement};

use crate::failure::Result;
use crate::report::{Align, Bar, Table, with_bar};

/// Images decoded at a time.
const CHUNK: usize = 256;

/// Features of images and of what people wrote about them.
pub struct Judge<'a> {
    clip: &'a Clip,
    images: Vec<Vec<f32>>,
    /// Of each image, one for each reference.
    own: Vec<Vec<Vec<f32>>>,
    /// The image whose references each image is shuffled to.
    other: Vec<usize>,
}

/// A table of means, the model named.
#[derive(Serialize)]
pub struct ClipRows {
    folder: String,
    rows: Vec<(String, ClipScore)>,
}

impl<'a> Judge<'a> {
    /// `read` gives the images of some numbers; `references` has the captions of each, and `seed` shuffles them.
    pub fn new(
        clip: &'a Clip,
        references: &[Vec<String>],
        seed: u64,
        read: impl Fn(Range<usize>) -> Result<Vec<Image>>,
    ) -> Result<Judge<'a>> {
        let bar = Bar::new("images through CLIP");
        let count = references.len();
        let mut images = Vec::with_capacity(count);
        while images.len() < count {
            bar.at(images.len(), count);
            images.extend(clip.image_features(read(images.len()..count.min(images.len() + CHUNK))?)?);
        }
        drop(bar);
        let flat = references.concat();
        let mut flat = with_bar("references through CLIP", || clip.text_features(&flat))?.into_iter();
        let own = references.iter().map(|c| flat.by_ref().take(c.len()).collect()).collect();
        Ok(Judge { clip, images, own, other: derangement(count, seed) })
    }

    /// Cosines of every image with each of its references.
    pub fn truth(&self) -> Vec<Vec<f32>> {
        let own = self.images.iter().zip(&self.own);
        own.map(|(image, texts)| texts.iter().map(|t| cosine(image, t)).collect()).collect()
    }

    /// Cosines of every image with each reference of another.
    pub fn shuffled(&self) -> Vec<Vec<f32>> {
        let other = self.images.iter().zip(&self.other);
        other.map(|(image, &o)| self.own[o].iter().map(|t| cosine(image, t)).collect()).collect()
    }

    /// The cosine of every image with its caption.
    pub fn captions(&self, captions: &[String]) -> Result<Vec<f32>> {
        let texts = self.clip.text_features(captions)?;
        Ok(self.images.iter().zip(&texts).map(|(image, t)| cosine(image, t)).collect())
    }

    /// Ground truth, shuffled, and each set of captions.
    pub fn rows<'c>(&self, made: impl IntoIterator<Item = (String, &'c [String])>) -> Result<ClipRows> {
        let mut rows = vec![
            ("ground truth".into(), ClipScore::of(&self.truth().concat())),
            ("ground truth, shuffled".into(), ClipScore::of(&self.shuffled().concat())),
        ];
        for (name, captions) in made {
            let cosines = with_bar("captions through CLIP", || self.captions(captions))?;
            rows.push((name, ClipScore::of(&cosines)));
        }
        Ok(ClipRows { folder: self.clip.folder().display().to_string(), rows })
    }
}

impl ClipRows {
    pub fn text(&self) -> String {
        use Align::{Left, Right};
        let mut t = Table::new(&[
            ("CLIPScore", Left),
            ("pairs", Right),
            ("cosine", Right),
            ("± s.e.", Right),
            ("×2.5, ≥ 0 (Hessel)", Right),
            ("×100 (torchmetrics)", Right),
        ]);
        for (name, s) in &self.rows {
            t.row(vec![
                name.clone(),
                s.pairs.to_string(),
                format!("{:.4}", s.cosine),
                format!("{:.4}", s.standard_error),
                format!("{:.4}", s.hessel),
                format!("{:.2}", s.torchmetrics),
            ]);
        }
        format!("\nCLIP: {}\n\n{}", self.folder, t.shown())
    }
}
