//! What a job will do, checked before it begins.

use std::rc::Rc;

use tweedie_engine::ops::choose::{FREE, MAX_TOP};

use super::{Job, Resume};
use crate::config::{NoiseKind, SampleConfig, SamplerKind, Unmasking};
use crate::error::{Error, Result};
use crate::generate::ending_of;
use crate::process::{Process, Times};
use crate::sample::{BuiltIn, Kept, Linear, Posterior, Sampler, candidate_id, check_candidates, planned_steps};
use crate::trained::Trained;

/// What rows must have in common to be one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kind {
    pub guided: bool,
    pub noise: NoiseKind,
    pub running_mean: bool,
    pub walk: Walk,
}

/// How a row goes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Walk {
    /// TDD.
    Noisy(BuiltIn),
    /// The masked twin.
    Masked { drawn: bool, unmask: Unmasking },
}

/// What all rows of a job share.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub kind: Kind,
    pub sample: SampleConfig,
    pub steps: Vec<Times>,
}

/// Seed and example that address the noise of a row.
pub(super) type Address = (u64, u32);

/// The rows of a job.
pub(super) struct Plan {
    pub path: Rc<Path>,
    /// Of each candidate or vote.
    pub rows: Vec<Address>,
    /// Where the rows begin: the steps taken and the tokens.
    pub start: (usize, Vec<u32>),
    pub kept: Kept,
    /// The fixed tokens, and those that an earlier run has committed.
    pub committed: Vec<u32>,
    /// Of classes: one step from noise, for the posterior.
    pub posterior: Option<(Rc<Path>, Vec<Address>)>,
    pub top: usize,
}

impl Plan {
    pub fn of(t: &Trained, job: &Job) -> Result<Plan> {
        job.sample.check()?;
        let (m, sizes, sample) = (&t.model, t.model.sizes(), &job.sample);
        match (&job.image, t.transform.as_ref().map(|t| t.values())) {
            (None, Some(_)) => return Err(Error::Input("this model needs an image".into())),
            (Some(_), None) => return Err(Error::Input("this model takes no images".into())),
            (Some(image), Some(values)) if image.len() != values => {
                return Err(Error::Input(format!("an image of {} values; the model reads {values}", image.len())));
            }
            _ => {}
        }
        if sample.guidance != 1.0 && !m.is_conditional() {
            return Err(Error::Input("guidance needs a condition to guide to; set sample.guidance = 1".into()));
        }
        let text = t.tokenizer.is_some();
        let kept = match text {
            true => Kept::new(
                (1, sizes.tokens, sizes.vocab),
                job.fixed.as_deref(),
                ending_of(t, job.length, job.min_length)?.as_ref(),
            )?,
            false => Kept::new((1, sizes.tokens, sizes.vocab), None, None)?,
        };
        let path = Rc::new(Path::of(t, sample)?);
        let rows = match text {
            true => {
                check_candidates(sample.candidates)?;
                (0..sample.candidates).map(|c| (sample.seed, candidate_id(job.example, c))).collect()
            }
            false => (0..sample.votes).map(|vote| (sample.seed.wrapping_add(vote as u64), job.example)).collect(),
        };
        let start = match &job.resume {
            Some(resume) => (resume.step, path.resumed(t, resume)?),
            None => (0, path.start(t, &kept)),
        };
        let committed = match &job.resume {
            Some(resume) => path.committed(resume, &kept)?,
            None => kept.tokens.clone(),
        };
        let posterior = match text || !m.is_tdd() {
            true => None,
            false => {
                let once = Posterior::one_step();
                Some((Rc::new(Path::of(t, &once)?), (0..once.votes as u64).map(|vote| (vote, 0)).collect()))
            }
        };
        Ok(Plan { path, rows, start, kept, committed, posterior, top: job.top.clamp(1, MAX_TOP.min(sizes.vocab)) })
    }
}

impl Path {
    /// All times that the network is told on it, but for that of clean tokens.
    pub fn times(&self, process: &Process) -> Vec<usize> {
        match self.kind.walk {
            Walk::Noisy(BuiltIn::Staggered(_)) => (1..=process.steps()).collect(),
            _ => self.steps.iter().map(|at| at.t).collect(),
        }
    }

