//! Attention on the GPU.

use super::{Attention, Plan};
use crate::cuda::{Cuda, Source, args, by_type};
use crate::error::{Result, ensure};
use crate::tape::Grads;
use crate::tensor::{DType, Tensor};

pub(crate) static SOURCE: Source = Source { file: "attention.cu", code: include_str!("attention.cu") };
pub(crate) static SOURCE_F32: Source = Source { file: "attention_f32.cu", code: include_str!("attention_f32.cu") };
pub(crate) static SOURCE_PAD: Source = Source { file: "pad.cu", code: include_str!("pad.cu") };

/// Head sizes that the kernels are compiled for.
pub(crate) const SIZES: [u32; 4] = [32, 64, 96, 128];
/// The grid's second and third axis end here.
const MAX_GRID: usize = 65_535;
/// Enough blocks for any chip; the kernel loops over what is left.
const MAX_PAD_BLOCKS: usize = 1 << 16;

/// Rows of a block, threads and dynamic shared memory, as the heads of the kernel files state them.
struct Launch {
    source: &'static Source,
    rows: usize,
    key_rows: usize,
    shared: usize,
    key_shared: usize,
}

const THREADS: usize = 128;
const DELTA_ROWS: usize = 64;
const DELTA_THREADS: usize = 256;

impl Launch {
    fn new(dtype: DType, size: usize) -> Launch {
        match dtype {
            DType::F32 => Launch { source: &SOURCE_F32, rows: 32, key_rows: 32, shared: 0, key_shared: 0 },
            _ => Launch {
                source: &SOURCE,
                rows: if size <= 64 { 128 } else { 64 },
                key_rows: 64,
                shared: 512 * size,
                key_shared: 512 * size + 1024,
            },
        }
    }
}

/// The plan for padded heads; that of `p` itself where its head size is one of [`SIZES`].
fn padded(p: &Plan) -> Result<Plan> {
    let Some(size) = SIZES.map(|s| s as usize).into_iter().find(|&s| s >= p.size) else {
        let most = SIZES[SIZES.len() - 1];
        return Err(crate::Error::op(
            "attention",
            format!("heads of {} on a GPU; the largest there is {most}: use more heads", p.size),
        ));
    };
    ensure!(
        p.batch <= MAX_GRID && p.heads <= MAX_GRID,
        "attention",
        "a batch of {} with {} heads; a GPU takes at most {MAX_GRID} of each at once",
        p.batch,
        p.heads
    );
    let resize = |x: usize| x / p.size * size;
    Ok(Plan { size, q_row: resize(p.q_row), kv_row: resize(p.kv_row), k_at: resize(p.k_at), ..*p })
}

/// `x` \[…, n·from\] with heads of `from` as heads of `to`; `x` itself if they are equal.
fn resized(c: &Cuda, x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    if from == to {
        return Ok(x.clone());
    }
    let rows = x.len() / from;
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = *last / from * to;
    }
    let y = Tensor::cuda(c, &shape, x.dtype())?;
    let grid = ((rows * to).div_ceil(256).min(MAX_PAD_BLOCKS), 1, 1);
    let name = by_type!(x.dtype(), "resize_rows");
    c.launch(&SOURCE_PAD, 0, name, grid, 256, 0, args![x, &y, rows as i64, from, to])?;
    Ok(y)
}

/// Address `elements` into a tensor.
fn at(x: &Tensor, elements: usize) -> u64 {
    x.ptr() + (elements * x.dtype().size()) as u64
}

/// Strides as the kernels take them: q_batch, q_row, kv_batch, kv_row.
fn strides(p: &Plan) -> [i64; 4] {
    [p.lq * p.q_row, p.q_row, p.lk * p.kv_row, p.kv_row].map(|x| x as i64)
}

/// Output \[B, Lq, H·D\] and, if `want_lse`, the log-sum-exp \[B, H, Lq\].
pub(super) fn forward(
    c: &Cuda,
    plan: &Plan,
    q: &Tensor,
    kv: Option<&Tensor>,
    mask: Option<&Tensor>,
    want_lse: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let p = padded(plan)?;
    let q = resized(c, q, plan.size, p.size)?;
    let kv = kv.map(|kv| resized(c, kv, plan.size, p.size)).transpose()?.unwrap_or_else(|| q.clone());
    let o = Tensor::cuda(c, &[p.batch, p.lq, p.heads * p.size], q.dtype())?;
    let lse = if want_lse { Some(Tensor::cuda(c, &[p.batch, p.heads, p.lq], DType::F32)?) } else { None };
    let l = Launch::new(q.dtype(), p.size);
    let (k, v) = (at(&kv, p.k_at), at(&kv, p.v_at()));
    let [q_batch, q_row, kv_batch, kv_row] = strides(&p);
    let name = if q.dtype() == DType::F32 { "attention_fwd_f32" } else { "attention_fwd" };
    let grid = (p.lq.div_ceil(l.rows), p.heads, p.batch);
    let args = args![
        &q,
        k,
        v,
        &o,
        lse.as_ref(),
        mask,
        p.heads,
        p.lq,
        p.lk,
        q_batch,
        q_row,
        kv_batch,
        kv_row,
        p.prefix,
        p.scale
    ];
    c.launch(l.source, p.size as u32, name, grid, THREADS, l.shared, args)?;
    Ok((resized(c, &o, p.size, plan.size)?, lse))
}

