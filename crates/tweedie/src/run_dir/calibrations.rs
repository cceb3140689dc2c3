//! Temperatures that were fitted for the weights of a run.

use super::RunDir;
use crate::calibration::Calibration;
use crate::config::Weights;
use crate::error::{Error, Result};
use crate::files::{read, write_atomic};
use crate::limits::SMALL_BYTES;

const CALIBRATION: &str = "calibration.json";

impl RunDir {
    /// Keep a temperature, in place of another one for the same weights.
    pub fn write_calibration(&self, new: &Calibration) -> Result<()> {
        let path = self.path.join(CALIBRATION);
        let mut all = self.calibrations();
        all.retain(|c| (c.step, c.weights) != (new.step, new.weights));
        all.push(new.clone());
        let json = serde_json::to_vec_pretty(&all).map_err(|e| Error::file(&path, e.into()))?;
        write_atomic(&path, &json)
    }

    /// The temperature of the weights of a step, if one was fitted and can be read.
    pub fn read_calibration(&self, step: u64, weights: Weights) -> Option<Calibration> {
        let fits = |c: &Calibration| {
            (c.step, c.weights) == (step, weights) && c.temperature.is_finite() && c.temperature > 0.0
        };
        self.calibrations().into_iter().find(fits)
    }

    fn calibrations(&self) -> Vec<Calibration> {
        let bytes = read(&self.path.join(CALIBRATION), &SMALL_BYTES).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_of_weights_has_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path()).unwrap();
        let of = |step, weights, steep: f32| {
            let logits = [[steep, 0.0], [steep, 0.0], [steep, 0.0]].concat();
            Calibration::fit(&logits, &[0, 0, 1], 2, (step, weights)).unwrap()
        };
        assert_eq!(run.read_calibration(5, Weights::Ema), None);
        for new in [of(5, Weights::Ema, 2.0), of(9, Weights::Ema, 3.0), of(5, Weights::Raw, 4.0)] {
            run.write_calibration(&new).unwrap();
        }
        let again = of(5, Weights::Ema, 6.0);
        run.write_calibration(&again).unwrap();
        assert_eq!(run.read_calibration(5, Weights::Ema), Some(again));
        assert_eq!(run.read_calibration(9, Weights::Ema), Some(of(9, Weights::Ema, 3.0)));
        assert_eq!(run.read_calibration(9, Weights::Raw), None);
        // A damaged file is as if it were not there, and so is a temperature that is none.
        let bad = Calibration { temperature: -1.0, ..of(7, Weights::Ema, 2.0) };
        run.write_calibration(&bad).unwrap();
        assert_eq!(run.read_calibration(7, Weights::Ema), None);
        std::fs::write(dir.path().join(CALIBRATION), "[{").unwrap();
        assert_eq!(run.read_calibration(9, Weights::Ema), None);
    }
}
