//! Image folders: the class is the folder's name.

use super::classes::{ClassList, LabelMap, composed};
use super::detect::{Seen, file_name, list};
use super::sources::{at, place_of};
use super::split::Split;
use super::{DataError, Found, Image, ImageSource, Item, Needed, Result, Source};
use crate::image::{extensions, has_image_name};
use crate::{files, limits};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

struct FolderSource {
    files: Vec<(PathBuf, u32)>,
}

impl ImageSource for FolderSource {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, i: usize) -> Result<Item> {
        self.get_top(i, &|_, height| height)
    }

    fn get_top(&self, i: usize, needed: Needed) -> Result<Item> {
        let (path, label) = at(&self.files, i)?;
        let corrupt = |message: String| DataError::Corrupt { place: path.display().to_string(), message };
        let bytes = files::read(path, &limits::IMAGE_BYTES).map_err(|e| corrupt(e.to_string()))?;
        Ok(Item { image: Image::decode_top(&bytes, needed).map_err(corrupt)?, label: *label })
    }

    fn label(&self, i: usize) -> u32 {
        self.files.get(i).map_or(u32::MAX, |f| f.1)
    }

    fn place(&self, i: usize) -> String {
        place_of(at(&self.files, i), |f| f.0.display().to_string())
    }
}

/// All images below a folder, in the order of their paths, whatever they are of. Hidden files are left out.
pub fn images_below(path: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    collect(path, 64, &mut Seen::default(), &mut images)?;
    images.retain(|file| file.is_file());
    images.sort();
    Ok(images)
}

/// True if a file with an image's extension lies at most three folders below `path`.
pub(crate) fn contains_images(path: &Path) -> Result<bool> {
    fn look(path: &Path, depth: usize, seen: &mut Seen) -> Result<bool> {
        if !seen.enter(path) {
            return Ok(false);
        }
        let entries = list(path)?;
        if entries.iter().any(|e| has_image_name(e)) {
            return Ok(true);
        }
        for entry in entries.iter().filter(|e| depth > 0 && e.is_dir()) {
            if look(entry, depth - 1, seen)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
    look(path, 3, &mut Seen::default())
}

pub(crate) fn open(root: &Path, list_file: Option<&ClassList>) -> Result<Found> {
    let folders: Vec<PathBuf> = list(root)?.into_iter().filter(|e| e.is_dir()).collect();
    let mut splits: Vec<(Split, PathBuf)> = Vec::new();
    for folder in &folders {
        if let Some(split) = Split::of_word(&file_name(folder)) {
            if let Some((_, other)) = splits.iter().find(|(s, _)| *s == split) {
                return Err(DataError::layout(
                    root,
                    format!("both `{}` and `{}` name the same split; keep one", file_name(other), file_name(folder)),
                ));
            }
            splits.push((split, folder.clone()));
        }
    }
    // A folder of classes may have a class that is called "test", so split names count only if train or val is there.
    let only_test = splits.iter().all(|(s, _)| *s == Split::Test);
    if splits.is_empty() || (only_test && splits.len() < folders.len()) {
        splits = vec![(Split::Train, root.into())];
    }
    let scans = splits
        .iter()
        .map(|(split, path)| {
            let classes = scan(path)?;
            Ok((*split, path.clone(), classes))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut notes = Vec::new();
    // Classes are those of the training split; a test split without class folders cannot be scored and is left out.
    let mut kept = Vec::new();
    for (split, path, scan) in scans {
        match check(&path, &scan) {
            Err(e) if split == Split::Test && splits.len() > 1 => notes.push(format!("test split left out: {e}")),
            Err(e) => return Err(e),
            Ok(()) => kept.push((split, path, scan)),
        }
    }
    let known: BTreeSet<String> = kept
        .iter()
        .find(|(s, ..)| *s == Split::Train)
        .or(kept.first())
        .map(|(_, _, scan)| scan.classes.iter().filter(|c| !c.1.is_empty()).map(|c| c.0.clone()).collect())
        .unwrap_or_default();
    let map = LabelMap::of_ids(&known.into_iter().collect::<Vec<_>>(), list_file)?;
    let mut found = Found { train: None, val: None, test: None, class_names: vec![], channels: 3, notes };
    for (split, path, scan) in kept {
        let mut files = Vec::new();
        for (class, images) in scan.classes {
            let Some(label) = map.id(&class) else {
                if images.is_empty() {
                    continue;
                }
                return Err(DataError::layout(
                    &path,
                    format!(
                        "class folder `{class}` is not among the training classes; sort the images into class folders"
                    ),
                ));
            };
            if images.is_empty() {
                found.notes.push(format!("class folder {} holds no images", path.join(&class).display()));
            }
            files.extend(images.into_iter().map(|f| (f, label)));
        }
        if scan.loose > 0 {
            found.notes.push(format!(
                "{} images directly in {} have no class and are left out",
                scan.loose,
                path.display()
            ));
        }
        limits::ENTRIES.check(files.len() as u64).map_err(|why| DataError::layout(&path, why))?;
        let source: Source = Arc::new(FolderSource { files });
        match split {
            Split::Train => found.train = Some(source),
            Split::Val => found.val = Some(source),
            Split::Test => found.test = Some(source),
        }
    }
    found.class_names = map.into_names();
    Ok(found)
}

struct Scan {
    /// Class folders with their images, sorted.
    classes: Vec<(String, Vec<PathBuf>)>,
    /// Images that lie beside the class folders.
    loose: usize,
}

fn scan(path: &Path) -> Result<Scan> {
    let entries = list(path)?;
    let loose = entries.iter().filter(|e| has_image_name(e) && e.is_file()).count();
    let folders: Vec<PathBuf> = entries.into_iter().filter(|e| e.is_dir()).collect();
    let classes = folders
        .into_par_iter()
        .map(|folder| {
            let mut images = Vec::new();
            collect(&folder, 4, &mut Seen::below(path), &mut images)?;
            if !images.is_empty() && folder.file_name().is_none_or(|n| n.to_str().is_none()) {
                let why = "the name of this folder is not UTF-8 text, so it cannot name a class; rename it";
                return Err(DataError::layout(&folder, why));
            }
            Ok((composed(&file_name(&folder)), images))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Scan { classes, loose })
}

fn collect(path: &Path, depth: usize, seen: &mut Seen, out: &mut Vec<PathBuf>) -> Result<()> {
    if !seen.enter(path) {
        return Ok(());
    }
    for entry in list(path)? {
        if has_image_name(&entry) {
            out.push(entry);
        } else if depth > 0 && entry.is_dir() {
            collect(&entry, depth - 1, seen, out)?;
        }
    }
    Ok(())
}

fn check(path: &Path, scan: &Scan) -> Result<()> {
    if scan.classes.iter().any(|(_, images)| !images.is_empty()) {
        return Ok(());
    }
    let message = match (scan.loose, scan.classes.len()) {
        (0, 0) => "the folder is empty".to_string(),
        (0, n) => format!("{n} class folders, but no {} images in them", extensions()),
        (n, _) => format!("{n} images but no class folders; put the images of each class into a folder with its name"),
    };
    Err(DataError::layout(path, message))
}
