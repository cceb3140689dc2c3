//! A trained model over whole data sets: classes, captions with their references, likelihood bounds. What is measured of the
//! results is in [`metrics`](crate::metrics).

mod among;
mod classes;
mod texts;

pub use among::{bounds_among, captions_among, classes_among};
pub use classes::{
    Posteriors, calibrate, class_batches, classes, classes_by, classes_quietly, direct_path, posteriors,
};
pub use texts::{Bounded, Captions, DRAWS, bounds, bounds_along, bounds_until, captions, captions_until, samples};

use std::ops::Range;

use crate::config::Config;
use crate::data::{Loader, LoaderConfig, Part, Position};
use crate::error::{Error, Result};

/// Asked before each batch: true ends the work with [`Error::Interrupted`].
pub type Stop<'a> = &'a dyn Fn() -> bool;

fn go_on(stop: Stop) -> Result<()> {
    if stop() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Examples that will be looked at: at most `limit` of those `there` are (0: all).
fn how_many(there: usize, limit: usize) -> usize {
    if limit == 0 { there } else { there.min(limit) }
}

/// There was no example to look at.
fn nothing_read(loader: &Loader) -> Error {
    let skipped = loader.skipped();
    match skipped.errors.values().next() {
        Some(one) => Error::Input(format!("none of {} examples could be read; one of them: {one}", skipped.count())),
        None => Error::Input("there is nothing to evaluate".into()),
    }
}

/// Every example once, in order.
fn in_order(config: &Config, batch: usize) -> LoaderConfig {
    LoaderConfig { threads: config.data.workers, on_corrupt: config.data.corrupt.into(), ..LoaderConfig::eval(batch) }
}

/// The batches of `part`, of those that hold the first `limit` of `there` examples (0: all). Whole ones: what is computed of an example may
/// depend on how many are computed with it.
fn batches_of(part: Part, there: usize, limit: usize, size: usize) -> Range<usize> {
    part.of(how_many(there, limit).div_ceil(size.max(1)))
}

/// A loader's settings, from such a batch on.
fn from_batch(config: LoaderConfig, first: usize) -> LoaderConfig {
    LoaderConfig { start: Position { epoch: 0, batch: first as u32 }, ..config }
}
