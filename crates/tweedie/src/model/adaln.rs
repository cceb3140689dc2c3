//! Blocks with adaptive layer norm (adaLN-Zero, as in DiT): shift, scale and gate of every branch come from time and condition.

use tweedie_engine::ops::attention::Mask;
use tweedie_engine::ops::{attention, elementwise, linear, modulate, norm, tokens};
use tweedie_engine::{Act, DType, Group, Tensor, Var};

use super::build::{Init, Plan};
use super::layers::{Ids, Linear, NORM_EPS, Pass, Places};
use crate::error::{Error, Result};

/// A modulation vector of `parts` pieces, linear in the vector of time and condition. It starts at zero, so that each block
/// starts as the identity.
#[derive(Clone, Debug)]
struct Modulation {
    to: Linear,
    width: usize,
}

impl Modulation {
    fn plan(plan: &mut Plan, name: &str, d: usize, parts: usize) -> Modulation {
        let to = Linear {
            w: plan.add(format!("{name}.modulation.weight"), &[parts * d, d], Group::Decay, Init::Zeros),
            b: plan.add(format!("{name}.modulation.bias"), &[parts * d], Group::NoDecay, Init::Zeros),
        };
        Modulation { to, width: d }
    }

    /// Each piece of \[B, parts, d\] comes out as \[B, 1, d\].
    fn pieces<const PARTS: usize>(&self, p: &Pass, ids: &Ids, cond: &Var) -> Result<[Var; PARTS]> {
        let m = self.to.forward(p, ids, cond, None)?;
        let (b, parts) = (m.shape()[0], m.shape()[1] / self.width);
        let m = elementwise::reshape(p.tape, &m, &[b, parts, self.width])?;
        let pieces = (0..parts).map(|i| Ok(tokens::slice(p.tape, &m, i..i + 1)?)).collect::<Result<Vec<Var>>>()?;
        pieces.try_into().map_err(|_| Error::Input(format!("a modulation of {parts} pieces where {PARTS} are read")))
    }
}

/// A norm without gain and bias of its own: the modulation provides them.
fn bare_norm(p: &Pass, x: &Var) -> Result<Var> {
    let d = x.value().width();
    let device = x.value().device();
    let one = p.tape.constant(Tensor::from_f32(&device, &[d], vec![1.0; d])?);
    let zero = p.tape.constant(Tensor::zeros(&device, &[d], DType::F32)?);
    Ok(norm::layer_norm(p.tape, x, &one, &zero, NORM_EPS)?)
}

/// DiT's block: shift, scale and gate of both branches come from the vector of time and condition.
#[derive(Clone, Debug)]
pub(super) struct DitBlock {
    modulation: Modulation,
    qkv: Linear,
    proj: Linear,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
    act: Act,
}

impl DitBlock {
    pub fn plan(plan: &mut Plan, name: &str, d: usize, heads: usize, act: Act) -> DitBlock {
        DitBlock {
            modulation: Modulation::plan(plan, name, d, 6),
            qkv: Linear::hidden(plan, &format!("{name}.attn.qkv"), d, 3 * d, 3),
            proj: Linear::hidden(plan, &format!("{name}.attn.proj"), d, d, 1),
            fc1: Linear::hidden(plan, &format!("{name}.mlp.fc1"), d, 4 * d, 1),
            fc2: Linear::hidden(plan, &format!("{name}.mlp.fc2"), 4 * d, d, 1),
            heads,
            act,
        }
    }

    pub fn forward(&self, p: &Pass, ids: &Ids, x: &Var, cond: &Var, places: Option<&Places>) -> Result<Var> {
        let t = p.tape;
        let [shift1, scale1, gate1, shift2, scale2, gate2] = self.modulation.pieces(p, ids, cond)?;
        let h = modulate::modulate(t, &bare_norm(p, x)?, &shift1, &scale1)?;
        let qkv = Places::rotate(places, t, self.qkv.forward(p, ids, &h, None)?)?;
        let a = attention::attention(t, &qkv, self.heads, &Mask::default())?;
        let a = self.proj.forward(p, ids, &a, None)?;
        let x = modulate::gate(t, x, &a, &gate1)?;
        let h = modulate::modulate(t, &bare_norm(p, &x)?, &shift2, &scale2)?;
        let h = branch(p, ids, &h, &self.fc1, self.act, &self.fc2)?;
        Ok(modulate::gate(t, &x, &h, &gate2)?)
    }
}

/// A residual MLP over single tokens, with the same adaLN.
#[derive(Clone, Debug)]
pub(super) struct MlpBlock {
    modulation: Modulation,
    fc1: Linear,
    fc2: Linear,
    act: Act,
}

impl MlpBlock {
    pub fn plan(plan: &mut Plan, name: &str, d: usize, act: Act) -> MlpBlock {
        MlpBlock {
            modulation: Modulation::plan(plan, name, d, 3),
            fc1: Linear::hidden(plan, &format!("{name}.mlp.fc1"), d, 4 * d, 1),
            fc2: Linear::hidden(plan, &format!("{name}.mlp.fc2"), 4 * d, d, 1),
            act,
        }
    }

    pub fn forward(&self, p: &Pass, ids: &Ids, x: &Var, cond: &Var) -> Result<Var> {
        let [shift, scale, gate] = self.modulation.pieces(p, ids, cond)?;
        let h = modulate::modulate(p.tape, &bare_norm(p, x)?, &shift, &scale)?;
        let h = branch(p, ids, &h, &self.fc1, self.act, &self.fc2)?;
        Ok(modulate::gate(p.tape, x, &h, &gate)?)
    }
}

fn branch(p: &Pass, ids: &Ids, x: &Var, fc1: &Linear, act: Act, fc2: &Linear) -> Result<Var> {
    let param = |i: usize| p.tape.param(p.params, ids[i]);
    let (w1, b1, w2, b2) = (param(fc1.w), param(fc1.b), param(fc2.w), param(fc2.b));
    Ok(linear::mlp(p.tape, x, (&w1, &b1), act, (&w2, &b2), None)?)
}
