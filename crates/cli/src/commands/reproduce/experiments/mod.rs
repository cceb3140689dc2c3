//! One file per table or figure. Each says which runs it needs, and makes a [`Section`] of them.

mod ablation;
mod captions;
mod clipscore;
mod curves;
mod heatmap;
mod history;
mod loss;
mod main;
mod overfitting;
mod regression;
mod steps;
mod tokens;
mod trajectory;

use tweedie::config::{Config, GuidanceShape, Method, SampleConfig, SamplerKind, Unmasking};
use tweedie_figures::Series;

use super::caption_measurements::mean;
use super::measurements::{Measurements, deviation};
use super::scale::What;
use super::section::Section;
use super::variant::Variant;
use crate::failure::{Failure, Result};

/// Everything, in the order of the paper.
pub const ORDER: [What; 12] = [
    What::Main,
    What::Curves,
    What::Overfitting,
    What::Loss,
    What::Regression,
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
        What::Overfitting => overfitting::NEEDS,
        What::Regression => regression::NEEDS,
        What::Heatmap => heatmap::NEEDS,
        What::Captions => captions::NEEDS,
        What::Clipscore => clipscore::NEEDS,
        What::Trajectory => trajectory::NEEDS,
        What::Tokens => tokens::NEEDS,
        What::All => &[],
    }
}

/// Measure and draw.
pub fn make(what: What, measured: &mut Measurements) -> Result<Section> {
    match what {
        What::Main => main::make(measured),
        What::Ablation => ablation::make(measured),
        What::Steps => steps::make(measured),
        What::Loss => loss::make(measured),
        What::Curves => curves::make(measured),
        What::Overfitting => overfitting::make(measured),
        What::Regression => regression::make(measured),
        What::Heatmap => heatmap::make(measured),
        What::Captions => captions::make(measured),
        What::Clipscore => clipscore::make(measured),
        What::Trajectory => trajectory::make(measured),
        What::Tokens => tokens::make(measured),
        What::All => Err(Failure::ours("a plan names its experiments one by one")),
    }
}

/// "20 steps, guidance 2, argmax".
fn sampling_name(s: &SampleConfig) -> String {
    sampling_by(s, sampler_name(s.sampler))
}

/// The same with a sampler's name of your own.
fn sampling_by(s: &SampleConfig, sampler: &str) -> String {
    let guidance = match (s.guidance == 1.0, s.guidance_shape) {
        (true, _) => "no guidance".into(),
        (false, GuidanceShape::Constant) => format!("guidance {}", s.guidance),
        (false, GuidanceShape::Linear) => format!("guidance up to {}", s.guidance),
    };
    match s.steps {
        1 => format!("1 step, {guidance}"),
        n => format!("{n} steps, {guidance}, {sampler}"),
    }
}

fn sampler_name(sampler: SamplerKind) -> &'static str {
    match sampler {
        SamplerKind::Argmax => "argmax",
        SamplerKind::Multinomial => "multinomial",
        SamplerKind::Softmax => "softmax",
        SamplerKind::Ddim => "DDIM",
        SamplerKind::Ancestral => "ancestral",
    }
}

/// How words come about in captions by a run with these settings: "10 steps, no guidance, argmax and noise again".
fn caption_sampling_name(c: &Config) -> String {
    let s = &c.sample;
    let surest = s.unmask == Unmasking::Confident;
    let how = match c.model.method {
        Method::Mdd if surest => "the surest masked words first",
        Method::Mdd => "masked words in random order",
        Method::Tdd if c.train.clean_tokens > 0.0 && s.commits() => "the most confident words committed first",
        Method::Tdd if s.sampler == SamplerKind::Argmax => "argmax and noise again",
        Method::Tdd => sampler_name(s.sampler),
    };
    let along = match s.schedule.as_str() {
        "" => String::new(),
        _ if c.model.method == Method::Mdd => String::new(),
        name => format!(", along {name} steps"),
    };
    format!("{}{along}", sampling_by(s, how))
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
