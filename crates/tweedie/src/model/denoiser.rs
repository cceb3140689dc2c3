//! The denoiser f_θ(Y_t, t, c): logits for every noisy token, given the time and the condition.

use serde::{Deserialize, Serialize};
use tweedie_engine::ops::attention::Mask;
use tweedie_engine::ops::noisy_input::{NoisyTokens, noisy_input};
use tweedie_engine::ops::{attention, elementwise, linear, modulate, norm, tokens};
use tweedie_engine::{Act, DType, Device, Group, Tensor, Var};

use super::build::{Init, Plan};
use super::layers::{Block, BlockShape, Ids, Linear, NORM_EPS, Norm, Pass};
use super::vit::Gelu;
use crate::error::{Error, Result};

/// Kind of network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DenoiserKind {
    /// Condition and noisy tokens side by side through plain blocks: the paper's.
    #[default]
    Transformer,
    /// Blocks modulated by time and mean condition (DiT's adaLN-zero), beside the same tokens.
    Dit,
    /// Residual MLPs over one vector, modulated by time and condition; for single tokens.
    Mlp,
}

/// Who attends to whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionAttention {
    /// Plain self-attention over condition and noisy tokens: the paper's.
    #[default]
    Full,
    /// Condition tokens attend to each other alone and carry no time, so their keys are the same at every step.
    Prefix,
}

/// Shape of the denoiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenoiserConfig {
    /// Kind of network.
    #[serde(default)]
    pub kind: DenoiserKind,
    /// Width of a token.
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Who attends to whom.
    #[serde(default)]
    pub condition_attention: ConditionAttention,
}

impl DenoiserConfig {
    /// The paper's kind of network in this size.
    pub fn new(width: usize, depth: usize, heads: usize) -> DenoiserConfig {
        DenoiserConfig {
            kind: DenoiserKind::default(),
            width,
            depth,
            heads,
            condition_attention: ConditionAttention::default(),
        }
    }

    /// Refuse shapes that cannot be built, naming the field.
    pub fn check(&self, tokens: usize) -> Result<()> {
        let DenoiserConfig { kind, width, depth, heads, .. } = self;
        let wrong = |what: String| Err(Error::Input(format!("model.denoiser: {what}")));
        if *width == 0 || *depth == 0 || *heads == 0 || width % heads != 0 {
            return wrong(format!(
                "width = {width} must be a positive multiple of heads = {heads}, depth = {depth} at least 1"
            ));
        }
        if *kind == DenoiserKind::Mlp && tokens != 1 {
            return wrong(format!("kind = \"mlp\" denoises one token, the data have {tokens}"));
        }
        Ok(())
    }
}

/// Numbers of time features, as in the reference.
const TIME_FEATURES: usize = 256;

/// cos and sin of every t below `count` at 128 frequencies, \[count, 256\].
pub(crate) fn time_table(device: &Device, count: usize) -> Result<Tensor> {
    let half = TIME_FEATURES / 2;
    let mut v = Vec::with_capacity(count * TIME_FEATURES);
    for t in 0..count {
        let angle = |i: usize| t as f64 * (-(10000_f64.ln()) * i as f64 / half as f64).exp();
        v.extend((0..half).map(|i| angle(i).cos() as f32));
        v.extend((0..half).map(|i| angle(i).sin() as f32));
    }
    Ok(Tensor::from_f32(device, &[count, TIME_FEATURES], v)?)
}

#[derive(Clone, Debug)]
enum Body {
    Transformer(Vec<Block>),
    Dit(Vec<DitBlock>),
    Mlp(Vec<MlpBlock>),
}

/// The denoiser's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Denoiser {
    config: DenoiserConfig,
    tokens: usize,
    cond_tokens: usize,
    token_in: Linear,
    cond_in: Linear,
    null_cond: usize,
    pos: usize,
    time1: Linear,
    time2: Linear,
    body: Body,
    norm: Norm,
    head: Linear,
}

/// What a denoiser reads.
pub(crate) struct Noisy<'a> {
    /// Recipe of the noisy vectors.
    pub tokens: &'a NoisyTokens,
    /// Time features \[B, 256\].
    pub time: &'a Tensor,
}

/// Sizes around the denoiser.
#[derive(Clone, Copy)]
pub(crate) struct Around {
    pub vocab: usize,
    pub tokens: usize,
    pub cond_dim: usize,
    pub cond_tokens: usize,
    /// Blocks before this one in the whole network: numbers the drop-path streams.
    pub blocks_before: usize,
}

