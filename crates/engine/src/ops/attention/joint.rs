//! Attention of tokens over themselves and over keys that several examples share.

use super::{Plan, bad_shape, check, cuda, head_size, output};
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Error, Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

/// Which row of shared keys each example sees.
#[derive(Clone, Debug)]
pub struct Rows {
    /// u32 \[B\]: the row of each example.
    pub(super) of: Tensor,
    /// u32 \[B\]: the examples, those of row 0 first, each row's in their order.
    pub(super) order: Tensor,
    /// u32 \[R + 1\]: where a row's examples begin in `order`.
    pub(super) starts: Tensor,
}

impl Rows {
    /// Example `e` sees row `of[e]` of `rows`.
    pub fn new(device: &Device, of: &[u32], rows: usize) -> Result<Rows> {
        let wrong = of.iter().find(|r| **r as usize >= rows);
        if let Some(wrong) = wrong {
            return Err(Error::op("rows", format!("an example sees row {wrong}, but there are {rows}")));
        }
        let count = of.len().max(rows);
        ensure!(!of.is_empty() && count < u32::MAX as usize, "rows", "{} examples of {rows} rows", of.len());
        let mut order: Vec<u32> = (0..of.len() as u32).collect();
        order.sort_by_key(|&e| of[e as usize]);
        let starts: Vec<u32> =
            (0..=rows).map(|r| order.partition_point(|&e| (of[e as usize] as usize) < r) as u32).collect();
        Ok(Rows {
            of: Tensor::from_u32(device, &[of.len()], of.to_vec())?,
            order: Tensor::from_u32(device, &[of.len()], order)?,
            starts: Tensor::from_u32(device, &[rows + 1], starts)?,
        })
    }

    /// Examples.
    pub fn examples(&self) -> usize {
        self.of.len()
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }
}

struct Joint {
    qkv: Var,
    keys: Var,
    rows: Rows,
    plan: Plan,
    o: Tensor,
    lse: Option<Tensor>,
}

/// Attention of tokens with `qkv` \[B, N, 3·H·D\] over the keys and values \[C, 2·H·D\] of one row of `keys` \[R, C, 2·H·D\] each,
/// and over themselves. The output is \[B, N, H·D\]. Examples that share a row add up in its gradient.
pub fn joint_attention(tape: &Tape, qkv: &Var, keys: &Var, rows: &Rows, heads: usize) -> Result<Var> {
    let op = "joint_attention";
    check::values(op, "qkv", qkv.value())?;
    check::values(op, "keys", keys.value())?;
    let (&[batch, n, packed], &[count, c, kv_row]) = (qkv.shape(), keys.shape()) else {
        let message =
            format!("qkv {:?} and keys {:?} must be [B, N, 3·H·D] and [R, C, 2·H·D]", qkv.shape(), keys.shape());
        return Err(Error::op(op, message));
    };
    let width = packed / 3;
    let size = head_size(packed, 3, heads);
    if size == 0 {
        return Err(bad_shape(op, "qkv", "[B, N, 3·H·D]", qkv, heads));
    }
    ensure!(
        kv_row == 2 * width,
        op,
        "qkv {:?} and keys {:?} do not go together: keys must be [R, C, {}]",
        qkv.shape(),
        keys.shape(),
        2 * width
    );
    ensure!(
        rows.examples() == batch && rows.count() == count && rows.of.is_beside(qkv.value()),
        op,
        "rows {:?} of {} do not go with qkv {:?} and keys {:?}",
        rows.of,
        rows.count(),
        qkv.shape(),
        keys.shape()
    );
    check::alike(op, qkv.value(), &[keys.value()])?;
    // Shared keys may be copied beside each example's own.
    check::elements(op, &[batch, c + n, kv_row])?;
    let scale = 1.0 / (size as f32).sqrt();
    let plan = Plan { batch, heads, size, lq: n, lk: c + n, prefix: 0, q_row: packed, kv_row, k_at: 0, scale };
    let want_lse = qkv.needs_grad() || keys.needs_grad();
    let (o, lse) = match qkv.value().cuda_device() {
        Some(cuda) => cuda::forward_joint(cuda, &plan, qkv.value(), keys.value(), rows, want_lse)?,
        None => output(&plan, qkv.value(), Some(&join_keys(&plan, qkv.value(), keys.value(), rows)), None, want_lse)?,
    };
    Ok(tape.record(o.clone(), &[qkv, keys], || Joint {
        qkv: qkv.clone(),
        keys: keys.clone(),
        rows: rows.clone(),
        plan,
        o,
        lse,
    }))
}

