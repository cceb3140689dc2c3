//! A trained classifier, for images one has at hand: [`Classifier::open`].

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use tweedie_engine::cpu::batch_invariant;
use tweedie_engine::{Device, Tensor};

use crate::config::{Precision, SampleConfig};
use crate::error::{Error, Result};
use crate::generate::{Step, Token};
use crate::image::Image;
use crate::interrupt;
use crate::run::{self, Weights};
use crate::sample::{ClassSampler, Posterior, Prediction, Sampler, argmax, softmax};
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

/// What a model says of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Probabilities of the classes given the image: the model's [`Posterior`].
    pub posterior: Ranking,
    /// The class that its sampler ends at, mostly the same.
    pub sampled: String,
    /// How settled the sampler is on that class at its last step. It says little about the image: a sampler becomes sure of whatever it
    /// chose at first.
    pub certainty: f64,
}

impl Answer {
    /// The most likely class.
    pub fn best(&self) -> Option<&str> {
        self.posterior.best()
    }

    /// The probability of that.
    pub fn probability(&self) -> f64 {
        self.posterior.0.first().map_or(0.0, |c| c.1)
    }

    /// The `k` most likely classes.
    #[must_use]
    pub fn top(&self, k: usize) -> Ranking {
        self.posterior.top(k)
    }

    /// Where the sampler ends at another class than the most likely one: both, in words.
    pub fn disagreement(&self) -> Option<String> {
        let best = self.best().filter(|best| *best != self.sampled)?;
        Some(format!("sampler says {}, posterior {best}", self.sampled))
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.posterior)?;
        self.disagreement().map_or(Ok(()), |d| write!(f, " ({d})"))
    }
}

/// Images that are asked for at once, on a GPU: always as many, since its products of other sizes differ in the last bits. A CPU takes
/// one after another for the same reason.
const GPU_BATCH: usize = 64;

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
    posterior: Posterior<'a>,
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
        let posterior = Posterior::new(trained.clone())?;
        Ok(Classifier { trained, sampler, posterior })
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
    pub fn classify(&self, image: &Image) -> Result<Answer> {
        let all = self.classify_all(std::slice::from_ref(image))?;
        all.into_iter().next().ok_or_else(|| Error::Input("there is no image".into()))
    }

    /// What is on each of some images. An answer does not depend on what else is asked for, to the last bit: the noise is the same for
    /// all, and so is the size of what is computed at once.
    pub fn classify_all(&self, images: &[Image]) -> Result<Vec<Answer>> {
        let size = if self.trained.model.device() == Device::Cpu { 1 } else { GPU_BATCH };
        let mut answers = Vec::with_capacity(images.len());
        for some in images.chunks(size) {
            interrupt::check()?;
            let mut batch = some.to_vec();
            batch.resize(size, Image::filled(1, 1, &[0]));
            let all = self.classify_batch(&self.trained.images(&batch)?, &vec![0; size])?;
            answers.extend(all.into_iter().take(some.len()));
        }
        Ok(answers)
    }

    /// Logits of the sampler's last step for images \[B, channels, side, side\], each sampled with the noise of its own id: \[B, …\] on
    /// the model's device, in rows of a logit for each class or longer.
    pub fn logits(&self, images: &Tensor, examples: &[u32]) -> Result<Tensor> {
        check_ids(images, examples)?;
        batch_invariant(|| self.sampler.logits_tensor(images, examples))
    }

    /// What is on images \[B, channels, side, side\], each sampled with the noise of its own id.
    pub fn classify_batch(&self, images: &Tensor, examples: &[u32]) -> Result<Vec<Answer>> {
        check_ids(images, examples)?;
        let (sampled, posterior) = batch_invariant(|| {
            Ok::<_, Error>((self.sampler.logits(images, examples)?, self.posterior.logits(images)?))
        })?;
        check_numbers(&sampled)?;
        check_numbers(&posterior)?;
        let vocab = self.trained.model.sizes().vocab;
        Ok(sampled.chunks_exact(vocab).zip(posterior.chunks_exact(vocab)).map(|(s, p)| self.answer(s, p)).collect())
    }

    fn answer(&self, sampled: &[f32], posterior: &[f32]) -> Answer {
        answer_of(&self.trained.class_names, sampled, posterior)
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
        let mut each = |p: &Prediction| match p.logits().and_then(|logits| probabilities(&logits)) {
            Ok(probabilities) => all.push((p.t, probabilities)),
            Err(e) => failed = Some(e),
        };
        let last = batch_invariant(|| self.sampler.watched(images, examples, &mut each))?;
        match failed {
            Some(e) => Err(e),
            None if all.is_empty() => Ok(vec![(0, probabilities(&last)?)]),
            None => Ok(all),
        }
    }

    fn step(&self, t: usize, p: &[f64], top: usize) -> Step {
        let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
        let top = ranking(&self.trained.class_names, p).top(top).0;
        let (text, likely) = top.first().cloned().unwrap_or_default();
        let token = Token { text: Some(text), p: likely, entropy, top };
        Step { t, alpha_bar: self.trained.process.schedule().alpha_bar(t), tokens: vec![token] }
    }
}

fn ranking(class_names: &[String], p: &[f64]) -> Ranking {
    let mut all: Vec<(String, f64)> = class_names.iter().cloned().zip(p.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    Ranking(all)
}

/// What logits say: those that a sampler ends with, and those of the posterior.
pub(crate) fn answer_of(class_names: &[String], sampled: &[f32], posterior: &[f32]) -> Answer {
    let (sampled, posterior) = (softmax(sampled), ranking(class_names, &softmax(posterior)));
    let class = argmax(&sampled);
    let name = class_names.get(class).cloned().unwrap_or_default();
    Answer { posterior, sampled: name, certainty: sampled.get(class).copied().unwrap_or(0.0) }
}

/// Refuse an answer that is none: a ranking of it would be one by chance.
pub(crate) fn check_numbers(logits: &[f32]) -> Result<()> {
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
