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

/// χ² of the pairs that come out against the distribution `want`: 8 degrees of freedom, 31.8 is exceeded once in 10,000.
fn chi_square(steps: usize, correction: f32, want: &[[f64; K]; K]) -> f64 {
    const N: usize = 6000;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap());
    let drawn = SamplerKind::Multinomial;
    let config = SampleConfig { steps, correction, sampler: drawn, seed: 1, ..SampleConfig::default() };
    let ids: Vec<u32> = (0..N as u32).collect();
    let mut masked_before = 2 * N;
    let (addresses, limits) = (Addresses::new(&CPU, &ids, config.seed).unwrap(), Limits::default());
    let start = limits.start(&CPU, (N, 2), K as u32).unwrap();
    let got = fill(&Exact, &process, &config, &addresses, &start, &limits, 0, |f| {
        let masked = f.state.tokens.to_vec_u32()?.iter().filter(|t| **t == K as u32).count();
        assert!(masked <= masked_before || correction > 0.0);
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
        if steps >= 200 && correction == 0.0 {
            // One after the other, but for a few: then the two factors give the joint probability.
            let joint = JOINT[pair[0] as usize][pair[1] as usize].ln();
            assert!(l.iter().all(|l| *l < 0.0 && *l > -5.0), "{l:?} {joint}");
        }
    }
    let cells = counts.iter().flatten().zip(want.iter().flatten());
    cells.map(|(c, p)| (c - N as f64 * p).powi(2) / (N as f64 * p)).sum()
}

/// What so many steps come to, summed over all that can happen to a pair.
fn exact_pairs(steps: usize, correction: f32) -> [[f64; K]; K] {
    const MASK: usize = K;
    let first = |y: usize, k: usize| match y {
        MASK => JOINT[k].iter().sum::<f64>(),
        _ => JOINT[k][y] / JOINT.iter().map(|row| row[y]).sum::<f64>(),
    };
    let second = |x: usize, k: usize| match x {
        MASK => JOINT.iter().map(|row| row[k]).sum::<f64>(),
        _ => JOINT[x][k] / JOINT[x].iter().sum::<f64>(),
    };
    let mut p = [[0.0; K + 1]; K + 1];
    p[MASK][MASK] = 1.0;
    for i in 0..steps {
        let of = shares(Times { t: steps - i, s: steps - i - 1 }, steps, correction);
        // From a token, or none, to each token and none.
        let go = |from: usize, to: usize, predicted: f64| match (from, to) {
            (MASK, MASK) => 1.0 - of.commit,
            (MASK, _) => of.commit * predicted,
            (_, MASK) => of.free,
            _ => {
                if from == to {
                    1.0 - of.free
                } else {
                    0.0
                }
            }
        };
        let mut next = [[0.0; K + 1]; K + 1];
        for (x, y, a, b) in (0..(K + 1).pow(4)).map(|i| (i % 4, i / 4 % 4, i / 16 % 4, i / 64)) {
            let [to_a, to_b] = [if a < K { first(y, a) } else { 0.0 }, if b < K { second(x, b) } else { 0.0 }];
            next[a][b] += p[x][y] * go(x, a, to_a) * go(y, b, to_b);
        }
        p = next;
    }
    std::array::from_fn(|x| std::array::from_fn(|y| p[x][y]))
}

#[test]
fn many_steps_reproduce_the_joint_distribution_and_one_does_not() {
    let (many, one) = (chi_square(250, 0.0, &JOINT), chi_square(1, 0.0, &JOINT));
    assert!(many < 31.8, "χ² {many}");
    // Both tokens at once are drawn from their marginals: the dependence is lost, and the test sees it.
    assert!(one > 1000.0, "χ² {one}");
}

