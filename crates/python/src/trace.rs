//! A sampling step by step, as it happens: each step is taken when it is asked for.

use std::collections::{HashMap, VecDeque};

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tweedie::generate::Wishes;
use tweedie::live::{Event, Job, JobId, LiveModel, LiveStep, Outcome};
use tweedie::{Error, Result};

use crate::images::Input;
use crate::model::{Owned, Shape, text_dict, told};

/// What a trace begins with.
pub struct Started {
    pub image: Option<Input>,
    pub asked: Wishes,
    pub shape: Shape,
    pub top: usize,
    pub probabilities: bool,
    pub example: u32,
}

/// The traces that go on.
#[derive(Default)]
pub struct Traces {
    all: HashMap<u64, Trace>,
    last: u64,
}

struct Trace {
    live: LiveModel,
    job: JobId,
    told: VecDeque<Event>,
}

/// What comes next: a step, with the number of classes, or the end.
pub struct Next(Event, usize);

impl Traces {
    fn get(&mut self, trace: u64) -> Result<&mut Trace> {
        self.all.get_mut(&trace).ok_or_else(|| Error::Input("this trace is over".into()))
    }

    pub fn pin(&mut self, trace: u64, place: usize, token: Option<u32>) -> Result<()> {
        let trace = self.get(trace)?;
        trace.live.pin(trace.job, place, token)
    }

    pub fn end(&mut self, trace: u64) {
        self.all.remove(&trace);
    }
}

impl Owned {
    /// Begin; the trace's name.
    pub fn begin_trace(&mut self, started: Started) -> Result<u64> {
        let Started { image, asked, shape, top, probabilities, example } = started;
        let mut sample = self.sample(&asked)?;
        sample.votes = asked.votes.unwrap_or(1);
        sample.candidates = asked.candidates.unwrap_or(1);
        let image = match image {
            Some(image) => Some(self.trained.images(&[image.load()?])?.to_vec()?),
            None => None,
        };
        let fixed = if self.trained.tokenizer.is_some() { shape.fixed(&self.trained)? } else { None };
        let (length, min_length) = (shape.length, shape.min_length);
        let rows = sample.candidates.max(sample.votes);
        let job = Job { image, fixed, length, min_length, example, top, probabilities, ..Job::new(&sample) };
        let mut live = LiveModel::new(self.trained.clone(), rows)?;
        let admitted = live.admit(vec![job]).into_iter().next();
        let job = admitted.unwrap_or_else(|| Err(Error::Input("the trace did not begin".into())))?;
        let traces = &mut self.traces;
        traces.last += 1;
        traces.all.insert(traces.last, Trace { live, job, told: VecDeque::new() });
        Ok(traces.last)
    }

    /// Take a step and tell of it.
    pub fn trace_next(&mut self, trace: u64) -> Result<Next> {
        let vocab = self.trained.model.sizes().vocab;
        let running = self.traces.get(trace)?;
        while running.told.is_empty() {
            if running.live.is_idle() {
                return Err(Error::Input("this trace is over".into()));
            }
            running.told.extend(running.live.step()?.into_iter().map(|(_, event)| event));
        }
        match running.told.pop_front() {
            Some(Event::Failed(why)) => Err(Error::Input(why)),
            Some(event) => Ok(Next(event, vocab)),
            None => Err(Error::Input("this trace is over".into())),
        }
    }
}

impl Next {
    /// As a dictionary of arrays.
    pub fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        match self.0 {
            Event::Step(step) => step_into(&dict, step, self.1)?,
            Event::Done(Outcome::Class(answer)) => dict.set_item("answer", told(answer))?,
            Event::Done(Outcome::Texts(texts)) => {
                let texts = texts.into_iter().map(|t| text_dict(py, t)).collect::<PyResult<Vec<_>>>()?;
                dict.set_item("texts", texts)?;
            }
            Event::Failed(why) => dict.set_item("failed", why)?,
        }
        Ok(dict)
    }
}

fn step_into(dict: &Bound<PyDict>, s: LiveStep, vocab: usize) -> PyResult<()> {
    let py = dict.py();
    let n = s.places.len();
    dict.set_item("step", s.step)?;
    dict.set_item("of", s.of)?;
    dict.set_item("t", s.t)?;
    dict.set_item("alpha_bar", s.alpha_bar)?;
    let ids = s.places.iter().map(|p| p.id.map_or(-1, i64::from)).collect();
    dict.set_item("tokens", PyArray1::from_vec(py, ids))?;
    dict.set_item("p", PyArray1::from_vec(py, s.places.iter().map(|p| p.p).collect()))?;
    dict.set_item("entropies", PyArray1::from_vec(py, s.places.iter().map(|p| p.entropy).collect()))?;
    dict.set_item("fixed", PyArray1::from_vec(py, s.places.iter().map(|p| p.fixed).collect()))?;
    dict.set_item("committed", PyArray1::from_vec(py, s.places.iter().map(|p| p.committed).collect()))?;
    let k = s.places.iter().map(|p| p.top.len()).min().unwrap_or(0);
    let top = || s.places.iter().flat_map(|p| p.top[..k].iter());
    dict.set_item("top", PyArray1::from_vec(py, top().map(|t| i64::from(t.0)).collect()).reshape([n, k])?)?;
    dict.set_item("top_p", PyArray1::from_vec(py, top().map(|t| t.1).collect()).reshape([n, k])?)?;
    if let Some(all) = s.probabilities {
        dict.set_item("probabilities", PyArray1::from_vec(py, all).reshape([n, vocab])?)?;
    }
    Ok(())
}
