//! The temperature of a classifier, fitted when its training is done.

use crate::calibration::Calibration;
use crate::config::{Precision, Weights};
use crate::error::{Error, Result};
use crate::evaluate;
use crate::run;
use crate::run_dir::RunDir;
use crate::train::Trainer;

/// Fit and keep the temperature of the weights that the run will be used with, if it is one of classes that came to its end. Gives what
/// there is to say about it; a run is not spoilt by a temperature that could not be fitted.
pub(super) fn at_the_end(dir: &RunDir, trainer: &Trainer, stop: &dyn Fn() -> bool) -> Option<String> {
    if trainer.step() < trainer.total_steps() || trainer.validation().is_none() {
        return None;
    }
    match fitted(dir, trainer, stop) {
        Ok(c) => Some(format!(
            "probabilities at temperature {:.2}, fitted on {} held-out images: nll {:.3}, ECE {:.3} (as they were: {:.3}, {:.3})",
            c.temperature, c.images, c.nll, c.ece, c.nll_before, c.ece_before
        )),
        Err(Error::Interrupted) => None,
        Err(e) => Some(format!("the temperature of its probabilities was not fitted: {e}")),
    }
}

fn fitted(dir: &RunDir, trainer: &Trainer, stop: &dyn Fn() -> bool) -> Result<Calibration> {
    let val = trainer.validation().ok_or(Error::NoData)?;
    // The best checkpoint, which may not be the last.
    let of = Weights::Ema;
    let loaded = run::load(dir.path(), of, &trainer.trained.model.device(), Precision::Auto)?;
    let calibration = evaluate::calibrate(&loaded.trained, val, &trainer.config, (loaded.step, of), stop)?;
    dir.write_calibration(&calibration)?;
    Ok(calibration)
}
