//! Schedules, samplers and denoisers that are written in Python.

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArrayDyn};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tweedie::config::SampleConfig;
use tweedie::process::{Process, Times, Update};
use tweedie::sample::{At, Denoise, Mix, Prediction, Sampler, State, sample_tokens_by, sampler_of};
use tweedie::{Error, Result, Schedule, ScheduleKind, Tensor, interrupt};

use crate::errors::{Raised, raise, value};
use crate::tensor::PyTensor;
use crate::wishes::wishes;
use crate::worker::Worker;

/// ᾱ_t of T steps: a curve of one's own, or one by its name.
#[pyclass(name = "Schedule", module = "tweedie._tweedie", frozen)]
#[derive(Clone)]
pub struct PySchedule(pub Schedule);

#[pymethods]
impl PySchedule {
    /// A schedule by its name, for so many classes.
    #[staticmethod]
    fn named(name: &str, steps: usize, vocab: usize) -> PyResult<PySchedule> {
        let kind: ScheduleKind = name.parse().map_err(raise)?;
        Ok(PySchedule(Schedule::new(kind, steps, vocab).map_err(raise)?))
    }

    /// Of a falling curve.
    #[staticmethod]
    fn of_curve(curve: &Bound<PyAny>, steps: usize) -> PyResult<PySchedule> {
        let raised = Raised::default();
        let at = |u: f64| raised.through(curve.call1((u,)).and_then(|x| x.extract())).unwrap_or(f64::NAN);
        let made = Schedule::from_alpha_bar(at, steps);
        // An exception of the curve comes before what its missing values are told to be.
        raised.check()?;
        Ok(PySchedule(made.map_err(raise)?))
    }

    #[getter]
    fn steps(&self) -> usize {
        self.0.steps()
    }

    /// ᾱ of all times, 0 to T.
    #[getter]
    fn alpha_bar<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f64>> {
        PyArray1::from_vec(py, (0..=self.0.steps()).map(|t| self.0.alpha_bar(t)).collect())
    }
}

/// A sampler that is an object of Python with `step`.
pub struct Own {
    pub object: Py<PyAny>,
    pub process: Process,
    pub raised: Raised,
}

/// What `step` may return.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Plan<'py> {
    take: String,
    tokens: Option<PyReadonlyArrayDyn<'py, u32>>,
    temperature: Option<f32>,
    clean: Factor<'py>,
    keep: Factor<'py>,
    noise: Factor<'py>,
}

#[derive(FromPyObject)]
enum Factor<'py> {
    One(f64),
    Each(PyReadonlyArrayDyn<'py, f64>),
}

impl Factor<'_> {
    fn values(&self, places: usize) -> PyResult<Vec<f64>> {
        match self {
            Factor::One(x) => Ok(vec![*x; places]),
            Factor::Each(all) if all.as_array().len() == places => Ok(all.as_array().iter().copied().collect()),
            Factor::Each(all) => {
                let have = all.as_array().shape().to_vec();
                Err(value(format!(
                    "factors of an update are one number or one for each of {places} tokens, not {have:?}"
                )))
            }
        }
    }
}

/// The same without Python.
struct Chosen {
    take: String,
    tokens: Option<Vec<u32>>,
    temperature: Option<f32>,
    mix: Mix,
}

impl Own {
    fn ask(&self, prediction: &Prediction, at: Times) -> Result<Chosen> {
        let [b, n, v] = prediction.shape();
        let (logits, likely) = (prediction.logits()?, prediction.argmax()?);
        let (tokens, log_probs) = (likely.tokens()?, likely.log_probs()?);
        let updates = [self.process.renoise(at.s), self.process.ddim(at), self.process.reverse(at)];
        let alpha_bar = [at.t, at.s].map(|t| self.process.schedule().alpha_bar(t));
        let asked = Python::attach(|py| {
            let told = PyDict::new(py);
            told.set_item("logits", PyArray1::from_vec(py, logits).reshape([b, n, v])?)?;
            told.set_item("tokens", PyArray1::from_vec(py, tokens).reshape([b, n])?)?;
            told.set_item("log_p", PyArray1::from_vec(py, log_probs).reshape([b, n])?)?;
            told.set_item("t", at.t)?;
            told.set_item("s", at.s)?;
            told.set_item("alpha_bar", alpha_bar)?;
            told.set_item("updates", updates.map(|u| (u.clean, u.keep, u.noise)))?;
            let plan: Bound<PyAny> = self.object.bind(py).call1((told,))?;
            let plan: Plan = plan.extract()?;
            let mix = match (&plan.clean, &plan.keep, &plan.noise) {
                (&Factor::One(clean), &Factor::One(keep), &Factor::One(noise)) => {
                    Mix::All(Update { clean, keep, noise })
                }
                (clean, keep, noise) => {
                    let (c, k, z) = (clean.values(b * n)?, keep.values(b * n)?, noise.values(b * n)?);
                    Mix::Each((0..b * n).map(|i| Update { clean: c[i], keep: k[i], noise: z[i] }).collect())
                }
            };
            let tokens = plan.tokens.map(|t| t.as_array().iter().copied().collect());
            Ok(Chosen { take: plan.take, tokens, temperature: plan.temperature, mix })
        });
        self.raised.through(asked)
    }
}

