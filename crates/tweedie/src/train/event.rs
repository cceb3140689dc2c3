//! What a run tells while it goes on.

use serde::Serialize;

/// What a run looks like from outside while it goes on.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// Every so many optimizer steps.
    Step {
        /// Steps done.
        step: usize,
        /// Epochs done, as a fraction.
        epoch: f64,
        /// Loss of this step's batch.
        loss: f32,
        /// Learning rate.
        lr: f32,
        /// Norm of the gradient before clipping.
        grad_norm: f32,
        /// Steps without a finite gradient so far.
        skipped: u32,
        /// Images per second since the last event.
        images_per_second: f64,
        /// Share of that time spent waiting for data.
        waited: f64,
        /// Seconds to the end of the run at this speed.
        eta: f64,
    },
    /// After an evaluation.
    Eval {
        /// Steps done.
        step: usize,
        /// Epochs done.
        epoch: f64,
        /// Top-1 with the raw weights.
        top1: f64,
        /// Top-1 with the averaged weights.
        ema_top1: Option<f64>,
        /// Negative log-likelihood of the better of the two.
        nll: f64,
        /// Best top-1 so far.
        best: f64,
        /// Images it looked at.
        images: usize,
    },
    /// After an evaluation of sequences.
    EvalText {
        /// Steps done.
        step: usize,
        /// Epochs done.
        epoch: f64,
        /// What the score is: `CIDEr-D` of captions, or `bits per token` of text (an upper bound).
        metric: &'static str,
        /// Score of the raw weights.
        score: f64,
        /// Score of the averaged weights.
        ema_score: Option<f64>,
        /// Share of captions that are one of their references, by the better of the two.
        exact: Option<f64>,
        /// Best score so far.
        best: f64,
        /// Sequences it looked at.
        examples: usize,
    },
    /// Examples that could not be used or were cut, when there are others than last told.
    Skipped {
        /// Steps done.
        step: usize,
        /// How many so far.
        examples: usize,
        /// Texts cut to the length of a sequence so far, counted each time.
        cut: u64,
        /// Where and why, all of the new ones.
        errors: Vec<String>,
        /// Where texts were cut: the first few of the run, each once.
        cut_at: Vec<String>,
    },
    /// A checkpoint was written.
    Saved {
        /// Steps done.
        step: usize,
        /// Where.
        path: String,
    },
}
