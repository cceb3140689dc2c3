//! One temperature that makes a classifier's probabilities as often right as they say: [`Calibration::fit`].

use serde::{Deserialize, Serialize};

use crate::config::Weights;
use crate::error::{Error, Result};
use crate::metrics::Classification;

/// Temperatures that are looked at, by their logarithm: from a twentieth to twenty.
const RANGE: f64 = 3.0;
/// How near the logarithm is found: four digits of the temperature.
const NEAR: f64 = 1e-4;

/// A temperature with what it was fitted on, as a run keeps it in `calibration.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// What logits of the posterior are divided by.
    pub temperature: f64,
    /// Optimizer steps behind the weights that it belongs to.
    pub step: u64,
    /// Whether those are the averaged ones.
    pub weights: Weights,
    /// Held-out images that it was fitted on.
    pub images: usize,
    /// Mean negative log-likelihood of these at temperature 1, nats.
    pub nll_before: f64,
    /// The same at this temperature.
    pub nll: f64,
    /// Expected calibration error at temperature 1.
    pub ece_before: f64,
    /// The same at this temperature.
    pub ece: f64,
}

impl Calibration {
    /// The temperature at which logits \[B·V\] make the true classes \[B\] most likely, for the weights of a step.
    ///
    /// A small set that happens to be all right would call for certainty without bound. So each image counts as its class but for one part
    /// in n + 2, which is spread over all classes: Platt's rule, as if there were one more image of which nothing is known. On digits with
    /// 143 images that is the difference between an NLL of .073 and .087 on the test split; with thousands it is none.
    ///
    /// ```
    /// use tweedie::Calibration;
    /// use tweedie::config::Weights;
    ///
    /// // As sure of the first of two classes as e³ to 1, and right three times in four: it should be as sure as 3 to 1.
    /// let fitted = Calibration::fit(&[3.0, 0.0].repeat(8000), &[0, 0, 0, 1].repeat(2000), 2, (100, Weights::Ema))?;
    /// assert!((fitted.temperature - 3.0 / 3_f64.ln()).abs() < 1e-3);
    /// assert!(fitted.nll < fitted.nll_before && fitted.ece < 1e-3);
    /// # Ok::<(), tweedie::Error>(())
    /// ```
    pub fn fit(logits: &[f32], labels: &[u32], classes: usize, of: (u64, Weights)) -> Result<Calibration> {
        let rows: Vec<(&[f32], usize)> = logits
            .chunks_exact(classes.max(1))
            .zip(labels)
            .map(|(l, label)| (l, *label as usize))
            .filter(|(l, label)| *label < l.len() && l.iter().all(|l| l.is_finite()))
            .collect();
        if rows.is_empty() {
            return Err(Error::Input("there is no answer to fit a temperature to".into()));
        }
        let unknown = 1.0 / (rows.len() + 2) as f64;
        let loss = |log: f64| rows.iter().map(|(l, label)| smoothed_nll(l, *label, unknown, log.exp())).sum();
        let temperature = lowest(loss, -RANGE, RANGE).exp();
        let (before, after) = (measured(&rows, classes, 1.0), measured(&rows, classes, temperature));
        let (step, weights) = of;
        Ok(Calibration {
            temperature,
            step,
            weights,
            images: rows.len(),
            nll_before: before.0,
            nll: after.0,
            ece_before: before.1,
            ece: after.1,
        })
    }
}

/// −ln p at a temperature, of a class but for the share `unknown`, which is of all classes alike.
fn smoothed_nll(logits: &[f32], label: usize, unknown: f64, temperature: f64) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z = |l: f32| (f64::from(l) - f64::from(most)) / temperature;
    let mean = logits.iter().map(|l| z(*l)).sum::<f64>() / logits.len() as f64;
    logits.iter().map(|l| z(*l).exp()).sum::<f64>().ln() - (1.0 - unknown) * z(logits[label]) - unknown * mean
}

fn measured(rows: &[(&[f32], usize)], classes: usize, temperature: f64) -> (f64, f64) {
    let mut seen = Classification::new(classes);
    for (logits, label) in rows {
        let cooled: Vec<f32> = logits.iter().map(|l| (f64::from(*l) / temperature) as f32).collect();
        seen.add(&cooled, &[*label as u32]);
    }
    let report = seen.report();
    (report.nll, report.ece)
}

/// Where a function with one valley is lowest between `a` and `b`, by golden sections. The likelihood has one valley in 1/T, and so in
/// ln T.
fn lowest(f: impl Fn(f64) -> f64, mut a: f64, mut b: f64) -> f64 {
    let golden = (5_f64.sqrt() - 1.0) / 2.0;
    let inner = |a: f64, b: f64| (b - golden * (b - a), a + golden * (b - a));
    let (mut left, mut right) = inner(a, b);
    let (mut at_left, mut at_right) = (f(left), f(right));
    while b - a > NEAR {
        if at_left <= at_right {
            (b, right, at_right) = (right, left, at_left);
            left = inner(a, b).0;
            at_left = f(left);
        } else {
            (a, left, at_left) = (left, right, at_right);
            right = inner(a, b).1;
            at_right = f(right);
        }
    }
    (a + b) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::softmax;

    #[test]
    fn the_lowest_point_is_found_at_either_end_and_inside() {
        for at in [-2.9, -0.3, 0.0, 1.7, 3.0] {
            assert!((lowest(|x| (x - at) * (x - at), -RANGE, RANGE) - at).abs() < 2.0 * NEAR, "{at}");
        }
    }

    /// Logits that are right as they are need no temperature; made three times as steep, one of 3.
    #[test]
    fn a_known_temperature_is_found() {
        let (mut logits, mut labels) = (Vec::new(), Vec::new());
        for i in 0..40 {
            let row = [(i % 7) as f32 / 2.0, (i % 3) as f32 / 2.0, 0.0];
            // As many of each class as its probability says, of 1000.
            for (class, p) in softmax(&row).into_iter().enumerate() {
                let count = (1000.0 * p).round() as usize;
                logits.extend(row.iter().cycle().take(3 * count).copied());
                labels.extend(std::iter::repeat_n(class as u32, count));
            }
        }
        let fit = |steep: f32| {
            let steeper: Vec<f32> = logits.iter().map(|l| steep * l).collect();
            Calibration::fit(&steeper, &labels, 3, (1, Weights::Raw)).unwrap()
        };
        for steep in [1.0, 3.0, 0.25] {
            let found = fit(steep);
            assert!((found.temperature / f64::from(steep) - 1.0).abs() < 0.01, "{found:?}");
            assert!(found.nll <= found.nll_before + 1e-9 && found.ece < 0.01, "{found:?}");
        }
    }

    #[test]
    fn nothing_to_fit_is_refused() {
        let fit = |logits: &[f32], labels: &[u32]| Calibration::fit(logits, labels, 2, (1, Weights::Ema));
        assert!(fit(&[], &[]).is_err() && fit(&[f32::NAN, 0.0], &[0]).is_err() && fit(&[1.0, 0.0], &[2]).is_err());
        // All right, n = 8 of two classes: as sure as (1 − 1/20) to 1/20, and no surer.
        let sure = fit(&[1.0, 0.0].repeat(8), &[0; 8]).unwrap().temperature;
        assert!((sure - 1.0 / 19_f64.ln()).abs() < 1e-3, "{sure}");
    }
}
