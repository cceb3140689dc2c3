//! Captions in one JSON file, images in folders: COCO's `captions_*.json` and Karpathy's `dataset_*.json`. Captions are
//! held in memory (all of COCO takes 50 MB); images are read when they are needed.

use super::super::detect::file_name;
use super::super::sources::{at, place_of};
use super::super::split::Split;
use super::super::{DataError, Image, Result};
use super::detect::files;
use super::{SequenceFormat, SequenceOptions, Splits, TextSource, Texts};
use crate::{files, limits};
use serde::Deserialize;
use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// One image with its captions.
struct ImageRecord {
    /// Number of the JSON file it stands in.
    file: u32,
    /// Below the folder of images.
    path: Box<str>,
    id: Box<str>,
    captions: Vec<Box<str>>,
}

#[derive(Default)]
struct CocoSource {
    /// JSON files, each with its folder of images.
    files: Vec<(PathBuf, PathBuf)>,
    entries: Vec<ImageRecord>,
    bytes: u64,
}

impl CocoSource {
    /// The JSON file that an image stands in.
    fn json(&self, entry: &ImageRecord) -> &Path {
        &self.files[entry.file as usize].0
    }
}

impl TextSource for CocoSource {
    fn len(&self) -> usize {
        self.entries.len()
    }

    fn texts(&self, i: usize) -> Result<Vec<String>> {
        Ok(at(&self.entries, i)?.captions.iter().map(|c| c.to_string()).collect())
    }

    fn image(&self, i: usize) -> Result<Option<Image>> {
        let e = at(&self.entries, i)?;
        let folder = &self.files[e.file as usize].1;
        let corrupt = |message: String| DataError::Corrupt {
            place: format!("{} (image {} of {})", folder.join(&*e.path).display(), e.id, self.json(e).display()),
            message,
        };
        let path = inside(folder, &e.path).map_err(corrupt)?;
        let bytes = files::read(&path, &limits::IMAGE_BYTES).map_err(|e| corrupt(e.to_string()))?;
        Image::decode(&bytes).map(Some).map_err(corrupt)
    }

    fn place(&self, i: usize) -> String {
        place_of(at(&self.entries, i), |e| format!("{}, image {} ({})", self.json(e).display(), e.id, e.path))
    }

