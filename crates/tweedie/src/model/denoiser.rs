//! The denoiser f_θ(Y_t, t, c): logits for every noisy token, given the time and the condition.

use std::ops::Range;

use tweedie_engine::ops::attention::Rows;
use tweedie_engine::ops::noisy_input::noisy_input;
use tweedie_engine::ops::rotary::RotaryTable;
use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{Act, Device, Group, Tape, Tensor, Var};

use super::adaln::{DitBlock, MlpBlock};
use super::build::{Init, Plan};
use super::config::{ConditionAttention, DenoiserConfig, DenoiserKind, Positions};
use super::context::{Context, Input, Keys, Seen, append};
use super::evidence;
use super::layers::{Block, BlockShape, Ids, Linear, Norm, Pass, Places};
use super::vit::Gelu;
use crate::error::{Error, Result};

mod direct;

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
    /// Of these, the first ones, which the direct path reads.
    direct_tokens: usize,
    token_in: TokenIn,
    condition: Option<Condition>,
    /// Learned positions of the condition tokens and, unless rotary, of the noisy ones.
    pos: Option<usize>,
    /// The angles of rotary positions, once there is a device.
    angles: Option<RotaryTable>,
    time1: Linear,
    time2: Linear,
    body: Body,
    norm: Norm,
    /// Reads the first prediction of a self-conditioned denoiser, \[d, V\].
    self_in: Option<usize>,
    head: Linear,
    /// Of exact evidence: logits of the classes before anything is seen, \[V\].
    prior: Option<usize>,
}

/// The input layer.
#[derive(Clone, Copy, Debug)]
enum TokenIn {
    /// Reads noisy vectors (TDD): weight \[d, V\] and bias.
    Vectors(Linear),
    /// Looks up tokens (MDD): a table \[V + 1, d\] whose last row stands for a masked token.
    Ids(usize),
}

/// How the condition comes in.
#[derive(Clone, Copy, Debug)]
struct Condition {
    to: Linear,
    /// Stands in for a dropped condition.
    null: usize,
}

/// Sizes around the denoiser.
#[derive(Clone, Copy)]
pub(crate) struct DenoiserSpec {
    pub vocab: usize,
    pub tokens: usize,
    /// Reads token ids, some of them masked, instead of noisy vectors.
    pub masked: bool,
    pub cond_dim: usize,
    /// Condition tokens; 0: there is no condition.
    pub cond_tokens: usize,
    /// Of these, the first ones, whose mean the direct path leads to the head.
    pub direct_tokens: usize,
    /// Blocks before this one in the whole network: numbers the drop-path streams.
    pub blocks_before: usize,
}

