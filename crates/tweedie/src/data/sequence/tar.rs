//! Tar shards of images with captions: `0001.jpg` and `0001.txt`, or `0001.json` with a caption. Opening reads headers;
//! images and captions are read where they lie.

use super::super::sources::{at, place_of};
use super::super::split::Split;
use super::super::tar::{Piece, samples};
use super::super::tar_blocks::{Finding, TarBlocks};
use super::super::{DataError, Extent, Image, Locality, Result};
use super::detect::files;
use super::json::{self, CAPTIONS};
use super::{SequenceFormat, SequenceOptions, Splits, TextSource, Texts};
use crate::image::{EXTENSIONS, extensions};
use crate::limits;
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// An image with its caption; one that lacks either is a bad row.
struct Member {
    image: Option<(u64, u32)>,
    text: Option<(u64, u32)>,
    is_json: bool,
    name: Box<str>,
}

struct TarTexts {
    members: Vec<Member>,
    blocks: TarBlocks,
    column: Option<String>,
}

impl TextSource for TarTexts {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        let m = at(&self.members, i)?;
        let bad = |message: String| DataError::bad_text(self.place(i), message);
        let text = match (m.image, m.text) {
            (Some(_), Some(text)) => text,
            (Some(_), None) => return Err(bad("an image without .txt or .json".into())),
            (None, _) => return Err(bad(format!("a caption without {}", extensions()))),
        };
        limits::SMALL_BYTES.check(text.1.into()).map_err(bad)?;
        let text = String::from_utf8(self.blocks.read(i, text.0, text.1.into())?)
            .map_err(|_| bad("the caption is not UTF-8 text".into()))?;
        if !m.is_json {
            return Ok(vec![text]);
        }
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(format!("not JSON ({e})")))?;
        let object = value.as_object().ok_or_else(|| bad("not a JSON object".into()))?;
        json::field(object, self.column.as_deref(), &CAPTIONS)
            .ok_or_else(|| bad(format!("no caption among {}", json::names(object))))
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        let Some(image) = at(&self.members, i)?.image else { return Ok(None) };
        let corrupt = |message| DataError::Corrupt { place: self.place(i), message };
        limits::IMAGE_BYTES.check(image.1.into()).map_err(corrupt)?;
        let bytes = self.blocks.read(i, image.0, image.1.into())?;
        Image::decode(&bytes).map(Some).map_err(corrupt)
    }

    fn place(&self, i: usize) -> String {
        let found = at(&self.members, i).and_then(|m| Ok((self.blocks.file(i)?, m)));
        place_of(found, |(file, m)| format!("{}, member `{}`", file.display(), m.name))
    }

    fn locality(&self) -> Option<Locality> {
        Some(self.blocks.locality())
    }

    fn extent(&self, i: usize) -> Option<Extent> {
        self.blocks.extent(i)
    }

    fn read_ahead(&self, examples: &[u32]) {
        self.blocks.read_ahead(examples, 2); // the caption, the image
    }

    fn bytes(&self) -> u64 {
        self.members.iter().filter_map(|m| m.text).map(|(_, bytes)| bytes as u64).sum()
    }
}

pub(crate) fn open(root: &Path, options: &SequenceOptions) -> Result<Splits> {
    let shards = files(root, SequenceFormat::WebDataset)?;
    let indexed = shards.par_iter().map(|s| samples(s)).collect::<Result<Vec<_>>>()?;
    let mut parts: [Option<(Vec<Member>, Finding)>; 3] = Default::default();
    let (mut paired, mut images) = (0, 0);
    for (path, samples) in shards.iter().zip(indexed) {
        let split = Split::of_file(path, root).unwrap_or(Split::Train);
        let (members, blocks) =
            parts[split as usize].get_or_insert_with(|| (Vec::new(), Finding::new(options.open.cache_bytes)));
        let mut places = Vec::new();
        for sample in &samples {
            // A named field lies in the JSON; otherwise the plain text is the caption.
            let order: &[&str] = if options.caption_column.is_some() {
                &["json", "txt", "caption"]
            } else {
                &["txt", "caption", "json"]
            };
            let (image, text) = (sample.find(&EXTENSIONS), sample.find(order));
            let Some(first) = image.or(text) else { continue };
            images += usize::from(image.is_some());
            paired += usize::from(image.is_some() && text.is_some());
            // What has more than 4 GiB is too large for either.
            let span = |p: &Piece| (p.offset, u32::try_from(p.bytes).unwrap_or(u32::MAX));
            let ends = image.iter().chain(&text).map(|p| p.offset.saturating_add(p.bytes)).max();
            let start = image.iter().chain(&text).map(|p| p.offset).min();
            places.push(start.unwrap_or(0)..ends.unwrap_or(0));
            members.push(Member {
                image: image.map(span),
                text: text.map(span),
                is_json: text.is_some_and(|t| t.extension == "json"),
                name: first.name.as_str().into(),
            });
        }
        blocks.add(path, places.into_iter());
    }
    if paired == 0 {
        let what = if images == 0 { format!("no {} members", extensions()) } else { "images but no captions".into() };
        return Err(DataError::layout(
            root,
            format!("{what} in these tar files; each KEY.jpg needs KEY.txt, or KEY.json with \"caption\""),
        ));
    }
    let parts = parts.map(|part| {
        let column = options.caption_column.clone();
        part.map(|(members, blocks)| TarTexts { members, blocks: blocks.finish(), column })
    });
    // A field that the first whole sample lacks is a wrong setting, not a bad row.
    for part in parts.iter().flatten() {
        let whole = part.members.iter().position(|m| m.image.is_some() && m.text.is_some());
        if let Some(Err(e)) = whole.filter(|&i| part.members[i].is_json).map(|i| part.texts(i)) {
            return Err(DataError::layout(root, format!("{e}; set data.caption_column")));
        }
    }
    Ok(Splits { splits: parts.map(|p| p.map(|p| Arc::new(p) as Texts)), notes: Vec::new() })
}
