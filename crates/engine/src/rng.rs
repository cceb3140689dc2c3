//! Noise as a pure function: Philox4x32-10 keyed by (seed, stream, example, step). The same numbers on the CPU and on
//! the GPU, to the bit, whatever the batch size, the thread count or the point where a run was resumed.

#![allow(clippy::excessive_precision, clippy::unreadable_literal)] // constants stand as in `prelude.cu`

use crate::cpu::math::simd;
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::cuda::args;
use crate::device::Device;
use crate::error::{Result, ensure};
use crate::tensor::{DType, Tensor, elements};

crate::cuda::source!("rng.cu");

/// Philox4x32 with ten rounds (Salmon et al. 2011).
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        let p0 = 0xD251_1F53_u64 * c0 as u64;
        let p1 = 0xCD9E_8D57_u64 * c2 as u64;
        c0 = (p1 >> 32) as u32 ^ c1 ^ k0;
        c1 = p1 as u32;
        c2 = (p0 >> 32) as u32 ^ c3 ^ k1;
        c3 = p0 as u32;
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// A uniform number in [0, 1) with 24 bits.
#[inline(always)]
pub fn uniform_of(x: u32) -> f32 {
    (x >> 8) as f32 * 5.9604644775390625e-8 // 2⁻²⁴
}

/// Two independent standard normals from two random words (Box–Muller; the tail reaches 6.7 σ). Only exactly rounded
/// operations in a fixed order, as in `prelude.cu`, so that both devices agree to the bit.
#[inline(always)]
pub fn normal_pair(a: u32, b: u32) -> (f32, f32) {
    // −2 ln u for u in (0, 1], by Cephes' polynomial on the mantissa.
    let u = (a as f32).mul_add(2.3283064365386963e-10, 1.1641532182693481e-10); // 2⁻³², 2⁻³³
    let bits = u.to_bits() as i32;
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let z = m * m;
    let fe = e as f32;
    let p = 7.0376836292e-2_f32;
    let p = p.mul_add(m, -1.1514610310e-1);
    let p = p.mul_add(m, 1.1676998740e-1);
    let p = p.mul_add(m, -1.2420140846e-1);
    let p = p.mul_add(m, 1.4249322787e-1);
    let p = p.mul_add(m, -1.6668057665e-1);
    let p = p.mul_add(m, 2.0000714765e-1);
    let p = p.mul_add(m, -2.4999993993e-1);
    let p = p.mul_add(m, 3.3333331174e-1);
    let y = p * m * z;
    let y = fe.mul_add(-2.12194440e-4, y);
    let y = z.mul_add(-0.5, y);
    let ln = fe.mul_add(0.693359375, m + y);
    let r = (-2.0 * ln).max(0.0).sqrt();
    // The angle: 30 bits in [−π/4, π/4), two bits of quadrant.
    let x = ((b & 0x3fff_ffff) as i32 - 0x2000_0000) as f32 + 0.5;
    let x = x * 1.4629180792671596e-9; // π/2 · 2⁻³⁰
    let w = x * x;
    let s = (-1.9515295891e-4_f32).mul_add(w, 8.3321608736e-3);
    let s = s.mul_add(w, -1.6666654611e-1);
    let s = (s * w).mul_add(x, x);
    let c = 2.443315711809948e-5_f32.mul_add(w, -1.388731625493765e-3);
    let c = c.mul_add(w, 4.166664568298827e-2);
    let c = c.mul_add(w * w, w.mul_add(-0.5, 1.0));
    let q = b >> 30;
    let (cc, ss) = if q & 1 == 1 { (s, c) } else { (c, s) };
    let cc = if q == 1 || q == 2 { -cc } else { cc };
    let ss = if q >= 2 { -ss } else { ss };
    (r * cc, r * ss)
}

/// Four standard normals from one Philox block.
#[inline(always)]
pub fn normals_of(w: [u32; 4]) -> [f32; 4] {
    let (a, b) = normal_pair(w[0], w[1]);
    let (c, d) = normal_pair(w[2], w[3]);
    [a, b, c, d]
}

/// Philox blocks computed side by side: as many as a vector register has lanes.
const LANES: usize = 16;

