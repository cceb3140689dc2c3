//! Softmax cross-entropy: of given logits, and of a linear head whose logits are computed a chunk of classes at a time,
//! so that they need not live in full.
//!
//! Per row, with q the target distribution and p = softmax(l): loss = w·(−Σ q′ₖ log pₖ), q′ = (1−s)·q + s·(Σq)/V.
//! Each row keeps five running numbers over the chunks (see `STATE`), from which the loss and the gradient
//! g·w·(Σq·p − q′) follow. All of it is f32 in every mode.

mod cases;
mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

pub(crate) use cases::cases;

use std::cell::Cell;

use super::check;
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("cross_entropy.cu");

/// Running numbers of a row: largest logit, Σ exp(l − largest), Σ q·l, Σ l (only with smoothing), Σ q.
const STATE: usize = 5;
/// What the gradient needs of them: largest logit, 1 / Σ exp(l − largest), Σ q.
const STATS: usize = 3;
/// Chunks are a multiple of this, so that every chunk of the weight starts aligned.
const CHUNK_STEP: usize = 64;

/// What the logits should say.
#[derive(Clone, Copy, Debug)]
pub enum Targets<'a> {
    /// One class per row: u32 \[rows\].
    Hard(&'a Tensor),
    /// A distribution per row: f32 \[rows, V\].
    Soft(&'a Tensor),
}

/// A cross-entropy loss without its logits.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The targets; no gradient flows into them.
    pub targets: Targets<'a>,
    /// A factor per row, f32 \[rows\]; no gradient flows into it.
    pub weights: Option<&'a Tensor>,
    /// Share of the target that is spread evenly over all classes, 0 to 1.
    pub smoothing: f32,
}

/// A checked [`Loss`] that owns its tensors.
struct Objective {
    hard: Option<Tensor>,
    soft: Option<Tensor>,
    weights: Option<Tensor>,
    smoothing: f32,
    rows: usize,
    classes: usize,
}

impl Objective {
    /// `x` holds the rows: logits or the input of the head.
    fn new(op: &'static str, loss: &Loss, x: &Tensor, classes: usize) -> Result<Objective> {
        let rows = x.rows();
        ensure!(classes > 0 && rows > 0, op, "there is no loss of {rows} rows and {classes} classes: {x:?}");
        check::values(op, "the input", x)?;
        check::elements(op, &[rows, classes])?;
        ensure!((0.0..=1.0).contains(&loss.smoothing), op, "smoothing {} is not within 0 to 1", loss.smoothing);
        let check = |name: &str, t: &Tensor, dtype: DType, fits: bool, want: String| -> Result<()> {
            ensure!(fits && t.dtype() == dtype, op, "{name} must be {dtype} {want} to go with {x:?}, they are {t:?}");
            ensure!(t.is_beside(x), op, "{name} are on {}, the logits on {}", t.device(), x.device());
            Ok(())
        };
        let mut made = Objective { hard: None, soft: None, weights: None, smoothing: loss.smoothing, rows, classes };
        match loss.targets {
            Targets::Hard(t) => {
                check("targets", t, DType::U32, t.len() == rows, format!("[{rows}]"))?;
                made.hard = Some(t.clone());
            }
            Targets::Soft(t) => {
                let fits = t.len() == rows * classes && t.width() == classes;
                check("targets", t, DType::F32, fits, format!("[{rows}, {classes}]"))?;
                made.soft = Some(t.clone());
            }
        }
        if let Some(w) = loss.weights {
            check("weights", w, DType::F32, w.len() == rows, format!("[{rows}]"))?;
            made.weights = Some(w.clone());
        }
        if x.cuda_device().is_none() {
            for (row, &t) in made.hard.iter().flat_map(|t| t.u32s()).enumerate() {
                ensure!((t as usize) < classes, op, "row {row} has target {t}, but there are {classes} classes");
            }
        }
        Ok(made)
    }
}

struct Plain {
    logits: Var,
    target: Objective,
    /// See [`STATS`].
    stats: Tensor,
}

/// The loss of each row of `logits` \[…, V\], f32 \[rows\]. A target class outside `0..V` is an error on the CPU; on the
/// GPU, where looking would cost a wait, that row's loss is NaN.
pub fn cross_entropy(tape: &Tape, logits: &Var, loss: &Loss) -> Result<Var> {
    let l = logits.value();
    let target = Objective::new("cross_entropy", loss, l, l.width())?;
    let (y, stats) = match l.cuda_device() {
        Some(c) => cuda::forward(c, l, &target)?,
        None => cpu::forward(l.f32s(), &target),
    };
    Ok(tape.record(y, &[logits], || Plain { logits: logits.clone(), target, stats }))
}

