//! Captions and traces of finished runs.

use std::rc::Rc;

use tweedie::config::{Config, SampleConfig};
use tweedie::data::Sequences;
use tweedie::evaluate::{self, Captions};
use tweedie::generate::{Step, TextRequest};
use tweedie::{Generator, interrupt};
use tweedie_figures::Picture;

use super::measurements::{Measurements, deviation};
use super::runs::stop_if_asked;
use super::variant::Variant;
use crate::failure::{Failure, Result};
use crate::report::warn;
use crate::shared::image_input;

/// Candidates of every token in a trace: as many as a trace can tell.
pub const CANDIDATES: usize = 8;
/// Candidates that all traces together may hold: some hundred megabytes.
const MOST_CANDIDATES: usize = 2_000_000;
/// Images that are followed at most.
const MOST_STORIES: usize = 2048;
/// Images of a batch.
const BATCH: usize = 32;

/// How one caption came about.
pub struct Story {
    /// Number of the image in its split.
    pub index: u32,
    /// As the model sees it.
    pub picture: Picture,
    pub references: Vec<String>,
    pub text: String,
    pub steps: Vec<Step>,
    /// Places up to the end of the caption, with its end mark; what follows is padding.
    pub length: usize,
}

impl Measurements<'_> {
    /// Settings of a variant's runs.
    pub fn caption_config(&self, variant: Variant) -> Result<&Config> {
        let task = self.plan.captions()?;
        let planned = self.plan.runs.iter().find(|r| r.variant == variant);
        Ok(planned.map_or(&task.paper, |r| &r.config))
    }

    /// Steps of sampling, as every table of captions has it unless it says otherwise.
    pub fn caption_steps(&self) -> Result<usize> {
        Ok(self.plan.captions()?.paper.sample.steps)
    }

    /// The test images with their captions, for one model.
    pub fn caption_test(&mut self, variant: Variant, seed: usize) -> Result<Sequences> {
        let texts = self.plan.captions()?.data[seed].final_split()?.0.clone();
        let m = self.model(variant, seed)?;
        Ok(Sequences::new(texts, m.trained.tokenizer()?.clone(), &m.config.data.sequence_config())?)
    }

    /// A caption for every test image.
    pub fn captions(&mut self, variant: Variant, seed: usize, steps: usize) -> Result<Rc<Captions>> {
        let key = (variant, seed, steps);
        if !self.written.contains_key(&key) {
            stop_if_asked("while measuring")?;
            let source = self.caption_test(variant, seed)?;
            let m = self.model(variant, seed)?;
            let sample = SampleConfig { steps, ..m.config.sample.clone() };
            let made = evaluate::captions_until(&m.trained, &source, &m.config, &sample, 0, &interrupt::requested)
                .or_else(|e| stop_if_asked("while captions were written").and(Err(e.into())))?;
            made.skipped.errors.values().take(5).for_each(|e| warn(&format!("left out: {e}")));
            self.written.insert(key, Rc::new(made));
        }
        Ok(self.written[&key].clone())
    }

    /// Captions by all `variants`, of the same images.
    pub fn all_captions(&mut self, variants: &[Variant], seed: usize, steps: usize) -> Result<Vec<Rc<Captions>>> {
        let all = variants.iter().map(|v| self.captions(*v, seed, steps)).collect::<Result<Vec<_>>>()?;
        match all.windows(2).all(|w| w[0].indices == w[1].indices) {
            true => Ok(all),
            false => Err(Failure::input("the runs of captions could not read the same test images")),
        }
    }

    /// A test image as the model sees it.
    pub fn picture(&mut self, variant: Variant, source: &Sequences, index: u32) -> Result<Picture> {
        Ok(image_input::picture(self.model(variant, 0)?.trained.preview(source.image(index as usize)?)?))
    }

    /// How captions of the first test images come about, of as many as fit into memory; those that cannot be read are left
    /// out. The captions are those of [`Measurements::captions`].
    pub fn stories(&mut self, variant: Variant, seed: usize) -> Result<Vec<Story>> {
        let source = self.caption_test(variant, seed)?;
        let m = self.model(variant, seed)?;
        let each = m.config.sample.steps * m.trained.model.sizes().tokens * CANDIDATES;
        let count = (MOST_CANDIDATES / each.max(1)).clamp(1, MOST_STORIES);
        let readable = (0..source.len() as u32).filter(|i| source.image(*i as usize).is_ok());
        let chosen: Vec<u32> = readable.take(count).collect();
        let mut all = Vec::new();
        for part in chosen.chunks(BATCH) {
            stop_if_asked("while measuring")?;
            let m = self.model(variant, seed)?;
            let images = part.iter().map(|i| Ok(source.image(*i as usize)?)).collect::<Result<Vec<_>>>()?;
            let images = m.trained.images(&images)?;
            let sample = SampleConfig { candidates: 1, ..m.config.sample.clone() };
            let generator = Generator::new(&m.trained, &sample)?;
            let trace = Some(CANDIDATES);
            let made = generator.generate(&TextRequest { images: Some(&images), trace, ..TextRequest::new(part) })?;
            let tokenizer = m.trained.tokenizer()?.clone();
            let is_end = |id: &u32| [tokenizer.eos(), tokenizer.pad()].contains(id);
            for (&index, made) in part.iter().zip(made.into_iter().flatten()) {
                let length = made.tokens.iter().position(is_end).map_or(made.tokens.len(), |end| end + 1);
                let picture = self.picture(variant, &source, index)?;
                let references = source.references(index as usize)?;
                all.push(Story { index, picture, references, text: made.text, steps: made.steps, length });
            }
        }
        if all.is_empty() {
            return Err(Failure::input("no test image can be read"));
        }
        Ok(all)
    }
}

