//! Sampling for many askers at once: requests join and leave between steps, each at a time of its own.
//!
//! [`LiveModel`] holds the sampling runs ([`Job`]s) of one model. [`LiveModel::step`] takes one step of all of them and tells what each
//! came to ([`Event`]). Rows that go through the same kernels are one batch, a lane, whatever their times, seeds and guidance weights;
//! noise is addressed by row. What a job gets does not depend on the others, and it is what [`Classifier`](crate::Classifier) and
//! [`Generator`](crate::Generator) give: to the bit on the CPU, within rounding on a GPU, whose products differ with their size.

mod lane;
mod model;
mod network;
mod plan;
mod read;

pub use model::LiveModel;

use std::ops::Deref;

use serde::{Serialize, Serializer};
use tweedie_engine::ops::choose::MAX_TOP;

use crate::classify::Answer;
use crate::config::SampleConfig;
use crate::generate::Text;

/// What is asked for: a class, captions or texts, by what the model is for.
#[derive(Clone, Debug)]
pub struct Job {
    /// The image as the network reads it, \[channels·side·side\] ([`Transform::apply`](crate::augment::Transform::apply)); `None` for a
    /// model that looks at none.
    pub image: Option<Vec<f32>>,
    /// How to sample: steps, sampler, guidance, seed, candidates, votes.
    pub sample: SampleConfig,
    /// Which noise, besides the seed: that of the command is 0 for images and counts texts.
    pub example: u32,
    /// Tokens that are fixed, and gaps: a row of N ([`prompt`](crate::generate::prompt), [`infill`](crate::generate::infill)).
    pub fixed: Option<Vec<Option<u32>>>,
    /// Exactly this many tokens; `None`: as the model likes.
    pub length: Option<usize>,
    /// At least this many tokens, where texts have an end.
    pub min_length: usize,
    /// Go on after a step of an earlier run instead of starting from noise.
    pub resume: Option<Resume>,
    /// Most likely tokens to tell of at each step, at most 8.
    pub top: usize,
    /// Tell all probabilities of every token at each step.
    pub probabilities: bool,
}

/// Where an earlier run had come to. The samplers argmax and multinomial forget all else, so that the same seed goes on as that run did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Steps taken.
    pub step: usize,
    /// The tokens that they came to, a row of N; of the masked twin V where masked.
    pub tokens: Vec<u32>,
    /// With a commit order: which of them are committed; empty: none.
    pub committed: Vec<bool>,
}

impl Job {
    /// One that is left to `sample`.
    pub fn new(sample: &SampleConfig) -> Job {
        Job {
            image: None,
            sample: sample.clone(),
            example: 0,
            fixed: None,
            length: None,
            min_length: 1,
            resume: None,
            top: 5,
            probabilities: false,
        }
    }
}

/// The name of a job that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// What a job came to.
#[derive(Clone, Debug)]
pub enum Event {
    /// A step was taken.
    Step(LiveStep),
    /// The job is over.
    Done(Outcome),
    /// The job is over without a result.
    Failed(String),
}

/// One step of a job; of several candidates or votes the first one's.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LiveStep {
    /// Counted from 1.
    pub step: usize,
    /// Steps in all.
    pub of: usize,
    /// The time that the network was told.
    pub t: usize,
    /// Share ᾱ of the signal in what it saw.
    pub alpha_bar: f64,
    /// One for each token; one for a class.
    pub places: Vec<Place>,
    /// All probabilities \[N·V\]: of classes, and of tokens where the job asks for them.
    pub probabilities: Option<Vec<f64>>,
}

/// What is known of one token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// The chosen one; of the masked twin `None` while it is masked.
    pub id: Option<u32>,
    /// Its probability.
    pub p: f64,
    /// Entropy of the prediction, in nats.
    pub entropy: f64,
    /// Whether it is fixed.
    pub fixed: bool,
    /// Whether the sampler has made up its mind: it is revealed (the masked twin), or committed (a commit order).
    pub committed: bool,
    /// The most likely ones.
    pub top: Top,
}

impl Place {
    /// The likeliest class, of the probabilities of all of them.
    fn of_class(p: &[f64], top: usize) -> Place {
        let mut likely: Vec<usize> = (0..p.len()).collect();
        likely.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let best = likely.first().copied();
        Place {
            id: best.map(|class| class as u32),
            p: best.map_or(0.0, |class| p[class]),
            entropy: -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>(),
            fixed: false,
            committed: false,
            top: likely.into_iter().take(top).map(|class| (class as u32, p[class])).collect(),
        }
    }
}

/// The most likely tokens of a place with their probabilities, up to eight: a slice that needs no memory of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Top {
    all: [(u32, f64); MAX_TOP],
    len: usize,
}

impl FromIterator<(u32, f64)> for Top {
    fn from_iter<I: IntoIterator<Item = (u32, f64)>>(from: I) -> Top {
        let mut top = Top::default();
        for (to, one) in top.all.iter_mut().zip(from) {
            *to = one;
            top.len += 1;
        }
        top
    }
}

impl Deref for Top {
    type Target = [(u32, f64)];

    fn deref(&self) -> &[(u32, f64)] {
        &self.all[..self.len]
    }
}

impl Serialize for Top {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter())
    }
}

/// The result of a job.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// What is on the image.
    Class(Answer),
    /// The texts, the best first.
    Texts(Vec<Text>),
}
