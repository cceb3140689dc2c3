//! The diffusion process of the method: how a one-hot vector is corrupted, and what a noisy one says about it.
//!
//! y_t = √ᾱ_t·λ·onehot(token) + √(1−ᾱ_t)·ε with ε ~ N(0, I), for t = 0 (clean) to T (pure noise). Everything that loss, bound
//! and samplers need to know of it is here; they never see the schedule or λ apart.
//!
//! ```
//! use tweedie::{Process, Schedule, ScheduleKind};
//!
//! let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 10)?);
//! // Half way, a noisy vector is about half signal …
//! assert!((process.signal(500).powi(2) - 0.5).abs() < 0.02);
//! // … and one that lies near a one-hot vector says which it was.
//! let p = process.posterior(&[0.9, 0.1, -0.2], &[1.0 / 3.0; 3], 250);
//! assert!(p[0] > p[1] && p[1] > p[2]);
//! # Ok::<(), tweedie::Error>(())
//! ```

use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::{Device, Tensor};

use crate::error::{Error, Result};
use crate::schedule::{Schedule, ScheduleKind, identity_probability};

/// From a time to the next, cleaner one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The time of the noisy vector.
    pub t: usize,
    /// The time to go to; 0 is clean and ends a sampling.
    pub s: usize,
}

/// y_s = `clean`·ŷ_0 + `keep`·y_t + `noise`·z with z ~ N(0, I): a step of any sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Factor of the one-hot (or softmax) estimate of the clean vector.
    pub clean: f64,
    /// Factor of the present noisy vector.
    pub keep: f64,
    /// Factor of fresh noise.
    pub noise: f64,
}

/// A noise schedule and λ of the λ-hot vectors that it corrupts.
#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    schedule: Schedule,
    lambda: f64,
}

impl Process {
    /// The first time, of next to no noise: where clean tokens are shown.
    pub const FIRST: usize = 1;

    /// Of one-hot vectors, λ = 1.
    pub fn new(schedule: Schedule) -> Process {
        Process { schedule, lambda: 1.0 }
    }

    /// Of λ-hot vectors over `vocab` classes, by a schedule of this kind.
    pub fn of_kind(kind: ScheduleKind, steps: usize, vocab: usize, lambda: f64) -> Result<Process> {
        let schedule = match kind {
            ScheduleKind::VocabAware => Schedule::vocab_aware(steps, vocab, lambda)?,
            kind => Schedule::new(kind, steps, vocab)?,
        };
        Process::new(schedule).with_lambda(lambda)
    }

    /// Of λ-hot vectors.
    pub fn with_lambda(self, lambda: f64) -> Result<Process> {
        match lambda > 0.0 && lambda <= 1.0 {
            true => Ok(Process { lambda, ..self }),
            false => Err(Error::Input(format!("λ = {lambda}: it must lie in (0, 1]"))),
        }
    }

    /// ᾱ_t.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// λ.
    pub fn lambda(&self) -> f64 {
        self.lambda
    }

    /// T.
    pub fn steps(&self) -> usize {
        self.schedule.steps()
    }

    /// λ·√ᾱ_t: the factor of the one-hot vector in y_t.
    pub fn signal(&self, t: usize) -> f64 {
        self.lambda * self.schedule.signal(t)
    }

    /// √(1−ᾱ_t): the factor of the noise in y_t.
    pub fn spread(&self, t: usize) -> f64 {
        self.schedule.spread(t)
    }

    /// λ²·ᾱ_t/(1−ᾱ_t).
    pub fn snr(&self, t: usize) -> f64 {
        self.lambda * self.lambda * self.schedule.snr(t)
    }

    /// κ_t = λ·√ᾱ_t/(1−ᾱ_t): what one unit of y_t adds to the log-odds of its class.
    pub fn evidence(&self, t: usize) -> f64 {
        self.signal(t) / (1.0 - self.schedule.alpha_bar(t))
    }

    /// The chance that the largest entry of y_t is still that of its token, among `vocab` classes.
    pub fn survival(&self, t: usize, vocab: usize) -> f64 {
        identity_probability(self.snr(t), vocab)
    }

