//! Attention on the GPU.

use super::keys::{join_keys, own_keys_grad, shared_keys_grad};
use super::launch::{Forward, GROUP_ROUND, Group, Short, WARPS};
use super::{Plan, Rows};
use crate::cuda::{Arg, Cuda, Source, TileMap, Tiles, args, by_type};
use crate::error::{Result, ensure};
use crate::tensor::{DType, Tensor};

/// A kernel file with what the kernels for bf16 share before it.
macro_rules! tiled {
    ($($before:literal),*; $file:literal) => {
        Source { file: $file, code: concat!(include_str!("tiles.cu"), $(include_str!($before),)* include_str!($file)) }
    };
}

pub(crate) static SOURCE: Source = tiled!(; "attention.cu");
pub(crate) static SOURCE_FEW: Source = tiled!(; "attention_few.cu");
pub(crate) static SOURCE_BWD: Source = tiled!(; "attention_bwd.cu");
pub(crate) static SOURCE_SHORT: Source = tiled!("rounds.cu"; "attention_short.cu");
pub(crate) static SOURCE_GROUP: Source = tiled!("wgmma.cu", "bulk.cu"; "attention_group.cu");
pub(crate) static SOURCE_GROUP_BWD: Source = tiled!("wgmma.cu", "bulk.cu"; "attention_group_bwd.cu");
pub(crate) static SOURCE_F32: Source = Source { file: "attention_f32.cu", code: include_str!("attention_f32.cu") };
pub(crate) static SOURCE_PAD: Source = Source { file: "pad.cu", code: include_str!("pad.cu") };

/// Head sizes that the kernels are compiled for.
pub(crate) const SIZES: [u32; 4] = [32, 64, 96, 128];
/// And those by warpgroups.
pub(crate) const GROUP_SIZES: [u32; 1] = [64];
/// The grid's second and third axis end here.
const MAX_GRID: usize = 65_535;
/// Enough blocks for any chip; the kernel loops over what is left.
const MAX_PAD_BLOCKS: usize = 1 << 16;

/// Blocks of the kernels in f32: 32 rows, no dynamic shared memory.
const F32_ROWS: usize = 32;
const THREADS: usize = 32 * WARPS;
const DELTA_ROWS: usize = 64;
const DELTA_THREADS: usize = 256;

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

/// What every kernel takes: H, Lq, Lk, q_batch, q_row, kv_batch, kv_row, prefix, scale.
fn dimensions(p: &Plan) -> [Arg; 9] {
    own_dimensions(p, p.lk)
}

/// The same where only the last `own` of the keys lie in the tensor that has them.
fn own_dimensions(p: &Plan, own: usize) -> [Arg; 9] {
    let [q_batch, q_row, kv_batch, kv_row] = [p.lq * p.q_row, p.q_row, own * p.kv_row, p.kv_row].map(|x| x as i64);
    *args![p.heads, p.lq, p.lk, q_batch, q_row, kv_batch, kv_row, p.prefix, p.scale]
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
    let (o, lse) = results(c, &p, q.dtype(), want_lse)?;
    let (k, v) = (at(&kv, p.k_at), at(&kv, p.v_at()));
    let mut all = args![&q, k, v, &o, lse.as_ref(), mask].to_vec();
    all.extend(dimensions(&p));
    if q.dtype() == DType::F32 {
        let grid = (p.lq.div_ceil(F32_ROWS), p.heads, p.batch);
        c.launch(&SOURCE_F32, p.size as u32, "attention_fwd_f32", grid, THREADS, 0, &all)?;
    } else if few(&p) {
        launch_few(c, &p, "attention_fwd_few", all)?;
    } else {
        let layout = QkvLayout { q: q.ptr(), k, v, own: p.lk, common: None };
        match group_of(c, mask, &p, Group::forward) {
            Some(group) => launch_group(c, &p, &group, &layout, &o, lse.as_ref())?,
            None => launch_forward(c, &p, all, None)?,
        }
    }
    Ok((resized(c, &o, p.size, plan.size)?, lse))
}

