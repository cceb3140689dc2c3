//! Every parser, with good inputs to spoil.

mod runs;
mod sets;

use std::fs;
use std::io::Write;
use std::path::Path;

use tweedie::config::Precision;
use tweedie::data::{self, OpenOptions, SequenceOptions, Source, Task, Texts};
use tweedie::generate::{infill, prompt};
use tweedie::metrics::{clip::Clip, files};
use tweedie::run::{self, Weights};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::{Device, Generator, Image, Session, checkpoint, recipe, tensors};

use crate::{Scratch, Target, repair, root};
use runs::*;
use sets::*;

/// All of them.
pub const TARGETS: [Target; 21] = [
    Target { name: "image", run: image, seeds: pictures },
    Target { name: "folder", run: folder, seeds: pictures },
    Target { name: "parquet-classes", run: parquet_classes, seeds: parquet_class_files },
    Target { name: "parquet-captions", run: parquet_captions, seeds: parquet_caption_files },
    Target { name: "tar-classes", run: tar_classes, seeds: tar_class_files },
    Target { name: "tar-captions", run: tar_captions, seeds: tar_caption_files },
    Target { name: "idx", run: idx, seeds: idx_files },
    Target { name: "cifar", run: cifar, seeds: cifar_files },
    Target { name: "class-list", run: class_list, seeds: class_lists },
    Target { name: "coco", run: coco, seeds: coco_files },
    Target { name: "json-lines", run: json_lines, seeds: json_line_files },
    Target { name: "text", run: text, seeds: texts },
    Target { name: "gzip", run: gzip, seeds: gzip_files },
    Target { name: "tokenizer", run: tokenizer, seeds: tokenizers },
    Target { name: "template", run: fill, seeds: templates },
    Target { name: "recipe", run: settings, seeds: recipes },
    Target { name: "safetensors", run: safetensors, seeds: safetensor_files },
    Target { name: "score", run: score, seeds: score_files },
    Target { name: "clip", run: clip, seeds: clip_files },
    Target { name: "run-classes", run: run_classes, seeds: class_run },
    Target { name: "run-texts", run: run_texts, seeds: text_run },
];

/// Tokens, steps and candidates above which an answer takes long.
const LONG: usize = 2048;

/// Examples that are read of a set: enough to reach what is behind the index.
const EXAMPLES: usize = 24;

fn fixture(below: &str) -> Vec<u8> {
    fs::read(root("crates/tweedie/tests/fixtures").join(below)).unwrap_or_default()
}

fn fixtures(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|n| fixture(n)).collect()
}

fn seed(name: &str) -> Vec<u8> {
    fs::read(root("crates/fuzz/seeds").join(name)).unwrap_or_default()
}

/// A small PNG.
fn png(mark: u8) -> Vec<u8> {
    Image::filled(3, 2, &[mark, 0, 9]).to_png().unwrap_or_default()
}

// Pictures.

const PICTURES: [&str; 20] = [
    "lossy.webp",
    "lossless.webp",
    "alpha.webp",
    "moving.webp",
    "rgb.png",
    "palette.png",
    "rgba.png",
    "grey16.png",
    "grey-alpha.png",
    "bits.png",
    "baseline.jpg",
    "progressive.jpg",
    "cmyk.jpg",
    "palette.gif",
    "rgb.bmp",
    "palette.bmp",
    "lzw.tiff",
    "grey.tiff",
    "held.jpg",
    "held.png",
];

fn pictures() -> Vec<Vec<u8>> {
    PICTURES.iter().map(|n| seed(n)).collect()
}

fn with_sums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.starts_with(b"\x89PNG") {
        repair::png(&mut bytes);
    }
    bytes
}