/// Fill `row` with the numbers that `convert` makes of the words `base`, `base + 1`, … of `example`, four from each.
#[inline(always)]
pub(crate) fn fill_row(
    row: &mut [f32],
    base: u32,
    words: impl Fn(u32) -> [u32; 4],
    convert: impl Fn([u32; 4]) -> [f32; 4],
) {
    let (wide, rest) = row.as_chunks_mut::<{ 4 * LANES }>();
    let mut index = base;
    for chunk in wide {
        let mut z = [[0.0_f32; LANES]; 4];
        for l in 0..LANES {
            let four = convert(words(index + l as u32));
            for k in 0..4 {
                z[k][l] = four[k];
            }
        }
        for l in 0..LANES {
            for k in 0..4 {
                chunk[4 * l + k] = z[k][l];
            }
        }
        index += LANES as u32;
    }
    for four in rest.chunks_mut(4) {
        let z = convert(words(index));
        four.copy_from_slice(&z[..four.len()]);
        index += 1;
    }
}

/// The address of a noise stream: seed, stream and step. It lives on the device, so that a captured graph can be
/// replayed with another one.
///
/// ```
/// use tweedie_engine::{Device, Noise, Tensor};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let noise = Noise::new(&Device::Cpu, 42, 0, 0)?;
/// let of = |ids: Vec<u32>| noise.normal(&Tensor::from_u32(&Device::Cpu, &[ids.len()], ids)?, 5);
/// // What an example gets depends on its id alone, not on the batch that it is in.
/// assert_eq!(of(vec![1, 2, 3])?.row(2)?.to_vec()?, of(vec![3])?.to_vec()?);
/// assert_ne!(noise.later(1).normal_at(3, 0, 0)?, noise.normal_at(3, 0, 0)?); // another step, other numbers
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Noise {
    key: Tensor, // u32 [seed low, seed high, stream, step], or [B, 4] with one for each example of a batch
    later: u32,
}

impl Noise {
    /// The stream numbered `stream` of `seed`, at `step`.
    pub fn new(device: &Device, seed: u64, stream: u32, step: u32) -> Result<Noise> {
        Ok(Noise {
            key: Tensor::from_u32(device, &[4], vec![seed as u32, (seed >> 32) as u32, stream, step])?,
            later: 0,
        })
    }

    /// One address for each example of a batch: the stream numbered `stream` of its own seed, at its own step.
    pub fn of_each(device: &Device, stream: u32, seeds_and_steps: &[(u64, u32)]) -> Result<Noise> {
        Ok(Noise {
            key: Tensor::from_u32(device, &[seeds_and_steps.len(), 4], Noise::keys(stream, seeds_and_steps))?,
            later: 0,
        })
    }

    fn keys(stream: u32, seeds_and_steps: &[(u64, u32)]) -> Vec<u32> {
        seeds_and_steps.iter().flat_map(|(seed, step)| [*seed as u32, (*seed >> 32) as u32, stream, *step]).collect()
    }

    /// The same stream `n` steps on.
    pub fn later(&self, n: u32) -> Noise {
        Noise { key: self.key.clone(), later: self.later.wrapping_add(n) }
    }

    /// Change seed, stream and step in place, for a graph captured with this key.
    pub fn reset(&self, seed: u64, stream: u32, step: u32) -> Result<()> {
        self.key.overwrite(&Tensor::from_u32(&Device::Cpu, &[4], vec![seed as u32, (seed >> 32) as u32, stream, step])?)
    }

    pub(crate) fn key(&self) -> &Tensor {
        &self.key
    }

    /// From the key of one example to that of the next: 0 where all share one.
    pub(crate) fn key_step(&self) -> usize {
        if self.key.shape().len() == 2 { 4 } else { 0 }
    }

    /// Refuse keys that are not one for all, or one for each of so many `examples` beside `like`.
    pub(crate) fn check(&self, op: &'static str, examples: usize, like: &Tensor) -> Result<()> {
        crate::ops::check::integers(op, "noise keys", &self.key, like)?;
        ensure!(
            self.key_step() == 0 || self.key.shape()[0] == examples,
            op,
            "noise keys {:?} do not go with {examples} examples",
            self.key.shape()
        );
        Ok(())
    }

    pub(crate) fn offset(&self) -> u32 {
        self.later
    }

