//! Accuracy over sampling steps, with and without coefficients.

use serde_json::{Value, json};
use tweedie::config::SampleConfig;
use tweedie_figures::{Axis, Figure, LinesSpec, Series};

use super::super::caption_measurements::mean;
use super::super::measurements::{Measurements, Readout, Summary, deviation};
use super::super::section::{Claim, Data, Paper, Section, Shown};
use super::super::variant::Variant::{self, Masked, Plain, Weighted};
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Weighted, Plain, Masked];

const STEPS: [usize; 6] = [1, 2, 5, 10, 20, 50];

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let guided = measured.sampling()?;
    let (mut series, mut rows) = (Vec::new(), Vec::new());
    let mut sweeps: Vec<Vec<Summary>> = Vec::new();
    for variant in [Weighted, Plain] {
        for guidance in [guided.guidance, 1.0] {
            let sweep = sweep(measured, variant, &SampleConfig { guidance, ..guided.clone() }, &mut rows)?;
            series.push(line(variant, guidance, &sweep));
            sweeps.push(sweep);
        }
    }
    let twin = measured.score(Masked, &guided, Readout::Logits)?;
    let x = [STEPS[0], STEPS[STEPS.len() - 1]].map(|s| s as f64).to_vec();
    series.push(Series::new("MDD, one pass", x, vec![twin.mean(); 2]).spread(&[twin.uncertainty(); 2]));
    rows.push(vec![
        json!(Masked.id()),
        Value::Null,
        Value::Null,
        json!(twin.mean()),
        json!(twin.deviation()),
        json!(twin.standard_error()),
    ]);
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
            Claim::new("20 steps above 1 step, with coefficients", Paper::Above, &with[at(20)], &with[0]),
            Claim::new("20 steps above 10, with coefficients", Paper::Above, &with[at(20)], &with[at(10)]),
            Claim::new("without coefficients above with, at 20 steps", Paper::Above, &without[at(20)], &with[at(20)]),
            gains((&with[0], &with[at(20)]), (&without[0], &without[at(20)])),
        ],
        figures: vec![Shown {
            name: "steps".into(),
            caption: "Top-1 over the number of sampling steps, the paper's model and its twin; bands: one standard error.".into(),
            drawing,
        }],
        data: vec![Data {
            name: "steps".into(),
            columns: vec!["variant", "guidance", "steps", "top1", "deviation_over_seeds", "standard_error_of_test_set"],
            rows,
        }],
    })
}

/// That steps bring more with coefficients than without: a difference of two gains, seed by seed.
fn gains(with: (&Summary, &Summary), without: (&Summary, &Summary)) -> Claim {
    let gain = |(one, many): (&Summary, &Summary)| -> Vec<f64> {
        many.per_seed.iter().zip(&one.per_seed).map(|(m, o)| m - o).collect()
    };
    let more: Vec<f64> = gain(with).iter().zip(gain(without)).map(|(a, b)| a - b).collect();
    // The images are the same in all four, so that their error is that of two independent numbers at most.
    let images = (with.1.standard_error().powi(2) + without.1.standard_error().powi(2)).sqrt();
    let seeds = deviation(&more).map_or(0.0, |d| d / (more.len() as f64).sqrt());
    Claim {
        what: "from 1 to 20 steps more is gained with coefficients than without".into(),
        paper: Paper::Above,
        ours: mean(&more),
        error: images.hypot(seeds),
    }
}

/// Accuracy at each of [`STEPS`]; the numbers go to `rows`.
fn sweep(
    measured: &mut Measurements,
    variant: Variant,
    sample: &SampleConfig,
    rows: &mut Vec<Vec<Value>>,
) -> Result<Vec<Summary>> {
    let mut sweep = Vec::new();
    for steps in STEPS {
        let s = measured.score(variant, &SampleConfig { steps, ..sample.clone() }, Readout::Logits)?;
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