impl Denoiser {
    pub fn plan(plan: &mut Plan, name: &str, c: &DenoiserConfig, gelu: Gelu, a: Around) -> Denoiser {
        let d = c.width;
        let token_in = Linear {
            // Each row reads one class: variance 1/V would drown a single class, so as wide as an embedding.
            w: plan.add(
                format!("{name}.token_in.weight"),
                &[d, a.vocab],
                Group::Decay,
                Init::TruncNormal(0.02_f32.max(1.0 / (a.vocab as f32).sqrt())),
            ),
            b: plan.add(format!("{name}.token_in.bias"), &[d], Group::NoDecay, Init::Zeros),
        };
        let cond_in = Linear::plan(plan, &format!("{name}.cond_in"), a.cond_dim, d);
        let null_cond =
            plan.add(format!("{name}.null_cond"), &[1, a.cond_tokens, d], Group::NoDecay, Init::Normal(0.02));
        let pos = plan.add(
            format!("{name}.pos_embed"),
            &[1, a.cond_tokens + a.tokens, d],
            Group::NoDecay,
            Init::Normal(0.02),
        );
        let time1 = Linear::plan(plan, &format!("{name}.time_mlp.0"), TIME_FEATURES, d);
        let time2 = Linear::plan(plan, &format!("{name}.time_mlp.2"), d, d);
        let shape = |i: usize| BlockShape {
            width: d,
            heads: c.heads,
            mlp: 4 * d,
            act: gelu.act(),
            drop_path: 0.0,
            index: (a.blocks_before + i) as u32,
        };
        let at = |i: usize| format!("{name}.blocks.{i}");
        let body = match c.kind {
            DenoiserKind::Transformer => {
                Body::Transformer((0..c.depth).map(|i| Block::plan(plan, &at(i), shape(i))).collect())
            }
            DenoiserKind::Dit => {
                Body::Dit((0..c.depth).map(|i| DitBlock::plan(plan, &at(i), d, c.heads, gelu.act())).collect())
            }
            DenoiserKind::Mlp => Body::Mlp((0..c.depth).map(|i| MlpBlock::plan(plan, &at(i), d, gelu.act())).collect()),
        };
        let norm = Norm::plan(plan, &format!("{name}.norm"), d);
        let head = Linear::plan(plan, &format!("{name}.head"), d, a.vocab);
        Denoiser {
            config: c.clone(),
            tokens: a.tokens,
            cond_tokens: a.cond_tokens,
            token_in,
            cond_in,
            null_cond,
            pos,
            time1,
            time2,
            body,
            norm,
            head,
        }
    }

    /// The condition in the denoiser's own width, computed once and used for all copies and steps.
    pub fn condition(&self, p: &Pass, ids: &Ids, cond: &Var) -> Result<Var> {
        self.cond_in.forward(p, ids, cond, None)
    }

    /// Replace the condition of examples whose `drop` (u32 \[B\]) is not 0 by the learned null condition.
    pub fn drop_condition(&self, p: &Pass, ids: &Ids, cond: &Var, drop: &Tensor) -> Result<Var> {
        let null = p.tape.param(p.params, ids[self.null_cond]);
        Ok(tokens::select(p.tape, cond, &null, drop)?)
    }

    /// Features \[B, N, width\] of the noisy tokens, ready for the head. `cond` comes from [`Denoiser::condition`].
    pub fn features(&self, p: &Pass, ids: &Ids, noisy: &Noisy, cond: &Var) -> Result<Var> {
        let t = p.tape;
        let param = |i: usize| t.param(p.params, ids[i]);
        let y = noisy_input(t, noisy.tokens, &param(self.token_in.w), &param(self.token_in.b), p.dtype)?;
        let time = self.time1.forward(p, ids, &t.constant(noisy.time.clone()), Some(Act::Silu))?;
        let time = self.time2.forward(p, ids, &time, None)?;
        let (c, n) = (self.cond_tokens, self.tokens);
        let x = match &self.body {
            Body::Transformer(blocks) => {
                let prefix = self.config.condition_attention == ConditionAttention::Prefix;
                let y = if prefix { elementwise::add_per_example(t, &y, &time)? } else { y };
                let x = tokens::concat(t, &[cond, &y])?;
                let mut x = elementwise::add_broadcast(t, &x, &param(self.pos))?;
                if !prefix {
                    x = elementwise::add_per_example(t, &x, &time)?;
                }
                let mask = Mask { keys: None, prefix: if prefix { c } else { 0 } };
                for b in blocks {
                    x = b.forward(p, ids, &x, &mask)?;
                }
                tokens::slice(t, &x, c..c + n)?
            }
            Body::Dit(blocks) => {
                // Time and mean condition steer the norms; the tokens themselves attend to each other.
                let steer = tokens::mean_tokens(t, cond, 0..c)?;
                let steer = elementwise::reshape(t, &steer, &[steer.shape()[0], self.config.width])?;
                let steer = elementwise::add(t, &steer, &time)?;
                let x = tokens::concat(t, &[cond, &y])?;
                let mut x = elementwise::add_broadcast(t, &x, &param(self.pos))?;
                for b in blocks {
                    x = b.forward(p, ids, &x, &steer)?;
                }
                tokens::slice(t, &x, c..c + n)?
            }
            Body::Mlp(blocks) => {
                let steer = tokens::mean_tokens(t, cond, 0..c)?;
                let steer = elementwise::reshape(t, &steer, &[steer.shape()[0], self.config.width])?;
                let steer = elementwise::add(t, &steer, &time)?;
                let mut x = y;
                for b in blocks {
                    x = b.forward(p, ids, &x, &steer)?;
                }
                x
            }
        };
        self.norm.forward(p, ids, &x)
    }

