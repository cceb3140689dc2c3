//! TDD and MDD on few images for many epochs at a constant rate: which overfits first.

use serde_json::json;

use super::super::caption_measurements::mean;
use super::super::measurements::{Measurements, deviation};
use super::super::section::{Claim, Data, Paper, Section, Shown};
use super::super::variant::FEWER;
use super::super::variant::Variant::{self, LongMasked, LongPlain, LongWeighted};
use super::history::{History, over_epochs, top1};
use super::sampling_name;
use crate::failure::Result;

pub const NEEDS: &[Variant] = &[LongWeighted, LongPlain, LongMasked];

/// With one seed a place in the run is not known better than two of its twenty evaluations, in percent of the run.
const AT: f64 = 10.0;

/// Where a run was best on the validation images, and how much it lost by its end.
struct Peak {
    /// Share of the run, in percent.
    at: f64,
    best: f64,
    lost: f64,
}

pub fn make(measured: &mut Measurements) -> Result<Section> {
    let (mut series, mut rows, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for &variant in NEEDS {
        let h = History::read(measured, variant, "eval", "epoch", top1)?;
        series.push(h.series(variant.name(), 1.0));
        rows.extend(h.rows());
        peaks.push(h.seeds.iter().filter_map(|y| Peak::of(&h.x, y)).collect::<Vec<_>>());
    }
    let drawing = over_epochs("Few images, many epochs, a constant rate", series)?;
    let data = &measured.plan.classes()?.data[0];
    let (train, images) = (data.train()?.len(), data.val()?.len());
    let [with, without, mdd] = [&peaks[0], &peaks[1], &peaks[2]];
    // What the number of images leaves open of a difference of two accuracies.
    let p = mean(&mdd.iter().map(|p| p.best / 100.0).collect::<Vec<_>>());
    let lost = 100.0 * (2.0 * p * (1.0 - p) / images.max(1) as f64).sqrt();
    let told: Vec<String> = NEEDS.iter().zip(&peaks).map(|(v, p)| said(*v, p)).collect();
    let peak_rows = NEEDS.iter().zip(&peaks).flat_map(|(v, p)| {
        let row = move |(seed, p): (usize, &Peak)| {
            vec![json!(v.id()), json!(seed), json!(p.at), json!(p.best), json!(p.lost)]
        };
        p.iter().enumerate().map(row)
    });
    Ok(Section {
        id: "overfitting",
        title: "Which overfits first".into(),
        of: "figure of TDD and MDD across epochs",
        text: vec![
            format!(
                "The paper’s MDD is best near epoch 250 and then overfits, TDD still improves at 500. To see such a turn in a short time the \
                 data are small: {} of the {train} training images, {FEWER} times the epochs, and a rate that stays at its peak after the \
                 warm-up, so that a curve does not rise at the end because the rate falls.",
                train / FEWER
            ),
            format!(
                "On {images} validation images, averaged weights, {}: {}.",
                sampling_name(&measured.sampling()?),
                told.join("; ")
            ),
        ],
        claims: vec![
            claim("MDD is best earlier than TDD with coefficients, in % of the run", with, mdd, |p| p.at, AT),
            claim("MDD is best earlier than TDD without coefficients, in % of the run", without, mdd, |p| p.at, AT),
            claim("MDD loses more from its best than TDD with coefficients", mdd, with, |p| p.lost, lost),
            claim("MDD loses more from its best than TDD without coefficients", mdd, without, |p| p.lost, lost),
        ],
        figures: vec![Shown {
            name: "overfitting".into(),
            caption: format!(
                "Top-1 over epochs{}.",
                if measured.plan.seeds() > 1 { ", mean ± deviation over seeds" } else { "" }
            ),
            drawing,
        }],
        data: vec![
            Data { name: "overfitting".into(), columns: vec!["variant", "seed", "epoch", "top1"], rows },
            Data {
                name: "overfitting-peaks".into(),
                columns: vec!["variant", "seed", "best_at_percent_of_run", "best_top1", "lost_by_the_end"],
                rows: peak_rows.collect(),
            },
        ],
        ..Section::default()
    })
}

impl Peak {
    /// The first of equals.
    fn of(x: &[f64], y: &[f64]) -> Option<Peak> {
        let (end, last) = (*x.last()?, *y.last()?);
        let i = (0..y.len()).fold(0, |b, i| if y[i] > y[b] { i } else { b });
        Some(Peak { at: 100.0 * x.get(i)? / end.max(1.0), best: y[i], lost: y[i] - last })
    }
}

fn said(variant: Variant, peaks: &[Peak]) -> String {
    let all = |f: fn(&Peak) -> f64| mean(&peaks.iter().map(f).collect::<Vec<_>>());
    format!(
        "{}, best with {:.2} % after {:.0} % of the run, {:.2} points lost by its end",
        variant.name(),
        all(|p| p.best),
        all(|p| p.at),
        all(|p| p.lost)
    )
}

/// That a quantity of `a` is above that of `b`; `alone`: its error with one seed, which has no deviation.
fn claim(what: &str, a: &[Peak], b: &[Peak], f: fn(&Peak) -> f64, alone: f64) -> Claim {
    let [a, b] = [a, b].map(|p| p.iter().map(f).collect::<Vec<f64>>());
    let of_seeds = |v: &[f64]| deviation(v).map(|d| d / (v.len() as f64).sqrt());
    let error = of_seeds(&a).zip(of_seeds(&b)).map_or(alone, |(x, y)| x.hypot(y));
    Claim { what: what.into(), paper: Paper::Above, ours: mean(&a) - mean(&b), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_by_hand() {
        let p = Peak::of(&[10.0, 20.0, 30.0, 40.0], &[50.0, 80.0, 80.0, 75.0]).unwrap();
        assert_eq!((p.at, p.best, p.lost), (50.0, 80.0, 5.0));
        assert!(Peak::of(&[], &[]).is_none());
    }
}
