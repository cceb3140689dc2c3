//! Attention on the CPU. Scores are made tile by tile (some rows of queries × all keys) in scratch memory that stays in
//! cache, and made again in the backward pass; only each row's log-sum-exp is kept. Tiles depend on the shape alone, so
//! the bits of a result do not depend on the number of threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use super::Plan;
use crate::cpu::math::{dot, exp, max, simd, sum};
use crate::cpu::matmul::{matmul, n, t};
use crate::cpu::par;
use crate::cpu::pool::Buf;

/// Most rows of queries in a tile: enough for long runs in the products, few enough to share out one short sequence.
const TILE_ROWS: usize = 72;
/// Most scores in a tile (256 KiB), so that it stays in the second-level cache.
const TILE: usize = 1 << 16;
/// Floats in the widest vector register. Rows of scores are padded to it, so that loops over them have no remainder.
const LANES: usize = 16;

fn pad(keys: usize) -> usize {
    keys.next_multiple_of(LANES)
}

/// Rows of a tile: as even as possible, for balance.
fn tile_rows(p: &Plan) -> usize {
    let most = (TILE / pad(p.lk)).clamp(8, TILE_ROWS);
    p.lq.div_ceil(p.lq.div_ceil(most))
}

/// dst \[cols, stride pad(rows)\] = srcᵀ, zero in the padding.
fn transpose(src: &[f32], stride: usize, rows: usize, cols: usize, dst: &mut [f32]) {
    let ld = pad(rows);
    simd(
        #[inline(always)]
        || {
            for first in (0..rows).step_by(LANES) {
                let src = &src[first * stride..];
                let have = (rows - first).min(LANES);
                for c in 0..cols {
                    let to = &mut dst[c * ld + first..][..LANES];
                    if have == LANES {
                        for (l, to) in to.iter_mut().enumerate() {
                            *to = src[l * stride + c];
                        }
                    } else {
                        for (l, to) in to.iter_mut().enumerate() {
                            *to = if l < have { src[l * stride + c] } else { 0.0 };
                        }
                    }
                }
            }
        },
    );
}

impl Plan {
    /// Cut a range of queries into pieces that see the same keys, with the number of those keys.
    fn pieces(&self, rows: Range<usize>) -> [(Range<usize>, usize); 2] {
        let cut = self.prefix.clamp(rows.start, rows.end);
        [(rows.start..cut, self.prefix.min(self.lk)), (cut..rows.end, self.lk)]
    }

    /// Elementary operations of one product per query and head.
    fn row_work(&self) -> usize {
        self.lk * self.size / 4
    }
}

/// Where one (example, head) lies in the inputs.
struct Head<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    /// One entry per key; nonzero: may be attended to.
    mask: Option<&'a [u32]>,
}

