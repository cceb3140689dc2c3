//! The optimizer step on the GPU: norm in two deterministic passes, then one pass for what is decayed and one for what is not.

use super::shard::Part;
use super::{AdamW, LR, SOURCE, muon};
use crate::cuda::{Cuda, args};
use crate::device::Device;
use crate::error::Result;
use crate::params::Params;
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;

/// Sums of squares that add up to that of the whole gradient; of all ranks where each has the sums of its share alone.
fn squares(c: &Cuda, opt: &AdamW, grads: &Tensor) -> Result<Tensor> {
    let blocks = |n: usize| (c.info().multiprocessors * 8).min(n.div_ceil(BLOCK * 4)).max(1);
    let sum = |start: usize, n: usize, part: &Tensor, at: usize| {
        let (from, to) = (grads.view(start, &[n]).ptr(), part.view(at, &[blocks(n)]).ptr());
        c.launch(&SOURCE, 0, "norm_parts", (blocks(n), 1, 1), BLOCK, 0, args![from, to, n as i64])
    };
    let Some(shard) = opt.shard.as_ref().filter(|s| !s.whole_gradient) else {
        let part = Tensor::cuda(c, &[blocks(grads.len())], DType::F32)?;
        sum(0, grads.len(), &part, 0)?;
        return Ok(part);
    };
    let part = Tensor::zeros(
        &Device::Cuda(c.clone()),
        &[shard.counted.iter().map(|r| blocks(r.len())).sum::<usize>().max(1)],
        DType::F32,
    )?;
    let mut at = 0;
    for range in &shard.counted {
        sum(range.start, range.len(), &part, at)?;
        at += blocks(range.len());
    }
    let mut one = Tensor::cuda(c, &[1], DType::F32)?;
    c.launch(&SOURCE, 0, "sum_parts", (1, 1, 1), BLOCK, 0, args![&part, part.len(), &one])?;
    shard.sum(&mut one)?;
    Ok(one)
}

pub(super) fn step(c: &Cuda, opt: &AdamW, params: &Params, lr: f32) -> Result<()> {
    let grads = params.finished_grads()?;
    let config = opt.config;
    // The rate travels through device memory so that a captured step can be replayed with another one.
    if !c.is_capturing() {
        c.upload_to(opt.state.view(LR, &[1]).ptr(), &[lr])?;
    }
    let part = squares(c, opt, grads)?;
    let args = args![&part, part.len(), &opt.state, config.clip, config.beta1, config.beta2, config.ema];
    c.launch(&SOURCE, 0, "norm_finish", (1, 1, 1), BLOCK, 0, args)?;
    for (decay, Part { flat, at: kept }) in opt.own_passes(params) {
        let len = flat.len();
        let at = |t: &Tensor| t.view(flat.start, &[len]).ptr();
        let state = |t: &Tensor| t.view(kept, &[len]).ptr();
        let args = args![
            at(&params.values),
            at(grads),
            state(&opt.m),
            state(&opt.v),
            opt.ema.as_ref().map_or(0, state),
            params.low.as_ref().map_or(0, at),
            &opt.state,
            len as i64,
            config.beta1,
            config.beta2,
            config.eps,
            decay
        ];
        c.launch(&SOURCE, 0, "adamw", (len.div_ceil(BLOCK * 4), 1, 1), BLOCK, 0, args)?;
    }
    match &opt.muon {
        Some(muon) => muon::cuda::step(c, muon, opt, params),
        None => Ok(()),
    }
}