impl Denoiser {
    pub fn plan(plan: &mut Plan, name: &str, c: &DenoiserConfig, gelu: Gelu, a: DenoiserSpec) -> Denoiser {
        let d = c.width;
        // The twin's head comes right after the encoder.
        let twins_head = plan.len();
        // Each row reads one class: variance 1/V would drown a single class, so as wide as an embedding.
        let spread = 0.02_f32.max(1.0 / (a.vocab as f32).sqrt());
        let init = Init::TruncNormal(spread);
        let token_in = match a.masked {
            false => TokenIn::Vectors(Linear {
                w: plan.add(format!("{name}.token_in.weight"), &[d, a.vocab], Group::Decay, init),
                b: plan.add(format!("{name}.token_in.bias"), &[d], Group::NoDecay, Init::Zeros),
            }),
            true => TokenIn::Ids(plan.add(format!("{name}.token_embed.weight"), &[a.vocab + 1, d], Group::Decay, init)),
        };
        let condition = (a.cond_tokens > 0).then(|| Condition {
            to: Linear::plan(plan, &format!("{name}.cond_in"), a.cond_dim, d),
            null: plan.add(format!("{name}.null_cond"), &[1, a.cond_tokens, d], Group::NoDecay, Init::Normal(0.02)),
        });
        // Among several tokens places must be seen beside what is read: twice its spread was the best of those tried
        // (docs/results/text.md). The usual 0.02 drowns, and a text model stays at the frequencies of its letters.
        let read = spread * if a.masked { 1.0 } else { (a.vocab as f32).sqrt() };
        let places = match a.tokens {
            1 => Init::Normal(0.02),
            _ => Init::Waves { width: d, plain: a.cond_tokens, scale: 2.0 * read },
        };
        let (learned, places) = match c.positions {
            Positions::Waves => (a.cond_tokens + a.tokens, places),
            Positions::Rotary => (a.cond_tokens, Init::Normal(0.02)),
        };
        let pos =
            (learned > 0).then(|| plan.add(format!("{name}.pos_embed"), &[1, learned, d], Group::NoDecay, places));
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
        let self_in = c
            .self_condition
            .then(|| plan.add(format!("{name}.self_in.weight"), &[d, a.vocab], Group::Decay, Init::Zeros));
        // Of the direct path the head reads the encoder's output beside the features, and begins there as the twin's.
        let head_name = format!("{name}.head");
        let head = match c.direct {
            true => Linear::beside(plan, &head_name, d, (a.cond_dim, twins_head), a.vocab),
            false => Linear::plan(plan, &head_name, d, a.vocab),
        };
        let prior = (c.evidence && !a.masked)
            .then(|| plan.add(format!("{name}.prior"), &[a.vocab], Group::NoDecay, Init::Zeros));
        Denoiser {
            config: c.clone(),
            tokens: a.tokens,
            cond_tokens: a.cond_tokens,
            direct_tokens: a.direct_tokens,
            token_in,
            condition,
            pos,
            angles: None,
            time1,
            time2,
            body,
            norm,
            self_in,
            head,
            prior,
        }
    }

    /// Bring what is no parameter to the device: here, before any step, since a captured one must not copy from the host.
    pub fn upload_constants(&mut self, device: &Device) -> Result<()> {
        if self.config.positions == Positions::Rotary {
            self.angles = Some(RotaryTable::new(device, self.tokens, self.config.width / self.config.heads)?);
        }
        Ok(())
    }

    /// Rotary positions of the noisy tokens, which come after `first` others.
    fn places(&self, first: usize) -> Option<Places> {
        self.angles.clone().map(|angles| Places { angles, first })
    }

    /// `x` with the learned positions of the tokens `which`, where there are any.
    fn add_positions(&self, p: &Pass, ids: &Ids, x: &Var, which: Range<usize>) -> Result<Var> {
        let Some(pos) = self.pos else { return Ok(x.clone()) };
        let mut pos = p.tape.param(p.params, ids[pos]);
        if which.start >= pos.shape()[1] {
            return Ok(x.clone());
        }
        if which.len() != pos.shape()[1] {
            pos = tokens::slice(p.tape, &pos, which)?;
        }
        Ok(elementwise::add_broadcast(p.tape, x, &pos)?)
    }

    fn conditioned(&self) -> Result<Condition> {
        self.condition.ok_or_else(|| Error::Input("this model has no condition".into()))
    }

    /// The condition in the denoiser's own width \[B, C, d\].
    pub fn condition(&self, p: &Pass, ids: &Ids, cond: &Var) -> Result<Var> {
        self.conditioned()?.to.forward(p, ids, cond, None)
    }

    /// The learned null condition \[1, C, d\].
    pub fn null(&self, p: &Pass, ids: &Ids) -> Result<Var> {
        Ok(p.tape.param(p.params, ids[self.conditioned()?.null]))
    }

