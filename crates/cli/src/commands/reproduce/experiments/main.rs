//! Table 1: TDD with and without coefficients against its masked twin.

use tweedie::config::SampleConfig;
use tweedie_figures::{Axis, BarSeries, BarsSpec, Figure};

use super::super::measurements::{Measurements, Readout};
use super::super::scale::TaskKind;
use super::super::section::{Claim, Paper, Row, Section, Shown};
use super::super::variant::Variant::{self, Masked, Plain, Recipe, Weighted};
use super::sampling_name;
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Weighted, Plain, Masked, Recipe];

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let full = measured.sampling()?;
    let one = SampleConfig { steps: 1, ..full.clone() };
    let mut results = Vec::new();
    for (variant, paper) in [(Weighted, "82.8"), (Plain, "83.0")] {
        for (sample, paper) in [(&full, Some(paper)), (&one, None)] {
            results.push(row(measured, "TDD", variant, sample, paper)?);
        }
    }
    let ours = measured.score(Masked, &full, Readout::Logits)?;
    let twin = Row { block: "MDD", name: Masked.name().into(), sampling: "one pass".into(), paper: Some("82.3"), ours };
    let (weighted, plain, mdd) = (&results[0].ours, &results[2].ours, &twin.ours);
    let mut claims = vec![
        Claim::new("TDD with coefficients above MDD", Paper::By(82.8 - 82.3), weighted, mdd),
        Claim::new("TDD without coefficients above MDD", Paper::By(83.0 - 82.3), plain, mdd),
        Claim::new("TDD without coefficients above TDD with", Paper::By(83.0 - 82.8), plain, weighted),
    ];
    // Short enough to stand below a bar.
    let n = full.steps;
    let mut categories = vec![
        format!("with, {n} steps"),
        "with, 1 step".into(),
        format!("without, {n} steps"),
        "without, 1 step".into(),
        "MDD".into(),
    ];
    let mut text = vec![
        "Both have the same encoder, data and number of epochs; TDD adds the denoiser, MDD a linear head. In the paper \
         MDD-ViT-Base was trained for fewer epochs than TDD (its best was near epoch 250, TDD's at 500)."
            .into(),
    ];
    results.push(twin);
    if measured.plan.has_own_recipe(TaskKind::Classes) {
        let own = measured.plan.classes()?.base.sample.clone();
        for sample in [&own, &SampleConfig { steps: 1, ..own.clone() }] {
            results.push(row(measured, "recipe", Recipe, sample, None)?);
            let steps = if sample.steps == 1 { "1 step".into() } else { format!("{} steps", sample.steps) };
            categories.push(format!("recipe, {steps}"));
        }
        let (recipe, mdd) = (&results[5].ours, &results[4].ours);
        claims.push(Claim::new("the recipe's TDD above MDD", Paper::Silent, recipe, mdd));
        text.push(format!(
            "The rows of TDD are of the paper's model; the recipe's has {}.",
            measured.plan.classes()?.differs.join(", ")
        ));
    }
    let values: Vec<f64> = results.iter().map(|r| r.ours.mean()).collect();
    let errors: Vec<f64> = results.iter().map(|r| r.ours.uncertainty()).collect();
    let lowest = values.iter().zip(&errors).map(|(v, e)| v - e).fold(100.0, f64::min);
    let floor = ((lowest - 2.0) / 10.0).floor().max(0.0) * 10.0;
    let drawing = Figure::bars(&BarsSpec {
        title: "TDD with and without coefficients, and MDD".into(),
        y: Axis::linear("top-1 on the test images (%)").range(floor, 100.0 + 0.08 * (100.0 - floor)),
        categories,
        series: vec![BarSeries { name: String::new(), values, errors: Some(errors) }],
        decimals: Some(1),
        size: Some((520.0, 270.0)),
        ..BarsSpec::default()
    })?;
    let floor = if floor > 0.0 { format!(" The axis begins at {floor} %.") } else { String::new() };
    Ok(Section {
        id: "main",
        title: "TDD against MDD".into(),
        of: "Table 1",
        text,
        results,
        grids: Vec::new(),
        claims,
        figures: vec![Shown {
            name: "main".into(),
            caption: format!("Top-1 with one standard error (test images and, where there are several, seeds).{floor}"),
            drawing,
        }],
        data: Vec::new(),
    })
}

fn row(
    measured: &mut Measurements,
    block: &'static str,
    variant: Variant,
    s: &SampleConfig,
    paper: Option<&'static str>,
) -> Result<Row> {
    let ours = measured.score(variant, s, Readout::Logits)?;
    Ok(Row { block, name: variant.name().into(), sampling: sampling_name(s), paper, ours })
}
