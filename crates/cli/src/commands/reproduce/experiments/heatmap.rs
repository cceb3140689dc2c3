//! The output distribution step by step.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tweedie::evaluate;
use tweedie::sample::{Prediction, softmax};
use tweedie_figures::{Axis, Figure, LinesSpec, Series};

use super::super::measurements::Measurements;
use super::super::runs::stop_if_asked;
use super::super::section::{Data, Section, Shown};
use super::super::variant::Variant::{self, Plain, Weighted};
use super::{over_seeds, sampling_name};
use crate::failure::Result;
use crate::shared::preview;

pub const NEEDS: &[Variant] = &[Weighted, Plain];

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let (mut figures, mut cells, mut rows, mut lines) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut ends = Vec::new();
    for &variant in NEEDS {
        figures.push(one_image(measured, variant, &mut cells)?);
        let line = all_images(measured, variant, &mut rows)?;
        if let (Some(first), Some(last)) = (line.y.first(), line.y.last()) {
            ends.push(format!("{}, from {first:.3} to {last:.3}", variant.name()));
        }
        lines.push(line);
    }
    let drawing = Figure::lines(&LinesSpec {
        title: "Certainty over sampling steps".into(),
        x: Axis::linear("sampling step"),
        y: Axis::linear("mean probability of the likeliest class"),
        series: lines,
        size: Some((420.0, 250.0)),
    })?;
    let several = if measured.plan.seeds() > 1 { "; bands: one deviation over seeds" } else { "" };
    let caption = format!("The likeliest class's probability at every step, mean over all test images{several}.");
    figures.push(Shown { name: "certainty".into(), caption, drawing });
    Ok(Section {
        id: "heatmap",
        title: "From noise to a one-hot vector".into(),
        of: "figure of the output distribution",
        text: vec![
            format!(
                "{}. The heatmaps are of seed 0; their image is the one among the first test images whose first guess is least certain, chosen by that \
                 alone.",
                sampling_name(&measured.sampling()?)
            ),
            format!(
                "Mean probability of the likeliest class over all test images: {}.{}",
                ends.join("; "),
                most_certain(measured)?
            ),
        ],
        results: Vec::new(),
        grids: Vec::new(),
        claims: Vec::new(),
        figures,
        data: vec![
            Data {
                name: "heatmap".into(),
                columns: vec!["variant", "timestep", "class", "probability", "true_class"],
                rows: cells,
            },
            Data {
                name: "certainty".into(),
                columns: vec!["variant", "seed", "step", "timestep", "mean_top_probability", "mean_entropy_bits"],
                rows,
            },
        ],
    })
}

/// The distributions of one image as colours; their numbers go to `cells`.
fn one_image(measured: &mut Measurements, variant: Variant, cells: &mut Vec<Vec<Value>>) -> Result<Shown> {
    stop_if_asked("while measuring")?;
    let source = measured.test(0)?.clone();
    let m = measured.model(variant, 0)?;
    let shown = preview::classes(&m.trained, &m.config, &source)?;
    let (label, steps) = shown.distributions();
    for (t, p) in &steps {
        let each = p.iter().enumerate();
        cells.extend(each.map(|(c, p)| {
            vec![json!(variant.id()), json!(t), json!(m.trained.class_names[c]), json!(p), json!(label)]
        }));
    }
    Ok(Shown {
        name: format!("heatmap-{}", variant.id()),
        caption: format!("{}: one test image from pure noise (top) to the answer (bottom).", variant.name()),
        drawing: shown.heatmap()?,
    })
}

/// How certain a variant is over the steps, seed by seed; the numbers go to `rows`.
fn all_images(measured: &mut Measurements, variant: Variant, rows: &mut Vec<Vec<Value>>) -> Result<Series> {
    let mut tops: Vec<Vec<f64>> = Vec::new();
    for seed in 0..measured.plan.seeds() {
        let steps = certainty(measured, variant, seed)?;
        for (i, (t, c)) in steps.iter().enumerate() {
            rows.push(vec![json!(variant.id()), json!(seed), json!(i + 1), json!(t), json!(c.top()), json!(c.bits())]);
        }
        tops.push(steps.iter().map(|s| s.1.top()).collect());
    }
    Ok(over_seeds(variant.name(), &tops))
}

/// What label smoothing leaves of certainty, in words.
fn most_certain(measured: &Measurements) -> Result<String> {
    let smoothing = measured.plan.classes()?.paper.loss.smoothing;
    Ok(match smoothing > 0.0 {
        true => format!(
            " Label smoothing of {smoothing} asks for {:.3} at most; guidance can go beyond where the condition matters, which at \
             the last steps it hardly does, since the noisy vector shows its class by itself.",
            1.0 - f64::from(smoothing) * (1.0 - 1.0 / measured.plan.classes()?.data[0].class_names.len().max(1) as f64)
        ),
        false => String::new(),
    })
}

/// How certain a model is at every step, from noise to clean as the sampler goes, over all test images.
fn certainty(measured: &mut Measurements, variant: Variant, seed: usize) -> Result<Vec<(usize, Certainty)>> {
    stop_if_asked("while measuring")?;
    let source = measured.test(seed)?.clone();
    let m = measured.model(variant, seed)?;
    let (mut seen, mut failed) = (BTreeMap::<usize, Certainty>::new(), None);
    let classes = m.config.model.classes;
    evaluate::classes(&m.trained, &source, &m.config, &m.config.sample, 0, |p: &Prediction| match p.logits() {
        Ok(l) => l.chunks_exact(classes).for_each(|l| seen.entry(p.t).or_default().add(&softmax(l))),
        Err(e) => failed = Some(e),
    })?;
    match failed {
        Some(e) => Err(e.into()),
        None => Ok(seen.into_iter().rev().collect()),
    }
}

/// Sums over images.
#[derive(Default)]
struct Certainty {
    top: f64,
    bits: f64,
    count: usize,
}

impl Certainty {
    fn add(&mut self, p: &[f64]) {
        self.top += p.iter().copied().fold(0.0, f64::max);
        self.bits -= p.iter().filter(|p| **p > 0.0).map(|p| p * p.log2()).sum::<f64>();
        self.count += 1;
    }

    fn top(&self) -> f64 {
        self.top / self.count.max(1) as f64
    }

    fn bits(&self) -> f64 {
        self.bits / self.count.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_by_hand() {
        let mut c = Certainty::default();
        c.add(&[0.5, 0.25, 0.25, 0.0]);
        c.add(&[1.0, 0.0, 0.0, 0.0]);
        assert_eq!((c.top(), c.bits()), (0.75, 0.75));
    }
}
