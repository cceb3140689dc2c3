//! What a training tells while it goes on.

use std::fmt;

use serde::{Serialize, Serializer};

/// A number that models are compared by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// What it is called.
    pub name: &'static str,
    /// The number.
    pub value: f64,
    /// Whether more is better.
    pub higher_is_better: bool,
}

impl Metric {
    /// Name of [`Metric::top1`].
    pub const TOP1: &'static str = "top-1";
    /// Name of [`Metric::cider_d`].
    pub const CIDER_D: &'static str = "CIDEr-D";
    /// Name of [`Metric::bits_per_token`].
    pub const BITS_PER_TOKEN: &'static str = "bits per token";

    /// Share of images whose most likely class is theirs.
    pub fn top1(value: f64) -> Metric {
        Metric { name: Metric::TOP1, value, higher_is_better: true }
    }

    /// Of captions against their references.
    pub fn cider_d(value: f64) -> Metric {
        Metric { name: Metric::CIDER_D, value, higher_is_better: true }
    }

    /// Of text, an upper bound.
    pub fn bits_per_token(value: f64) -> Metric {
        Metric { name: Metric::BITS_PER_TOKEN, value, higher_is_better: false }
    }

    /// Whether it is at least as good as `other`, which measures the same. What is not a number is worse than any.
    pub fn is_as_good_as(&self, other: &Metric) -> bool {
        self.value.is_finite() && (other.value.is_nan() || self.score() >= other.score())
    }

    /// A number of which more is always better: what checkpoints note.
    pub fn score(&self) -> f64 {
        if self.higher_is_better { self.value } else { -self.value }
    }

    /// The same metric with the value that has this score.
    pub fn with_score(self, score: f64) -> Metric {
        Metric { value: if self.higher_is_better { score } else { -score }, ..self }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.name {
            Metric::TOP1 => write!(f, "{} {:.2} %", self.name, 100.0 * self.value),
            _ => write!(f, "{} {:.3}", self.name, self.value),
        }
    }
}

/// What an evaluation of the validation split came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Steps done.
    pub step: usize,
    /// Epochs done.
    pub epoch: f64,
    /// What checkpoints are chosen by, with the raw weights.
    pub score: Metric,
    /// The same with the averaged weights.
    pub ema: Option<Metric>,
    /// The best so far.
    pub best: Metric,
    /// Of classes: negative log-likelihood, by the better weights.
    pub nll: Option<f64>,
    /// Of captions: share that is one of its references, by the better weights.
    pub exact: Option<f64>,
    /// Images or sequences it looked at.
    pub examples: usize,
}

/// As a line of `metrics.jsonl`: of classes by `top1`, of sequences by `metric` and `score`.
impl Serialize for Evaluation {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(tag = "event", rename_all = "kebab-case")]
        enum Line {
            Eval {
                step: usize,
                epoch: f64,
                top1: f64,
                ema_top1: Option<f64>,
                nll: Option<f64>,
                best: f64,
                images: usize,
            },
            EvalText {
                step: usize,
                epoch: f64,
                metric: &'static str,
                score: f64,
                ema_score: Option<f64>,
                exact: Option<f64>,
                best: f64,
                examples: usize,
            },
        }
        let &Evaluation { step, epoch, score, ema, best, nll, exact, examples } = self;
        let (ema, best) = (ema.map(|m| m.value), best.value);
        match score.name {
            Metric::TOP1 => {
                Line::Eval { step, epoch, top1: score.value, ema_top1: ema, nll, best, images: examples }.serialize(to)
            }
            metric => Line::EvalText { step, epoch, metric, score: score.value, ema_score: ema, exact, best, examples }
                .serialize(to),
        }
    }
}

/// What a training looks like from outside while it goes on. It reads as a line of text, and as one of `metrics.jsonl`.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Event {
    /// Every so many optimizer steps.
    Step(StepEvent),
    /// After an evaluation.
    Eval(Evaluation),
    /// Examples that could not be used or were cut, when there are others than last told.
    Skipped(SkippedEvent),
    /// Something went wrong, and the run goes on.
    Warning(WarningEvent),
    /// A checkpoint was written.
    Saved(SavedEvent),
}

