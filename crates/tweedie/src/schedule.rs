//! Noise schedules: ᾱ_0 = 1 (clean) down to ᾱ_T ≈ 0 (pure noise), in f64. [`Schedule`] is one by name or by a curve of your own.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The shape of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// DDPM's linear betas, rescaled to T.
    Linear,
    /// Nichol & Dhariwal's squared cosine; the default.
    Cosine,
    /// A sigmoid in time from −3 to 3.
    Sigmoid,
    /// Warped so that the chance that the noisy vector still shows its token falls linearly in t, for a given vocabulary.
    VocabAware,
}

const KINDS: [(&str, ScheduleKind); 4] = [
    ("linear", ScheduleKind::Linear),
    ("cosine", ScheduleKind::Cosine),
    ("sigmoid", ScheduleKind::Sigmoid),
    ("vocab-aware", ScheduleKind::VocabAware),
];

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(s: &str) -> Result<ScheduleKind> {
        KINDS
            .iter()
            .find(|k| k.0 == s)
            .map(|k| k.1)
            .ok_or_else(|| Error::Input(format!("'{s}' is not a schedule; use linear, cosine, sigmoid or vocab-aware")))
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(KINDS.iter().find(|k| k.1 == *self).map_or("", |k| k.0))
    }
}

/// ᾱ for every step of a T-step process.
///
/// ```
/// use tweedie::{Schedule, ScheduleKind};
///
/// let cosine = Schedule::new(ScheduleKind::Cosine, 1000, 10)?;
/// let own = Schedule::from_alpha_bar(|u| (1.0 - u).powi(3), 1000)?;
/// assert!(own.alpha_bar(500) < cosine.alpha_bar(500));
/// assert_eq!(own.spaced(4), [1000, 750, 500, 250, 0]);
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    alpha_bar: Vec<f64>,
}

/// Vocab-aware schedules made last, by steps, classes and λ: each takes a tenth of a second, and every request that follows one asks for
/// it.
static VOCAB_AWARE: Mutex<Vec<(VocabAwareKey, Schedule)>> = Mutex::new(Vec::new());
/// Steps, classes and the bits of λ.
type VocabAwareKey = (usize, usize, u64);
const MOST_KNOWN: usize = 16;

/// No single step destroys more than this share of the signal.
const MAX_BETA: f64 = 0.999;

