//! TDD and MDD over epochs.

use tweedie_figures::Series;

use super::super::measurements::Measurements;
use super::super::section::{Data, Section, Shown};
use super::super::variant::Variant::{self, Masked, Plain, Weighted};
use super::history::{History, over_epochs, top1};
use super::sampling_name;
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[Weighted, Plain, Masked];

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let (mut series, mut rows, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for &variant in NEEDS {
        let h = History::read(measured, variant, "eval", "epoch", top1)?;
        let line = h.series(variant.name(), 1.0);
        peaks.push(peak(variant, &line));
        series.push(line);
        rows.extend(h.rows());
    }
    let drawing = over_epochs("TDD and its masked twin over epochs", series)?;
    let data = &measured.plan.classes()?.data[0];
    let images = data.val()?.len();
    let limit = match measured.plan.classes()?.paper.train.eval_images {
        0 => String::new(),
        n => format!(" (at most {n} of them at a time)"),
    };
    Ok(Section {
        id: "curves",
        title: "Accuracy over epochs".into(),
        of: "figure of TDD and MDD across epochs",
        text: vec![
            "In the paper MDD is best near epoch 250 and then overfits, while TDD reaches it near epoch 300 and goes on to \
             improve up to epoch 500. Here all are trained equally long, with a learning rate that falls to nearly zero at the \
             end, which by itself lets curves rise to the end."
                .into(),
            format!("Here the highest points are: {}.", peaks.join("; ")),
            format!(
                "Measured during training with averaged weights, {}, on the validation images{limit}: {images} ({}).",
                sampling_name(&measured.sampling()?),
                data.val_origin
            ),
        ],
        results: Vec::new(),
        grids: Vec::new(),
        claims: Vec::new(),
        figures: vec![Shown {
            name: "curves".into(),
            caption: format!("Top-1 over epochs{}.", if measured.plan.seeds() > 1 { ", mean ± deviation over seeds" } else { "" }),
            drawing,
        }],
        data: vec![Data { name: "curves".into(), columns: vec!["variant", "seed", "epoch", "top1"], rows }],
    })
}

/// Where a curve is highest: the first of equals.
fn peak(variant: Variant, s: &Series) -> String {
    let i = (0..s.y.len()).fold(0, |b, i| if s.y[i] > s.y[b] { i } else { b });
    match (s.x.get(i), s.y.get(i), s.x.last()) {
        (Some(x), Some(y), Some(end)) => format!("{}, {y:.2} % at epoch {x:.0} of {end:.0}", variant.name()),
        _ => format!("{}, not evaluated", variant.name()),
    }
}
