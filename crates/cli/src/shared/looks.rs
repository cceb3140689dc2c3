//! A look at what a model says: the first evaluation images with predictions, and one prediction step by step.

use tweedie::augment::{Address, Transform};
use tweedie::config::Config;
use tweedie::data::{Item, Sequences, Source};
use tweedie::sample::{Generator, Request, argmax, classify, softmax};
use tweedie::texts::captions;
use tweedie::train::Trained;
use tweedie_engine::Tensor;
use tweedie_figures::{Axis, Drawing, Figure, HeatmapSpec, Picture, Tile, TilesSpec};

use crate::failure::Result;

/// Images of a look.
const SHOWN: usize = 24;

/// Images, and what was predicted for them at every sampling step.
pub struct Looks {
    classes: Vec<String>,
    items: Vec<Item>,
    /// Timestep and logits of all images; one step for a masked twin.
    steps: Vec<(usize, Vec<f32>)>,
}

/// Classify the first images of `source`.
pub fn look(t: &Trained, c: &Config, source: &Source) -> Result<Looks> {
    let e = &c.model.encoder;
    let transform = Transform::eval(&c.augment, e.image, e.channels)?;
    let (mut values, mut items) = (Vec::new(), Vec::new());
    for i in 0..SHOWN.min(source.len()) {
        // An unreadable image is reported where it matters, in training and evaluation.
        let Ok(item) = source.get(i) else { continue };
        let mut v = vec![0.0; transform.values()];
        transform.apply(item.image.clone(), Address { seed: 0, epoch: 0, example: i as u32 }, &mut v);
        values.extend(v);
        items.push(item);
    }
    let b = items.len();
    let images = Tensor::from_f32(&t.model.device(), &[b, e.channels, e.image, e.image], values)?;
    let ids: Vec<u32> = (0..b as u32).collect();
    let mut steps = Vec::new();
    let each = |p: &tweedie::sample::Prediction| steps.push((p.t, p.logits()));
    let logits = classify(&t.model, &images, &ids, &t.schedule, t.lambda, &c.sample, each)?;
    if steps.is_empty() {
        steps.push((0, Ok(logits)));
    }
    let steps = steps.into_iter().map(|(t, l)| Ok((t, l?))).collect::<Result<_>>()?;
    Ok(Looks { classes: t.class_names.clone(), items, steps })
}

/// The first captions with what people wrote, or some free texts.
pub fn texts(t: &Trained, c: &Config, source: &Sequences) -> tweedie::Result<String> {
    const LINES: usize = 8;
    if t.model.is_conditional() {
        let made = captions(t, source, c, &c.sample, LINES)?;
        let rows = made.indices.iter().zip(&made.texts).zip(&made.references);
        let line = |((i, text), refs): ((&u32, &String), &Vec<String>)| {
            format!("{}\n  {text}\n  ({})\n", source.place(*i as usize), refs.join(" | "))
        };
        return Ok(rows.map(line).collect());
    }
    let tokenizer = t.tokenizer()?;
    let generator = Generator::new(&t.model, &t.schedule, t.lambda, &c.sample)?;
    let ids: Vec<u32> = (0..LINES as u32).collect();
    let made = generator.generate(&Request::new(None, &ids))?;
    let rows = made.tokens.chunks_exact(t.model.sizes().tokens);
    Ok(rows.map(|row| format!("{}\n\n", tokenizer.decode_packed(row))).collect())
}

impl Looks {
    fn probabilities(&self, step: usize, image: usize) -> Vec<f64> {
        let logits = &self.steps[step].1;
        let vocab = logits.len() / self.items.len().max(1);
        softmax(&logits[image * vocab..][..vocab])
    }

    /// The images, with the last prediction below each.
    pub fn tiles(&self) -> Result<Drawing> {
        let tile = |(i, item): (usize, &Item)| {
            let p = self.probabilities(self.steps.len() - 1, i);
            let best = argmax(&p);
            let name = self.classes.get(best).map_or("?", String::as_str);
            let image = &item.image;
            Tile {
                picture: Picture {
                    width: image.width,
                    height: image.height,
                    channels: image.channels,
                    pixels: image.data.clone(),
                },
                caption: format!("{name} ({:.0} %)", 100.0 * p[best]),
                right: Some(best == item.label as usize),
            }
        };
        Ok(Figure::tiles(&TilesSpec {
            title: "Evaluation images and what the model says".into(),
            columns: 8,
            tiles: self.items.iter().enumerate().map(tile).collect(),
            ..TilesSpec::default()
        })?)
    }

    /// The image whose first guess was least certain: it has the most to tell.
    fn telling(&self) -> usize {
        let certainty = |i: usize| self.probabilities(0, i).into_iter().fold(0.0, f64::max);
        (0..self.items.len()).min_by(|a, b| certainty(*a).total_cmp(&certainty(*b))).unwrap_or(0)
    }

    /// Name of the true class of the image of [`Looks::heatmap`], and timestep and probabilities at every step.
    pub fn distributions(&self) -> (&str, Vec<(usize, Vec<f64>)>) {
        let pick = self.telling();
        let label = self.items.get(pick).map_or(0, |i| i.label as usize);
        let steps = (0..self.steps.len()).map(|s| (self.steps[s].0, self.probabilities(s, pick))).collect();
        (&self.classes[label], steps)
    }

    /// The output distribution at every step, for the image whose first guess was least certain.
    pub fn heatmap(&self) -> Result<Drawing> {
        let (label, steps) = self.distributions();
        Ok(Figure::heatmap(&HeatmapSpec {
            title: format!("Output distribution per sampling step (true class: {label})"),
            y_label: "timestep".into(),
            rows: steps.iter().map(|s| s.0.to_string()).collect(),
            x_label: "class".into(),
            columns: self.classes.clone(),
            values: steps.into_iter().flat_map(|s| s.1).collect(),
            colour: Axis::linear("probability").range(0.0, 1.0),
            ..HeatmapSpec::default()
        })?)
    }
}
