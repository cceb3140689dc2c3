//! Choosing tokens on the CPU.

use rayon::prelude::*;

use super::{Choose, Chosen, FREE, How, Numbers, Plan};
use crate::cpu::math::{exp, max, simd};
use crate::cpu::par;
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::rng::Noise;
use crate::tensor::Tensor;

/// Cost of one logit in the units of [`par`].
const LOGIT_WORK: usize = 20;
/// Logits whose probabilities are added up before a draw looks at single ones.
const TILE: usize = 512;
const LANES: usize = 8;

/// A uniform number in [0, 1) with 53 bits.
fn uniform(w: [u32; 4]) -> f64 {
    ((w[0] as u64) << 21 | (w[1] as u64) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A row's guided logits and their exponentials.
#[derive(Default)]
struct Scratch {
    logits: Vec<f32>,
    exps: Vec<f32>,
}

/// A row's largest logit, sum of exponentials below it, and Σ e·(l − largest).
struct Sums {
    base: f32,
    sum: f64,
    weighted: f64,
}

/// The logits that count for `row`: guided, without those that are banned.
fn guided(logits: &[f32], how: &Choose, plan: Plan, row: usize, out: &mut Vec<f32>) {
    let Plan { vocab: v, stride, tokens: n, .. } = plan;
    out.clear();
    match how.guidance {
        Some(w) => {
            let w = w.f32s()[if w.len() > 1 { row / n } else { 0 }];
            let at = (row / n * 2 * n + row % n) * stride;
            let (c, u) = (&logits[at..][..v], &logits[at + n * stride..][..v]);
            out.extend(u.iter().zip(c).map(|(u, c)| w.mul_add(c - u, *u)));
        }
        None => out.extend_from_slice(&logits[row * stride..][..v]),
    }
    for l in out.iter_mut() {
        *l = if l.is_nan() { f32::NEG_INFINITY } else { *l };
    }
    if let Some(b) = how.banned {
        let bits = b.rows.u32s()[row];
        for (k, class) in b.classes.u32s().iter().enumerate() {
            if bits >> k & 1 == 1
                && let Some(l) = out.get_mut(*class as usize)
            {
                *l = f32::NEG_INFINITY;
            }
        }
    }
}

fn sums(s: &mut Scratch) -> Sums {
    let Scratch { logits, exps } = s;
    exps.resize(logits.len(), 0.0);
    simd(
        #[inline(always)]
        || {
            let largest = max(logits);
            let base = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
            for (e, l) in exps.iter_mut().zip(logits.iter()) {
                *e = exp(l - base);
            }
            let (mut sum, mut weighted) = ([0.0_f64; LANES], [0.0_f64; LANES]);
            let term = |e: f32, l: f32| if e > 0.0 { e as f64 * (l - base) as f64 } else { 0.0 };
            let (full, rest) = exps.as_chunks::<LANES>();
            for (e, l) in full.iter().zip(logits.as_chunks::<LANES>().0) {
                for i in 0..LANES {
                    sum[i] += e[i] as f64;
                    weighted[i] += term(e[i], l[i]);
                }
            }
            for (e, l) in rest.iter().zip(&logits[full.len() * LANES..]) {
                sum[0] += *e as f64;
                weighted[0] += term(*e, *l);
            }
            Sums { base, sum: sum.iter().sum(), weighted: weighted.iter().sum() }
        },
    )
}

/// The last class of positive weight before which no more than `target` lies: the inverse of the distribution function, and
/// still a class that can occur where rounding leaves the sum short. First by tiles, then within one.
fn invert(exps: &[f32], target: f64) -> Option<usize> {
    let total = |x: &[f32]| x.iter().map(|e| *e as f64).sum::<f64>();
    let (mut before, mut found) = (0.0, None);
    for (i, tile) in exps.chunks(TILE).enumerate() {
        let t = total(tile);
        if t > 0.0 && before <= target {
            found = Some((i * TILE, before));
        }
        before += t;
    }
    let (first, mut before) = found?;
    let mut at = None;
    for (i, e) in exps[first..].iter().take(TILE).enumerate() {
        if *e > 0.0 && before <= target {
            at = Some(first + i);
        }
        before += *e as f64;
    }
    at
}

/// The first of the largest; where all are −∞, the first.
fn argmax(logits: &[f32]) -> usize {
    let largest = simd(
        #[inline(always)]
        || max(logits),
    );
    logits.iter().position(|l| *l == largest).unwrap_or(0)
}

/// The `k` largest, the first of equals first.
fn largest(logits: &[f32], k: usize) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(k + 1);
    for (i, l) in logits.iter().enumerate() {
        if best.len() < k || *l > logits[best[k - 1]] {
            let at = best.partition_point(|b| logits[*b] >= *l);
            best.insert(at, i);
            best.truncate(k);
        }
    }
    best
}

#[derive(Default)]
struct Row {
    token: u32,
    log_prob: f32,
    entropy: f32,
    base: f32,
    sum: f64,
    top: Vec<(u32, f32)>,
}

/// What is computed on, as slices.
struct Rows<'a> {
    how: &'a Choose<'a>,
    plan: Plan,
    logits: &'a [f32],
    fixed: Option<&'a [u32]>,
    /// Noise and example ids, where tokens are drawn.
    draw: Option<(&'a Noise, &'a [u32])>,
}