/// As [`forward`], for tokens that also see a row of `keys`. In bf16 nothing is copied.
pub(super) fn forward_joint(
    c: &Cuda,
    p: &Plan,
    qkv: &Tensor,
    keys: &Tensor,
    rows: &Rows,
    want_lse: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    if qkv.dtype() == DType::F32 || padded(p)?.size != p.size {
        return forward(c, p, qkv, Some(&join_keys(c, p, qkv, keys, rows)?), None, want_lse);
    }
    let (o, lse) = results(c, p, qkv.dtype(), want_lse)?;
    // The kernel's k and v are the tokens' own.
    let own = Plan { kv_row: p.q_row, k_at: p.heads * p.size, ..*p };
    let (k, v) = (at(qkv, own.k_at), at(qkv, own.v_at()));
    if let Some(group) = group_of(c, None, &own, Group::forward) {
        let layout = QkvLayout { q: qkv.ptr(), k, v, own: p.lq, common: Some((keys, rows)) };
        launch_group(c, &own, &group, &layout, &o, lse.as_ref())?;
    } else {
        let mut all = args![qkv, k, v, &o, lse.as_ref(), None::<&Tensor>].to_vec();
        all.extend(own_dimensions(&own, p.lq));
        launch_forward(c, p, all, Some((keys, rows)))?;
    }
    Ok((o, lse))
}

/// Whether tokens are so few that a head of an example fits into the registers of some lanes.
fn few(p: &Plan) -> bool {
    const FEW: usize = 4; // as in attention_few.cu
    p.lq <= FEW && p.lk <= FEW
}

fn launch_few(c: &Cuda, p: &Plan, name: &'static str, mut args: Vec<Arg>) -> Result<()> {
    let (items, lanes) = (p.batch * p.heads, (p.size / 8).next_power_of_two());
    args.extend_from_slice(args![items]);
    c.launch(&SOURCE_FEW, p.size as u32, name, (items.div_ceil(THREADS / lanes), 1, 1), THREADS, 0, &args)
}

/// How warpgroups do it (wgmma and TMA), on chips that have such products; they take neither mask nor prefix.
fn group_of(
    c: &Cuda,
    mask: Option<&Tensor>,
    p: &Plan,
    rule: fn(usize, usize, usize, usize) -> Option<Group>,
) -> Option<Group> {
    let info = c.info();
    let able = info.capability == (9, 0) && mask.is_none() && p.prefix == 0;
    rule(p.size, p.lq, p.lk, info.shared_per_block).filter(|_| able)
}

/// Memory layout of queries, keys and values: the last `own` keys at `k` and `v`, the others in a row of shared keys.
struct QkvLayout<'a> {
    q: u64,
    k: u64,
    v: u64,
    own: usize,
    common: Option<(&'a Tensor, &'a Rows)>,
}

impl QkvLayout<'_> {
    /// TMA maps for queries, `query_rows` at a time, and for all keys and values of an example: q, k, v, the shared keys.
    fn maps(&self, c: &Cuda, p: &Plan, query_rows: usize, key_rows: usize) -> Result<[TileMap; 4]> {
        let (columns, count, shared) = (p.heads * p.size, p.batch, p.lk - self.own);
        let (matrix, tile_rows) = (p.lq * p.q_row, query_rows);
        let q = Tiles { ptr: self.q, columns, rows: p.lq, count, row: p.q_row, matrix, tile_rows };
        let (matrix, tile_rows) = (self.own * p.kv_row, key_rows - shared);
        let k = Tiles { ptr: self.k, columns, rows: self.own, count, row: p.kv_row, matrix, tile_rows };
        let v = Tiles { ptr: self.v, ..k };
        // Without shared keys any map will do: it is not read.
        let common = self.common.map_or(q, |(keys, _)| {
            let (row, matrix) = (2 * columns, shared * 2 * columns);
            let (ptr, count) = (keys.ptr(), keys.len() / matrix);
            Tiles { ptr, columns: row, rows: shared, count, row, matrix, tile_rows: shared }
        });
        Ok([c.tile_map(&q)?, c.tile_map(&k)?, c.tile_map(&v)?, c.tile_map(&common)?])
    }
}

fn launch_group(c: &Cuda, p: &Plan, g: &Group, x: &QkvLayout, o: &Tensor, lse: Option<&Tensor>) -> Result<()> {
    let maps = x.maps(c, p, p.lq.next_multiple_of(16), g.key_rows)?;
    let (of, items) = (x.common.map(|c| &c.1.of), p.batch * p.heads);
    let all = args![of, p.lk - x.own, g.key_rows, o, lse, items, p.heads, p.lq, p.lk, p.scale, g.stages];
    launch_heads(c, &SOURCE_GROUP, p, "attention_fwd_group", (g.warps, g.shared), &maps, all)
}

/// Blocks, of so many warps and bytes of shared memory, that take one head of one example after the other: as many as the device
/// holds at once.
fn launch_heads(
    c: &Cuda,
    source: &'static Source,
    p: &Plan,
    name: &'static str,
    (warps, shared): (usize, usize),
    maps: &[TileMap],
    args: &[Arg],
) -> Result<()> {
    let (variant, threads) = (p.size as u32, 32 * warps);
    let blocks = (p.batch * p.heads).min(c.resident_blocks(source, variant, name, threads, shared)?);
    c.launch_mapped(source, variant, name, (blocks, 1, 1), threads, shared, maps, args)
}

