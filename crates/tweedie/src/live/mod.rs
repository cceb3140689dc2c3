//! Sampling for many askers at once: requests join and leave between steps, each at a time of its own.
//!
//! [`LiveModel`] holds the sampling runs ([`Job`]s) of one model. [`LiveModel::step`] takes one step of all of them and tells what each
//! came to ([`Event`]). What a job gets does not depend on the others: on the CPU to the bit.

use std::collections::VecDeque;
use std::rc::Rc;

use serde::Serialize;

use crate::classify::{Answer, Classifier};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::generate::{Generator, Text, TextRequest};
use crate::trained::Trained;

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
}

/// Where an earlier run had come to. The samplers argmax and multinomial forget all else, so that the same seed goes on as that run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Steps taken.
    pub step: usize,
    /// The tokens that they came to, a row of N; of the masked twin V where masked.
    pub tokens: Vec<u32>,
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
    /// Of classes: all probabilities.
    pub classes: Option<Vec<f64>>,
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
    /// The most likely ones.
    pub top: Vec<(u32, f64)>,
}

/// The result of a job.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// What is on the image.
    Class(Answer),
    /// The texts, the best first.
    Texts(Vec<Text>),
}

/// A model that many askers share.
pub struct LiveModel {
    trained: Rc<Trained>,
    most: usize,
    next: u64,
    running: Vec<(JobId, usize, VecDeque<Event>)>,
}

impl LiveModel {
    /// A model that works on up to `most` rows at once.
    pub fn new(trained: Rc<Trained>, most: usize) -> Result<LiveModel> {
        Ok(LiveModel { trained, most: most.max(1), next: 0, running: Vec::new() })
    }

    /// The model.
    pub fn trained(&self) -> &Trained {
        &self.trained
    }

    /// Rows that a job takes: one for each candidate or vote.
    pub fn rows_of(&self, job: &Job) -> usize {
        match self.trained.tokenizer {
            Some(_) => job.sample.candidates,
            None => job.sample.votes,
        }
    }

    /// Rows that are free. A job of more rows than there can be is admitted where nothing else runs.
    pub fn room(&self) -> usize {
        self.most.saturating_sub(self.running.iter().map(|r| r.1).sum())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Begin with jobs, whose images are encoded together; or say of each what is wrong with it.
    pub fn admit(&mut self, jobs: Vec<Job>) -> Vec<Result<JobId>> {
        jobs.into_iter()
            .map(|job| {
                let rows = self.rows_of(&job);
                let events = self.whole(&job)?;
                self.next += 1;
                self.running.push((JobId(self.next), rows, events));
                Ok(JobId(self.next))
            })
            .collect()
    }

    /// Take one step of every job. A job is gone once its last event was told.
    pub fn step(&mut self) -> Result<Vec<(JobId, Event)>> {
        let mut all = Vec::new();
        for (id, _, events) in &mut self.running {
            all.extend(events.pop_front().map(|e| (*id, e)));
            if events.len() == 1 {
                all.extend(events.pop_front().map(|e| (*id, e)));
            }
        }
        self.running.retain(|r| !r.2.is_empty());
        Ok(all)
    }

    /// Fix the token at `place` of a job's texts from the next step on, or free it again.
    pub fn pin(&mut self, _id: JobId, _place: usize, _token: Option<u32>) -> Result<()> {
        Err(Error::Input("not yet".into()))
    }

    /// Forget a job that nobody waits for any more.
    pub fn remove(&mut self, id: JobId) {
        self.running.retain(|r| r.0 != id);
    }

    fn whole(&self, job: &Job) -> Result<VecDeque<Event>> {
        let t = &self.trained;
        let images = match &job.image {
            Some(values) => {
                let e = &t.model.config().encoder;
                Some(tweedie_engine::Tensor::from_f32(
                    &t.model.device(),
                    &[1, e.channels, e.image, e.image],
                    values.clone(),
                )?)
            }
            None => None,
        };
        let mut events = VecDeque::new();
        if t.tokenizer.is_none() {
            let classifier = Classifier::new(t.clone(), &job.sample)?;
            let images = images.ok_or_else(|| Error::Input("this model needs an image".into()))?;
            let all = classifier.distributions(&images, &[job.example])?;
            let of = all.len();
            for (i, (t, p)) in all.into_iter().enumerate() {
                let mut order: Vec<u32> = (0..p.len() as u32).collect();
                order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
                let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
                let top = order.iter().take(job.top).map(|i| (*i, p[*i as usize])).collect::<Vec<_>>();
                let place = Place { id: Some(order[0]), p: p[order[0] as usize], entropy, fixed: false, top };
                let alpha_bar = self.trained.process.schedule().alpha_bar(t);
                events.push_back(Event::Step(LiveStep {
                    step: i + 1,
                    of,
                    t,
                    alpha_bar,
                    places: vec![place],
                    classes: Some(p),
                }));
            }
            let answer = classifier.classify_batch(&images, &[job.example])?.remove(0);
            events.push_back(Event::Done(Outcome::Class(answer)));
            return Ok(events);
        }
        let generator = Generator::new(t.clone(), &job.sample)?;
        let ids = [job.example];
        let request = TextRequest {
            images: images.as_ref(),
            fixed: job.fixed.as_deref(),
            length: job.length,
            min_length: job.min_length,
            trace: Some(job.top),
            ..TextRequest::new(&ids)
        };
        let mut texts = generator.generate(&request)?.remove(0);
        let steps = std::mem::take(&mut texts[0].steps);
        let of = steps.len();
        let tokenizer = t.tokenizer()?;
        let id = |text: &str| (0..tokenizer.vocab() as u32).find(|i| tokenizer.token(*i) == text);
        for (i, s) in steps.into_iter().enumerate() {
            let place = |(k, token): (usize, crate::generate::Token)| Place {
                id: token.text.as_deref().and_then(id),
                p: token.p,
                entropy: token.entropy,
                fixed: job.fixed.as_ref().is_some_and(|f| f[k].is_some()),
                top: token.top.iter().filter_map(|(text, p)| Some((id(text)?, *p))).collect(),
            };
            let places = s.tokens.into_iter().enumerate().map(place).collect();
            let step = LiveStep { step: i + 1, of, t: s.t, alpha_bar: s.alpha_bar, places, classes: None };
            events.push_back(Event::Step(step));
        }
        events.push_back(Event::Done(Outcome::Texts(texts)));
        Ok(events)
    }
}
