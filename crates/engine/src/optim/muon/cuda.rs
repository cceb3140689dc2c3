//! Muon's step on the GPU: matrices of one shape lie in a stack and go through their products together. Operands are bf16, whatever
//! the model computes in: what is wanted of them is singular values of about one.

use std::collections::BTreeMap;

use super::super::AdamW;
use super::{Muon, ROUNDS, SOURCE};
use crate::cuda::{Batch, Cuda, Epilogue, Gemm, Mat, args};
use crate::device::Device;
use crate::error::{Result, ensure};
use crate::params::{Hidden, Params};
use crate::tensor::{DType, Tensor};

const BLOCK: usize = 256;
/// Blocks per matrix, as in muon.cu: what they find of its norm is added up by one warp.
const PARTS: usize = 32;
/// Stacks begin at multiples of this many elements: 256 bytes, the alignment cuBLASLt likes best.
const ALIGN: usize = 128;

/// Matrices of one shape, padded with zeros to whole groups of eight: products of other shapes take a slow way, and zeros stay
/// zeros through all rounds.
#[derive(Debug, PartialEq)]
struct Stack {
    rows: usize,
    cols: usize,
    count: usize,
    /// Where it begins.
    start: usize,
    /// Where their products with themselves begin.
    gram: usize,
}

/// Stacks whose shorter side is the same: the products of those with themselves are one stack.
#[derive(Debug, PartialEq)]
struct Side {
    side: usize,
    count: usize,
    gram: usize,
    stacks: Vec<Stack>,
}

/// Where all matrices go in scratch memory.
#[derive(Debug, PartialEq)]
struct Layout {
    sides: Vec<Side>,
    /// Per matrix: start in the flat buffers, rows, columns, start in the stacks.
    table: Vec<[usize; 4]>,
    len: usize,
    gram_len: usize,
}

impl Layout {
    fn new(matrices: &[Hidden]) -> Layout {
        let mut shapes: BTreeMap<[usize; 3], Vec<Hidden>> = BTreeMap::new();
        for m in matrices.iter().filter(|m| m.rows * m.cols > 0) {
            let [rows, cols] = [m.rows, m.cols].map(|n| n.next_multiple_of(8));
            shapes.entry([rows.min(cols), rows, cols]).or_default().push(*m);
        }
        let mut all = Layout { sides: Vec::new(), table: Vec::new(), len: 0, gram_len: 0 };
        for ([side, rows, cols], matrices) in shapes {
            if all.sides.last().is_none_or(|s| s.side != side) {
                all.gram_len = all.gram_len.next_multiple_of(ALIGN);
                all.sides.push(Side { side, count: 0, gram: all.gram_len, stacks: Vec::new() });
            }
            let Some(last) = all.sides.last_mut() else { continue };
            let count = matrices.len();
            last.stacks.push(Stack { rows, cols, count, start: all.len, gram: all.gram_len });
            last.count += count;
            for (i, m) in matrices.iter().enumerate() {
                all.table.push([m.start, m.rows, m.cols, all.len + i * rows * cols]);
            }
            all.len = (all.len + count * rows * cols).next_multiple_of(ALIGN);
            all.gram_len += count * side * side;
        }
        all
    }
}

/// [`Layout`] with its table on the device, uploaded once: a step that is captured must not.
pub(in crate::optim) struct Stacks {
    layout: Layout,
    table: Tensor,
}

impl Stacks {
    pub fn new(c: &Cuda, matrices: &[Hidden]) -> Result<Stacks> {
        let layout = Layout::new(matrices);
        let fits = layout.table.iter().flatten().all(|x| u32::try_from(*x).is_ok());
        ensure!(fits, "muon", "more than 2³² values in the matrices of all blocks");
        let entries: Vec<u32> = layout.table.iter().flatten().map(|x| *x as u32).collect();
        let table = Tensor::from_u32(&Device::Cuda(c.clone()), &[layout.table.len(), 4], entries)?;
        Ok(Stacks { layout, table })
    }
}

