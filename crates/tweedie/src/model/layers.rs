//! The pieces that encoder and denoiser share: linear layers, norms and transformer blocks.

use std::ops::Range;

use tweedie_engine::ops::attention::{Mask, Rows, attention, cross_attention, joint_attention};
use tweedie_engine::ops::rotary::{RotaryTable, rotary};
use tweedie_engine::ops::{dropout, elementwise, linear, norm, tokens};
use tweedie_engine::{Act, DType, Group, Noise, ParamId, Params, Tape, Tensor, Var};

use super::build::{Init, Plan};
use crate::error::Result;

/// Epsilon of every layer norm (timm's).
pub(crate) const NORM_EPS: f32 = 1e-6;

/// Everything a forward pass needs beside its inputs.
pub struct Pass<'a> {
    /// Records the ops.
    pub tape: &'a Tape,
    /// The weights.
    pub params: &'a Params,
    /// Type of activations.
    pub dtype: DType,
    /// Randomness of regularisation; `None` at evaluation.
    pub drop: Option<DropPath>,
    /// Keep only block inputs and compute the rest again for the backward pass.
    pub recompute: bool,
    /// A self-conditioned denoiser reads its own first prediction (`model.denoiser.self_condition`); not in half of the training steps.
    pub self_condition: bool,
}

/// Randomness for drop path (stochastic depth): a stream and the examples' ids.
#[derive(Clone)]
pub struct DropPath {
    /// The stream; each layer takes a later step of it.
    pub noise: Noise,
    /// Example ids, u32 \[B\].
    pub examples: Tensor,
}

impl<'a> Pass<'a> {
    /// A forward pass without regularisation. Whether it has gradients is the tape's affair: one that records has.
    pub fn inference(tape: &'a Tape, params: &'a Params, dtype: DType) -> Pass<'a> {
        Pass { tape, params, dtype, drop: None, recompute: false, self_condition: true }
    }
}

/// Maps the positions that a plan handed out to parameter ids once memory is there.
pub(crate) type Ids = Vec<ParamId>;

/// Spread of initial weights: 0.02 at 768 inputs, as timm has it for ViT-B, and the same size of outputs at other widths.
/// (0.02 at 64 inputs would make every branch a third of that and learning an order slower.)
fn weight_std(inputs: usize) -> f32 {
    0.02 * (768.0 / inputs as f32).sqrt()
}

/// A linear layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub w: usize,
    pub b: usize,
}

impl Linear {
    pub fn plan(plan: &mut Plan, name: &str, inner: usize, out: usize) -> Linear {
        Linear::in_group(plan, name, inner, out, Group::Decay)
    }

    /// The head of a denoiser with a direct path: it reads features of width `inner`, and beside them `path` numbers by weights that begin as those
    /// of parameter number `path_as` would.
    pub fn beside(plan: &mut Plan, name: &str, inner: usize, (path, path_as): (usize, usize), out: usize) -> Linear {
        let parts = [(inner, weight_std(inner)), (path, weight_std(path))];
        let init = Init::Beside { parts, second_as: path_as };
        Linear {
            w: plan.add(format!("{name}.weight"), &[out, inner + path], Group::Decay, init),
            b: plan.add(format!("{name}.bias"), &[out], Group::NoDecay, Init::Zeros),
        }
    }

    /// Inside a block, its weight made of `parts` matrices on top of each other.
    pub fn hidden(plan: &mut Plan, name: &str, inner: usize, out: usize, parts: usize) -> Linear {
        Linear::in_group(plan, name, inner, out, Group::Hidden { parts })
    }

    fn in_group(plan: &mut Plan, name: &str, inner: usize, out: usize, group: Group) -> Linear {
        Linear {
            w: plan.add(format!("{name}.weight"), &[out, inner], group, Init::TruncNormal(weight_std(inner))),
            b: plan.add(format!("{name}.bias"), &[out], Group::NoDecay, Init::Zeros),
        }
    }

    pub fn forward(&self, p: &Pass, ids: &Ids, x: &Var, act: Option<Act>) -> Result<Var> {
        let (w, b) = (p.tape.param(p.params, ids[self.w]), p.tape.param(p.params, ids[self.b]));
        Ok(linear::linear(p.tape, x, &w, Some(&b), act, None)?)
    }
}

