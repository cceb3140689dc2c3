//! Linear layers on the GPU: cuBLASLt does the products and, where it can, what follows them.

use super::{Affine, SOURCE};
use crate::cpu::math::Act;
use crate::cuda::{Cuda, Epilogue, Gemm, Mat, args, by_type, even_columns};
use crate::error::Result;
use crate::ops::elementwise::{add_into_cuda, column_sums_cuda};
use crate::tape::{Grads, Var};
use crate::tensor::{DType, Tensor};

fn code(act: Act) -> usize {
    match act {
        Act::GeluErf => 0,
        Act::GeluTanh => 1,
        Act::Silu => 2,
    }
}

fn launch_act(c: &Cuda, name: &'static str, act: Act, pre: &Tensor, d: &Tensor, y: &Tensor) -> Result<()> {
    let grid = (pre.len().div_ceil(256 * 8), 1, 1);
    c.launch(&SOURCE, 0, name, grid, 256, 0, args![pre, d, y, pre.len() as i64, code(act)])
}

/// Whether cuBLASLt fuses this activation (the tanh form, in bf16, with aligned rows).
fn fuses(act: Act, dtype: DType, width: usize) -> bool {
    act == Act::GeluTanh && dtype == DType::Bf16 && width.is_multiple_of(8)
}

/// Rows that take a kernel of their own: cuBLASLt's tiles would be nearly empty.
const FEW: usize = 8;
/// Warps of one of its blocks, and parts of 256 weights that each of them reads at once, as in linear.cu.
const FEW_WARPS: usize = 8;
const FEW_AHEAD: usize = 3;

fn few_rows(dtype: DType, rows: usize) -> Option<&'static str> {
    let names = match dtype {
        DType::F32 => ["few_rows2_f32", "few_rows4_f32", "few_rows8_f32"],
        DType::Bf16 => ["few_rows2_bf16", "few_rows4_bf16", "few_rows8_bf16"],
        DType::U32 => return None,
    };
    match rows {
        1..=2 => Some(names[0]),
        3..=4 => Some(names[1]),
        5..=FEW => Some(names[2]),
        _ => None,
    }
}

/// y = act(x·wᵀ + bias), with the pre-activation where it is wanted, or x·wᵀ + bias + residual, for few rows. `false`: these are
/// not, or cannot be read 16 bytes at a time; nothing was done.
pub(crate) fn few(
    c: &Cuda,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    y: &Tensor,
    act: Option<(Act, Option<&Tensor>)>,
) -> Result<bool> {
    let (rows, n, k) = (x.rows(), w.rows(), w.width());
    let aligned = k.is_multiple_of(8) && (x.ptr() | w.ptr()).is_multiple_of(16);
    let Some(name) = few_rows(x.dtype(), rows).filter(|_| aligned) else { return Ok(false) };
    let kind = act.map_or(u32::MAX, |a| code(a.0) as u32); // −1: none
    // Warps that share a column: so many that they read it at once.
    let team = k.div_ceil(256 * FEW_AHEAD).next_power_of_two().min(FEW_WARPS);
    let args = args![x, w, bias, residual, y, act.and_then(|a| a.1), rows, n, k, kind, team];
    c.launch(&SOURCE, 0, name, (n.div_ceil(FEW_WARPS / team), 1, 1), FEW_WARPS * 32, 0, args)?;
    Ok(true)
}

/// Columns of a result whose rows all start aligned. Few rows come from a kernel that leaves no gaps.
pub(super) fn aligned_width(rows: usize, out: usize) -> usize {
    if rows <= FEW { out } else { out.next_multiple_of(8) }
}

