//! A trained model on a thread of its own: classes, captions, texts, scores. The face that Python sees is `_model.py`.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use tweedie::config::{Config, Precision, SampleConfig};
use tweedie::generate::{Facts, RANK_DRAWS, Text, TextRequest, Wishes, batch_size, infill, prompt};
use tweedie::run::{self, Weights};
use tweedie::tokenize::Tokenizer;
use tweedie::{Answer, Classifier, Device, Error, Generator, Result, Tensor, Trained, interrupt};

use crate::devices::{self, Lent};
use crate::errors::{Raised, raise, value};
use crate::images::Input;
use crate::plug::{Along, Own, PySchedule};
use crate::tensor::{PyTensor, Taken};
use crate::trace::{Started, Traces};
use crate::wishes::wishes;
use crate::worker::{Stop, Worker};

/// Samplers that are kept ready.
const KEPT: usize = 4;

/// Ranking, the sampler's class and its certainty.
type Classified = (Vec<(String, f64)>, String, f64);

/// What the thread owns.
pub struct Owned {
    pub trained: Rc<Trained>,
    pub config: Config,
    classifiers: Ready<Classifier<'static>>,
    generators: Ready<Generator<'static>>,
    pub traces: Traces,
    /// The last to be dropped: nothing lies there any more.
    _device: Lent,
}

/// Samplers by their settings, the last used first: what depends on the weights alone is computed once.
struct Ready<T>(Vec<(SampleConfig, T)>);

impl<T> Ready<T> {
    fn of(&mut self, sample: &SampleConfig, make: impl FnOnce() -> Result<T>) -> Result<&T> {
        match self.0.iter().position(|(s, _)| s == sample) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                let made = make()?;
                self.0.truncate(KEPT - 1);
                self.0.insert(0, (sample.clone(), made));
            }
        }
        Ok(&self.0[0].1)
    }
}

impl Owned {
    fn classifier(&mut self, sample: &SampleConfig) -> Result<&Classifier<'static>> {
        let trained = &self.trained;
        self.classifiers.of(sample, || Classifier::new(trained.clone(), sample))
    }

    fn generator(&mut self, sample: &SampleConfig) -> Result<&Generator<'static>> {
        let trained = &self.trained;
        self.generators.of(sample, || Generator::new(trained.clone(), sample))
    }

    /// The settings that come of wishes.
    pub fn sample(&self, asked: &Wishes) -> Result<SampleConfig> {
        let facts = Facts::of(&self.trained.model);
        asked.over(&self.config.sample, facts).map_err(|refusal| Error::Input(refusal.in_fields()))
    }
}

/// What text is asked for besides its sampling.
#[derive(Clone, Default, FromPyObject)]
#[pyo3(from_item_all)]
pub struct Shape {
    pub prompt: Option<String>,
    pub infill: Option<String>,
    pub length: Option<usize>,
    pub min_length: usize,
}

impl Shape {
    /// Fixed tokens by `infill` or `prompt`.
    pub fn fixed(&self, t: &Trained) -> Result<Option<Vec<Option<u32>>>> {
        let (tokenizer, n) = (t.tokenizer()?, t.model.sizes().tokens);
        match (&self.infill, &self.prompt) {
            (Some(_), Some(_)) => Err(Error::Input("give prompt or infill, not both".into())),
            (Some(text), None) => Ok(Some(infill(tokenizer, n, text)?)),
            (None, Some(text)) => Ok(Some(prompt(tokenizer, n, text)?)),
            (None, None) => Ok(None),
        }
    }
}

/// Samplers of the caller's: a schedule to go along, and an object with `step`.
struct Plugged {
    schedule: Option<PySchedule>,
    sampler: Option<Py<PyAny>>,
    raised: Raised,
}

impl Plugged {
    fn new(schedule: Option<Bound<PySchedule>>, sampler: Option<Py<PyAny>>) -> Plugged {
        Plugged { schedule: schedule.map(|s| s.get().clone()), sampler, raised: Raised::default() }
    }

    fn is_none(&self) -> bool {
        self.schedule.is_none() && self.sampler.is_none()
    }

    /// The sampler, for a model of noise.
    fn sampler(&self, t: &Trained, sample: &SampleConfig) -> Result<Along> {
        if !t.model.is_tdd() {
            let what = "a sampler or a schedule of your own goes with TDD; the masked twin reveals tokens by unmask and sampler";
            return Err(Error::Input(what.into()));
        }
        let process = &t.process;
        let steps = self.schedule.as_ref().map(|s| process.spaced_along(&s.0, sample.steps));
        let own = self.sampler.as_ref().map(|s| {
            Python::attach(|py| Own { object: s.clone_ref(py), process: process.clone(), raised: self.raised.clone() })
        });
        Ok(Along::new(own, &t.sampling(sample), t.model.per_token_time(), steps))
    }
}

