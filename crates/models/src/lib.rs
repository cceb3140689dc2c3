//! Small trained models that come with `tweedie`: bytes, and nothing that reads them. `scripts/embedded_models` made them.

/// A model by its name, as one file.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// What comes after `embedded:`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// How good it is, as it was measured.
    pub quality: Quality,
    /// The file.
    pub bytes: &'static [u8],
}

/// How good a model is on examples that it was not trained on, drawn as its own settings say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quality {
    /// Percent of images whose class is right.
    Accuracy(f64),
    /// Percent of captions that are right word for word.
    Exact(f64),
    /// Bits per character: an upper bound.
    Bits(f64),
}

/// All of them.
pub static MODELS: &[Embedded] = &[];
