//! Tweedie Discrete Diffusion for Python: the native part of the module, `tweedie._tweedie`. What users see is in `python/tweedie`.

mod errors;
mod metrics;
mod worker;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _tweedie(m: &Bound<PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("Error", m.py().get_type::<errors::TweedieError>())?;
    metrics::register(m)?;
    Ok(())
}
