//! A sampler of one's own, over a denoiser that is exact: two tokens that are always equal. Argmax-and-re-noise settles on one pair
//! too early; one that goes back and forth keeps the variety.
//!
//!     cargo run --release -p tweedie --example own_sampler

use tweedie::config::SampleConfig;
use tweedie::sample::{At, Denoise, Prediction, Sampler, State, sample_tokens, sample_tokens_by};
use tweedie::{Process, Result, Schedule, ScheduleKind, Tensor, Times};

/// Draws a token and goes to s, but at every other step adds noise again instead: it takes two steps forward and one back.
struct Restless;

impl Sampler for Restless {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        state.renoise(&prediction.draw()?, at.s)
    }

    fn steps(&self, planned: Vec<Times>) -> Vec<Times> {
        let there_and_back = |at: Times| match at.s {
            0 => vec![at],
            s => vec![at, Times { t: s, s: at.t }, at],
        };
        planned.into_iter().flat_map(there_and_back).collect()
    }
}

/// Exactly p(token | both noisy vectors): the evidence of both counts for each.
struct Twins {
    process: Process,
}

impl Denoise for Twins {
    fn vocab(&self) -> usize {
        4
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let (y, evidence) = (noisy.to_vec()?, self.process.evidence(at.t) as f32);
        let both = |pair: &[f32]| (0..4).map(|k| evidence * (pair[k] + pair[4 + k])).collect::<Vec<f32>>();
        let logits = y.chunks_exact(8).flat_map(|pair| both(pair).repeat(2)).collect();
        Ok(Tensor::from_f32(&noisy.device(), noisy.shape(), logits)?)
    }
}

fn main() -> Result<()> {
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 4)?);
    let denoiser = Twins { process: process.clone() };
    let (examples, config) = ((0..2000).collect::<Vec<u32>>(), SampleConfig { steps: 8, ..SampleConfig::default() });
    let equal = |tokens: &[u32]| tokens.chunks_exact(2).filter(|p| p[0] == p[1]).count();

    let argmax = sample_tokens(&denoiser, &process, &config, (&examples, 2), None)?;
    let own = sample_tokens_by(&Restless, &denoiser, &process, &config, (&examples, 2), None)?;
    println!(
        "pairs that are equal, of {}: argmax {}, own {}",
        examples.len(),
        equal(&argmax.tokens),
        equal(&own.tokens)
    );
    assert!(equal(&own.tokens) > 1900);
    Ok(())
}