impl<'a> Head<'a> {
    fn new(p: &Plan, q: &'a [f32], kv: &'a [f32], mask: Option<&'a [u32]>, b: usize, h: usize) -> Head<'a> {
        let (q_at, kv_at) = (b * p.lq * p.q_row + h * p.size, b * p.lk * p.kv_row + h * p.size);
        Head {
            q: &q[q_at..],
            k: &kv[kv_at + p.k_at..],
            v: &kv[kv_at + p.v_at()..],
            mask: mask.map(|m| &m[b * p.lk..][..p.lk]),
        }
    }

    /// Whether any of the first `keys` keys may be attended to.
    fn sees_any(&self, keys: usize) -> bool {
        keys > 0 && self.mask.is_none_or(|m| m[..keys].iter().any(|&x| x != 0))
    }

    /// s \[rows, pad(keys)\] = scale·q·kᵀ, −∞ where the mask forbids and in the padding. `kt` holds all keys, transposed.
    fn scores(&self, p: &Plan, rows: &Range<usize>, keys: usize, kt: &[f32], s: &mut [f32]) {
        let (q, width) = (n(&self.q[rows.start * p.q_row..], p.q_row), pad(keys));
        matmul((rows.len(), width, p.size), p.scale, q, n(kt, pad(p.lk)), false, s, width, true);
        for s in s.chunks_exact_mut(width) {
            s[keys..].fill(f32::NEG_INFINITY);
            if let Some(mask) = self.mask {
                s.iter_mut().zip(mask).for_each(|(s, &m)| *s = if m == 0 { f32::NEG_INFINITY } else { *s });
            }
        }
    }
}

/// o \[B, Lq, H·D\]; lse \[B, Lq, H\], +∞ for a query that sees no key (so that exp(s − lse) is 0 in the backward pass).
pub(super) fn forward(p: &Plan, q: &[f32], kv: &[f32], mask: Option<&[u32]>, o: &mut [f32], lse: &mut [f32]) {
    let (heads, width) = (p.heads, p.heads * p.size);
    let tile = tile_rows(p);
    if par::is_tiny(p.batch * p.lq * heads * p.row_work()) {
        for (b, (o, lse)) in o.chunks_mut(p.lq * width).zip(lse.chunks_mut(p.lq * heads)).enumerate() {
            forward_rows(p, q, kv, mask, b, 0, tile, o, lse);
        }
        return;
    }
    // A task is a run of tiles of one example, all heads: its output lies in one piece. The more tiles in a task, the
    // less often keys are transposed.
    let runs = (rayon::current_num_threads() * 4).div_ceil(p.batch);
    let rows = p.lq.div_ceil(tile).div_ceil(runs) * tile;
    let examples = o.par_chunks_mut(p.lq * width).zip(lse.par_chunks_mut(p.lq * heads)).enumerate();
    examples.for_each(|(b, (o, lse))| {
        let tasks = o.par_chunks_mut(rows * width).zip(lse.par_chunks_mut(rows * heads)).enumerate();
        tasks.for_each(|(i, (o, lse))| forward_rows(p, q, kv, mask, b, i * rows, tile, o, lse));
    });
}

/// Queries from `first` of example `b`; o and lse hold those rows.
fn forward_rows(
    p: &Plan,
    q: &[f32],
    kv: &[f32],
    mask: Option<&[u32]>,
    b: usize,
    first: usize,
    tile: usize,
    o: &mut [f32],
    lse: &mut [f32],
) {
    let (heads, size, width) = (p.heads, p.size, p.heads * p.size);
    let rows = lse.len() / heads;
    let mut scratch = Buf::scratch((size + tile) * pad(p.lk));
    let (kt, s) = scratch.split_at_mut(size * pad(p.lk));
    for h in 0..heads {
        let head = Head::new(p, q, kv, mask, b, h);
        transpose(head.k, p.kv_row, p.lk, size, kt);
        for from in (0..rows).step_by(tile) {
            for (rows, keys) in p.pieces(first + from..first + rows.min(from + tile)) {
                let (at, count) = (rows.start - first, rows.len());
                if count == 0 {
                    continue;
                }
                let (o, lse) = (&mut o[at * width + h * size..], &mut lse[at * heads + h..]);
                if !head.sees_any(keys) {
                    for r in 0..count {
                        o[r * width..][..size].fill(0.0);
                        lse[r * heads] = f32::INFINITY;
                    }
                    continue;
                }
                let s = &mut s[..count * pad(keys)];
                head.scores(p, &rows, keys, kt, s);
                let mut inverse = [0.0; TILE_ROWS];
                simd(
                    #[inline(always)]
                    || {
                        for (r, s) in s.chunks_exact_mut(pad(keys)).enumerate() {
                            let top = max(s);
                            s.iter_mut().for_each(|s| *s = exp(*s - top));
                            let sum = sum(s);
                            lse[r * heads] = top + sum.ln();
                            inverse[r] = 1.0 / sum;
                        }
                    },
                );
                matmul((count, size, keys), 1.0, n(s, pad(keys)), n(head.v, p.kv_row), false, o, width, true);
                simd(
                    #[inline(always)]
                    || {
                        for (r, inverse) in inverse[..count].iter().enumerate() {
                            o[r * width..][..size].iter_mut().for_each(|o| *o *= inverse);
                        }
                    },
                );
            }
        }
    }
}

/// Gradients to write, in the layout of their inputs.
pub(super) enum Target<'a> {
    /// Queries, keys and values in one tensor.
    Packed(&'a mut [f32]),
    /// Queries, and keys with values; either may be unwanted.
    Apart { q: Option<&'a mut [f32]>, kv: Option<&'a mut [f32]> },
}

/// A gradient tensor, one part per example. Heads of an example interleave in memory, so a task locks the part for the
/// moment in which it copies its head into it.
struct Parts<'a>(Vec<Mutex<&'a mut [f32]>>);

impl<'a> Parts<'a> {
    fn new(all: &'a mut [f32], per_example: usize) -> Parts<'a> {
        Parts(all.chunks_exact_mut(per_example).map(Mutex::new).collect())
    }

    /// Copy `blocks` (rows of `size`, and the column where they go) into example `b`, rows of `stride`.
    fn store(&self, b: usize, stride: usize, size: usize, blocks: &[(&[f32], usize)]) {
        let mut to = self.0[b].lock().unwrap_or_else(PoisonError::into_inner);
        for (rows, at) in blocks {
            for (row, to) in rows.chunks_exact(size).zip(to.chunks_exact_mut(stride)) {
                to[*at..at + size].copy_from_slice(row);
            }
        }
    }
}

/// What the forward pass left: its inputs and results.
pub(super) struct Saved<'a> {
    pub q: &'a [f32],
    pub kv: &'a [f32],
    pub mask: Option<&'a [u32]>,
    pub o: &'a [f32],
    pub lse: &'a [f32],
}

