//! What a batch is trained towards: its noisy copies with their times, and the targets of mixed images.

use tweedie_engine::{Device, Noise, rng};

use super::{Trainer, stream};
use crate::augment::Mix;
use crate::config::{MixedTarget, SmoothingIn};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::loss::{ClassTargets, Rows, draw_clean_tokens, draw_staggered_times, token_weights};

impl Trainer {
    /// A batch may be anybody's: it must have a target for each example, and the model's classes.
    pub(super) fn check_batch(&self, batch: &Batch) -> Result<()> {
        let (b, n, v) = (batch.indices.len(), self.trained.model.sizes().tokens, self.config.model.classes);
        let (targets, each) = if batch.tokens.is_empty() { (&batch.labels, 1) } else { (&batch.tokens, n) };
        if b == 0 || targets.len() != b * each {
            return Err(Error::Input(format!("{} labels or tokens for a batch of {b} examples of {n}", targets.len())));
        }
        if let Some(t) = targets.iter().find(|t| **t as usize >= v) {
            return Err(Error::Input(format!("class {t} in a batch, the model has {v}")));
        }
        let all = batch.global;
        if batch.part.len() != b || batch.part.end > all {
            return Err(Error::Input(format!("{b} examples for the rows {:?} of a batch of {all}", batch.part)));
        }
        let partners = &batch.partner_labels;
        let misfit = |m: &Mix| {
            let rows = m.partner.len() == all || m.partner.len() == b;
            !rows || partners.len() != b || m.partner.iter().any(|i| *i as usize >= all)
        };
        if batch.mix.as_ref().is_some_and(misfit) {
            return Err(Error::Input(format!("a batch of {b} images was mixed as one of another size")));
        }
        match partners.iter().find(|l| **l as usize >= v) {
            Some(l) => Err(Error::Input(format!("class {l} in a batch, the model has {v}"))),
            None => Ok(()),
        }
    }

    /// K noisy copies per image: their timesteps, labels and dropped conditions, a pure function of seed, step and row of the whole batch.
    pub(super) fn rows(&self, batch: &Batch) -> Result<Rows> {
        let (b, k) = (batch.indices.len(), self.config.train.noisy_copies);
        let n = batch.tokens.len() / b.max(1);
        let steps = self.trained.process.steps();
        let seed = self.config.seed;
        let words =
            |row: u32| rng::philox([row, self.step as u32, 0, stream::ROWS], [seed as u32, (seed >> 32) as u32]);
        let offset = rng::uniform_of(words(u32::MAX)[0]) as f64;
        let mut r = Rows::new(Vec::new(), Vec::new());
        for i in 0..b {
            let global = batch.part.start + i;
            for j in 0..k {
                let row = (global * k + j) as u32;
                let w = words(row);
                // Stratified over the batch; the copies of one image lie T/K apart, so they are distinct.
                let u = (offset + (j as f64 + (global as f64 + 0.5) / batch.global as f64) / k as f64).fract();
                r.t.push(timestep(u, steps as u32, self.config.train.pure_noise));
                r.drop.push((rng::uniform_of(w[1]) < self.config.train.condition_drop) as u32);
                r.examples.push(row);
                if n > 0 {
                    r.tokens.extend(&batch.tokens[i * n..(i + 1) * n]);
                    continue;
                }
                // A mixed image has two labels: each copy takes one of them with its weight, so that what is diffused
                // stays a one-hot vector and the expected loss is that of the soft label.
                let own = batch.mix.as_ref().is_none_or(|m| rng::uniform_of(w[2]) < m.lambda);
                r.tokens.push(if own { batch.labels[i] } else { batch.partner_labels[i] });
            }
        }
        let pad_weight = self.config.loss.pad_weight;
        r.weights = self.trained.tokenizer.as_ref().and_then(|t| token_weights(&r.tokens, &[t.pad()], pad_weight));
        let share = self.config.clean_tokens();
        if share > 0.0 && n > 0 {
            r.clean = Some(draw_clean_tokens(&r, n, share, seed, self.step as u32));
        }
        let stagger = self.config.stagger();
        if stagger > 1 && n > 0 {
            r.times = Some(draw_staggered_times(&r, n, (steps, stagger), seed, self.step as u32));
        }
        if let (Some(mix), MixedTarget::Posterior) = (&batch.mix, self.config.loss.mixed) {
            match self.config.loss.smoothing_in {
                SmoothingIn::Prior if self.config.loss.smoothing > 0.0 => r.prior = Some(self.smoothed_prior(batch)),
                _ => r.targets = Some(self.posterior_targets(&r, batch, mix)?),
            }
        }
        if batch.mix.is_some() && self.config.loss.direct > 0.0 {
            r.direct = Some(self.copied_targets(batch, |q| q));
        }
        Ok(r)
    }

