//! Captions by TDD and by its masked twin beside true ones, and how they score.

use serde_json::{Value, json};
use tweedie::data::SequenceFormat;
use tweedie::evaluate::Captions;
use tweedie::metrics::captions::{CaptionScores, Intervals};
use tweedie_figures::{Axis, BarSeries, BarsSpec, Drawing, Figure, Panel, PanelLine, PanelsSpec, Tone};

use super::super::caption_measurements::{Score, mean};
use super::super::measurements::{Measurements, deviation};
use super::super::section::{Claim, Data, Grid, Paper, Section, Shown, with_deviation};
use super::super::variant::Variant::{self, CaptionMdd, CaptionRecipeMdd, CaptionRecipeTdd, CaptionTdd};
use super::caption_sampling_name;
use crate::failure::Result;
use crate::report::Align;

pub const NEEDS: &[Variant] = &[CaptionTdd, CaptionMdd, CaptionRecipeTdd, CaptionRecipeMdd];

/// Draws of the bootstrap.
const DRAWS: usize = 1000;
/// Images that are shown: the first ones, then so many for which a caption is not a reference word for word.
const SHOWN: (usize, usize) = (6, 6);
/// References that are shown of each.
const REFERENCES: usize = 2;

/// A row of the table: one model, sampled in one way.
struct Scored {
    variant: Variant,
    steps: usize,
    scores: Vec<CaptionScores>,
    intervals: Vec<Intervals>,
    exact: Vec<Vec<f64>>,
}

/// A column of the table: its name, the number of a set of captions, its interval.
type Metric = (&'static str, fn(&CaptionScores) -> f64, fn(&Intervals) -> [f64; 2]);

const METRICS: [Metric; 3] = [
    ("CIDEr-D", |s| s.cider_d, |i| i.cider_d),
    ("BLEU-4", |s| s.bleu[3], |i| i.bleu[3]),
    ("ROUGE-L", |s| s.rouge_l, |i| i.rouge_l),
];

impl Scored {
    fn measure(measured: &mut Measurements, variant: Variant, steps: usize) -> Result<Scored> {
        let mut s = Scored { variant, steps, scores: Vec::new(), intervals: Vec::new(), exact: Vec::new() };
        for seed in 0..measured.plan.seeds() {
            let made = measured.captions(variant, seed, steps)?;
            let scores = made.scores()?;
            s.intervals.push(scores.bootstrap(DRAWS, 0));
            s.scores.push(scores);
            s.exact.push(made.matches.iter().map(|m| if *m { 100.0 } else { 0.0 }).collect());
        }
        Ok(s)
    }

    /// "TDD, 10 steps".
    fn name(&self) -> String {
        format!("{}, {} step{}", self.variant.name(), self.steps, if self.steps == 1 { "" } else { "s" })
    }

    fn of(&self, metric: &Metric) -> Vec<f64> {
        self.scores.iter().map(metric.1).collect()
    }

    /// Ends of the interval, each the mean over seeds.
    fn interval(&self, metric: &Metric) -> [f64; 2] {
        [0, 1].map(|end| mean(&self.intervals.iter().map(|i| metric.2(i)[end]).collect::<Vec<_>>()))
    }

    /// Of every image, seed by seed.
    fn cider(&self) -> Vec<Vec<f64>> {
        self.scores.iter().map(|s| s.per_image.iter().map(|i| i.cider_d).collect()).collect()
    }
}

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let steps = measured.caption_steps()?;
    let embedded = measured.plan.captions()?.data[0].format == SequenceFormat::Embedded;
    let variants = measured.plan.those(NEEDS);
    let mut rows = Vec::new();
    for &variant in &variants {
        for steps in [steps, 1] {
            rows.push(Scored::measure(measured, variant, steps)?);
        }
    }
    let (figure, gallery, picked) = gallery(measured, &variants, steps)?;
    let bars = bars(&rows)?;
    let claim = |what: &str, paper: Paper, a: &[Vec<f64>], b: &[Vec<f64>]| {
        let d = Score::difference(a, b);
        Claim { what: what.into(), paper, ours: d.mean(), error: d.uncertainty() }
    };
    // Pairs of rows with all steps: the paper's model, then the recipe's.
    let mut claims = Vec::new();
    let whose = [("", Paper::Above), (" (the recipe’s model, not the paper’s)", Paper::Silent)];
    for (pair, (whose, paper)) in rows.chunks_exact(4).zip(whose) {
        let (tdd, mdd) = (&pair[0], &pair[2]);
        claims.push(claim(
            &format!("TDD’s captions better than MDD’s, by CIDEr-D{whose}"),
            paper,
            &tdd.cider(),
            &mdd.cider(),
        ));
        if embedded {
            let what = format!("TDD’s captions right more often than MDD’s, in %{whose}");
            claims.push(claim(&what, paper, &tdd.exact, &mdd.exact));
        }
    }
    let several = if measured.plan.seeds() > 1 { " (means over seeds of its ends)" } else { "" };
    let references = &measured.captions(CaptionTdd, 0, steps)?.references;
    let per_image = mean(&references.iter().map(|r| r.len() as f64).collect::<Vec<_>>());
    let mut text = vec![
        "The paper shows some captions by both models and finds TDD’s clearly better; it gives no scores against references. \
         Here both have the same encoder, data, number of epochs and sampling steps."
            .into(),
        format!(
            "Scores are of all {} test images, {per_image:.1} references each on average; intervals hold 95 % of {DRAWS} \
             resampled sets of images{several}. A claim’s error is of differences image by image.",
            references.len()
        ),
        sampling_said(measured, &variants)?,
        picked,
    ];
    if embedded {
        text.push("A caption is right if every word is that of the reference.".into());
    }
    Ok(Section {
        id: "captions",
        title: "Captions by TDD and by MDD".into(),
        of: "figure that compares captions",
        text,
        grids: vec![grid(&rows, embedded)],
        claims,
        figures: vec![
            Shown {
                name: "captions".into(),
                caption: "Test images with captions of the data (truth) and of both models (seed 0).".into(),
                drawing: figure,
            },
            Shown {
                name: "captions-scores".into(),
                caption: "CIDEr-D with one standard error (test images and, where there are several, seeds).".into(),
                drawing: bars,
            },
        ],
        data: vec![data(&rows, embedded), gallery],
        ..Section::default()
    })
}

