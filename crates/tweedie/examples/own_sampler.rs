//! A sampler of one's own: it draws tokens while there is much noise, and takes the most likely ones when little is left. Tried on
//! an exact denoiser of two tokens that are always equal: drawing to the end makes unequal pairs, argmax from the start makes too
//! many of the frequent ones.
//!
//!     cargo run --release -p tweedie --example own_sampler

use tweedie::config::{SampleConfig, SamplerKind};
use tweedie::sample::{At, Denoise, Prediction, Sampler, State, sample_tokens, sample_tokens_by};
use tweedie::{Process, Result, Schedule, ScheduleKind, Tensor, Times};

struct DrawThenDecide {
    until: usize,
}

impl Sampler for DrawThenDecide {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let clean = if at.t > self.until { prediction.draw()? } else { prediction.argmax()? };
        state.renoise(&clean, at.s)
    }
}

const PRIOR: [f32; 4] = [0.4, 0.3, 0.2, 0.1];

/// Exactly p(token | both noisy vectors): the evidence of both counts for each.
struct Twins(Process);

impl Denoise for Twins {
    fn vocab(&self) -> usize {
        PRIOR.len()
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let (y, evidence) = (noisy.to_vec()?, self.0.evidence(at.t) as f32);
        let both = |y: &[f32]| (0..4).map(|k| PRIOR[k].ln() + evidence * (y[k] + y[4 + k])).collect::<Vec<f32>>();
        let logits = y.chunks_exact(8).flat_map(|pair| both(pair).repeat(2)).collect();
        Ok(Tensor::from_f32(&noisy.device(), noisy.shape(), logits)?)
    }
}

fn main() -> Result<()> {
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 4)?);
    let (twins, examples) = (Twins(process.clone()), (0..5000).collect::<Vec<u32>>());
    let config = |sampler| SampleConfig { sampler, steps: 5, ..SampleConfig::default() };
    let tell = |name: &str, tokens: &[u32]| {
        let equal = tokens.chunks_exact(2).filter(|p| p[0] == p[1]).count();
        let share = |k: u32| tokens.iter().filter(|t| **t == k).count() as f32 / tokens.len() as f32;
        println!("{name}: {equal} of 5000 pairs equal, shares {:.2?}", [0, 1, 2, 3].map(share));
        equal
    };
    for (name, sampler) in [("argmax", SamplerKind::Argmax), ("drawn", SamplerKind::Multinomial)] {
        tell(name, &sample_tokens(&twins, &process, &config(sampler), (&examples, 2), None)?.tokens);
    }
    let (own, config) = (DrawThenDecide { until: 400 }, config(SamplerKind::Argmax));
    let made = sample_tokens_by(&own, &twins, &process, &config, (&examples, 2), None)?;
    assert_eq!(tell("own", &made.tokens), 5000);
    Ok(())
}