    /// For each noisy copy of a mixed image the chances of its two labels, given the noise that the device will draw.
    fn posterior_targets(&self, rows: &Rows, batch: &Batch, mix: &Mix) -> Result<Vec<f32>> {
        let (v, k) = (self.config.model.classes, self.config.train.noisy_copies);
        let noise = Noise::new(&Device::Cpu, self.config.seed, stream::DIFFUSION, self.step as u32)?;
        let mut q = vec![0.0; rows.t.len() * v];
        for (row, q) in q.chunks_exact_mut(v).enumerate() {
            let (a, b) = (batch.labels[row / k], batch.partner_labels[row / k]);
            let t = rows.t[row] as usize;
            let process = &self.trained.process;
            let (signal, spread) = (process.signal(t), process.spread(t));
            let at = |class: u32| -> Result<f64> {
                let eps = noise.normal_at(rows.examples[row], class / 4, class as usize % 4)? as f64;
                Ok(spread * eps + if rows.tokens[row] == class { signal } else { 0.0 })
            };
            let p = process.posterior_of_two(mix.lambda as f64, at(a)? - at(b)?, t) as f32;
            q[a as usize] += p;
            q[b as usize] += 1.0 - p;
        }
        Ok(q)
    }

    /// For each noisy copy of a mixed image the chances of all classes before the label is drawn: both labels, smoothed.
    fn smoothed_prior(&self, batch: &Batch) -> Vec<f32> {
        let (v, smoothing) = (self.config.model.classes as f32, self.config.loss.smoothing);
        self.copied_targets(batch, |q| (1.0 - smoothing) * q + smoothing / v)
    }

    /// `f` of the chances of all classes of a mixed image, for each of its noisy copies.
    fn copied_targets(&self, batch: &Batch, f: impl Fn(f32) -> f32) -> Vec<f32> {
        let (v, k) = (self.config.model.classes, self.config.train.noisy_copies);
        let ClassTargets::Soft(q) = self.targets(batch, 0..batch.labels.len()) else { return Vec::new() };
        q.chunks_exact(v).flat_map(|row| row.iter().map(|q| f(*q)).collect::<Vec<_>>().repeat(k)).collect()
    }

    pub(super) fn targets(&self, batch: &Batch, range: std::ops::Range<usize>) -> ClassTargets {
        let labels = &batch.labels;
        let Some(mix) = &batch.mix else { return ClassTargets::Hard(labels[range].to_vec()) };
        let v = self.config.model.classes;
        let mut q = vec![0.0; range.len() * v];
        for (row, i) in q.chunks_exact_mut(v).zip(range) {
            row[labels[i] as usize] += mix.lambda;
            row[batch.partner_labels[i] as usize] += 1.0 - mix.lambda;
        }
        ClassTargets::Soft(q)
    }
}

/// The timestep of a place `u` in \[0, 1): the upper `pure_noise` of them have the last one of `steps`, the others all alike.
fn timestep(u: f64, steps: u32, pure_noise: f32) -> u32 {
    let below = 1.0 - pure_noise as f64;
    if u < below { (1 + (u / below * steps as f64) as u32).min(steps) } else { steps }
}

#[cfg(test)]
mod tests {
    use super::timestep;

    #[test]
    fn a_share_of_the_timesteps_is_the_last_and_the_others_are_alike() {
        let times = |share| (0..4000).map(|i| timestep(i as f64 / 4000.0, 1000, share)).collect::<Vec<_>>();
        let count = |t: &[u32], of: std::ops::RangeInclusive<u32>| t.iter().filter(|t| of.contains(t)).count();
        let plain = times(0.0);
        assert_eq!((plain[0], count(&plain, 1..=250), count(&plain, 1000..=1000)), (1, 1000, 4));
        let half = times(0.5);
        assert_eq!((half[0], count(&half, 1..=250), count(&half, 1000..=1000)), (1, 500, 2002));
        assert!(times(1.0).iter().all(|t| *t == 1000));
        assert_eq!(timestep(1.0 - f64::EPSILON, 1000, 0.0), 1000);
    }
}