/// Room for the output and, if wanted, the log-sum-exp.
fn results(c: &Cuda, p: &Plan, dtype: DType, want_lse: bool) -> Result<(Tensor, Option<Tensor>)> {
    let lse = if want_lse { Some(Tensor::cuda(c, &[p.batch, p.heads, p.lq], DType::F32)?) } else { None };
    Ok((Tensor::cuda(c, &[p.batch, p.lq, p.heads * p.size], dtype)?, lse))
}

fn launch_forward(c: &Cuda, p: &Plan, mut args: Vec<Arg>, common: Option<(&Tensor, &Rows)>) -> Result<()> {
    let f = Forward::new(p.size, p.lq);
    let (keys, of) = (common.map(|c| c.0), common.map(|c| &c.1.of));
    let count = common.map_or(0, |_| p.lk - p.lq);
    args.extend_from_slice(args![f.warp_rows, keys, of, count]);
    let grid = (f.blocks, p.heads, p.batch);
    c.launch(&SOURCE, p.size as u32, "attention_fwd", grid, 32 * f.warps, f.shared, &args)
}

/// Inputs and saved values of a backward pass, with heads of a size that the kernels know.
struct Saved<'a> {
    plan: Plan,
    q: Tensor,
    kv: Tensor,
    o: Tensor,
    d_o: Tensor,
    lse: &'a Tensor,
    mask: Option<&'a Tensor>,
}

