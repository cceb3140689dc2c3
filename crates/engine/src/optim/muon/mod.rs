//! Muon for the weight matrices of blocks: the momentum of the gradient with all its singular values brought near one, so that a
//! step goes as far in directions of which gradients say little as in those they agree on.
//!
//! As in Moonlight, the update has the size of AdamW's whatever the shape: rate and decay mean the same to both.

pub(super) mod cpu;
pub(super) mod cuda;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::error::{Result, ensure};
use crate::params::{Hidden, Params};

crate::cuda::source!("muon.cu");

/// X ← a·X + b·(XXᵀ)X + c·(XXᵀ)²X, so many times, takes singular values up to one to about one (0.68 to 1.2; below 0.002 they
/// end lower). As steep at zero as it can be, for few rounds are wanted and no digits. As in muon.cu.
const POLYNOMIAL: (f32, f32, f32) = (3.4445, -4.7750, 2.0315);
const ROUNDS: usize = 5;
/// Added to the norm that a matrix is divided by before: nothing stays nothing. As in muon.cu.
const EPS: f32 = 1e-7;
/// The root of the mean square of AdamW's updates is about this; an orthogonal matrix has one of 1/√(its longer side). As in
/// muon.cu.
const SIZE: f32 = 0.2;

/// What Muon keeps of a [`Params`] beside the momentum, which lies in the optimizer's first moment.
pub(super) struct Muon {
    momentum: f32,
    matrices: Vec<Hidden>,
    stacks: Option<cuda::Stacks>,
    idle: bool,
}

/// Of one step.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub lr: f32,
    /// Factor on the gradient.
    pub scale: f32,
    pub decay: f32,
}

impl Muon {
    /// Of all matrices, or those in a range of the flat buffers.
    pub fn new(params: &Params, momentum: f32, own: Option<Range<usize>>) -> Result<Muon> {
        ensure!((0.0..1.0).contains(&momentum), "muon", "the momentum must lie in [0, 1), it is {momentum}");
        let is_own = |m: &Hidden| own.as_ref().is_none_or(|own| own.contains(&m.start));
        let (all, idle) = (params.hidden(), params.hidden().is_empty());
        let matrices: Vec<Hidden> = all.into_iter().filter(is_own).collect();
        let stacks = match params.values.cuda_device() {
            Some(c) => Some(cuda::Stacks::new(c, &matrices)?),
            None => None,
        };
        Ok(Muon { momentum, matrices, stacks, idle })
    }

    /// Whether there are no matrices, of any rank.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Where the first of its matrices begins in the flat buffers.
    pub fn first(&self) -> usize {
        self.matrices.first().map_or(0, |m| m.start)
    }
}
