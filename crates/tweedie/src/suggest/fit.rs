//! Epochs that fit a time, and what depends on their number: warm-up, averaging, evaluations, checkpoints.

use super::pace::Pace;
use super::recipe::{Suggestion, decimals};
use crate::config::Config;
use crate::error::Result;

/// Evaluations of a run, if its epochs are so many.
const EVALUATIONS: usize = 8;
/// Share of the time that all of them may take.
const EVALUATING: f64 = 0.1;
/// Below so many epochs the last one would be cut off too roughly: fewer examples make it whole.
const FEW: f64 = 10.0;
/// More passes than this over the same examples teach nothing new.
const MOST_EPOCHS: f64 = 2000.0;
/// Examples of an evaluation, at least: fewer tell nothing.
const LEAST_EVALUATED: usize = 64;

/// A checkpoint shows what the model says to a few examples, which costs as much as evaluating about so many.
const PREVIEWED: usize = 32;

/// What a run will do and take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Passes over the data.
    pub epochs: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// Evaluations.
    pub evaluations: usize,
    /// Seconds in all.
    pub seconds: f64,
}

/// Add what fits into `seconds` at this pace to the settings; `sets` are what the user changes in them.
pub fn fit(s: &mut Suggestion, pace: &Pace, seconds: f64, sets: &[String]) -> Result<Forecast> {
    let config = s.config(sets)?;
    let batch = config.train.batch;
    let batches = (pace.examples / batch.max(1)).max(1);
    let evaluated = evaluated(pace, seconds);
    let one = (evaluated + PREVIEWED) as f64 * pace.evaluated;
    // An evaluation at every epoch of few, or so many of many.
    let usable = |evaluations: f64| (seconds - evaluations * one).max(0.0);
    let epochs = |time: f64| (time / batches as f64 - pace.first_epoch) / pace.step;
    let guess = epochs(usable(EVALUATIONS as f64));
    let time = if guess < EVALUATIONS as f64 { usable(guess.ceil().max(1.0)) } else { usable(EVALUATIONS as f64) };
    let (epochs, batches) = whole_epochs(s, epochs(time), time, batches, &config, pace);
    let every = epochs.div_ceil(EVALUATIONS);
    let evaluations = epochs.div_ceil(every);
    let steps = epochs * batches;
    let total = steps as f64 * pace.step + batches as f64 * pace.first_epoch + evaluations as f64 * one;
    s.set("train.epochs", epochs, format!("measured: a step takes {}", milliseconds(pace.step)));
    let warmup = (0.05 * epochs as f64).max(1.0 / batches as f64);
    s.set("train.warmup_epochs", decimals(warmup), "a twentieth of the run");
    let horizon = (0.03 * steps as f64).max(2.0);
    s.set("train.ema", decimals((1.0 - 1.0 / horizon).min(0.9998)), "averages over the last few of a hundred steps");
    s.set("train.eval_every", every, format!("{evaluations} evaluations"));
    if evaluated < pace.val {
        let why = format!(
            "of {}: all evaluations together take {:.0} % of the time",
            pace.val,
            100.0 * evaluations as f64 * one / total
        );
        s.set("train.eval_images", evaluated, why);
    }
    s.set("train.checkpoint_every", every, "with each evaluation");
    let log = ((2.0 / pace.step) as usize).clamp(1, (steps / 20).max(1));
    s.set("train.log_every", log, "a line every two seconds");
    Ok(Forecast { epochs, steps, evaluations, seconds: total })
}

/// Whole epochs where `x` fit into `time` seconds, and batches of each.
fn whole_epochs(s: &mut Suggestion, x: f64, time: f64, batches: usize, config: &Config, pace: &Pace) -> (usize, usize) {
    if x >= FEW {
        return (x.min(MOST_EPOCHS) as usize, batches);
    }
    let epochs = x.ceil().max(1.0);
    // What is left out is not read either.
    let fewer = ((time / (epochs * pace.step + pace.first_epoch)) as usize).clamp(1, batches);
    let share = fewer as f64 / batches as f64;
    if share > 0.97 {
        return (epochs as usize, batches);
    }
    // A stream of text is limited by its pieces, whatever their length.
    let limit = if pace.rows == pace.examples {
        fewer * config.train.batch
    } else {
        (pace.rows as f64 * share).ceil() as usize
    };
    let why = format!("of {}: {epochs} epochs of so many fit the time", pace.rows);
    s.set("data.train_limit", limit, why);
    (epochs as usize, fewer)
}

/// Examples of one evaluation.
fn evaluated(pace: &Pace, seconds: f64) -> usize {
    let affordable = EVALUATING * seconds / EVALUATIONS as f64 / pace.evaluated.max(1e-9);
    pace.val.min((affordable as usize).max(LEAST_EVALUATED))
}

fn milliseconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{:.1} ms", 1e3 * seconds) } else { format!("{:.2} s", seconds) }
}
