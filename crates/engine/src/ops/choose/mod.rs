//! A token for each row of logits: the most likely one, or one drawn by exact inverse CDF; with guidance, forbidden classes
//! and tokens that stay as they are. For sampling only, so nothing is recorded on a tape.

mod cases;
mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cases::cases;

use super::check;
use crate::error::{Result, ensure};
use crate::rng::Noise;
use crate::tensor::{DType, Tensor};

crate::cuda::source!("choose.cu");

/// A row of `fixed` that is free to choose.
pub const FREE: u32 = u32::MAX;
/// The most candidates that [`Choose::top`] may ask for.
pub const MAX_TOP: usize = 8;
/// The most classes that [`Banned::classes`] may name: one bit each.
pub const MAX_BANNED: usize = 32;

/// How a token is chosen.
#[derive(Clone, Copy)]
pub enum How<'a> {
    /// The most likely one, the first of equals.
    Argmax,
    /// Drawn. Token n of an example uses word n of that example's stream: 53 bits, so that no tail is cut.
    Drawn {
        /// The stream.
        noise: &'a Noise,
        /// Example ids, u32 \[B\].
        examples: &'a Tensor,
    },
}

/// Classes that some rows must not take.
#[derive(Clone, Copy)]
pub struct Banned<'a> {
    /// Up to [`MAX_BANNED`] classes, u32 \[K\].
    pub classes: &'a Tensor,
    /// For each row, bit k set: not class k of the list. u32 \[B·N\].
    pub rows: &'a Tensor,
}

/// What to choose by.
#[derive(Clone, Copy)]
pub struct Choose<'a> {
    /// Tokens per example, N.
    pub tokens: usize,
    /// Classes V, where rows of the logits are longer than that: what lies beyond is not looked at.
    pub classes: Option<usize>,
    /// Guidance weight w, f32 \[1\], or \[B\] with that of each example. The logits are then \[2·B, N, V\], each example with its condition c followed by itself
    /// without it u, and what counts is u + w·(c − u).
    pub guidance: Option<&'a Tensor>,
    /// Argmax or a draw.
    pub how: How<'a>,
    /// Forbidden classes: they have probability 0 and the others share the rest.
    pub banned: Option<Banned<'a>>,
    /// Rows below [`FREE`] keep this token, u32 \[B·N\].
    pub fixed: Option<&'a Tensor>,
    /// Also give what is known of each token. The most likely token alone costs less: no exponentials.
    pub numbers: bool,
    /// Also give the probabilities.
    pub probabilities: bool,
    /// Also give this many most likely tokens, at most [`MAX_TOP`].
    pub top: usize,
}

impl Choose<'_> {
    /// The most likely token of each row and nothing else.
    pub fn argmax(tokens: usize) -> Choose<'static> {
        Choose {
            tokens,
            classes: None,
            guidance: None,
            how: How::Argmax,
            banned: None,
            fixed: None,
            numbers: false,
            probabilities: false,
            top: 0,
        }
    }
}

/// What is known of the tokens.
#[derive(Clone)]
pub struct Numbers {
    /// Log-probability of the token, f32 \[B·N\]; for a fixed token too.
    pub log_prob: Tensor,
    /// Entropy of the row's distribution in nats, f32 \[B·N\].
    pub entropy: Tensor,
}

/// One token per row, and what else was asked for.
#[derive(Clone)]
pub struct Chosen {
    /// u32 \[B·N\].
    pub tokens: Tensor,
    /// With [`Choose::numbers`].
    pub numbers: Option<Numbers>,
    /// The distribution, \[B·N, V\] in the type of the logits; a fixed token has all of it.
    pub probabilities: Option<Tensor>,
    /// The most likely tokens, u32 \[B·N, k\], and their log-probabilities, f32 \[B·N, k\].
    pub top: Option<(Tensor, Tensor)>,
}

impl Chosen {
    /// The numbers, which must have been asked for.
    pub fn numbers(&self) -> Result<&Numbers> {
        self.numbers.as_ref().ok_or_else(|| crate::Error::op("choose", "log-probabilities were not asked for"))
    }
}

/// Sizes of a call.
#[derive(Clone, Copy)]
struct Plan {
    /// B·N.
    rows: usize,
    vocab: usize,
    /// From one row of logits to the next.
    stride: usize,
    tokens: usize,
    top: usize,
}

impl Choose<'_> {
    /// Whether anything but the most likely token is asked for: then probabilities must be added up.
    fn sums(&self) -> bool {
        self.numbers || self.probabilities || self.top > 0 || matches!(self.how, How::Drawn { .. })
    }
}

/// Choose a token for each row of `logits` \[B, N, V\], or \[2·B, N, V\] with guidance (any shape with that many rows and V as
/// its last axis, or more with [`Choose::classes`]). A logit that is not a number counts as −∞.
pub fn choose(logits: &Tensor, how: &Choose) -> Result<Chosen> {
    let (stride, n) = (logits.width(), how.tokens);
    let vocab = how.classes.unwrap_or(stride);
    ensure!(vocab > 0 && vocab <= stride, "choose", "logits {:?} do not hold {vocab} classes", logits.shape());
    let copies = if how.guidance.is_some() { 2 } else { 1 };
    ensure!(
        !logits.is_empty() && n > 0 && n.checked_mul(copies).is_some_and(|each| logits.rows().is_multiple_of(each)),
        "choose",
        "logits {:?} are not {} rows of {n} tokens per example",
        logits.shape(),
        if copies == 2 { "pairs of" } else { "whole" }
    );
    let rows = logits.rows() / copies;
    ensure!(stride < i32::MAX as usize / 2 && rows < i32::MAX as usize, "choose", "{logits:?} is too large");
    ensure!(how.top <= MAX_TOP.min(vocab), "choose", "the {} most likely of {vocab} classes are too many", how.top);
    check::compute_type("choose", logits, logits.dtype())?;
    if let Some(w) = how.guidance {
        ensure!(
            (w.shape() == [1] || w.shape() == [rows / n]) && w.dtype() == DType::F32 && w.is_beside(logits),
            "choose",
            "the guidance weight must be f32 [1] or [{}] on {}, it is {w:?}",
            rows / n,
            logits.device()
        );
    }
    let integers = |what: &str, x: &Tensor, len: usize| -> Result<()> {
        check::integers("choose", what, x, logits)?;
        ensure!(x.len() == len, "choose", "{what} {:?} must be [{len}] for logits {:?}", x.shape(), logits.shape());
        Ok(())
    };
    if let How::Drawn { noise, examples } = how.how {
        integers("example ids", examples, rows / n)?;
        noise.check("choose", rows / n, logits)?;
    }
    if let Some(b) = how.banned {
        integers("rows of banned classes", b.rows, rows)?;
        check::integers("choose", "banned classes", b.classes, logits)?;
        ensure!(b.classes.len() <= MAX_BANNED, "choose", "{} banned classes are too many", b.classes.len());
    }
    if let Some(g) = how.fixed {
        integers("fixed tokens", g, rows)?;
    }
    let plan = Plan { rows, vocab, stride, tokens: n, top: how.top };
    match logits.cuda_device() {
        Some(c) => cuda::choose(c, logits, how, plan),
        None => cpu::choose(logits, how, plan),
    }
}