    fn file_name(&self, i: usize) -> Option<String> {
        self.entries.get(i).map(|e| e.path.to_string())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The file that a data set names, below its folder of images. A name that leads out of the folder is refused: a data set from
/// elsewhere has no business with other files.
fn inside(folder: &Path, name: &str) -> std::result::Result<PathBuf, String> {
    if Path::new(name).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Ok(files::as_on_disk(&folder.join(name)));
    }
    Err("its name leads out of the folder of images; data.image_folder sets that folder".into())
}

/// A number or a name. Some tools write numbers as 17.0.
#[derive(Deserialize)]
#[serde(untagged)]
enum Id {
    Number(serde_json::Number),
    Name(String),
}

impl Id {
    /// The same for 17 and 17.0, and not for the name "17".
    fn key(&self) -> (bool, Box<str>) {
        match self {
            Id::Number(n) => {
                let text = n.to_string();
                (true, text.strip_suffix(".0").unwrap_or(&text).into())
            }
            Id::Name(s) => (false, s.as_str().into()),
        }
    }
}

#[derive(Deserialize)]
struct Coco {
    images: Vec<CocoImage>,
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct CocoImage {
    id: Id,
    file_name: String,
}

#[derive(Deserialize)]
struct Annotation {
    image_id: Id,
    #[serde(default)]
    caption: Option<String>,
}

#[derive(Deserialize)]
struct Karpathy {
    images: Vec<KarpathyImage>,
}

#[derive(Deserialize)]
struct KarpathyImage {
    #[serde(default)]
    filepath: String,
    filename: String,
    split: String,
    #[serde(default)]
    sentences: Vec<Sentence>,
    #[serde(alias = "cocoid", alias = "imgid")]
    #[serde(default)]
    id: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Sentence {
    raw: String,
}

pub(crate) fn open(given: &Path, root: &Path, options: &SequenceOptions) -> Result<Splits> {
    let (format, mut jsons) = match files(root, SequenceFormat::Coco)? {
        jsons if jsons.is_empty() => (SequenceFormat::Karpathy, files(root, SequenceFormat::Karpathy)?),
        jsons => (SequenceFormat::Coco, jsons),
    };
    let one = root.is_file();
    let format = if one && is_karpathy_file(root)? { SequenceFormat::Karpathy } else { format };
    if format == SequenceFormat::Karpathy && jsons.len() > 1 {
        let names = jsons.iter().map(|j| file_name(j)).collect::<Vec<_>>().join(", ");
        return Err(DataError::layout(
            given,
            format!("several data sets in one folder ({names}); give one of the files"),
        ));
    }
    jsons.sort();
    let root = if one { crate::files::parent(root) } else { root };
    let root = if file_name(root) == "annotations" { crate::files::parent(root) } else { root };
    let mut parts: [Option<CocoSource>; 3] = Default::default();
    let mut notes = Vec::new();
    for json in &jsons {
        let text = files::read(json, &limits::TEXT_BYTES).map_err(DataError::io(json))?;
        let wrong = |e: serde_json::Error| DataError::layout(json, format!("not {format}: {e}"));
        let found = match format {
            SequenceFormat::Karpathy => karpathy(serde_json::from_slice(&text).map_err(wrong)?, json, &mut notes),
            _ => {
                let split = Split::of_file(json, root).unwrap_or(Split::Train);
                coco(serde_json::from_slice(&text).map_err(wrong)?, split, json, &mut notes)
            }
        };
        drop(text);
        let folder = image_folder(json, root, options, &found)?;
        for (split, mut entry) in found {
            let part = parts[split as usize].get_or_insert_default();
            if part.files.last().is_none_or(|f| f.0 != *json) {
                part.files.push((json.clone(), folder.clone()));
            }
            entry.file = part.files.len() as u32 - 1;
            part.bytes += entry.captions.iter().map(|c| c.len() as u64).sum::<u64>();
            part.entries.push(entry);
        }
    }
    Ok(Splits { splits: parts.map(|p| p.map(|p| Arc::new(p) as Texts)), notes })
}

/// A `.json` of any name may be either.
fn is_karpathy_file(path: &Path) -> Result<bool> {
    use std::io::Read;
    let mut head = Vec::new();
    let file = files::open(path).map_err(DataError::io(path))?;
    file.take(1 << 16).read_to_end(&mut head).map_err(DataError::io(path))?;
    let head = String::from_utf8_lossy(&head);
    Ok(head.contains("\"sentids\"") || head.contains("\"sentences\""))
}

fn coco(data: Coco, split: Split, json: &Path, notes: &mut Vec<String>) -> Vec<(Split, ImageRecord)> {
    let mut by_id: HashMap<(bool, Box<str>), usize> = HashMap::new();
    let mut out: Vec<(Split, ImageRecord)> = Vec::with_capacity(data.images.len());
    let mut twice = 0;
    for image in data.images {
        let key = image.id.key();
        let entry = ImageRecord { file: 0, path: image.file_name.into(), id: key.1.clone(), captions: vec![] };
        match by_id.entry(key) {
            MapEntry::Occupied(_) => twice += 1,
            MapEntry::Vacant(place) => {
                place.insert(out.len());
                out.push((split, entry));
            }
        }
    }
    if twice > 0 {
        notes.push(format!("{}: {twice} images with the id of another are left out", json.display()));
    }
    let mut strangers = 0;
    for a in data.annotations {
        match by_id.get(&a.image_id.key()) {
            Some(&i) => out[i].1.captions.extend(a.caption.map(|c| c.trim().into())),
            None => strangers += 1,
        }
    }
    if strangers > 0 {
        notes.push(format!("{}: {strangers} captions of images that are not listed are left out", json.display()));
    }
    out
}

fn karpathy(data: Karpathy, json: &Path, notes: &mut Vec<String>) -> Vec<(Split, ImageRecord)> {
    let mut out = Vec::with_capacity(data.images.len());
    let mut unknown = 0;
    for image in data.images {
        // `restval` are the validation images that this split trains on.
        let split = if image.split == "restval" { Some(Split::Train) } else { Split::of_word(&image.split) };
        let Some(split) = split else {
            unknown += 1;
            continue;
        };
        let path =
            if image.filepath.is_empty() { image.filename } else { format!("{}/{}", image.filepath, image.filename) };
        let id = image.id.map_or_else(|| path.clone(), |v| v.to_string());
        let captions = image.sentences.into_iter().map(|s| s.raw.trim().into()).collect();
        out.push((split, ImageRecord { file: 0, path: path.into(), id: id.into(), captions }));
    }
    if unknown > 0 {
        notes.push(format!("{}: {unknown} images of no known split are left out", json.display()));
    }
    out
}

/// The folder below which the files that a JSON names lie: one of the usual places where one of its first images is.
fn image_folder(
    json: &Path,
    root: &Path,
    options: &SequenceOptions,
    found: &[(Split, ImageRecord)],
) -> Result<PathBuf> {
    let mut places: Vec<PathBuf> = match &options.image_folder {
        Some(folder) => vec![files::as_on_disk(folder)],
        None => Vec::new(),
    };
    let name = file_name(json);
    let part = name.trim_end_matches(".json").rsplit('_').next().unwrap_or_default().to_string(); // captions_train2017
    let word = part.trim_end_matches(|c: char| c.is_ascii_digit()).to_string();
    let bases =
        if places.is_empty() { vec![root.to_path_buf(), crate::files::parent(json).into()] } else { places.clone() };
    for base in bases {
        let names = ["images", "Images", "Flicker8k_Dataset", "flickr8k-images", "flickr30k-images"];
        for folder in [part.clone(), format!("images/{part}"), word.clone(), format!("images/{word}")] {
            places.push(base.join(folder));
        }
        places.push(base.clone());
        places.extend(names.iter().map(|n| base.join(n)));
    }
    let some: Vec<&ImageRecord> = found.iter().map(|(_, e)| e).take(100).collect();
    if let Some(Err(why)) = some.iter().map(|e| inside(root, &e.path)).reduce(|a, b| a.or(b)) {
        let name = some.first().map_or("", |e| &e.path);
        return Err(DataError::layout(json, format!("image `{name}`: {why}")));
    }
    let there = |folder: &&PathBuf| some.iter().any(|e| inside(folder, &e.path).is_ok_and(|path| path.is_file()));
    match places.iter().find(there) {
        Some(folder) => Ok(folder.clone()),
        None if found.is_empty() => Ok(root.into()),
        None => Err(DataError::layout(
            json,
            format!(
                "its images are not found: `{}` is neither in {} nor in any of the usual places; set data.image_folder",
                some.first().map_or("", |e| &e.path),
                places.first().map_or_else(String::new, |p| p.display().to_string()),
            ),
        )),
    }
}
