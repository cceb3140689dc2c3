//! The noise that a network sees: n = W·ε with ε ~ N(0, I_V), and so N(0, W·Wᵀ).

use std::cell::RefCell;

use rayon::prelude::*;
use tweedie_engine::ops::linear::{linear, rough};
use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens, noisy_input};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor};

use super::denoise::Denoise;
use crate::config::NoiseKind;
use crate::error::{Error, Result};

/// Draws n for a layer W: dense (V normals per token, times W) or exact (d normals, times the Cholesky factor L of W·Wᵀ). The
/// factor is computed once, here; it belongs to these weights.
pub struct Projection {
    /// f32 \[d, V\].
    weight: Tensor,
    /// L, f32 \[d, d\], for exact noise.
    factor: Option<Tensor>,
    /// W is the identity, and noise is drawn as it is.
    identity: bool,
    /// Three digits are enough.
    rough: bool,
    /// Zeros \[d\]: the dense path's layer has a bias, noise has none.
    bias: Tensor,
    /// What the dense path adds nothing to: tokens \[B, N\], factors 0 and 1 \[B\]; of all sizes asked for so far, since a
    /// captured graph may read them.
    nothing: RefCell<Vec<[Tensor; 3]>>,
}

impl Projection {
    /// For the layer of `denoiser`; for one without, the identity.
    pub fn of(denoiser: &dyn Denoise, kind: NoiseKind) -> Result<Projection> {
        let v = denoiser.vocab();
        if let Some(weight) = denoiser.weight()? {
            return match weight.shape() {
                &[_, classes] if classes != v => {
                    Err(Error::Input(format!("a layer {:?} does not read vectors of {v} classes", weight.shape())))
                }
                _ => Projection::new(weight, kind),
            };
        }
        Projection::identity(&denoiser.device(), v)
    }

    /// For the layer `weight`, f32 \[d, V\].
    pub fn new(weight: &Tensor, kind: NoiseKind) -> Result<Projection> {
        let &[d, v] = weight.shape() else {
            return Err(Error::Input(format!("a layer that reads noisy vectors is [d, V], not {:?}", weight.shape())));
        };
        let exact = match kind {
            NoiseKind::Auto => v > 2 * d,
            NoiseKind::Dense => false,
            NoiseKind::Exact => true,
        };
        let factor = match exact {
            true => {
                let l = cholesky(&gram(&weight.to_vec()?, d), d)?;
                Some(l.into_iter().map(|x| x as f32).collect())
            }
            false => None,
        };
        Projection::with_factor(weight, factor)
    }

    /// For a network that reads y_t itself, of `vocab` classes.
    pub(crate) fn identity(device: &Device, vocab: usize) -> Result<Projection> {
        Ok(Projection { identity: true, ..Projection::with_factor(&identity(device, vocab)?, None)? })
    }

    /// With the given factor \[d·d\] in place of Cholesky's; `None`: dense.
    pub fn with_factor(weight: &Tensor, factor: Option<Vec<f32>>) -> Result<Projection> {
        let &[d, _] = weight.shape() else {
            return Err(Error::Input(format!("a layer that reads noisy vectors is [d, V], not {:?}", weight.shape())));
        };
        let device = weight.device();
        let factor = factor.map(|l| Tensor::from_f32(&device, &[d, d], l)).transpose()?;
        let bias = Tensor::zeros(&device, &[d], DType::F32)?;
        Ok(Projection {
            weight: weight.clone(),
            factor,
            identity: false,
            rough: false,
            bias,
            nothing: RefCell::default(),
        })
    }

    /// For a network that computes in `dtype`: beside bf16 three digits of exact noise are enough, which a GPU makes faster.
    #[must_use]
    pub fn beside(self, dtype: DType) -> Projection {
        Projection { rough: dtype == DType::Bf16, ..self }
    }

    /// Whether noise is drawn by the factor of W·Wᵀ.
    pub fn is_exact(&self) -> bool {
        self.factor.is_some()
    }

    /// W, f32 \[d, V\].
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.weight.device()
    }

    /// W·p of probabilities \[rows, V\] in their type.
    pub(crate) fn project(&self, p: &Tensor) -> Result<Tensor> {
        if self.identity {
            return Ok(p.clone());
        }
        let tape = Tape::inference();
        let weight = tape.constant(self.weight.clone());
        Ok(linear(&tape, &tape.constant(p.clone()), &weight, None, None, None)?.value().clone())
    }

    /// n for `tokens` tokens of each example (u32 \[B\]), f32 \[B, N, d\].
    pub fn draw(&self, noise: &Noise, examples: &Tensor, tokens: usize) -> Result<Tensor> {
        let (b, d, v) = (examples.len(), self.weight.shape()[0], self.weight.shape()[1]);
        let tape = Tape::inference();
        if self.identity {
            return Ok(noise.normal(examples, tokens * d)?.reshape(&[b, tokens, d])?);
        }
        if let Some(l) = &self.factor {
            let z = noise.normal(examples, tokens * d)?.reshape(&[b, tokens, d])?;
            if self.rough {
                return Ok(rough(&z, l)?);
            }
            return Ok(linear(&tape, &tape.constant(z), &tape.constant(l.clone()), None, None, None)?.value().clone());
        }
        let [none, signal, spread] = self.nothing(b, tokens)?;
        let from = NoisyTokens {
            tokens: none,
            signal,
            spread,
            eps: Eps::Drawn { noise: noise.clone(), examples: examples.clone() },
            vocab: v,
        };
        let (w, bias) = (tape.constant(self.weight.clone()), tape.constant(self.bias.clone()));
        Ok(noisy_input(&tape, &from, &w, &bias, DType::F32)?.value().clone())
    }
}