/// A layer norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    gain: usize,
    bias: usize,
}

impl Norm {
    pub fn plan(plan: &mut Plan, name: &str, width: usize) -> Norm {
        Norm {
            gain: plan.add(format!("{name}.weight"), &[width], Group::NoDecay, Init::Ones),
            bias: plan.add(format!("{name}.bias"), &[width], Group::NoDecay, Init::Zeros),
        }
    }

    pub fn forward(&self, p: &Pass, ids: &Ids, x: &Var) -> Result<Var> {
        let (g, b) = (p.tape.param(p.params, ids[self.gain]), p.tape.param(p.params, ids[self.bias]));
        Ok(norm::layer_norm(p.tape, x, &g, &b, NORM_EPS)?)
    }
}

/// Rotary positions: the tokens from `first` on, one for each place of `angles`, have their queries and keys rotated.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub angles: RotaryTable,
    pub first: usize,
}

impl Places {
    /// `qkv` \[B, L, 3·d\] with queries and keys rotated; as it is where there are no rotary positions.
    pub fn rotate(places: Option<&Places>, t: &Tape, qkv: Var) -> tweedie_engine::Result<Var> {
        let Some(Places { angles, first }) = places else { return Ok(qkv) };
        let columns = qkv.value().width() / 3 * 2;
        rotary(t, qkv, angles, columns, *first..*first + angles.places())
    }
}

/// A pre-norm transformer block: x + attention(norm(x)), then x + mlp(norm(x)).
#[derive(Clone, Debug)]
pub(crate) struct Block {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
    act: Act,
    drop_path: f32,
    /// Position among all blocks: which step of the drop stream it uses.
    index: u32,
}

/// Which tokens come out of a block.
#[derive(Clone)]
enum Wanted {
    /// All; those before `prefix` see each other alone.
    All { prefix: usize },
    /// Only these; they see all.
    Range(Range<usize>),
}

/// Weight and bias of a layer, or gain and bias of a norm.
type Pair<'a> = (&'a Var, &'a Var);

/// A block's parameters on a tape, by name.
struct Weights<'a> {
    norm1: Pair<'a>,
    qkv: Pair<'a>,
    proj: Pair<'a>,
    norm2: Pair<'a>,
    fc1: Pair<'a>,
    fc2: Pair<'a>,
}

impl<'a> Weights<'a> {
    /// Of the list that [`Block::vars`] makes, which is how they go through [`Tape::recompute`].
    fn of(vars: &'a [Var]) -> tweedie_engine::Result<Weights<'a>> {
        let [norm1_gain, norm1_bias, qkv_w, qkv_b, proj_w, proj_b, norm2_gain, norm2_bias, fc1_w, fc1_b, fc2_w, fc2_b] =
            vars
        else {
            return Err(tweedie_engine::Error::op("block", format!("{} parameters where 12 are expected", vars.len())));
        };
        Ok(Weights {
            norm1: (norm1_gain, norm1_bias),
            qkv: (qkv_w, qkv_b),
            proj: (proj_w, proj_b),
            norm2: (norm2_gain, norm2_bias),
            fc1: (fc1_w, fc1_b),
            fc2: (fc2_w, fc2_b),
        })
    }

    /// Queries, keys and values \[B, L, 3·d\] of tokens `x` \[B, L, d\].
    fn project(&self, t: &Tape, x: &Var) -> tweedie_engine::Result<Var> {
        let h = norm_by(t, x, self.norm1)?;
        linear_by(t, &h, self.qkv, None)
    }
}

fn norm_by(t: &Tape, x: &Var, (gain, bias): Pair) -> tweedie_engine::Result<Var> {
    norm::layer_norm(t, x, gain, bias, NORM_EPS)
}

fn linear_by(t: &Tape, x: &Var, (w, b): Pair, residual: Option<&Var>) -> tweedie_engine::Result<Var> {
    linear::linear(t, x, w, Some(b), None, residual)
}

/// What a block is, beside its weights.
#[derive(Clone, Copy)]
pub(crate) struct BlockShape {
    pub width: usize,
    pub heads: usize,
    pub mlp: usize,
    pub act: Act,
    pub drop_path: f32,
    pub index: u32,
}

impl Block {
    pub fn plan(plan: &mut Plan, name: &str, s: BlockShape) -> Block {
        Block {
            norm1: Norm::plan(plan, &format!("{name}.norm1"), s.width),
            qkv: Linear::hidden(plan, &format!("{name}.attn.qkv"), s.width, 3 * s.width, 3),
            proj: Linear::hidden(plan, &format!("{name}.attn.proj"), s.width, s.width, 1),
            norm2: Norm::plan(plan, &format!("{name}.norm2"), s.width),
            fc1: Linear::hidden(plan, &format!("{name}.mlp.fc1"), s.width, s.mlp, 1),
            fc2: Linear::hidden(plan, &format!("{name}.mlp.fc2"), s.mlp, s.width, 1),
            heads: s.heads,
            act: s.act,
            drop_path: s.drop_path,
            index: s.index,
        }
    }

