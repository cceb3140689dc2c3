//! CLIPScore of true, shuffled and generated captions; without a CLIP, CIDEr-D in its place.

use std::ops::Range;
use std::path::Path;

use serde_json::json;
use tweedie::metrics::captions::score;
use tweedie::metrics::clip::{Clip, derangement};
use tweedie_figures::{Axis, BarSeries, BarsSpec, Drawing, Figure};

use super::super::caption_lab::{Score, mean};
use super::super::lab::Lab;
use super::super::plan::Variant::{self, CaptionMdd, CaptionTdd};
use super::super::runs::stop_if_asked;
use super::super::section::{Claim, Data, Grid, Section, Shown, with_deviation};
use super::sampling_name;
use crate::failure::Result;
use crate::report::{Align, note};
use crate::shared::clip_scores::Judge;

pub const NEEDS: &[Variant] = &[CaptionTdd, CaptionMdd];

/// Rows of the table and the paper's CLIPScore of each.
const ROWS: [(&str, &str); 4] = [
    ("ground truth", "0.30"),
    ("ground truth, shuffled", "0.16"),
    ("captions by MDD", "0.18"),
    ("captions by TDD", "0.25"),
];
const TRUE: usize = 0;
const SHUFFLED: usize = 1;
const MDD: usize = 2;
const TDD: usize = 3;

/// For each of [`ROWS`] the values of every image, seed by seed.
type Values = [Vec<Vec<f64>>; 4];

pub fn make(lab: &mut Lab) -> Result<Section> {
    let sampling = lab.caption_sampling()?;
    let (metric, values, mut text) = measure(lab, sampling.steps)?;
    text.push(format!("Captions: {}; all {} test images.", sampling_name(&sampling), values[0][0].len()));
    let scores: Vec<Score> = values.iter().map(|v| Score::of(v)).collect();
    Ok(Section {
        id: "clipscore",
        title: if lab.clip.is_some() {
            "CLIPScore".into()
        } else {
            "CLIPScore (none: CIDEr-D in its place)".to_string()
        },
        of: "CLIPScore table",
        text,
        grids: vec![grid(metric, &scores)],
        claims: claims(&values, lab.clip.is_some()),
        figures: vec![Shown {
            name: "clipscore".into(),
            caption: "With one standard error (test images and, where there are several, seeds).".into(),
            drawing: bars(metric, &scores)?,
        }],
        data: vec![data(metric, &values, &scores)],
        ..Section::default()
    })
}

/// The metric's name, its values, and how they came about.
fn measure(lab: &mut Lab, steps: usize) -> Result<(&'static str, Values, Vec<String>)> {
    match lab.clip {
        Some(folder) => {
            let said = format!(
                "Cosine of image and text features of {}, as in the paper. Where an image has several references, their mean. \
                 Shuffled: the references of another image.",
                folder.display()
            );
            Ok(("CLIPScore (cosine)", by_clip(lab, folder, steps)?, vec![said]))
        }
        None => {
            note("clipscore: no CLIP was given (--clip FOLDER); CIDEr-D stands in");
            let (values, how) = by_references(lab, steps)?;
            let said = "No CLIP was given, so these are not CLIPScores: pass --clip FOLDER with a CLIP model as transformers saves \
                        it (config.json, model.safetensors, tokenizer files). In its place stands CIDEr-D, which compares \
                        texts and never looks at an image. The paper’s column is CLIPScore, and only the order of the rows can \
                        be compared.";
            Ok(("CIDEr-D", values, vec![said.into(), how]))
        }
    }
}

/// The paper's CLIPScore of a row.
fn paper(row: usize) -> f64 {
    ROWS[row].1.parse().unwrap_or(f64::NAN)
}

fn claims(values: &Values, by_clip: bool) -> Vec<Claim> {
    let claim = |what: &str, a: usize, b: usize| {
        let d = Score::difference(&values[a], &values[b]);
        // Differences of CLIPScores say nothing about another metric but their sign.
        let by = by_clip.then(|| paper(a) - paper(b));
        Claim { what: what.into(), paper: by, ours: d.mean(), error: d.uncertainty() }
    };
    vec![
        claim("TDD above MDD", TDD, MDD),
        claim("ground truth above TDD", TRUE, TDD),
        claim("MDD above shuffled captions", MDD, SHUFFLED),
    ]
}