/// How each is sampled, in words, and in what the recipe's model is not the paper's.
fn sampling_said(measured: &Measurements, variants: &[Variant]) -> Result<String> {
    let of = |v: &Variant| Ok(format!("{}: {}", v.name(), caption_sampling_name(measured.caption_config(*v)?)));
    let all = variants.iter().map(of).collect::<Result<Vec<String>>>()?;
    let differs = &measured.plan.captions()?.differs;
    let recipe = match differs.is_empty() {
        true => String::new(),
        false => format!(" The recipe’s model has {}; rows without a name are of the paper’s.", differs.join(", ")),
    };
    Ok(format!("Sampling. {}.{recipe}", all.join("; ")))
}

/// As [`with_deviation`], with the two decimals that percent have elsewhere.
fn percent(per_seed: &[f64]) -> String {
    match deviation(per_seed) {
        Some(d) => format!("{:.2} ± {d:.2}", mean(per_seed)),
        None => format!("{:.2}", mean(per_seed)),
    }
}

fn grid(rows: &[Scored], exact: bool) -> Grid {
    use Align::{Left, Right};
    let mut columns = vec![("".to_string(), Left)];
    for m in &METRICS {
        columns.extend([(m.0.to_string(), Right), ("95 %".into(), Right)]);
    }
    if exact {
        columns.extend([("right, %".to_string(), Right), ("standard error".into(), Right)]);
    }
    let row = |s: &Scored| {
        let mut cells = vec![s.name()];
        for m in &METRICS {
            let [low, high] = s.interval(m);
            cells.extend([with_deviation(&s.of(m)), format!("{low:.3} – {high:.3}")]);
        }
        if exact {
            let e = Score::of(&s.exact);
            cells.extend([percent(&e.per_seed), format!("{:.2}", e.standard_error)]);
        }
        cells
    };
    Grid { columns, rows: rows.iter().map(row).collect() }
}

fn data(rows: &[Scored], exact: bool) -> Data {
    let mut all = Vec::new();
    for s in rows {
        for (seed, scores) in s.scores.iter().enumerate() {
            for m in &METRICS {
                let [low, high] = m.2(&s.intervals[seed]);
                all.push((s, seed, m.0, m.1(scores), json!(low), json!(high)));
            }
            if exact {
                all.push((s, seed, "right_percent", mean(&s.exact[seed]), Value::Null, Value::Null));
            }
        }
    }
    let row = |(s, seed, metric, value, low, high): (&Scored, usize, &str, f64, Value, Value)| {
        let images = s.scores[seed].images;
        vec![json!(s.variant.id()), json!(s.steps), json!(seed), json!(metric), json!(value), low, high, json!(images)]
    };
    Data {
        name: "captions-scores".into(),
        columns: vec!["variant", "steps", "seed", "metric", "value", "low95", "high95", "images"],
        rows: all.into_iter().map(row).collect(),
    }
}

fn bars(rows: &[Scored]) -> Result<Drawing> {
    let scores: Vec<Score> = rows.iter().map(|s| Score::of(&s.cider())).collect();
    let top = scores.iter().map(|s| s.mean() + s.uncertainty()).fold(0.0, f64::max);
    Ok(Figure::bars(&BarsSpec {
        title: "CIDEr-D of captions by TDD and MDD".into(),
        y: Axis::linear("CIDEr-D on the test images").range(0.0, 1.15 * top.max(1e-3)),
        categories: rows.iter().map(Scored::name).collect(),
        series: vec![BarSeries {
            name: String::new(),
            values: scores.iter().map(Score::mean).collect(),
            errors: Some(scores.iter().map(Score::uncertainty).collect()),
        }],
        decimals: Some(2),
        size: Some((130.0 + 68.0 * rows.len() as f64, 250.0)),
        ..BarsSpec::default()
    })?)
}

