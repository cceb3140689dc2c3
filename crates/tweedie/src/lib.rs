//! Tweedie Discrete Diffusion: one-hot vectors corrupted with Gaussian noise, and networks that undo it.
//!
//! A token (a class, a word, a character) is a one-hot vector. [`Process`] adds noise to it, y_t = √ᾱ_t·λ·onehot + √(1−ᾱ_t)·ε; a
//! network ([`model`]) sees y_t, the time t and perhaps an image, and is trained by a plain cross-entropy ([`loss`]) to say which token
//! it was. To sample, one starts from pure noise, lets the network predict, takes a token, adds less noise, and so on ([`sample`]).
//! One token with an image is classification, many are captions or text. The masked twin (MDD) hides tokens instead of adding
//! noise to them; it goes through the same code.
//!
//! Train and use, from nothing:
//!
//! ```
//! use tweedie::{Classifier, Config, Dataset, Device, Session};
//! # let folder = tempfile::tempdir().unwrap();
//! # let folder = folder.path().join("mine");
//!
//! let data = Dataset::embedded("digits")?;
//! let image = data.train()?.get(0)?.image;
//! let config = Config::preset("digits")?.with("train.epochs", 1)?;
//! let run = Session::create(&folder, &config, data, &Device::auto()?)?.run(|event| println!("{event}"))?;
//! println!("{}", Classifier::open(&run)?.classify(&image)?.top(3));
//! # Ok::<(), tweedie::Error>(())
//! ```
//!
//! # Where to read
//!
//! Three files tell the method: `process.rs` (what noise does), `train/step.rs` (one training step, top to bottom) and
//! `sample/reverse.rs` (the sampling loop). Around them, in the order data flow, each module using only those before it:
//!
//! | | |
//! |---|---|
//! | [`image`](mod@image), [`augment`], [`tokenize`], [`data`] | pictures and texts, and batches of them |
//! | [`schedule`], [`process`] | ᾱ_t; corrupting, Bayes' rule, reverse steps |
//! | [`model`], [`config`], [`settings`], [`recipe`] | networks, and every setting of a run |
//! | [`loss`], [`bound`] | what is minimised; how likely tokens are |
//! | [`trained`], [`sample`], [`generate`], [`classify`], [`live`] | a trained network in use: logits, tokens, texts, classes, traces; for many askers at once |
//! | [`metrics`], [`calibration`], [`evaluate`] | scores, over whole data sets; probabilities that can be trusted |
//! | [`train`], [`session`], [`run`], [`runs`], [`run_dir`], [`checkpoint`] | training, on disk |
//! | [`model_file`], [`embedded`] | a trained model as one file, and those that come with the program |
//! | [`suggest`] | settings for own data, with reasons, that fit a time |
//!
//! # What you can replace
//!
//! | yours | by | example |
//! |---|---|---|
//! | schedule | [`Schedule::from_alpha_bar`]: any falling curve | `own_schedule` |
//! | sampler | [`Sampler`]: what a step does with the prediction | `own_sampler` |
//! | denoiser | [`Denoise`]: anything that gives logits | `own_denoiser` |
//! | data | [`data::ImageSource`], [`data::TextSource`], [`Dataset::classes`], [`data::SequenceSet::texts`] | `own_data`, `own_texts` |
//! | op | [`engine::Backward`], checked by [`engine::check::gradients`] | `own_op` |
//!
//! `cargo run --release -p tweedie --example own_sampler` runs one. Built-in ones go through the same traits.
//!
//! Nothing here prints or exits, and no input makes it panic: what is wrong is an [`Error`] that says so. Everything random is a pure
//! function of the seed and of what it is for, so a result depends neither on threads nor on batches nor on where a run was
//! interrupted.

pub mod augment;
pub mod bound;
pub mod calibration;
pub mod checkpoint;
pub mod classify;
pub mod config;
pub mod data;
pub mod error;
pub mod evaluate;
pub mod files;
pub mod generate;
mod guard;
pub mod image;
pub mod interrupt;
pub mod limits;
pub mod live;
pub mod loss;
pub mod metrics;
pub mod model;
mod names;
pub mod peers;
pub mod process;
pub mod progress;
pub mod random;
pub mod recipe;
pub mod run;
pub mod run_dir;
pub mod runs;
pub mod sample;
pub mod schedule;
pub mod session;
pub mod settings;
mod simd;
pub mod suggest;
pub mod tensorboard;
pub mod tensors;
pub mod tokenize;
pub mod train;
pub mod trained;

pub use calibration::Calibration;
pub use classify::{Answer, Classifier, Ranking};
pub use config::Config;
pub use data::Dataset;
pub use error::{Error, Result};
pub use generate::Generator;
pub use image::Image;
pub use process::{Process, Times, Update};
pub use run::{embedded, model_file};
pub use sample::{Denoise, Sampler};
pub use schedule::{Schedule, ScheduleKind};
pub use session::{Finished, Session};
pub use trained::Trained;
pub use tweedie_engine as engine;
pub use tweedie_engine::{Device, Tensor, comm};
