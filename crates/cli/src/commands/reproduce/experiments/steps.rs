//! Accuracy over sampling steps, with and without coefficients.

use serde_json::{Value, json};
use tweedie::config::SampleConfig;
use tweedie_figures::{Axis, Figure, LinesSpec, Series};

use super::super::lab::{Lab, Reading, Summary};
use super::super::plan::Variant::{self, Plain, Weighted};
use super::super::section::{Claim, Data, Section, Shown};
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Weighted, Plain];

const STEPS: [usize; 6] = [1, 2, 5, 10, 20, 50];

pub fn make(lab: &mut Lab) -> Result<Section> {
    let guided = lab.sampling()?;
    let (mut series, mut rows) = (Vec::new(), Vec::new());
    let mut sweeps: Vec<Vec<Summary>> = Vec::new();
    for variant in [Weighted, Plain] {
        for guidance in [guided.guidance, 1.0] {
            let sweep = sweep(lab, variant, &SampleConfig { guidance, ..guided.clone() }, &mut rows)?;
            series.push(line(variant, guidance, &sweep));
            sweeps.push(sweep);
        }
    }
    let drawing = Figure::lines(&LinesSpec {
        title: "Accuracy over sampling steps".into(),
        x: Axis::log("sampling steps"),
        y: Axis::linear("top-1 on the test images (%)"),
        series,
        size: Some((420.0, 270.0)),
    })?;
    let at = |steps: usize| STEPS.iter().position(|s| *s == steps).unwrap_or(0);
    let (with, without) = (&sweeps[0], &sweeps[2]);
    let gain = |s: &[Summary]| s[at(20)].mean() - s[0].mean();
    Ok(Section {
        id: "steps",
        title: "How many steps".into(),
        of: "figure of sampling steps",
        text: vec![
            "The paper's figure has no table of numbers; its text says that about 10 steps do well, that 20 are best, and that \
             without coefficients accuracy is slightly higher while steps improve it less."
                .into(),
            format!(
                "Here, with guidance {}: from 1 to 20 steps {:+.2} points with coefficients and {:+.2} without; the best is {} \
                 steps with and {} steps without them.",
                guided.guidance,
                gain(with),
                gain(without),
                best(with),
                best(without)
            ),
        ],
        results: Vec::new(),
        grids: Vec::new(),
        // The text's directions, as differences of which only the sign is known.
        claims: vec![
            Claim::of_sign("20 steps above 1 step, with coefficients", &with[at(20)], &with[0]),
            Claim::of_sign("20 steps above 10, with coefficients", &with[at(20)], &with[at(10)]),
            Claim::of_sign("without coefficients above with, at 20 steps", &without[at(20)], &with[at(20)]),
        ],
        figures: vec![Shown {
            name: "steps".into(),
            caption: "Top-1 over the number of sampling steps; bands: one standard error.".into(),
            drawing,
        }],
        data: vec![Data {
            name: "steps".into(),
            columns: vec!["variant", "guidance", "steps", "top1", "deviation_over_seeds", "standard_error_of_test_set"],
            rows,
        }],
    })
}

/// Accuracy at each of [`STEPS`]; the numbers go to `rows`.
fn sweep(lab: &mut Lab, variant: Variant, sample: &SampleConfig, rows: &mut Vec<Vec<Value>>) -> Result<Vec<Summary>> {
    let mut sweep = Vec::new();
    for steps in STEPS {
        let s = lab.score(variant, &SampleConfig { steps, ..sample.clone() }, Reading::Logits)?;
        rows.push(vec![
            json!(variant.id()),
            json!(sample.guidance),
            json!(steps),
            json!(s.mean()),
            json!(s.deviation()),
            json!(s.standard_error()),
        ]);
        sweep.push(s);
    }
    Ok(sweep)
}

fn line(variant: Variant, guidance: f32, sweep: &[Summary]) -> Series {
    let name = match guidance == 1.0 {
        true => format!("{}, no guidance", short(variant)),
        false => format!("{}, guidance {guidance}", short(variant)),
    };
    let x = STEPS.iter().map(|s| *s as f64).collect();
    let line = Series::new(name, x, sweep.iter().map(Summary::mean).collect());
    let errors: Vec<f64> = sweep.iter().map(Summary::uncertainty).collect();
    // Four bands would hide each other.
    if guidance == 1.0 { line } else { line.spread(&errors) }
}

/// The best accuracy and its number of steps, in words.
fn best(s: &[Summary]) -> String {
    let i = (0..s.len()).fold(0, |b, i| if s[i].mean() > s[b].mean() { i } else { b });
    format!("{:.2} % at {}", s[i].mean(), STEPS[i])
}

fn short(v: Variant) -> &'static str {
    if v == Weighted { "with coefficients" } else { "without coefficients" }
}
