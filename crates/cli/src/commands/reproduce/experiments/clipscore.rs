//! CLIPScore of true, shuffled and generated captions; without a CLIP, CIDEr-D in its place.

use std::ops::Range;
use std::path::Path;

use serde_json::json;
use tweedie::metrics::captions::score;
use tweedie::metrics::clip::{Clip, derangement};
use tweedie_figures::{Axis, BarSeries, BarsSpec, Drawing, Figure};

use super::super::caption_measurements::{Score, mean};
use super::super::measurements::Measurements;
use super::super::runs::stop_if_asked;
use super::super::section::{Claim, Data, Grid, Paper, Section, Shown, with_deviation};
use super::super::variant::Variant::{self, CaptionMdd, CaptionRecipeMdd, CaptionRecipeTdd, CaptionTdd};
use super::caption_sampling_name;
use crate::failure::Result;
use crate::report::{Align, note};
use crate::shared::clip_scores::Judge;

pub const NEEDS: &[Variant] = &[CaptionTdd, CaptionMdd, CaptionRecipeTdd, CaptionRecipeMdd];

/// A row of the table: its name, the paper's CLIPScore, and the values of every image, seed by seed.
struct Judged {
    name: String,
    paper: Option<&'static str>,
    values: Vec<Vec<f64>>,
}

/// The first two rows; captions by NEEDS follow.
const TRUE: usize = 0;
const SHUFFLED: usize = 1;
const TDD: usize = 2;
const MDD: usize = 3;

/// The rows, without values.
fn rows(variants: &[Variant]) -> Vec<Judged> {
    let row = |name: &str, paper| Judged { name: name.into(), paper, values: Vec::new() };
    let mut all = vec![row("ground truth", Some("0.30")), row("ground truth, shuffled", Some("0.16"))];
    all.extend(variants.iter().map(|v| {
        let paper = match v {
            CaptionTdd => Some("0.25"),
            CaptionMdd => Some("0.18"),
            _ => None,
        };
        row(&format!("captions by {}", v.name()), paper)
    }));
    all
}

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let variants = measured.plan.those(NEEDS);
    let (metric, values, mut text) = measure(measured, &variants)?;
    let how = caption_sampling_name(measured.caption_config(CaptionTdd)?);
    text.push(format!("Captions by TDD: {how}; all {} test images.", values[0].values[0].len()));
    let scores: Vec<Score> = values.iter().map(|v| Score::of(&v.values)).collect();
    Ok(Section {
        id: "clipscore",
        title: if measured.clip.is_some() {
            "CLIPScore".into()
        } else {
            "CLIPScore (none: CIDEr-D in its place)".to_string()
        },
        of: "CLIPScore table",
        text,
        grids: vec![grid(metric, &values, &scores)],
        claims: claims(&values, measured.clip.is_some()),
        figures: vec![Shown {
            name: "clipscore".into(),
            caption: "With one standard error (test images and, where there are several, seeds).".into(),
            drawing: bars(metric, &values, &scores)?,
        }],
        data: vec![data(metric, &values, &scores)],
        ..Section::default()
    })
}

/// The metric's name, its values, and how they came about.
fn measure(measured: &mut Measurements, variants: &[Variant]) -> Result<(&'static str, Vec<Judged>, Vec<String>)> {
    match measured.clip {
        Some(folder) => {
            let said = format!(
                "Cosine of image and text features of {}, as in the paper. Where an image has several references, their mean. \
                 Shuffled: the references of another image.",
                folder.display()
            );
            Ok(("CLIPScore (cosine)", by_clip(measured, folder, variants)?, vec![said]))
        }
        None => {
            note("clipscore: no CLIP was given (--clip FOLDER); CIDEr-D stands in");
            let (values, how) = by_references(measured, variants)?;
            let said = "No CLIP was given, so these are not CLIPScores: pass --clip FOLDER with a CLIP model as transformers saves \
                        it (config.json, model.safetensors, tokenizer files). In its place stands CIDEr-D, which compares \
                        texts and never looks at an image. The paper’s column is CLIPScore, and only the order of the rows can \
                        be compared.";
            Ok(("CIDEr-D", values, vec![said.into(), how]))
        }
    }
}

fn claims(rows: &[Judged], by_clip: bool) -> Vec<Claim> {
    let claim = |what: &str, a: usize, b: usize| {
        let d = Score::difference(&rows[a].values, &rows[b].values);
        let paper = |r: usize| rows[r].paper.and_then(|p| p.parse::<f64>().ok());
        // Differences of CLIPScores say nothing about another metric but their sign.
        let by = paper(a).zip(paper(b)).filter(|_| by_clip).map_or(Paper::Above, |(a, b)| Paper::By(a - b));
        Claim { what: what.into(), paper: by, ours: d.mean(), error: d.uncertainty() }
    };
    let mut all = vec![
        claim("TDD above MDD", TDD, MDD),
        claim("ground truth above TDD", TRUE, TDD),
        claim("MDD above shuffled captions", MDD, SHUFFLED),
    ];
    if rows.len() > MDD + 2 {
        let own = claim("TDD above MDD (the recipe’s model, not the paper’s)", TDD + 2, MDD + 2);
        all.push(Claim { paper: Paper::Silent, ..own });
    }
    all
}

