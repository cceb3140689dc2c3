//! Image files as a model's input.

use std::path::Path;

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

/// A batch of one image, made as for evaluation.
pub fn tensor(config: &Config, device: &Device, image: Image) -> Result<Tensor> {
    let e = &config.model.encoder;
    let transform = Transform::eval(&config.augment, e.image, e.channels)?;
    let mut values = vec![0.0; transform.values()];
    transform.apply(image, Address { seed: 0, epoch: 0, example: 0 }, &mut values);
    Ok(Tensor::from_f32(device, &[1, e.channels, e.image, e.image], values)?)
}
