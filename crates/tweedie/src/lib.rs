//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.
//!
//! Reads in the order data flows: [`data`] and [`augment`], [`schedule`], [`model`], [`loss`].

pub mod augment;
pub mod config;
pub mod data;
pub mod error;
pub mod loss;
pub mod model;
pub mod schedule;

pub use error::{Error, Result};
