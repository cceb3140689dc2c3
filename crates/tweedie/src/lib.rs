//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.
//!
//! Reads in the order data flows: [`data`] and [`augment`], [`tokenize`], [`schedule`], [`model`], [`loss`], [`train`],
//! [`sample`], [`bound`], [`metrics`]; around it [`config`], [`settings`], [`run_dir`] and [`checkpoint`].

pub mod augment;
pub mod bound;
pub mod checkpoint;
pub mod classify;
pub mod config;
pub mod data;
pub mod error;
pub mod evaluate;
pub mod files;
pub mod generate;
pub mod image;
pub mod interrupt;
pub mod loss;
pub mod metrics;
pub mod model;
pub mod process;
pub mod random;
pub mod recipe;
pub mod run;
pub mod run_dir;
pub mod sample;
pub mod schedule;
pub mod session;
pub mod settings;
mod simd;
pub mod tensorboard;
pub mod tensors;
pub mod tokenize;
pub mod train;
pub mod trained;

pub use classify::{Classifier, Ranking};
pub use config::Config;
pub use data::Dataset;
pub use error::{Error, Result};
pub use generate::Generator;
pub use image::Image;
pub use process::{Process, Times, Update};
pub use sample::{Denoise, Sampler};
pub use schedule::{Schedule, ScheduleKind};
pub use session::{Finished, Session};
pub use trained::Trained;
pub use tweedie_engine as engine;
pub use tweedie_engine::{Device, Tensor};