    /// Everything about a condition \[B, C, width\] that does not depend on time and noisy tokens; with `null`, also of the learned
    /// null condition. The direct path reads `path`, the same or its class tokens alone, whose gradient may be another.
    pub fn context(&self, p: &Pass, ids: &Ids, path: &Var, encoded: &Var, null: bool) -> Result<Context> {
        let direct = self.config.direct.then(|| self.direct_path(p.tape, path)).transpose()?;
        let cond = self.condition(p, ids, encoded)?;
        let learned = null.then(|| self.null(p, ids)).transpose()?;
        let (ConditionAttention::Prefix, Body::Transformer(blocks)) = (self.config.condition_attention, &self.body)
        else {
            return Ok(Context { seen: Seen::Tokens { own: cond, null: learned }, direct });
        };
        // The null condition is one more example, so that all share the products.
        let x = learned.map_or_else(|| Ok(cond.clone()), |n| append(p.tape, &cond, &n))?;
        let images = cond.shape()[0];
        let each: Vec<u32> = (0..images as u32).collect();
        let rows = Rows::new(&cond.value().device(), &each, images + null as usize)?;
        let keys = Keys { blocks: self.prefix_keys(p, ids, &x, blocks)?, rows, images, null };
        Ok(Context { seen: Seen::Keys(keys), direct })
    }

    /// Keys and values \[B, C, 2·d\] of condition tokens in every block, where they see each other alone.
    fn prefix_keys(&self, p: &Pass, ids: &Ids, cond: &Var, blocks: &[Block]) -> Result<Vec<Var>> {
        let mut x = self.add_positions(p, ids, cond, 0..self.cond_tokens)?;
        let mut keys = Vec::with_capacity(blocks.len());
        let Some((last, before)) = blocks.split_last() else { return Ok(keys) };
        for b in before {
            let (next, kv) = b.forward_prefix(p, ids, &x)?;
            keys.push(kv);
            x = next;
        }
        keys.push(last.keys(p, ids, &x)?);
        Ok(keys)
    }

    /// The input layer: \[B, N, d\].
    fn read(&self, p: &Pass, ids: &Ids, input: &Input) -> Result<Var> {
        let t = p.tape;
        let param = |i: usize| t.param(p.params, ids[i]);
        Ok(match (input, self.token_in) {
            (Input::Evidence(e), TokenIn::Vectors(l)) => match self.prior {
                Some(prior) => evidence::read(p, ids, e, prior, l)?,
                None => return Err(Error::Input("this denoiser reads noisy vectors, not evidence".into())),
            },
            (_, TokenIn::Vectors(_)) if self.prior.is_some() => {
                return Err(Error::Input("this denoiser reads exact evidence: hand it that of Model::evidence".into()));
            }
            (Input::Noisy(y), TokenIn::Vectors(l)) => noisy_input(t, y, &param(l.w), &param(l.b), p.dtype)?,
            (Input::Projected(y), TokenIn::Vectors(l)) => {
                elementwise::add_broadcast(t, &elementwise::cast(t, y, p.dtype)?, &param(l.b))?
            }
            (Input::Tokens(x), TokenIn::Ids(table)) => tokens::embed(t, &param(table), x, p.dtype)?,
            (Input::Tokens(_), _) => return Err(Error::Input("TDD reads noisy vectors, not token ids".into())),
            (_, TokenIn::Ids(_)) => return Err(Error::Input("MDD reads token ids, not noisy vectors".into())),
        })
    }

    /// Times \[B, d\] as the blocks see them, of time features \[B, 256\].
    pub fn times(&self, p: &Pass, ids: &Ids, features: &Tensor) -> Result<Var> {
        let h = self.time1.forward(p, ids, &p.tape.constant(features.clone()), Some(Act::Silu))?;
        self.time2.forward(p, ids, &h, None)
    }

