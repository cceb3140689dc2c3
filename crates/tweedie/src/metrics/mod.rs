//! How good predictions are: top-k, per class, calibration ([`Classification`]); for captions [`captions::score`], [`diversity()`] and
//! [`clip`].

mod auroc;
pub mod captions;
pub mod clip;
mod diversity;
pub mod files;
mod ngrams;
pub mod ptb;
pub mod tokenized;

pub use auroc::auroc;
pub use diversity::{Diversity, diversity};

use serde::Serialize;

use crate::data::Skipped;
use crate::sample::{argmax, softmax};

/// Bins of the calibration curve.
const BINS: usize = 15;

/// Collects predictions of a classifier.
///
/// ```
/// use tweedie::metrics::Classification;
///
/// let mut seen = Classification::new(3);
/// seen.add(&[2.0, 0.0, 0.0, 0.0, 0.0, 2.0], &[0, 1]); // logits of two images, and what they are
/// let report = seen.report();
/// assert_eq!((report.examples, report.top1, report.per_class), (2, 0.5, vec![Some(1.0), Some(0.0), None]));
/// ```
#[derive(Clone, Debug)]
pub struct Classification {
    classes: usize,
    /// Counts of (true, predicted), row by row.
    confusion: Vec<usize>,
    /// By class, examples without an answer: logits that are not finite.
    unanswered: Vec<usize>,
    top5: usize,
    nll: f64,
    bins: [Bin; BINS],
    /// Examples that could not be read.
    pub skipped: Skipped,
    /// How sure each prediction was, and whether it was right.
    certainties: Vec<(f64, bool)>,
}

/// What one prediction came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scored {
    label: usize,
    /// The likeliest class; none where logits are not finite.
    best: Option<usize>,
    certainty: f64,
    nll: f64,
    top5: bool,
}

impl Scored {
    /// Of the logits of an example; none where its label is not one of their classes.
    pub fn of(l: &[f32], label: u32) -> Option<Scored> {
        let label = label as usize;
        let p = softmax(l);
        let nll = -p.get(label)?.max(1e-30).ln(); // of what is not a number, that of the least likely
        if p.iter().any(|p| p.is_nan()) {
            return Some(Scored { label, best: None, certainty: 0.0, nll, top5: false });
        }
        let best = argmax(&p);
        // Ties count against the prediction: a constant output is not right five times in five.
        let ahead = l.iter().enumerate().filter(|&(i, x)| i != label && *x >= l[label]).count();
        Some(Scored { label, best: Some(best), certainty: p[best], nll, top5: ahead < 5 })
    }

    /// As numbers, for another rank.
    pub fn numbers(self) -> [f64; 5] {
        let best = self.best.map_or(-1.0, |b| b as f64);
        [self.label as f64, best, self.certainty, self.nll, f64::from(u8::from(self.top5))]
    }

    /// Of such numbers.
    pub fn from_numbers([label, best, certainty, nll, top5]: [f64; 5]) -> Scored {
        let best = (best >= 0.0).then_some(best as usize);
        Scored { label: label as usize, best, certainty, nll, top5: top5 > 0.0 }
    }
}

/// Predictions whose confidence falls into one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bin {
    /// How many.
    pub count: usize,
    /// Sum of their confidences.
    pub confidence: f64,
    /// How many were right.
    pub correct: usize,
}

/// The summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Examples.
    pub examples: usize,
    /// Of these, how many got logits that are not finite: never right, whatever the class.
    #[serde(skip_serializing_if = "is_zero")]
    pub unanswered: usize,
    /// Share of right predictions.
    pub top1: f64,
    /// Share with the truth among the five most likely (or all, if there are fewer classes).
    pub top5: f64,
    /// Mean negative log-likelihood, nats.
    pub nll: f64,
    /// Expected calibration error over 15 equal bins.
    pub ece: f64,
    /// The chance that a right prediction is surer than a wrong one ([`auroc`]); `None` where there are none of either.
    pub auroc: Option<f64>,
    /// Accuracy of each class; `None` where it has no example.
    pub per_class: Vec<Option<f64>>,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

impl Classification {
    /// Nothing counted yet.
    pub fn new(classes: usize) -> Classification {
        Classification {
            classes,
            confusion: vec![0; classes * classes],
            unanswered: vec![0; classes],
            top5: 0,
            nll: 0.0,
            bins: [Bin::default(); BINS],
            skipped: Skipped::default(),
            certainties: Vec::new(),
        }
    }

