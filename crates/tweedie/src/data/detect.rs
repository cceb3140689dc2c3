//! What lies at a path?

use super::{DataError, Result};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// The layouts that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// `root/train/CLASS/*.jpg`, `root/val/CLASS/*.jpg`, or `root/CLASS/*.jpg`.
    Folder,
    /// `data_batch_1.bin` … `test_batch.bin`.
    Cifar10,
    /// `train.bin`, `test.bin` of CIFAR-100; the fine labels are used.
    Cifar100,
    /// MNIST's `train-images-idx3-ubyte` and its companions, also `.gz`.
    Idx,
    /// Parquet as Hugging Face `datasets` writes it.
    Parquet,
    /// WebDataset tar shards.
    WebDataset,
    /// Inside the program.
    Embedded,
    /// No files: sources of the caller's own ([`Dataset::classes`](super::Dataset::classes)).
    Custom,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Format::Folder => "image folder",
            Format::Cifar10 => "CIFAR-10 binary",
            Format::Cifar100 => "CIFAR-100 binary",
            Format::Idx => "MNIST idx",
            Format::Parquet => "Parquet",
            Format::WebDataset => "WebDataset tar",
            Format::Embedded => "embedded",
            Format::Custom => "own code",
        })
    }
}

const KNOWN: &str = "known layouts: CLASS/image.jpg (also under train/ and val/), CIFAR .bin batches, MNIST idx files, \
                     Parquet files with an image column, WebDataset .tar shards";

/// The format at `path` and the folder or file to read it from.
pub(crate) fn detect(path: &Path, wanted: Option<Format>) -> Result<(Format, PathBuf)> {
    let meta = std::fs::metadata(path).map_err(DataError::io(path))?;
    if meta.is_file() {
        return detect_file(path, wanted);
    }
    check_kind(path, &meta)?;
    if let Some(format) = wanted {
        let root = if format == Format::Folder { Some(path.to_path_buf()) } else { find(path, format)? };
        return root.map(|r| (format, r)).ok_or_else(|| {
            DataError::layout(path, format!("no {format} data here; leave the format out to let it be recognised"))
        });
    }
    for format in [Format::Parquet, Format::Cifar10, Format::Cifar100, Format::Idx, Format::WebDataset] {
        if let Some(root) = find(path, format)? {
            return Ok((format, root));
        }
    }
    if has_python_cifar(path)? {
        return Err(DataError::layout(
            path,
            "these are CIFAR's pickled Python batches; download the binary version (cifar-10-binary.tar.gz) instead",
        ));
    }
    match super::folder::contains_images(path)? {
        true => Ok((Format::Folder, path.into())),
        false => Err(nothing_found(path)?),
    }
}

fn detect_file(path: &Path, wanted: Option<Format>) -> Result<(Format, PathBuf)> {
    let name = file_name(path);
    let parent = path.parent().unwrap_or(Path::new("."));
    let found = if name.ends_with(".parquet") {
        (Format::Parquet, path.into())
    } else if name.ends_with(".tar") {
        (Format::WebDataset, path.into())
    } else if is_cifar10(&name) {
        (Format::Cifar10, parent.into())
    } else if is_idx(&name) {
        (Format::Idx, parent.into())
    } else if [".tar.gz", ".tgz", ".tar.zst", ".zip", ".tar.bz2", ".tar.xz"].iter().any(|e| name.ends_with(e)) {
        return Err(DataError::layout(
            path,
            "a compressed archive cannot be read at random places; unpack it and give the folder (or the plain .tar)",
        ));
    } else {
        return Err(DataError::layout(path, format!("not a data set file; {KNOWN}")));
    };
    match wanted {
        Some(format) if format != found.0 => {
            Err(DataError::layout(path, format!("this looks like {}, not like {format}", found.0)))
        }
        _ => Ok(found),
    }
}

/// The folder at or below `path` that holds files of `format` (for Parquet and tar: `path` itself if any file below it
/// is one).
fn find(path: &Path, format: Format) -> Result<Option<PathBuf>> {
    find_below(path, format, 3, &mut Seen::default())
}

