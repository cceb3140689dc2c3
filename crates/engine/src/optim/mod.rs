//! The optimizer: global-norm clipping, AdamW with decoupled decay, EMA and the bf16 shadow, one pass over flat buffers;
//! the weight matrices of blocks by Muon where that is asked for.
//!
//! The step count, the gradient norm and whether the step was skipped live on the device: a training step needs no
//! read-back. A non-finite gradient skips the whole step (weights, moments, EMA and step count stay) and is counted.

mod cpu;
mod cuda;
pub(crate) mod muon;
mod shard;

use std::ops::Range;
use std::sync::Arc;

use crate::comm::{Comm, Keep, Layout};
use crate::error::{Error, Result, ensure};
use crate::params::{Group, Params};
use crate::tensor::{DType, Tensor};
use shard::{Part, Shard};

crate::cuda::source!("optim.cu");

/// Settings of [`AdamW`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamConfig {
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment; 0.95 forgets early noise faster than 0.999.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled decay of [`Group::Decay`] and [`Group::Hidden`].
    pub weight_decay: f32,
    /// Gradients are scaled down to this global norm (0: no clipping).
    pub clip: f32,
    /// Decay of the averaged weights (0: none are kept).
    pub ema: f32,
    /// Muon's momentum, usually 0.95: it then has the matrices of [`Group::Hidden`], and AdamW the rest (none: AdamW has all).
    pub muon: Option<f32>,
}

impl Default for AdamConfig {
    fn default() -> AdamConfig {
        AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0, clip: 3.0, ema: 0.0, muon: None }
    }
}

/// What the last step found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Steps that changed the weights.
    pub steps: u32,
    /// Steps skipped because the gradient was not finite.
    pub skipped: u32,
    /// Of these, how many in a row up to now.
    pub skipped_in_a_row: u32,
    /// Global norm of the last gradient, before clipping.
    pub grad_norm: f32,
}

// Places in the state array, as in optim.cu.
const STEPS: usize = 0;
const SKIPPED: usize = 1;
const IN_A_ROW: usize = 2;
const NORM: usize = 3;
const SCALE: usize = 4; // factor on the gradient; 0 where the step is skipped
const CORRECTION1: usize = 5; // 1/(1 − β1ᵗ)
const CORRECTION2: usize = 6; // 1/(1 − β2ᵗ)
const EMA_DECAY: usize = 7;
const LR: usize = 8;
const STATE: usize = 9;

/// AdamW with clipping and EMA over a [`Params`]; with [`AdamConfig::muon`] some of it goes another way.
///
/// ```
/// use tweedie_engine::ops::elementwise;
/// use tweedie_engine::optim::{AdamConfig, AdamW};
/// use tweedie_engine::{Device, Group, ParamsBuilder, Tape};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let mut builder = ParamsBuilder::default();
/// let w = builder.add("w", &[2], Group::Decay, vec![1.0, -1.0])?;
/// let mut params = builder.build(&Device::Cpu, false)?;
/// let mut optimizer = AdamW::new(&params, AdamConfig { clip: 1.0, ..AdamConfig::default() })?;
/// let tape = Tape::new();
/// let loss = elementwise::mean(&tape, &tape.param(&params, w))?; // each gradient is 1/2
/// tape.backward(&loss, Some(&mut params))?;
/// optimizer.step(&mut params, 0.1)?;
/// assert!((optimizer.stats()?.grad_norm - 0.5_f32.sqrt()).abs() < 1e-6);
/// assert!((params.value(w).to_vec()?[0] - 0.9).abs() < 1e-6); // the first step goes as far as the rate says
/// # Ok(())
/// # }
/// ```
pub struct AdamW {
    config: AdamConfig,
    m: Tensor,
    v: Tensor,
    ema: Option<Tensor>,
    state: Tensor,
    muon: Option<muon::Muon>,
    /// Length of the flat buffers of the parameters.
    flat_len: usize,
    /// Which of it this rank keeps, where it does not keep all.
    shard: Option<Shard>,
    /// The whole average out of those of all ranks, while somebody needs it.
    whole_ema: Option<Tensor>,
    /// The weights, while their average is in their place and is not all kept here.
    aside: Option<Tensor>,
}

/// Decay of the average after `n` steps: min(d, (1+n)/(10+n)). Without this warm-up the initial weights would make up
/// dⁿ of the average: 37 % after 10,000 steps at 0.9999.
pub fn ema_decay(decay: f32, n: u32) -> f32 {
    decay.min((1.0 + n as f32) / (10.0 + n as f32))
}

/// Learning rate at `step` (from 0) of `total`: linear warm-up, then half a cosine down to `floor`.
pub fn warmup_cosine(step: usize, total: usize, warmup: usize, peak: f32, floor: f32) -> f32 {
    if step < warmup {
        return peak * (step + 1) as f32 / warmup as f32;
    }
    let span = total.saturating_sub(warmup).max(1) as f64;
    let x = ((step - warmup) as f64 / span).min(1.0);
    floor + (peak - floor) * (0.5 * (1.0 + (std::f64::consts::PI * x).cos())) as f32
}