pub(super) fn backward(c: &Cuda, op: &Attention, lse: &Tensor, dy: &Tensor, grads: &mut Grads) -> Result<()> {
    let (plan, p) = (&op.plan, padded(&op.plan)?);
    let widen = |x: &Tensor| resized(c, x, plan.size, p.size);
    let q = widen(op.q.value())?;
    let kv = op.kv.as_ref().map(|kv| widen(kv.value())).transpose()?.unwrap_or_else(|| q.clone());
    let (o, d_o) = (widen(&op.o)?, widen(dy)?);
    let dtype = q.dtype();
    let f32 = dtype == DType::F32;
    let l = Launch::new(dtype, p.size);
    let variant = p.size as u32;

    // Self-attention: one gradient holds all three, and every element of it is written.
    let packed = op.kv.is_none();
    let want_q = op.q.needs_grad();
    let want_kv = op.kv.as_ref().map_or(want_q, crate::tape::Var::needs_grad);
    let dq = if want_q { Some(Tensor::cuda(c, q.shape(), dtype)?) } else { None };
    let dkv = match (&dq, packed) {
        (Some(dq), true) => Some(dq.clone()),
        _ if want_kv => Some(Tensor::cuda(c, kv.shape(), dtype)?),
        _ => None,
    };

    let delta = Tensor::cuda(c, &[p.batch, p.heads, p.lq], DType::F32)?;
    let mask = op.mask.as_ref();
    let (k, v) = (at(&kv, p.k_at), at(&kv, p.v_at()));
    let [q_batch, q_row, kv_batch, kv_row] = strides(&p);
    let q_grid = (p.lq.div_ceil(l.rows), p.heads, p.batch);
    // In bf16 the kernel of dq computes delta along the way.
    let fused = !f32 && dq.is_some();
    if !fused {
        let name = if f32 { "attention_delta_f32" } else { "attention_delta" };
        let grid = ((p.lq * p.heads).div_ceil(DELTA_ROWS), p.batch, 1);
        c.launch(l.source, variant, name, grid, DELTA_THREADS, 0, args![&o, &d_o, &delta, p.heads, p.lq])?;
    }
    if let Some(dq) = &dq {
        let name = if fused { "attention_bwd_dq_delta" } else { "attention_bwd_dq_f32" };
        let mut all = args![&q, k, v].to_vec();
        if fused {
            all.extend_from_slice(args![&o]);
        }
        all.extend_from_slice(args![&d_o, lse, &delta, mask, dq, p.heads, p.lq, p.lk]);
        all.extend_from_slice(args![q_batch, q_row, kv_batch, kv_row, p.prefix, p.scale]);
        c.launch(l.source, variant, name, q_grid, THREADS, l.shared, &all)?;
    }
    if let Some(dkv) = &dkv {
        let name = if f32 { "attention_bwd_dkdv_f32" } else { "attention_bwd_dkdv" };
        let (dk, dv) = (at(dkv, p.k_at), at(dkv, p.v_at()));
        let args = args![
            &q, k, v, &d_o, lse, &delta, mask, dk, dv, p.heads, p.lq, p.lk, q_batch, q_row, kv_batch, kv_row, p.prefix,
            p.scale
        ];
        let grid = (p.lk.div_ceil(l.key_rows), p.heads, p.batch);
        c.launch(l.source, variant, name, grid, THREADS, l.key_shared, args)?;
    }
    let narrow = |g: &Tensor, like: &Tensor| resized(c, g, p.size, plan.size)?.reshape(like.shape());
    if let Some(dq) = dq {
        grads.give(&op.q, narrow(&dq, op.q.value())?)?;
    }
    if let (Some(var), Some(dkv)) = (&op.kv, dkv) {
        grads.give(var, narrow(&dkv, var.value())?)?;
    }
    Ok(())
}