    /// The block's parameters on the tape, in the order that [`Weights::of`] takes them.
    fn vars(&self, p: &Pass, ids: &Ids) -> Vec<Var> {
        let at = [
            self.norm1.gain,
            self.norm1.bias,
            self.qkv.w,
            self.qkv.b,
            self.proj.w,
            self.proj.b,
            self.norm2.gain,
            self.norm2.bias,
            self.fc1.w,
            self.fc1.b,
            self.fc2.w,
            self.fc2.b,
        ];
        at.iter().map(|&i| p.tape.param(p.params, ids[i])).collect()
    }

    /// The block for all tokens `x` \[B, L, d\], of which the first `prefix` see each other alone.
    pub fn forward(&self, p: &Pass, ids: &Ids, x: &Var, prefix: usize, places: Option<&Places>) -> Result<Var> {
        self.forward_wanted(p, ids, x, Wanted::All { prefix }, places)
    }

    /// The block for all tokens `x` \[B, L, d\], of which only `part` comes out: the last block of a network whose other
    /// tokens nobody reads. They still give keys and values.
    pub fn forward_part(
        &self,
        p: &Pass,
        ids: &Ids,
        x: &Var,
        part: Range<usize>,
        places: Option<&Places>,
    ) -> Result<Var> {
        let all = x.shape().get(1) == Some(&part.len());
        self.forward_wanted(p, ids, x, if all { Wanted::All { prefix: 0 } } else { Wanted::Range(part) }, places)
    }

    fn forward_wanted(&self, p: &Pass, ids: &Ids, x: &Var, wanted: Wanted, places: Option<&Places>) -> Result<Var> {
        let vars = self.vars(p, ids);
        let drop = p.drop.clone().filter(|_| self.drop_path > 0.0);
        if !p.recompute {
            return Ok(self.apply(p.tape, x, &Weights::of(&vars)?, &wanted, places, drop.as_ref())?);
        }
        let inputs: Vec<&Var> = std::iter::once(x).chain(&vars).collect();
        let (block, places) = (self.clone(), places.cloned());
        Ok(p.tape.recompute(&inputs, move |tape, v| {
            let (x, vars) = first(v)?;
            block.apply(tape, x, &Weights::of(vars)?, &wanted, places.as_ref(), drop.as_ref())
        })?)
    }

    fn apply(
        &self,
        t: &Tape,
        x: &Var,
        w: &Weights,
        wanted: &Wanted,
        places: Option<&Places>,
        drop: Option<&DropPath>,
    ) -> tweedie_engine::Result<Var> {
        let qkv = Places::rotate(places, t, w.project(t, x)?)?;
        let (x, a) = match wanted {
            Wanted::All { prefix } => {
                (x.clone(), attention(t, &qkv, self.heads, &Mask { keys: None, prefix: *prefix })?)
            }
            Wanted::Range(part) => {
                let q = thirds(t, &tokens::slice(t, &qkv, part.clone())?, 0..1)?;
                let a = cross_attention(t, &q, &thirds(t, &qkv, 1..3)?, self.heads, None)?;
                (tokens::slice(t, x, part.clone())?, a)
            }
        };
        let x = &x;
        let Some(d) = drop else { return self.after_attention(t, x, &a, w) };
        let path = |y: &Var, half: u32| {
            dropout::drop_path(t, y, self.drop_path, &d.noise.later(2 * self.index + half), &d.examples)
        };
        let a = linear_by(t, &a, w.proj, None)?;
        let x = elementwise::add(t, x, &path(&a, 0)?)?;
        let h = norm_by(t, &x, w.norm2)?;
        let m = linear::mlp(t, &h, w.fc1, self.act, w.fc2, None)?;
        elementwise::add(t, &x, &path(&m, 1)?)
    }

