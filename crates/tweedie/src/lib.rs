//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.

pub mod error;
pub mod schedule;

pub use error::{Error, Result};
