//! Images from Python. `_images.py` makes one of three things of whatever it is handed: the path of a file, the bytes of one, or an
//! array of bytes (H, W, C).

use std::path::PathBuf;

use numpy::PyReadonlyArray3;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use rayon::prelude::*;
use tweedie::{Error, Image, Result};

use crate::errors::value;

/// An image before it is read.
pub enum Input {
    File(PathBuf),
    Bytes(Vec<u8>),
    Pixels(Image),
}

impl Input {
    /// Read and decode, as the command does.
    pub fn load(self) -> Result<Image> {
        match self {
            Input::File(path) => Image::open(path),
            Input::Bytes(bytes) => {
                Image::decode(&bytes).map_err(|why| Error::Input(format!("an image of bytes: {why}")))
            }
            Input::Pixels(image) => Ok(image),
        }
    }

    /// Read all, on all cores.
    pub fn load_all(inputs: Vec<Input>) -> Result<Vec<Image>> {
        inputs.into_par_iter().map(Input::load).collect()
    }
}

impl FromPyObject<'_, '_> for Input {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Input> {
        if let Ok(path) = object.cast::<PyString>() {
            return Ok(Input::File(path.to_str()?.into()));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Input::Bytes(bytes.as_bytes().to_vec()));
        }
        let pixels: PyReadonlyArray3<u8> = object.extract()?;
        let pixels = pixels.as_array();
        let (height, width, channels) = pixels.dim();
        let data = pixels.iter().copied().collect();
        Image::new(width, height, channels, data).map(Input::Pixels).map_err(value)
    }
}
