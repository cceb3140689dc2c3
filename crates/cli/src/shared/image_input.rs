//! Images that a command is given: files, folders, lists and standard input, alike for all of them.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tweedie::data::images_below;
use tweedie::image::FileFormat;
use tweedie::limits::{IMAGE_BYTES, TEXT_BYTES};
use tweedie::{Device, Image, files};
use tweedie_figures::Picture;

use crate::failure::{Failure, Result};
use crate::report::note;

/// An image as figures take it.
pub fn picture(image: Image) -> Picture {
    Picture { width: image.width, height: image.height, channels: image.channels, pixels: image.data }
}

#[derive(clap::Args)]
pub struct ImageArgs {
    /// Images (JPEG, PNG, WebP, GIF, BMP, TIFF), folders of them, @LIST for a file with a path in each line, - for an image or for
    /// such a list on stdin
    #[arg(required = true, value_name = "IMG")]
    images: Vec<PathBuf>,
}

/// One image, not read yet.
pub struct ImageInput {
    /// What it is called in answers.
    pub name: String,
    content: Content,
}

enum Content {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl ImageInput {
    fn file(path: &Path) -> ImageInput {
        ImageInput { name: path.display().to_string(), content: Content::File(path.into()) }
    }

    fn read(&self) -> std::result::Result<Image, String> {
        match &self.content {
            Content::File(path) => Image::decode(&files::read(path, &IMAGE_BYTES).map_err(|e| e.to_string())?),
            Content::Bytes(bytes) => Image::decode(bytes),
        }
    }
}

impl ImageArgs {
    /// All images that are named, those of a folder by their paths. That a file is there is seen when it is read.
    pub fn inputs(&self) -> Result<Vec<ImageInput>> {
        let mut all = Vec::new();
        for argument in &self.images {
            match argument.to_str() {
                Some("-") => all.extend(from_stdin()?),
                Some(name) if name.starts_with('@') => all.extend(from_list(Path::new(&name[1..]))?),
                _ => all.extend(from_path(argument)?),
            }
        }
        Ok(all)
    }
}

fn from_path(path: &Path) -> Result<Vec<ImageInput>> {
    if !path.is_dir() {
        return Ok(vec![ImageInput::file(path)]);
    }
    match images_below(path)? {
        none if none.is_empty() => Err(Failure::input(format!("{}: no images in this folder", path.display()))),
        found => Ok(found.iter().map(|p| ImageInput::file(p)).collect()),
    }
}

fn from_list(path: &Path) -> Result<Vec<ImageInput>> {
    let bytes = files::read(path, &TEXT_BYTES).map_err(|e| tweedie::Error::file(path, e))?;
    from_lines(&path.display().to_string(), bytes)
}

fn from_stdin() -> Result<Vec<ImageInput>> {
    let bytes = TEXT_BYTES.read(std::io::stdin().lock())?;
    match FileFormat::of(&bytes) {
        Some(_) => Ok(vec![ImageInput { name: "stdin".into(), content: Content::Bytes(bytes) }]),
        None => from_lines("stdin", bytes),
    }
}

/// Files and folders, one in each line.
fn from_lines(name: &str, bytes: Vec<u8>) -> Result<Vec<ImageInput>> {
    let text = String::from_utf8(bytes)
        .map_err(|_| Failure::input(format!("{name} is neither an image nor a list of files: it is not UTF-8 text")))?;
    let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
    let all: Vec<Vec<ImageInput>> = lines.map(|line| from_path(Path::new(line))).collect::<Result<_>>()?;
    match all.is_empty() {
        true => Err(Failure::input(format!("{name} names no images; each line is to be a path"))),
        false => Ok(all.into_iter().flatten().collect()),
    }
}

/// How many images to read ahead: photographs take tens of megabytes each.
pub fn read_ahead(device: &Device) -> usize {
    if *device == Device::Cpu { 2 * rayon::current_num_threads() } else { 64 }
}

/// Read some images at once; what is wrong with one is told.
pub fn read(inputs: &[ImageInput]) -> Vec<std::result::Result<Image, String>> {
    let read: Vec<_> = inputs.par_iter().map(ImageInput::read).collect();
    for (input, image) in inputs.iter().zip(&read) {
        if let Err(why) = image {
            note(&format!("{}: {why}; skipped", input.name));
        }
    }
    read
}

/// What a command ends with that could not read so many of its images.
pub fn unreadable(count: usize, of: usize) -> Result<()> {
    match count {
        0 => Ok(()),
        n => Err(Failure::input(format!("{n} of {of} images could not be read"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_files_and_folders() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("pets/cats")).unwrap();
        for name in ["pets/z.PNG", "pets/cats/b.tiff", "pets/cats/a.gif", "pets/notes.txt"] {
            std::fs::write(at(name), "").unwrap();
        }
        let list = format!("{}\r\n\n{}\n", at("missing.jpg").display(), at("pets").display());
        let names = |found: Vec<ImageInput>| found.into_iter().map(|i| i.name).collect::<Vec<_>>();
        let found = names(from_lines("list", list.into_bytes()).unwrap());
        let want =
            ["missing.jpg", "pets/cats/a.gif", "pets/cats/b.tiff", "pets/z.PNG"].map(|n| at(n).display().to_string());
        assert_eq!(found, want);
        let e = |bytes: &[u8]| from_lines("list", bytes.to_vec()).err().unwrap().to_string();
        assert!(e(b"\n \n").contains("names no images") && e(b"\xff\xfe").contains("not UTF-8"));
        std::fs::create_dir(at("empty")).unwrap();
        assert!(from_path(&at("empty")).err().unwrap().to_string().contains("no images"));
    }
}
