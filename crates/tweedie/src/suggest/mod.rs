//! Settings for own data: [`suggest`] looks at what lies at a path and at the machine, times a few training steps, and gives a recipe
//! whose every setting has its reason, and whose epochs fit a time.
//!
//! | | |
//! |---|---|
//! | `look.rs` | data → [`Facts`]: sizes, colours, words, lengths |
//! | `choose.rs` | [`Facts`] and [`Means`] → [`Suggestion`], the same everywhere |
//! | `size.rs` | sizes of networks, and what they cost |
//! | `pace.rs` | real steps → [`Pace`] |
//! | `fit.rs` | [`Pace`] and a time → epochs and what depends on them |
//! | `recipe.rs` | [`Suggestion`] → commented TOML |

mod choose;
mod fit;
mod look;
mod pace;
mod recipe;
mod size;
#[cfg(test)]
mod tests;

pub use choose::{Means, choose};
pub use fit::{Forecast, fit};
pub use look::{Facts, ImageFacts, Opened, TextFacts};
pub use pace::Pace;
pub use recipe::{Setting, Suggestion};

use std::time::Instant;

use tweedie_engine::{Device, cpu};

use crate::data::Task;
use crate::error::Result;

/// Multiplications and additions in a second of training, to begin with; steps are timed then.
const CPU_THREAD: f64 = 4e10;
const GPU: f64 = 2e13;
/// Times that a size is timed and another one chosen by that.
const ROUNDS: usize = 3;
/// Share of the time that steps are timed for, to choose a size and to count epochs.
const TRYING: f64 = 0.005;
const TIMING: f64 = 0.02;

/// A recipe for data, and what it will do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was seen of the data.
    pub facts: Facts,
    /// The settings with their reasons.
    pub suggestion: Suggestion,
    /// What a training by them does and takes.
    pub forecast: Forecast,
}

/// What to suggest settings for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Folder or file of the data.
    pub path: &'a str,
    /// What they are for; none: as looking suggests.
    pub task: Option<Task>,
    /// Settings that are to be as the user says, as `"train.batch=32"`.
    pub sets: &'a [String],
    /// Seconds for the training.
    pub seconds: f64,
    /// Whether looking and timing are to fit into these too.
    pub all_in: bool,
}

/// Look at data and machine, and choose settings for a training that takes so long.
pub fn suggest(request: &Request, device: &Device) -> Result<Plan> {
    let begin = Instant::now();
    let opened = Opened::open(request.path, request.task)?;
    let opening = begin.elapsed().as_secs_f64();
    let facts = Facts::of(request.path, &opened)?;
    let gpu = matches!(device, Device::Cuda(_));
    let speed = if gpu { GPU } else { CPU_THREAD * cpu::threads() as f64 };
    let mut means = Means { speed, gpu, seconds: request.seconds };
    let mut suggestion = choose(&facts, &means)?;
    for _ in 0..ROUNDS {
        let config = suggestion.config(request.sets)?;
        let step = Pace::measure(&config, &opened, device, TRYING * request.seconds)?.step;
        let examples = config.train.batch as f64;
        means.speed = examples * size::work(&config, choose::vocabulary(&facts, &means)) / step;
        let next = choose(&facts, &means)?;
        if next == suggestion {
            break;
        }
        suggestion = next;
    }
    let config = suggestion.config(request.sets)?;
    let pace = Pace::measure(&config, &opened, device, TIMING * request.seconds)?;
    // The data are opened once more, to be trained on.
    let spent = opening + pace.setup + if request.all_in { begin.elapsed().as_secs_f64() } else { 0.0 };
    let forecast = fit(&mut suggestion, &pace, (request.seconds - spent).max(0.5 * request.seconds), request.sets)?;
    Ok(Plan { facts, suggestion, forecast })
}
