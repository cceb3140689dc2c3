//! A denoiser of one's own: anything that gives logits. Here Bayes' rule for one token with a known prior, which sampling has to give
//! back.
//!
//!     cargo run --release -p tweedie --example own_denoiser

use tweedie::config::{SampleConfig, SamplerKind};
use tweedie::sample::{At, Denoise, sample_tokens};
use tweedie::{Process, Result, Schedule, ScheduleKind, Tensor};

struct Oracle {
    process: Process,
    prior: [f64; 4],
}

impl Denoise for Oracle {
    fn vocab(&self) -> usize {
        self.prior.len()
    }

    /// `noisy` is y_t, \[B, N, V\].
    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let y = noisy.to_vec()?;
        let posterior = y.chunks_exact(self.vocab()).flat_map(|y| self.process.posterior(y, &self.prior, at.t));
        let logits = posterior.map(|p| p.ln() as f32).collect();
        Ok(Tensor::from_f32(&noisy.device(), noisy.shape(), logits)?)
    }
}

fn main() -> Result<()> {
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 4)?);
    let oracle = Oracle { process: process.clone(), prior: [0.4, 0.3, 0.2, 0.1] };
    let examples: Vec<u32> = (0..10_000).collect();
    for sampler in [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Ancestral] {
        let config = SampleConfig { sampler, steps: 100, ..SampleConfig::default() };
        let made = sample_tokens(&oracle, &process, &config, (&examples, 1), None)?;
        let share = |k: u32| made.tokens.iter().filter(|t| **t == k).count() as f64 / examples.len() as f64;
        let shares: Vec<f64> = (0..4).map(share).collect();
        println!("{sampler:?}: {shares:.3?} of prior {:?}", oracle.prior);
        if sampler != SamplerKind::Argmax {
            assert!(shares.iter().zip(oracle.prior).all(|(got, want)| (got - want).abs() < 0.025));
        }
    }
    Ok(())
}
