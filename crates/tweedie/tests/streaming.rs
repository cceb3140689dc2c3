//! A set of 96 MB with room for 4: the memory of this process says that it is streamed. Alone in its program, for the memory is that of
//! all threads.
#![cfg(target_os = "linux")]

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use tweedie::augment::{AugmentConfig, Transform};
use tweedie::data::{self, Image, Loader, LoaderConfig, OpenOptions};

const MB: usize = 1 << 20;
const GROUPS: usize = 250;
const ROWS: usize = 32;

/// Row groups of 32 images of noise of some 12 kB.
fn write(path: &Path) -> usize {
    let mut x = 1_u32;
    let mut byte = |_| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    let noise = (0..64 * 64 * 3).map(&mut byte).collect();
    let png = Image { width: 64, height: 64, channels: 3, data: noise }.to_png().unwrap();
    let schema = parse_message_type("message m { REQUIRED BYTE_ARRAY image; REQUIRED INT64 label; }").unwrap();
    let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
    let mut out = SerializedFileWriter::new(File::create(path).unwrap(), Arc::new(schema), Arc::new(plain)).unwrap();
    let (images, labels) = (vec![ByteArray::from(png.clone()); ROWS], (0..ROWS as i64).collect::<Vec<_>>());
    for _ in 0..GROUPS {
        let mut group = out.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&images, None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    out.close().unwrap();
    png.len() * ROWS * GROUPS
}

/// Most memory that this process had so far.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// By how much the peak of memory grows over an epoch with room for so many bytes of blocks.
fn growth(root: &Path, cache_bytes: usize) -> usize {
    let options = OpenOptions { cache_bytes, decoded_bytes: 0, val_fraction: 0.0, ..OpenOptions::default() };
    let source = data::open(root, &options).unwrap().train().unwrap().clone();
    let path = Transform::eval(&AugmentConfig::none(), 8, 3).unwrap();
    let before = peak();
    let config = LoaderConfig { threads: 2, epochs: Some(1), ..LoaderConfig::train(100, 1) };
    assert_eq!(Loader::new(source, path, config).unwrap().map(Result::unwrap).count(), GROUPS * ROWS / 100);
    peak() - before
}

#[test]
fn a_set_larger_than_its_memory_is_streamed() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = write(&dir.path().join("train.parquet"));
    assert!(bytes > 90 * MB, "{bytes}");
    // What is held is 4 MiB; threads that read a row group hold it two or three times, and freed memory is not all given back.
    let streamed = growth(dir.path(), 4 * MB);
    assert!(streamed < bytes / 2, "{} MiB of {}", streamed / MB, bytes / MB);
    // With room for all of it, all of it is kept: the measure can tell.
    let kept = growth(dir.path(), 1024 * MB);
    assert!(streamed + kept > bytes * 9 / 10, "{} MiB of {}", kept / MB, bytes / MB);
}
