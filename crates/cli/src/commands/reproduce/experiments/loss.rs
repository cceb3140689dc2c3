//! Cross-entropy against regression over iterations.

use tweedie_figures::{Axis, Figure, LinesSpec};

use super::super::measurements::Measurements;
use super::super::section::{Data, Section, Shown};
use super::super::variant::Variant::{self, Noise, Plain, X0};
use super::history::{History, top1};
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Plain, Noise, X0];

/// Points of a smoothed curve.
const POINTS: usize = 40;

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let v = measured.plan.classes()?.data[0].class_names.len().max(2) as f64;
    let lambda = measured.plan.classes()?.paper.process.lambda;
    // What the best constant costs when classes are equally frequent; losses of different kinds in one unit.
    let constant = |variant: Variant| match variant {
        Noise => 1.0,
        X0 => lambda * lambda * (1.0 - 1.0 / v) / v,
        _ => v.ln(),
    };
    let (mut losses, mut scores) = (Vec::new(), Vec::new());
    let (mut loss_rows, mut score_rows) = (Vec::new(), Vec::new());
    for &variant in NEEDS {
        let h = History::read(measured, variant, "step", "step", |m| m["loss"].as_f64())?;
        losses.push(h.series(name(variant), 1.0 / constant(variant)).averaged(POINTS));
        loss_rows.extend(h.rows());
        let h = History::read(measured, variant, "eval", "step", top1)?;
        scores.push(h.series(name(variant), 1.0));
        score_rows.extend(h.rows());
    }
    let losses = Figure::lines(&LinesSpec {
        title: "Training loss, as a share of the best constant's".into(),
        x: Axis::linear("iteration"),
        y: Axis::linear("loss / loss of a constant"),
        series: losses,
        size: Some((420.0, 270.0)),
    })?;
    let scores = Figure::lines(&LinesSpec {
        title: "Cross-entropy and regression".into(),
        x: Axis::linear("iteration"),
        y: Axis::linear("top-1 on the validation images (%)").range(0.0, 102.0),
        series: scores,
        size: Some((420.0, 270.0)),
    })?;
    let columns = |y| vec!["variant", "seed", "step", y];
    Ok(Section {
        id: "loss",
        title: "Cross-entropy against regression over iterations".into(),
        of: "figure of MSE and cross-entropy",
        text: vec![
            "Every output is read as logits here, as if nothing but the loss had changed; the ablation has the other reading of \
             predicted noise."
                .into(),
            "Losses of different kinds have no common unit, so each is divided by what the best constant prediction costs: ln V \
             for cross-entropy, 1 for the noise, λ²·(1 − 1/V)/V for x0, with V equally frequent classes. Label smoothing keeps \
             the cross-entropy from falling to zero."
                .into(),
        ],
        results: Vec::new(),
        grids: Vec::new(),
        claims: Vec::new(),
        figures: vec![
            Shown {
                name: "loss-accuracy".into(),
                caption: "Top-1 during training, averaged weights.".into(),
                drawing: scores,
            },
            Shown {
                name: "loss".into(),
                caption: format!("Training loss as means of {POINTS} stretches; bands: one deviation within them."),
                drawing: losses,
            },
        ],
        data: vec![
            Data { name: "loss-accuracy".into(), columns: columns("top1"), rows: score_rows },
            Data { name: "loss".into(), columns: columns("loss"), rows: loss_rows },
        ],
    })
}

fn name(v: Variant) -> &'static str {
    if v == Plain { "cross-entropy" } else { v.name() }
}