/// A model. One thread works for it; calls of several Python threads wait for each other.
#[pyclass(name = "Model", module = "tweedie._tweedie", frozen)]
pub struct PyModel {
    pub worker: Worker<Owned>,
    tokenizer: Option<Arc<Tokenizer>>,
    facts: String,
}

#[pymethods]
impl PyModel {
    /// Load a run folder, a checkpoint, a model file or `embedded:NAME`.
    #[new]
    fn new(py: Python, path: PathBuf, device: String, raw: bool) -> PyResult<PyModel> {
        let (worker, (tokenizer, facts)) = Worker::start(py, "tweedie model", move || {
            let device = devices::lend(&device)?;
            let weights = if raw { Weights::Raw } else { Weights::Ema };
            let loaded = run::load(&path, weights, &device.device, Precision::Auto)?;
            let facts = facts_of(&path, &device.reason, &loaded)?;
            let tokenizer = loaded.trained.tokenizer.clone();
            let trained = Rc::new(loaded.trained);
            let owned = Owned {
                trained,
                config: loaded.config,
                classifiers: Ready(Vec::new()),
                generators: Ready(Vec::new()),
                traces: Traces::default(),
                _device: device,
            };
            Ok((owned, (tokenizer, facts)))
        })?;
        Ok(PyModel { worker, tokenizer, facts })
    }

    /// What there is to know of it, as JSON.
    #[getter]
    fn facts(&self) -> &str {
        &self.facts
    }

    fn encode(&self, text: &str) -> PyResult<Vec<u32>> {
        self.tokenizer()?.try_encode(text).map_err(raise)
    }

    fn decode(&self, ids: Vec<u32>) -> PyResult<String> {
        Ok(self.tokenizer()?.decode(&ids))
    }

    /// A token as it is shown to people.
    fn token(&self, id: u32) -> PyResult<String> {
        Ok(self.tokenizer()?.token(id))
    }

