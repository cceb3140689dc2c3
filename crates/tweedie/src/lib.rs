//! Tweedie Discrete Diffusion.

pub mod augment;
pub mod data;
