//! WebDataset shards: plain tar files in which members with one key stand together, `0001.jpg` and `0001.cls` (or
//! `0001.json`). Opening reads the headers and labels; images are read where they lie, of sets
//! that are streamed in blocks.

use super::classes::{ClassList, LabelMap, RawLabel};
use super::detect::files_below;
use super::sources::{at, place_of};
use super::split::Split;
use super::tar_blocks::{Finding, TarBlocks};
use super::{DataError, Extent, Found, Image, ImageSource, Item, Locality, Needed, OpenOptions, Result, Source};
use crate::guard::guarded;
use crate::image::{EXTENSIONS, extensions};
use crate::{files, limits};
use rayon::prelude::*;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

struct Member {
    label: u32,
    offset: u64,
    bytes: u32,
    name: Box<str>,
}

struct TarSource {
    members: Vec<Member>,
    blocks: TarBlocks,
}

impl ImageSource for TarSource {
    fn len(&self) -> usize {
        self.members.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        self.get_top(i, &|_, height| height)
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        let m = at(&self.members, i)?;
        let corrupt = |message| DataError::Corrupt { place: self.place(i), message };
        limits::IMAGE_BYTES.check(m.bytes.into()).map_err(corrupt)?;
        let bytes = self.blocks.read(i, m.offset, m.bytes.into())?;
        let image = Image::decode_top(&bytes, needed).map_err(corrupt)?;
        Ok(Item { image, label: m.label })
    }

    fn label(&self, i: usize) -> u32 {
        self.members.get(i).map_or(u32::MAX, |m| m.label)
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
        self.blocks.read_ahead(examples, 1);
    }
}

/// An image and its label as the shard's index finds them.
struct IndexedImage {
    offset: u64,
    bytes: u64,
    label: RawLabel,
    name: String,
}

pub(crate) fn open(root: &Path, options: &OpenOptions, classes: Option<&ClassList>) -> Result<Found> {
    let shards = files_below(root, ".tar", 3)?;
    let indexed = shards.par_iter().map(|s| index(s)).collect::<Result<Vec<_>>>()?;
    let all = indexed.iter().flat_map(|(entries, _)| entries.iter().map(|e| &e.label));
    let map = LabelMap::new(root, all, None, classes)?;
    let unpaired: usize = indexed.iter().map(|(_, n)| n).sum();
    let mut parts: [Option<(Vec<Member>, Finding)>; 3] = Default::default();
    for (path, (entries, _)) in shards.iter().zip(indexed) {
        let split = Split::of_file(path, root).unwrap_or(Split::Train);
        let (members, blocks) =
            parts[split as usize].get_or_insert_with(|| (Vec::new(), Finding::new(options.cache_bytes)));
        blocks.add(path, entries.iter().map(|e| e.offset..e.offset.saturating_add(e.bytes)));
        members.extend(entries.into_iter().map(|e| Member {
            label: map.get(&e.label),
            offset: e.offset,
            bytes: u32::try_from(e.bytes).unwrap_or(u32::MAX), // more than any image may have
            name: e.name.into(),
        }));
    }
    let mut notes = Vec::new();
    if unpaired > 0 {
        notes.push(format!("{unpaired} images without .cls or a label in .json are left out"));
    }
    let [train, val, test] = parts
        .map(|part| part.map(|(members, blocks)| Arc::new(TarSource { members, blocks: blocks.finish() }) as Source));
    Ok(Found { train, val, test, class_names: map.into_names(), channels: 3, notes })
}

/// Members of a shard that share a key.
pub(crate) struct Sample {
    pub members: Vec<Piece>,
}

/// Where one member lies.
pub(crate) struct Piece {
    pub name: String,
    /// After the last dot, in lower case.
    pub extension: String,
    pub offset: u64,
    pub bytes: u64,
}

impl Sample {
    pub fn find(&self, extensions: &[&str]) -> Option<&Piece> {
        extensions.iter().find_map(|e| self.members.iter().find(|m| m.extension == *e))
    }
}

/// Tar files are written in blocks of so many bytes.
const TAR_BLOCK: u64 = 512;
/// Most bytes of what stands before a member: its header, a long name, other attributes.
const HEADER_BYTES: u64 = 1 << 20;
/// Most bytes of a label, or of the JSON it stands in.
const LABEL_BYTES: u64 = 1 << 20;

/// Reads no more than so many bytes from one member to the next: names are read into memory, however long they say they are.
struct Metered<R> {
    from: R,
    left: Rc<Cell<u64>>,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left.get() == 0 {
            let why = format!("more than {HEADER_BYTES} bytes of names before a member");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let n = out.len().min(self.left.get() as usize);
        let n = self.from.read(&mut out[..n])?;
        self.left.set(self.left.get() - n as u64);
        Ok(n)
    }
}

impl<R: Seek> Seek for Metered<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.from.seek(to)
    }
}

/// Read a shard's headers.
pub(crate) fn samples(path: &Path) -> Result<Vec<Sample>> {
    let read = guarded("the tar reader", || read_samples(path));
    read.map_err(|why| DataError::layout(path, format!("not a readable tar file ({why})")))?
}