impl Saved<'_> {
    /// Arguments for q, k and v.
    fn qkv(&self) -> [Arg; 3] {
        *args![&self.q, at(&self.kv, self.plan.k_at), at(&self.kv, self.plan.v_at())]
    }

    /// Arguments for dk and dv.
    fn dk_dv(&self, dkv: &Tensor) -> [Arg; 2] {
        *args![at(dkv, self.plan.k_at), at(dkv, self.plan.v_at())]
    }

    /// Both gradients of a [`few`] tokens.
    fn few(&self, c: &Cuda, dq: &Tensor, dkv: &Tensor) -> Result<()> {
        let mut all = self.qkv().to_vec();
        all.extend_from_slice(args![&self.o, &self.d_o, self.lse, self.mask, dq]);
        all.extend(self.dk_dv(dkv));
        all.extend(dimensions(&self.plan));
        launch_few(c, &self.plan, "attention_bwd_few", all)
    }

    /// Both gradients at once; blocks take one head of one example after the other. `common`: keys that lie elsewhere, and
    /// where each example's gradient of them goes.
    fn short(
        &self,
        c: &Cuda,
        s: &Short,
        dq: &Tensor,
        dkv: &Tensor,
        common: Option<(&Tensor, &Rows, &Tensor)>,
    ) -> Result<()> {
        let p = &self.plan;
        let (own, elsewhere) = self.common(common);
        let name = if s.tiles == 1 { "attention_bwd_short_1" } else { "attention_bwd_short_2" };
        let mut all = self.qkv().to_vec();
        all.extend_from_slice(args![&self.o, &self.d_o, self.lse, self.mask, dq]);
        all.extend(self.dk_dv(dkv));
        all.extend_from_slice(args![p.batch * p.heads]);
        all.extend(own_dimensions(p, own));
        all.extend_from_slice(args![s.block_rows]);
        all.extend(elsewhere);
        launch_heads(c, &SOURCE_SHORT, p, name, (s.warps, s.shared), &[], &all)
    }

    /// How many keys are the tokens' own, and the arguments for those that lie elsewhere.
    fn common(&self, common: Option<(&Tensor, &Rows, &Tensor)>) -> (usize, [Arg; 4]) {
        let count = common.map_or(0, |_| self.plan.lk - self.plan.lq);
        let (keys, of, gradient) = (common.map(|c| c.0), common.map(|c| &c.1.of), common.map(|c| c.2));
        (self.plan.lk - count, *args![keys, of, gradient, count])
    }

    /// As [`Saved::short`], by warpgroups.
    fn group(
        &self,
        c: &Cuda,
        g: &Group,
        dq: &Tensor,
        dkv: &Tensor,
        common: Option<(&Tensor, &Rows, &Tensor)>,
    ) -> Result<()> {
        let p = &self.plan;
        let (own, [_, of, d_common, count]) = self.common(common);
        let (k, v) = (at(&self.kv, p.k_at), at(&self.kv, p.v_at()));
        let layout = QkvLayout { q: self.q.ptr(), k, v, own, common: common.map(|c| (c.0, c.1)) };
        let [q, k, v, shared] = layout.maps(c, p, GROUP_ROUND, g.key_rows)?;
        let (columns, rows, tile_rows) = (p.heads * p.size, p.lq, GROUP_ROUND);
        let like_o = |x: &Tensor| {
            let (row, matrix) = (columns, p.lq * columns);
            c.tile_map(&Tiles { ptr: x.ptr(), columns, rows, count: p.batch, row, matrix, tile_rows })
        };
        let maps = [q, k, v, shared, like_o(&self.o)?, like_o(&self.d_o)?];
        let [heads, lq, lk, q_batch, q_row, kv_batch, kv_row, _, scale] = own_dimensions(p, own);
        let mut all = vec![of, count];
        all.extend_from_slice(args![g.key_rows, self.lse, dq]);
        all.extend(self.dk_dv(dkv));
        all.extend([d_common, (p.batch * p.heads).into(), heads, lq, lk, q_batch, q_row, kv_batch, kv_row, scale]);
        launch_heads(c, &SOURCE_GROUP_BWD, p, "attention_bwd_group", (g.warps, g.shared), &maps, &all)
    }

    /// Any length in bf16: scores are made twice, once for each gradient.
    fn long(&self, c: &Cuda, dq: Option<&Tensor>, dkv: Option<&Tensor>) -> Result<()> {
        let (p, variant) = (&self.plan, self.plan.size as u32);
        let delta = Tensor::cuda(c, &[p.batch, p.heads, p.lq], DType::F32)?;
        if let Some(dq) = dq {
            // Computes delta along the way.
            let grid = (p.lq.div_ceil(if p.size <= 64 { 128 } else { 64 }), p.heads, p.batch);
            let mut all = self.qkv().to_vec();
            all.extend_from_slice(args![&self.o, &self.d_o, self.lse, &delta, self.mask, dq]);
            all.extend(dimensions(p));
            c.launch(&SOURCE_BWD, variant, "attention_bwd_dq_delta", grid, THREADS, 512 * p.size, &all)?;
        } else {
            self.delta(c, &SOURCE_BWD, "attention_delta", &delta)?;
        }
        if let Some(dkv) = dkv {
            let grid = (p.lk.div_ceil(64), p.heads, p.batch);
            let all = self.dk_dv_args(&delta, dkv);
            c.launch(&SOURCE_BWD, variant, "attention_bwd_dkdv", grid, THREADS, 512 * p.size + 1024, &all)?;
        }
        Ok(())
    }

    fn f32(&self, c: &Cuda, dq: Option<&Tensor>, dkv: Option<&Tensor>) -> Result<()> {
        let (p, variant) = (&self.plan, self.plan.size as u32);
        let delta = Tensor::cuda(c, &[p.batch, p.heads, p.lq], DType::F32)?;
        self.delta(c, &SOURCE_F32, "attention_delta_f32", &delta)?;
        let grid = |rows: usize| (rows.div_ceil(F32_ROWS), p.heads, p.batch);
        if let Some(dq) = dq {
            let mut all = self.qkv().to_vec();
            all.extend_from_slice(args![&self.d_o, self.lse, &delta, self.mask, dq]);
            all.extend(dimensions(p));
            c.launch(&SOURCE_F32, variant, "attention_bwd_dq_f32", grid(p.lq), THREADS, 0, &all)?;
        }
        if let Some(dkv) = dkv {
            let all = self.dk_dv_args(&delta, dkv);
            c.launch(&SOURCE_F32, variant, "attention_bwd_dkdv_f32", grid(p.lk), THREADS, 0, &all)?;
        }
        Ok(())
    }

    fn delta(&self, c: &Cuda, source: &'static Source, name: &'static str, delta: &Tensor) -> Result<()> {
        let p = &self.plan;
        let grid = ((p.lq * p.heads).div_ceil(DELTA_ROWS), p.batch, 1);
        let all = args![&self.o, &self.d_o, delta, p.heads, p.lq];
        c.launch(source, p.size as u32, name, grid, DELTA_THREADS, 0, all)
    }

    fn dk_dv_args(&self, delta: &Tensor, dkv: &Tensor) -> Vec<Arg> {
        let mut all = self.qkv().to_vec();
        all.extend_from_slice(args![&self.d_o, self.lse, delta, self.mask]);
        all.extend(self.dk_dv(dkv));
        all.extend(dimensions(&self.plan));
        all
    }
}