/// The first images, and the first behind them for which `wrong` holds (others where there are too few).
fn pick(n: usize, (first, more): (usize, usize), wrong: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut picked: Vec<usize> = (0..first.min(n)).collect();
    picked.extend((first..n).filter(|i| wrong(*i)).take(more));
    let missing = (first + more).saturating_sub(picked.len());
    let rest: Vec<usize> = (0..n).filter(|i| !picked.contains(i)).take(missing).collect();
    picked.extend(rest);
    picked
}

/// Images with references and captions; which they are.
fn gallery(measured: &mut Measurements, variants: &[Variant], steps: usize) -> Result<(Drawing, Data, String)> {
    let all = measured.all_captions(variants, 0, steps)?;
    let (tdd, mdd) = (all[0].clone(), all[1].clone());
    let source = measured.caption_test(CaptionTdd, 0)?;
    let exact = measured.plan.captions()?.data[0].format == SequenceFormat::Embedded;
    let wrong = |i: usize| !tdd.matches[i] || !mdd.matches[i];
    let picked = pick(tdd.texts.len(), SHOWN, wrong);
    let mut panels = Vec::new();
    for &i in &picked {
        let picture = measured.picture(CaptionTdd, &source, tdd.indices[i])?;
        let people = tdd.references[i].iter().take(REFERENCES).enumerate();
        let label = |k: usize| if k == 0 { "truth" } else { "" };
        let mut lines: Vec<PanelLine> = people.map(|(k, r)| PanelLine::new(label(k), r, Tone::Plain)).collect();
        for (name, made) in [("TDD", &tdd), ("MDD", &mdd)] {
            lines.push(PanelLine { label: mark(name, made, i, exact), words: compared(made, i) });
        }
        panels.push(Panel { picture, lines });
    }
    let drawing = Figure::panels(&PanelsSpec {
        title: "Captions of test images".into(),
        columns: 2,
        panels,
        width: Some(600.0),
        side: Some(80.0),
    })?;
    let of = |name: &'static str, made: &Captions, i: usize| -> Vec<Value> {
        vec![
            json!(made.indices[i]),
            json!(source.place(made.indices[i] as usize)),
            json!(picked.contains(&i)),
            json!(name),
            json!(made.texts[i]),
            json!(made.matches[i]),
            json!(made.references[i].join(" | ")),
        ]
    };
    let each = |i: usize| variants.iter().zip(&all).map(|(v, made)| of(v.name(), made, i)).collect::<Vec<_>>();
    let rows = (0..tdd.texts.len()).flat_map(each).collect();
    let columns = vec!["image", "place", "in_figure", "model", "caption", "equals_a_reference", "references"];
    let data = Data { name: "captions".into(), columns, rows };
    let said = format!(
        "Shown are the first {} test images and then the first {} for which not both captions are a reference word for word, \
         chosen by that alone, with at most {REFERENCES} references. Words that no reference of the image has are dark orange.",
        SHOWN.0.min(tdd.texts.len()),
        SHOWN.1
    );
    Ok((drawing, data, said))
}

/// The model's name, with a mark where a caption is right or wrong.
fn mark(name: &str, made: &Captions, i: usize, exact: bool) -> String {
    match (exact, made.matches[i]) {
        (false, _) => name.into(),
        (true, true) => format!("{name} ✓"),
        (true, false) => format!("{name} ✗"),
    }
}

/// The words of a caption; those that no reference has stand out.
fn compared(made: &Captions, i: usize) -> Vec<(String, Tone)> {
    let plain = |w: &str| w.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    let known: std::collections::HashSet<String> =
        made.references[i].iter().flat_map(|r| r.split_whitespace().map(plain)).collect();
    let tone = |w: &str| if known.contains(&plain(w)) { Tone::Plain } else { Tone::Wrong };
    let words: Vec<(String, Tone)> = made.texts[i].split_whitespace().map(|w| (w.to_string(), tone(w))).collect();
    match words.is_empty() {
        true => vec![("(empty)".into(), Tone::Wrong)],
        false => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_then_the_wrong_ones() {
        assert_eq!(pick(10, (2, 2), |i| i == 5 || i == 8), [0, 1, 5, 8]);
        assert_eq!(pick(10, (2, 2), |i| i == 5), [0, 1, 5, 2]);
        assert_eq!(pick(3, (2, 2), |_| false), [0, 1, 2]);
    }

    #[test]
    fn words_of_no_reference_stand_out() {
        let made = Captions {
            texts: vec!["a Red dog".into(), String::new()],
            references: vec![vec!["A red cat.".into()], vec!["x".into()]],
            ..Captions::default()
        };
        let tones: Vec<Tone> = compared(&made, 0).into_iter().map(|w| w.1).collect();
        assert_eq!(tones, [Tone::Plain, Tone::Plain, Tone::Wrong]);
        assert_eq!(compared(&made, 1)[0].0, "(empty)");
    }
}
