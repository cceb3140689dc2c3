//! Previews of what a model says: the first evaluation images with predictions, and one prediction step by step.

use std::path::Path;

use tweedie::config::Config;
use tweedie::data::{Item, Sequences, Source};
use tweedie::sample::argmax;
use tweedie::train::Trainer;
use tweedie::{Classifier, Trained, evaluate};
use tweedie_figures::{Axis, Drawing, Figure, HeatmapSpec, Tile, TilesSpec};

use super::image_input;
use crate::failure::Result;
use crate::report;

/// Images of a preview.
const SHOWN: usize = 24;
/// Captions or texts of one.
const LINES: usize = 8;

/// Images, and what was predicted for them at every sampling step.
pub struct Preview {
    classes: Vec<String>,
    items: Vec<Item>,
    /// Timestep and probabilities of all images; one step for a masked twin.
    steps: Vec<(usize, Vec<f64>)>,
}

/// The first evaluation examples with what the model in training says, as `step-N` in the folder `samples`.
pub fn save(t: &mut Trainer, samples: &Path) -> Result<()> {
    let name = format!("step-{:08}", t.step());
    if let Some(source) = t.validation().cloned() {
        let shown = t.averaged(|model, c| Ok(classes(model, c, &source)))??;
        return report::save_figure(&shown.tiles()?, samples, &name);
    }
    let Some(source) = t.validation_texts().cloned() else { return Ok(()) };
    let text = t.averaged(|model, c| texts(model, c, &source))?;
    Ok(tweedie::files::write_atomic(&samples.join(format!("{name}.txt")), text.as_bytes())?)
}

/// Classify the first images of `source`.
pub fn classes(t: &Trained, c: &Config, source: &Source) -> Result<Preview> {
    // An unreadable image is reported where it matters, in training and evaluation.
    let items: Vec<Item> = (0..SHOWN.min(source.len())).filter_map(|i| source.get(i).ok()).collect();
    let images: Vec<_> = items.iter().map(|i| i.image.clone()).collect();
    let ids: Vec<u32> = (0..items.len() as u32).collect();
    let steps = Classifier::new(t, &c.sample)?.distributions(&t.images(&images)?, &ids)?;
    Ok(Preview { classes: t.class_names.clone(), items, steps })
}

/// The first captions with what people wrote, or some free texts.
fn texts(t: &Trained, c: &Config, source: &Sequences) -> tweedie::Result<String> {
    if t.model.is_conditional() {
        let made = evaluate::captions(t, source, c, &c.sample, LINES)?;
        let rows = made.indices.iter().zip(&made.texts).zip(&made.references);
        let line = |((i, text), refs): ((&u32, &String), &Vec<String>)| {
            format!("{}\n  {text}\n  ({})\n", source.place(*i as usize), refs.join(" | "))
        };
        return Ok(rows.map(line).collect());
    }
    let made = evaluate::samples(t, &c.sample, LINES as u32, &|| false)?;
    Ok(made.iter().map(|text| format!("{text}\n\n")).collect())
}

impl Preview {
    fn probabilities(&self, step: usize, image: usize) -> &[f64] {
        let p = &self.steps[step].1;
        let vocab = p.len() / self.items.len().max(1);
        &p[image * vocab..][..vocab]
    }

    /// The images, with the last prediction below each.
    pub fn tiles(&self) -> Result<Drawing> {
        let tile = |(i, item): (usize, &Item)| {
            let p = self.probabilities(self.steps.len() - 1, i);
            let best = argmax(p);
            let name = self.classes.get(best).map_or("?", String::as_str);
            Tile {
                picture: image_input::picture(item.image.clone()),
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
        let certainty = |i: usize| self.probabilities(0, i).iter().copied().fold(0.0, f64::max);
        (0..self.items.len()).min_by(|a, b| certainty(*a).total_cmp(&certainty(*b))).unwrap_or(0)
    }

    /// Name of the true class of the image of [`Preview::heatmap`], and timestep and probabilities at every step.
    pub fn distributions(&self) -> (&str, Vec<(usize, Vec<f64>)>) {
        let pick = self.telling();
        let label = self.items.get(pick).map_or(0, |i| i.label as usize);
        let steps = (0..self.steps.len()).map(|s| (self.steps[s].0, self.probabilities(s, pick).to_vec())).collect();
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