    /// Count a batch: logits \[B·V\] and true classes. What has no partner (more labels than rows, or the other way round)
    /// and examples of classes that there are not are left out.
    pub fn add(&mut self, logits: &[f32], labels: &[u32]) {
        let rows = logits.chunks_exact(self.classes.max(1)).zip(labels);
        rows.filter_map(|(l, label)| Scored::of(l, *label)).for_each(|s| self.note(s));
    }

    /// Count one example.
    pub(crate) fn note(&mut self, s: Scored) {
        if s.label >= self.classes || s.best.is_some_and(|b| b >= self.classes) {
            return;
        }
        self.nll += s.nll;
        let Some(best) = s.best else {
            self.unanswered[s.label] += 1;
            return;
        };
        self.top5 += s.top5 as usize;
        self.confusion[s.label * self.classes + best] += 1;
        let bin = &mut self.bins[((s.certainty * BINS as f64) as usize).min(BINS - 1)];
        bin.count += 1;
        bin.confidence += s.certainty;
        bin.correct += (best == s.label) as usize;
        self.certainties.push((s.certainty, best == s.label));
    }

    /// Counts of (true, predicted), row by row.
    pub fn confusion(&self) -> &[usize] {
        &self.confusion
    }

    /// The calibration bins.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Sum up.
    pub fn report(&self) -> Report {
        let unanswered: usize = self.unanswered.iter().sum();
        let n = self.confusion.iter().sum::<usize>() + unanswered;
        let total = n.max(1) as f64;
        let right = |c: usize| self.confusion[c * self.classes + c];
        let of =
            |c: usize| self.confusion[c * self.classes..][..self.classes].iter().sum::<usize>() + self.unanswered[c];
        let gap = |b: &Bin| (b.confidence - b.correct as f64).abs();
        Report {
            examples: n,
            unanswered,
            top1: (0..self.classes).map(right).sum::<usize>() as f64 / total,
            top5: self.top5 as f64 / total,
            nll: self.nll / total,
            ece: self.bins.iter().map(gap).sum::<f64>() / total,
            auroc: auroc(&self.certainties),
            per_class: (0..self.classes).map(|c| (of(c) > 0).then(|| right(c) as f64 / of(c) as f64)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_hand() {
        let mut m = Classification::new(3);
        // Right with p = 1/(1+2e⁻²), wrong, right.
        m.add(&[2.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 5.0], &[0, 2, 2]);
        let r = m.report();
        assert_eq!((r.examples, r.top1, r.top5), (3, 2.0 / 3.0, 1.0));
        assert_eq!(r.per_class, vec![Some(1.0), None, Some(0.5)]);
        let p = |a: f64| a.exp() / (a.exp() + 2.0);
        let nll = -(p(2.0).ln() + ((1.0 - p(3.0)) / 2.0).ln() + p(5.0).ln()) / 3.0;
        assert!((r.nll - nll).abs() < 1e-6);
        // Each prediction alone in its bin: |confidence − correct| averaged.
        let ece = ((1.0 - p(2.0)) + p(3.0) + (1.0 - p(5.0))) / 3.0;
        assert!((r.ece - ece).abs() < 1e-6, "{} {ece}", r.ece);
        assert_eq!(m.confusion(), [1, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(r.auroc, Some(0.5), "of the two that are right, one is surer than the wrong one");
    }

    #[test]
    fn what_is_not_a_number_is_never_right() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut m = Classification::new(3);
            m.add(&[bad; 3], &[0]);
            m.add(&[bad, 0.0, 0.0, 0.0, 9.0, 0.0], &[0, 1]);
            let r = m.report();
            assert_eq!((r.examples, r.unanswered, r.top1, r.top5), (3, 2, 1.0 / 3.0, 1.0 / 3.0));
            assert_eq!(r.per_class, vec![Some(0.0), Some(1.0), None]);
            assert!(r.nll.is_finite() && r.nll > 40.0 && r.ece.is_finite());
        }
    }

    #[test]
    fn a_constant_output_is_not_top_five() {
        let mut m = Classification::new(10);
        m.add(&[0.0; 10], &[0]);
        assert_eq!(m.report().top5, 0.0);
    }
}
