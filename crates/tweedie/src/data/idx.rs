//! MNIST's idx files, also gzipped, also with dots for dashes in their names.

use super::classes::ClassList;
use super::detect::{file_name, is_idx, list};
use super::{DataError, Found, MemorySource, Result, Source};
use crate::{files, limits};
use flate2::read::MultiGzDecoder;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) fn open(root: &Path, classes: Option<&ClassList>) -> Result<Found> {
    let files: Vec<PathBuf> = list(root)?.into_iter().filter(|f| is_idx(&file_name(f))).collect();
    let train = pair(root, &files, &["train"])?;
    let test = pair(root, &files, &["t10k", "test"])?;
    let read_all = |pair: Option<(PathBuf, PathBuf)>| pair.map(|(i, l)| read(&i, &l)).transpose();
    let (train, test) = (read_all(train)?, read_all(test)?);
    let most = train.iter().chain(&test).flat_map(|(_, labels)| labels.iter()).max().copied().unwrap_or(0);
    let class_names = match classes {
        Some(list) => list.names(most as usize + 1)?,
        None => (0..=most).map(|i| i.to_string()).collect(),
    };
    let source = |found: Option<(Pixels, Vec<u32>)>| -> Result<Option<Source>> {
        let Some((p, labels)) = found else { return Ok(None) };
        let name = p.path.display().to_string();
        Ok(Some(Arc::new(MemorySource::new(name, p.width, p.height, 1, p.values, labels)?)))
    };
    Ok(Found { train: source(train)?, val: None, test: source(test)?, class_names, channels: 1, notes: vec![] })
}

/// The image and label files whose name holds one of `words`.
fn pair(root: &Path, files: &[PathBuf], words: &[&str]) -> Result<Option<(PathBuf, PathBuf)>> {
    let find = |kind: &str, dims: &str| -> Result<Option<PathBuf>> {
        let mut hits: Vec<&PathBuf> = files
            .iter()
            .filter(|f| {
                let n = file_name(f);
                words.iter().any(|w| n.contains(w)) && n.contains(kind) && n.contains(dims)
            })
            .collect();
        // The same file plain and gzipped: take the plain one.
        if hits.len() == 2 && hits.iter().any(|f| file_name(f).ends_with(".gz")) {
            hits.retain(|f| !file_name(f).ends_with(".gz"));
        }
        match hits[..] {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            _ => Err(DataError::layout(
                root,
                format!(
                    "{} and {} could both hold the {} {kind}; keep one data set per folder",
                    file_name(hits[0]),
                    file_name(hits[1]),
                    words[0]
                ),
            )),
        }
    };
    match (find("images", "idx3")?, find("labels", "idx1")?) {
        (Some(i), Some(l)) => Ok(Some((i, l))),
        (None, None) => Ok(None),
        (i, _) => {
            let lacks = if i.is_some() { "labels-idx1-ubyte" } else { "images-idx3-ubyte" };
            Err(DataError::layout(root, format!("`{}-{lacks}` is missing beside its companion", words[0])))
        }
    }
}

struct Pixels {
    path: PathBuf,
    width: usize,
    height: usize,
    values: Vec<u8>,
}

fn read(images: &Path, labels: &Path) -> Result<(Pixels, Vec<u32>)> {
    let (dims, values) = read_idx(images, 3)?;
    let (count, label_bytes) = read_idx(labels, 1)?;
    if dims[0] != count[0] {
        return Err(DataError::layout(
            labels,
            format!("{} labels for {} images in {}", count[0], dims[0], images.display()),
        ));
    }
    if dims[1] == 0 || dims[2] == 0 {
        return Err(DataError::layout(images, format!("images of {}x{} pixels", dims[2], dims[1])));
    }
    let pixels = Pixels { path: images.into(), height: dims[1], width: dims[2], values };
    Ok((pixels, label_bytes.into_iter().map(u32::from).collect()))
}

/// Read an idx file of unsigned bytes with `dims` dimensions: magic 00 00 08 dims, then the sizes as big-endian u32. No more is read
/// than the sizes say, and a packed file is not unpacked beyond them.
fn read_idx(path: &Path, dims: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let mut file = BufReader::new(files::open(path).map_err(DataError::io(path))?);
    let packed = file.fill_buf().map_err(DataError::io(path))?.starts_with(&[0x1f, 0x8b]);
    let mut from: Box<dyn Read> = if packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut read = |most: u64| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let done = from.by_ref().take(most).read_to_end(&mut bytes);
        done.map_err(|e| match packed {
            true => DataError::layout(path, format!("the gzip stream is broken ({e}); download it again")),
            false => DataError::io(path)(e),
        })?;
        Ok(bytes)
    };
    let head = 4 + 4 * dims;
    let begin = read(head as u64)?;
    if begin.len() < head || begin[..4] != [0, 0, 8, dims as u8] {
        let magic: Vec<String> = begin.iter().take(4).map(|b| format!("{b:02x}")).collect();
        return Err(DataError::layout(
            path,
            format!(
                "not an idx file of bytes in {dims} dimensions (it begins with {}, not 00 00 08 0{dims})",
                magic.join(" ")
            ),
        ));
    }
    let sizes: Vec<usize> =
        begin[4..].chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).collect();
    let shown = || sizes.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x");
    let expected = sizes.iter().try_fold(1_u64, |a, &n| a.checked_mul(n as u64)).unwrap_or(u64::MAX);
    limits::UNPACKED_BYTES.check(expected).map_err(|why| DataError::layout(path, format!("{}: {why}", shown())))?;
    let bytes = read(expected + 1)?;
    if bytes.len() as u64 != expected {
        let found = match bytes.len() as u64 {
            n if n > expected => "more".into(),
            n => (n + head as u64).to_string(),
        };
        return Err(DataError::layout(
            path,
            format!(
                "{} bytes expected for {}, {found} found; the file is cut off, download it again",
                expected + head as u64,
                shown()
            ),
        ));
    }
    Ok((sizes, bytes))
}
