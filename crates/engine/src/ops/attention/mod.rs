//! Attention: softmax(scale·Q·Kᵀ)·V by head, scale 1/√D, without keeping the scores. [`attention`] is self-attention over
//! packed queries, keys and values; [`cross_attention`] lets queries look at other keys, [`joint_attention`] at their own and
//! at keys that examples share. A query that may not look at any key gives 0, with zero gradients.

mod cpu;
mod cuda;
mod joint;
mod keys;
mod launch;
#[cfg(test)]
mod tests;

pub(crate) use cuda::{
    GROUP_SIZES, SIZES, SOURCE, SOURCE_BWD, SOURCE_F32, SOURCE_FEW, SOURCE_GROUP, SOURCE_GROUP_BWD, SOURCE_PAD,
    SOURCE_SHORT,
};
pub use joint::{Rows, joint_attention};
pub(crate) use keys::SOURCE_KEYS;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Error, Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

/// Which keys a query may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// u32 \[B, L\], nonzero where the key may be looked at; `None`: everywhere.
    pub keys: Option<&'a Tensor>,
    /// Queries before this position see only keys before it, later ones see all keys; 0: no such limit.
    pub prefix: usize,
}

/// Dimensions and strides, in elements.
#[derive(Clone, Copy, Debug)]
struct Plan {
    batch: usize,
    heads: usize,
    /// D, the size of a head.
    size: usize,
    lq: usize,
    lk: usize,
    prefix: usize,
    /// From one query to the next; queries of an example start at its beginning.
    q_row: usize,
    /// From one key to the next.
    kv_row: usize,
    /// Where keys start in a row; values follow H·D later.
    k_at: usize,
    scale: f32,
}

impl Plan {
    /// Where values start in a row.
    fn v_at(&self) -> usize {
        self.k_at + self.heads * self.size
    }
}

struct Attention {
    q: Var,
    /// `None`: keys and values lie in `q`, packed.
    kv: Option<Var>,
    mask: Option<Tensor>,
    plan: Plan,
    o: Tensor,
    /// Log-sum-exp of the scores of each query and head: \[B, Lq, H\] on the CPU, \[B, H, Lq\] on the GPU.
    lse: Option<Tensor>,
}

/// Self-attention over `qkv` \[B, L, 3·H·D\] (or \[B, L, 3, H, D\]), packed as a linear layer of three times the width
/// yields it: queries, keys, values, each by head. The output is \[B, L, H·D\].
pub fn attention(tape: &Tape, qkv: &Var, heads: usize, mask: &Mask) -> Result<Var> {
    check::values("attention", "qkv", qkv.value())?;
    let (batch, len, row) = match *qkv.shape() {
        [b, l, row] => (b, l, row),
        [b, l, 3, h, d] if h == heads => (b, l, 3 * h * d),
        _ => return Err(bad_shape("attention", "qkv", "[B, L, 3·H·D] or [B, L, 3, H, D]", qkv, heads)),
    };
    let size = head_size(row, 3, heads);
    if size == 0 {
        return Err(bad_shape("attention", "qkv", "[B, L, 3·H·D]", qkv, heads));
    }
    ensure!(
        mask.prefix <= len,
        "attention",
        "a prefix of {} is longer than the sequence of qkv {:?}",
        mask.prefix,
        qkv.shape()
    );
    let plan = Plan {
        batch,
        heads,
        size,
        lq: len,
        lk: len,
        prefix: mask.prefix,
        q_row: row,
        kv_row: row,
        k_at: row / 3,
        scale: 1.0 / (size as f32).sqrt(),
    };
    forward(tape, "attention", plan, qkv, None, mask.keys)
}

/// Attention of queries `q` \[B, Lq, H·D\] over other tokens' keys and values `kv` \[B, Lk, 2·H·D\] (keys, then values).
/// `keys` is u32 \[B, Lk\], nonzero where a key may be looked at. The output is \[B, Lq, H·D\].
pub fn cross_attention(tape: &Tape, q: &Var, kv: &Var, heads: usize, keys: Option<&Tensor>) -> Result<Var> {
    check::values("cross_attention", "q", q.value())?;
    check::values("cross_attention", "kv", kv.value())?;
    let (&[batch, lq, width], &[kv_batch, lk, kv_row]) = (q.shape(), kv.shape()) else {
        let message = format!("q {:?} and kv {:?} must be [B, Lq, H·D] and [B, Lk, 2·H·D]", q.shape(), kv.shape());
        return Err(Error::op("cross_attention", message));
    };
    ensure!(
        batch == kv_batch && kv_row == 2 * width,
        "cross_attention",
        "q {:?} and kv {:?} do not go together: kv must be [{batch}, Lk, {}]",
        q.shape(),
        kv.shape(),
        2 * width
    );
    let size = head_size(width, 1, heads);
    if size == 0 {
        return Err(bad_shape("cross_attention", "q", "[B, Lq, H·D]", q, heads));
    }
    check::alike("cross_attention", q.value(), &[kv.value()])?;
    let scale = 1.0 / (size as f32).sqrt();
    let plan = Plan { batch, heads, size, lq, lk, prefix: 0, q_row: width, kv_row, k_at: 0, scale };
    forward(tape, "cross_attention", plan, q, Some(kv), keys)
}