fn bars(metric: &str, scores: &[Score]) -> Result<Drawing> {
    let low = scores.iter().map(|s| 1.2 * (s.mean() - s.uncertainty())).fold(0.0, f64::min);
    let high = scores.iter().map(|s| 1.12 * (s.mean() + s.uncertainty())).fold(1e-3, f64::max);
    Ok(Figure::bars(&BarsSpec {
        title: format!("{metric} of true, shuffled and generated captions"),
        y: Axis::linear(format!("{metric}, test images")).range(low, high),
        categories: ["true", "shuffled", "MDD", "TDD"].map(String::from).to_vec(),
        series: vec![BarSeries {
            name: String::new(),
            values: scores.iter().map(Score::mean).collect(),
            errors: Some(scores.iter().map(Score::uncertainty).collect()),
        }],
        decimals: Some(2),
        size: Some((360.0, 240.0)),
        ..BarsSpec::default()
    })?)
}

fn grid(metric: &str, scores: &[Score]) -> Grid {
    use Align::{Left, Right};
    let columns = vec![
        ("".into(), Left),
        ("paper, CLIPScore on COCO".into(), Right),
        (format!("ours, {metric}"), Right),
        ("standard error".into(), Right),
    ];
    let rows = ROWS.iter().zip(scores).map(|((name, paper), s)| {
        vec![name.to_string(), paper.to_string(), with_deviation(&s.per_seed), format!("{:.3}", s.standard_error)]
    });
    Grid { columns, rows: rows.collect() }
}

fn data(metric: &str, values: &Values, scores: &[Score]) -> Data {
    let each = |(row, s): (usize, &Score)| -> Vec<_> {
        let of = |(seed, v): (usize, &f64)| {
            let images = values[row][seed].len();
            vec![
                json!(ROWS[row].0),
                json!(paper(row)),
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
        rows: scores.iter().enumerate().flat_map(each).collect(),
    }
}

fn wide(cosines: &[f32]) -> Vec<f64> {
    cosines.iter().map(|c| f64::from(*c)).collect()
}

fn by_clip(lab: &mut Lab, folder: &Path, steps: usize) -> Result<Values> {
    let clip = Clip::load(folder, lab.device)?;
    let mut values: Values = Default::default();
    for seed in 0..lab.plan.seeds() {
        let [tdd, mdd] = lab.both_captions(seed, steps)?;
        let source = lab.caption_test(CaptionTdd, seed)?;
        let read = |part: Range<usize>| {
            stop_if_asked("while measuring")?;
            tdd.indices[part].iter().map(|i| Ok(source.image(*i as usize)?)).collect()
        };
        let judge = Judge::new(&clip, &tdd.references, 0, read)?;
        let means = |of: Vec<Vec<f32>>| of.iter().map(|c| mean(&wide(c))).collect::<Vec<_>>();
        values[TRUE].push(means(judge.truth()));
        values[SHUFFLED].push(means(judge.shuffled()));
        for (row, made) in [(MDD, &mdd), (TDD, &tdd)] {
            values[row].push(wide(&judge.captions(&made.texts)?));
        }
    }
    Ok(values)
}

/// CIDEr-D of all rows against the same references; and which these are.
fn by_references(lab: &mut Lab, steps: usize) -> Result<(Values, String)> {
    let mut values: Values = Default::default();
    let mut held_out = false;
    for seed in 0..lab.plan.seeds() {
        let [tdd, mdd] = lab.both_captions(seed, steps)?;
        held_out = tdd.references.iter().all(|r| r.len() > 1);
        let first: Vec<String> = tdd.references.iter().map(|r| r.first().cloned().unwrap_or_default()).collect();
        let rest: Vec<Vec<String>> =
            tdd.references.iter().map(|r| if held_out { r[1..].to_vec() } else { r.clone() }).collect();
        let shuffled: Vec<String> = derangement(first.len(), 0).into_iter().map(|i| first[i].clone()).collect();
        for (row, texts) in [(TRUE, &first), (SHUFFLED, &shuffled), (MDD, &mdd.texts), (TDD, &tdd.texts)] {
            values[row].push(score(&rest, texts)?.per_image.iter().map(|i| i.cider_d).collect());
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
    Ok((values, how))
}