    /// What follows attention, without drop path: its output layer and the MLP, each with its residual.
    fn after_attention(&self, t: &Tape, x: &Var, a: &Var, w: &Weights) -> tweedie_engine::Result<Var> {
        let x = linear_by(t, a, w.proj, Some(x))?;
        let h = norm_by(t, &x, w.norm2)?;
        linear::mlp(t, &h, w.fc1, self.act, w.fc2, Some(&x))
    }

    /// The block for tokens `x` \[B, C, d\] that others look at: what comes out, and the keys and values \[B, C, 2·d\] that
    /// the others see. No drop path.
    pub fn forward_prefix(&self, p: &Pass, ids: &Ids, x: &Var) -> Result<(Var, Var)> {
        let vars = self.vars(p, ids);
        if !p.recompute {
            return Ok(self.apply_prefix(p.tape, x, &Weights::of(&vars)?)?);
        }
        // A recomputed segment has one output: both are packed into it.
        let inputs: Vec<&Var> = std::iter::once(x).chain(&vars).collect();
        let block = self.clone();
        let packed = p.tape.recompute(&inputs, move |tape, v| {
            let (x, vars) = first(v)?;
            let (b, l) = (x.shape()[0], x.shape()[1]);
            let (x, kv) = block.apply_prefix(tape, x, &Weights::of(vars)?)?;
            let d = x.value().width();
            let n = x.value().rows();
            let (x, kv) = (elementwise::reshape(tape, &x, &[n, 1, d])?, elementwise::reshape(tape, &kv, &[n, 2, d])?);
            elementwise::reshape(tape, &tokens::concat(tape, &[&x, &kv])?, &[b, l, 3 * d])
        })?;
        Ok(split(p.tape, &packed)?)
    }

    /// The keys and values alone: all that is needed of the last block.
    pub fn keys(&self, p: &Pass, ids: &Ids, x: &Var) -> Result<Var> {
        let vars = self.vars(p, ids);
        let kv = |t: &Tape, x: &Var, w: &Weights| Ok(split(t, &w.project(t, x)?)?.1);
        if !p.recompute {
            return Ok(kv(p.tape, x, &Weights::of(&vars)?)?);
        }
        let inputs: Vec<&Var> = std::iter::once(x).chain(&vars).collect();
        Ok(p.tape.recompute(&inputs, move |tape, v| {
            let (x, vars) = first(v)?;
            kv(tape, x, &Weights::of(vars)?)
        })?)
    }

    fn apply_prefix(&self, t: &Tape, x: &Var, w: &Weights) -> tweedie_engine::Result<(Var, Var)> {
        let qkv = w.project(t, x)?;
        let a = attention(t, &qkv, self.heads, &Mask::default())?;
        Ok((self.after_attention(t, x, &a, w)?, split(t, &qkv)?.1))
    }

    /// The block for tokens `x` \[B, N, d\] that look at others' keys and values, each example at one row of `kv`
    /// \[R, C, 2·d\], and at themselves. No drop path.
    pub fn forward_over(
        &self,
        p: &Pass,
        ids: &Ids,
        x: &Var,
        (kv, rows): (&Var, &Rows),
        places: Option<&Places>,
    ) -> Result<Var> {
        let vars = self.vars(p, ids);
        if !p.recompute {
            return Ok(self.apply_over(p.tape, x, (kv, rows), places, &Weights::of(&vars)?)?);
        }
        let inputs: Vec<&Var> = [x, kv].into_iter().chain(&vars).collect();
        let (block, rows, places) = (self.clone(), rows.clone(), places.cloned());
        Ok(p.tape.recompute(&inputs, move |tape, v| {
            let (x, v) = first(v)?;
            let (kv, vars) = first(v)?;
            block.apply_over(tape, x, (kv, &rows), places.as_ref(), &Weights::of(vars)?)
        })?)
    }