/// D where rows of `width` hold `parts` times `heads` heads of it, else 0.
fn head_size(width: usize, parts: usize, heads: usize) -> usize {
    let count = heads.checked_mul(parts).filter(|count| *count > 0 && width.is_multiple_of(*count));
    count.map_or(0, |count| width / count)
}

fn bad_shape(op: &'static str, name: &str, want: &str, got: &Var, heads: usize) -> Error {
    Error::op(op, format!("{name} must be {want} with {heads} heads, it is {:?}", got.shape()))
}

fn forward(tape: &Tape, op: &'static str, plan: Plan, q: &Var, kv: Option<&Var>, mask: Option<&Tensor>) -> Result<Var> {
    let p = &plan;
    ensure!(
        p.batch > 0 && p.lq > 0 && p.lk > 0,
        op,
        "a batch of {} with {} queries and {} keys has nothing to compute",
        p.batch,
        p.lq,
        p.lk
    );
    if let Some(m) = mask {
        ensure!(
            m.dtype() == DType::U32 && m.shape() == [p.batch, p.lk] && m.is_beside(q.value()),
            op,
            "the mask of keys must be u32 [{}, {}] on {}, it is {m:?}",
            p.batch,
            p.lk,
            q.value().device()
        );
    }
    let want_lse = q.needs_grad() || kv.is_some_and(Var::needs_grad);
    let (o, lse) = output(p, q.value(), kv.map(Var::value), mask, want_lse)?;
    let inputs = [q, kv.unwrap_or(q)];
    Ok(tape.record(o.clone(), &inputs, || Attention {
        q: q.clone(),
        kv: kv.cloned(),
        mask: mask.cloned(),
        plan,
        o,
        lse,
    }))
}

/// The output and the log-sum-exp of scores, which a GPU only writes if `want_lse`.
fn output(
    p: &Plan,
    q: &Tensor,
    kv: Option<&Tensor>,
    mask: Option<&Tensor>,
    want_lse: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    if let Some(c) = q.cuda_device() {
        return cuda::forward(c, p, q, kv, mask, want_lse);
    }
    let width = p.heads * p.size;
    let (mut o, mut lse) = (Buf::scratch(p.batch * p.lq * width), Buf::scratch(p.batch * p.lq * p.heads));
    cpu::forward(p, q.f32s(), kv.unwrap_or(q).f32s(), mask.map(Tensor::u32s), &mut o, &mut lse);
    let lse = Tensor::from_buf(lse, &[p.batch, p.lq, p.heads]);
    Ok((Tensor::from_buf(o, &[p.batch, p.lq, width]), Some(lse)))
}

impl Backward for Attention {
    fn name(&self) -> &'static str {
        if self.kv.is_some() { "cross_attention" } else { "attention" }
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let Some(lse) = &self.lse else {
            return Err(Error::op(self.name(), "the forward pass did not save what its gradient needs"));
        };
        if let Some(c) = dy.cuda_device() {
            let (q, kv) = (self.q.value(), self.kv.as_ref().map(Var::value));
            let inputs = cuda::Inputs { plan: &self.plan, q, kv, o: &self.o, lse, mask: self.mask.as_ref() };
            let want_kv = self.kv.as_ref().is_some_and(Var::needs_grad);
            let (dq, dkv) = cuda::gradients(c, &inputs, dy, self.q.needs_grad(), want_kv)?;
            if let Some(dq) = dq {
                grads.give(&self.q, dq)?;
            }
            if let (Some(var), Some(dkv)) = (&self.kv, dkv) {
                grads.give(var, dkv)?;
            }
            return Ok(());
        }
        let saved = cpu::Saved {
            q: self.q.value().f32s(),
            kv: self.kv.as_ref().unwrap_or(&self.q).value().f32s(),
            mask: self.mask.as_ref().map(Tensor::u32s),
            o: self.o.f32s(),
            lse: lse.f32s(),
        };
        let fresh = |v: &Var| v.needs_grad().then(|| Buf::scratch(v.value().len()));
        let (mut q, mut kv) = (fresh(&self.q), self.kv.as_ref().and_then(fresh));
        let target = match (&self.kv, &mut q) {
            (None, Some(q)) => cpu::Target::Packed(q),
            (None, None) => return Ok(()),
            (Some(_), q) => cpu::Target::Apart { q: q.as_deref_mut(), kv: kv.as_deref_mut() },
        };
        cpu::backward(&self.plan, &saved, dy.f32s(), target);
        if let Some(q) = q {
            grads.give(&self.q, Tensor::from_buf(q, self.q.shape()))?;
        }
        if let (Some(var), Some(kv)) = (&self.kv, kv) {
            grads.give(var, Tensor::from_buf(kv, var.shape()))?;
        }
        Ok(())
    }
}