impl Rows<'_> {
    /// The token that `row` keeps, if it is given one.
    fn kept(&self, row: usize) -> Option<u32> {
        self.fixed.map(|g| g[row]).filter(|t| *t != FREE)
    }

    fn choose(&self, s: &mut Scratch, row: usize) -> Row {
        guided(self.logits, self.how, self.plan, row, &mut s.logits);
        let kept = self.kept(row);
        if !self.how.sums() {
            let token = kept.unwrap_or_else(|| argmax(&s.logits) as u32);
            return Row { token, ..Row::default() };
        }
        let n = self.plan.tokens;
        let sums = sums(s);
        let ln = sums.sum.ln();
        let log_prob = |k: usize| ((s.logits[k] - sums.base) as f64 - ln) as f32;
        let token = match (kept, &self.draw) {
            (Some(t), _) => t as usize,
            (None, Some((noise, ids))) => {
                let u = uniform(noise.words_of(row / n)(ids[row / n], (row % n) as u32));
                invert(&s.exps, u * sums.sum).unwrap_or_else(|| argmax(&s.logits))
            }
            (None, None) => argmax(&s.logits),
        };
        let top = if self.plan.top > 0 { largest(&s.logits, self.plan.top) } else { Vec::new() };
        Row {
            token: token as u32,
            log_prob: log_prob(token),
            entropy: (ln - sums.weighted / sums.sum) as f32,
            base: sums.base,
            sum: sums.sum,
            top: top.into_iter().map(|k| (k as u32, log_prob(k))).collect(),
        }
    }

    fn all(&self) -> Vec<Row> {
        let Plan { rows, vocab, .. } = self.plan;
        if par::is_tiny(rows * vocab * LOGIT_WORK) {
            let mut s = Scratch::default();
            (0..rows).map(|r| self.choose(&mut s, r)).collect()
        } else {
            (0..rows).into_par_iter().map_init(Scratch::default, |s, r| self.choose(s, r)).collect()
        }
    }

    /// The distributions, from what [`Rows::all`] found.
    fn probabilities(&self, all: &[Row]) -> Tensor {
        let Plan { rows, vocab, .. } = self.plan;
        let mut p = Buf::scratch(rows * vocab);
        par::rows(&mut p, vocab, vocab * LOGIT_WORK, |first, p| {
            let mut l = Vec::new();
            for (i, p) in p.chunks_exact_mut(vocab).enumerate() {
                let row = first + i;
                if let Some(token) = self.kept(row) {
                    p.fill(0.0);
                    p[token as usize] = 1.0;
                    continue;
                }
                guided(self.logits, self.how, self.plan, row, &mut l);
                let (base, by) = (all[row].base, (1.0 / all[row].sum) as f32);
                simd(
                    #[inline(always)]
                    || {
                        for (p, l) in p.iter_mut().zip(&l) {
                            *p = by * exp(l - base);
                        }
                    },
                );
            }
        });
        Tensor::from_buf(p, &[rows, vocab])
    }
}

/// The most likely tokens and their log-probabilities.
fn top_of(all: &[Row], k: usize) -> Result<(Tensor, Tensor)> {
    let flat = || all.iter().flat_map(|r| &r.top);
    let tokens = Tensor::from_u32(&Device::Cpu, &[all.len(), k], flat().map(|t| t.0).collect())?;
    Ok((tokens, Tensor::from_f32(&Device::Cpu, &[all.len(), k], flat().map(|t| t.1).collect())?))
}

pub(super) fn choose(logits: &Tensor, how: &Choose, plan: Plan) -> Result<Chosen> {
    let Plan { rows, vocab, top, .. } = plan;
    let fixed = how.fixed.map(Tensor::u32s);
    if let Some(at) = fixed.and_then(|g| g.iter().position(|t| *t != FREE && *t as usize >= vocab)) {
        let token = fixed.map_or(0, |g| g[at]);
        return Err(Error::op("choose", format!("token {token} fixed at {at} is not below the vocabulary {vocab}")));
    }
    let draw = match how.how {
        How::Argmax => None,
        How::Drawn { noise, examples } => Some((noise, examples.u32s())),
    };
    let of = Rows { how, plan, logits: logits.f32s(), fixed, draw };
    let all = of.all();
    let column = |of: fn(&Row) -> f32| Tensor::from_f32(&Device::Cpu, &[rows], all.iter().map(of).collect());
    let numbers = match how.numbers {
        true => Some(Numbers { log_prob: column(|r| r.log_prob)?, entropy: column(|r| r.entropy)? }),
        false => None,
    };
    Ok(Chosen {
        tokens: Tensor::from_u32(&Device::Cpu, &[rows], all.iter().map(|r| r.token).collect())?,
        numbers,
        probabilities: how.probabilities.then(|| of.probabilities(&all)),
        top: if top > 0 { Some(top_of(&all, top)?) } else { None },
    })
}
