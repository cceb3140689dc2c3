//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.

pub mod checkpoint;
pub mod error;
pub mod files;
pub mod interrupt;
pub mod run_dir;
pub mod schedule;
pub mod settings;
pub mod tensorboard;
pub mod tensors;

pub use error::{Error, Result};