    /// Features \[B, N, width\] of the tokens, ready for the head. `time` \[B, d\] is of [`Denoiser::times`], or \[1, d\] where
    /// all examples are at one time, or \[B, N, d\] where tokens have their own; `context` has a row for each example.
    pub fn features(&self, p: &Pass, ids: &Ids, input: &Input, time: &Var, context: &Context) -> Result<Var> {
        let y = self.read(p, ids, input)?;
        if y.shape().get(1) != Some(&self.tokens) {
            return Err(Error::Input(format!("tokens {:?}, the model has {} per example", y.shape(), self.tokens)));
        }
        let (examples, width) = (y.shape()[0], self.config.width);
        match *time.shape() {
            [n, d] if d == width && (n == 1 || n == examples) => {}
            [n, tokens, d] if d == width && n == examples && tokens == self.tokens => {}
            _ => {
                let shape = time.shape();
                return Err(Error::Input(format!("times of shape {shape:?} for {examples} examples of width {width}")));
            }
        }
        if time.shape().len() == 3 && !self.times_tokens() {
            let what = "times of single tokens go with a transformer whose condition tokens carry no time";
            return Err(Error::Input(format!("{what} (condition_attention = \"prefix\")")));
        }
        match self.self_in.filter(|_| p.self_condition) {
            Some(w) => {
                let y = self.add_own_prediction(p, ids, (input, &y), time, context, ids[w])?;
                self.through_blocks(p, ids, &y, time, context)
            }
            None => self.through_blocks(p, ids, &y, time, context),
        }
    }

    /// From what was read of the tokens, \[B, N, d\], to features that are ready for the head.
    pub(super) fn through_blocks(&self, p: &Pass, ids: &Ids, y: &Var, time: &Var, context: &Context) -> Result<Var> {
        let t = p.tape;
        let x = match (&self.body, &context.seen) {
            (Body::Transformer(blocks), Seen::Keys(keys)) => {
                if keys.blocks.len() != blocks.len() {
                    return Err(Error::Input("this context belongs to another model".into()));
                }
                let y = add_time(t, y, time)?;
                let mut x = self.add_positions(p, ids, &y, self.cond_tokens..self.cond_tokens + self.tokens)?;
                let places = self.places(0);
                for (b, kv) in blocks.iter().zip(&keys.blocks) {
                    x = b.forward_over(p, ids, &x, (kv, &keys.rows), places.as_ref())?;
                }
                x
            }
            (Body::Transformer(blocks), _) => {
                let prefix = self.config.condition_attention == ConditionAttention::Prefix;
                let y = if prefix { add_time(t, y, time)? } else { y.clone() };
                let mut x = self.join(p, ids, &y, context)?;
                if !prefix {
                    x = add_time(t, &x, time)?;
                }
                let prefix = if prefix { self.cond_tokens } else { 0 };
                let places = self.places(self.cond_tokens);
                let places = places.as_ref();
                let (all, last) = match blocks.split_last() {
                    Some((last, before)) if self.tail_pays(&y.value().device()) => (before, Some(last)),
                    _ => (&blocks[..], None),
                };
                for b in all {
                    x = b.forward(p, ids, &x, prefix, places)?;
                }
                match last {
                    // Later tokens see all keys, with a prefix or without.
                    Some(b) => b.forward_part(p, ids, &x, self.cond_tokens..self.cond_tokens + self.tokens, places)?,
                    None => self.noisy_part(p, x)?,
                }
            }
            (Body::Dit(blocks), _) => {
                // Time and mean condition modulate the norms (adaLN); the tokens themselves attend to each other.
                let modulation = self.modulation_input(p, time, y.shape()[0], context)?;
                let mut x = self.join(p, ids, y, context)?;
                let places = self.places(self.cond_tokens);
                for b in blocks {
                    x = b.forward(p, ids, &x, &modulation, places.as_ref())?;
                }
                self.noisy_part(p, x)?
            }
            (Body::Mlp(blocks), _) => {
                let modulation = self.modulation_input(p, time, y.shape()[0], context)?;
                let mut x = y.clone();
                for b in blocks {
                    x = b.forward(p, ids, &x, &modulation)?;
                }
                x
            }
        };
        self.join_direct(t, self.norm.forward(p, ids, &x)?, context)
    }