/// The result, and the pre-activation if there is one and a gradient is `wanted`. `shape` ends in the layer's outputs, or in more
/// where rows shall start aligned ([`aligned_width`]).
pub(super) fn forward(
    c: &Cuda,
    x: &Tensor,
    layer: &Affine,
    act: Option<Act>,
    residual: Option<&Tensor>,
    shape: &[usize],
    wanted: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let (m, k, n, dtype) = (x.rows(), layer.inner(), layer.out(), x.dtype());
    let w = layer.w.value_as(dtype)?;
    let bias = layer.b.as_ref().map(|b| b.value_as(dtype)).transpose()?;
    let y = Tensor::cuda(c, shape, dtype)?;
    let new_pre = || if wanted { Tensor::cuda(c, shape, dtype).map(Some) } else { Ok(None) };
    if m <= FEW {
        let pre = act.map(|_| new_pre()).transpose()?.flatten();
        if few(c, x, &w, bias.as_ref(), residual, &y, act.map(|a| (a, pre.as_ref())))? {
            return Ok((y, pre));
        }
    }
    // The columns `first..first + n`.
    let part = |first: usize, n: usize, epilogue| {
        let at = first * dtype.size();
        let b = Mat::of(&w.view(first * k, &[n, k])).t();
        let to = Mat { ptr: y.ptr() + at as u64, ..Mat::of(&y) };
        let add = residual.map(|r| r.ptr() + at as u64);
        Gemm { m, n, k, a: Mat::of(x), b, c: to, add, epilogue }
    };
    if let (Some(act), Some(b)) = (act, &bias)
        && fuses(act, dtype, n)
    {
        let pre = new_pre()?;
        let aux = pre.as_ref().map_or(0, Tensor::ptr);
        if c.try_gemm(&part(0, n, Epilogue::BiasGelu { bias: b.ptr(), aux }))? {
            return Ok((y, pre));
        }
    }
    let done = match &bias {
        Some(b) => {
            let biased = |(first, n)| part(first, n, Epilogue::Bias(b.ptr() + (first * dtype.size()) as u64));
            let even = if y.width() > n { even_columns(n) } else { n };
            c.try_gemm(&biased((0, even)))? && (even == n || c.try_gemm(&biased((even, n - even)))?)
        }
        None => false,
    };
    if !done {
        c.gemm(&part(0, n, Epilogue::None))?;
        if let Some(b) = &bias {
            let (name, grid) = (by_type!(dtype, "add_bias"), (y.len().div_ceil(256), 1, 1));
            c.launch(&SOURCE, 0, name, grid, 256, 0, args![&y, b, y.len() as i64, y.width(), n])?;
        }
    }
    let Some(act) = act else { return Ok((y, None)) };
    let h = new_pre()?.unwrap_or_else(|| y.clone()); // in place where nobody asks for what was there
    launch_act(c, by_type!(dtype, "act_forward"), act, &y, &y, &h)?;
    Ok((h, wanted.then_some(y)))
}

/// x·wᵀ in f32, to three digits.
pub(super) fn rough(c: &Cuda, x: &Tensor, w: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let y = Tensor::cuda(c, shape, DType::F32)?;
    if !few(c, x, w, None, None, &y, None)? {
        let (m, n, k) = (x.rows(), w.rows(), w.width());
        let (a, b, epilogue) = (Mat::of(x), Mat::of(w).t(), Epilogue::None);
        c.rough_gemm(&Gemm { m, n, k, a, b, c: Mat::of(&y), add: None, epilogue })?;
    }
    Ok(y)
}

/// dy·act'(pre).
pub(super) fn act_backward(c: &Cuda, act: Act, pre: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let d = Tensor::cuda(c, dy.shape(), dy.dtype())?;
    launch_act(c, by_type!(dy.dtype(), "act_backward"), act, pre, dy, &d)?;
    Ok(d)
}

