//! The data sets that are inside.

use numpy::{PyArray1, PyArray3, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tweedie::data::{DataError, Image, SequenceSet};
use tweedie::{Dataset, Error};

use crate::errors::{raise, value};

type Pixels<'py> = Bound<'py, PyArray3<u8>>;

fn pixels(py: Python<'_>, image: Image) -> PyResult<Pixels<'_>> {
    PyArray1::from_vec(py, image.data).reshape([image.height, image.width, image.channels])
}

/// The split of that name, of all three.
fn chosen<'a, S>(split: &str, [train, validation, test]: [Result<&'a S, DataError>; 3]) -> PyResult<&'a S> {
    let found = match split {
        "train" => train,
        "validation" => validation,
        "test" => test,
        _ => return Err(value(format!("split = {split:?}; there are train, validation and test"))),
    };
    found.map_err(|e| raise(Error::from(e)))
}

/// Images of an embedded set with their classes or captions; `count` of them, or all.
#[pyfunction]
pub fn examples<'py>(py: Python<'py>, name: &str, split: &str, count: usize) -> PyResult<Bound<'py, PyList>> {
    let all = PyList::empty(py);
    let of = |e: DataError| raise(Error::from(e));
    let limit = |len: usize| if count == 0 { len } else { count.min(len) };
    match name {
        "digits" => {
            let set = Dataset::embedded(name).map_err(of)?;
            let source = chosen(split, [set.train(), set.val(), set.final_split().map(|s| s.0)])?;
            for i in 0..limit(source.len()) {
                let item = source.get(i).map_err(of)?;
                let class = set.class_names.get(item.label as usize).map_or("", String::as_str);
                all.append((pixels(py, item.image)?, class))?;
            }
        }
        "shapes" => {
            let set = SequenceSet::embedded(name).map_err(of)?;
            let source = chosen(split, [set.train(), set.val(), set.final_split().map(|s| s.0)])?;
            for i in 0..limit(source.len()) {
                let image = source.image(i).map_err(of)?.unwrap_or_default();
                all.append((pixels(py, image)?, source.texts(i).map_err(of)?))?;
            }
        }
        _ => return Err(value(format!("there is no embedded data set {name:?}; there are digits and shapes"))),
    }
    Ok(all)
}
