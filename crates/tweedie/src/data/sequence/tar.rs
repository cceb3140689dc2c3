//! Tar shards of images with captions: `0001.jpg` and `0001.txt`, or `0001.json` with a caption. Opening reads headers;
//! images and captions are read where they lie.

use super::super::split::Split;
use super::super::tar::{IMAGES, Piece, read_piece, samples};
use super::super::{DataError, Image, Result};
use super::detect::files;
use super::json::{self, CAPTIONS};
use super::{SequenceFormat, SequenceOptions, Splits, TextSource, Texts};
use rayon::prelude::*;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct Member {
    shard: u32,
    image: (u64, u32),
    text: (u64, u32),
    is_json: bool,
    name: Box<str>,
}

#[derive(Default)]
struct TarTexts {
    shards: Vec<PathBuf>,
    members: Vec<Member>,
    column: Option<String>,
}

impl TarTexts {
    fn read(&self, i: usize, (offset, bytes): (u64, u32)) -> Result<Vec<u8>> {
        let path = &self.shards[self.members[i].shard as usize];
        let read = File::open(path).and_then(|mut file| read_piece(&mut file, offset, bytes as u64));
        read.map_err(DataError::io(path))
    }
}

impl TextSource for TarTexts {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        let m = &self.members[i];
        let bytes = self.read(i, m.text)?;
        let text = String::from_utf8_lossy(&bytes);
        if !m.is_json {
            return Ok(vec![text.into_owned()]);
        }
        let bad = |message: String| DataError::bad_text(self.place(i), message);
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| bad(format!("not JSON ({e})")))?;
        let object = value.as_object().ok_or_else(|| bad("not a JSON object".into()))?;
        json::field(object, self.column.as_deref(), &CAPTIONS)
            .ok_or_else(|| bad(format!("no caption among {}", json::names(object))))
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        let bytes = self.read(i, self.members[i].image)?;
        Image::decode(&bytes).map(Some).map_err(|message| DataError::Corrupt { place: self.place(i), message })
    }

    fn place(&self, i: usize) -> String {
        let m = &self.members[i];
        format!("{}, member `{}`", self.shards[m.shard as usize].display(), m.name)
    }

    fn bytes(&self) -> u64 {
        self.members.iter().map(|m| m.text.1 as u64).sum()
    }
}

pub(crate) fn open(root: &Path, options: &SequenceOptions) -> Result<Splits> {
    let shards = files(root, SequenceFormat::WebDataset)?;
    let indexed = shards.par_iter().map(|s| samples(s)).collect::<Result<Vec<_>>>()?;
    let mut parts: [Option<TarTexts>; 3] = Default::default();
    let (mut unpaired, mut images) = (0, 0);
    for (path, samples) in shards.iter().zip(indexed) {
        let split = Split::of_file(path, root).unwrap_or(Split::Train);
        let part = parts[split as usize].get_or_insert_default();
        part.column = options.caption_column.clone();
        let shard = part.shards.len() as u32;
        part.shards.push(path.clone());
        for sample in &samples {
            let Some(image) = sample.find(&IMAGES) else { continue };
            images += 1;
            // A named field lies in the JSON; otherwise the plain text is the caption.
            let order: &[&str] = if options.caption_column.is_some() {
                &["json", "txt", "caption"]
            } else {
                &["txt", "caption", "json"]
            };
            let Some(text) = sample.find(order) else {
                unpaired += 1;
                continue;
            };
            let span = |p: &Piece| -> Result<(u64, u32)> {
                let large = |_| DataError::layout(path, format!("`{}` has {} bytes", p.name, p.bytes));
                Ok((p.offset, u32::try_from(p.bytes).map_err(large)?))
            };
            part.members.push(Member {
                shard,
                image: span(image)?,
                text: span(text)?,
                is_json: text.extension == "json",
                name: image.name.as_str().into(),
            });
        }
    }
    if unpaired == images {
        let what = if images == 0 { "no .jpg, .jpeg, .png or .webp members" } else { "images but no captions" };
        return Err(DataError::layout(
            root,
            format!("{what} in these tar files; each KEY.jpg needs KEY.txt, or KEY.json with \"caption\""),
        ));
    }
    // A field that the first sample lacks is a wrong setting, not a bad row.
    for part in parts.iter().flatten() {
        if let Some(Err(e)) = part.members.first().map(|_| part.texts(0)) {
            return Err(DataError::layout(root, format!("{e}; set data.caption_column")));
        }
    }
    let mut notes = Vec::new();
    if unpaired > 0 {
        notes.push(format!("{unpaired} images without .txt or .json are left out"));
    }
    Ok(Splits { splits: parts.map(|p| p.map(|p| Arc::new(p) as Texts)), notes })
}
