//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.
//!
//! Reads in the order data flows: [`data`] and [`augment`], [`tokenize`], [`schedule`], [`model`], [`loss`], [`train`],
//! [`sample`], [`bound`], [`metrics`]; around it [`config`], [`settings`], [`run_dir`] and [`checkpoint`].

pub mod augment;
pub mod bound;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod error;
pub mod files;
pub mod image;
pub mod interrupt;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod process;
pub mod random;
pub mod rank;
pub mod run;
pub mod run_dir;
pub mod sample;
pub mod schedule;
pub mod settings;
mod simd;
pub mod tensorboard;
pub mod tensors;
pub mod texts;
pub mod tokenize;
pub mod trained;
pub mod train;

pub use error::{Error, Result};