    /// Logits \[B, N, V\].
    pub fn logits(&self, p: &Pass, ids: &Ids, features: &Var) -> Result<Var> {
        self.head.forward(p, ids, features, None)
    }

    /// Weight and bias of the head, for a loss that never holds all logits.
    pub fn head(&self, p: &Pass, ids: &Ids) -> (Var, Var) {
        (p.tape.param(p.params, ids[self.head.w]), p.tape.param(p.params, ids[self.head.b]))
    }
}

/// A modulation vector of `parts` pieces, linear in the steering vector. It starts at zero, so that each block
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

    /// Piece `i` of \[B, parts, d\] comes out as \[B, 1, d\].
    fn pieces(&self, p: &Pass, ids: &Ids, steer: &Var) -> Result<Vec<Var>> {
        let m = self.to.forward(p, ids, steer, None)?;
        let (b, parts) = (m.shape()[0], m.shape()[1] / self.width);
        let m = elementwise::reshape(p.tape, &m, &[b, parts, self.width])?;
        (0..parts).map(|i| Ok(tokens::slice(p.tape, &m, i..i + 1)?)).collect()
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

/// DiT's block: shift, scale and gate of both branches come from the steering vector.
#[derive(Clone, Debug)]
struct DitBlock {
    modulation: Modulation,
    qkv: Linear,
    proj: Linear,
    fc1: Linear,
    fc2: Linear,
    heads: usize,
    act: Act,
}

impl DitBlock {
    fn plan(plan: &mut Plan, name: &str, d: usize, heads: usize, act: Act) -> DitBlock {
        DitBlock {
            modulation: Modulation::plan(plan, name, d, 6),
            qkv: Linear::plan(plan, &format!("{name}.attn.qkv"), d, 3 * d),
            proj: Linear::plan(plan, &format!("{name}.attn.proj"), d, d),
            fc1: Linear::plan(plan, &format!("{name}.mlp.fc1"), d, 4 * d),
            fc2: Linear::plan(plan, &format!("{name}.mlp.fc2"), 4 * d, d),
            heads,
            act,
        }
    }

    fn forward(&self, p: &Pass, ids: &Ids, x: &Var, steer: &Var) -> Result<Var> {
        let t = p.tape;
        let m = self.modulation.pieces(p, ids, steer)?;
        let h = modulate::modulate(t, &bare_norm(p, x)?, &m[0], &m[1])?;
        let qkv = self.qkv.forward(p, ids, &h, None)?;
        let a = attention::attention(t, &qkv, self.heads, &Mask::default())?;
        let a = self.proj.forward(p, ids, &a, None)?;
        let x = modulate::gate(t, x, &a, &m[2])?;
        let h = modulate::modulate(t, &bare_norm(p, &x)?, &m[3], &m[4])?;
        let h = branch(p, ids, &h, &self.fc1, self.act, &self.fc2)?;
        Ok(modulate::gate(t, &x, &h, &m[5])?)
    }
}

/// A residual MLP over single tokens.
#[derive(Clone, Debug)]
struct MlpBlock {
    modulation: Modulation,
    fc1: Linear,
    fc2: Linear,
    act: Act,
}

impl MlpBlock {
    fn plan(plan: &mut Plan, name: &str, d: usize, act: Act) -> MlpBlock {
        MlpBlock {
            modulation: Modulation::plan(plan, name, d, 3),
            fc1: Linear::plan(plan, &format!("{name}.mlp.fc1"), d, 4 * d),
            fc2: Linear::plan(plan, &format!("{name}.mlp.fc2"), 4 * d, d),
            act,
        }
    }

    fn forward(&self, p: &Pass, ids: &Ids, x: &Var, steer: &Var) -> Result<Var> {
        let m = self.modulation.pieces(p, ids, steer)?;
        let h = modulate::modulate(p.tape, &bare_norm(p, x)?, &m[0], &m[1])?;
        let h = branch(p, ids, &h, &self.fc1, self.act, &self.fc2)?;
        Ok(modulate::gate(p.tape, x, &h, &m[2])?)
    }
}

fn branch(p: &Pass, ids: &Ids, x: &Var, fc1: &Linear, act: Act, fc2: &Linear) -> Result<Var> {
    let param = |i: usize| p.tape.param(p.params, ids[i]);
    let (w1, b1, w2, b2) = (param(fc1.w), param(fc1.b), param(fc2.w), param(fc2.b));
    Ok(linear::mlp(p.tape, x, (&w1, &b1), act, (&w2, &b2), None)?)
}
