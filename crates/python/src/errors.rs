//! Errors of the library as exceptions of the right kind, with the hint that the command gives.

use std::io::{self, ErrorKind};

use pyo3::exceptions::{
    PyFileNotFoundError, PyIsADirectoryError, PyKeyboardInterrupt, PyOSError, PyPermissionError, PyValueError,
};
use pyo3::prelude::*;
use tweedie::Error;
use tweedie::data::DataError;

/// Named as Python sees it.
mod exception {
    pyo3::create_exception!(
        tweedie,
        Error,
        pyo3::exceptions::PyException,
        "What tweedie could not do, and what helps."
    );
}

pub use exception::Error as TweedieError;

/// The exception for an error of the library.
pub fn raise(e: Error) -> PyErr {
    let message = match e.hint() {
        Some(hint) => format!("{e}\nhint: {hint}"),
        None => e.to_string(),
    };
    match e {
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::File { source, .. } | Error::Data(DataError::Io { source, .. }) => of_system(&source, message),
        Error::Data(DataError::Missing { .. }) => PyFileNotFoundError::new_err(message),
        Error::Input(_) | Error::Misfit { .. } | Error::UnknownWord { .. } | Error::Data(_) => {
            PyValueError::new_err(message)
        }
        Error::NoRecipe { .. } | Error::NoData | Error::OwnData { .. } | Error::OtherData { .. } => {
            PyValueError::new_err(message)
        }
        Error::Engine(tweedie::engine::Error::Op { op: "device", .. }) => PyValueError::new_err(message),
        _ => TweedieError::new_err(message),
    }
}

fn of_system(source: &io::Error, message: String) -> PyErr {
    match source.kind() {
        ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
        ErrorKind::IsADirectory => PyIsADirectoryError::new_err(message),
        ErrorKind::PermissionDenied => PyPermissionError::new_err(message),
        _ => PyOSError::new_err(message),
    }
}

/// A `ValueError`.
pub fn value(message: impl Into<String>) -> PyErr {
    PyValueError::new_err(message.into())
}

/// An exception of Python code that the library called, on its way through the library's errors: it is put here, and raised again
/// where Python called.
#[derive(Clone, Default)]
pub struct Raised(std::sync::Arc<std::sync::Mutex<Option<PyErr>>>);

impl Raised {
    /// Keep the exception of `result`, and stop the work at hand.
    pub fn through<T>(&self, result: PyResult<T>) -> tweedie::Result<T> {
        result.map_err(|e| {
            if let Ok(mut slot) = self.0.lock() {
                slot.get_or_insert(e);
            }
            Error::Interrupted
        })
    }

    /// Whether there was an exception.
    pub fn is_set(&self) -> bool {
        self.0.lock().is_ok_and(|slot| slot.is_some())
    }

    /// Raise the exception, if there was one.
    pub fn check(&self) -> PyResult<()> {
        self.0.lock().ok().and_then(|mut slot| slot.take()).map_or(Ok(()), Err)
    }

    /// The exception, if there was one, else what the library says.
    pub fn or_raise(&self, e: Error) -> PyErr {
        let kept = self.0.lock().ok().and_then(|mut slot| slot.take());
        kept.unwrap_or_else(|| raise(e))
    }
}
