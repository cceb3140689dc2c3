//! Cross-entropy on the GPU.

use super::{Chunk, Linear, Objective, Plain, SOURCE, STATE, STATS, chunks};
use crate::cuda::{Cuda, Epilogue, Gemm, Mat, args, by_type, even_columns};
use crate::error::Result;
use crate::tape::{Grads, Var};
use crate::tensor::{DType, Tensor};

/// Classes per chunk: wide enough for full-speed products.
pub(super) const CHUNK: usize = 8192;
/// Logits of up to this many bytes are kept for the backward pass rather than computed again.
pub(super) const KEEP: usize = 512 << 20;

/// Rows of a chunk's logits start at multiples of this many elements, so that accesses and products are aligned.
const ROW_STEP: usize = 8;

/// Threads for a row of `count` logits, eight at a time.
fn threads(count: usize) -> usize {
    match count {
        0..=512 => 32,
        513..=2048 => 128,
        _ => 256,
    }
}

/// The logits (rows, stride) of one chunk, still without the bias.
struct Logits<'a> {
    data: &'a Tensor,
    bias: Option<&'a Tensor>,
    chunk: Chunk,
}

impl Logits<'_> {
    fn update(&self, c: &Cuda, o: &Objective, state: &Tensor) -> Result<()> {
        let Chunk { first, count } = self.chunk;
        let name = by_type!(self.data.dtype(), "ce_update");
        let (hard, soft, smooth) = (o.hard.as_ref(), o.soft.as_ref(), o.smoothing > 0.0);
        let stride = self.data.width();
        let args = args![self.data, stride, self.bias, hard, soft, state, count, first, o.classes, smooth];
        c.launch(&SOURCE, 0, name, (o.rows, 1, 1), threads(count), 0, args)
    }

    /// The gradient goes to `to`, which may be the logits.
    fn gradient(&self, c: &Cuda, o: &Objective, stats: &Tensor, dy: &Tensor, to: &Tensor, acc: bool) -> Result<()> {
        let Chunk { first, count } = self.chunk;
        let name = by_type!(self.data.dtype(), "ce_grad");
        let (hard, soft, weights) = (o.hard.as_ref(), o.soft.as_ref(), o.weights.as_ref());
        let (from, stride) = (self.data, self.data.width());
        let args = args![
            from,
            stride,
            self.bias,
            hard,
            soft,
            weights,
            stats,
            dy,
            to,
            to.width(),
            count,
            first,
            o.classes,
            o.smoothing,
            acc
        ];
        c.launch(&SOURCE, 0, name, (o.rows, 1, 1), threads(count), 0, args)
    }
}

/// (losses, stats) from the running numbers.
fn finish(c: &Cuda, o: &Objective, state: &Tensor) -> Result<(Tensor, Tensor)> {
    let y = Tensor::cuda(c, &[o.rows], DType::F32)?;
    let stats = Tensor::cuda(c, &[o.rows, STATS], DType::F32)?;
    let args = args![state, o.weights.as_ref(), &y, &stats, o.rows, o.classes, o.smoothing, o.hard.is_some()];
    c.launch(&SOURCE, 0, "ce_finish", (o.rows.div_ceil(128), 1, 1), 128, 0, args)?;
    Ok((y, stats))
}

pub(super) fn forward(c: &Cuda, logits: &Tensor, o: &Objective) -> Result<(Tensor, Tensor)> {
    let state = Tensor::cuda(c, &[o.rows, STATE], DType::F32)?;
    let chunk = Chunk { first: 0, count: o.classes };
    Logits { data: logits, bias: None, chunk }.update(c, o, &state)?;
    finish(c, o, &state)
}

pub(super) fn backward(c: &Cuda, op: &Plain, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let logits = op.logits.value();
    let Some(dl) = grads.dst_cuda(&op.logits, logits.dtype())? else { return Ok(()) };
    let chunk = Chunk { first: 0, count: op.target.classes };
    Logits { data: logits, bias: None, chunk }.gradient(c, &op.target, &op.stats, dy, &dl.tensor, dl.acc)
}

type Head<'a> = (&'a Var, &'a Var, Option<&'a Var>);

/// Chunks of `size` classes, and the classes that [`even_columns`] leaves over.
fn even_chunks(classes: usize, size: usize) -> impl Iterator<Item = Chunk> {
    let even = even_columns(classes);
    let rest = (even < classes).then_some(Chunk { first: even, count: classes - even });
    chunks(even, size).chain(rest)
}

/// The rows of `w` (V, d) that belong to `chunk`.
fn part(w: &Tensor, chunk: Chunk) -> Tensor {
    let d = w.width();
    w.view(chunk.first * d, &[chunk.count, d])
}

fn bias_of(bias: Option<&Var>, chunk: Chunk) -> Option<Tensor> {
    bias.map(|b| b.value().view(chunk.first, &[chunk.count]))
}

