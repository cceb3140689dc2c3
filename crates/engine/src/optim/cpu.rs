//! The optimizer step on the CPU.

use rayon::prelude::*;

use super::shard::{Part, Shard};
use super::{AdamW, CORRECTION1, CORRECTION2, EMA_DECAY, IN_A_ROW, LR, NORM, SCALE, SKIPPED, STEPS, ema_decay, muon};
use crate::cpu::math::{simd, sum_of};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::params::Params;
use crate::tensor::Tensor;

/// Elements per task.
const CHUNK: usize = 1 << 15;

/// Sum of squares; f64 over fixed chunks, so it does not depend on the number of threads.
fn squares(g: &[f32]) -> f64 {
    let part = |c: &[f32]| {
        simd(
            #[inline(always)]
            || sum_of([c], |[x]| x * x),
        ) as f64
    };
    let parts: Vec<f64> = g.par_chunks(CHUNK).map(part).collect();
    parts.iter().sum()
}

/// Global norm; over all ranks where each has the sums of its share alone.
fn norm(g: &[f32], shard: Option<&Shard>) -> Result<f32> {
    match shard {
        Some(shard) if !shard.whole_gradient => {
            let own: f64 = shard.counted.iter().map(|r| squares(&g[r.clone()])).sum();
            let mut sum = Tensor::from_f32(&Device::Cpu, &[1], vec![own as f32])?;
            shard.sum(&mut sum)?;
            Ok(sum.item()?.sqrt())
        }
        _ => Ok(squares(g).sqrt() as f32),
    }
}

pub(super) fn step(opt: &mut AdamW, params: &mut Params, lr: f32) -> Result<()> {
    let config = opt.config;
    let busy =
        || Error::op("optimizer", "the weights or their state are still in use by a tape; drop it before the step");
    let mut s = opt.state.to_vec()?;
    let (passes, parts) = (opt.own_passes(params), opt.parts());
    let grads = params.finished_grads()?.clone();
    let grads = grads.f32s();
    let n = norm(grads, opt.shard.as_ref())?;
    s[NORM] = n;
    s[LR] = lr;
    if !n.is_finite() {
        s[SKIPPED] += 1.0;
        s[IN_A_ROW] += 1.0;
        s[SCALE] = 0.0;
        return opt.restore("state", s);
    }
    s[STEPS] += 1.0;
    s[IN_A_ROW] = 0.0;
    s[SCALE] = if config.clip > 0.0 { (config.clip / (n + 1e-6)).min(1.0) } else { 1.0 };
    let t = s[STEPS] as i32;
    s[CORRECTION1] = (1.0 / (1.0 - (config.beta1 as f64).powi(t))) as f32;
    s[CORRECTION2] = (1.0 / (1.0 - (config.beta2 as f64).powi(t))) as f32;
    s[EMA_DECAY] = ema_decay(config.ema, t as u32);
    let (scale, c1, c2, keep) = (s[SCALE], s[CORRECTION1], s[CORRECTION2], s[EMA_DECAY]);
    let (b1, b2, eps) = (config.beta1, config.beta2, config.eps);
    let (m, v) = (opt.m.f32s_mut().ok_or_else(busy)?, opt.v.f32s_mut().ok_or_else(busy)?);
    params.values_changed();
    let w = params.values.f32s_mut().ok_or_else(busy)?;
    for (decay, Part { flat, at }) in passes {
        let shrink = 1.0 - lr * decay;
        let kept = at..at + flat.len();
        w[flat.clone()]
            .par_chunks_mut(CHUNK)
            .zip(m[kept.clone()].par_chunks_mut(CHUNK))
            .zip(v[kept].par_chunks_mut(CHUNK))
            .zip(grads[flat].par_chunks(CHUNK))
            .for_each(|(((w, m), v), g)| {
                simd(
                    #[inline(always)]
                    || {
                        for i in 0..w.len() {
                            let g = g[i] * scale;
                            m[i] = b1.mul_add(m[i], (1.0 - b1) * g);
                            v[i] = b2.mul_add(v[i], (1.0 - b2) * g * g);
                            let direction = m[i] * c1 / ((v[i] * c2).sqrt() + eps);
                            w[i] = w[i].mul_add(shrink, -lr * direction);
                        }
                    },
                );
            });
    }
    if let Some(muon) = &opt.muon {
        let at =
            parts.iter().find(|p| p.flat.contains(&muon.first())).map_or(0, |p| p.at + muon.first() - p.flat.start);
        muon::cpu::step(muon, w, &mut m[at..], grads, muon::Step { lr, scale, decay: config.weight_decay });
    }
    if let Some(ema) = &mut opt.ema {
        let e = ema.f32s_mut().ok_or_else(busy)?;
        for Part { flat, at } in parts {
            let (e, w) = (&mut e[at..at + flat.len()], &w[flat]);
            e.par_chunks_mut(CHUNK).zip(w.par_chunks(CHUNK)).for_each(|(e, w)| {
                simd(
                    #[inline(always)]
                    || e.iter_mut().zip(w).for_each(|(e, w)| *e = (1.0 - keep).mul_add(*w - *e, *e)),
                );
            });
        }
    }
    opt.restore("state", s)
}
