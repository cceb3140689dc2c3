//! Networks that were trained by regression, read as classifiers.
//!
//! Their output is no logits but a vector: the noise ε̂, or the clean vector itself. Read as logits all the same, as if nothing had
//! changed but the loss, the largest entry of the *noise* wins. Otherwise it is turned into the clean vector that it implies,
//! x̂0 = (y_t − σ_t·ε̂) / (√ᾱ_t·λ), and y_t goes on by one of three rules. The last x̂0 has its largest entry at the class.

use tweedie::config::{Config, LossKind, SampleConfig};
use tweedie::data::Source;
use tweedie::metrics::Classification;
use tweedie::process::Times;
use tweedie::sample::{Conditioned, Denoise, argmax};
use tweedie::{Process, Result, Trained, Update, evaluate};
use tweedie_engine::ops::linear::linear;
use tweedie_engine::{Tape, Tensor, rng};

/// How y_t goes on from x̂0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// One-hot of its largest entry, noised again: the paper's sampler.
    Renoise,
    /// DDPM's: the true reverse step from x̂0.
    Ddpm,
    /// DDIM's: deterministic, keeps the noise that x̂0 implies.
    Ddim,
}

impl Rule {
    pub fn name(self) -> &'static str {
        match self {
            Rule::Renoise => "argmax of x̂0",
            Rule::Ddpm => "DDPM on x̂0",
            Rule::Ddim => "DDIM on x̂0",
        }
    }

    fn update(self, process: &Process, at: Times) -> Update {
        match self {
            Rule::Renoise => process.renoise(at.s),
            Rule::Ddpm => process.reverse(at),
            Rule::Ddim => process.ddim(at),
        }
    }
}

/// x̂0 is cut to ±1, as DDPM does: near pure noise √ᾱ_t is so small that any error of ε̂ becomes huge.
const CUT: f32 = 1.0;

/// As [`evaluate::classes`], for a network trained by regression, through its x̂0. Steps, guidance (on the network's output) and seed are those
/// of `s`.
pub fn classes(t: &Trained, source: &Source, config: &Config, s: &SampleConfig, rule: Rule) -> Result<Classification> {
    evaluate::classes_by(t, source, config, 0, |images, ids| {
        let denoiser = Conditioned::new(&t.model, Some(images), 1, s.guidance != 1.0)?;
        clean_vectors(&denoiser, &t.process, (s, config.loss.kind, rule), ids)
    })
}

/// The last x̂0 of each example, \[B·V\].
fn clean_vectors(
    denoiser: &dyn Denoise,
    process: &Process,
    (s, kind, rule): (&SampleConfig, LossKind, Rule),
    ids: &[u32],
) -> Result<Vec<f32>> {
    let v = denoiser.vocab();
    let mut y = noise(s.seed, ids, 0, v);
    let mut clean = Vec::new();
    for (i, at) in process.spaced(s.steps).into_iter().enumerate() {
        let out = output(denoiser, &y, at.t, s.guidance)?;
        let (signal, spread) = (process.signal(at.t) as f32, process.spread(at.t) as f32);
        let implied = |(y, out): (&f32, &f32)| match kind {
            LossKind::Noise => (y - spread * out) / signal,
            _ => out / process.lambda() as f32,
        };
        clean = y.iter().zip(&out).map(implied).collect();
        if at.s == 0 {
            break;
        }
        let estimate = match rule {
            Rule::Renoise => one_hot(&clean, v),
            Rule::Ddpm | Rule::Ddim => clean.iter().map(|x| x.clamp(-CUT, CUT)).collect(),
        };
        let by = rule.update(process, at);
        let (c, k, n) = (by.clean as f32, by.keep as f32, by.noise as f32);
        let fresh = noise(s.seed, ids, i as u32 + 1, v);
        y = (0..y.len()).map(|j| c * estimate[j] + k * y[j] + n * fresh[j]).collect();
    }
    Ok(clean)
}

/// What the network says of `y`, \[B·V\], guided with weight `w`.
fn output(denoiser: &dyn Denoise, y: &[f32], t: usize, w: f32) -> Result<Vec<f32>> {
    let (v, device) = (denoiser.vocab(), denoiser.device());
    let y = Tensor::from_f32(&device, &[y.len() / v, 1, v], y.to_vec())?;
    let seen = match denoiser.weight()? {
        Some(layer) => {
            let tape = Tape::inference();
            linear(&tape, &tape.constant(y), &tape.constant(layer.clone()), None, None, None)?.value().clone()
        }
        None => y,
    };
    // Rows may be longer than the vocabulary.
    let rows = |out: Tensor| -> Result<Vec<f32>> {
        let width = out.width();
        Ok(out.to_vec()?.chunks_exact(width).flat_map(|row| &row[..v]).copied().collect())
    };
    if w == 1.0 {
        return rows(denoiser.logits(&seen, t.into())?);
    }
    let pairs = rows(denoiser.logits_of_pairs(&seen, t.into())?)?;
    let guide = |pair: &[f32]| -> Vec<f32> { (0..v).map(|i| pair[v + i] + w * (pair[i] - pair[v + i])).collect() };
    Ok(pairs.chunks_exact(2 * v).flat_map(guide).collect())
}

fn one_hot(x: &[f32], v: usize) -> Vec<f32> {
    let row = |x: &[f32]| -> Vec<f32> {
        let best = argmax(x);
        (0..v).map(|i| if i == best { 1.0 } else { 0.0 }).collect()
    };
    x.chunks_exact(v).flat_map(row).collect()
}