/// All that each example sees \[B, C + N, 2·H·D\]: its row of `keys`, then its own. It is made again in the backward pass,
/// for it is larger than anything else here.
fn join_keys(p: &Plan, qkv: &Tensor, keys: &Tensor, rows: &Rows) -> Tensor {
    let (qkv, keys, shared) = (qkv.f32s(), keys.f32s(), (p.lk - p.lq) * p.kv_row);
    let mut kv = Buf::scratch(p.batch * p.lk * p.kv_row);
    let examples = kv.chunks_exact_mut(p.lk * p.kv_row).zip(qkv.chunks_exact(p.lq * p.q_row));
    for ((to, qkv), &row) in examples.zip(rows.of.u32s()) {
        let (common, own) = to.split_at_mut(shared);
        common.copy_from_slice(&keys[row as usize * shared..][..shared]);
        let from = qkv.chunks_exact(p.q_row);
        own.chunks_exact_mut(p.kv_row).zip(from).for_each(|(to, from)| to.copy_from_slice(&from[p.q_row / 3..]));
    }
    Tensor::from_buf(kv, &[p.batch, p.lk, p.kv_row])
}

impl Backward for Joint {
    fn name(&self) -> &'static str {
        "joint_attention"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let (p, q) = (&self.plan, self.qkv.value());
        let Some(lse) = &self.lse else {
            return Err(Error::op(self.name(), "the forward pass did not save what its gradient needs"));
        };
        let (want_qkv, want_keys) = (self.qkv.needs_grad(), self.keys.needs_grad());
        if let Some(c) = dy.cuda_device() {
            let inputs = (q, self.keys.value(), &self.rows);
            let (d_qkv, d_keys) = cuda::joint_gradients(c, p, inputs, (&self.o, lse), dy)?;
            if want_qkv {
                grads.give(&self.qkv, d_qkv)?;
            }
            if want_keys {
                grads.give(&self.keys, d_keys)?;
            }
            return Ok(());
        }
        let kv = join_keys(p, q, self.keys.value(), &self.rows);
        let (n, width) = (p.lq, p.heads * p.size);
        let c = p.lk - n;
        let (mut d_qkv, mut dkv) = (Buf::scratch(q.len()), Buf::scratch(kv.len()));
        let saved = super::cpu::Saved { q: q.f32s(), kv: kv.f32s(), mask: None, o: self.o.f32s(), lse: lse.f32s() };
        let target = super::cpu::Target::Apart { q: Some(&mut d_qkv), kv: Some(&mut dkv) };
        super::cpu::backward(p, &saved, dy.f32s(), target);
        let of = |e: usize| &dkv[e * p.lk * p.kv_row..][..p.lk * p.kv_row];
        if want_qkv {
            for (i, to) in d_qkv.chunks_exact_mut(p.q_row).enumerate() {
                to[width..].copy_from_slice(&of(i / n)[(c + i % n) * p.kv_row..][..p.kv_row]);
            }
        }
        let mut d_keys = Buf::scratch(if want_keys { self.keys.value().len() } else { 0 });
        let (order, starts) = (self.rows.order.u32s(), self.rows.starts.u32s());
        for (to, ends) in d_keys.chunks_exact_mut(c * p.kv_row).zip(starts.windows(2)) {
            to.fill(0.0);
            for &e in &order[ends[0] as usize..ends[1] as usize] {
                to.iter_mut().zip(of(e as usize)).for_each(|(to, d)| *to += d);
            }
        }
        if want_qkv {
            grads.give(&self.qkv, Tensor::from_buf(d_qkv, self.qkv.shape()))?;
        }
        if want_keys {
            grads.give(&self.keys, Tensor::from_buf(d_keys, self.keys.shape()))?;
        }
        Ok(())
    }
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    // ([N, C, H, D], rows of shared keys, the row of each example); a row may be seen by several examples, or by none
    let all: &[([usize; 4], usize, &'static [u32])] = match size {
        Size::Tiny => &[([2, 2, 1, 3], 3, &[2, 0, 2]), ([1, 1, 2, 2], 1, &[0])],
        Size::Full => &[
            ([20, 65, 3, 64], 3, &[2, 0, 0, 2, 2]),
            ([1, 1, 1, 64], 1, &[0]),
            ([24, 197, 2, 64], 2, &[1, 1]),
            ([9, 20, 3, 20], 4, &[3, 1, 0]),
            ([5, 7, 3, 5], 2, &[0, 1, 0]),
            ([300, 9, 2, 32], 2, &[1, 0]),
            ([32, 197, 2, 64], 3, &[1, 0, 2]),
            // More heads than a large GPU has blocks for.
            ([17, 112, 8, 64], 2, &[1; 67]),
        ],
    };
    let mut out = Vec::new();
    for &([n, c, h, d], rows, of) in all {
        let label = format!("[{}, {n}, 3·{h}·{d}] over {c} keys of {rows} rows", of.len());
        let case = Case::new("joint_attention", label, move |t, v| {
            joint_attention(t, &v[0], &v[1], &Rows::new(&v[0].value().device(), of, rows)?, h)
        });
        out.push(case.normal("qkv", Role::Activation, &[of.len(), n, 3 * h * d], 1.0).normal(
            "keys",
            Role::Activation,
            &[rows, c, 2 * h * d],
            1.0,
        ));
    }
    out
}
