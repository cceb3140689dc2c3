//! Image files as a model's input.

use std::path::Path;

use rayon::prelude::*;
use tweedie::augment::{Address, Transform};
use tweedie::config::Config;
use tweedie::data::Image;
use tweedie_engine::{Device, Tensor};

use crate::failure::{Failure, Result};

/// Decode a file; what is wrong with it names it.
pub fn read(path: &Path) -> Result<Image> {
    let failed = |why: String| Failure::input(format!("{}: {why}", path.display()));
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    Image::decode(&bytes).map_err(|e| failed(e.to_string()))
}

/// A batch of images, made as for evaluation.
pub fn tensor(config: &Config, device: &Device, images: Vec<Image>) -> Result<Tensor> {
    let e = &config.model.encoder;
    let transform = Transform::eval(&config.augment, e.image, e.channels)?;
    let (count, each) = (images.len(), transform.values());
    let mut values = vec![0.0; count * each];
    values.par_chunks_exact_mut(each).zip(images).for_each(|(out, image)| {
        transform.apply(image, Address { seed: 0, epoch: 0, example: 0 }, out);
    });
    Ok(Tensor::from_f32(device, &[count, e.channels, e.image, e.image], values)?)
}
