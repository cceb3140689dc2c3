//! Which layout of captions or text lies at a path?

use super::super::detect::{Seen, check_kind, file_name, files_below, list};
use super::super::{DataError, Format, Result, folder, tar};
use super::{Task, json, parquet};
use crate::image::{EXTENSIONS, has_image_name};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The layouts of captions and text that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SequenceFormat {
    /// COCO's `captions_*.json` and folders of images.
    Coco,
    /// Karpathy's `dataset_*.json` and folders of images.
    Karpathy,
    /// Parquet as Hugging Face `datasets` writes it, with captions or text.
    Parquet,
    /// Tar shards with images and `.txt` or `.json`.
    WebDataset,
    /// Plain text.
    Text,
    /// One JSON object per line.
    JsonLines,
    /// Inside the program.
    Embedded,
    /// No files: sources of the caller's own ([`SequenceSet::texts`](super::SequenceSet::texts)).
    Custom,
}

impl std::fmt::Display for SequenceFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            SequenceFormat::Coco => "COCO captions",
            SequenceFormat::Karpathy => "Karpathy's captions",
            SequenceFormat::Parquet => "Parquet",
            SequenceFormat::WebDataset => "WebDataset tar",
            SequenceFormat::Text => "text",
            SequenceFormat::JsonLines => "JSON lines",
            SequenceFormat::Embedded => "embedded",
            SequenceFormat::Custom => "own code",
        })
    }
}

impl SequenceFormat {
    /// What the format alone says about the task.
    pub(crate) fn usual_task(self) -> Option<Task> {
        match self {
            SequenceFormat::Coco | SequenceFormat::Karpathy | SequenceFormat::WebDataset | SequenceFormat::Embedded => {
                Some(Task::Caption)
            }
            SequenceFormat::Text | SequenceFormat::JsonLines => Some(Task::Text),
            SequenceFormat::Parquet | SequenceFormat::Custom => None,
        }
    }
}

const KNOWN: &str = "known layouts of captions and text: COCO's annotations/captions_*.json or Karpathy's dataset_*.json \
                     with images, Parquet files, WebDataset .tar shards, .txt and .jsonl files (also .gz)";

/// Without `.gz`.
fn plain(name: &str) -> &str {
    name.strip_suffix(".gz").unwrap_or(name)
}

fn is_text(name: &str) -> bool {
    let name = plain(name).to_ascii_lowercase();
    let about = ["readme", "license", "licence", "citation", "requirements"];
    [".txt", ".tokens", ".text", ".raw"].iter().any(|e| name.ends_with(e)) && !about.iter().any(|a| name.starts_with(a))
}

fn is_json_lines(name: &str) -> bool {
    [".jsonl", ".ndjson", ".jsonlines"].iter().any(|e| plain(name).ends_with(e))
}

fn is_coco(name: &str) -> bool {
    name.starts_with("captions") && name.ends_with(".json")
}

fn is_karpathy(name: &str) -> bool {
    name.starts_with("dataset") && name.ends_with(".json")
}

/// The files of a layout at or below a path, sorted.
pub(crate) fn files(path: &Path, format: SequenceFormat) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.into()]);
    }
    let is: fn(&str) -> bool = match format {
        SequenceFormat::Coco => is_coco,
        SequenceFormat::Karpathy => is_karpathy,
        SequenceFormat::Parquet => |n| n.ends_with(".parquet"),
        SequenceFormat::WebDataset => |n| n.ends_with(".tar"),
        SequenceFormat::Text => is_text,
        SequenceFormat::JsonLines => is_json_lines,
        SequenceFormat::Embedded | SequenceFormat::Custom => |_| false,
    };
    // Annotations lie at most in a folder of their own; do not descend into a hundred thousand images.
    let depth = if matches!(format, SequenceFormat::Coco | SequenceFormat::Karpathy) { 1 } else { 3 };
    let mut found = Vec::new();
    traverse(path, depth, &is, &mut Seen::default(), &mut found)?;
    found.sort();
    Ok(found)
}

fn traverse(
    path: &Path,
    depth: usize,
    is: &dyn Fn(&str) -> bool,
    seen: &mut Seen,
    out: &mut Vec<PathBuf>,
) -> Result<()> {
    if !seen.enter(path) {
        return Ok(());
    }
    let entries = list(path)?;
    out.extend(entries.iter().filter(|e| is(&file_name(e)) && e.is_file()).cloned());
    if depth == 0 {
        return Ok(());
    }
    // A thousand classes of images hold no text.
    let folders: Vec<&PathBuf> = entries.iter().filter(|e| !has_image_name(e) && e.is_dir()).collect();
    if folders.len() <= 64 {
        folders.into_iter().try_for_each(|f| traverse(f, depth - 1, is, seen, out))?;
    }
    Ok(())
}