    /// y_t of `tokens` (u32 \[B, N\], classes below `vocab`), as the recipe from which the device makes it. `times` has one for
    /// each example, or B·N where tokens have times of their own.
    pub fn corrupt(&self, tokens: Tensor, times: &[u32], vocab: usize, eps: Eps) -> Result<NoisyTokens> {
        let &[b, n] = tokens.shape() else {
            return Err(Error::Input(format!("tokens to corrupt are [B, N], not {:?}", tokens.shape())));
        };
        let shape = match times.len() {
            len if len == b => &[b][..],
            len if len == b * n => &[b, n][..],
            len => return Err(Error::Input(format!("{len} times for {b} examples of {n} tokens"))),
        };
        let device = tokens.device();
        let level = |f: &dyn Fn(usize) -> f64| of_times(&device, shape, times, f);
        Ok(NoisyTokens { signal: level(&|t| self.signal(t))?, spread: level(&|t| self.spread(t))?, tokens, eps, vocab })
    }

    /// p(k|y_t) of one noisy vector by Bayes' rule: ∝ π_k·exp(κ_t·y_t). What a network without a condition would have to learn
    /// for one token, and the oracle that tests hold everything against.
    pub fn posterior(&self, y: &[f32], prior: &[f64], t: usize) -> Vec<f64> {
        let evidence = self.evidence(t);
        let logits: Vec<f64> = y.iter().zip(prior).map(|(y, p)| evidence * *y as f64 + p.ln()).collect();
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = logits.iter().map(|l| (l - most).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|x| x / sum).collect()
    }

    /// Tweedie's formula backwards: the prediction p = E\[y_0|y_t\]/λ gives the score ∇ ln p(y_t) = (√ᾱ_t·λ·p − y_t)/(1−ᾱ_t).
    pub fn score(&self, y: &[f32], p: &[f64], t: usize) -> Vec<f64> {
        let variance = 1.0 - self.schedule.alpha_bar(t);
        y.iter().zip(p).map(|(y, p)| (self.signal(t) * p - *y as f64) / variance).collect()
    }

    /// The chance that a noisy vector belongs to class `a` rather than `b`, where it must be one of the two, with `prior` the
    /// chance of `a` and `difference` that of its two coordinates.
    pub fn posterior_of_two(&self, prior: f64, difference: f64, t: usize) -> f64 {
        let (signal, spread) = (self.signal(t), self.spread(t));
        let odds = (prior / (1.0 - prior)).ln() + signal * difference / (spread * spread);
        1.0 / (1.0 + (-odds).exp())
    }

    /// The estimate noised again at time s, nothing of y_t kept: argmax-and-re-noise and its kin.
    pub fn renoise(&self, s: usize) -> Update {
        Update { clean: self.signal(s), keep: 0.0, noise: self.spread(s) }
    }

    /// The true reverse step q(y_s | y_t, y_0).
    pub fn reverse(&self, at: Times) -> Update {
        let (alpha_t, alpha_s) = (self.schedule.alpha_bar(at.t), self.schedule.alpha_bar(at.s));
        let ratio = alpha_t / alpha_s;
        Update {
            clean: self.lambda * (alpha_s.sqrt() * (1.0 - ratio) / (1.0 - alpha_t)),
            keep: ratio.sqrt() * (1.0 - alpha_s) / (1.0 - alpha_t),
            noise: ((1.0 - ratio) * (1.0 - alpha_s) / (1.0 - alpha_t)).sqrt(),
        }
    }

    /// The deterministic step that keeps the noise which the estimate implies.
    pub fn ddim(&self, at: Times) -> Update {
        let keep = self.spread(at.s) / self.spread(at.t);
        let clean = self.lambda * (self.schedule.signal(at.s) - keep * self.schedule.signal(at.t));
        Update { clean, keep, noise: 0.0 }
    }

    /// `count` sampling steps from T to 0.
    pub fn spaced(&self, count: usize) -> Vec<Times> {
        pairs(&self.schedule.spaced(count))
    }

    /// As [`Process::spaced`], along the noise levels of another schedule, at the nearest trained times.
    pub fn spaced_along(&self, other: &Schedule, count: usize) -> Vec<Times> {
        pairs(&self.schedule.spaced_along(other, count))
    }
}

fn pairs(times: &[usize]) -> Vec<Times> {
    times.windows(2).map(|w| Times { t: w[0], s: w[1] }).collect()
}

