//! How fast: a few real training steps and a small evaluation, on the device and the data themselves.

use std::time::Instant;

use tweedie_engine::Device;

use super::look::Opened;
use crate::config::Config;
use crate::data::{Dataset, SequenceSet, some_of, some_texts};
use crate::error::{Error, Result};
use crate::train::Trainer;

/// Steps of each of the two passes over a few batches: the first reads the data, the second knows them.
const BATCHES: usize = 6;
/// Steps that are timed at most: more show nothing new.
const MOST: usize = 500;
/// Examples of the evaluation that is timed.
const EVALUATED: usize = 32;

/// What things cost, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// A training step.
    pub step: f64,
    /// What a step costs more in the first epoch, where images are read and decoded.
    pub first_epoch: f64,
    /// Evaluating one example, with raw and averaged weights.
    pub evaluated: f64,
    /// Setting up: the tokenizer, the network.
    pub setup: f64,
    /// Rows of the training data: its examples, or pieces of a stream.
    pub rows: usize,
    /// Training examples of an epoch, as the settings make them.
    pub examples: usize,
    /// Examples for evaluation.
    pub val: usize,
}

impl Pace {
    /// Time a training by these settings, which must be of the data that were opened, for about `longest` seconds.
    pub fn measure(config: &Config, opened: &Opened, device: &Device, longest: f64) -> Result<Pace> {
        let begin = Instant::now();
        let mut config = config.clone();
        config.train.epochs = 1_000_000; // more than are run
        config.train.warmup_epochs = 1.0;
        let whole = opened.clone().with_tokenizer(&config)?;
        let whole = Trainer::new(&config, whole, device)?;
        let (examples, val) = (whole.training_examples(), whole.validation_examples());
        drop(whole);
        let setup = begin.elapsed().as_secs_f64();
        let part = part(opened, BATCHES * config.train.batch)?.with_tokenizer(&config)?;
        config.train.eval_images = EVALUATED;
        let mut trainer = Trainer::new(&config, part, device)?;
        let (cold, warm) = steps(&mut trainer, longest - begin.elapsed().as_secs_f64())?;
        let since = Instant::now();
        trainer.evaluate_once()?;
        let evaluated = since.elapsed().as_secs_f64() / EVALUATED.min(val).max(1) as f64;
        let first_epoch = (cold - warm).max(0.0);
        Ok(Pace { step: warm, first_epoch, evaluated, setup, rows: opened.rows()?, examples, val })
    }
}

/// The data with fewer training examples; of one stream of text all, since nothing of it is decoded.
fn part(opened: &Opened, count: usize) -> Result<Opened> {
    Ok(match opened.clone() {
        Opened::Classes(set) => {
            let train = Some(some_of(set.train()?, count, 0)?);
            Opened::Classes(Dataset { train, ..set })
        }
        Opened::Sequences(set) if set.train()?.is_stream() => Opened::Sequences(set),
        Opened::Sequences(set) => {
            let train = Some(some_texts(set.train()?, count, 0)?);
            Opened::Sequences(SequenceSet { train, ..set })
        }
    })
}

/// Seconds of a step that reads its data for the first time, and of one that does not.
fn steps(trainer: &mut Trainer, longest: f64) -> Result<(f64, f64)> {
    let mut loader = trainer.loader()?;
    let begin = Instant::now();
    let mut step = || {
        let since = Instant::now();
        let batch = loader.next().ok_or_else(|| Error::Input("the data ended while a step was timed".into()))??;
        trainer.train_step(&batch)?.item()?; // reading the loss waits for the device
        loader.recycle(batch);
        Ok::<f64, Error>(since.elapsed().as_secs_f64())
    };
    step()?; // kernels are compiled, buffers made
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for i in 1..MOST {
        let seconds = step()?;
        if i < BATCHES {
            cold.push(seconds)
        } else {
            warm.push(seconds)
        }
        let spent = begin.elapsed().as_secs_f64();
        // A slow machine shows its pace in a few steps.
        if spent > longest && (!warm.is_empty() || spent > 3.0 * longest) {
            break;
        }
    }
    let mean = |s: &[f64]| s.iter().sum::<f64>() / s.len().max(1) as f64;
    let cold = mean(&cold);
    Ok((cold, if warm.is_empty() { cold } else { mean(&warm) }))
}