/// The name of data that are inside the program.
pub(crate) fn embedded(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix("embedded:")
}

/// The layout at `path` and the folder or file to read it from.
pub(crate) fn detect(path: &Path) -> Result<(SequenceFormat, PathBuf)> {
    use SequenceFormat::*;
    if embedded(path).is_some() {
        return Ok((Embedded, path.into()));
    }
    let meta = std::fs::metadata(path).map_err(DataError::io(path))?;
    if meta.is_file() {
        let name = file_name(path);
        let format = match name.as_str() {
            n if n.ends_with(".parquet") => Parquet,
            n if n.ends_with(".tar") => WebDataset,
            n if is_karpathy(n) => Karpathy,
            n if n.ends_with(".json") => Coco,
            n if is_json_lines(n) => JsonLines,
            n if [".tar.gz", ".tgz", ".zip", ".7z", ".tar.xz"].iter().any(|e| n.ends_with(e)) => {
                return Err(DataError::layout(path, "a compressed archive; unpack it and give the folder"));
            }
            n if is_text(n) || plain(n) == n && !n.contains('.') => Text, // text8 has no extension
            _ => return Err(DataError::layout(path, format!("not a file of captions or text; {KNOWN}"))),
        };
        return Ok((format, path.into()));
    }
    check_kind(path, &meta)?;
    for format in [Parquet, Coco, Karpathy, WebDataset, JsonLines, Text] {
        if !files(path, format)?.is_empty() {
            return Ok((format, path.into()));
        }
    }
    Err(DataError::layout(path, format!("no captions or text found; {KNOWN}")))
}

/// What the data at `path` are for, as far as looking tells: classes wherever there are labels.
pub fn guess_task(path: impl AsRef<Path>) -> Result<Task> {
    let path: &Path = &crate::files::as_on_disk(path.as_ref());
    match embedded(path) {
        Some("shapes") => return Ok(Task::Caption),
        Some(_) => return Ok(Task::Class),
        None => {}
    }
    std::fs::metadata(path).map_err(DataError::io(path))?;
    // CIFAR and MNIST bring text files about their classes.
    if let Ok((Format::Cifar10 | Format::Cifar100 | Format::Idx, _)) = super::super::detect::detect(path, None) {
        return Ok(Task::Class);
    }
    let Ok((format, root)) = detect(path) else { return Ok(Task::Class) };
    Ok(match format {
        SequenceFormat::Coco | SequenceFormat::Karpathy | SequenceFormat::Embedded => Task::Caption,
        SequenceFormat::Custom => Task::Class, // never found at a path
        SequenceFormat::Parquet => match files(&root, format)?.first() {
            Some(file) => parquet::guess(file)?,
            None => Task::Class,
        },
        SequenceFormat::WebDataset => {
            let shards = files_below(&root, ".tar", 3)?;
            let first = shards.first().map(|s| tar::samples(s)).transpose()?.unwrap_or_default();
            let Some(sample) = first.iter().find(|s| s.find(&EXTENSIONS).is_some()) else { return Ok(Task::Class) };
            let has_text = sample.find(&["txt", "caption"]).is_some() || has_caption(&shards[0], sample)?;
            if has_text && sample.find(&["cls"]).is_none() { Task::Caption } else { Task::Class }
        }
        SequenceFormat::Text | SequenceFormat::JsonLines if path.is_dir() && folder::contains_images(path)? => {
            Task::Class
        }
        SequenceFormat::Text | SequenceFormat::JsonLines => Task::Text,
    })
}

/// Whether a sample's JSON has a caption and no label.
fn has_caption(shard: &Path, sample: &tar::Sample) -> Result<bool> {
    let Some(piece) = sample.find(&["json"]) else { return Ok(false) };
    if limits::SMALL_BYTES.check(piece.bytes).is_err() {
        return Ok(false);
    }
    let mut file = crate::files::open(shard).map_err(DataError::io(shard))?;
    let bytes = tar::read_piece(&mut file, piece.offset, piece.bytes).map_err(DataError::io(shard))?;
    let value = serde_json::from_slice(&bytes).unwrap_or_default();
    let serde_json::Value::Object(object) = value else { return Ok(false) };
    let label = ["label", "cls", "class", "class_id"].iter().any(|k| object.contains_key(*k));
    Ok(!label && json::field(&object, None, &json::CAPTIONS).is_some())
}