    /// What each image shows.
    #[pyo3(signature = (images, asked, schedule, sampler))]
    fn classify(
        &self,
        py: Python,
        images: Vec<Input>,
        asked: &str,
        schedule: Option<Bound<PySchedule>>,
        sampler: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Classified>> {
        let (asked, plugged) = (wishes(asked)?, Plugged::new(schedule, sampler));
        let raised = plugged.raised.clone();
        let work = move |o: &mut Owned| {
            let sample = o.sample(&asked)?;
            let images = Input::load_all(images)?;
            if plugged.is_none() {
                return o.classifier(&sample)?.classify_all(&images);
            }
            let by = plugged.sampler(&o.trained, &sample)?;
            Classifier::new(o.trained.clone(), &sample)?.with_sampler(by).classify_all(&images)
        };
        let answers = self.stoppable(py, &raised, work)?;
        Ok(answers.into_iter().map(told).collect())
    }

    /// Texts of each image.
    #[pyo3(signature = (images, asked, shape, draws, schedule, sampler))]
    #[allow(clippy::too_many_arguments)]
    fn caption<'py>(
        &self,
        py: Python<'py>,
        images: Vec<Input>,
        asked: &str,
        shape: Shape,
        draws: usize,
        schedule: Option<Bound<PySchedule>>,
        sampler: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyDict>>>> {
        let work = move |o: &mut Owned, generator: Option<&Generator>, sample: &SampleConfig| {
            let images = Input::load_all(images)?;
            let t = o.trained.clone();
            let fixed = shape.fixed(&t)?;
            let generator = match generator {
                Some(own) => own,
                None => o.generator(sample)?,
            };
            let mut all = Vec::with_capacity(images.len());
            for part in images.chunks(rows(&t, sample)) {
                let (tensor, ids) = (t.images(part)?, vec![0; part.len()]);
                all.extend(write(generator, &shape, fixed.as_deref(), Some(&tensor), &ids)?);
            }
            Ok(all)
        };
        self.written(py, asked, draws, Plugged::new(schedule, sampler), work)
    }

    /// `number` texts.
    #[pyo3(signature = (number, asked, shape, draws, schedule, sampler))]
    #[allow(clippy::too_many_arguments)]
    fn generate<'py>(
        &self,
        py: Python<'py>,
        number: u32,
        asked: &str,
        shape: Shape,
        draws: usize,
        schedule: Option<Bound<PySchedule>>,
        sampler: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyDict>>>> {
        let work = move |o: &mut Owned, generator: Option<&Generator>, sample: &SampleConfig| {
            let t = o.trained.clone();
            let fixed = shape.fixed(&t)?;
            let generator = match generator {
                Some(own) => own,
                None => o.generator(sample)?,
            };
            let ids: Vec<u32> = (0..number).collect();
            let mut all = Vec::with_capacity(ids.len());
            for part in ids.chunks(rows(&t, sample)) {
                all.extend(write(generator, &shape, fixed.as_deref(), None, part)?);
            }
            Ok(all)
        };
        self.written(py, asked, draws, Plugged::new(schedule, sampler), work)
    }

    /// Bound in nats, its standard error and the number of tokens, of each text.
    fn score(
        &self,
        py: Python,
        texts: Vec<String>,
        images: Option<Vec<Input>>,
        draws: usize,
    ) -> PyResult<Vec<(f64, f64, usize)>> {
        let work = move |o: &mut Owned| {
            let images = images.map(Input::load_all).transpose()?;
            let sample = o.config.sample.clone();
            o.generator(&sample)?.score(&texts, images.as_deref(), draws)
        };
        let scores = self.stoppable(py, &Raised::default(), work)?;
        Ok(scores.into_iter().map(|s| (s.nats, s.error, s.tokens)).collect())
    }

    /// Images as the network reads them, f32 [B, C, side, side] on its device.
    fn prepare(&self, py: Python, images: Vec<Input>) -> PyResult<PyTensor> {
        self.stoppable(py, &Raised::default(), move |o| PyTensor::new(o.trained.images(&Input::load_all(images)?)?))
    }

    /// Class logits [B, V] of prepared images, on the model's device.
    fn logits(&self, py: Python, images: &Bound<PyTensor>, asked: &str) -> PyResult<PyTensor> {
        let (asked, images) = (wishes(asked)?, images.get().tensor());
        let work = move |o: &mut Owned| {
            let e = &o.config.model.encoder;
            let want = [e.channels, e.image, e.image];
            if images.shape().len() != 4 || images.shape()[1..] != want {
                let have = images.shape();
                return Err(Error::Input(format!(
                    "images must be [B, {}, {}, {}], they are {have:?}",
                    want[0], want[1], want[2]
                )));
            }
            let images = images.to_device(&o.trained.model.device())?;
            let sample = o.sample(&asked)?;
            let ids = vec![0; images.shape()[0]];
            let classes = o.trained.model.sizes().vocab;
            PyTensor::narrow(o.classifier(&sample)?.logits(&images, &ids)?, classes)
        };
        self.stoppable(py, &Raised::default(), work)
    }

    /// Copy what lies on the model's GPU at a DLPack capsule's address; nothing goes through the host.
    fn import_tensor(&self, py: Python, object: Py<PyAny>) -> PyResult<PyTensor> {
        let device = self.worker.call(py, |o, _| Ok(o.trained.model.device()))?;
        let Device::Cuda(c) = device else { return Err(value("the model is on the CPU; hand it an array of the CPU")) };
        let taken = Taken::new(object.bind(py), &c)?;
        let (address, shape, dtype) = taken.place()?;
        // SAFETY: whoever made the capsule says that so many elements lie at this address, and keeps them until `taken` is dropped; the
        // device was compared, and the stream that copies was handed over to wait.
        let copy = move |_: &mut Owned, _: &Stop| PyTensor::new(unsafe { c.copy_of(address, &shape, dtype) }?);
        self.worker.call(py, copy)
    }

    /// Begin a trace; its name.
    #[pyo3(signature = (image, asked, shape, top, probabilities, example))]
    #[allow(clippy::too_many_arguments)]
    fn trace(
        &self,
        py: Python,
        image: Option<Input>,
        asked: &str,
        shape: Shape,
        top: usize,
        probabilities: bool,
        example: u32,
    ) -> PyResult<u64> {
        let asked = wishes(asked)?;
        let started = Started { image, asked, shape, top, probabilities, example };
        self.worker.call(py, move |o, _| o.begin_trace(started))
    }

    /// The next step of a trace, or its end.
    fn trace_next<'py>(&self, py: Python<'py>, trace: u64) -> PyResult<Bound<'py, PyDict>> {
        let event = self.stoppable(py, &Raised::default(), move |o| o.trace_next(trace))?;
        event.into_dict(py)
    }

    /// Fix a token of a trace, or free it.
    fn trace_pin(&self, py: Python, trace: u64, place: usize, token: Option<u32>) -> PyResult<()> {
        self.worker.call(py, move |o, _| o.traces.pin(trace, place, token))
    }

    /// Forget a trace. Nobody waits for that.
    fn trace_end(&self, trace: u64) {
        let _ = self.worker.send(move |o| o.traces.end(trace));
    }

    /// An image as the model sees it, before its values are normalised: PNG.
    fn preview<'py>(&self, py: Python<'py>, image: Input) -> PyResult<Bound<'py, pyo3::types::PyBytes>> {
        let png = self.worker.call(py, move |o, _| o.trained.preview(image.load()?)?.to_png().map_err(Error::Input))?;
        Ok(pyo3::types::PyBytes::new(py, &png))
    }
}

