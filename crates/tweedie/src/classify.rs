//! A trained classifier, for images one has at hand: [`Classifier::open`].

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use tweedie_engine::{Device, Tensor};

use crate::config::{Precision, SampleConfig};
use crate::error::{Error, Result};
use crate::generate::{Step, Token};
use crate::image::Image;
use crate::run::{self, Weights};
use crate::sample::{ClassSampler, Prediction, Sampler, softmax};
use crate::trained::{Shared, Trained};

/// Classes with their probabilities, the most likely first.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranking(pub Vec<(String, f64)>);

impl Ranking {
    /// The `k` most likely.
    #[must_use]
    pub fn top(&self, k: usize) -> Ranking {
        Ranking(self.0.iter().take(k).cloned().collect())
    }

    /// The most likely class.
    pub fn best(&self) -> Option<&str> {
        self.0.first().map(|c| c.0.as_str())
    }
}

impl fmt::Display for Ranking {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, (name, p)) in self.0.iter().enumerate() {
            write!(f, "{}{name} {:.1} %", if i > 0 { ", " } else { "" }, 100.0 * p)?;
        }
        Ok(())
    }
}

/// A trained model that says what is on an image.
///
/// ```no_run
/// use tweedie::{Classifier, Image};
///
/// let classifier = Classifier::open("runs/digits-1")?;
/// let image = Image::open("seven.png")?;
/// println!("{}", classifier.classify(&image)?.top(3)); // 7 98.2 %, 9 0.9 %, 1 0.2 %
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Classifier<'a> {
    trained: Shared<'a, Trained>,
    sampler: ClassSampler<'a>,
}

impl Classifier<'static> {
    /// The model of a run folder or checkpoint, with its averaged weights and its own sampling settings, on the best device.
    pub fn open(run: impl AsRef<Path>) -> Result<Classifier<'static>> {
        let device = Device::auto()?;
        let loaded = run::load(run.as_ref(), Weights::Ema, &device, Precision::Auto)?;
        Classifier::new(Rc::new(loaded.trained), &loaded.config.sample)
    }
}

impl<'a> Classifier<'a> {
    /// A model of classes, sampled by these settings.
    pub fn new(trained: impl Into<Shared<'a, Trained>>, sample: &SampleConfig) -> Result<Classifier<'a>> {
        let trained = trained.into();
        if trained.tokenizer.is_some() {
            return Err(Error::Input("this model writes text; it knows no classes: open it with Generator".into()));
        }
        let sampler = ClassSampler::new(trained.clone(), sample)?;
        Ok(Classifier { trained, sampler })
    }

    /// Sample by a sampler of your own.
    #[must_use]
    pub fn with_sampler(self, sampler: impl Sampler + 'static) -> Classifier<'a> {
        Classifier { sampler: self.sampler.with_sampler(sampler), ..self }
    }

    /// The model.
    pub fn trained(&self) -> &Trained {
        &self.trained
    }

    /// What is on an image.
    pub fn classify(&self, image: &Image) -> Result<Ranking> {
        let all = self.classify_all(std::slice::from_ref(image))?;
        all.into_iter().next().ok_or_else(|| Error::Input("there is no image".into()))
    }

    /// What is on each of some images. The noise is the same for all: an answer does not depend on what else is asked for.
    pub fn classify_all(&self, images: &[Image]) -> Result<Vec<Ranking>> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        self.classify_batch(&self.trained.images(images)?, &vec![0; images.len()])
    }

    /// What is on images \[B, channels, side, side\], each with the noise of its own id.
    pub fn classify_batch(&self, images: &Tensor, examples: &[u32]) -> Result<Vec<Ranking>> {
        check_ids(images, examples)?;
        let logits = self.sampler.logits(images, examples)?;
        check_numbers(&logits)?;
        Ok(logits.chunks_exact(self.trained.model.sizes().vocab).map(|l| self.ranked(&softmax(l))).collect())
    }

    /// How the answer for one image \[1, channels, side, side\] comes about, with the `top` most likely classes of each step. The masked
    /// twin has a single one, told time 0.
    pub fn trace(&self, image: &Tensor, top: usize) -> Result<Vec<Step>> {
        Ok(self.distributions(image, &[0])?.into_iter().map(|(t, p)| self.step(t, &p, top)).collect())
    }

    /// Time and probabilities \[B·V\] of every sampling step for images \[B, channels, side, side\]; one step, told time 0, for a masked
    /// twin.
    pub fn distributions(&self, images: &Tensor, examples: &[u32]) -> Result<Vec<(usize, Vec<f64>)>> {
        check_ids(images, examples)?;
        let vocab = self.trained.model.sizes().vocab;
        let probabilities = |logits: &[f32]| {
            check_numbers(logits)?;
            Ok(logits.chunks_exact(vocab).flat_map(softmax).collect::<Vec<f64>>())
        };
        let (mut all, mut failed) = (Vec::new(), None);
        let last = self.sampler.watched(images, examples, &mut |p: &Prediction| match p
            .logits()
            .and_then(|logits| probabilities(&logits))
        {
            Ok(probabilities) => all.push((p.t, probabilities)),
            Err(e) => failed = Some(e),
        })?;
        match failed {
            Some(e) => Err(e),
            None if all.is_empty() => Ok(vec![(0, probabilities(&last)?)]),
            None => Ok(all),
        }
    }

    fn ranked(&self, p: &[f64]) -> Ranking {
        let mut all: Vec<(String, f64)> = self.trained.class_names.iter().cloned().zip(p.iter().copied()).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ranking(all)
    }

    fn step(&self, t: usize, p: &[f64], top: usize) -> Step {
        let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        let top = self.ranked(p).top(top).0;
        let (text, likely) = top.first().cloned().unwrap_or_default();
        let token = Token { text: Some(text), p: likely, entropy, top };
        Step { t, alpha_bar: self.trained.process.schedule().alpha_bar(t), tokens: vec![token] }
    }
}

/// Refuse an answer that is none: a ranking of it would be one by chance.
fn check_numbers(logits: &[f32]) -> Result<()> {
    match logits.iter().any(|l| l.is_nan()) {
        true => Err(Error::Input("the model's answer is not a number; use an earlier checkpoint".into())),
        false => Ok(()),
    }
}

/// One id for each image.
fn check_ids(images: &Tensor, examples: &[u32]) -> Result<()> {
    match images.shape().first() == Some(&examples.len()) {
        true => Ok(()),
        false => Err(Error::Input(format!("{} ids do not go with images {:?}", examples.len(), images.shape()))),
    }
}
