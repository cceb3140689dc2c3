//! Tweedie Discrete Diffusion.