/// Freed by chance and drawn again beside the other, a token is what it was: in many steps with few freed the joint distribution stays.
/// In few steps two are often drawn at once; what comes of that is known.
#[test]
fn correction_is_the_chain_that_it_says() {
    let many = chi_square(500, 0.002, &JOINT);
    assert!(many < 31.8, "χ² {many}");
    for (steps, correction) in [(10, 0.0), (10, 0.1), (10, 0.9), (4, 0.3), (3, 0.5)] {
        let want = exact_pairs(steps, correction);
        assert!((want.iter().flatten().sum::<f64>() - 1.0).abs() < 1e-12);
        let got = chi_square(steps, correction, &want);
        assert!(got < 31.8, "{steps} steps, correction {correction}: χ² {got}");
    }
    // With the exact posterior the only mistake is to draw both at once, and more are then drawn at once.
    let off = |steps, correction| {
        let p = exact_pairs(steps, correction);
        let cells = p.iter().flatten().zip(JOINT.iter().flatten());
        cells.map(|(p, want)| (p - want).powi(2) / want).sum::<f64>()
    };
    assert!([3, 10, 100].iter().all(|s| off(*s, 0.0) < off(*s, 0.1) && off(*s, 0.1) < off(*s, 0.9)));
    // The test sees a correction that is not there, and one of another size.
    let seen = |of: f32, want: f32| chi_square(3, of, &exact_pairs(3, want));
    assert!(seen(0.0, 0.9) > 60.0 && seen(0.9, 0.5) > 60.0, "{} {}", seen(0.0, 0.9), seen(0.9, 0.5));
}

/// Fixed tokens are never masked, by either order, and at the end none is.
#[test]
fn fixed_tokens_are_not_taken_back() {
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap());
    let ids: Vec<u32> = (0..500).collect();
    let fixed: Vec<Option<u32>> = (0..1000).map(|i| (i % 4 == 1).then_some(2)).collect();
    for unmask in [Unmasking::Random, Unmasking::Confident] {
        let config = SampleConfig { steps: 20, correction: 0.9, unmask, ..SampleConfig::default() };
        let addresses = Addresses::new(&CPU, &ids, 1).unwrap();
        let limits = Limits::new(&CPU, (500, 2, K), Some(&fixed), None).unwrap();
        let start = limits.start(&CPU, (500, 2), K as u32).unwrap();
        let (mut before, mut freed) = (start.to_vec_u32().unwrap(), 0);
        let end = fill(&Exact, &process, &config, &addresses, &start, &limits, 0, |f| {
            let now = f.state.tokens.to_vec_u32()?;
            assert!(fixed.iter().zip(&now).all(|(f, t)| f.is_none_or(|f| f == *t)));
            freed += before.iter().zip(&now).filter(|(b, n)| **b < K as u32 && **n == K as u32).count();
            before = now;
            Ok(())
        })
        .unwrap();
        assert!(freed > 1000, "{unmask:?}: {freed} tokens were taken back");
        assert!(end.tokens.to_vec_u32().unwrap().iter().all(|t| *t < K as u32));
        // A token's log-probability is that of the prediction it was last chosen from.
        assert!(end.log_prob.to_vec().unwrap().iter().zip(&fixed).all(|(l, f)| (*l < 0.0) == f.is_none()));
    }
}

/// The most confident first: a token of every text at each step, so that no more steps than tokens are taken unless some are taken back.
#[test]
fn the_most_confident_take_a_step_for_each_token_at_most() {
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap());
    let steps = |steps, correction, unmask| {
        let config = SampleConfig { steps, correction, unmask, ..SampleConfig::default() };
        let (addresses, limits) = (Addresses::new(&CPU, &[0, 1], 1).unwrap(), Limits::default());
        let (start, mut times) = (limits.start(&CPU, (2, 2), K as u32).unwrap(), Vec::new());
        let each = |f: &Filled| {
            times.push(f.t);
            Ok(())
        };
        fill(&Exact, &process, &config, &addresses, &start, &limits, 0, each).unwrap();
        times
    };
    assert_eq!(steps(50, 0.0, Unmasking::Confident), [1000, 500]);
    assert_eq!(steps(1, 0.0, Unmasking::Confident), [1000]);
    assert_eq!((steps(50, 0.1, Unmasking::Confident).len(), steps(50, 0.0, Unmasking::Random).len()), (50, 50));
}