fn find_below(path: &Path, format: Format, depth: usize, seen: &mut Seen) -> Result<Option<PathBuf>> {
    if !seen.enter(path) {
        return Ok(None);
    }
    let entries = list(path)?;
    let any = |test: &dyn Fn(&str) -> bool| entries.iter().any(|e| test(&file_name(e)) && e.is_file());
    let here = match format {
        Format::Parquet => any(&|n| n.ends_with(".parquet")),
        Format::WebDataset => any(&|n| n.ends_with(".tar")),
        Format::Embedded | Format::Custom => false,
        Format::Cifar10 => any(&is_cifar10),
        Format::Cifar100 => any(&|n| n == "train.bin" || n == "test.bin") && any(&|n| n == "fine_label_names.txt"),
        Format::Idx => any(&is_idx),
        Format::Folder => true,
    };
    if here {
        return Ok(Some(path.into()));
    }
    if depth == 0 {
        return Ok(None);
    }
    // An image folder may have a thousand classes with a thousand files each: do not descend into those.
    let folders: Vec<&PathBuf> = entries.iter().filter(|e| e.is_dir()).collect();
    if folders.len() > 64 {
        return Ok(None);
    }
    for folder in folders {
        if let Some(root) = find_below(folder, format, depth - 1, seen)? {
            let files_below = matches!(format, Format::Parquet | Format::WebDataset);
            return Ok(Some(if files_below { path.into() } else { root }));
        }
    }
    Ok(None)
}

fn is_cifar10(name: &str) -> bool {
    name == "test_batch.bin" || (name.starts_with("data_batch_") && name.ends_with(".bin"))
}

pub(crate) fn is_idx(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name).replace('.', "-");
    name.ends_with("-idx3-ubyte") || name.ends_with("-idx1-ubyte")
}

fn has_python_cifar(path: &Path) -> Result<bool> {
    let mut folders = vec![path.to_path_buf()];
    folders.extend(list(path)?.into_iter().filter(|e| e.is_dir()));
    Ok(folders
        .iter()
        .any(|f| f.join("data_batch_1").is_file() || (f.join("train").is_file() && f.join("meta").is_file())))
}

fn nothing_found(path: &Path) -> Result<DataError> {
    let entries = list(path)?;
    if entries.is_empty() {
        return Ok(DataError::layout(path, format!("the folder is empty; {KNOWN}")));
    }
    let mut seen: Vec<String> = entries.iter().take(5).map(|e| file_name(e)).collect();
    if entries.len() > 5 {
        seen.push(format!("{} more", entries.len() - 5));
    }
    Ok(DataError::layout(
        path,
        format!("no images or data files found (the folder holds {}); {KNOWN}", seen.join(", ")),
    ))
}

/// The entries of a folder, sorted, without hidden ones.
pub(crate) fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(path).map_err(DataError::io(path))? {
        let entry = entry.map_err(DataError::io(path))?.path();
        if !file_name(&entry).starts_with('.') && file_name(&entry) != "__MACOSX" {
            out.push(entry);
            limits::ENTRIES.check(out.len() as u64).map_err(|why| DataError::layout(path, why))?;
        }
    }
    out.sort();
    Ok(out)
}

/// Folders that were looked into. By way of links one can be met again and again, and some lie in themselves.
#[derive(Default)]
pub(crate) struct Seen(HashSet<PathBuf>);

impl Seen {
    /// What lies below `folder`, but neither it nor what it lies in.
    pub fn below(folder: &Path) -> Seen {
        let real = std::fs::canonicalize(folder).unwrap_or_default();
        Seen(real.ancestors().map(PathBuf::from).collect())
    }

    /// Whether this is the first visit to a folder.
    pub fn enter(&mut self, folder: &Path) -> bool {
        std::fs::canonicalize(folder).is_ok_and(|real| self.0.insert(real))
    }
}

/// An error for what is neither a file nor a folder.
pub(crate) fn check_kind(path: &Path, meta: &std::fs::Metadata) -> Result<()> {
    if meta.is_dir() || meta.is_file() {
        return Ok(());
    }
    Err(DataError::layout(path, "a pipe, a socket or a device; data are files and folders"))
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// All files below `path` whose name ends with `suffix`, sorted; `path` itself if it is a file.
pub(crate) fn files_below(path: &Path, suffix: &str, depth: usize) -> Result<Vec<PathBuf>> {
    fn traverse(path: &Path, suffix: &str, depth: usize, seen: &mut Seen, out: &mut Vec<PathBuf>) -> Result<()> {
        if !seen.enter(path) {
            return Ok(());
        }
        for entry in list(path)? {
            if entry.is_dir() {
                if depth > 0 {
                    traverse(&entry, suffix, depth - 1, seen, out)?;
                }
            } else if file_name(&entry).ends_with(suffix) {
                out.push(entry);
            }
        }
        Ok(())
    }
    if path.is_file() {
        return Ok(vec![path.into()]);
    }
    let mut out = Vec::new();
    traverse(path, suffix, depth, &mut Seen::default(), &mut out)?;
    Ok(out)
}