fn read_samples(path: &Path) -> Result<Vec<Sample>> {
    let file = files::open(path).map_err(DataError::io(path))?;
    let size = file.metadata().map_err(DataError::io(path))?.len();
    let broken = |e: io::Error| DataError::layout(path, format!("not a readable tar file ({e})"));
    let left = Rc::new(Cell::new(HEADER_BYTES));
    let from = Metered { from: BufReader::with_capacity(1 << 16, file), left: left.clone() };
    let mut archive = ::tar::Archive::new(from);
    let mut members = 0;
    let (mut samples, mut key) = (Vec::<Sample>::new(), String::new());
    for entry in archive.entries_with_seek().map_err(broken)? {
        let entry = entry.map_err(broken)?;
        left.set(HEADER_BYTES);
        members += 1;
        limits::ENTRIES.check(members).map_err(|why| DataError::layout(path, why))?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let name = entry.path().map_err(broken)?.to_string_lossy().into_owned();
        let (folder, base) = name.rsplit_once('/').map_or(("", &name[..]), |(f, b)| (f, b));
        if base.starts_with('.') {
            continue;
        }
        let (stem, extension) = base.split_once('.').unwrap_or((base, ""));
        let this = format!("{folder}/{stem}");
        if this != key || samples.is_empty() {
            samples.push(Sample { members: Vec::new() });
            key = this;
        }
        let (offset, bytes) = (entry.raw_file_position(), entry.size());
        let end = offset.saturating_add(bytes);
        if end > size {
            let why = format!("`{name}` ends at byte {end}, the file at {size}; it is cut off, download it again");
            return Err(DataError::layout(path, why));
        }
        let extension = extension.rsplit('.').next().unwrap_or("").to_ascii_lowercase();
        if let Some(sample) = samples.last_mut() {
            sample.members.push(Piece { name, extension, offset, bytes });
        }
    }
    if !size.is_multiple_of(TAR_BLOCK) {
        let why = format!("{size} bytes are not whole blocks of {TAR_BLOCK}; it is cut off, download it again");
        return Err(DataError::layout(path, why));
    }
    Ok(samples)
}

/// The bytes of one member.
pub(crate) fn read_piece(file: &mut File, offset: u64, bytes: u64) -> std::io::Result<Vec<u8>> {
    file.seek(SeekFrom::Start(offset))?;
    let mut out = vec![0; bytes as usize];
    file.read_exact(&mut out)?;
    Ok(out)
}

/// A shard's labelled images, and the number of images without a label.
fn index(path: &Path) -> Result<(Vec<IndexedImage>, usize)> {
    let samples = samples(path)?;
    let mut file = files::open(path).map_err(DataError::io(path))?;
    let mut text = |piece: &Piece| -> Result<String> {
        if piece.bytes > LABEL_BYTES {
            let why = format!("`{}` has {} bytes, and a label at most {LABEL_BYTES}", piece.name, piece.bytes);
            return Err(DataError::layout(path, why));
        }
        let bytes = read_piece(&mut file, piece.offset, piece.bytes).map_err(DataError::io(path))?;
        let wrong = |_| DataError::layout(path, format!("`{}` is not UTF-8 text", piece.name));
        String::from_utf8(bytes).map_err(wrong)
    };
    let (mut entries, mut unpaired) = (Vec::new(), 0);
    for sample in &samples {
        let Some(image) = sample.find(&EXTENSIONS) else { continue };
        let label = match (sample.find(&["cls"]), sample.find(&["json"])) {
            (Some(piece), _) => Some(cls(text(piece)?.trim())),
            (None, Some(piece)) => {
                let wrong = |e| DataError::layout(path, format!("`{}`: {e}", piece.name));
                json(&text(piece)?).map_err(wrong)?
            }
            (None, None) => None,
        };
        match label {
            Some(label) => {
                entries.push(IndexedImage { offset: image.offset, bytes: image.bytes, label, name: image.name.clone() })
            }
            None => unpaired += 1,
        }
    }
    if entries.is_empty() && unpaired > 0 {
        return Err(DataError::layout(
            path,
            format!(
                "{unpaired} images but no labels; each KEY.jpg needs KEY.cls with its class number, or KEY.json with \"label\""
            ),
        ));
    }
    if entries.is_empty() {
        return Err(DataError::layout(path, format!("no {} members in this tar file", extensions())));
    }
    Ok((entries, unpaired))
}

fn cls(text: &str) -> RawLabel {
    text.parse().map_or_else(|_| RawLabel::Name(text.into()), RawLabel::Number)
}

/// The value of `label`, `cls`, `class` or `class_id` in a JSON object, if there is one.
fn json(text: &str) -> std::result::Result<Option<RawLabel>, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("not JSON ({e})"))?;
    let field = ["label", "cls", "class", "class_id"].iter().find_map(|k| value.get(k));
    match field {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::String(s)) => Ok(Some(cls(s))),
        Some(v) => {
            v.as_i64().map(|n| Some(RawLabel::Number(n))).ok_or(format!("label {v} is neither a number nor a name"))
        }
    }
}
