//! Collecting a network's parameters before memory is taken: names and layouts are PyTorch's, so weights move both ways.

use rayon::prelude::*;
use tweedie_engine::{Device, Group, ParamId, Params, ParamsBuilder, rng};

use crate::error::Result;
use crate::simd::simd;

/// Initial values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Init {
    Zeros,
    Ones,
    /// Normal, cut at two standard deviations (timm's initialisation of matrices).
    TruncNormal(f32),
    Normal(f32),
    /// Rows of `width` values, the first `plain` of them normal with the usual 0.02, the others waves: sines and cosines with
    /// wavelengths from 2π to 10,000·2π, times a factor. A place then differs from its neighbours in the same way everywhere,
    /// and attention finds "the token before" at once.
    Waves {
        width: usize,
        plain: usize,
        scale: f32,
    },
    /// Uniform in ±bound (PyTorch's default for convolutions).
    Uniform(f32),
    /// Rows of two parts, each of so many values cut at two of its standard deviations. The second part is drawn as parameter number
    /// `second_as` would be.
    Beside {
        parts: [(usize, f32); 2],
        second_as: usize,
    },
}

struct PlannedParam {
    name: String,
    shape: Vec<usize>,
    group: Group,
    init: Init,
}

/// The parameters of a network to be.
#[derive(Default)]
pub(crate) struct Plan {
    entries: Vec<PlannedParam>,
}

impl Plan {
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], group: Group, init: Init) -> usize {
        self.entries.push(PlannedParam { name: name.into(), shape: shape.to_vec(), group, init });
        self.entries.len() - 1
    }

    /// Number of parameters so far: the next one's.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of values of the parameters whose name starts with `prefix`.
    pub fn count(&self, prefix: &str) -> usize {
        let size = |e: &PlannedParam| e.shape.iter().fold(1, |n: usize, side| n.saturating_mul(*side));
        self.entries.iter().filter(|e| e.name.starts_with(prefix)).fold(0, |n, e| n.saturating_add(size(e)))
    }

    /// Exclude from training what starts with `prefix`.
    pub fn freeze(&mut self, prefix: &str) {
        self.entries.iter_mut().filter(|e| e.name.starts_with(prefix)).for_each(|e| e.group = Group::Frozen);
    }

    /// Take memory and draw initial values; the draw depends on the seed and on each parameter's position alone.
    pub fn build(self, device: &Device, low: bool, seed: u64) -> Result<(Params, Vec<ParamId>)> {
        let values: Vec<Vec<f32>> = self
            .entries
            .par_iter()
            .enumerate()
            .map(|(i, e)| draw(e.init, e.shape.iter().product(), seed, i as u32))
            .collect();
        let mut builder = ParamsBuilder::default();
        let mut ids = Vec::with_capacity(values.len());
        for (e, v) in self.entries.into_iter().zip(values) {
            ids.push(builder.add(e.name, &e.shape, e.group, v)?);
        }
        Ok((builder.build(device, low)?, ids))
    }
}

/// Stream of the noise that initial weights are drawn from; data and diffusion use others.
const INIT_STREAM: u32 = 0x1417;

/// Value `i` is number i % 4 of block i / 4: it depends on its address alone, not on who computes it.
fn draw(init: Init, n: usize, seed: u64, which: u32) -> Vec<f32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = |block: u32, retry: u32| rng::philox([block, which, retry, INIT_STREAM], key);
    match init {
        Init::Zeros => vec![0.0; n],
        Init::Ones => vec![1.0; n],
        Init::Beside { parts: [(first, first_std), (second, second_std)], second_as } => {
            let rows = n / (first + second);
            let a = draw(Init::TruncNormal(first_std), rows * first, seed, which);
            let b = draw(Init::TruncNormal(second_std), rows * second, seed, second_as as u32);
            a.chunks_exact(first).zip(b.chunks_exact(second)).flat_map(|(a, b)| [a, b].concat()).collect()
        }
        Init::Normal(std) => blocks(
            n,
            #[inline(always)]
            |b| rng::normals_of(words(b, 0)).map(|z| std * z),
        ),
        Init::TruncNormal(std) => {
            let again = |b: u32, k: usize| {
                (1..64).map(|r| rng::normals_of(words(b, r))[k]).find(|z| z.abs() <= 2.0).unwrap_or(0.0)
            };
            let mut all = blocks(
                n,
                #[inline(always)]
                |b| rng::normals_of(words(b, 0)),
            );
            // One in 22 lies outside; apart from the loop above, which is then one stream of vectors.
            all.par_iter_mut().with_min_len(PIECE).enumerate().for_each(|(i, z)| {
                *z = std * if z.abs() <= 2.0 { *z } else { again((i / 4) as u32, i % 4) };
            });
            all
        }
        Init::Waves { width, plain, scale } => {
            let wave = |i: usize| {
                let (place, column) = (i / width - plain, i % width);
                let angle = place as f64 / 10_000_f64.powf((column / 2 * 2) as f64 / width as f64);
                scale * if column % 2 == 0 { angle.sin() } else { angle.cos() } as f32
            };
            (0..n)
                .map(
                    |i| {
                        if i / width < plain {
                            0.02 * rng::normals_of(words((i / 4) as u32, 0))[i % 4]
                        } else {
                            wave(i)
                        }
                    },
                )
                .collect()
        }
        Init::Uniform(bound) => blocks(
            n,
            #[inline(always)]
            |b| words(b, 0).map(|w| bound * (2.0 * rng::uniform_of(w) - 1.0)),
        ),
    }
}