fn bars(metric: &str, rows: &[Judged], scores: &[Score]) -> Result<Drawing> {
    let low = scores.iter().map(|s| 1.2 * (s.mean() - s.uncertainty())).fold(0.0, f64::min);
    let high = scores.iter().map(|s| 1.12 * (s.mean() + s.uncertainty())).fold(1e-3, f64::max);
    Ok(Figure::bars(&BarsSpec {
        title: format!("{metric} of true, shuffled and generated captions"),
        y: Axis::linear(format!("{metric}, test images")).range(low, high),
        categories: rows.iter().map(short).collect(),
        series: vec![BarSeries {
            name: String::new(),
            values: scores.iter().map(Score::mean).collect(),
            errors: Some(scores.iter().map(Score::uncertainty).collect()),
        }],
        decimals: Some(2),
        size: Some((120.0 + 60.0 * rows.len() as f64, 240.0)),
        ..BarsSpec::default()
    })?)
}

/// A name that fits below a bar.
fn short(row: &Judged) -> String {
    match row.name.strip_prefix("captions by ") {
        Some(by) => by.into(),
        None => row.name.replace("ground truth, ", "").replace("ground truth", "true"),
    }
}

fn grid(metric: &str, rows: &[Judged], scores: &[Score]) -> Grid {
    use Align::{Left, Right};
    let columns = vec![
        ("".into(), Left),
        ("paper, CLIPScore on COCO".into(), Right),
        (format!("ours, {metric}"), Right),
        ("standard error".into(), Right),
    ];
    let rows = rows.iter().zip(scores).map(|(r, s)| {
        let paper = r.paper.unwrap_or("–").to_string();
        vec![r.name.clone(), paper, with_deviation(&s.per_seed), format!("{:.3}", s.standard_error)]
    });
    Grid { columns, rows: rows.collect() }
}

fn data(metric: &str, rows: &[Judged], scores: &[Score]) -> Data {
    let each = |(r, s): (&Judged, &Score)| -> Vec<_> {
        let of = |(seed, v): (usize, &f64)| {
            let images = r.values[seed].len();
            let paper = r.paper.and_then(|p| p.parse::<f64>().ok());
            vec![
                json!(r.name),
                json!(paper),
                json!(metric),
                json!(seed),
                json!(v),
                json!(s.standard_error),
                json!(images),
            ]
        };
        s.per_seed.iter().enumerate().map(of).collect()
    };
    Data {
        name: "clipscore".into(),
        columns: vec!["captions", "paper_clipscore", "metric", "seed", "value", "standard_error_of_test_set", "images"],
        rows: rows.iter().zip(scores).flat_map(each).collect(),
    }
}

fn wide(cosines: &[f32]) -> Vec<f64> {
    cosines.iter().map(|c| f64::from(*c)).collect()
}

fn by_clip(measured: &mut Measurements, folder: &Path, variants: &[Variant]) -> Result<Vec<Judged>> {
    let clip = Clip::load(folder, measured.device)?;
    let (steps, mut rows) = (measured.caption_steps()?, rows(variants));
    for seed in 0..measured.plan.seeds() {
        let all = measured.all_captions(variants, seed, steps)?;
        let source = measured.caption_test(CaptionTdd, seed)?;
        let read = |part: Range<usize>| {
            stop_if_asked("while measuring")?;
            all[0].indices[part].iter().map(|i| Ok(source.image(*i as usize)?)).collect()
        };
        let judge = Judge::new(&clip, &all[0].references, 0, read)?;
        let means = |of: Vec<Vec<f32>>| of.iter().map(|c| mean(&wide(c))).collect::<Vec<_>>();
        rows[TRUE].values.push(means(judge.truth()));
        rows[SHUFFLED].values.push(means(judge.shuffled()));
        for (row, made) in rows[TDD..].iter_mut().zip(&all) {
            row.values.push(wide(&judge.captions(&made.texts)?));
        }
    }
    Ok(rows)
}

/// CIDEr-D of all rows against the same references; and which these are.
fn by_references(measured: &mut Measurements, variants: &[Variant]) -> Result<(Vec<Judged>, String)> {
    let (steps, mut rows) = (measured.caption_steps()?, rows(variants));
    let mut held_out = false;
    for seed in 0..measured.plan.seeds() {
        let all = measured.all_captions(variants, seed, steps)?;
        let references = &all[0].references;
        held_out = references.iter().all(|r| r.len() > 1);
        let first: Vec<String> = references.iter().map(|r| r.first().cloned().unwrap_or_default()).collect();
        let rest: Vec<Vec<String>> =
            references.iter().map(|r| if held_out { r[1..].to_vec() } else { r.clone() }).collect();
        let shuffled: Vec<String> = derangement(first.len(), 0).into_iter().map(|i| first[i].clone()).collect();
        let texts = [&first, &shuffled].into_iter().chain(all.iter().map(|made| &made.texts));
        for (row, texts) in rows.iter_mut().zip(texts) {
            row.values.push(score(&rest, texts)?.per_image.iter().map(|i| i.cider_d).collect());
        }
    }
    let how = match held_out {
        true => "Ground truth is the first reference of each image; it, that of another image (shuffled) and the models’ captions \
                 are all scored against the image’s other references."
            .into(),
        false => "Images have one reference, so ground truth is scored against itself: it is the most that can be reached. \
                  Shuffled: the reference of another image."
            .to_string(),
    };
    Ok((rows, how))
}
