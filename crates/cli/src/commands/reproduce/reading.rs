//! A network that predicts noise, read as a classifier.
//!
//! Its output ε̂ can be read in two ways. As logits, as if nothing had changed but the loss: then the largest entry of the
//! *noise* wins. Or turned into the clean vector that it implies, x̂0 = (y_t − σ_t·ε̂) / (√ᾱ_t·λ), as in any other diffusion.

use tweedie::config::{Config, SampleConfig};
use tweedie::data::Source;
use tweedie::metrics::Classification;
use tweedie::sample::{At, Conditioned, Denoise, sample_logits};
use tweedie::{Process, Result, Trained, evaluate};
use tweedie_engine::ops::linear::linear;
use tweedie_engine::{Device, Tape, Tensor};

/// Turns the noise that `inner` predicts into √ᾱ_t·λ·x̂0, which has its largest entry where x̂0 has it. It has no layer of its own:
/// the sampler carries y_t itself, so that it can be subtracted from.
struct Implied<'a, D: Denoise> {
    inner: D,
    process: &'a Process,
}

impl<D: Denoise> Denoise for Implied<'_, D> {
    fn vocab(&self) -> usize {
        self.inner.vocab()
    }

    fn device(&self) -> Device {
        self.inner.device()
    }

    fn logits(&self, y: &Tensor, at: At) -> Result<Tensor> {
        let tape = Tape::inference();
        let u = match self.inner.weight()? {
            Some(layer) => {
                let layer = tape.constant(layer.clone());
                linear(&tape, &tape.constant(y.clone()), &layer, None, None, None)?.value().clone()
            }
            None => y.clone(),
        };
        let eps = self.inner.logits(&u, at)?.to_vec()?;
        let spread = self.process.spread(at.t) as f32;
        let clean = y.to_vec()?.iter().zip(&eps).map(|(y, e)| y - spread * e).collect();
        Ok(Tensor::from_f32(&y.device(), y.shape(), clean)?)
    }
}

/// As [`evaluate::classes`], for a network that predicts noise, through the x̂0 that it implies.
pub fn evaluate_implied(t: &Trained, source: &Source, config: &Config, s: &SampleConfig) -> Result<Classification> {
    evaluate::classes_by(t, source, config, 0, |images, ids| {
        let denoiser = Implied { inner: Conditioned::new(&t.model, Some(images), 1, false)?, process: &t.process };
        sample_logits(&denoiser, &t.process, s, (ids, 1), |_| {})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::sample::argmax;
    use tweedie::{Schedule, ScheduleKind};

    const CLASSES: usize = 5;
    const TRUTH: usize = 3;

    /// Knows the true class, and says which noise is in u = 2·y_t.
    struct Knowing {
        weight: Tensor,
        process: Process,
    }

    impl Denoise for Knowing {
        fn vocab(&self) -> usize {
            CLASSES
        }

        fn weight(&self) -> Result<Option<&Tensor>> {
            Ok(Some(&self.weight))
        }

        fn logits(&self, u: &Tensor, at: At) -> Result<Tensor> {
            let (signal, spread) = (self.process.signal(at.t) as f32, self.process.spread(at.t) as f32);
            let u = u.to_vec()?;
            let noise = u.iter().enumerate().map(|(i, u)| {
                let clean = if i % CLASSES == TRUTH { signal } else { 0.0 };
                (u / 2.0 - clean) / spread
            });
            Ok(Tensor::from_f32(&Device::Cpu, &[u.len() / CLASSES, 1, CLASSES], noise.collect())?)
        }
    }

    /// With the exact noise the implied vector is √ᾱ_t times the true one; the noise itself points anywhere.
    #[test]
    fn exact_noise_implies_the_true_class_and_is_itself_no_answer() {
        let process = Process::new(Schedule::new(ScheduleKind::Cosine, 100, CLASSES).unwrap());
        let twice: Vec<f32> = (0..CLASSES * CLASSES).map(|i| if i % (CLASSES + 1) == 0 { 2.0 } else { 0.0 }).collect();
        let knowing = || Knowing {
            weight: Tensor::from_f32(&Device::Cpu, &[CLASSES, CLASSES], twice.clone()).unwrap(),
            process: process.clone(),
        };
        let examples: Vec<u32> = (0..200).collect();
        let s = SampleConfig { steps: 10, ..SampleConfig::default() };
        let right = |d: &dyn Denoise| {
            let logits = sample_logits(d, &process, &s, (&examples, 1), |_| {}).unwrap();
            logits.chunks_exact(CLASSES).filter(|l| argmax(l) == TRUTH).count()
        };
        assert_eq!(right(&Implied { inner: knowing(), process: &process }), 200);
        // Chance is 40 of 200, with a standard deviation of 5.7.
        assert!(right(&knowing()) < 80);
    }
}