    /// On the CPU: a function from (example, index) to four random words, for row `row` of a batch.
    pub(crate) fn words_of(&self, row: usize) -> impl Fn(u32, u32) -> [u32; 4] + Copy + use<> {
        let k = &self.key.u32s()[row * self.key_step()..];
        let (key, stream, step) = ([k[0], k[1]], k[2], k[3].wrapping_add(self.later));
        #[inline(always)]
        move |example, index| philox([index, example, step, stream], key)
    }

    /// One standard normal on the host: number `i` of word block `block` of `example`, from a key that is on the CPU.
    /// [`Noise::normal`] has it at 4·`block` + `i`.
    pub fn normal_at(&self, example: u32, block: u32, i: usize) -> Result<f32> {
        ensure!(self.key.cuda_device().is_none(), "noise", "single numbers are drawn from a key on the CPU");
        ensure!(i < 4, "noise", "a block holds four numbers, not number {i}");
        Ok(normals_of(self.words_of(0)(example, block))[i])
    }

    /// Standard normals, one row of `n` for each id in `examples` (u32 \[rows\]).
    pub fn normal(&self, examples: &Tensor, n: usize) -> Result<Tensor> {
        self.fill(
            examples,
            n,
            "fill_normal",
            #[inline(always)]
            |w| normals_of(w),
        )
    }

    /// Uniform numbers in [0, 1), one row of `n` for each id in `examples`.
    pub fn uniform(&self, examples: &Tensor, n: usize) -> Result<Tensor> {
        self.fill(
            examples,
            n,
            "fill_uniform",
            #[inline(always)]
            |w| [uniform_of(w[0]), uniform_of(w[1]), uniform_of(w[2]), uniform_of(w[3])],
        )
    }

