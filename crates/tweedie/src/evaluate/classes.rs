//! A classifier over a whole data set.

use tweedie_engine::{Device, Tensor};

use super::{in_order, nothing_read};
use crate::config::{Config, SampleConfig};
use crate::data::{Loader, Source};
use crate::error::{Error, Result};
use crate::metrics::Classification;
use crate::progress::{self, Work};
use crate::sample::{ClassSampler, Prediction};
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
    let size = if t.model.device() == Device::Cpu { 64 } else { 512 };
    let mut loader = Loader::new(source.clone(), t.transform()?.clone(), in_order(config, size))?;
    let mut metrics = Classification::new(t.model.sizes().vocab);
    let of = super::how_many(source.len(), limit);
    let mut seen = 0;
    for batch in loader.by_ref() {
        progress::tell(Work::Evaluation, seen, of);
        let batch = batch?;
        if batch.indices.is_empty() {
            continue; // none of its images could be read
        }
        let images = t.batch_images(&batch)?.ok_or_else(|| Error::Input("a classifier needs images".into()))?;
        metrics.add(&logits(&images, &batch.indices)?, &batch.labels);
        seen += batch.labels.len();
        if limit > 0 && seen >= limit {
            break;
        }
    }
    if seen == 0 {
        return Err(nothing_read(&loader));
    }
    metrics.skipped = loader.skipped();
    Ok(metrics)
}
