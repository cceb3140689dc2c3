//! Errors of the library as exceptions of the right kind.

use std::io::ErrorKind;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError, PyKeyboardInterrupt, PyOSError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use tweedie::Error;

create_exception!(tweedie, TweedieError, PyException, "What tweedie could not do, and what helps.");

/// The exception for an error of the library.
pub fn raise(e: Error) -> PyErr {
    let message = e.to_string();
    match e {
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        Error::File { source, .. } => match source.kind() {
            ErrorKind::NotFound => PyFileNotFoundError::new_err(message),
            ErrorKind::PermissionDenied => PyPermissionError::new_err(message),
            _ => PyOSError::new_err(message),
        },
        Error::Input(_) | Error::Misfit { .. } | Error::UnknownWord { .. } => PyValueError::new_err(message),
        _ => TweedieError::new_err(message),
    }
}