    /// Whether the noisy tokens alone are told the time, so that each can have its own.
    fn times_tokens(&self) -> bool {
        let apart = self.cond_tokens == 0 || self.config.condition_attention == ConditionAttention::Prefix;
        matches!(self.body, Body::Transformer(_)) && apart
    }

    /// Whether the last block should compute the noisy tokens alone, which are all that is read of it. On a GPU
    /// that takes two launches more, so there must be enough condition tokens to leave out: in captions there are, beside a
    /// class token there are not.
    fn tail_pays(&self, device: &Device) -> bool {
        const LEAST: usize = 16;
        *device == Device::Cpu || (self.cond_tokens >= LEAST && self.cond_tokens >= self.tokens)
    }

    /// Condition tokens, where there are any, before the noisy ones, with their positions.
    fn join(&self, p: &Pass, ids: &Ids, y: &Var, context: &Context) -> Result<Var> {
        let Some(cond) = self.seen(context)? else { return self.add_positions(p, ids, y, 0..self.tokens) };
        if self.config.positions == Positions::Rotary {
            let cond = self.add_positions(p, ids, cond, 0..self.cond_tokens)?;
            return Ok(tokens::concat(p.tape, &[&cond, y])?);
        }
        self.add_positions(p, ids, &tokens::concat(p.tape, &[cond, y])?, 0..self.cond_tokens + self.tokens)
    }

    fn noisy_part(&self, p: &Pass, x: Var) -> Result<Var> {
        if self.cond_tokens == 0 {
            return Ok(x);
        }
        Ok(tokens::slice(p.tape, &x, self.cond_tokens..self.cond_tokens + self.tokens)?)
    }

    /// The condition tokens of `context`.
    fn seen<'a>(&self, context: &'a Context) -> Result<Option<&'a Var>> {
        match &context.seen {
            Seen::Tokens { own, .. } if self.cond_tokens > 0 => Ok(Some(own)),
            Seen::Nothing if self.cond_tokens == 0 => Ok(None),
            _ => Err(Error::Input("this context belongs to another model".into())),
        }
    }

    /// Time and mean condition in one vector, \[B, d\].
    fn modulation_input(&self, p: &Pass, time: &Var, examples: usize, context: &Context) -> Result<Var> {
        let shared = time.shape()[0] != examples;
        let Some(cond) = self.seen(context)? else {
            return Ok(if shared { tokens::repeat(p.tape, time, examples)? } else { time.clone() });
        };
        let mean = tokens::mean_tokens(p.tape, cond, 0..self.cond_tokens)?;
        let mean = elementwise::reshape(p.tape, &mean, &[mean.shape()[0], self.config.width])?;
        Ok(match shared {
            true => elementwise::add_broadcast(p.tape, &mean, time)?,
            false => elementwise::add(p.tape, &mean, time)?,
        })
    }

    /// Logits \[B, N, V\].
    pub fn logits(&self, p: &Pass, ids: &Ids, features: &Var) -> Result<Var> {
        self.head.forward(p, ids, features, None)
    }

    /// Place of the prior among the parameters, of exact evidence.
    pub fn prior(&self) -> Option<usize> {
        self.prior
    }

    /// Weight and bias of the head, for a loss that never holds all logits.
    pub fn head(&self, p: &Pass, ids: &Ids) -> (Var, Var) {
        (p.tape.param(p.params, ids[self.head.w]), p.tape.param(p.params, ids[self.head.b]))
    }
}

/// `x` \[B, N, d\] with the time of each example \[B, d\], the one of all \[1, d\], or that of each token \[B, N, d\].
fn add_time(t: &Tape, x: &Var, time: &Var) -> Result<Var> {
    if time.shape().len() == 3 {
        return Ok(elementwise::add(t, x, time)?);
    }
    if time.shape()[0] == 1 && x.shape()[0] != 1 {
        let time = elementwise::reshape(t, time, &[time.value().width()])?;
        return Ok(elementwise::add_broadcast(t, x, &time)?);
    }
    Ok(elementwise::add_per_example(t, x, time)?)
}