impl Sampler for Own {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let Chosen { take, tokens, temperature, mix } = self.ask(prediction, at)?;
        let clean = match (take.as_str(), tokens) {
            (_, Some(tokens)) => prediction.tokens(&tokens)?,
            ("argmax", _) => prediction.argmax()?,
            ("draw", _) => prediction.draw_at(temperature.unwrap_or(1.0))?,
            ("mean", _) => prediction.mean()?,
            (other, _) => {
                return Err(Error::Input(format!(
                    "a step takes \"argmax\", \"draw\", \"mean\" or tokens, not {other:?}"
                )));
            }
        };
        state.update(&clean, mix)
    }
}

/// The steps of another schedule, by a sampler of the caller's or a built-in one.
pub struct Along {
    inner: Box<dyn Sampler>,
    steps: Option<Vec<Times>>,
}

impl Along {
    pub fn new(own: Option<Own>, sample: &SampleConfig, per_token_time: bool, steps: Option<Vec<Times>>) -> Along {
        let inner: Box<dyn Sampler> = match own {
            Some(own) => Box::new(own),
            None => sampler_of(sample, per_token_time),
        };
        Along { inner, steps }
    }
}

impl Sampler for Along {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        self.inner.step(state, prediction, at)
    }

    fn steps(&self, planned: Vec<Times>) -> Vec<Times> {
        self.inner.steps(self.steps.clone().unwrap_or(planned))
    }

    fn reads_log_probs(&self) -> bool {
        self.inner.reads_log_probs()
    }
}

/// A denoiser that is a function of Python.
struct Function {
    function: Py<PyAny>,
    vocab: usize,
    raised: Raised,
}

impl Denoise for Function {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        // A copy that Python may keep and write to.
        let own = PyTensor::new(Tensor::from_f32(&noisy.device(), noisy.shape(), noisy.to_vec()?)?)?;
        let told = Python::attach(|py| {
            let logits = self.function.bind(py).call1((own, at.t))?;
            let logits: PyReadonlyArrayDyn<f32> = logits.extract()?;
            let logits = logits.as_array();
            Ok((logits.shape().to_vec(), logits.iter().copied().collect()))
        });
        let (shape, values) = self.raised.through(told)?;
        Ok(Tensor::from_f32(&noisy.device(), &shape, values)?)
    }
}

/// Tokens [B, N] with their log-probabilities, by a denoiser of the caller's.
#[pyfunction]
#[pyo3(signature = (denoiser, vocab, tokens, examples, schedule, asked, sampler))]
#[allow(clippy::too_many_arguments)]
pub fn sample<'py>(
    py: Python<'py>,
    denoiser: Py<PyAny>,
    vocab: usize,
    tokens: usize,
    examples: Vec<u32>,
    schedule: &Bound<'py, PySchedule>,
    asked: &str,
    sampler: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let (asked, raised) = (wishes(asked)?, Raised::default());
    let facts = tweedie::generate::Facts { tdd: true, per_token_time: false, conditional: true };
    let sample = asked.over(&SampleConfig::default(), facts).map_err(|r| value(r.in_fields()))?;
    let process = Process::new(schedule.get().0.clone());
    let (keep, b) = (raised.clone(), examples.len());
    let (worker, ()) = Worker::start(py, "tweedie sample", || Ok(((), ())))?;
    let work = move |(): &mut (), stop: &crate::worker::Stop| {
        let stop = stop.clone();
        let denoiser = Function { function: denoiser, vocab, raised: keep.clone() };
        let own = sampler.map(|object| Own { object, process: process.clone(), raised: keep });
        let by = Along::new(own, &sample, false, None);
        interrupt::stoppable(
            move || stop.asked(),
            || sample_tokens_by(&by, &denoiser, &process, &sample, (&examples, tokens), None),
        )
    };
    let made = worker.call_raising(py, work, |e| raised.or_raise(e))?;
    let ids = PyArray1::from_vec(py, made.tokens).reshape([b, tokens])?;
    let log_p = PyArray1::from_vec(py, made.log_probs).reshape([b, tokens])?;
    Ok((ids.into_any(), log_p.into_any()))
}
