//! Keys that examples share, on the GPU: copied beside an example's own where a kernel wants them so, and their gradients.

use super::{Plan, Rows};
use crate::cuda::{Cuda, Source, args, by_type};
use crate::error::Result;
use crate::tensor::Tensor;

pub(crate) static SOURCE_KEYS: Source = Source { file: "keys.cu", code: include_str!("keys.cu") };

/// Rows that a block of the kernels in keys.cu copies.
const COPIED_ROWS: usize = 8;

/// The kernel's name for the widest unit that divides `width` elements, and elements in a unit.
macro_rules! by_unit {
    ($dtype:expr, $width:expr, $name:literal) => {{
        let (size, bytes) = ($dtype.size(), $width * $dtype.size());
        match bytes {
            _ if bytes.is_multiple_of(16) => (concat!($name, "_16"), 16 / size),
            _ if bytes.is_multiple_of(4) => (concat!($name, "_4"), 4 / size),
            _ => (concat!($name, "_2"), 1),
        }
    }};
}

/// Keys and values \[B, C + N, 2·H·D\] that each example sees: its row of `keys`, then its own.
pub(super) fn join_keys(c: &Cuda, p: &Plan, qkv: &Tensor, keys: &Tensor, rows: &Rows) -> Result<Tensor> {
    let kv = Tensor::cuda(c, &[p.batch, p.lk, p.kv_row], qkv.dtype())?;
    let width = p.heads * p.size;
    let (name, unit) = by_unit!(qkv.dtype(), width, "join_keys");
    let count = p.batch * p.lk;
    let args = args![keys, qkv, &rows.of, &kv, count as i64, p.lk - p.lq, p.lq, width / unit];
    c.launch(&SOURCE_KEYS, 0, name, (count.div_ceil(COPIED_ROWS), 1, 1), 32 * COPIED_ROWS, 0, args)?;
    Ok(kv)
}

/// Put the gradients of own keys and values into `d_qkv`.
pub(super) fn own_keys_grad(c: &Cuda, p: &Plan, dkv: &Tensor, d_qkv: &Tensor) -> Result<()> {
    let width = p.heads * p.size;
    let (name, unit) = by_unit!(dkv.dtype(), width, "own_keys_grad");
    let count = p.batch * p.lq;
    let args = args![dkv, d_qkv, count as i64, p.lk - p.lq, p.lq, width / unit];
    c.launch(&SOURCE_KEYS, 0, name, (count.div_ceil(COPIED_ROWS), 1, 1), 32 * COPIED_ROWS, 0, args)
}

/// The gradient of shared keys: for each row the sum over the examples that see it. `own` more keys follow those in each
/// example of `dkv`.
pub(super) fn shared_keys_grad(
    c: &Cuda,
    p: &Plan,
    dkv: &Tensor,
    own: usize,
    rows: &Rows,
    shape: &[usize],
) -> Result<Tensor> {
    let d_keys = Tensor::cuda(c, shape, dkv.dtype())?;
    let name = by_type!(dkv.dtype(), "shared_keys_grad");
    let keys = p.lk - p.lq;
    let args = args![dkv, &rows.order, &rows.starts, &d_keys, keys, own, p.kv_row];
    let threads = p.kv_row.div_ceil(8).next_multiple_of(32).min(256);
    c.launch(&SOURCE_KEYS, 0, name, (d_keys.len() / p.kv_row, 1, 1), threads, 0, args)?;
    Ok(d_keys)
}
