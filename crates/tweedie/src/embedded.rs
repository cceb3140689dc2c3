//! Trained models that come with the program: digits, captions of drawn scenes, and Shakespeare's characters, each as TDD and as its
//! masked twin. Whatever opens a run takes `embedded:NAME` too.
//!
//! ```
//! use tweedie::{Classifier, Dataset};
//!
//! let digits = Dataset::embedded("digits")?;
//! let example = digits.final_split()?.0.get(0)?;
//! let answer = Classifier::open("embedded:digits")?.classify(&example.image)?;
//! println!("{}", answer.top(3));
//! # Ok::<(), tweedie::Error>(())
//! ```

use std::path::Path;

use tweedie_engine::Device;
pub use tweedie_models::{Embedded, Quality};

use crate::config::Precision;
use crate::error::{Error, Result};
use crate::model_file;
use crate::run::Loaded;

/// What comes before the name in a path.
pub const PREFIX: &str = "embedded:";

/// What such a model is for, in words.
pub(crate) const USES: &str = "classify, caption, generate, trace, eval and score take it, and export with --out";

/// All of them, with their names, what they are, and how good.
pub fn all() -> &'static [Embedded] {
    tweedie_models::MODELS
}

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().iter().map(|m| m.name)
}

/// The name in a path of the form `embedded:NAME`.
pub fn name_in(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(PREFIX)
}

/// A model by its name.
pub fn load(name: &str, device: &Device, precision: Precision) -> Result<Loaded> {
    let model = all().iter().find(|m| m.name == name).ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        Error::Input(format!("there is no embedded model '{name}'; there are {}", names.join(", ")))
    })?;
    model_file::read(format!("{PREFIX}{name}"), model.bytes, device, precision)
}
