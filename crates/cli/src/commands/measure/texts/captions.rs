//! `tweedie eval` of captions: scores over settings, CLIPScore, examples, files.

use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;
use tweedie::config::{Rank, SampleConfig, SamplerKind, Unmasking};
use tweedie::data::{Sequences, Task};
use tweedie::evaluate::{self, Captions};
use tweedie::interrupt;
use tweedie::metrics::captions::{CaptionScores, Intervals};
use tweedie::metrics::clip::Clip;
use tweedie::metrics::{Diversity, diversity};
use tweedie::run::Loaded;

use super::super::curve::{self, Point};
use super::super::eval::Args;
use super::{bound_text, combined, correction, name, passes, sampler_name, stagger, steps_taken, stopped, uncommitted};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note, warn, with_bar};
use crate::shared::clip_scores::{ClipRows, Judge};

/// Draws of the bootstrap.
const DRAWS: usize = 1000;

/// Seed of the shuffled captions: what CLIP says of them does not change with the sampling noise.
const SHUFFLE: u64 = 0;

#[derive(Serialize)]
struct Row {
    sampler: SamplerKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    unmask: Option<Unmasking>,
    #[serde(rename = "guesses", skip_serializing_if = "Option::is_none")] // the key of earlier versions
    uncommitted: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correction: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stagger: Option<usize>,
    steps: usize,
    passes: usize,
    guidance: f32,
    candidates: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<Rank>,
    exact: f64,
    #[serde(flatten)]
    scores: CaptionScores,
    intervals: Intervals,
    diversity: Diversity,
    skipped: usize,
}

impl Row {
    /// What is known of it before it is measured.
    fn new(of: &Loaded, s: &SampleConfig) -> Row {
        let model = &of.trained.model;
        Row {
            sampler: s.sampler,
            unmask: (!model.is_tdd()).then_some(s.unmask),
            uncommitted: uncommitted(model, s),
            correction: correction(model, s),
            stagger: stagger(&of.trained, s),
            steps: steps_taken(model, s),
            passes: passes(model, s),
            guidance: s.guidance,
            candidates: s.candidates,
            rank: (s.candidates > 1).then_some(s.rank),
            exact: 0.0,
            intervals: Intervals::default(),
            scores: CaptionScores::default(),
            diversity: Diversity::default(),
            skipped: 0,
        }
    }

    fn scored(self, captions: &Captions) -> Result<Row> {
        let scores = captions.scores()?;
        Ok(Row {
            exact: captions.exact(),
            intervals: scores.bootstrap(DRAWS, 0),
            scores,
            diversity: diversity(&captions.texts),
            skipped: captions.skipped.count(),
            ..self
        })
    }

    fn best_of(&self) -> String {
        self.rank.map_or("1".into(), |rank| format!("{} by {}", self.candidates, name(rank)))
    }

    fn sampler(&self) -> String {
        sampler_name((self.sampler, self.unmask, self.uncommitted, self.correction, self.stagger))
    }

    /// Its settings in one line.
    fn name(&self) -> String {
        let best = self.rank.map_or(String::new(), |_| format!(", best of {}", self.best_of()));
        format!("{}, {} steps, guidance {}{best}", self.sampler(), self.steps, self.guidance)
    }

    /// Its settings but for the steps.
    fn way(&self) -> String {
        let tdd = if self.unmask.is_none() { "TDD " } else { "" };
        let guided = if self.guidance == 1.0 { String::new() } else { format!(", guidance {}", self.guidance) };
        let best = self.rank.map_or(String::new(), |_| format!(", best of {}", self.best_of()));
        format!("{tdd}{}{guided}{best}", self.sampler())
    }
}

pub fn run(args: &Args, loaded: &Loaded, source: &Sequences, settings: &[SampleConfig]) -> Result<()> {
    // A folder that holds no CLIP should not be found out after an hour of captions.
    let clip = match &args.text.clip {
        Some(folder) => Some(Clip::load(folder, &loaded.trained.model.device())?),
        None => None,
    };
    let twin = match &args.twin {
        Some(run) => Some(twin(args, run)?),
        None => None,
    };
    let mut all: Vec<(&Loaded, SampleConfig)> = settings.iter().map(|s| (loaded, s.clone())).collect();
    if let Some(twin) = &twin {
        all.extend(combined(args, twin)?.into_iter().map(|s| (twin, s)));
    }
    let (mut rows, mut made, mut last) = (Vec::<Row>::new(), Vec::new(), Captions::default());
    for (i, (of, s)) in all.iter().enumerate() {
        // Of a curve no point is measured twice: a shared time corrects nothing, and few tokens take few steps.
        let new = Row::new(of, s);
        if args.figure.is_some() && rows.iter().any(|r| r.name() == new.name()) {
            continue;
        }
        let what = match all.len() {
            1 => "writing captions".to_string(),
            n => format!("setting {} of {n}", i + 1),
        };
        let stop = &interrupt::requested;
        last = with_bar(&what, || evaluate::captions_until(&of.trained, source, &of.config, s, args.limit, stop))
            .map_err(|e| stopped(e, "captions were written"))?;
        rows.push(new.scored(&last)?);
        if clip.is_some() {
            made.push(last.texts.clone());
        }
    }
    last.skipped.errors.values().take(5).for_each(|e| warn(&format!("left out: {e}")));
    if let Some(dir) = &args.text.out {
        write(dir, source, &last)?;
    }
    if let Some(file) = &args.figure {
        let point = |r: &Row| Point {
            way: r.way(),
            passes: Some(r.passes),
            score: r.scores.cider_d,
            interval: r.intervals.cider_d,
        };
        let names = ("Captions over passes of the network", "network passes per caption", "CIDEr-D");
        curve::draw(names, rows.iter().map(point).collect(), file)?;
    }
    let clip = match &clip {
        Some(clip) => Some(clip_rows(clip, source, &last, rows.iter().map(|r| r.name()).zip(&made))?),
        None => None,
    };
    let bound = match args.text.bound {
        0 => None,
        draws => Some(super::bound(args, loaded, source, draws)?),
    };
    if args.model.json {
        let shown: Vec<_> = examples(source, &last, args.text.examples)
            .map(|(place, text, refs)| json!({ "place": place, "caption": text, "references": refs }))
            .collect();
        return report::print_json(&json!({ "rows": rows, "clip": clip, "bound": bound, "examples": shown }));
    }
    report::print(&table(&rows))?;
    if let Some(clip) = &clip {
        report::print(&clip.text())?;
    }
    for (place, text, refs) in examples(source, &last, args.text.examples) {
        report::print(&format!("\n{place}\n  {text}\n  ({})\n", refs.join(" | ")))?;
    }
    match bound {
        Some(b) => report::print(&format!("\n{}", bound_text(&b))),
        None => Ok(()),
    }
}