impl PyModel {
    fn tokenizer(&self) -> PyResult<&Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(|| value("this model classifies images; it knows no text"))
    }

    /// Work that ends at the next step once Ctrl-C was pressed.
    fn stoppable<R: Send + 'static>(
        &self,
        py: Python,
        raised: &Raised,
        work: impl FnOnce(&mut Owned) -> Result<R> + Send + 'static,
    ) -> PyResult<R> {
        let stopping = move |o: &mut Owned, stop: &Stop| {
            let stop = stop.clone();
            interrupt::stoppable(move || stop.asked(), || work(o))
        };
        self.worker.call_raising(py, stopping, |e| raised.or_raise(e))
    }

    fn written<'py>(
        &self,
        py: Python<'py>,
        asked: &str,
        draws: usize,
        plugged: Plugged,
        work: impl FnOnce(&mut Owned, Option<&Generator>, &SampleConfig) -> Result<Vec<Vec<Text>>> + Send + 'static,
    ) -> PyResult<Vec<Vec<Bound<'py, PyDict>>>> {
        let (asked, raised) = (wishes(asked)?, plugged.raised.clone());
        let all = self.stoppable(py, &raised, move |o| {
            let sample = o.sample(&asked)?;
            if plugged.is_none() && draws == RANK_DRAWS {
                return work(o, None, &sample);
            }
            let mut generator = Generator::new(o.trained.clone(), &sample)?.with_draws(draws);
            if !plugged.is_none() {
                generator = generator.with_sampler(plugged.sampler(&o.trained, &sample)?);
            }
            work(o, Some(&generator), &sample)
        })?;
        all.into_iter().map(|texts| texts.into_iter().map(|t| text_dict(py, t)).collect()).collect()
    }
}

/// Texts that are worked on at a time. Candidates are a batch by themselves.
fn rows(t: &Trained, sample: &SampleConfig) -> usize {
    if sample.candidates > 1 { 1 } else { batch_size(t) }
}

fn write(
    generator: &Generator,
    shape: &Shape,
    fixed: Option<&[Option<u32>]>,
    images: Option<&Tensor>,
    examples: &[u32],
) -> Result<Vec<Vec<Text>>> {
    let Shape { length, min_length, .. } = *shape;
    generator.generate(&TextRequest { images, fixed, length, min_length, ..TextRequest::new(examples) })
}

/// An answer in plain parts.
pub fn told(answer: Answer) -> (Vec<(String, f64)>, String, f64) {
    (answer.posterior.0, answer.sampled, answer.certainty)
}

/// A text as a dictionary.
pub fn text_dict(py: Python<'_>, t: Text) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("text", t.text)?;
    dict.set_item("tokens", PyArray1::from_vec(py, t.tokens))?;
    dict.set_item("nats", t.nats)?;
    dict.set_item("consensus", t.consensus)?;
    Ok(dict)
}

fn facts_of(path: &std::path::Path, reason: &str, loaded: &run::Loaded) -> Result<String> {
    let t = &loaded.trained;
    let (sizes, c) = (t.model.sizes(), &loaded.config);
    let (mean, std) = c.augment.statistics(c.model.encoder.channels)?;
    let facts = json!({
        "path": path.display().to_string(),
        "checkpoint": loaded.checkpoint.display().to_string(),
        "step": loaded.step,
        "notes": loaded.notes,
        "task": t.task(),
        "method": if t.model.is_tdd() { "tdd" } else { "mdd" },
        "device": t.model.device().to_string(),
        "device_reason": reason,
        "classes": t.class_names,
        "vocab": sizes.vocab,
        "tokens": sizes.tokens,
        "per_token_time": t.model.per_token_time(),
        "conditional": t.model.is_conditional(),
        "temperature": t.temperature,
        "parameters": t.model.params.iter().map(|(_, shape, _)| shape.iter().product::<usize>()).sum::<usize>(),
        "image": {"channels": c.model.encoder.channels, "size": c.model.encoder.image},
        "mean": mean,
        "std": std,
        "sample": c.sample,
        "data": c.data.path,
        "schedule_steps": t.process.steps(),
    });
    Ok(facts.to_string())
}
