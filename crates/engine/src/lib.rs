//! The ground that `tweedie` stands on: tensors, a tape over coarse fused ops, flat parameters with a one-pass optimizer,
//! and noise that is a pure function of its address. It knows nothing of diffusion.
//!
//! One binary runs on any CPU (f32) and on NVIDIA GPUs (bf16 with f32 accumulation, or f32); nothing of CUDA is needed to
//! build it. See `docs/code-map.md` in the repository for where things are.
//!
//! # From a tensor to a trained weight
//!
//! A [`Tensor`] is data on a [`Device`]. A [`Tape`] turns it into a [`Var`], which [`ops`] take and give; what they need for
//! their gradients is recorded on the way. [`Tape::backward`] traverses the records in reverse: each is a [`Backward`], which adds to
//! the gradients of its inputs. Those of parameters end in [`Params`], where the optimizer ([`optim::AdamW`]) finds them.
//!
//! ```
//! use tweedie_engine::ops::{elementwise, linear, mean_square};
//! use tweedie_engine::optim::{AdamConfig, AdamW};
//! use tweedie_engine::{Device, Group, Noise, ParamsBuilder, Tape, Tensor};
//!
//! # fn main() -> tweedie_engine::Result<()> {
//! let device = Device::open("cpu")?.device;
//! let mut builder = ParamsBuilder::default();
//! let w = builder.add("w", &[1, 2], Group::NoDecay, vec![0.0, 0.0])?;
//! let mut params = builder.build(&device, false)?;
//! let mut optimizer = AdamW::new(&params, AdamConfig::default())?;
//!
//! // Find w in y = w·x, from 16 examples of y = 2·x₀ − x₁. Example e has the same x in every run.
//! let examples = Tensor::from_u32(&device, &[16], (0..16).collect())?;
//! let x = Noise::new(&device, 7, 0, 0)?.normal(&examples, 2)?;
//! let y: Vec<f32> = x.as_f32()?.chunks(2).map(|x| 2.0 * x[0] - x[1]).collect();
//! let y = Tensor::from_f32(&device, &[16, 1], y)?;
//! for _ in 0..300 {
//!     let tape = Tape::new();
//!     let (x, weight) = (tape.constant(x.clone()), tape.param(&params, w));
//!     let guess = linear::linear(&tape, &x, &weight, None, None, None)?;
//!     let loss = elementwise::mean(&tape, &mean_square::mean_square(&tape, &guess, &y, None)?)?;
//!     drop(weight); // the weights may be written once no tape holds them
//!     tape.backward(&loss, Some(&mut params))?;
//!     optimizer.step(&mut params, 0.02)?;
//! }
//! let found = params.value(w).to_vec()?;
//! assert!((found[0] - 2.0).abs() < 0.01 && (found[1] + 1.0).abs() < 0.01, "{found:?}");
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - What an op is not made for (shapes, types, values on different devices) is an [`Error`] that names the op and what it was
//!   given, not a panic.
//! - The same seed, device and build give the same bits, whatever the number of threads.
//! - An op of one's own is as good as one in here: see [`Backward`], and [`check::gradients`] to see that it is right.

pub mod cases;
pub mod check;
pub mod comm;
pub mod cpu;
pub mod cuda;
mod device;
mod error;
pub mod files;
mod library;
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