/// f of each time, on the device.
fn of_times(device: &Device, shape: &[usize], times: &[u32], f: &dyn Fn(usize) -> f64) -> Result<Tensor> {
    Ok(Tensor::from_f32(device, shape, times.iter().map(|t| f(*t as usize) as f32).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::rng;

    fn process(lambda: f64) -> Process {
        let schedule = Schedule::new(ScheduleKind::Cosine, 1000, 5).unwrap();
        Process::new(schedule).with_lambda(lambda).unwrap()
    }

    /// Of the noisy vectors that the rule gives `a` with chance p, a share p was made from `a`: checked in ten bins, and the
    /// rule is informative (not the prior everywhere).
    #[test]
    fn the_posterior_of_two_labels_is_calibrated() {
        // ᾱ_575 of the cosine schedule is near .39; λ = .96 makes a signal of .6 beside a spread of .78.
        let (process, t, prior, n) = (process(0.96), 575, 0.3, 200_000);
        let (signal, spread) = (process.signal(t), process.spread(t));
        let mut bins = [(0.0, 0.0, 0.0); 10];
        for i in 0..n {
            let w = rng::philox([i, 0, 0, 0], [1, 2]);
            let [e1, e2, ..] = rng::normals_of(rng::philox([i, 1, 0, 0], [1, 2]));
            let is_a = (rng::uniform_of(w[0]) as f64) < prior;
            let sign = if is_a { 1.0 } else { -1.0 };
            let p = process.posterior_of_two(prior, sign * signal + spread * (e1 - e2) as f64, t);
            let bin = &mut bins[(p * 10.0) as usize];
            *bin = (bin.0 + 1.0, bin.1 + p, bin.2 + is_a as u32 as f64);
        }
        for (count, p, a) in bins.into_iter().filter(|b| b.0 > 1000.0) {
            let (p, share): (f64, f64) = (p / count, a / count);
            assert!(
                (share - p).abs() < 4.0 * (p * (1.0 - p) / count).sqrt(),
                "{share} of {count} where the rule says {p}"
            );
        }
        assert!(bins.iter().filter(|b| b.0 > 1000.0).count() >= 7);
        assert_eq!(process.posterior_of_two(1.0, -3.0, t), 1.0);
        assert_eq!(process.posterior_of_two(0.25, 0.0, 1000), 0.25);
    }

    /// Two classes of five are the rule for two, and the score points from y_t to the mean of the one-hot vectors.
    #[test]
    fn bayes_rule_for_all_classes_agrees_with_that_for_two() {
        let (process, t) = (process(0.9), 400);
        let y = [0.7, -0.3, 0.1, 0.0, 0.4];
        let p = process.posterior(&y, &[0.3, 0.7, 0.0, 0.0, 0.0], t);
        let two = process.posterior_of_two(0.3, (y[0] - y[1]) as f64, t);
        assert!((p[0] - two).abs() < 1e-12 && (p.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{p:?} {two}");
        let score = process.score(&y, &p, t);
        let variance = process.spread(t).powi(2);
        for k in 0..5 {
            // Tweedie's formula: y + σ²·score is the mean of the signal.
            assert!((y[k] as f64 + variance * score[k] - process.signal(t) * p[k]).abs() < 1e-12);
        }
    }

    /// Steps of a reverse process that knows y_0 have the moments of q(y_s|y_0).
    #[test]
    fn reverse_steps_keep_the_marginals() {
        let process = process(0.8);
        for (t, s) in [(1000, 750), (500, 499), (20, 1)] {
            let at = Times { t, s };
            let Update { clean, keep, noise } = process.reverse(at);
            let mean = clean + keep * process.signal(t);
            let variance = keep.powi(2) * process.spread(t).powi(2) + noise.powi(2);
            assert!((mean - process.signal(s)).abs() < 1e-12, "{at:?}");
            assert!((variance - process.spread(s).powi(2)).abs() < 1e-12, "{at:?}");
            let Update { clean, keep, .. } = process.ddim(at);
            assert!((clean + keep * process.signal(t) - process.signal(s)).abs() < 1e-12);
            assert!((keep * process.spread(t) - process.spread(s)).abs() < 1e-12);
        }
        assert_eq!(process.reverse(Times { t: 5, s: 0 }).noise, 0.0);
    }

    #[test]
    fn what_cannot_be_corrupted_is_refused() {
        let tokens = Tensor::from_u32(&Device::Cpu, &[2, 3], vec![0; 6]).unwrap();
        let eps = || Eps::Given(Tensor::zeros(&Device::Cpu, &[2, 3, 5], tweedie_engine::DType::F32).unwrap());
        let p = process(1.0);
        assert_eq!(p.corrupt(tokens.clone(), &[1, 2], 5, eps()).unwrap().signal.shape(), [2]);
        assert_eq!(p.corrupt(tokens.clone(), &[1; 6], 5, eps()).unwrap().signal.shape(), [2, 3]);
        let refused = p.corrupt(tokens, &[1; 4], 5, eps()).err().unwrap();
        assert!(refused.to_string().contains("4 times"), "{refused}");
        assert!(p.clone().with_lambda(0.0).is_err() && p.clone().with_lambda(f64::NAN).is_err());
    }
}
