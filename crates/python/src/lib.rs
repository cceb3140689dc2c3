//! Tweedie Discrete Diffusion for Python: the native part of the module, `tweedie._tweedie`. What users see is in `python/tweedie`.
//!
//! | | |
//! |---|---|
//! | `worker`, `errors` | threads that own what may not go from thread to thread; exceptions |
//! | `images`, `wishes` | what callers hand over |
//! | `data` | the data sets that are inside |
//! | `devices` | GPUs, handed from model to model |
//! | `model`, `trace` | a trained model, and one of its samplings step by step |
//! | `metrics` | pycocoevalcap's scorers, diversity, CLIPScore |
//! | `train` | trainings, on paths and on sequences of Python's |
//! | `plug` | schedules, samplers and denoisers that are written in Python |
//! | `tensor` | arrays without a copy: the buffer protocol, DLPack |

mod data;
mod devices;
mod errors;
mod images;
mod metrics;
mod model;
mod plug;
mod tensor;
mod trace;
mod train;
mod wishes;
mod worker;

use pyo3::prelude::*;
use tweedie::engine::cpu;

use errors::raise;

/// How many threads compute; before any work is done.
#[pyfunction]
fn set_threads(count: usize) -> PyResult<()> {
    cpu::set_worker_threads(count).map_err(|e| raise(e.into()))
}

/// Names of the models inside, with what they are.
#[pyfunction]
fn embedded_models() -> Vec<(&'static str, &'static str)> {
    tweedie::embedded::all().iter().map(|m| (m.name, m.about)).collect()
}

/// A trace, as JSON, as a page without anything outside it.
#[pyfunction]
#[pyo3(signature = (trace, image=None))]
fn trace_page(trace: &str, image: Option<&str>) -> PyResult<String> {
    let trace: serde_json::Value = serde_json::from_str(trace).map_err(|e| errors::value(e.to_string()))?;
    tweedie::generate::trace_page(&trace, image).map_err(raise)
}

#[pymodule(gil_used = false)]
fn _tweedie(m: &Bound<PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("Error", m.py().get_type::<errors::TweedieError>())?;
    metrics::register(m)?;
    m.add_class::<model::PyModel>()?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<plug::PySchedule>()?;
    m.add_function(wrap_pyfunction!(plug::sample, m)?)?;
    m.add_function(wrap_pyfunction!(train::train, m)?)?;
    m.add_function(wrap_pyfunction!(train::settings_of, m)?)?;
    m.add_function(wrap_pyfunction!(train::recipes, m)?)?;
    m.add_function(wrap_pyfunction!(set_threads, m)?)?;
    m.add_function(wrap_pyfunction!(data::examples, m)?)?;
    m.add_function(wrap_pyfunction!(trace_page, m)?)?;
    m.add_function(wrap_pyfunction!(embedded_models, m)?)
}