/// A number of every seed, with the standard error that comes from the test images.
pub struct Score {
    pub per_seed: Vec<f64>,
    /// Of one seed's number, the mean over seeds.
    pub standard_error: f64,
}

impl Score {
    /// Means of values of every image, seed by seed.
    pub fn of(seeds: &[Vec<f64>]) -> Score {
        let error = |v: &Vec<f64>| deviation(v).unwrap_or(0.0) / (v.len().max(1) as f64).sqrt();
        Score {
            per_seed: seeds.iter().map(|v| mean(v)).collect(),
            standard_error: mean(&seeds.iter().map(error).collect::<Vec<_>>()),
        }
    }

    /// `a` minus `b` image by image: what both find hard does not count as error.
    pub fn difference(a: &[Vec<f64>], b: &[Vec<f64>]) -> Score {
        let less = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a - b).collect();
        Score::of(&a.iter().zip(b).map(less).collect::<Vec<_>>())
    }

    pub fn mean(&self) -> f64 {
        mean(&self.per_seed)
    }

    /// Of the mean: from images and, where there are several, from seeds.
    pub fn uncertainty(&self) -> f64 {
        let seeds = deviation(&self.per_seed).map_or(0.0, |d| d.powi(2) / self.per_seed.len() as f64);
        (self.standard_error.powi(2) + seeds).sqrt()
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paired_difference_has_no_error_where_images_agree() {
        let a = vec![vec![1.0, 5.0, 9.0], vec![3.0, 7.0, 11.0]];
        let b: Vec<Vec<f64>> = a.iter().map(|v| v.iter().map(|x| x - 2.0).collect()).collect();
        let d = Score::difference(&a, &b);
        assert_eq!((d.mean(), d.standard_error, d.uncertainty()), (2.0, 0.0, 0.0));
        // Deviation 4 over three images; the two seeds' means 5 and 7 deviate by √2.
        let s = Score::of(&a);
        assert_eq!(s.mean(), 6.0);
        assert!((s.standard_error - 4.0 / 3.0_f64.sqrt()).abs() < 1e-12);
        assert!((s.uncertainty() - (16.0 / 3.0 + 1.0_f64).sqrt()).abs() < 1e-12);
    }
}