/// 1 for keys that may be looked at: every third is hidden, and `hidden` examples hide all.
fn padding(batch: usize, len: usize, hidden: usize) -> Tensor {
    let allowed = |i: usize| (i / len >= hidden && (i % len) % 3 != 2) as u32;
    match Tensor::from_u32(&crate::Device::Cpu, &[batch, len], (0..batch * len).map(allowed).collect()) {
        Ok(t) => t,
        Err(e) => unreachable!("the length is that of the shape: {e}"),
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    // (B, L, H, D, prefix, whether keys are masked)
    let own: &[(usize, usize, usize, usize, usize, bool)] = match size {
        Size::Tiny => &[(2, 3, 2, 2, 0, false), (2, 4, 1, 3, 2, true), (1, 1, 1, 1, 0, false)],
        Size::Full => &[
            (1, 1, 1, 64, 0, false),
            (300, 2, 12, 64, 0, false),
            (5, 4, 3, 32, 2, true),
            (3, 3, 2, 96, 0, true),
            (2, 4, 3, 128, 3, false),
            (2, 197, 3, 64, 0, false),
            (3, 65, 3, 64, 0, true),
            (2, 65, 4, 16, 0, false),
            (2, 89, 3, 64, 65, false),
            (2, 131, 2, 32, 17, true),
            (2, 65, 2, 96, 64, true),
            (1, 197, 2, 128, 0, true),
            (2, 70, 2, 128, 33, false),
            (3, 33, 3, 20, 9, true),
            (2, 17, 2, 5, 0, false),
            (1, 300, 1, 32, 0, false),
            (2, 100, 2, 64, 0, false),
            (1, 256, 2, 64, 100, true),
            // More heads than blocks on a large GPU: blocks go on to a second one, after one round of queries or several.
            (200, 5, 16, 32, 0, true),
            (35, 129, 4, 32, 0, false),
            (45, 197, 3, 64, 0, false),
            // By warpgroups: no keys, a few and nearly a whole part of 64 left over; at 256 the backward pass goes another way.
            (2, 192, 2, 64, 0, false),
            (2, 229, 3, 64, 0, false),
            (1, 250, 2, 64, 0, false),
            (1, 256, 2, 64, 0, false),
        ],
    };
    // (B, Lq, Lk, H, D, whether keys are masked)
    let other: &[(usize, usize, usize, usize, usize, bool)] = match size {
        Size::Tiny => &[(2, 2, 3, 2, 2, false), (2, 3, 2, 1, 3, true)],
        Size::Full => &[
            (2, 24, 65, 3, 64, false),
            (3, 2, 4, 5, 20, true),
            (2, 4, 1, 3, 64, false),
            (2, 1, 197, 3, 64, true),
            (3, 197, 1, 2, 32, false),
            (2, 65, 150, 2, 96, true),
            (1, 130, 66, 2, 128, false),
            (2, 24, 65, 4, 16, true),
            (3, 20, 85, 2, 64, false),
            (1, 85, 256, 2, 64, true),
            (1, 300, 20, 2, 64, false),
            // A third head for some multiprocessors: the kernels by warpgroups use each place in shared memory again.
            (34, 130, 129, 8, 64, false),
            (23, 66, 150, 6, 64, false),
            (34, 20, 70, 16, 64, false),
        ],
    };
    let mut out = Vec::new();
    for &(b, l, h, d, prefix, masked) in own {
        let label = format!("[{b}, {l}, 3·{h}·{d}] prefix {prefix} masked {masked}");
        let case = Case::new("attention", label, move |t, v| {
            let keys = v.get(1).map(|m| m.value());
            attention(t, &v[0], h, &Mask { keys, prefix })
        })
        .normal("qkv", Role::Activation, &[b, l, 3 * h * d], 1.0);
        out.push(if masked { case.data("mask", padding(b, l, b / 2)) } else { case });
    }
    for &(b, lq, lk, h, d, masked) in other {
        let label = format!("[{b}, {lq}, {h}·{d}] over {lk} keys, masked {masked}");
        let case = Case::new("cross_attention", label, move |t, v| {
            cross_attention(t, &v[0], &v[1], h, v.get(2).map(|m| m.value()))
        })
        .normal("q", Role::Activation, &[b, lq, h * d], 1.0)
        .normal("kv", Role::Activation, &[b, lk, 2 * h * d], 1.0);
        out.push(if masked { case.data("mask", padding(b, lk, b / 2)) } else { case });
    }
    out.extend(joint::cases(size));
    out
}