    fn apply_over(
        &self,
        t: &Tape,
        x: &Var,
        (kv, rows): (&Var, &Rows),
        places: Option<&Places>,
        w: &Weights,
    ) -> tweedie_engine::Result<Var> {
        let qkv = Places::rotate(places, t, w.project(t, x)?)?;
        let a = joint_attention(t, &qkv, kv, rows, self.heads)?;
        self.after_attention(t, x, &a, w)
    }
}

/// The first input of a recomputed segment, and the others.
fn first(v: &[Var]) -> tweedie_engine::Result<(&Var, &[Var])> {
    v.split_first().ok_or_else(|| tweedie_engine::Error::op("block", "no inputs"))
}

/// \[B, L, 3·d\] into its first third \[B, L, d\] and the rest \[B, L, 2·d\].
fn split(t: &Tape, x: &Var) -> tweedie_engine::Result<(Var, Var)> {
    Ok((thirds(t, x, 0..1)?, thirds(t, x, 1..3)?))
}

/// Some of the thirds of \[B, L, 3·d\].
fn thirds(t: &Tape, x: &Var, which: Range<usize>) -> tweedie_engine::Result<Var> {
    let (b, l, d) = (x.shape()[0], x.shape()[1], x.value().width() / 3);
    let width = which.len() * d;
    let part = tokens::slice(t, &elementwise::reshape(t, x, &[b * l, 3, d])?, which)?;
    elementwise::reshape(t, &part, &[b, l, width])
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::cases::random;
    use tweedie_engine::{Device, ops::mean_square};

    /// Value, gradient of the input and of all parameters, where only the last tokens are read.
    fn last_tokens(tail: bool, prefix: usize, recompute: bool, rotated: bool) -> Vec<Vec<f32>> {
        let (width, from) = (24, 5);
        let angles = RotaryTable::new(&Device::Cpu, 3, width / 3).unwrap();
        let places = rotated.then_some(Places { angles, first: 4 });
        let places = places.as_ref();
        let mut plan = Plan::default();
        let shape = BlockShape { width, heads: 3, mlp: 40, act: Act::GeluErf, drop_path: 0.0, index: 0 };
        let block = Block::plan(&mut plan, "b", shape);
        let (mut params, ids) = plan.build(&Device::Cpu, false, 1).unwrap();
        let tape = Tape::new();
        let x = tape.leaf(random(0, &[2, 7, width], 1.0));
        let loss = {
            let p = Pass { recompute, ..Pass::inference(&tape, &params, DType::F32) };
            let y = match tail {
                true => block.forward_part(&p, &ids, &x, from..7, places).unwrap(),
                false => {
                    let y = block.forward(&p, &ids, &x, prefix, places).unwrap();
                    tokens::slice(&tape, &y, from..7).unwrap()
                }
            };
            let y = elementwise::reshape(&tape, &y, &[4, width]).unwrap();
            let loss = mean_square::mean_square(&tape, &y, &random(1, &[4, width], 1.0), None).unwrap();
            elementwise::mean(&tape, &loss).unwrap()
        };
        let value = loss.value().to_vec().unwrap();
        let grads = tape.backward(&loss, Some(&mut params)).unwrap();
        let of = ids.iter().map(|id| params.grad(*id).unwrap().to_vec().unwrap());
        [value, grads.get(&x).unwrap().to_vec().unwrap()].into_iter().chain(of).collect()
    }

    /// What is left out of a block that only its last tokens are read of changes neither them nor any gradient.
    #[test]
    fn the_tail_of_a_block_is_the_block_cut_off() {
        for (prefix, recompute, rotated) in
            [(0, false, false), (0, true, false), (5, false, false), (0, false, true), (0, true, true), (5, true, true)]
        {
            let run = |tail: bool| last_tokens(tail, prefix, recompute, rotated);
            let (want, got) = (run(false), run(true));
            for (want, got) in want.iter().zip(&got) {
                let size = want.iter().fold(1e-3_f32, |m, x| m.max(x.abs()));
                assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e-5 * size), "{want:?}\n{got:?}");
            }
        }
    }
}
