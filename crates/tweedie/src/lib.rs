//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.
//!
//! Reads in the order data flows: [`data`] and [`augment`], [`schedule`], [`model`], [`loss`], [`train`], [`sample`],
//! [`metrics`].

pub mod augment;
pub mod config;
pub mod data;
pub mod error;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod sample;
pub mod schedule;
pub mod train;

pub use error::{Error, Result};
