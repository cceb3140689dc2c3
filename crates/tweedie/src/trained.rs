//! A trained network with all that belongs to its use ([`Trained`]): what samplers, evaluation and bounds work with.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

use rayon::prelude::*;
use tweedie_engine::Tensor;

use crate::augment::{Address, Transform};
use crate::config::{Config, SampleConfig};
use crate::data::{Batch, Image, Layout, Task};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::process::Process;
use crate::tokenize::Tokenizer;

/// A network, the process it was trained on, and how images, classes and texts get in and out of it.
pub struct Trained {
    /// The network.
    pub model: Model,
    /// Its diffusion process.
    pub process: Process,
    /// Name of each class; none for sequences.
    pub class_names: Vec<String>,
    /// Of sequences: text to tokens and back.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Of sequences: whether each text has its end, or all are windows of a stream.
    pub layout: Layout,
    /// What is done to images before it sees them; none for a model without a condition.
    pub transform: Option<Transform>,
    /// How many times as long as one token's its way from noise to text is (`train.stagger`); 1: one time for all tokens.
    pub stagger: usize,
    /// Of classes: the temperature of its posterior ([`Posterior`](crate::sample::Posterior)); none where it was never fitted.
    pub temperature: Option<f64>,
}

impl Trained {
    /// A model built by these settings.
    pub fn new(
        config: &Config,
        model: Model,
        class_names: Vec<String>,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Result<Trained> {
        let e = &config.model.encoder;
        let transform = match config.model.is_conditional() {
            true => Some(Transform::eval(&config.augment, e.image, e.channels)?),
            false => None,
        };
        let process = config.process.build(config.model.classes)?;
        let layout = config.data.sequence_config().layout;
        let model = model.for_process(&process);
        let stagger = config.stagger();
        Ok(Trained { model, process, class_names, tokenizer, layout, transform, stagger, temperature: None })
    }

    /// A network and its process alone, without names, texts or images: enough to sample tokens.
    pub fn bare(model: Model, process: Process) -> Trained {
        Trained {
            model: model.for_process(&process),
            process,
            class_names: Vec::new(),
            tokenizer: None,
            layout: Layout::Lines,
            transform: None,
            stagger: 1,
            temperature: None,
        }
    }

    /// These settings of sampling, along the path of its training where they leave that open.
    pub fn sampling(&self, config: &SampleConfig) -> SampleConfig {
        let stagger = if config.stagger == 0 { self.stagger } else { config.stagger };
        SampleConfig { stagger, ..config.clone() }
    }

    /// What it is for.
    pub fn task(&self) -> Task {
        match (&self.tokenizer, self.model.is_conditional()) {
            (None, _) => Task::Class,
            (Some(_), true) => Task::Caption,
            (Some(_), false) => Task::Text,
        }
    }

    /// The tokenizer, or an error that says that this model is of another kind.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        self.tokenizer.as_ref().ok_or_else(|| Error::Input("this model classifies images; it knows no text".into()))
    }

    /// How it looks at images, or an error that says that it does not.
    pub fn transform(&self) -> Result<&Transform> {
        self.transform.as_ref().ok_or_else(|| Error::Input("this model takes no images".into()))
    }

    /// Images as the network reads them, \[B, channels, side, side\] on its device.
    pub fn images(&self, images: &[Image]) -> Result<Tensor> {
        let transform = self.transform()?;
        images.iter().try_for_each(Image::check).map_err(Error::Input)?;
        let mut values = vec![0.0; images.len() * transform.values()];
        values.par_chunks_exact_mut(transform.values().max(1)).zip(images).for_each(|(out, image)| {
            transform.apply(image.clone(), Address { seed: 0, epoch: 0, example: 0 }, out);
        });
        self.image_tensor(images.len(), values)
    }

    /// An image as the network sees it, before its values are normalised.
    pub fn preview(&self, image: Image) -> Result<Image> {
        Ok(self.transform()?.preview(image, Address { seed: 0, epoch: 0, example: 0 }))
    }

    /// The images of a loader's batch on the device; none where it has none.
    pub fn batch_images(&self, batch: &Batch) -> Result<Option<Tensor>> {
        match batch.images.is_empty() {
            true => Ok(None),
            false => Ok(Some(self.image_tensor(batch.indices.len(), batch.images.clone())?)),
        }
    }

    fn image_tensor(&self, count: usize, values: Vec<f32>) -> Result<Tensor> {
        let e = &self.model.config().encoder;
        Ok(Tensor::from_f32(&self.model.device(), &[count, e.channels, e.image, e.image], values)?)
    }
}

/// Something that is borrowed, or shared among its holders.
pub enum Shared<'a, T> {
    /// Somebody else's.
    Borrowed(&'a T),
    /// Everybody's.
    Owned(Rc<T>),
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        match self {
            Shared::Borrowed(t) => Shared::Borrowed(t),
            Shared::Owned(t) => Shared::Owned(t.clone()),
        }
    }
}

impl<T> Deref for Shared<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Shared::Borrowed(t) => t,
            Shared::Owned(t) => t,
        }
    }
}

impl<'a, T> From<&'a T> for Shared<'a, T> {
    fn from(t: &'a T) -> Self {
        Shared::Borrowed(t)
    }
}

impl<T> From<Rc<T>> for Shared<'_, T> {
    fn from(t: Rc<T>) -> Self {
        Shared::Owned(t)
    }
}
