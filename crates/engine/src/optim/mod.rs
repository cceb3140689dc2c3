//! The optimizer: global-norm clipping, AdamW with decoupled decay, EMA and the bf16 shadow, one pass over flat buffers;
//! the weight matrices of blocks by Muon where that is asked for.
//!
//! The step count, the gradient norm and whether the step was skipped live on the device: a training step needs no
//! read-back. A non-finite gradient skips the whole step (weights, moments, EMA and step count stay) and is counted.

mod cpu;
mod cuda;
pub(crate) mod muon;

use std::ops::Range;

use crate::error::{Error, Result, ensure};
use crate::params::{Group, Params};
use crate::tensor::{DType, Tensor};

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
        let AdamConfig { beta1, beta2, eps, weight_decay, clip, ema, muon } = config;
        ensure!((0.0..1.0).contains(&beta1) && (0.0..1.0).contains(&beta2), "adamw", "betas must lie in [0, 1)");
        ensure!(
            eps > 0.0 && weight_decay >= 0.0 && clip >= 0.0,
            "adamw",
            "eps must be positive, decay and clip not negative"
        );
        ensure!((0.0..1.0).contains(&ema), "adamw", "the EMA decay must lie in [0, 1), it is {ema}");
        let (device, n) = (params.device(), params.flat_len());
        let zeros = || Tensor::zeros(&device, &[n], DType::F32);
        let copy = || Tensor::from_f32(&device, &[n], params.values.to_vec()?);
        Ok(AdamW {
            config,
            m: zeros()?,
            v: zeros()?,
            ema: if ema > 0.0 { Some(copy()?) } else { None },
            state: Tensor::zeros(&device, &[STATE], DType::F32)?,
            muon: muon.map(|momentum| muon::Muon::new(params, momentum)).transpose()?,
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
            Some(c) => cuda::step(&c, self, params, lr),
            None => cpu::step(self, params, lr),
        }
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

    /// The flat buffers of a checkpoint, by name: `m`, `v`, `ema` (if kept) and `state`.
    pub fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        let mut all = vec![("m", &self.m), ("v", &self.v), ("state", &self.state)];
        all.extend(self.ema.as_ref().map(|e| ("ema", e)));
        all
    }

    /// Restore a buffer that [`AdamW::buffers`] named.
    pub fn restore(&mut self, name: &str, values: Vec<f32>) -> Result<()> {
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

    /// Exchange the weights with their average (for evaluation), and again to come back.
    pub fn swap_ema(&mut self, params: &mut Params) -> Result<()> {
        self.check(params)?;
        let Some(ema) = &mut self.ema else {
            return Err(Error::op("optimizer", "no average of the weights is kept (ema = 0)"));
        };
        std::mem::swap(ema, &mut params.values);
        params.values_changed();
        if params.low.is_some() {
            params.low = Some(params.values.cast(DType::Bf16)?);
        }
        Ok(())
    }

    /// Whether these are parameters like those that the moments were made for.
    fn check(&self, params: &Params) -> Result<()> {
        ensure!(
            params.values.shape() == self.m.shape() && params.values.is_beside(&self.m),
            "optimizer",
            "its state is {:?}, the parameters are {:?}",
            self.m,
            params.values
        );
        Ok(())
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
mod tests {
    use super::*;
    use crate::{Device, ParamsBuilder, Tape, ops};

    /// One parameter whose gradient is `g`: loss = mean(n·g·w).
    fn with_grad(params: &mut Params, id: crate::ParamId, g: f32) {
        let tape = Tape::new();
        let w = tape.param(params, id);
        let n = w.value().len() as f32;
        let loss = ops::elementwise::mean(&tape, &ops::elementwise::scale(&tape, &w, g * n).unwrap()).unwrap();
        drop(w);
        tape.backward(&loss, Some(params)).unwrap();
    }

    fn one(value: f32, group: Group) -> (Params, crate::ParamId) {
        let mut b = ParamsBuilder::default();
        let id = b.add("w", &[3], group, vec![value; 3]).unwrap();
        (b.build(&Device::Cpu, false).unwrap(), id)
    }

    /// With a constant gradient both corrected moments are exact (g and g²), so each step moves by lr·(sign + decay·w).
    #[test]
    fn adamw_follows_the_closed_form_under_a_constant_gradient() {
        let (mut p, id) = one(2.0, Group::Decay);
        let config = AdamConfig { weight_decay: 0.1, clip: 0.0, ..AdamConfig::default() };
        let mut opt = AdamW::new(&p, config).unwrap();
        let mut want = 2.0_f64;
        for _ in 0..50 {
            with_grad(&mut p, id, 0.5);
            opt.step(&mut p, 0.01).unwrap();
            want = want * (1.0 - 0.01 * 0.1) - 0.01 * 0.5 / (0.5 + 1e-8);
            let got = p.value(id).to_vec().unwrap();
            assert!(got.iter().all(|g| (*g as f64 - want).abs() < 2e-6), "{got:?} {want}"); // 50 f32 roundings
        }
        assert_eq!(opt.stats().unwrap().steps, 50);
    }

    /// EMA of a linearly moving weight against its own recursion, with the warm-up of the decay.
    #[test]
    fn ema_follows_its_recursion() {
        let (mut p, id) = one(1.0, Group::NoDecay);
        let mut opt = AdamW::new(&p, AdamConfig { ema: 0.9, clip: 0.0, ..AdamConfig::default() }).unwrap();
        let mut want = 1.0_f64;
        for n in 1..=40 {
            with_grad(&mut p, id, -1.0);
            opt.step(&mut p, 0.1).unwrap();
            let d = (0.9_f64).min((1.0 + n as f64) / (10.0 + n as f64));
            want = d * want + (1.0 - d) * p.value(id).to_vec().unwrap()[0] as f64;
            let got = p.part(opt.ema().unwrap(), id).unwrap().to_vec().unwrap()[0] as f64;
            assert!((got - want).abs() < 1e-5, "{n}: {got} {want}");
        }
        let (raw, avg) = (p.value(id).to_vec().unwrap(), p.part(opt.ema().unwrap(), id).unwrap().to_vec().unwrap());
        opt.swap_ema(&mut p).unwrap();
        assert_eq!(p.value(id).to_vec().unwrap(), avg);
        opt.swap_ema(&mut p).unwrap();
        assert_eq!(p.value(id).to_vec().unwrap(), raw);
    }

    #[test]
    fn clipping_bounds_the_global_norm() {
        let mut b = ParamsBuilder::default();
        let ids = [
            b.add("a", &[3], Group::Decay, vec![0.0; 3]).unwrap(),
            b.add("b", &[1], Group::NoDecay, vec![0.0]).unwrap(),
        ];
        let mut p = b.build(&Device::Cpu, false).unwrap();
        let mut opt = AdamW::new(&p, AdamConfig { beta1: 0.0, clip: 3.0, ..AdamConfig::default() }).unwrap();
        for id in ids {
            with_grad(&mut p, id, 5.0);
        }
        opt.step(&mut p, 0.0).unwrap();
        // norm = √(3·25 + 25) = 10, so each first moment is 5·3/10.
        assert!((opt.stats().unwrap().grad_norm - 10.0).abs() < 1e-5);
        let m = p.part(&opt.m, ids[1]).unwrap().to_vec().unwrap()[0];
        assert!((m - 1.5).abs() < 1e-5, "{m}");
    }

    #[test]
    fn a_non_finite_gradient_changes_nothing_and_is_counted() {
        let (mut p, id) = one(1.0, Group::Decay);
        let mut opt = AdamW::new(&p, AdamConfig { ema: 0.9, ..AdamConfig::default() }).unwrap();
        with_grad(&mut p, id, 1.0);
        opt.step(&mut p, 0.1).unwrap();
        let before: Vec<Vec<f32>> = opt.buffers()[..2].iter().map(|b| b.1.to_vec().unwrap()).collect();
        let weight = p.value(id).to_vec().unwrap();
        for bad in [f32::NAN, f32::INFINITY] {
            with_grad(&mut p, id, bad);
            opt.step(&mut p, 0.1).unwrap();
        }
        let after: Vec<Vec<f32>> = opt.buffers()[..2].iter().map(|b| b.1.to_vec().unwrap()).collect();
        assert_eq!((before, weight), (after, p.value(id).to_vec().unwrap()));
        let s = opt.stats().unwrap();
        assert_eq!((s.steps, s.skipped, s.skipped_in_a_row), (1, 2, 2));
        with_grad(&mut p, id, 1.0);
        opt.step(&mut p, 0.1).unwrap();
        assert_eq!(opt.stats().unwrap().skipped_in_a_row, 0);
    }

    #[test]
    fn frozen_parameters_stay_and_untouched_ones_have_no_gradient() {
        let mut b = ParamsBuilder::default();
        let used = b.add("used", &[2], Group::Decay, vec![1.0; 2]).unwrap();
        let idle = b.add("idle", &[2], Group::NoDecay, vec![1.0; 2]).unwrap();
        let frozen = b.add("frozen", &[2], Group::Frozen, vec![1.0; 2]).unwrap();
        let mut p = b.build(&Device::Cpu, false).unwrap();
        let mut opt = AdamW::new(&p, AdamConfig { weight_decay: 0.5, ..AdamConfig::default() }).unwrap();
        with_grad(&mut p, idle, 1.0);
        opt.step(&mut p, 0.1).unwrap();
        let moved = p.value(idle).to_vec().unwrap();
        with_grad(&mut p, used, 1.0); // the gradient of `idle` from the step before must not be used again
        opt.step(&mut p, 0.1).unwrap();
        assert_eq!(p.grad(idle).unwrap().to_vec().unwrap(), vec![0.0; 2]);
        assert_ne!(p.value(idle).to_vec().unwrap(), moved, "its momentum still moves it");
        assert_eq!(p.value(frozen).to_vec().unwrap(), vec![1.0; 2]);
    }

    #[test]
    fn schedule_rises_then_falls() {
        assert_eq!(warmup_cosine(0, 100, 10, 1.0, 0.0), 0.1);
        assert_eq!(warmup_cosine(9, 100, 10, 1.0, 0.0), 1.0);
        assert_eq!(warmup_cosine(10, 100, 10, 1.0, 0.0), 1.0);
        assert!((warmup_cosine(55, 100, 10, 1.0, 0.2) - 0.6).abs() < 1e-6);
        assert_eq!(warmup_cosine(100, 100, 10, 1.0, 0.25), 0.25);
        assert_eq!(warmup_cosine(500, 100, 0, 1.0, 0.25), 0.25);
    }
}