    fn fill(
        &self,
        examples: &Tensor,
        n: usize,
        kernel: &'static str,
        convert: impl Fn([u32; 4]) -> [f32; 4] + Sync,
    ) -> Result<Tensor> {
        ensure!(
            examples.dtype() == DType::U32 && examples.is_beside(&self.key),
            "noise",
            "example ids must be u32 on {}, they are {examples:?}",
            self.key.device()
        );
        self.check("noise", examples.len(), examples)?;
        elements("noise", &[examples.len(), n])?;
        ensure!(n.div_ceil(4) <= u32::MAX as usize, "noise", "rows of {n} numbers are too long");
        let rows = examples.len();
        if let Some(c) = self.key.cuda_device() {
            let out = Tensor::cuda(c, &[rows, n], DType::F32)?;
            let blocks = (rows * n.div_ceil(4)).div_ceil(256);
            c.launch(
                &SOURCE,
                0,
                kernel,
                (blocks, 1, 1),
                256,
                0,
                args![&out, examples, &self.key, self.key_step(), self.later, rows, n],
            )?;
            return Ok(out);
        }
        let ids = examples.u32s();
        let mut out = Buf::scratch(rows * n);
        if n > 0 {
            par::rows(&mut out, n, n * 30, |first, out| {
                for (r, row) in out.chunks_mut(n).enumerate() {
                    let words = self.words_of(first + r);
                    simd(
                        #[inline(always)]
                        || {
                            fill_row(
                                row,
                                0,
                                #[inline(always)]
                                |i| words(ids[first + r], i),
                                #[inline(always)]
                                |w| convert(w),
                            );
                        },
                    );
                }
            });
        }
        Ok(Tensor::from_buf(out, &[rows, n]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers from the Random123 distribution (kat_vectors, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        let cases = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox(counter, key), want);
        }
    }

    #[test]
    fn box_muller_agrees_with_f64() {
        for i in 0..200_000_u32 {
            let [a, b, ..] = philox([i, 1, 2, 3], [4, 5]);
            let (z0, z1) = normal_pair(a, b);
            let u = (a as f32 as f64 + 0.5) / 4294967296.0;
            let r = (-2.0 * u.ln()).sqrt();
            let angle = ((b & 0x3fff_ffff) as f64 - 536870912.0 + 0.5) / 1073741824.0 * std::f64::consts::FRAC_PI_2
                + (b >> 30) as f64 * std::f64::consts::FRAC_PI_2;
            // Near u = 1 the f32 logarithm is limited by the spacing of u itself (6e-8), so r by its square root.
            assert!((z0 as f64 - r * angle.cos()).abs() < 4e-4, "{i}: {z0} {}", r * angle.cos());
            assert!((z1 as f64 - r * angle.sin()).abs() < 4e-4);
        }
    }

    /// Rows with keys of their own are those of a batch that has nothing else.
    #[test]
    fn each_example_may_have_its_own_seed_and_step() {
        let ids = Tensor::from_u32(&Device::Cpu, &[3], vec![4, 4, 9]).unwrap();
        let at = [(7, 0), (1 << 40, 3), (7, 5)];
        let all = Noise::of_each(&Device::Cpu, 2, &at).unwrap().later(1).normal(&ids, 10).unwrap().to_vec().unwrap();
        for (i, (seed, step)) in at.into_iter().enumerate() {
            let one = Noise::new(&Device::Cpu, seed, 2, step + 1).unwrap();
            assert_eq!(one.normal(&ids, 10).unwrap().row(i).unwrap().to_vec().unwrap(), all[10 * i..][..10]);
        }
        let two = Tensor::from_u32(&Device::Cpu, &[2], vec![4, 4]).unwrap();
        let e = Noise::of_each(&Device::Cpu, 2, &at).unwrap().normal(&two, 10).unwrap_err().to_string();
        assert!(e.contains("[3, 4]") && e.contains("2 examples"), "{e}");
    }

    /// Moments of two million normals: each bound is five standard errors of the estimate.
    #[test]
    fn normals_have_the_right_moments() {
        let n = 2_000_000;
        let noise = Noise::new(&Device::Cpu, 7, 0, 0).unwrap();
        let ids = Tensor::from_u32(&Device::Cpu, &[1], vec![0]).unwrap();
        let z = noise.normal(&ids, n).unwrap().to_vec().unwrap();
        let mean = |f: &dyn Fn(f64) -> f64| z.iter().map(|&x| f(x as f64)).sum::<f64>() / n as f64;
        let root = (n as f64).sqrt();
        assert!(mean(&|x| x).abs() < 5.0 / root);
        assert!((mean(&|x| x * x) - 1.0).abs() < 5.0 * 2f64.sqrt() / root);
        assert!(mean(&|x| x * x * x).abs() < 5.0 * 15f64.sqrt() / root);
        assert!((mean(&|x| x.powi(4)) - 3.0).abs() < 5.0 * 96f64.sqrt() / root);
        let beyond3 = mean(&|x| (x.abs() > 3.0) as u8 as f64);
        assert!((beyond3 - 0.002_699_8).abs() < 5.0 * 0.0027f64.sqrt() / root);
    }

    #[test]
    fn rows_depend_on_their_example_alone() {
        let noise = Noise::new(&Device::Cpu, 1 << 40, 3, 9).unwrap();
        let ids = |v: Vec<u32>| Tensor::from_u32(&Device::Cpu, &[v.len()], v).unwrap();
        let all = noise.normal(&ids(vec![5, 6, 7]), 10).unwrap().to_vec().unwrap();
        let one = noise.normal(&ids(vec![6]), 10).unwrap().to_vec().unwrap();
        assert_eq!(all[10..20], one[..]);
        assert_eq!(
            noise.later(2).normal(&ids(vec![6]), 10).unwrap().to_vec().unwrap(),
            Noise::new(&Device::Cpu, 1 << 40, 3, 11).unwrap().normal(&ids(vec![6]), 10).unwrap().to_vec().unwrap()
        );
        assert_eq!(noise.normal_at(6, 1, 2).unwrap(), one[6]);
        assert_ne!(noise.later(1).normal(&ids(vec![6]), 10).unwrap().to_vec().unwrap(), one);
    }

    #[test]
    fn uniforms_fill_the_unit_interval_evenly() {
        let noise = Noise::new(&Device::Cpu, 3, 0, 0).unwrap();
        let ids = Tensor::from_u32(&Device::Cpu, &[1], vec![0]).unwrap();
        let u = noise.uniform(&ids, 1_000_000).unwrap().to_vec().unwrap();
        let mut counts = [0f64; 100];
        u.iter().for_each(|&x| counts[(x * 100.0) as usize] += 1.0);
        let chi2: f64 = counts.iter().map(|c| (c - 10_000.0).powi(2) / 10_000.0).sum();
        assert!(chi2 < 160.0, "{chi2}"); // 99 degrees of freedom: P(χ² > 160) < 1e-4
    }
}
