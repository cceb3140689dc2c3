//! One file per table or figure. Each says which runs it needs, and makes a [`Section`] of them.

mod ablation;
mod captions;
mod clipscore;
mod curves;
mod heatmap;
mod history;
mod loss;
mod main;
mod steps;
mod tokens;
mod trajectory;

use tweedie::config::{SampleConfig, SamplerKind};
use tweedie_figures::Series;

use super::caption_lab::mean;
use super::lab::{Lab, deviation};
use super::plan::Variant;
use super::scale::What;
use super::section::Section;
use crate::failure::{Failure, Result};

/// Everything, in the order of the paper.
pub const ORDER: [What; 10] = [
    What::Main,
    What::Curves,
    What::Loss,
    What::Steps,
    What::Ablation,
    What::Heatmap,
    What::Captions,
    What::Clipscore,
    What::Trajectory,
    What::Tokens,
];

/// The runs that an experiment looks at.
pub fn needs(what: What) -> &'static [Variant] {
    match what {
        What::Main => main::NEEDS,
        What::Ablation => ablation::NEEDS,
        What::Steps => steps::NEEDS,
        What::Loss => loss::NEEDS,
        What::Curves => curves::NEEDS,
        What::Heatmap => heatmap::NEEDS,
        What::Captions => captions::NEEDS,
        What::Clipscore => clipscore::NEEDS,
        What::Trajectory => trajectory::NEEDS,
        What::Tokens => tokens::NEEDS,
        What::All => &[],
    }
}

/// Measure and draw.
pub fn make(what: What, lab: &mut Lab) -> Result<Section> {
    match what {
        What::Main => main::make(lab),
        What::Ablation => ablation::make(lab),
        What::Steps => steps::make(lab),
        What::Loss => loss::make(lab),
        What::Curves => curves::make(lab),
        What::Heatmap => heatmap::make(lab),
        What::Captions => captions::make(lab),
        What::Clipscore => clipscore::make(lab),
        What::Trajectory => trajectory::make(lab),
        What::Tokens => tokens::make(lab),
        What::All => Err(Failure::ours("a plan names its experiments one by one")),
    }
}

/// "20 steps, guidance 2, argmax".
fn sampling_name(s: &SampleConfig) -> String {
    let sampler = match s.sampler {
        SamplerKind::Argmax => "argmax",
        SamplerKind::Multinomial => "multinomial",
        SamplerKind::Softmax => "softmax",
        SamplerKind::Ddim => "DDIM",
        SamplerKind::Ancestral => "ancestral",
    };
    let guidance = if s.guidance == 1.0 { "no guidance".into() } else { format!("guidance {}", s.guidance) };
    match s.steps {
        1 => format!("1 step, {guidance}"),
        n => format!("{n} steps, {guidance}, {sampler}"),
    }
}

/// A curve over sampling steps: mean over seeds with a band of one deviation.
fn over_seeds(name: &str, curves: &[Vec<f64>]) -> Series {
    let n = curves.iter().map(Vec::len).min().unwrap_or(0);
    let at = |i: usize| curves.iter().map(|c| c[i]).collect::<Vec<f64>>();
    let x = (1..=n).map(|i| i as f64).collect();
    let series = Series::new(name, x, (0..n).map(|i| mean(&at(i))).collect());
    match (0..n).map(|i| deviation(&at(i))).collect::<Option<Vec<f64>>>().filter(|s| !s.is_empty()) {
        Some(spread) => series.spread(&spread),
        None => series,
    }
}