/// Values that a thread makes at a time.
const PIECE: usize = 1 << 14;

/// `n` values, four from each block.
fn blocks(n: usize, of: impl Fn(u32) -> [f32; 4] + Sync) -> Vec<f32> {
    let mut out = vec![0.0; n];
    out.par_chunks_mut(PIECE).enumerate().for_each(|(piece, out)| {
        simd(
            #[inline(always)]
            || {
                for (k, four) in out.chunks_mut(4).enumerate() {
                    four.copy_from_slice(&of((piece * PIECE / 4 + k) as u32)[..four.len()]);
                }
            },
        )
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_values_have_the_named_spread() {
        let n = 100_000;
        let std = |v: &[f32]| (v.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() / n as f64).sqrt();
        // A normal cut at ±2σ has a standard deviation of 0.8796σ.
        let t = draw(Init::TruncNormal(0.02), n, 1, 2);
        assert!((std(&t) - 0.02 * 0.8796).abs() < 2e-4 && t.iter().all(|x| x.abs() <= 0.04));
        let u = draw(Init::Uniform(0.5), n, 1, 2);
        assert!((std(&u) - 0.5 / 3f64.sqrt()).abs() < 2e-3 && u.iter().all(|x| x.abs() <= 0.5));
        assert_ne!(draw(Init::Normal(1.0), 8, 1, 2), draw(Init::Normal(1.0), 8, 1, 3));
        // Two plain rows, then places 0, 1, …: all of one length, and neighbours at one angle.
        let (width, rows) = (16, 12);
        let w = draw(Init::Waves { width, plain: 2, scale: 3.0 }, rows * width, 1, 2);
        assert!(w[..2 * width].iter().all(|x| x.abs() < 0.1));
        let w: Vec<&[f32]> = w[2 * width..].chunks(width).collect();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let next = dot(w[0], w[1]);
        assert!(next < 0.99 * dot(w[0], w[0]));
        for p in w.windows(2) {
            assert!((dot(p[0], p[0]) - 9.0 * 8.0).abs() < 1e-3 && (dot(p[0], p[1]) - next).abs() < 1e-3);
        }
    }

    /// Weights of a seed must not change: each value by the definition, one at a time, beyond the first piece too.
    #[test]
    fn initial_values_are_those_of_their_addresses() {
        let (n, seed, which) = (PIECE + 1003, 7_u64 << 33 | 5, 3);
        let words = |i: usize, retry: u32| rng::philox([(i / 4) as u32, which, retry, INIT_STREAM], [5, 14]);
        let normal = |i: usize, retry: u32| rng::normals_of(words(i, retry))[i % 4];
        let within = |i: usize| (0..64).map(|r| normal(i, r)).find(|z| z.abs() <= 2.0).unwrap_or(0.0);
        let same = |init: Init, value: &dyn Fn(usize) -> f32| {
            let got = draw(init, n, seed, which);
            assert!(got.len() == n && got.iter().enumerate().all(|(i, v)| v.to_bits() == value(i).to_bits()));
        };
        same(Init::Normal(0.3), &|i| 0.3 * normal(i, 0));
        same(Init::TruncNormal(0.02), &|i| 0.02 * within(i));
        same(Init::Uniform(0.5), &|i| 0.5 * (2.0 * rng::uniform_of(words(i, 0)[i % 4]) - 1.0));
    }
}
