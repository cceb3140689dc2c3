//! CIFAR-10 and CIFAR-100 in their binary version: records of one or two label bytes and 3·32·32 pixels, planes first.

use super::classes::ClassList;
use super::detect::{Format, file_name, list};
use super::{DataError, Found, MemorySource, Result, Source};
use crate::{files, limits};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const PIXELS: usize = 3 * 32 * 32;

pub(crate) fn open(root: &Path, format: Format, classes: Option<&ClassList>) -> Result<Found> {
    let hundred = format == Format::Cifar100;
    let files = list(root)?;
    let named = |test: &dyn Fn(&str) -> bool| -> Vec<PathBuf> {
        files.iter().filter(|f| test(&file_name(f))).cloned().collect()
    };
    let (train, test, names_file, count) = if hundred {
        (named(&|n| n == "train.bin"), named(&|n| n == "test.bin"), "fine_label_names.txt", 100)
    } else {
        let batch = |n: &str| n.starts_with("data_batch_") && n.ends_with(".bin");
        (named(&batch), named(&|n| n == "test_batch.bin"), "batches.meta.txt", 10)
    };
    let mut notes = Vec::new();
    if !hundred && !train.is_empty() && train.len() < 5 {
        notes.push(format!("{} of CIFAR-10's 5 training batches are here", train.len()));
    }
    let class_names = match classes {
        Some(list) => list.names(count)?,
        None => {
            let path = root.join(names_file);
            let text = files::read_to_string(&path, &limits::SMALL_BYTES).unwrap_or_default();
            let names: Vec<String> = text.lines().map(|l| l.trim().to_string()).filter(|l| !l.is_empty()).collect();
            if names.len() == count {
                names
            } else {
                notes.push(format!("{} does not name {count} classes; classes are numbered", path.display()));
                (0..count).map(|i| i.to_string()).collect()
            }
        }
    };
    let load = |files: &[PathBuf]| -> Result<Option<Source>> {
        if files.is_empty() {
            return Ok(None);
        }
        Ok(Some(Arc::new(read(files, if hundred { 2 } else { 1 }, count)?)))
    };
    Ok(Found { train: load(&train)?, val: None, test: load(&test)?, class_names, channels: 3, notes })
}

fn read(files: &[PathBuf], label_bytes: usize, classes: usize) -> Result<MemorySource> {
    let record = label_bytes + PIXELS;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for path in files {
        let bytes = files::read(path, &limits::TEXT_BYTES).map_err(DataError::io(path))?;
        if bytes.is_empty() || bytes.len() % record != 0 {
            return Err(DataError::layout(
                path,
                format!(
                    "{} bytes are not a whole number of records of {record} bytes ({} records and {} bytes); \
                     the file is cut off, download it again",
                    bytes.len(),
                    bytes.len() / record,
                    bytes.len() % record
                ),
            ));
        }
        for (row, record) in bytes.chunks_exact(record).enumerate() {
            let label = record[label_bytes - 1];
            if label as usize >= classes {
                return Err(DataError::layout(
                    path,
                    format!("record {row} has label {label}; labels end at {}", classes - 1),
                ));
            }
            labels.push(label as u32);
            let (red, rest) = record[label_bytes..].split_at(1024);
            let (green, blue) = rest.split_at(1024);
            pixels.extend((0..1024).flat_map(|i| [red[i], green[i], blue[i]]));
        }
    }
    let name = files[0].parent().unwrap_or(Path::new(".")).display().to_string();
    MemorySource::new(name, 32, 32, 3, pixels, labels)
}