/// Normal numbers that belong to seed, example and step.
fn noise(seed: u64, ids: &[u32], step: u32, v: usize) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let row = |id: &u32| -> Vec<f32> {
        let four = |block: u32| rng::normals_of(rng::philox([block, *id, step, 0x4e67], key));
        (0..v.div_ceil(4) as u32).flat_map(four).take(v).collect()
    };
    ids.iter().flat_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::sample::At;
    use tweedie::{Schedule, ScheduleKind};
    use tweedie_engine::Device;

    const CLASSES: usize = 5;
    const TRUTH: usize = 3;
    /// Rows of a GPU are padded: what lies beyond the classes must not be read.
    const WIDTH: usize = 8;

    /// Knows the true class and says which noise is in u = 2·y_t, or the clean vector; without its condition it believes in class 0.
    struct Knowing {
        weight: Tensor,
        process: Process,
        kind: LossKind,
    }

    impl Knowing {
        fn new(kind: LossKind) -> Knowing {
            let process = Process::new(Schedule::new(ScheduleKind::Cosine, 100, CLASSES).unwrap());
            let twice = (0..CLASSES * CLASSES).map(|i| if i % (CLASSES + 1) == 0 { 2.0 } else { 0.0 }).collect();
            Knowing { weight: Tensor::from_f32(&Device::Cpu, &[CLASSES, CLASSES], twice).unwrap(), process, kind }
        }

        fn say(&self, u: &[f32], t: usize, class: usize) -> Vec<f32> {
            let (signal, spread) = (self.process.signal(t) as f32, self.process.spread(t) as f32);
            let of = |i: usize| {
                let clean = if i == class { 1.0 } else { 0.0 };
                match self.kind {
                    LossKind::Noise => (u[i] / 2.0 - signal * clean) / spread,
                    _ => clean,
                }
            };
            (0..WIDTH).map(|i| if i < CLASSES { of(i) } else { 1e6 }).collect()
        }
    }

    impl Denoise for Knowing {
        fn vocab(&self) -> usize {
            CLASSES
        }

        fn weight(&self) -> Result<Option<&Tensor>> {
            Ok(Some(&self.weight))
        }

        fn logits(&self, u: &Tensor, at: At) -> Result<Tensor> {
            let u = u.to_vec()?;
            let out: Vec<f32> = u.chunks_exact(CLASSES).flat_map(|u| self.say(u, at.t, TRUTH)).collect();
            Ok(Tensor::from_f32(&Device::Cpu, &[out.len() / WIDTH, 1, WIDTH], out)?)
        }

        fn logits_of_pairs(&self, u: &Tensor, at: At) -> Result<Tensor> {
            let u = u.to_vec()?;
            let pair = |u: &[f32]| [self.say(u, at.t, TRUTH), self.say(u, at.t, 0)].concat();
            let out: Vec<f32> = u.chunks_exact(CLASSES).flat_map(pair).collect();
            Ok(Tensor::from_f32(&Device::Cpu, &[out.len() / WIDTH, 1, WIDTH], out)?)
        }
    }

    fn right(kind: LossKind, rule: Rule, steps: usize, guidance: f32) -> usize {
        let d = Knowing::new(kind);
        let s = SampleConfig { steps, guidance, ..SampleConfig::default() };
        let ids: Vec<u32> = (0..200).collect();
        let clean = clean_vectors(&d, &d.process, (&s, kind, rule), &ids).unwrap();
        clean.chunks_exact(CLASSES).filter(|x| argmax(x) == TRUTH).count()
    }

    /// With the exact noise or the exact clean vector every rule finds the class, from one step on, guided or not.
    #[test]
    fn exact_output_implies_the_true_class() {
        for kind in [LossKind::Noise, LossKind::X0] {
            for rule in [Rule::Renoise, Rule::Ddpm, Rule::Ddim] {
                for (steps, w) in [(1, 1.0), (10, 1.0), (10, 2.0)] {
                    assert_eq!(right(kind, rule, steps, w), 200, "{kind:?} {rule:?} {steps} {w}");
                }
            }
        }
        // Guided away from its condition it believes the opposite.
        assert_eq!(right(LossKind::X0, Rule::Renoise, 3, 0.0), 0);
    }

    /// The noise itself points anywhere: chance is 40 of 200, with a standard deviation of 5.7.
    #[test]
    fn noise_is_no_answer() {
        let d = Knowing::new(LossKind::Noise);
        let y = noise(1, &(0..200).collect::<Vec<_>>(), 0, CLASSES);
        let out = output(&d, &y, 100, 1.0).unwrap();
        assert!(out.chunks_exact(CLASSES).filter(|x| argmax(x) == TRUTH).count() < 80);
    }

    #[test]
    fn noise_belongs_to_example_and_step() {
        let (one, two) = (noise(3, &[7], 2, 6), noise(3, &[5, 7], 2, 6));
        assert_eq!(one, two[6..]);
        assert_ne!(one, noise(3, &[7], 1, 6));
        let many = noise(0, &(0..1000).collect::<Vec<_>>(), 0, 10);
        let mean = many.iter().sum::<f32>() / 1e4;
        let variance = many.iter().map(|x| x * x).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.04 && (variance - 1.0).abs() < 0.06, "{mean} {variance}");
    }
}