/// dW = dᵀ·x and db = column sums of d (fused into the same product where possible).
pub(super) fn backward_weights(c: &Cuda, layer: &Affine, x: &Tensor, d: &Tensor, grads: &mut Grads) -> Result<()> {
    let (rows, inner, out) = (x.rows(), layer.inner(), layer.out());
    let bias = match &layer.b {
        Some(b) => grads.dst_cuda(b, DType::F32)?,
        None => None,
    };
    let mut bias_done = bias.is_none();
    if let Some(dw) = grads.dst_cuda(&layer.w, DType::F32)? {
        let product = |epilogue| Gemm {
            m: out,
            n: inner,
            k: rows,
            a: Mat { ptr: d.ptr(), dtype: d.dtype(), stride: out, t: true },
            b: Mat { ptr: x.ptr(), dtype: x.dtype(), stride: inner, t: false },
            c: Mat::of(&dw.tensor),
            add: dw.acc.then(|| dw.tensor.ptr()),
            epilogue,
        };
        if let Some(db) = &bias {
            // The library overwrites the sums: where there is something to add to, they go aside first.
            let aside = if db.acc { Tensor::cuda(c, &[out], DType::F32)? } else { db.tensor.clone() };
            bias_done = c.try_gemm(&product(Epilogue::SumOfA { sums: aside.ptr() }))?;
            if bias_done && db.acc {
                add_into_cuda(c, &db.tensor, &aside, true)?;
            }
            if !bias_done {
                c.gemm(&product(Epilogue::None))?;
            }
        } else {
            c.gemm(&product(Epilogue::None))?;
        }
    }
    match bias {
        Some(db) if !bias_done => column_sums_cuda(c, d, out, &db),
        _ => Ok(()),
    }
}

pub(super) fn backward_input(c: &Cuda, layer: &Affine, x: &Var, d: &Tensor, grads: &mut Grads) -> Result<()> {
    let (rows, inner, out, dtype) = (x.value().rows(), layer.inner(), layer.out(), d.dtype());
    let Some(dx) = grads.dst_cuda(x, dtype)? else { return Ok(()) };
    let w = layer.w.value_as(dtype)?;
    c.gemm(&Gemm {
        m: rows,
        n: inner,
        k: out,
        a: Mat { ptr: d.ptr(), dtype, stride: out, t: false },
        b: Mat::of(&w),
        c: Mat { ptr: dx.tensor.ptr(), dtype, stride: inner, t: false },
        add: dx.acc.then(|| dx.tensor.ptr()),
        epilogue: Epilogue::None,
    })
}

/// dy·W of the second layer, times the activation's slope where that is fused (`true`).
fn through_second(c: &Cuda, down: &Affine, act: Act, pre: &Tensor, dy: &Tensor) -> Result<(Tensor, bool)> {
    let (rows, mid, out, dtype) = (dy.rows(), down.inner(), down.out(), dy.dtype());
    let w = down.w.value_as(dtype)?;
    let d = Tensor::cuda(c, pre.shape(), dtype)?;
    let product = |epilogue| Gemm {
        m: rows,
        n: mid,
        k: out,
        a: Mat { ptr: dy.ptr(), dtype, stride: out, t: false },
        b: Mat::of(&w),
        c: Mat { ptr: d.ptr(), dtype, stride: mid, t: false },
        add: None,
        epilogue,
    };
    if fuses(act, dtype, mid) && c.try_gemm(&product(Epilogue::GeluGrad { aux: pre.ptr() }))? {
        return Ok((d, true));
    }
    c.gemm(&product(Epilogue::None))?;
    Ok((d, false))
}

/// Gradient of the first layer's pre-activation. Its bias gradient comes with the product for the first weight: cuBLASLt
/// can also sum it here (DGELU_BGRAD), but that made this product slower than a separate pass.
pub(super) fn backward_hidden(c: &Cuda, down: &Affine, act: Act, pre: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (d, done) = through_second(c, down, act, pre, dy)?;
    if !done {
        launch_act(c, by_type!(d.dtype(), "act_backward"), act, pre, &d, &d)?;
    }
    Ok(d)
}

/// As [`backward_hidden`], with the hidden values act(pre) that were not kept.
pub(super) fn backward_hidden_again(
    c: &Cuda,
    down: &Affine,
    act: Act,
    pre: &Tensor,
    dy: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (d, done) = through_second(c, down, act, pre, dy)?;
    let hidden = Tensor::cuda(c, pre.shape(), pre.dtype())?;
    if done {
        launch_act(c, by_type!(pre.dtype(), "act_forward"), act, pre, pre, &hidden)?;
    } else {
        let grid = (pre.len().div_ceil(256 * 8), 1, 1);
        let args = args![pre, &d, &hidden, pre.len() as i64, code(act)];
        c.launch(&SOURCE, 0, by_type!(pre.dtype(), "act_both"), grid, 256, 0, args)?;
    }
    Ok((d, hidden))
}
