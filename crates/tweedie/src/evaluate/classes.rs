//! A classifier over a whole data set.

use std::collections::BTreeMap;

use tweedie_engine::{Device, Tape, Tensor};

use super::{batches_of, from_batch, in_order, nothing_read};
use crate::calibration::Calibration;
use crate::config::{Config, SampleConfig, Weights};
use crate::data::{self, Batch, Loader, Part, Skipped, Source};
use crate::error::{Error, Result};
use crate::metrics::Classification;
use crate::model::Pass;
use crate::progress::{self, Work};
use crate::sample::{ClassSampler, Posterior, Prediction};
use crate::trained::Trained;

/// Classify every image of `source` (at most `limit`, 0: all); `each` sees every batch's sampling steps.
///
/// ```
/// use tweedie::engine::DType;
/// use tweedie::model::Model;
/// use tweedie::{Config, Dataset, Device, Trained, evaluate};
///
/// let config = Config::preset("digits")?.with("model.classes", 10)?.with("sample.steps", 2)?;
/// let model = Model::new(&config.model, config.sizes(), &Device::Cpu, DType::F32, 0)?;
/// let (digits, mut steps) = (Dataset::embedded("digits")?, 0);
/// let trained = Trained::new(&config, model, digits.class_names.clone(), None)?;
/// let seen = evaluate::classes(&trained, digits.val()?, &config, &config.sample, 64, |_| steps += 1)?;
/// assert_eq!((seen.report().examples, steps), (64, 2)); // one batch, in two steps
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn classes(
    t: &Trained,
    source: &Source,
    config: &Config,
    sample: &SampleConfig,
    limit: usize,
    mut each: impl FnMut(&Prediction),
) -> Result<Classification> {
    let sampler = ClassSampler::new(t, sample)?;
    classes_by(t, source, config, limit, |images, ids| sampler.watched(images, ids, &mut each))
}

/// As [`classes`], without a look at the steps: on a GPU faster, with the same result.
pub fn classes_quietly(
    t: &Trained,
    source: &Source,
    config: &Config,
    sample: &SampleConfig,
    limit: usize,
) -> Result<Classification> {
    let sampler = ClassSampler::new(t, sample)?;
    classes_by(t, source, config, limit, |images, ids| sampler.logits(images, ids))
}

/// As [`classes`], by anything that gives logits \[B·V\] for images and the ids of their noise.
pub fn classes_by(
    t: &Trained,
    source: &Source,
    config: &Config,
    limit: usize,
    mut logits: impl FnMut(&Tensor, &[u32]) -> Result<Vec<f32>>,
) -> Result<Classification> {
    let mut metrics = Classification::new(t.model.sizes().vocab);
    metrics.skipped = class_batches(t, source, config, limit, |images, batch| {
        metrics.add(&logits(images, &batch.indices)?, &batch.labels);
        Ok(())
    })?;
    Ok(metrics)
}

/// As [`classes`], by the direct path alone (`model.denoiser.direct`), without any denoising; none where the model has no such path.
pub fn direct_path(t: &Trained, source: &Source, config: &Config, limit: usize) -> Result<Option<Classification>> {
    let logits = |images: &Tensor| -> Result<Option<Vec<f32>>> {
        let (tape, m) = (Tape::inference(), &t.model);
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let logits = m.direct_logits(&p, images)?;
        Ok(logits.map(|l| l.value().to_vec()).transpose()?)
    };
    if !t.model.has_direct_path() {
        return Ok(None);
    }
    classes_by(t, source, config, limit, |images, _| Ok(logits(images)?.unwrap_or_default())).map(Some)
}

/// What the model's posterior says of images, at its own temperature, as logits.
#[derive(Clone, Debug, Default)]
pub struct Posteriors {
    /// Number of each image in its source.
    pub indices: Vec<u32>,
    /// Its class.
    pub labels: Vec<u32>,
    /// Its logits, a row each.
    pub logits: Vec<f32>,
    /// What could not be read, by number.
    pub failed: BTreeMap<u32, String>,
}

