//! What a denoiser reads besides the time: its noisy tokens in one of four forms, and the condition they look at.

use tweedie_engine::ops::attention::Rows;
use tweedie_engine::ops::noisy_input::NoisyTokens;
use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{Device, Tape, Tensor, Var};

use crate::error::{Error, Result};

/// The tokens that a denoiser reads.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// The recipe of y_t (TDD).
    Noisy(&'a NoisyTokens),
    /// W·y_t \[B, N, d\], computed elsewhere and without the bias (TDD): the exact-noise sampler's.
    Projected(&'a Var),
    /// κ_t·y_t, f32 \[B, N, V\] ([`Model::evidence`](super::Model::evidence)), for a TDD denoiser with exact evidence, which reads nothing else.
    Evidence(&'a Var),
    /// Token ids, u32 \[B, N\], where V stands for a masked token (MDD).
    Tokens(&'a Tensor),
}

impl Input<'_> {
    /// B.
    pub(crate) fn examples(&self) -> usize {
        let shape = match self {
            Input::Noisy(y) => y.tokens.shape(),
            Input::Projected(y) | Input::Evidence(y) => y.shape(),
            Input::Tokens(x) => x.shape(),
        };
        shape.first().copied().unwrap_or(0)
    }
}

/// The condition of a batch, as far as it can be computed before the noisy tokens are known: once for all noisy copies of
/// an image and for all steps of a sampler. Made by [`super::Model::context`] on an inference tape it can be kept and used
/// with any other tape.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) seen: Seen,
    /// Of the direct path: what it leads to the head, \[B, 1, width\]; zero where the condition is dropped.
    pub(super) direct: Option<Var>,
}

/// What noisy tokens see of the condition.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// Nothing: the model has no condition.
    Nothing,
    /// Tokens \[B, C, d\] that go through the blocks with the noisy ones, and the learned null condition \[1, C, d\].
    Tokens { own: Var, null: Option<Var> },
    /// Keys and values of each block, from condition tokens that see each other alone.
    Keys(Keys),
}

/// Keys and values that noisy tokens see beside their own.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// \[R, C, 2·d\] for each block: a row per image, then perhaps that of the null condition.
    pub blocks: Vec<Var>,
    /// The row that each example sees.
    pub rows: Rows,
    pub images: usize,
    /// Whether there is a row of the null condition.
    pub null: bool,
}

impl Context {
    /// What the direct path leads to the head, if there is one.
    pub(crate) fn direct(&self) -> Option<&Var> {
        self.direct.as_ref()
    }

    /// The same, but no gradient goes back along the direct path.
    pub(crate) fn with_direct_detached(self, tape: &Tape) -> Context {
        let direct = self.direct.map(|d| tape.constant(d.value().clone()));
        Context { direct, ..self }
    }

    /// One row per noisy copy: every example `k` times in a row, and the null condition in the rows whose `drop` (B·k of
    /// them) is not 0.
    pub fn rows(&self, tape: &Tape, k: usize, drop: Option<&[u32]>) -> Result<Context> {
        let direct = self.direct.as_ref().map(|d| direct_rows(tape, d, k, drop)).transpose()?;
        Ok(Context { seen: self.seen_rows(tape, k, drop)?, direct })
    }

    fn seen_rows(&self, tape: &Tape, k: usize, drop: Option<&[u32]>) -> Result<Seen> {
        let without = || Error::Input("this context was made without the null condition".into());
        Ok(match &self.seen {
            Seen::Nothing => Seen::Nothing,
            Seen::Tokens { own, null } => {
                let mut own = tokens::repeat(tape, own, k)?;
                if let Some(drop) = drop {
                    let mask = Tensor::from_u32(&own.value().device(), &[drop.len()], drop.to_vec())?;
                    own = tokens::select(tape, &own, null.as_ref().ok_or_else(without)?, &mask)?;
                }
                Seen::Tokens { own, null: None }
            }
            Seen::Keys(_) if k == 0 => return Err(Error::Input("no noisy copies of an image".into())),
            Seen::Keys(Keys { null: false, .. }) if drop.is_some() => return Err(without()),
            Seen::Keys(keys) => {
                let copies = keys.images * k;
                if let Some(drop) = drop.filter(|d| d.len() != copies) {
                    return Err(Error::Input(format!("{} rows to drop or not, there are {copies}", drop.len())));
                }
                let dropped = |i: usize| drop.is_some_and(|d| d[i] != 0);
                let row = |i: usize| if dropped(i) { keys.images } else { i / k };
                let of: Vec<u32> = (0..copies).map(|i| row(i) as u32).collect();
                let device = keys.blocks.first().map_or(Device::Cpu, |kv| kv.value().device());
                let rows = Rows::new(&device, &of, keys.images + keys.null as usize)?;
                Seen::Keys(Keys { rows, ..keys.clone() })
            }
        })
    }
}

/// What the direct path leads to the head, for `k` rows of each example: nothing where the condition is dropped.
fn direct_rows(tape: &Tape, direct: &Var, k: usize, drop: Option<&[u32]>) -> Result<Var> {
    let all = tokens::repeat(tape, direct, k)?;
    let Some(drop) = drop else { return Ok(all) };
    let (device, width) = (all.value().device(), all.value().width());
    let mask = Tensor::from_u32(&device, &[drop.len()], drop.to_vec())?;
    let nothing = tape.constant(Tensor::zeros(&device, &[1, 1, width], all.value().dtype())?);
    Ok(tokens::select(tape, &all, &nothing, &mask)?)
}

/// `x` \[B, C, d\] with `last` \[1, C, d\] as one more example.
pub(super) fn append(tape: &Tape, x: &Var, last: &Var) -> Result<Var> {
    let &[b, c, d] = x.shape() else { return Err(Error::Input(format!("a condition of shape {:?}", x.shape()))) };
    let flat = elementwise::reshape(tape, x, &[1, b * c, d])?;
    Ok(elementwise::reshape(tape, &tokens::concat(tape, &[&flat, last])?, &[b + 1, c, d])?)
}
