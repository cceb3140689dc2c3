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

/// Some pages of Shakespeare from the part of tinyshakespeare that no model here was trained on, from the middle of The Taming of the Shrew.
/// What their bits per character are measured on.
pub static SHAKESPEARE: &str = include_str!("../data/shakespeare-test.txt");

macro_rules! models {
    ($($name:literal: $quality:expr, $about:literal,)*) => {
        /// All of them.
        pub static MODELS: &[Embedded] = &[$(Embedded {
            name: $name,
            about: $about,
            quality: $quality,
            bytes: include_bytes!(concat!("../data/", $name, ".tdd")),
        }),*];
    };
}

models! {
    "digits": Quality::Accuracy(99.16), "Handwritten digits of 8×8 pixels, by Tweedie discrete diffusion.",
    "digits-mdd": Quality::Accuracy(99.44), "Handwritten digits of 8×8 pixels, by masked diffusion.",
    "shapes": Quality::Exact(99.95), "Captions of drawn scenes of 32×32 pixels, by Tweedie discrete diffusion.",
    "shapes-mdd": Quality::Exact(100.0), "Captions of drawn scenes of 32×32 pixels, by masked diffusion.",
    "shakespeare": Quality::Bits(2.438), "Shakespeare in windows of 128 characters, by Tweedie discrete diffusion.",
    "shakespeare-mdd": Quality::Bits(2.079), "Shakespeare in windows of 128 characters, by masked diffusion.",
}
