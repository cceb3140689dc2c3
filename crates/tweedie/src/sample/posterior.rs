//! What a model holds of the classes before it takes a step: its posterior given the image.

use tweedie_engine::Tensor;

use super::ClassSampler;
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::trained::{Shared, Trained};

/// Probabilities of the classes given an image: what the network predicts from pure noise, averaged over some draws of it, at the
/// temperature that was fitted on held-out images ([`Calibration`](crate::Calibration)). The masked twin's single pass is one.
///
/// Later steps of a sampling see a noisy copy of the class that was chosen before; how sure they are says how settled the sampling is,
/// and nothing about the image. The noise is the same for all images: what is said of one does not depend on the others.
pub struct Posterior<'a> {
    sampler: ClassSampler<'a>,
    temperature: f64,
}

impl<'a> Posterior<'a> {
    /// Draws of noise that are averaged: measured on digits, more of them change the likelihood by less than .001.
    pub const DRAWS: usize = 8;

    /// At the model's own temperature, 1 where none was fitted.
    pub fn new(trained: impl Into<Shared<'a, Trained>>) -> Result<Posterior<'a>> {
        let trained = trained.into();
        let temperature = trained.temperature.unwrap_or(1.0);
        Ok(Posterior { sampler: ClassSampler::new(trained, &Self::one_step())?, temperature })
    }

    /// How the draws are sampled.
    pub(crate) fn one_step() -> SampleConfig {
        SampleConfig { steps: 1, votes: Self::DRAWS, ..SampleConfig::default() }
    }

    /// At another temperature; above 1 less sure.
    pub fn at(self, temperature: f64) -> Result<Posterior<'a>> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::Input(format!("a temperature of {temperature} must be positive")));
        }
        Ok(Posterior { temperature, ..self })
    }

    /// What logits are divided by.
    pub fn temperature(&self) -> f64 {
        self.temperature
    }

    /// Class logits \[B·V\] of images \[B, channels, side, side\], whose softmax the posterior is.
    pub fn logits(&self, images: &Tensor) -> Result<Vec<f32>> {
        let rows = images.shape().first().copied().unwrap_or(0);
        let mut logits = self.sampler.logits(images, &vec![0; rows])?;
        logits.iter_mut().for_each(|l| *l = (f64::from(*l) / self.temperature) as f32);
        Ok(logits)
    }
}
