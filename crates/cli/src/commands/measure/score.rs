//! `tweedie score`: captions against references, and against images.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use tweedie::Image;
use tweedie::metrics::captions::{self, CaptionScores, Intervals};
use tweedie::metrics::clip::Clip;
use tweedie::metrics::files::{References, image_files, pair, read_captions, read_references};
use tweedie::metrics::{Diversity, diversity};

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table};
use crate::shared::clip_scores::{ClipRows, Judge};

#[derive(clap::Args)]
pub struct Args {
    /// Reference captions: COCO annotations, {id: [captions]} or JSON lines
    references: PathBuf,
    /// Captions to score: COCO results, {id: caption} or JSON lines
    #[arg(required = true, value_name = "CAPTIONS")]
    captions: Vec<PathBuf>,
    /// Folder of a CLIP model saved by transformers, for CLIPScore
    #[arg(long, value_name = "FOLDER", requires = "images")]
    clip: Option<PathBuf>,
    /// Folder of the images, called as the references say or by their ids
    #[arg(long, value_name = "FOLDER", requires = "clip")]
    images: Option<PathBuf>,
    /// Score only the images that have a caption in every file
    #[arg(long)]
    subset: bool,
    /// Empty captions count (as zero) instead of being refused
    #[arg(long)]
    allow_empty: bool,
    /// Resampled sets of images for the intervals
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    bootstrap: u32,
    /// Seed of the intervals and of the shuffled captions
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// auto, cpu, cuda or cuda:N, for CLIP
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Scored {
    references: String,
    images: usize,
    bootstrap: u32,
    seed: u64,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clip: Option<ClipRows>,
}

#[derive(Serialize)]
struct Row {
    captions: String,
    #[serde(flatten)]
    scores: CaptionScores,
    interval95: Intervals,
    /// Less the first file, for the same draws of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference95: Option<Intervals>,
    diversity: Diversity,
}

pub fn run(args: &Args) -> Result<()> {
    let mut references = read_references(&args.references)?;
    let mut files: Vec<(&Path, _)> = Vec::new();
    for path in &args.captions {
        files.push((path, read_captions(path, args.allow_empty).map_err(|e| empty_hint(e.into()))?));
    }
    let paired = pair(&mut references, &files, args.subset).map_err(|e| subset_hint(e.into()))?;
    let (draws, seed) = (args.bootstrap as usize, args.seed);
    let mut rows: Vec<Row> = Vec::new();
    for (path, texts) in args.captions.iter().zip(&paired) {
        let scores = captions::score(&references.captions, texts)?;
        let difference95 = match rows.first() {
            Some(first) => Some(scores.bootstrap_difference(&first.scores, draws, seed)?),
            None => None,
        };
        rows.push(Row {
            captions: path.display().to_string(),
            interval95: scores.bootstrap(draws, seed),
            scores,
            difference95,
            diversity: diversity(texts),
        });
    }
    let clip = match (&args.clip, &args.images) {
        (Some(clip), Some(images)) => Some(clip_rows(args, clip, images, &references, &paired)?),
        _ => None,
    };
    let scored = Scored {
        references: args.references.display().to_string(),
        images: references.ids.len(),
        bootstrap: args.bootstrap,
        seed,
        rows,
        clip,
    };
    if args.json {
        return report::print_json(&scored);
    }
    report::print(&text(&scored))
}

fn empty_hint(f: Failure) -> Failure {
    if f.to_string().ends_with(" is empty") { f.hint("--allow-empty scores empty captions as they are") } else { f }
}

fn subset_hint(f: Failure) -> Failure {
    if f.to_string().contains("no caption for image") {
        f.hint("--subset scores only the images that have a caption in every file")
    } else {
        f
    }
}

fn clip_rows(
    args: &Args,
    folder: &Path,
    images: &Path,
    references: &References,
    paired: &[Vec<String>],
) -> Result<ClipRows> {
    let files = image_files(references, images)?;
    let choice = report::open_device(&args.device)?;
    let clip = Clip::load(folder, &choice.device)?;
    let read = |part: Range<usize>| files[part].par_iter().map(|p| Ok(Image::open(p)?)).collect();
    let judge = Judge::new(&clip, &references.captions, args.seed, read)?;
    judge.rows(args.captions.iter().map(|p| p.display().to_string()).zip(paired.iter().map(Vec::as_slice)))
}

fn text(s: &Scored) -> String {
    use Align::{Left, Right};
    let range = |i: &[f64; 2]| format!("{:.4} – {:.4}", i[0], i[1]);
    let mut out = format!("{}: {} images\n\n", s.references, s.images);
    let mut t = Table::new(&[
        ("captions", Left),
        ("BLEU-1", Right),
        ("BLEU-2", Right),
        ("BLEU-3", Right),
        ("BLEU-4", Right),
        ("95 %", Right),
        ("ROUGE-L", Right),
        ("CIDEr-D", Right),
        ("95 %", Right),
    ]);
    for r in &s.rows {
        let mut cells = vec![r.captions.clone()];
        cells.extend(r.scores.bleu.iter().map(|b| format!("{b:.4}")));
        cells.extend([
            range(&r.interval95.bleu[3]),
            format!("{:.4}", r.scores.rouge_l),
            format!("{:.4}", r.scores.cider_d),
            range(&r.interval95.cider_d),
        ]);
        t.row(cells);
    }
    out += &t.shown();
    if s.rows.len() > 1 {
        let mut t = Table::new(&[
            ("less the first", Left),
            ("BLEU-4", Right),
            ("95 %", Right),
            ("CIDEr-D", Right),
            ("95 %", Right),
        ]);
        for r in &s.rows[1..] {
            let Some(d) = &r.difference95 else { continue };
            let first = &s.rows[0].scores;
            t.row(vec![
                r.captions.clone(),
                format!("{:+.4}", r.scores.bleu[3] - first.bleu[3]),
                range(&d.bleu[3]),
                format!("{:+.4}", r.scores.cider_d - first.cider_d),
                range(&d.cider_d),
            ]);
        }
        out += &format!("\n{}", t.shown());
    }
    let mut t = Table::new(&[
        ("captions", Left),
        ("distinct-1", Right),
        ("distinct-2", Right),
        ("distinct-3", Right),
        ("self-BLEU-4", Right),
        ("unique %", Right),
        ("word twice in a row %", Right),
        ("length ratio", Right),
    ]);
    for r in &s.rows {
        let d = &r.diversity;
        let mut cells = vec![r.captions.clone()];
        cells.extend(d.distinct.iter().chain([&d.self_bleu4]).map(|v| format!("{v:.4}")));
        cells.extend([100.0 * d.unique, 100.0 * d.repeated].map(|v| format!("{v:.2}")));
        cells.push(format!("{:.3}", r.scores.length_ratio));
        t.row(cells);
    }
    out += &format!("\n{}", t.shown());
    if let Some(c) = &s.clip {
        out += &c.text();
    }
    out
}
