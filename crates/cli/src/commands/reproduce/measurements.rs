//! Measurements of finished runs: a number for each seed, and what they say together.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use tweedie::config::{Precision, SampleConfig};
use tweedie::data::Source;
use tweedie::evaluate::{self, Captions};
use tweedie::run::{self, Loaded, Weights};
use tweedie::run_dir::RunDir;
use tweedie_engine::Device;

use super::plan::Plan;
use super::regression::{self, Rule};
use super::runs::{Finished, stop_if_asked};
use super::variant::Variant;
use crate::failure::{Failure, Result};

/// Readout: what a network's output stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readout {
    /// Logits of the classes.
    Logits,
    /// A vector that implies the clean one, from which sampling goes on by a rule.
    Clean(Rule),
}

/// Top-1 in %, of every seed on the same images.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub per_seed: Vec<f64>,
    pub images: usize,
}

impl Summary {
    pub fn mean(&self) -> f64 {
        self.per_seed.iter().sum::<f64>() / self.per_seed.len().max(1) as f64
    }

    /// Standard deviation over seeds; one seed has none.
    pub fn deviation(&self) -> Option<f64> {
        deviation(&self.per_seed)
    }

    /// Standard error from the number of test images.
    pub fn standard_error(&self) -> f64 {
        let p = self.mean() / 100.0;
        100.0 * (p * (1.0 - p) / self.images.max(1) as f64).sqrt()
    }

    /// Of the mean: from images and, where there are several, from seeds.
    pub fn uncertainty(&self) -> f64 {
        let seeds = self.deviation().map_or(0.0, |d| d.powi(2) / self.per_seed.len() as f64);
        (self.standard_error().powi(2) + seeds).sqrt()
    }
}

/// Standard deviation of a sample; of one value there is none.
pub fn deviation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.len() > 1).then(|| (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt())
}

/// All finished runs, and what was measured of them.
pub struct Measurements<'a> {
    pub plan: &'a Plan,
    finished: &'a [Finished],
    pub device: &'a Device,
    /// Folder of a CLIP model, if one was given.
    pub clip: Option<&'a Path>,
    loaded: HashMap<usize, Loaded>,
    /// Experiments share settings: each is measured once.
    measured: HashMap<(usize, String), (f64, usize)>,
    /// Captions of the test images, likewise.
    pub(super) written: HashMap<(Variant, usize, usize), Rc<Captions>>,
}

impl<'a> Measurements<'a> {
    pub fn new(
        plan: &'a Plan,
        finished: &'a [Finished],
        device: &'a Device,
        clip: Option<&'a Path>,
    ) -> Measurements<'a> {
        Measurements {
            plan,
            finished,
            device,
            clip,
            loaded: HashMap::new(),
            measured: HashMap::new(),
            written: HashMap::new(),
        }
    }

    /// Sampling as every table of classes has it unless it says otherwise.
    pub fn sampling(&self) -> Result<SampleConfig> {
        Ok(self.plan.classes()?.paper.sample.clone())
    }

    fn place(&self, variant: Variant, seed: usize) -> Result<usize> {
        let found = self.plan.runs.iter().position(|r| r.variant == variant && r.seed == seed as u64);
        found.ok_or_else(|| Failure::ours(format!("there is no run of {} with seed {seed}", variant.id())))
    }

    /// The test images of a seed.
    pub fn test(&self, seed: usize) -> Result<&Source> {
        Ok(self.plan.classes()?.data[seed].final_split()?.0)
    }

    fn model_at(&mut self, place: usize) -> Result<&Loaded> {
        if !self.loaded.contains_key(&place) {
            let mut made = run::load(&self.finished[place].checkpoint, Weights::Ema, self.device, Precision::Auto)?;
            // A run that was there already is sampled as the others are.
            made.config.sample.clone_from(&self.plan.runs[place].config.sample);
            self.loaded.insert(place, made);
        }
        Ok(&self.loaded[&place])
    }

    /// A model with its averaged weights.
    pub fn model(&mut self, variant: Variant, seed: usize) -> Result<&Loaded> {
        self.model_at(self.place(variant, seed)?)
    }

    /// Lines of a run's metrics.
    pub fn metrics(&self, variant: Variant, seed: usize) -> Result<Vec<Value>> {
        Ok(RunDir::open(&self.finished[self.place(variant, seed)?].path)?.read_metrics()?)
    }

    /// Top-1 on the test images, for every seed. The sampling noise has the seed of the run.
    pub fn score(&mut self, variant: Variant, sample: &SampleConfig, readout: Readout) -> Result<Summary> {
        let mut all = Summary { per_seed: Vec::new(), images: 0 };
        for seed in 0..self.plan.seeds() {
            stop_if_asked("while measuring")?;
            let place = self.place(variant, seed)?;
            let sample = SampleConfig { seed: seed as u64, ..sample.clone() };
            // The twin has one pass and no sampling.
            let setting = match variant {
                Variant::Masked | Variant::LongMasked => String::new(),
                _ => format!("{readout:?} {}", serde_json::to_string(&sample)?),
            };
            let before = self.measured.get(&(place, setting.clone())).copied();
            let (top1, images) = match before {
                Some(m) => m,
                None => {
                    let source = self.test(seed)?.clone();
                    let m = self.model_at(place)?;
                    let c = match readout {
                        Readout::Logits => evaluate::classes(&m.trained, &source, &m.config, &sample, 0, |_| {})?,
                        Readout::Clean(rule) => regression::classes(&m.trained, &source, &m.config, &sample, rule)?,
                    };
                    let r = c.report();
                    self.measured.insert((place, setting), (100.0 * r.top1, r.examples));
                    (100.0 * r.top1, r.examples)
                }
            };
            all.per_seed.push(top1);
            all.images = images;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_by_hand() {
        let s = Summary { per_seed: vec![80.0, 90.0, 100.0], images: 900 };
        assert_eq!((s.mean(), s.deviation()), (90.0, Some(10.0)));
        // √(0.9·0.1/900) = 1 %.
        assert!((s.standard_error() - 1.0).abs() < 1e-12);
        assert!((s.uncertainty() - (1.0_f64 + 100.0 / 3.0).sqrt()).abs() < 1e-12);
        let one = Summary { per_seed: vec![90.0], images: 900 };
        assert_eq!((one.deviation(), one.uncertainty()), (None, one.standard_error()));
    }
}