/// x·Wᵀ of one chunk, without the bias; `w` has the type of `x`.
fn product(c: &Cuda, x: &Tensor, w: &Tensor, chunk: Chunk) -> Result<Tensor> {
    let (rows, d) = (x.rows(), x.width());
    let l = Tensor::cuda(c, &[rows, chunk.count.div_ceil(ROW_STEP) * ROW_STEP], x.dtype())?;
    c.gemm(&Gemm {
        m: rows,
        n: chunk.count,
        k: d,
        a: Mat::of(x),
        b: Mat::of(&part(w, chunk)).t(),
        c: Mat::of(&l),
        add: None,
        epilogue: Epilogue::None,
    })?;
    Ok(l)
}

/// (losses, stats, logits by chunk if `keep`).
pub(super) fn linear_forward(
    c: &Cuda,
    (x, weight, bias): Head,
    o: &Objective,
    size: usize,
    keep: bool,
) -> Result<(Tensor, Tensor, Vec<Tensor>)> {
    let x = x.value();
    let w = weight.value_as(x.dtype())?;
    let state = Tensor::cuda(c, &[o.rows, STATE], DType::F32)?;
    let mut kept = Vec::new();
    for chunk in even_chunks(o.classes, size) {
        let l = product(c, x, &w, chunk)?;
        Logits { data: &l, bias: bias_of(bias, chunk).as_ref(), chunk }.update(c, o, &state)?;
        if keep {
            kept.push(l);
        }
    }
    let (y, stats) = finish(c, o, &state)?;
    Ok((y, stats, kept))
}

pub(super) fn linear_backward(c: &Cuda, op: &Linear<Tensor>, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let Linear { x, weight, bias, target: o, stats, chunk: size, logits } = op;
    let (xs, d) = (x.value(), x.value().width());
    let w = weight.value_as(xs.dtype())?;
    let mut kept = logits.take().into_iter();
    // The sum over several chunks is f32; a single product can be stored in its final type.
    let dx_type = if even_chunks(o.classes, *size).count() > 1 { DType::F32 } else { xs.dtype() };
    let dx = if x.needs_grad() { Some(Tensor::cuda(c, x.shape(), dx_type)?) } else { None };
    let dw = grads.dst_cuda(weight, DType::F32)?;
    let db = match bias {
        Some(b) => grads.dst_cuda(b, DType::F32)?,
        None => None,
    };
    for chunk in even_chunks(o.classes, *size) {
        let l = match kept.next() {
            Some(l) => l,
            None => product(c, xs, &w, chunk)?,
        };
        Logits { data: &l, bias: bias_of(bias.as_ref(), chunk).as_ref(), chunk }
            .gradient(c, o, stats, dy, &l, false)?;
        let dl = Mat::of(&l);
        if let Some(dx) = &dx {
            c.gemm(&Gemm {
                m: o.rows,
                n: d,
                k: chunk.count,
                a: dl,
                b: Mat::of(&part(&w, chunk)),
                c: Mat { stride: d, ..Mat::of(dx) },
                add: (chunk.first > 0).then(|| dx.ptr()),
                epilogue: Epilogue::None,
            })?;
        }
        if let Some(dw) = &dw {
            let to = part(&dw.tensor, chunk);
            c.gemm(&Gemm {
                m: chunk.count,
                n: d,
                k: o.rows,
                a: dl.t(),
                b: Mat::of(xs),
                c: Mat::of(&to),
                add: dw.acc.then(|| to.ptr()),
                epilogue: Epilogue::None,
            })?;
        }
        if let Some(db) = &db {
            column_sums(c, &l, chunk.count, &db.tensor.view(chunk.first, &[chunk.count]), db.acc)?;
        }
    }
    match dx {
        Some(dx) => grads.give(x, dx.cast(xs.dtype())?),
        None => Ok(()),
    }
}

/// Sums over the rows of the first `count` columns of `dl`, in bands of rows that are added up in order.
fn column_sums(c: &Cuda, dl: &Tensor, count: usize, to: &Tensor, acc: bool) -> Result<()> {
    let rows = dl.rows();
    let bands = (c.info().multiprocessors * 16 * 128 / count).clamp(1, 256).min(rows);
    let band = rows.div_ceil(bands);
    let bands = rows.div_ceil(band);
    let part = Tensor::cuda(c, &[bands, count], DType::F32)?;
    let name = by_type!(dl.dtype(), "ce_bias_grad");
    let grid = (count.div_ceil(128), bands, 1);
    c.launch(&SOURCE, 0, name, grid, 128, 0, args![dl, dl.width(), &part, rows, count, band])?;
    let grid = (count.div_ceil(128), 1, 1);
    c.launch(&SOURCE, 0, "ce_bias_reduce", grid, 128, 0, args![&part, to, bands, count, acc])
}