impl AdamW {
    /// Fresh moments; the average starts at the present weights.
    pub fn new(params: &Params, config: AdamConfig) -> Result<AdamW> {
        AdamW::keeping(params, config, None)
    }

    /// As [`AdamW::new`], with the state that this rank keeps by `layout`. A step sums what it needs of the norm, updates what this rank
    /// keeps and gives the new weights to all ranks. `whole_gradient`: every rank has the sums of all gradients, not only those it keeps.
    pub fn sharded(
        params: &Params,
        config: AdamConfig,
        (comm, layout): (Comm, Arc<Layout>),
        whole_gradient: bool,
    ) -> Result<AdamW> {
        let shard = (layout.keep() != Keep::All).then(|| Shard::new(comm, layout, whole_gradient));
        AdamW::keeping(params, config, shard)
    }

    fn keeping(params: &Params, config: AdamConfig, shard: Option<Shard>) -> Result<AdamW> {
        let AdamConfig { beta1, beta2, eps, weight_decay, clip, ema, muon } = config;
        ensure!((0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2), "adamw", "betas must lie in [0, 1)");
        ensure!(
            eps > 0.0 && weight_decay >= 0.0 && clip >= 0.0,
            "adamw",
            "eps must be positive, decay and clip not negative"
        );
        ensure!((0.0..1.0).contains(&ema), "adamw", "the EMA decay must lie in [0, 1), it is {ema}");
        let (device, flat_len) = (params.device(), params.flat_len());
        let n = shard.as_ref().map_or(flat_len, Shard::len);
        let zeros = || Tensor::zeros(&device, &[n], DType::F32);
        let copy = || {
            let values = params.values.to_vec()?;
            Tensor::from_f32(&device, &[n], shard.as_ref().map_or_else(|| values.clone(), |s| s.cut(&values)))
        };
        let matrices = shard.as_ref().and_then(|s| s.layout.matrices_of(s.comm.rank()));
        Ok(AdamW {
            config,
            m: zeros()?,
            v: zeros()?,
            ema: if ema > 0.0 { Some(copy()?) } else { None },
            state: Tensor::zeros(&device, &[STATE], DType::F32)?,
            muon: muon.map(|momentum| muon::Muon::new(params, momentum, matrices)).transpose()?,
            flat_len,
            shard,
            whole_ema: None,
            aside: None,
        })
    }

    /// Update the weights with the gradients in `params`, which are then spent. `lr` is the rate of this step.
    pub fn step(&mut self, params: &mut Params, lr: f32) -> Result<()> {
        self.check(params)?;
        params.finish_grads()?;
        self.apply(params, lr)
    }

    /// As [`AdamW::step`], with whatever lies in the gradient buffer (for timing the update alone).
    pub fn apply(&mut self, params: &mut Params, lr: f32) -> Result<()> {
        self.check(params)?;
        match params.values.cuda_device().cloned() {
            Some(c) => cuda::step(&c, self, params, lr)?,
            None => cpu::step(self, params, lr)?,
        }
        let Some(shard) = &self.shard else { return Ok(()) };
        shard.layout.gather(&shard.comm, &mut params.values)?;
        params.values_changed();
        if let Some(low) = &params.low {
            low.overwrite(&params.values.cast(DType::Bf16)?)?;
        }
        Ok(())
    }

    /// Counters and the last gradient norm (waits for the device).
    pub fn stats(&self) -> Result<StepStats> {
        let s = self.state.to_vec()?;
        Ok(StepStats {
            steps: s[STEPS] as u32,
            skipped: s[SKIPPED] as u32,
            skipped_in_a_row: s[IN_A_ROW] as u32,
            grad_norm: s[NORM],
        })
    }

    /// Bytes of the state that this rank keeps, and of all of it.
    pub fn state_bytes(&self) -> (usize, usize) {
        let buffers = 2 + usize::from(self.ema.is_some());
        (4 * buffers * self.m.len(), 4 * buffers * self.flat_len)
    }

    /// The names of [`AdamW::buffers`], with the number of values of each in a checkpoint.
    pub fn buffer_lens(&self) -> Vec<(&'static str, usize)> {
        let len = |(name, t): (&'static str, &Tensor)| (name, if name == "state" { t.len() } else { self.flat_len });
        self.buffers().into_iter().map(len).collect()
    }

    /// A buffer of [`AdamW::buffers`] as a checkpoint has it, out of those of all ranks where each keeps a share: all of them call this.
    pub fn whole(&self, name: &str) -> Result<Tensor> {
        let Some((_, own)) = self.buffers().into_iter().find(|b| b.0 == name) else {
            return Err(Error::op("optimizer", format!("there is no buffer named {name}")));
        };
        match (&self.shard, &self.whole_ema) {
            (None, _) => Ok(own.clone()),
            _ if name == "state" => Ok(own.clone()),
            (Some(_), Some(ema)) if name == "ema" => Ok(ema.clone()),
            (Some(shard), _) => shard.whole(own, self.flat_len),
        }
    }

    /// Keep the whole average at hand, where each rank keeps a share of it, until [`AdamW::release_ema`]: all ranks call this, and until
    /// then one of them can look at it alone.
    pub fn hold_ema(&mut self) -> Result<()> {
        if let (Some(shard), Some(ema)) = (&self.shard, &self.ema) {
            self.whole_ema = Some(shard.whole(ema, self.flat_len)?);
        }
        Ok(())
    }

    /// Forget what [`AdamW::hold_ema`] keeps.
    pub fn release_ema(&mut self) {
        self.whole_ema = None;
    }

    /// The flat buffers that this rank keeps, by name: `m`, `v`, `ema` (if kept) and `state`.
    pub fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        let mut all = vec![("m", &self.m), ("v", &self.v), ("state", &self.state)];
        all.extend(self.ema.as_ref().map(|e| ("ema", e)));
        all
    }

