//! What runs wrote while they were trained, over all seeds.

use serde_json::{Value, json};
use tweedie_figures::{Axis, Drawing, Figure, LinesSpec, Series};

use super::super::measurements::{Measurements, deviation};
use super::super::variant::Variant;
use crate::failure::Result;

/// A quantity of one variant: x, and y of every seed.
pub struct History {
    pub variant: Variant,
    pub x: Vec<f64>,
    pub seeds: Vec<Vec<f64>>,
}

impl History {
    /// `y` over `x` of the lines of `event`. Seeds write at the same places; where one is shorter, the rest is left out.
    pub fn read(
        measured: &Measurements,
        variant: Variant,
        event: &str,
        x: &str,
        y: impl Fn(&Value) -> Option<f64>,
    ) -> Result<History> {
        let mut h = History { variant, x: Vec::new(), seeds: Vec::new() };
        for seed in 0..measured.plan.seeds() {
            let lines = measured.metrics(variant, seed)?;
            let points = lines.iter().filter(|m| m["event"] == event).filter_map(|m| Some((m[x].as_f64()?, y(m)?)));
            let (xs, ys): (Vec<f64>, Vec<f64>) = points.unzip();
            h.x = if seed == 0 || xs.len() < h.x.len() { xs } else { h.x };
            h.seeds.push(ys);
        }
        let n = h.x.len();
        h.seeds.iter_mut().for_each(|s| s.truncate(n));
        Ok(h)
    }

    fn at(&self, i: usize) -> Vec<f64> {
        self.seeds.iter().filter_map(|s| s.get(i).copied()).collect()
    }

    /// Mean over seeds, with a band of one standard deviation where there are several.
    pub fn series(&self, name: &str, times: f64) -> Series {
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
        let y = (0..self.x.len()).map(|i| times * mean(&self.at(i))).collect();
        let line = Series::new(name, self.x.clone(), y);
        let spread: Option<Vec<f64>> = (0..self.x.len()).map(|i| deviation(&self.at(i)).map(|d| times * d)).collect();
        match spread.filter(|s| !s.is_empty()) {
            Some(s) => line.spread(&s),
            None => line,
        }
    }

    /// Rows (variant, seed, x, y).
    pub fn rows(&self) -> Vec<Vec<Value>> {
        let of = |(seed, ys): (usize, &Vec<f64>)| -> Vec<Vec<Value>> {
            self.x
                .iter()
                .zip(ys)
                .map(|(x, y)| vec![json!(self.variant.id()), json!(seed), json!(x), json!(y)])
                .collect()
        };
        self.seeds.iter().enumerate().flat_map(of).collect()
    }
}

/// Validation accuracy over epochs, as lines.
pub fn over_epochs(title: &str, series: Vec<Series>) -> Result<Drawing> {
    Ok(Figure::lines(&LinesSpec {
        title: title.into(),
        x: Axis::linear("epoch"),
        y: Axis::linear("top-1 on the validation images (%)"),
        series,
        size: Some((420.0, 270.0)),
    })?)
}

/// Top-1 in % of an evaluation during training: of the averaged weights where they are kept.
pub fn top1(m: &Value) -> Option<f64> {
    Some(100.0 * m["ema_top1"].as_f64().or(m["top1"].as_f64())?)
}