impl Schedule {
    /// A schedule of `steps` steps for a vocabulary of `vocab` classes (which only the vocab-aware one looks at).
    pub fn new(kind: ScheduleKind, steps: usize, vocab: usize) -> Result<Schedule> {
        if steps == 0 {
            return Err(Error::Input("a schedule needs at least one step".into()));
        }
        if vocab < 2 && kind == ScheduleKind::VocabAware {
            return Err(Error::Input(format!("the vocab-aware schedule needs at least 2 classes, there are {vocab}")));
        }
        let t = steps as f64;
        match kind {
            ScheduleKind::Linear => {
                let at = |i: usize| if steps == 1 { 0.0 } else { i as f64 / (t - 1.0) };
                let beta = |i: usize| (1e-4 + at(i) * (0.02 - 1e-4)) * (1000.0 / t);
                Ok(Schedule::from_betas((0..steps).map(beta)))
            }
            ScheduleKind::Cosine => {
                let f = |u: f64| ((u + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
                Schedule::from_alpha_bar(f, steps)
            }
            ScheduleKind::Sigmoid => {
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let f = |u: f64| (sigmoid(3.0 - 6.0 * u) - sigmoid(-3.0)) / (sigmoid(3.0) - sigmoid(-3.0));
                Schedule::from_alpha_bar(f, steps)
            }
            ScheduleKind::VocabAware => Schedule::vocab_aware(steps, vocab, 1.0),
        }
    }

    /// The vocab-aware schedule for λ-hot vectors, whose tokens drown earlier: their chance to survive falls linearly in t.
    pub fn vocab_aware(steps: usize, vocab: usize, lambda: f64) -> Result<Schedule> {
        if steps == 0 || vocab < 2 || !(lambda > 0.0 && lambda <= 1.0) {
            let given = format!("{steps} steps, {vocab} classes and λ = {lambda}");
            return Err(Error::Input(format!(
                "the vocab-aware schedule needs a step, 2 classes and λ in (0, 1], there are {given}"
            )));
        }
        let key = (steps, vocab, lambda.to_bits());
        let known = || VOCAB_AWARE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known().iter().find(|(k, _)| *k == key) {
            return Ok(found.clone());
        }
        let rest =
            alpha_bar_at_survival((1..=steps).into_par_iter().map(|i| 1.0 - i as f64 / steps as f64), vocab, lambda);
        let made = Schedule { alpha_bar: std::iter::once(1.0).chain(rest).collect() };
        let mut known = known();
        known.truncate(MOST_KNOWN - 1);
        known.insert(0, (key, made.clone()));
        Ok(made)
    }

    /// Any curve ᾱ(u) that falls all the way from u = 0 (clean) to u = 1 (noise), at T = `steps` steps. It is scaled to begin at
    /// 1, and no single step destroys more than 99.9 % of the signal, so it may end at 0.
    pub fn from_alpha_bar(curve: impl Fn(f64) -> f64, steps: usize) -> Result<Schedule> {
        if steps == 0 {
            return Err(Error::Input("a schedule needs at least one step".into()));
        }
        let at = |i: usize| curve(i as f64 / steps as f64);
        let mut betas = Vec::with_capacity(steps);
        for i in 0..steps {
            let (now, next) = (at(i), at(i + 1));
            if !(now.is_finite() && next >= 0.0 && next < now) {
                let wrong = format!("ᾱ must fall at every step to 0 at the least, but goes from {now} to {next}");
                return Err(Error::Input(format!("{wrong} at step {} of {steps}", i + 1)));
            }
            betas.push(1.0 - next / now);
        }
        Ok(Schedule::from_betas(betas.into_iter()))
    }

    fn from_betas(betas: impl Iterator<Item = f64>) -> Schedule {
        let mut alpha_bar = vec![1.0];
        for beta in betas {
            let last = alpha_bar[alpha_bar.len() - 1];
            alpha_bar.push(last * (1.0 - beta.clamp(0.0, MAX_BETA)));
        }
        Schedule { alpha_bar }
    }

    /// T.
    pub fn steps(&self) -> usize {
        self.alpha_bar.len() - 1
    }

    /// ᾱ_t; t beyond T reads as T.
    pub fn alpha_bar(&self, t: usize) -> f64 {
        self.alpha_bar[t.min(self.steps())]
    }

    /// ᾱ_t / (1 − ᾱ_t); infinite at t = 0, where there is no noise.
    pub fn snr(&self, t: usize) -> f64 {
        let a = self.alpha_bar(t);
        a / (1.0 - a)
    }

    /// √ᾱ_t, the factor of the one-hot vector.
    pub fn signal(&self, t: usize) -> f64 {
        self.alpha_bar(t).sqrt()
    }

    /// √(1 − ᾱ_t), the factor of the noise.
    pub fn spread(&self, t: usize) -> f64 {
        (1.0 - self.alpha_bar(t)).sqrt()
    }

    /// The step t ≥ 1 whose ᾱ is nearest to `alpha_bar`.
    pub fn nearest(&self, alpha_bar: f64) -> usize {
        // ᾱ falls with t: the first step at or below the value, or the one before it.
        let i = self.alpha_bar.partition_point(|a| *a > alpha_bar).clamp(1, self.steps());
        let before = i.saturating_sub(1).max(1);
        if (self.alpha_bar[before] - alpha_bar).abs() <= (self.alpha_bar[i] - alpha_bar).abs() { before } else { i }
    }

    /// S sampling steps from T down, as indices of this schedule, then 0: what the network was trained to see.
    pub fn spaced(&self, count: usize) -> Vec<usize> {
        let (t, s) = (self.steps(), count.max(1));
        // Halves round to even, as Python's round() does in the reference.
        let mut steps: Vec<usize> =
            (0..s).map(|i| (t as f64 * (s - i) as f64 / s as f64).round_ties_even() as usize).collect();
        steps.iter_mut().for_each(|x| *x = (*x).max(1));
        steps.push(0);
        steps
    }

    /// As [`Schedule::spaced`], but the steps follow the noise levels of `along`, mapped to the nearest trained step.
    pub fn spaced_along(&self, along: &Schedule, count: usize) -> Vec<usize> {
        let mut steps: Vec<usize> = along.spaced(count).into_iter().map(|t| self.nearest(along.alpha_bar(t))).collect();
        if let Some(last) = steps.last_mut() {
            *last = 0;
        }
        steps
    }
}

/// ln Φ(x), the log of the normal distribution function.
fn ln_cdf(x: f64) -> f64 {
    if x > -10.0 {
        return (0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)).ln();
    }
    // Asymptotic expansion where erfc underflows.
    -0.5 * x * x - (-x).ln() - 0.5 * (2.0 * std::f64::consts::PI).ln() + (1.0 - 1.0 / (x * x)).ln()
}

/// Step of the integration grid: the trapezoid rule on a smooth, rapidly decaying integrand is accurate to rounding.
const STEP: f64 = 0.02;
const REACH: i64 = 450; // nine standard deviations

/// ∫ φ(z−μ) Φ(z)^{K−1} dz, given ln Φ(μ + i·STEP) by `ln_cdf_at(i)`.
fn integrate(vocab: usize, ln_cdf_at: impl Fn(i64) -> f64) -> f64 {
    let scale = STEP / (2.0 * std::f64::consts::PI).sqrt();
    let term = |i: i64| {
        let d = i as f64 * STEP;
        (-0.5 * d * d + (vocab as f64 - 1.0) * ln_cdf_at(i)).exp()
    };
    scale * (-REACH..=REACH).map(term).sum::<f64>()
}

/// P(argmax y_t = y_0) for K classes at the given SNR.
pub fn identity_probability(snr: f64, vocab: usize) -> f64 {
    let mu = snr.sqrt();
    integrate(vocab, |i| ln_cdf(mu + i as f64 * STEP))
}

/// The ᾱ at which the survival (K·P − 1)/(K − 1) of λ-hot vectors has each of the given values.
fn alpha_bar_at_survival(survival: impl ParallelIterator<Item = f64>, vocab: usize, lambda: f64) -> Vec<f64> {
    // P on a grid of μ, from one table of ln Φ; it rises with μ.
    const TOP: i64 = 1000; // μ = 20: all but certain for any vocabulary
    let table: Vec<f64> = (-REACH..=TOP + REACH).map(|i| ln_cdf(i as f64 * STEP)).collect();
    let p: Vec<f64> =
        (0..=TOP).into_par_iter().map(|m| integrate(vocab, |i| table[(m + i + REACH) as usize])).collect();
    let k = vocab as f64;
    let invert = |s: f64| {
        let target = (1.0 + (k - 1.0) * s) / k;
        let above = p.partition_point(|x| *x < target).clamp(1, TOP as usize);
        // Bracketed within one grid step: a few secant steps solve it.
        let (mut a, mut fa) = ((above - 1) as f64 * STEP, p[above - 1] - target);
        let (mut b, mut fb) = (above as f64 * STEP, p[above] - target);
        for _ in 0..3 {
            if fb == fa {
                break;
            }
            let c = b - fb * (b - a) / (fb - fa);
            (a, fa) = (b, fb);
            (b, fb) = (c, identity_probability(c * c, vocab) - target);
        }
        let snr = b * b / (lambda * lambda);
        (snr / (1.0 + snr)).max(1e-9)
    };
    survival.map(invert).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(kind: ScheduleKind, vocab: usize) -> Schedule {
        Schedule::new(kind, 1000, vocab).unwrap()
    }

    #[test]
    fn every_schedule_falls_from_clean_to_noise() {
        for (_, kind) in KINDS {
            for vocab in [2, 10, 30_522] {
                let s = make(kind, vocab);
                assert_eq!(s.alpha_bar(0), 1.0);
                assert!((1..=1000).all(|t| s.alpha_bar(t) < s.alpha_bar(t - 1)), "{kind} is not monotone");
                assert!(s.alpha_bar(1000) > 0.0 && s.alpha_bar(1000) < 1e-4, "{kind}: {}", s.alpha_bar(1000));
            }
        }
    }

    /// With two classes P = Φ(√(SNR/2)), since the difference of the two coordinates has variance 2.
    #[test]
    fn identity_probability_has_its_closed_form_for_two_classes() {
        for snr in [0.0, 0.1, 1.0, 5.0, 20.0] {
            let want = ln_cdf((snr / 2.0_f64).sqrt()).exp();
            assert!((identity_probability(snr, 2) - want).abs() < 1e-9, "{snr}");
        }
        assert!((identity_probability(0.0, 1000) - 1e-3).abs() < 1e-9);
    }

    #[test]
    fn vocab_aware_survival_is_linear_in_time() {
        for vocab in [10, 1000] {
            let s = make(ScheduleKind::VocabAware, vocab);
            for t in (100..1000).step_by(100) {
                let p = identity_probability(s.snr(t), vocab);
                let survival = (vocab as f64 * p - 1.0) / (vocab as f64 - 1.0);
                assert!((survival - (1.0 - t as f64 / 1000.0)).abs() < 1e-6, "{vocab} {t}: {survival}");
            }
        }
    }

    #[test]
    fn vocab_aware_survival_is_linear_for_lambda_hot_vectors_too() {
        let (vocab, lambda) = (50, 0.4);
        let s = Schedule::vocab_aware(1000, vocab, lambda).unwrap();
        for t in (100..1000).step_by(100) {
            let p = identity_probability(lambda * lambda * s.snr(t), vocab);
            let survival = (vocab as f64 * p - 1.0) / (vocab as f64 - 1.0);
            assert!((survival - (1.0 - t as f64 / 1000.0)).abs() < 1e-6, "{t}: {survival}");
        }
        assert_eq!(Schedule::vocab_aware(1000, vocab, 1.0).unwrap(), make(ScheduleKind::VocabAware, vocab));
        assert!(Schedule::vocab_aware(1000, vocab, 0.0).is_err() && Schedule::vocab_aware(0, vocab, 1.0).is_err());
    }

    /// The table of the method's notes: share of the cosine schedule where the token is clean, decided, or noise.
    #[test]
    fn share_of_time_that_decides_shrinks_with_the_vocabulary() {
        for (vocab, clean, noise) in [(27, 0.13, 0.32), (1000, 0.10, 0.70), (30_522, 0.09, 0.79)] {
            let s = make(ScheduleKind::Cosine, vocab);
            let p: Vec<f64> = (1..=1000).map(|t| identity_probability(s.snr(t), vocab)).collect();
            let share = |f: &dyn Fn(f64) -> bool| p.iter().filter(|p| f(**p)).count() as f64 / 1000.0;
            assert!((share(&|p| p > 0.99) - clean).abs() < 0.01, "{vocab}");
            assert!((share(&|p| p < 0.1) - noise).abs() < 0.01, "{vocab}");
        }
    }

    #[test]
    fn any_falling_curve_is_a_schedule_and_no_other() {
        let cosine = |u: f64| ((u + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
        assert_eq!(Schedule::from_alpha_bar(cosine, 1000).unwrap(), make(ScheduleKind::Cosine, 10));
        let line = Schedule::from_alpha_bar(|u| 1.0 - u, 100).unwrap();
        assert!((line.alpha_bar(30) - 0.7).abs() < 1e-12 && line.alpha_bar(100) > 0.0);
        let said = |f: fn(f64) -> f64| Schedule::from_alpha_bar(f, 10).unwrap_err().to_string();
        assert!(said(|u| u).contains("step 1 of 10"), "{}", said(|u| u));
        assert!(said(|u| 0.5 - u).contains("step 6 of 10"), "{}", said(|u| 0.5 - u));
        assert!(said(|_| f64::NAN).contains("NaN"));
        assert!(Schedule::from_alpha_bar(|u| 1.0 - u, 0).is_err());
    }

    #[test]
    fn spaced_steps_are_those_of_the_reference() {
        let s = make(ScheduleKind::Cosine, 10);
        assert_eq!(s.spaced(4), [1000, 750, 500, 250, 0]);
        assert_eq!(s.spaced(3), [1000, 667, 333, 0]);
        assert_eq!(s.spaced(1), [1000, 0]);
        assert_eq!(s.spaced(1000).len(), 1001);
        assert!(s.spaced(3000)[..3000].iter().all(|t| *t >= 1));
    }

    #[test]
    fn a_foreign_schedule_maps_to_the_nearest_noise_level() {
        let (train, along) = (make(ScheduleKind::Cosine, 1000), make(ScheduleKind::VocabAware, 1000));
        for (t, a) in train.spaced_along(&along, 20).into_iter().zip(along.spaced(20)).take(20) {
            let best = (1..=1000).min_by(|&x, &y| {
                let d = |t: usize| (train.alpha_bar(t) - along.alpha_bar(a)).abs();
                d(x).total_cmp(&d(y))
            });
            assert_eq!(Some(t), best);
        }
        assert_eq!(train.spaced_along(&train, 7), train.spaced(7));
    }
}