impl Posteriors {
    /// Scores, of so many classes.
    pub fn scores(&self, classes: usize) -> Classification {
        let mut metrics = Classification::new(classes);
        metrics.add(&self.logits, &self.labels);
        metrics
    }
}

/// Ask for the [`Posterior`] of every image of `source` (at most `limit`, 0: all), until `stop` says so.
pub fn posteriors(
    t: &Trained,
    source: &Source,
    config: &Config,
    limit: usize,
    stop: super::Stop,
) -> Result<Posteriors> {
    let posterior = Posterior::new(t)?;
    let mut all = Posteriors::default();
    let skipped = class_batches(t, source, config, limit, |images, batch| {
        super::go_on(stop)?;
        all.logits.extend(posterior.logits(images)?);
        all.labels.extend(&batch.labels);
        all.indices.extend(&batch.indices);
        Ok(())
    })?;
    Ok(Posteriors { failed: skipped.errors, ..all })
}

/// Held-out images that are enough for one number.
const CALIBRATION_IMAGES: usize = 10_000;

/// The temperature that fits held-out images best (some of them where there are more than 10,000), for the weights of a step.
pub fn calibrate(
    t: &Trained,
    source: &Source,
    config: &Config,
    of: (u64, Weights),
    stop: super::Stop,
) -> Result<Calibration> {
    let some = data::some_of(source, CALIBRATION_IMAGES, config.seed)?;
    let mut seen = posteriors(t, &some, config, 0, stop)?;
    // As they are at temperature 1, whatever was fitted before.
    let now = t.temperature.unwrap_or(1.0);
    seen.logits.iter_mut().for_each(|l| *l = (f64::from(*l) * now) as f32);
    Calibration::fit(&seen.logits, &seen.labels, t.model.sizes().vocab, of)
}

/// Images of `source` in order (at most `limit`, 0: all), batch by batch on the device of the model. Gives what could not be read.
pub fn class_batches(
    t: &Trained,
    source: &Source,
    config: &Config,
    limit: usize,
    each: impl FnMut(&Tensor, &Batch) -> Result<()>,
) -> Result<Skipped> {
    class_batches_of(t, source, config, limit, Part::default(), each)
}

/// As [`class_batches`], those of `part`.
pub(super) fn class_batches_of(
    t: &Trained,
    source: &Source,
    config: &Config,
    limit: usize,
    part: Part,
    mut each: impl FnMut(&Tensor, &Batch) -> Result<()>,
) -> Result<Skipped> {
    let size = if t.model.device() == Device::Cpu { 64 } else { 512 };
    let batches = batches_of(part, source.len(), if part.ranks > 1 { limit } else { 0 }, size);
    if batches.is_empty() && part.ranks > 1 {
        return Ok(Skipped::default());
    }
    let settings = from_batch(in_order(config, size), batches.start);
    let mut loader = Loader::new(source.clone(), t.transform()?.clone(), settings)?;
    let of = super::how_many(source.len(), limit);
    let mut left = if limit == 0 { usize::MAX } else { limit - batches.start * size };
    let (mut seen, mut done) = (0, 0);
    while let Some(batch) = (left > 0 && done < batches.len()).then(|| loader.next()).flatten() {
        done += 1;
        progress::tell(Work::Evaluation, seen, of / part.ranks);
        let mut batch = batch?;
        if batch.indices.is_empty() {
            continue; // none of its images could be read
        }
        shorten(&mut batch, left);
        let images = t.batch_images(&batch)?.ok_or_else(|| Error::Input("a classifier needs images".into()))?;
        each(&images, &batch)?;
        left -= batch.labels.len();
        seen += batch.labels.len();
    }
    if seen == 0 && part.ranks == 1 {
        return Err(nothing_read(&loader));
    }
    Ok(loader.skipped())
}

/// Keep no more than `most` images of a batch.
fn shorten(batch: &mut Batch, most: usize) {
    let count = batch.indices.len();
    if most < count {
        batch.images.truncate(batch.images.len() / count * most);
        batch.labels.truncate(most);
        batch.indices.truncate(most);
    }
}