/// After the norm of all gradients is known. Where the step is skipped the products run on whatever is there, and nothing comes of it.
pub(in crate::optim) fn step(c: &Cuda, muon: &Muon, opt: &AdamW, params: &Params) -> Result<()> {
    let Some(Stacks { layout, table }) = &muon.stacks else { return Ok(()) };
    let matrices = layout.table.len();
    if matrices == 0 {
        return Ok(());
    }
    let grid = (matrices, PARTS, 1);
    let scratch = |n: usize| Tensor::cuda(c, &[n], DType::Bf16);
    let (mut x, mut next) = (scratch(layout.len)?, scratch(layout.len)?);
    let (gram, square) = (scratch(layout.gram_len)?, scratch(layout.gram_len)?);
    let part = Tensor::cuda(c, &[matrices, PARTS], DType::F32)?;
    // As the flat buffers are numbered: where the matrices are not all kept here, a buffer of the state begins elsewhere.
    let first = muon.first();
    let kept = opt.parts().into_iter().find(|p| p.flat.contains(&first)).map_or(first, |p| p.at + first - p.flat.start);
    let shifted = |t: &Tensor| t.ptr().wrapping_add(4 * kept as u64).wrapping_sub(4 * first as u64);
    let args = args![table, params.finished_grads()?, shifted(&opt.m), &x, &part, &opt.state, muon.momentum];
    c.launch(&SOURCE, 0, "muon_momentum", grid, BLOCK, 0, args)?;
    c.launch(&SOURCE, 0, "muon_normalise", grid, BLOCK, 0, args![table, &x, &part, &opt.state])?;
    for _ in 0..ROUNDS {
        for side in &layout.sides {
            round(c, side, [&x, &gram, &square, &next])?;
        }
        std::mem::swap(&mut x, &mut next);
    }
    let (ema, low) = (opt.ema.as_ref().map_or(0, shifted), params.low.as_ref());
    let args = args![table, &x, &params.values, ema, low, &opt.state, opt.config.weight_decay];
    c.launch(&SOURCE, 0, "muon_apply", grid, BLOCK, 0, args)
}

/// X ← (a + b·A + c·A²)·X with A = X·Xᵀ where rows are the shorter side, X·(a + b·A + c·A²) with A = Xᵀ·X where columns are.
fn round(c: &Cuda, side: &Side, [x, gram, square, next]: [&Tensor; 4]) -> Result<()> {
    let mat = |of: &Tensor, start: usize, stride: usize| Mat {
        ptr: of.ptr() + (start * 2) as u64,
        dtype: DType::Bf16,
        stride,
        t: false,
    };
    let product = |[m, n, k]: [usize; 3], a: Mat, b: Mat, to: Mat, count: usize, apart: [usize; 3]| {
        let g = Gemm { m, n, k, a, b, c: to, add: None, epilogue: Epilogue::None };
        c.batched_gemm(&g, Batch { count, apart })
    };
    let (n, area) = (side.side, side.side * side.side);
    for s in &side.stacks {
        let (each, to) = (s.rows * s.cols, mat(gram, s.gram, n));
        let x = mat(x, s.start, s.cols);
        let (a, b) = if s.rows <= s.cols { (x, x.t()) } else { (x.t(), x) };
        product([n, n, s.rows.max(s.cols)], a, b, to, s.count, [each, each, area])?;
    }
    let (a, b) = (mat(gram, side.gram, n), mat(square, side.gram, n));
    product([n; 3], a, a, b, side.count, [area; 3])?;
    let len = side.count * area;
    let args = args![a.ptr, b.ptr, n, len as i64];
    c.launch(&SOURCE, 0, "muon_polynomial", (len.div_ceil(BLOCK * 8), 1, 1), BLOCK, 0, args)?;
    for s in &side.stacks {
        let each = s.rows * s.cols;
        let (x, b, to) = (mat(x, s.start, s.cols), mat(square, s.gram, n), mat(next, s.start, s.cols));
        match s.rows <= s.cols {
            true => product([s.rows, s.cols, n], b, x, to, s.count, [area, each, each])?,
            false => product([s.rows, s.cols, n], x, b, to, s.count, [each, area, each])?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of width 12: four matrices each of 16×16 with padding, then both shapes of the MLP, all with one shorter side.
    #[test]
    fn shapes_lie_in_stacks_that_do_not_overlap() {
        let mut matrices = Vec::new();
        for block in [0, 10_000] {
            matrices.extend((0..4).map(|i| Hidden { start: block + i * 144, rows: 12, cols: 12 }));
            matrices.push(Hidden { start: block + 1000, rows: 48, cols: 12 });
            matrices.push(Hidden { start: block + 2000, rows: 12, cols: 48 });
        }
        let l = Layout::new(&matrices);
        assert_eq!(l.sides.len(), 1);
        let side = &l.sides[0];
        assert_eq!((side.side, side.count, l.gram_len), (16, 12, 12 * 256));
        let shapes: Vec<_> = side.stacks.iter().map(|s| (s.rows, s.cols, s.count, s.start, s.gram)).collect();
        assert_eq!(shapes, [(16, 16, 8, 0, 0), (16, 48, 2, 2048, 2048), (48, 16, 2, 3584, 2560)]);
        assert_eq!(l.len, 5120);
        assert_eq!(l.table.len(), 12);
        for m in &matrices {
            assert_eq!(l.table.iter().filter(|t| t[..3] == [m.start, m.rows, m.cols]).count(), 1);
        }
        let mut places: Vec<_> = l.table.iter().map(|t| t[3]).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|p| p[1] - p[0] >= 256) && places[8..] == [2048, 2816, 3584, 4352]);
    }
}
