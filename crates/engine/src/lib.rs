//! The ground that `tweedie` stands on: tensors, a tape over coarse fused ops, flat parameters with a one-pass optimizer,
//! and noise that is a pure function of its address. It knows nothing of diffusion.
//!
//! One binary runs on any CPU (f32) and on NVIDIA GPUs (bf16 with f32 accumulation, or f32); nothing of CUDA is needed to
//! build it. See `docs/code-map.md` in the repository for where things are.

pub mod cases;
pub mod check;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
pub mod files;
pub mod ops;
pub mod optim;
mod params;
pub mod rng;
mod tape;
mod tensor;

pub use cpu::math::Act;
pub use device::{Choice, Device};
pub use error::{Error, Result};
pub use params::{Group, ParamId, Params, ParamsBuilder};
pub use rng::Noise;
pub use tape::{Backward, Grads, Tape, Var};
pub use tensor::{DType, Tensor, bf16_to_f32, f32_to_bf16};