    /// Restore a buffer that [`AdamW::buffers`] named, from all its values.
    pub fn restore(&mut self, name: &str, values: Vec<f32>) -> Result<()> {
        let values = match &self.shard {
            Some(shard) if name != "state" && values.len() == self.flat_len => shard.cut(&values),
            _ => values,
        };
        let slot = match (name, &mut self.ema) {
            ("m", _) => &mut self.m,
            ("v", _) => &mut self.v,
            ("state", _) => &mut self.state,
            ("ema", Some(e)) => e,
            _ => return Err(Error::op("optimizer", format!("there is no buffer named {name}"))),
        };
        ensure!(
            values.len() == slot.len(),
            "optimizer",
            "the buffer {name} has {} values, {} were given",
            slot.len(),
            values.len()
        );
        *slot = Tensor::from_f32(&slot.device(), slot.shape(), values)?;
        Ok(())
    }

    /// Whether Muon is wanted and finds nothing to do: no matrix of a block is trained.
    pub fn muon_is_idle(&self) -> bool {
        self.muon.as_ref().is_some_and(muon::Muon::is_idle)
    }

    /// The averaged weights, if they are kept.
    pub fn ema(&self) -> Option<&Tensor> {
        self.ema.as_ref()
    }

    /// Exchange the weights with their average (for evaluation), and again to come back. Where each rank keeps a share of the average, all
    /// of them call this, but for [`AdamW::hold_ema`].
    pub fn swap_ema(&mut self, params: &mut Params) -> Result<()> {
        self.check(params)?;
        let Some(ema) = &mut self.ema else {
            return Err(Error::op("optimizer", "no average of the weights is kept (ema = 0)"));
        };
        match (&self.shard, self.aside.take()) {
            (None, _) => std::mem::swap(ema, &mut params.values),
            (Some(_), Some(weights)) => params.values = weights,
            (Some(shard), None) => {
                let whole = match &self.whole_ema {
                    Some(whole) => whole.clone(),
                    None => shard.whole(ema, self.flat_len)?,
                };
                self.aside = Some(std::mem::replace(&mut params.values, whole));
            }
        }
        params.values_changed();
        if params.low.is_some() {
            params.low = Some(params.values.cast(DType::Bf16)?);
        }
        Ok(())
    }

    /// Whether these are parameters like those that the moments were made for.
    fn check(&self, params: &Params) -> Result<()> {
        ensure!(
            params.values.shape() == [self.flat_len] && params.values.is_beside(&self.m),
            "optimizer",
            "its state is of {} values, the parameters are {:?}",
            self.flat_len,
            params.values
        );
        Ok(())
    }

    /// What this rank keeps of the flat buffers.
    fn parts(&self) -> Vec<Part> {
        self.shard.as_ref().map_or_else(|| vec![Part { flat: 0..self.flat_len, at: 0 }], |s| s.parts.clone())
    }

    /// What AdamW goes over here: decay and part of the flat buffers.
    fn own_passes(&self, params: &Params) -> Vec<(f32, Part)> {
        let (all, mut own) = (self.passes(params), Vec::new());
        for Part { flat, at } in self.parts() {
            for (decay, range) in &all {
                let both = range.start.max(flat.start)..range.end.min(flat.end);
                if !both.is_empty() {
                    own.push((*decay, Part { at: at + both.start - flat.start, flat: both }));
                }
            }
        }
        own
    }

    /// What AdamW goes over: decay and part of the flat buffers, neighbours of the same decay as one.
    fn passes(&self, params: &Params) -> Vec<(f32, Range<usize>)> {
        let mut all: Vec<(f32, Range<usize>)> = Vec::new();
        for (group, range) in params.ranges() {
            let decay = match group {
                Group::Hidden { .. } if self.muon.is_some() => continue,
                Group::Decay | Group::Hidden { .. } => self.config.weight_decay,
                Group::NoDecay => 0.0,
                Group::Frozen => continue,
            };
            match all.last_mut() {
                Some((d, r)) if *d == decay && r.end == range.start => r.end = range.end,
                _ => all.push((decay, range.clone())),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests;