impl Backward for Plain {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(c) = dy.cuda_device() {
            return cuda::backward(c, self, dy, grads);
        }
        let dl = cpu::gradient(self.logits.value().f32s(), &self.target, self.stats.f32s(), dy.f32s());
        grads.give(&self.logits, Tensor::from_buf(dl, self.logits.shape()))
    }
}

/// The classes `first..first + count` of one chunk.
#[derive(Clone, Copy)]
struct Chunk {
    first: usize,
    count: usize,
}

fn chunks(classes: usize, size: usize) -> impl Iterator<Item = Chunk> {
    (0..classes).step_by(size).map(move |first| Chunk { first, count: size.min(classes - first) })
}

/// `L` holds the logits of a chunk: [`Buf`] on the CPU, [`Tensor`] on the GPU.
struct Linear<L> {
    x: Var,
    weight: Var,
    bias: Option<Var>,
    target: Objective,
    /// See [`STATS`].
    stats: Tensor,
    chunk: usize,
    /// The logits of every chunk, or none: then they are computed again.
    logits: Cell<Vec<L>>,
}

/// Head and loss in one: `cross_entropy(x·weightᵀ + bias)` for `x` \[…, d\], `weight` \[V, d\], `bias` \[V\].
///
/// With `chunk` the logits of at most that many classes (rounded up to a multiple of 64) live at a time, and the backward
/// pass computes them again. Without it the size is chosen, and where all logits are small (256 MiB on the CPU, 512 MiB on
/// the GPU) they are kept, which saves that fourth product.
pub fn linear_cross_entropy(
    tape: &Tape,
    x: &Var,
    weight: &Var,
    bias: Option<&Var>,
    loss: &Loss,
    chunk: Option<usize>,
) -> Result<Var> {
    const OP: &str = "linear_cross_entropy";
    let (xs, d) = (x.value(), x.value().width());
    let &[classes, wide] = weight.shape() else {
        return Err(crate::Error::op(OP, format!("weight must be [V, {d}], it is {:?}", weight.shape())));
    };
    ensure!(wide == d, OP, "weight {:?} does not fit the last axis of x {:?}", weight.shape(), x.shape());
    if let Some(b) = bias {
        ensure!(b.shape() == [classes], OP, "bias {:?} must be [{classes}]", b.shape());
    }
    ensure!(chunk != Some(0), OP, "a chunk must hold at least one class");
    for v in [Some(weight), bias].into_iter().flatten() {
        check::f32s(OP, "weight or bias", v.value(), xs)?;
    }
    let target = Objective::new(OP, loss, xs, classes)?;
    let inputs: Vec<&Var> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
    let (default, limit) = match xs.cuda_device() {
        Some(_) => (cuda::CHUNK, cuda::KEEP),
        None => (cpu::chunk(target.rows), cpu::KEEP),
    };
    let bytes = target.rows * classes * xs.dtype().size();
    let keep = chunk.is_none() && bytes <= limit && inputs.iter().any(|v| v.needs_grad());
    let chunk = chunk.map_or(default, |c| c.min(i32::MAX as usize)).div_ceil(CHUNK_STEP) * CHUNK_STEP;
    let (x, weight, bias) = (x.clone(), weight.clone(), bias.cloned());
    Ok(match xs.cuda_device() {
        Some(c) => {
            let (y, stats, logits) = cuda::linear_forward(c, (&x, &weight, bias.as_ref()), &target, chunk, keep)?;
            let logits = Cell::new(logits);
            tape.record(y, &inputs, || Linear { x, weight, bias, target, stats, chunk, logits })
        }
        None => {
            let (y, stats, logits) = cpu::linear_forward((&x, &weight, bias.as_ref()), &target, chunk, keep);
            let logits = Cell::new(logits);
            tape.record(y, &inputs, || Linear { x, weight, bias, target, stats, chunk, logits })
        }
    })
}

impl Backward for Linear<Buf> {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        cpu::linear_backward(self, dy.f32s(), grads)
    }
}

impl Backward for Linear<Tensor> {
    fn name(&self) -> &'static str {
        "linear_cross_entropy"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        match dy.cuda_device() {
            Some(c) => cuda::linear_backward(c, self, dy, grads),
            None => Err(crate::Error::op("linear_cross_entropy", "a CPU gradient for a GPU op")),
        }
    }
}
