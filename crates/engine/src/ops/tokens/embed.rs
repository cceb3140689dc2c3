//! Rows of a table by id. The gradient is a scatter whose sums run in the order of the ids, on both devices, so that it
//! repeats bit for bit.

use super::{check, cpu};
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::cuda::{Cuda, args, by_type};
use crate::device::Device;
use crate::error::{Result, ensure};
use crate::ops::elementwise::add;
use crate::tape::{Backward, Dst, Grads, Tape, Var};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("embed.cu");

/// Ids that occur at most this often are summed by one warp, as in embed.cu.
const LIGHT: usize = 32;
/// Columns of one block in `embed_sum_heavy`, as in embed.cu.
const COLS: usize = 64;

struct Embed {
    table: Var,
    ids: Tensor,
}

/// Rows of `table` \[V, d\] (a parameter) by `ids` (u32, any shape): \[…, d\] in type `dtype`. An id of V or more is an error
/// on the CPU; the GPU, which does not wait to look, gives a row of zeros.
pub fn embed(tape: &Tape, table: &Var, ids: &Tensor, dtype: DType) -> Result<Var> {
    let t = table.value();
    let [v, d] = match *t.shape() {
        [v, d] if v * d > 0 => [v, d],
        _ => return Err(crate::Error::op("embed", format!("the table must be [V, d], it is {:?}", t.shape()))),
    };
    ensure!(t.dtype() == DType::F32, "embed", "the table must be an f32 parameter, it is {t:?}");
    ensure!(ids.len() < i32::MAX as usize && v < i32::MAX as usize, "embed", "{ids:?} into {t:?} is too large");
    ensure!(!ids.is_empty(), "embed", "there are no ids: {:?}", ids.shape());
    check::compute_type("embed", t, dtype)?;
    check::integers("embed", "ids", ids, t)?;
    let mut shape = ids.shape().to_vec();
    shape.push(d);
    check::elements("embed", &shape)?;
    let y = match t.cuda_device() {
        Some(c) => {
            let y = Tensor::cuda(c, &shape, dtype)?;
            let name = by_type!(dtype, "embed_fwd");
            let grid = (y.len().div_ceil(256 * 8), 1, 1);
            c.launch(&SOURCE, 0, name, grid, 256, 0, args![t, ids, &y, y.len() as i64, d, v])?;
            y
        }
        None => {
            let wrong = ids.u32s().iter().position(|&i| i as usize >= v);
            if let Some(at) = wrong {
                let id = ids.u32s()[at];
                return Err(crate::Error::op("embed", format!("id {id} at position {at} is not below {v}")));
            }
            let mut y = Buf::scratch(ids.len() * d);
            cpu::embed(t.f32s(), ids.u32s(), d, &mut y);
            Tensor::from_buf(y, &shape)
        }
    };
    Ok(tape.record(y, &[table], || Embed { table: table.clone(), ids: ids.clone() }))
}

impl Backward for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let Embed { table, ids } = self;
        match dy.cuda_device() {
            Some(c) => {
                let Some(dst) = grads.dst_cuda(table, DType::F32)? else { return Ok(()) };
                scatter_cuda(c, dy, ids, &dst)
            }
            None => grads.write_cpu(table, |dst, acc| {
                cpu::embed_backward(dy.f32s(), ids.u32s(), table.value().width(), dst, acc);
            }),
        }
    }
}

/// Lists of positions by id, each sorted, then one sum per id in that order. Only integers are handled atomically.
fn scatter_cuda(c: &Cuda, dy: &Tensor, ids: &Tensor, dst: &Dst) -> Result<()> {
    let (n, v, d) = (ids.len(), dst.tensor.rows(), dst.tensor.width());
    if !dst.acc {
        c.memset_zero(dst.tensor.ptr(), dst.tensor.len() * 4)?;
    }
    let zeros = Tensor::zeros(&Device::Cuda(c.clone()), &[v + 4], DType::U32)?;
    let (cursors, counts) = (zeros.view(0, &[4]), zeros.view(4, &[v]));
    let most_light = n.min(v);
    let most_heavy = n / (LIGHT + 1);
    let ends = Tensor::cuda(c, &[v], DType::U32)?;
    let list = Tensor::cuda(c, &[n], DType::U32)?;
    let light = Tensor::cuda(c, &[most_light.max(1)], DType::U32)?;
    let heavy = Tensor::cuda(c, &[most_heavy.max(1)], DType::U32)?;
    let blocks = |n: usize| (n.div_ceil(256), 1, 1);
    c.launch(&SOURCE, 0, "embed_count", blocks(n), 256, 0, args![ids, &counts, n, v])?;
    c.launch(&SOURCE, 0, "embed_segments", blocks(v), 256, 0, args![&counts, &ends, &cursors, &light, &heavy, v])?;
    c.launch(&SOURCE, 0, "embed_fill", blocks(n), 256, 0, args![ids, &ends, &list, n, v])?;
    let args = args![ids, &counts, &ends, &cursors, &heavy, &list, n];
    c.launch(&SOURCE, 0, "embed_sort", (most_heavy, 1, 1), 1024, 0, args)?;
    let args = args![dy, &counts, &ends, &cursors, &light, &list, &dst.tensor, d, dst.acc];
    c.launch(&SOURCE, 0, by_type!(dy.dtype(), "embed_sum_light"), (most_light.div_ceil(4), 1, 1), 128, 0, args)?;
    let args = args![dy, &counts, &ends, &cursors, &heavy, &list, &dst.tensor, d, dst.acc];
    c.launch(&SOURCE, 0, by_type!(dy.dtype(), "embed_sum_heavy"), (most_heavy, d.div_ceil(COLS), 1), 256, 0, args)
}

pub(super) fn cases(size: Size) -> Vec<Case> {
    // (ids, used ids, V, d): few used ids make long lists, one above 4,096 long.
    let shapes: &[(&[usize], u32, usize, usize)] = match size {
        Size::Tiny => &[(&[2, 3], 4, 5, 3), (&[1], 1, 1, 1)],
        Size::Full => &[
            (&[1], 1, 1, 1),
            (&[5, 7], 50, 50, 33),
            (&[3, 197], 30_522, 30_522, 64),
            (&[8, 64], 3, 100, 768),
            (&[4, 100], 12, 13, 200),
            (&[10_000], 2, 9, 40),
        ],
    };
    let mut out = Vec::new();
    for &(ids, used, v, d) in shapes {
        let mut y = ids.to_vec();
        y.push(d);
        let l = format!("{ids:?} of {used} in [{v}, {d}]");
        // The sum with x only tells the compute type.
        out.push(
            Case::new("embed", &l, |t, v| {
                let x = &v[1];
                add(t, x, &embed(t, &v[0], v[2].value(), x.value().dtype())?)
            })
            .normal("table", Role::Weight, &[v, d], 1.0)
            .normal("x", Role::Activation, &y, 1.0)
            .ids("ids", ids, used),
        );
        out.push(
            Case::new("embed", format!("{l}, twice"), |t, v| {
                let e = embed(t, &v[0], v[2].value(), v[1].value().dtype())?;
                add(t, &add(t, &v[1], &e)?, &embed(t, &v[0], v[2].value(), v[1].value().dtype())?)
            })
            .normal("table", Role::Weight, &[v, d], 1.0)
            .normal("x", Role::Activation, &y, 1.0)
            .ids("ids", ids, used),
        );
    }
    out
}
