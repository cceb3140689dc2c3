//! The optimizer step on the GPU: norm in two deterministic passes, then one pass for what is decayed and one for what is not.

use super::{AdamW, LR, SOURCE, muon};
use crate::cuda::{Cuda, args};
use crate::error::Result;
use crate::params::Params;
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;

pub(super) fn step(c: &Cuda, opt: &AdamW, params: &Params, lr: f32) -> Result<()> {
    let grads = params.finished_grads()?;
    let n = grads.len();
    let blocks = (c.info().multiprocessors * 8).min(n.div_ceil(BLOCK * 4)).max(1);
    let part = Tensor::cuda(c, &[blocks], DType::F32)?;
    let config = opt.config;
    // The rate travels through device memory so that a captured step can be replayed with another one.
    if !c.is_capturing() {
        c.upload_to(opt.state.view(LR, &[1]).ptr(), &[lr])?;
    }
    c.launch(&SOURCE, 0, "norm_parts", (blocks, 1, 1), BLOCK, 0, args![grads, &part, n as i64])?;
    let args = args![&part, blocks, &opt.state, config.clip, config.beta1, config.beta2, config.ema];
    c.launch(&SOURCE, 0, "norm_finish", (1, 1, 1), BLOCK, 0, args)?;
    for (decay, range) in opt.passes(params) {
        let len = range.len();
        let at = |t: &Tensor| t.view(range.start, &[len]).ptr();
        let args = args![
            at(&params.values),
            at(grads),
            at(&opt.m),
            at(&opt.v),
            opt.ema.as_ref().map_or(0, at),
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