impl Projection {
    fn nothing(&self, b: usize, tokens: usize) -> Result<[Tensor; 3]> {
        let mut known = self.nothing.borrow_mut();
        if let Some(all) = known.iter().find(|k| k[0].shape() == [b, tokens]) {
            return Ok(all.clone());
        }
        // From host data, so that a graph that is captured meanwhile takes them as constants.
        let device = self.device();
        let made = [
            Tensor::from_u32(&device, &[b, tokens], vec![0; b * tokens])?,
            Tensor::from_f32(&device, &[b], vec![0.0; b])?,
            Tensor::from_f32(&device, &[b], vec![1.0; b])?,
        ];
        known.push(made.clone());
        Ok(made)
    }
}

/// The identity of `v` classes.
fn identity(device: &Device, v: usize) -> Result<Tensor> {
    let ones = (0..v * v).map(|i| if i % (v + 1) == 0 { 1.0 } else { 0.0 }).collect();
    Ok(Tensor::from_f32(device, &[v, v], ones)?)
}

/// W·Wᵀ \[d, d\] of W \[d, V\], in f64.
pub fn gram(weight: &[f32], d: usize) -> Vec<f64> {
    const LANES: usize = 8;
    let v = weight.len().checked_div(d).unwrap_or(0);
    let row = |i: usize| &weight[i * v..][..v];
    let dot = |a: &[f32], b: &[f32]| {
        let mut sum = [0.0_f64; LANES];
        let (full_a, rest_a) = a.as_chunks::<LANES>();
        let (full_b, rest_b) = b.as_chunks::<LANES>();
        for (a, b) in full_a.iter().zip(full_b) {
            for l in 0..LANES {
                sum[l] += a[l] as f64 * b[l] as f64;
            }
        }
        sum.iter().sum::<f64>() + rest_a.iter().zip(rest_b).map(|(a, b)| *a as f64 * *b as f64).sum::<f64>()
    };
    let lower: Vec<Vec<f64>> = (0..d).into_par_iter().map(|i| (0..=i).map(|j| dot(row(i), row(j))).collect()).collect();
    (0..d * d).map(|k| lower[(k / d).max(k % d)][(k / d).min(k % d)]).collect()
}

/// The lower factor L \[d, d\] with L·Lᵀ = `a` (symmetric, not negative). Where rounding or a rank below d leaves no root, a
/// little is added to the diagonal: at most 1e-4 of its mean.
pub fn cholesky(a: &[f64], d: usize) -> Result<Vec<f64>> {
    let mean = (0..d).map(|i| a[i * d + i]).sum::<f64>() / d.max(1) as f64;
    let jitter = std::iter::once(0.0).chain((0..5).map(|k| 1e-12 * 100_f64.powi(k)));
    for extra in jitter {
        if let Some(l) = factor(a, d, extra * mean) {
            return Ok(l);
        }
    }
    Err(Error::Input("the input layer's weights are not finite: their product has no Cholesky factor".into()))
}

fn factor(a: &[f64], d: usize, extra: f64) -> Option<Vec<f64>> {
    let mut l = vec![0.0; d * d];
    for i in 0..d {
        for j in 0..=i {
            let dot: f64 = l[i * d..][..j].iter().zip(&l[j * d..][..j]).map(|(x, y)| x * y).sum();
            let rest = a[i * d + j] - dot;
            l[i * d + j] = if i == j {
                let rest = rest + extra;
                // Not a number fails here too.
                (rest > 0.0 && rest.is_finite()).then(|| rest.sqrt())?
            } else {
                rest / l[j * d + j]
            };
        }
    }
    Some(l)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::cases::random;

    #[test]
    fn the_factor_gives_back_the_product() {
        let (d, v) = (37, 200);
        let w = random(0, &[d, v], 0.3).to_vec().unwrap();
        let a = gram(&w, d);
        for (i, j) in [(0, 0), (5, 30), (30, 5), (36, 36)] {
            let want: f64 = (0..v).map(|k| w[i * v + k] as f64 * w[j * v + k] as f64).sum();
            assert!((a[i * d + j] - want).abs() < 1e-12);
        }
        let l = cholesky(&a, d).unwrap();
        for i in 0..d {
            assert!(l[i * d + i + 1..(i + 1) * d].iter().all(|x| *x == 0.0), "row {i} is not below the diagonal");
            for j in 0..d {
                let product: f64 = (0..d).map(|k| l[i * d + k] * l[j * d + k]).sum();
                assert!((product - a[i * d + j]).abs() < 1e-12, "{i} {j}: {product} {}", a[i * d + j]);
            }
        }
    }

    /// With fewer classes than features W·Wᵀ has no inverse; what is added to its diagonal stays small.
    #[test]
    fn a_rank_below_the_width_needs_little_help() {
        let (d, v) = (12, 5);
        let a = gram(&random(0, &[d, v], 1.0).to_vec().unwrap(), d);
        let l = cholesky(&a, d).unwrap();
        for k in 0..d * d {
            let product: f64 = (0..d).map(|j| l[k / d * d + j] * l[k % d * d + j]).sum();
            assert!((product - a[k]).abs() < 1e-4, "{product} {}", a[k]);
        }
        assert!(cholesky(&[1.0, 0.0, 0.0, f64::NAN], 2).is_err());
    }

    #[test]
    fn auto_is_exact_for_a_vocabulary_twice_as_wide() {
        let exact = |d, v, kind| Projection::new(&random(0, &[d, v], 1.0), kind).unwrap().is_exact();
        assert!(!exact(8, 16, NoiseKind::Auto) && exact(8, 17, NoiseKind::Auto));
        assert!(!exact(8, 17, NoiseKind::Dense) && exact(8, 16, NoiseKind::Exact));
    }
}