/// Inputs and results of the forward pass, in the layout of the op.
pub(super) struct Inputs<'a> {
    pub plan: &'a Plan,
    pub q: &'a Tensor,
    /// `None`: keys and values lie in `q`, packed, and so do their gradients.
    pub kv: Option<&'a Tensor>,
    pub o: &'a Tensor,
    pub lse: &'a Tensor,
    pub mask: Option<&'a Tensor>,
}

/// Gradients of `q` and, if it is there, of `kv`. Where `q` has room for keys and values that lie elsewhere, those parts of
/// its gradient are not written.
pub(super) fn gradients(
    c: &Cuda,
    x: &Inputs,
    dy: &Tensor,
    want_q: bool,
    want_kv: bool,
) -> Result<(Option<Tensor>, Option<Tensor>)> {
    let (plan, p) = (x.plan, padded(x.plan)?);
    let widen = |t: &Tensor| resized(c, t, plan.size, p.size);
    let q = widen(x.q)?;
    let kv = x.kv.map(widen).transpose()?.unwrap_or_else(|| q.clone());
    let saved = Saved { plan: p, q, kv, o: widen(x.o)?, d_o: widen(dy)?, lse: x.lse, mask: x.mask };
    let dtype = saved.q.dtype();

    // Self-attention: one gradient holds all three, and every element of it is written.
    let dq = if want_q { Some(Tensor::cuda(c, saved.q.shape(), dtype)?) } else { None };
    let dkv = match (&dq, x.kv) {
        (Some(dq), None) => Some(dq.clone()),
        (_, Some(_)) if want_kv => Some(Tensor::cuda(c, saved.kv.shape(), dtype)?),
        _ => None,
    };
    let short = Short::new(p.size, p.lq, p.lk, c.info().shared_per_block);
    let group = group_of(c, x.mask, &p, Group::backward);
    match (&dq, &dkv, &short) {
        _ if dtype == DType::F32 => saved.f32(c, dq.as_ref(), dkv.as_ref())?,
        (Some(dq), Some(dkv), _) if few(&p) => saved.few(c, dq, dkv)?,
        (Some(dq), Some(dkv), Some(short)) => match &group {
            Some(group) => saved.group(c, group, dq, dkv, None)?,
            None => saved.short(c, short, dq, dkv, None)?,
        },
        _ => saved.long(c, dq.as_ref(), dkv.as_ref())?,
    }
    let narrow = |g: Tensor, like: &Tensor| resized(c, &g, p.size, plan.size)?.reshape(like.shape());
    let dkv = x.kv.and(dkv).zip(x.kv).map(|(g, kv)| narrow(g, kv)).transpose()?;
    Ok((dq.map(|g| narrow(g, x.q)).transpose()?, dkv))
}

/// Gradients of `qkv` and `keys` in joint attention.
pub(super) fn joint_gradients(
    c: &Cuda,
    p: &Plan,
    (qkv, keys, rows): (&Tensor, &Tensor, &Rows),
    (o, lse): (&Tensor, &Tensor),
    dy: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let dtype = qkv.dtype();
    let short = Short::new(p.size, p.lq, p.lk, c.info().shared_per_block);
    if let Some(short) = short.filter(|_| dtype != DType::F32 && SIZES.contains(&(p.size as u32))) {
        let own = Plan { kv_row: p.q_row, k_at: p.heads * p.size, ..*p };
        let (q, kv) = (qkv.clone(), qkv.clone());
        let saved = Saved { plan: own, q, kv, o: o.clone(), d_o: dy.clone(), lse, mask: None };
        let d_qkv = Tensor::cuda(c, qkv.shape(), dtype)?;
        let d_common = Tensor::cuda(c, &[p.batch, p.lk - p.lq, p.kv_row], dtype)?;
        let common = Some((keys, rows, &d_common));
        match group_of(c, None, &own, Group::backward) {
            Some(group) => saved.group(c, &group, &d_qkv, &d_qkv, common)?,
            None => saved.short(c, &short, &d_qkv, &d_qkv, common)?,
        }
        return Ok((d_qkv, shared_keys_grad(c, p, &d_common, 0, rows, keys.shape())?));
    }
    let kv = join_keys(c, p, qkv, keys, rows)?;
    let inputs = Inputs { plan: p, q: qkv, kv: Some(&kv), o, lse, mask: None };
    let (Some(d_qkv), Some(dkv)) = gradients(c, &inputs, dy, true, true)? else {
        return Err(crate::Error::op("joint_attention", "a gradient is missing"));
    };
    own_keys_grad(c, p, &dkv, &d_qkv)?;
    let d_keys = shared_keys_grad(c, p, &dkv, p.lq, rows, keys.shape())?;
    Ok((d_qkv, d_keys))
}
