//! MNIST's idx files, also gzipped, also with dots for dashes in their names.

use super::classes::ClassList;
use super::detect::{file_name, is_idx, list};
use super::{DataError, Found, MemorySource, Result, Source};
use std::io::Read;
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
    let pixels = Pixels { path: images.into(), height: dims[1], width: dims[2], values };
    Ok((pixels, label_bytes.into_iter().map(u32::from).collect()))
}

/// Read an idx file of unsigned bytes with `dims` dimensions: magic 00 00 08 dims, then the sizes as big-endian u32.
fn read_idx(path: &Path, dims: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let mut bytes = std::fs::read(path).map_err(DataError::io(path))?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut plain = Vec::new();
        flate2::read::MultiGzDecoder::new(&bytes[..])
            .read_to_end(&mut plain)
            .map_err(|e| DataError::layout(path, format!("the gzip stream is broken ({e}); download it again")))?;
        bytes = plain;
    }
    let head = 4 + 4 * dims;
    if bytes.len() < head || bytes[..4] != [0, 0, 8, dims as u8] {
        let magic: Vec<String> = bytes.iter().take(4).map(|b| format!("{b:02x}")).collect();
        return Err(DataError::layout(
            path,
            format!(
                "not an idx file of bytes in {dims} dimensions (it begins with {}, not 00 00 08 0{dims})",
                magic.join(" ")
            ),
        ));
    }
    let sizes: Vec<usize> =
        bytes[4..head].chunks_exact(4).map(|b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]) as usize).collect();
    let expected = sizes.iter().try_fold(1_usize, |a, &n| a.checked_mul(n)).and_then(|n| n.checked_add(head));
    if expected != Some(bytes.len()) {
        return Err(DataError::layout(
            path,
            format!(
                "{} bytes expected for {}, {} found; the file is cut off, download it again",
                expected.map_or("too many".into(), |n| n.to_string()),
                sizes.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x"),
                bytes.len()
            ),
        ));
    }
    bytes.drain(..head);
    Ok((sizes, bytes))
}
