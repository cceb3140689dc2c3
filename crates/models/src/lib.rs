//! Small trained models that come with `tweedie`: bytes, and nothing that reads them.

/// A model by its name, as one file.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// What comes after `embedded:`.
    pub name: &'static str,
    /// The file.
    pub bytes: &'static [u8],
}

/// All of them.
pub static MODELS: &[Embedded] = &[];
