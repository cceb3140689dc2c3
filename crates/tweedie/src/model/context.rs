//! What a denoiser reads besides the time: its noisy tokens in one of three forms, and the condition they look at.

use tweedie_engine::ops::noisy_input::NoisyTokens;
use tweedie_engine::ops::{elementwise, tokens};
use tweedie_engine::{Tape, Tensor, Var};

use crate::error::{Error, Result};

/// The tokens that a denoiser reads.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// The recipe of y_t (TDD).
    Noisy(&'a NoisyTokens),
    /// W·y_t \[B, N, d\], computed elsewhere and without the bias (TDD): the exact-noise sampler's.
    Projected(&'a Var),
    /// Token ids, u32 \[B, N\], where V stands for a masked token (MDD).
    Tokens(&'a Tensor),
}

/// The condition of a batch, as far as it can be computed before the noisy tokens are known: once for all noisy copies of
/// an image and for all steps of a sampler. Made by [`super::Model::context`] on an inference tape it can be kept and used
/// with any other tape.
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) own: Seen,
    /// The learned null condition, one example.
    pub(super) null: Option<Seen>,
}

/// What noisy tokens see of the condition.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// Nothing: the model has no condition.
    Nothing,
    /// Tokens \[B, C, d\] that go through the blocks with the noisy ones.
    Tokens(Var),
    /// Keys and values \[B, C, 2·d\] of each block, from condition tokens that see each other alone.
    Keys(Vec<Var>),
}

impl Context {
    /// The context of an unconditional model.
    pub(super) fn nothing() -> Context {
        Context { own: Seen::Nothing, null: None }
    }

    /// One row per noisy copy: every example `k` times in a row, and the null condition in the rows whose `drop` (u32 \[B·k\])
    /// is not 0.
    pub fn rows(&self, tape: &Tape, k: usize, drop: Option<&Tensor>) -> Result<Context> {
        let one = |own: &Var, null: Option<&Var>| -> Result<Var> {
            let x = tokens::repeat(tape, own, k)?;
            match (drop, null) {
                (None, _) => Ok(x),
                (Some(mask), Some(null)) => Ok(tokens::select(tape, &x, null, mask)?),
                (Some(_), None) => Err(Error::Input("this context was made without the null condition".into())),
            }
        };
        let own = match (&self.own, &self.null) {
            (Seen::Nothing, _) => Seen::Nothing,
            (Seen::Tokens(x), Some(Seen::Tokens(null))) => Seen::Tokens(one(x, Some(null))?),
            (Seen::Tokens(x), _) => Seen::Tokens(one(x, None)?),
            (Seen::Keys(x), Some(Seen::Keys(null))) => {
                Seen::Keys(x.iter().zip(null).map(|(x, n)| one(x, Some(n))).collect::<Result<_>>()?)
            }
            (Seen::Keys(x), _) => Seen::Keys(x.iter().map(|x| one(x, None)).collect::<Result<_>>()?),
        };
        Ok(Context { own, null: None })
    }
}

/// `x` \[B, C, d\] with `last` \[1, C, d\] as one more example.
pub(super) fn append(tape: &Tape, x: &Var, last: &Var) -> Result<Var> {
    let &[b, c, d] = x.shape() else { return Err(Error::Input(format!("a condition of shape {:?}", x.shape()))) };
    let flat = elementwise::reshape(tape, x, &[1, b * c, d])?;
    Ok(elementwise::reshape(tape, &tokens::concat(tape, &[&flat, last])?, &[b + 1, c, d])?)
}

/// The reverse of [`append`].
pub(super) fn part(tape: &Tape, x: &Var) -> Result<(Var, Var)> {
    let &[b, c, d] = x.shape() else { return Err(Error::Input(format!("keys of shape {:?}", x.shape()))) };
    let flat = elementwise::reshape(tape, x, &[1, b * c, d])?;
    let rest = tokens::slice(tape, &flat, 0..(b - 1) * c)?;
    Ok((elementwise::reshape(tape, &rest, &[b - 1, c, d])?, tokens::slice(tape, &flat, (b - 1) * c..b * c)?))
}
