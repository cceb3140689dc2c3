//! The logits of a run on made-up inputs, with the inputs, in one safetensors file: what `reference/check_run.py` compares with PyTorch's.
//!
//!     cargo run --release -p tweedie --example logits -- RUN FILE.safetensors [raw]
//!
//! Images are noise, tokens and times go around; every third row loses its condition, and of MDD every second token is masked. All
//! tensors are f32, ids and times too. `raw` takes the trained weights in place of the averaged ones.

use std::path::Path;

use tweedie::config::Precision;
use tweedie::engine::cases::random;
use tweedie::engine::{Tape, Tensor};
use tweedie::loss::{NoiseOf, Rows};
use tweedie::model::{Input, Pass};
use tweedie::run::{self, Weights};
use tweedie::tensors::{self, NamedTensor};
use tweedie::{Device, Error, Result};

const ROWS: usize = 12;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [path, file, more @ ..] = args.as_slice() else {
        return Err(Error::Input("logits RUN FILE.safetensors [raw]".into()));
    };
    let weights = if more.iter().any(|w| w == "raw") { Weights::Raw } else { Weights::Ema };
    let loaded = run::load(Path::new(path), weights, &Device::Cpu, Precision::F32)?;
    let (model, process) = (&loaded.trained.model, &loaded.trained.process);
    let (vocab, n) = (model.sizes().vocab, model.sizes().tokens);
    let e = &model.config().encoder;

    let images = random(1, &[ROWS, e.channels, e.image, e.image], 1.0);
    let clean: Vec<u32> = (0..ROWS * n).map(|i| (i * 7 % vocab) as u32).collect();
    let t: Vec<u32> = (0..ROWS).map(|i| (1 + i * (process.steps() - 1) / (ROWS - 1)) as u32).collect();
    let drop: Vec<u32> = (0..ROWS).map(|i| (model.is_conditional() && i % 3 == 2) as u32).collect();
    let eps = random(2, &[ROWS, n, vocab], 1.0);

    let tape = Tape::inference();
    let p = Pass::inference(&tape, &model.params, model.dtype());
    let mut seen = clean.clone();
    let logits = if model.has_denoiser() {
        let conditional = model.is_conditional();
        let context = model.context(&p, conditional.then_some(&images), conditional)?;
        let context = context.rows(&tape, 1, conditional.then_some(&drop[..]))?;
        let features = if model.is_tdd() {
            let rows = Rows::new(clean, t.clone());
            let noisy = rows.corrupt(process, &Device::Cpu, (n, vocab), &NoiseOf::Given(eps.clone()))?;
            model.features(&p, &Input::Noisy(&noisy), &t, &context)?
        } else {
            seen.iter_mut().step_by(2).for_each(|token| *token = vocab as u32);
            model.features(
                &p,
                &Input::Tokens(&Tensor::from_u32(&Device::Cpu, &[ROWS, n], seen.clone())?),
                &t,
                &context,
            )?
        };
        model.logits(&p, &features)?
    } else {
        model.logits(&p, &model.masked_features(&p, &model.condition(&p, &images)?)?)?
    };

    let floats = |v: &[u32]| v.iter().map(|x| *x as f32).collect::<Vec<f32>>();
    let alpha_bar: Vec<f32> = (0..=process.steps()).map(|t| process.schedule().alpha_bar(t) as f32).collect();
    let all = [
        NamedTensor::new("images", images.shape(), images.to_vec()?),
        NamedTensor::new("tokens", &[ROWS, n], floats(&seen)),
        NamedTensor::new("t", &[ROWS], floats(&t)),
        NamedTensor::new("drop", &[ROWS], floats(&drop)),
        NamedTensor::new("eps", eps.shape(), eps.to_vec()?),
        NamedTensor::new("alpha_bar", &[alpha_bar.len()], alpha_bar),
        NamedTensor::new("logits", &[ROWS, n, vocab], logits.value().to_vec()?),
    ];
    tensors::write(Path::new(file), &all)?;
    println!("logits [{ROWS}, {n}, {vocab}] of {}, step {}", loaded.checkpoint.display(), loaded.step);
    Ok(())
}
