//! Two tokens that depend on each other, with their exact conditional distributions as the network.

use super::*;
use crate::schedule::{Schedule, ScheduleKind};

const K: usize = 3;
const JOINT: [[f64; K]; K] = [[0.30, 0.05, 0.02], [0.03, 0.25, 0.05], [0.05, 0.05, 0.20]];
const CPU: Device = Device::Cpu;

/// p(token | the other token), or its marginal where that is masked.
struct Exact;

impl Fill for Exact {
    fn device(&self) -> Device {
        CPU
    }

    fn vocab(&self) -> usize {
        K
    }

    fn logits(&self, ids: &Tensor, _: usize, _: bool) -> Result<Tensor> {
        let ids = ids.to_vec_u32()?;
        let logits: Vec<f32> = ids
            .chunks_exact(2)
            .flat_map(|pair| {
                let (x, y) = (pair[0] as usize, pair[1] as usize);
                let first = (0..K).map(move |k| if y < K { JOINT[k][y] } else { JOINT[k].iter().sum() });
                let second =
                    (0..K).map(move |k| if x < K { JOINT[x][k] } else { JOINT.iter().map(|row| row[k]).sum() });
                first.chain(second).map(|p| p.ln() as f32).collect::<Vec<_>>()
            })
            .collect();
        Ok(Tensor::from_f32(&CPU, &[ids.len() / 2, 2, K], logits)?)
    }
}

/// χ² of the pairs that come out against the joint distribution: 8 degrees of freedom, 31.8 is exceeded once in 10,000.
fn chi_square(steps: usize) -> f64 {
    const N: usize = 6000;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap());
    let config = SampleConfig { steps, sampler: SamplerKind::Multinomial, seed: 1, ..SampleConfig::default() };
    let ids: Vec<u32> = (0..N as u32).collect();
    let mut masked_before = 2 * N;
    let (addresses, limits) = (Addresses::new(&CPU, &ids, config.seed).unwrap(), Limits::default());
    let start = limits.start(&CPU, (N, 2), K as u32).unwrap();
    let got = fill(&Exact, &process, &config, &addresses, &start, &limits, 0, |f| {
        let masked = f.state.tokens.to_vec_u32()?.iter().filter(|t| **t == K as u32).count();
        assert!(masked <= masked_before);
        // The share that is masked after this step is s/T.
        let s = f.t - 1000 / steps;
        let (want, error) = (s as f64 / 1000.0, 0.5 / (2.0 * N as f64).sqrt());
        assert!((masked as f64 / (2 * N) as f64 - want).abs() < 5.0 * error, "{masked} masked at {s}");
        masked_before = masked;
        Ok(())
    })
    .unwrap();
    assert_eq!(masked_before, 0);
    let mut counts = [[0.0; K]; K];
    let (tokens, log_prob) = (got.tokens.to_vec_u32().unwrap(), got.log_prob.to_vec().unwrap());
    for (pair, l) in tokens.chunks_exact(2).zip(log_prob.chunks_exact(2)) {
        counts[pair[0] as usize][pair[1] as usize] += 1.0;
        if steps >= 200 {
            // One after the other, but for a few: then the two factors give the joint probability.
            let joint = JOINT[pair[0] as usize][pair[1] as usize].ln();
            assert!(l.iter().all(|l| *l < 0.0 && *l > -5.0), "{l:?} {joint}");
        }
    }
    let cells = counts.iter().flatten().zip(JOINT.iter().flatten());
    cells.map(|(c, p)| (c - N as f64 * p).powi(2) / (N as f64 * p)).sum()
}

#[test]
fn many_steps_reproduce_the_joint_distribution_and_one_does_not() {
    let (many, one) = (chi_square(250), chi_square(1));
    assert!(many < 31.8, "χ² {many}");
    // Both tokens at once are drawn from their marginals: the dependence is lost, and the test sees it.
    assert!(one > 1000.0, "χ² {one}");
}
