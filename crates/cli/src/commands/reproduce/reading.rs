//! A network that predicts noise, read as a classifier.
//!
//! Its output ε̂ can be read in two ways. As logits, as if nothing had changed but the loss: then the largest entry of the
//! *noise* wins. Or turned into the clean vector that it implies, x̂0 = (y_t − σ_t·ε̂) / (√ᾱ_t·λ), as in any other diffusion.

use tweedie::augment::Transform;
use tweedie::config::{Config, SampleConfig};
use tweedie::data::{Loader, LoaderConfig, Source};
use tweedie::metrics::Classification;
use tweedie::sample::{self, At, Conditioned, Denoise};
use tweedie::schedule::Schedule;
use tweedie::train::Trained;
use tweedie::{Error, Result};
use tweedie_engine::ops::linear::linear;
use tweedie_engine::{Device, Tape, Tensor};

/// Turns the noise that `inner` predicts into √ᾱ_t·λ·x̂0, which has its largest entry where x̂0 has it.
struct Implied<'a, D: Denoise> {
    inner: D,
    /// The sampler carries y_t itself, so that it can be subtracted from.
    identity: Tensor,
    schedule: &'a Schedule,
}

impl<'a, D: Denoise> Implied<'a, D> {
    fn new(inner: D, schedule: &'a Schedule) -> Result<Implied<'a, D>> {
        let layer = inner.weight()?;
        let v = layer.shape()[1];
        let ones = (0..v * v).map(|i| if i % (v + 1) == 0 { 1.0 } else { 0.0 }).collect();
        let identity = Tensor::from_f32(&layer.device(), &[v, v], ones)?;
        Ok(Implied { inner, identity, schedule })
    }
}

impl<D: Denoise> Denoise for Implied<'_, D> {
    fn weight(&self) -> Result<&Tensor> {
        Ok(&self.identity)
    }

    fn logits(&self, y: &Tensor, at: At, guided: bool) -> Result<Tensor> {
        if guided {
            return Err(Error::Input("predicted noise is read without guidance".into()));
        }
        let tape = Tape::inference();
        let layer = tape.constant(self.inner.weight()?.clone());
        let u = linear(&tape, &tape.constant(y.clone()), &layer, None, None, None)?;
        let eps = self.inner.logits(u.value(), at, false)?.to_vec()?;
        let spread = self.schedule.spread(at.t) as f32;
        let clean = y.to_vec()?.iter().zip(&eps).map(|(y, e)| y - spread * e).collect();
        Ok(Tensor::from_f32(&y.device(), y.shape(), clean)?)
    }
}

/// As [`tweedie::train::evaluate`], for a network that predicts noise, through the x̂0 that it implies.
pub fn evaluate_implied(t: &Trained, source: &Source, config: &Config, s: &SampleConfig) -> Result<Classification> {
    let e = &config.model.encoder;
    let device = t.model.device();
    let size = if device == Device::Cpu { 64 } else { 512 };
    let loader = LoaderConfig {
        threads: config.data.workers,
        on_corrupt: config.data.corrupt.into(),
        ..LoaderConfig::eval(size)
    };
    let mut metrics = Classification::new(config.model.classes);
    for batch in Loader::new(source.clone(), Transform::eval(&config.augment, e.image, e.channels)?, loader)? {
        let batch = batch?;
        let shape = [batch.labels.len(), e.channels, e.image, e.image];
        let images = Tensor::from_f32(&device, &shape, batch.images)?;
        let denoiser = Implied::new(Conditioned::new(&t.model, Some(&images), 1, false)?, &t.schedule)?;
        let logits = sample::run(&denoiser, &t.schedule, s, (&batch.indices, 1), t.lambda, |_| {})?;
        metrics.add(&logits, &batch.labels);
    }
    Ok(metrics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::sample::argmax;
    use tweedie::schedule::ScheduleKind;

    const CLASSES: usize = 5;
    const TRUTH: usize = 3;

    /// Knows the true class, and says which noise is in u = 2·y_t.
    struct Knowing {
        weight: Tensor,
        schedule: Schedule,
    }

    impl Denoise for Knowing {
        fn weight(&self) -> Result<&Tensor> {
            Ok(&self.weight)
        }

        fn logits(&self, u: &Tensor, at: At, _: bool) -> Result<Tensor> {
            let (signal, spread) = (self.schedule.signal(at.t) as f32, self.schedule.spread(at.t) as f32);
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
        let schedule = Schedule::new(ScheduleKind::Cosine, 100, CLASSES).unwrap();
        let twice: Vec<f32> = (0..CLASSES * CLASSES).map(|i| if i % (CLASSES + 1) == 0 { 2.0 } else { 0.0 }).collect();
        let knowing = || Knowing {
            weight: Tensor::from_f32(&Device::Cpu, &[CLASSES, CLASSES], twice.clone()).unwrap(),
            schedule: schedule.clone(),
        };
        let examples: Vec<u32> = (0..200).collect();
        let s = SampleConfig { steps: 10, ..SampleConfig::default() };
        let right = |d: &dyn Denoise| {
            let logits = sample::run(d, &schedule, &s, (&examples, 1), 1.0, |_| {}).unwrap();
            logits.chunks_exact(CLASSES).filter(|l| argmax(l) == TRUTH).count()
        };
        assert_eq!(right(&Implied::new(knowing(), &schedule).unwrap()), 200);
        // Chance is 40 of 200, with a standard deviation of 5.7.
        assert!(right(&knowing()) < 80);
    }
}