/// With P = exp(S − lse), S = scale·Q·Kᵀ, δ = Σ o·do by row: dV = Pᵀ·dO, dP = dO·Vᵀ, dS = scale·P·(dP − δ),
/// dQ = dS·K, dK = dSᵀ·Q.
pub(super) fn backward(p: &Plan, saved: &Saved, d_o: &[f32], target: Target) {
    let q_part = p.lq * p.q_row;
    let (dq, dkv, packed) = match target {
        Target::Packed(all) => (Some(Parts::new(all, q_part)), None, true),
        Target::Apart { q, kv } => {
            (q.map(|q| Parts::new(q, q_part)), kv.map(|kv| Parts::new(kv, p.lk * p.kv_row)), false)
        }
    };
    let (want_q, want_kv) = (dq.is_some(), packed || dkv.is_some());
    let tile = tile_rows(p);
    let (keys, ld) = (p.lk * p.size, pad(p.lk));
    let lens = [p.lq * p.size, keys, keys, p.size * ld, p.size * ld, tile * ld, tile * ld];
    let task = |i: usize| {
        let (b, h) = (i / p.heads, i % p.heads);
        let mut scratch = Buf::scratch(lens.iter().sum());
        let mut rest = &mut scratch[..];
        let [gq, gk, gv, kt, vt, s, ds] = lens.map(|l| rest.split_off_mut(..l).unwrap_or_default());
        head_backward(p, saved, d_o, (b, h), tile, (want_q, want_kv), gq, gk, gv, kt, vt, s, ds);
        if let Some(to) = &dq {
            to.store(b, p.q_row, p.size, &[(gq, h * p.size)]);
        }
        if let (Some(to), true) = (dkv.as_ref().or(dq.as_ref()), want_kv) {
            to.store(b, p.kv_row, p.size, &[(gk, p.k_at + h * p.size), (gv, p.v_at() + h * p.size)]);
        }
    };
    let tasks = p.batch * p.heads;
    if par::is_tiny(tasks * p.lq * p.row_work() * 2) {
        (0..tasks).for_each(task);
    } else {
        (0..tasks).into_par_iter().for_each(task);
    }
}

/// One (example, head): gradients gq \[Lq, D\], gk and gv \[Lk, D\]; the rest is scratch: keys and values transposed, a tile of
/// scores and one of their gradients.
fn head_backward(
    p: &Plan,
    saved: &Saved,
    d_o: &[f32],
    (b, h): (usize, usize),
    tile: usize,
    (want_q, want_kv): (bool, bool),
    gq: &mut [f32],
    gk: &mut [f32],
    gv: &mut [f32],
    kt: &mut [f32],
    vt: &mut [f32],
    s: &mut [f32],
    ds: &mut [f32],
) {
    let (heads, size, width) = (p.heads, p.size, p.heads * p.size);
    let head = Head::new(p, saved.q, saved.kv, saved.mask, b, h);
    let o_at = b * p.lq * width + h * size;
    let (o, d_o, lse) = (&saved.o[o_at..], &d_o[o_at..], &saved.lse[b * p.lq * heads + h..]);
    if want_kv {
        gk.fill(0.0);
        gv.fill(0.0);
    }
    transpose(head.k, p.kv_row, p.lk, size, kt);
    transpose(head.v, p.kv_row, p.lk, size, vt);
    for first in (0..p.lq).step_by(tile) {
        for (rows, keys) in p.pieces(first..p.lq.min(first + tile)) {
            let (at, count) = (rows.start, rows.len());
            let gq = &mut gq[at * size..(at + count) * size];
            if count == 0 || !head.sees_any(keys) {
                gq.fill(0.0);
                continue;
            }
            let ld = pad(keys);
            let (s, ds) = (&mut s[..count * ld], &mut ds[..count * ld]);
            let d_o = &d_o[at * width..];
            head.scores(p, &rows, keys, kt, s);
            matmul((count, ld, size), 1.0, n(d_o, width), n(vt, pad(p.lk)), false, ds, ld, true);
            simd(
                #[inline(always)]
                || {
                    for (r, (s, ds)) in s.chunks_exact_mut(ld).zip(ds.chunks_exact_mut(ld)).enumerate() {
                        let (o, d_o) = (&o[(at + r) * width..][..size], &d_o[r * width..][..size]);
                        let delta = dot(o, d_o);
                        let lse = lse[(at + r) * heads];
                        for (s, ds) in s.iter_mut().zip(ds) {
                            *s = exp(*s - lse);
                            *ds = *s * (*ds - delta) * p.scale;
                        }
                    }
                },
            );
            if want_q {
                matmul((count, size, keys), 1.0, n(ds, ld), n(head.k, p.kv_row), false, gq, size, true);
            }
            if want_kv {
                let q = n(&head.q[at * p.q_row..], p.q_row);
                matmul((keys, size, count), 1.0, t(s, ld), n(d_o, width), true, gv, size, true);
                matmul((keys, size, count), 1.0, t(ds, ld), q, true, gk, size, true);
            }
        }
    }
}