/// Another run, whose captions are of the same images.
fn twin(args: &Args, run: &Path) -> Result<Loaded> {
    let twin = args.model.load_run(run)?;
    match twin.config.data.task {
        Task::Caption => Ok(twin),
        _ => Err(Failure::input(format!("--twin {}: it writes no captions", run.display()))),
    }
}

/// CLIPScore of captions, each set by its name; `last` has the images and references of them all.
fn clip_rows<'a>(
    clip: &Clip,
    source: &Sequences,
    last: &Captions,
    made: impl Iterator<Item = (String, &'a Vec<String>)>,
) -> Result<ClipRows> {
    let read = |part: Range<usize>| {
        if interrupt::requested() {
            return Err(stopped(tweedie::Error::Interrupted, "images went through CLIP"));
        }
        last.indices[part].par_iter().map(|i| Ok(source.image(*i as usize)?)).collect()
    };
    let judge = Judge::new(clip, &last.references, SHUFFLE, read)?;
    judge.rows(made.map(|(name, texts)| (name, texts.as_slice())))
}

/// Place, caption and references of the first `n`.
fn examples<'a>(
    source: &'a Sequences,
    c: &'a Captions,
    n: usize,
) -> impl Iterator<Item = (String, &'a String, &'a Vec<String>)> {
    let all = c.indices.iter().zip(&c.texts).zip(&c.references);
    all.take(n).map(|((i, text), refs)| (source.place(*i as usize), text, refs))
}

fn table(rows: &[Row]) -> String {
    use Align::{Left, Right};
    // Where a step is one pass of the network, the column would say the same twice.
    let passes = rows.iter().any(|r| r.passes != r.steps);
    let heads = [
        ("sampler", Left),
        ("steps", Right),
        ("passes", Right),
        ("guidance", Right),
        ("best of", Left),
        ("CIDEr-D", Right),
        ("95 %", Left),
        ("BLEU-1", Right),
        ("BLEU-4", Right),
        ("ROUGE-L", Right),
        ("exact %", Right),
        ("unique %", Right),
        ("repeated word %", Right),
        ("images", Right),
    ];
    let heads: Vec<_> = heads.into_iter().filter(|h| passes || h.0 != "passes").collect();
    let mut t = Table::new(&heads);
    for r in rows {
        let s = &r.scores;
        let mut cells = vec![r.sampler(), r.steps.to_string()];
        if passes {
            cells.push(r.passes.to_string());
        }
        cells.extend([
            r.guidance.to_string(),
            r.best_of(),
            format!("{:.3}", s.cider_d),
            format!("{:.3}–{:.3}", r.intervals.cider_d[0], r.intervals.cider_d[1]),
            format!("{:.3}", s.bleu[0]),
            format!("{:.3}", s.bleu[3]),
            format!("{:.3}", s.rouge_l),
            format!("{:.1}", 100.0 * r.exact),
            format!("{:.1}", 100.0 * r.diversity.unique),
            format!("{:.1}", 100.0 * r.diversity.repeated),
            s.images.to_string(),
        ]);
        t.row(cells);
    }
    t.shown()
}

/// `captions.json` as COCO wants results, `references.json` as COCO gives captions: what `tweedie score` reads.
/// Images have their file names where the data are files.
fn write(dir: &Path, source: &Sequences, c: &Captions) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let captions: Vec<_> =
        c.indices.iter().zip(&c.texts).map(|(i, text)| json!({ "image_id": i, "caption": text })).collect();
    let image = |i: &u32| match source.source().file_name(*i as usize) {
        Some(file) => json!({ "id": i, "file_name": file }),
        None => json!({ "id": i }),
    };
    let images: Vec<_> = c.indices.iter().map(image).collect();
    let refs = c.indices.iter().zip(&c.references).flat_map(|(i, refs)| refs.iter().map(move |r| (i, r)));
    let annotations: Vec<_> =
        refs.enumerate().map(|(id, (i, r))| json!({ "id": id, "image_id": i, "caption": r })).collect();
    for (name, value) in [
        ("captions.json", json!(captions)),
        ("references.json", json!({ "images": images, "annotations": annotations })),
    ] {
        tweedie::files::write_atomic(&dir.join(name), &serde_json::to_vec(&value)?)?;
    }
    note(&format!("wrote {}", dir.display()));
    Ok(())
}