/// One step.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "step")]
pub struct StepEvent {
    /// Steps done.
    pub step: usize,
    /// Epochs done, as a fraction.
    pub epoch: f64,
    /// Loss of this step's batch.
    pub loss: f32,
    /// Learning rate.
    pub lr: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Steps without a finite gradient so far.
    pub skipped: u32,
    /// Images per second since the last event, without evaluations and checkpoints.
    pub images_per_second: f64,
    /// Share of that time spent waiting for data.
    pub waited: f64,
    /// Seconds to the end of the run at a smoothed speed, with the evaluations and checkpoints to come.
    pub eta: f64,
}

/// Examples that were left out or cut.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "skipped")]
pub struct SkippedEvent {
    /// Steps done.
    pub step: usize,
    /// Whether they are of the validation split.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub validation: bool,
    /// How many of that split so far.
    pub examples: usize,
    /// Texts cut to the length of a sequence so far, counted each time.
    pub cut: u64,
    /// Where and why, all of the new ones.
    pub errors: Vec<String>,
    /// Where texts were cut: the first few of the run, each once.
    pub cut_at: Vec<String>,
}

/// Something that went wrong without ending the run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "warning")]
pub struct WarningEvent {
    /// Steps done.
    pub step: usize,
    /// What, in words.
    pub message: String,
}

/// A checkpoint.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "saved")]
pub struct SavedEvent {
    /// Steps done.
    pub step: usize,
    /// Where.
    pub path: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Event::Step(s) => {
                write!(f, "epoch {:.2}, step {}: loss {:.4}, |g| {:.2}", s.epoch, s.step, s.loss, s.grad_norm)
            }
            Event::Eval(e) => {
                write!(f, "epoch {:.2}: {} on {} examples", e.epoch, e.ema.unwrap_or(e.score), e.examples)?;
                write!(f, ", best {}", e.best)
            }
            Event::Skipped(s) => {
                let kind = if s.validation { "validation " } else { "" };
                write!(f, "{} {kind}examples left out so far, {} cut", s.examples, s.cut)
            }
            Event::Warning(w) => write!(f, "warning: {}", w.message),
            Event::Saved(s) => write!(f, "step {} saved to {}", s.step, s.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_higher_or_lower_by_metric() {
        assert!(Metric::top1(0.9).is_as_good_as(&Metric::top1(0.9)));
        assert!(!Metric::top1(0.8).is_as_good_as(&Metric::top1(0.9)));
        assert!(Metric::bits_per_token(1.4).is_as_good_as(&Metric::bits_per_token(1.5)));
        let (bits, none) = (Metric::bits_per_token(1.4), Metric::bits_per_token(f64::NAN));
        assert!(bits.is_as_good_as(&none) && !none.is_as_good_as(&bits) && !none.is_as_good_as(&none));
        assert_eq!(bits.with_score(bits.score()), bits);
    }

    /// Lines of earlier versions are read by the same names.
    #[test]
    fn lines_of_metrics_keep_their_form() {
        let eval = Evaluation {
            step: 3,
            epoch: 1.5,
            score: Metric::top1(0.25),
            ema: None,
            best: Metric::top1(0.5),
            nll: Some(2.0),
            exact: None,
            examples: 8,
        };
        assert_eq!(
            serde_json::to_string(&Event::Eval(eval.clone())).unwrap(),
            r#"{"event":"eval","step":3,"epoch":1.5,"top1":0.25,"ema_top1":null,"nll":2.0,"best":0.5,"images":8}"#
        );
        let bits = Metric::bits_per_token;
        let text = Evaluation { score: bits(2.0), ema: Some(bits(1.5)), best: bits(1.5), nll: None, ..eval };
        assert_eq!(
            serde_json::to_string(&Event::Eval(text)).unwrap(),
            r#"{"event":"eval-text","step":3,"epoch":1.5,"metric":"bits per token","score":2.0,"ema_score":1.5,"exact":null,"best":1.5,"examples":8}"#
        );
        let saved = Event::Saved(SavedEvent { step: 1, path: "p".into() });
        assert_eq!(serde_json::to_string(&saved).unwrap(), r#"{"event":"saved","step":1,"path":"p"}"#);
    }
}