    fn of(t: &Trained, sample: &SampleConfig) -> Result<Path> {
        let sample = &t.sampling(sample);
        let (m, process) = (&t.model, &t.process);
        let sizes = m.sizes();
        sample.check_running_mean(sizes.tokens)?;
        let guided = sample.guidance != 1.0;
        if !m.is_tdd() {
            let drawn = matches!(sample.sampler, SamplerKind::Multinomial | SamplerKind::Ancestral);
            let times = process.schedule().spaced(sample.steps_masked(sizes.tokens));
            let steps = times.windows(2).map(|pair| Times { t: pair[0], s: pair[1] }).collect();
            let walk = Walk::Masked { drawn, unmask: sample.unmask };
            return Ok(Path {
                kind: Kind { guided, noise: NoiseKind::Auto, running_mean: false, walk },
                sample: sample.clone(),
                steps,
            });
        }
        let per_token = m.per_token_time();
        let planned = planned_steps(process, sample, per_token, (sizes.tokens, sizes.vocab))?;
        let sampler = BuiltIn::of(sample, per_token);
        let steps = match sampler {
            BuiltIn::Linear(s) => s.steps(planned),
            BuiltIn::Confident(s) => s.steps(planned),
            BuiltIn::Staggered(s) => s.steps(planned),
        };
        let running_mean = sample.running_mean;
        let kind = Kind { guided, noise: sample.noise, running_mean, walk: Walk::Noisy(sampler) };
        Ok(Path { kind, sample: sample.clone(), steps })
    }

    /// The tokens that rows begin with: the fixed ones; of the masked twin V elsewhere.
    fn start(&self, t: &Trained, kept: &Kept) -> Vec<u32> {
        let open = match self.kind.walk {
            Walk::Masked { .. } => t.model.sizes().vocab as u32,
            Walk::Noisy(_) => 0,
        };
        kept.tokens.iter().map(|k| if *k == FREE { open } else { *k }).collect()
    }

    /// The tokens of a run that is gone on with, if that can be.
    fn resumed(&self, t: &Trained, resume: &Resume) -> Result<Vec<u32>> {
        let sizes = t.model.sizes();
        let most = match self.kind.walk {
            Walk::Masked { .. } => sizes.vocab,
            Walk::Noisy(sampler) if sampler.linear().is_some_and(Linear::carries) => {
                let what = "this sampler carries more from step to step than tokens; go on with argmax or multinomial";
                return Err(Error::Input(what.into()));
            }
            Walk::Noisy(_) => sizes.vocab - 1,
        };
        if resume.tokens.len() != sizes.tokens {
            let (have, n) = (resume.tokens.len(), sizes.tokens);
            return Err(Error::Input(format!("{have} tokens to go on with; the model writes {n}")));
        }
        if let Some(wrong) = resume.tokens.iter().find(|t| **t as usize > most) {
            return Err(Error::Input(format!("token {wrong} to go on with is above {most}")));
        }
        if matches!(self.kind.walk, Walk::Masked { unmask: Unmasking::Confident, .. }) && self.sample.correction > 0.0 {
            let what = "correction goes by the probabilities that tokens were revealed with, which are not handed over; go on with \
                        correction 0";
            return Err(Error::Input(what.into()));
        }
        if resume.step == 0 || resume.step >= self.steps.len() {
            let last = self.steps.len().saturating_sub(1);
            return Err(Error::Input(format!("a run goes on after step 1 to {last}, not {}", resume.step)));
        }
        Ok(resume.tokens.clone())
    }

    /// The fixed tokens, and with a commit order those that a run that is gone on with has committed.
    fn committed(&self, resume: &Resume, kept: &Kept) -> Result<Vec<u32>> {
        let n = resume.tokens.len();
        if !resume.committed.is_empty() && resume.committed.len() != n {
            return Err(Error::Input(format!("{} of {n} tokens are said to be committed", resume.committed.len())));
        }
        let mut all = kept.tokens.clone();
        if matches!(self.kind.walk, Walk::Noisy(BuiltIn::Confident(_))) {
            let given = resume.tokens.iter().zip(&resume.committed);
            for (to, (token, _)) in all.iter_mut().zip(given).filter(|(to, (_, sure))| **to == FREE && **sure) {
                *to = *token;
            }
        }
        Ok(all)
    }
}
