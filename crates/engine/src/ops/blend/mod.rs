//! a·x + b·y + c·z with coefficients that lie on the device, where x may be columns of a matrix by id: a step of any sampler
//! whose update is linear; and guidance of pairs. For sampling only, so nothing is recorded on a tape.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::error::{Error, Result, ensure};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("blend.cu");

/// The first term.
#[derive(Clone, Copy)]
pub enum First<'a> {
    /// Column `ids[row]` of `matrix`.
    Columns {
        /// f32 \[d, V\].
        matrix: &'a Tensor,
        /// u32, one per row. An id of V or more is an error on the CPU and gives zeros on the GPU, which does not wait to look.
        ids: &'a Tensor,
    },
    /// Values \[…, d\] in a compute type.
    Values(&'a Tensor),
}

/// a·first + b·second + c·third in f32 with the shape of `second` or `third`, of which at least one is there. `by` holds a, b
/// and c, f32 \[3\] for all rows or \[rows, 3\] with those of each: on the device, so that a captured graph can be replayed with
/// others.
pub fn blend(by: &Tensor, first: First, second: Option<&Tensor>, third: Option<&Tensor>) -> Result<Tensor> {
    let Some(like) = second.or(third) else {
        return Err(Error::op("blend", "there is neither a second nor a third term"));
    };
    let (d, rows) = (like.width(), like.rows());
    ensure!(!like.is_empty(), "blend", "{like:?} has no elements");
    for t in [Some(by), second, third].into_iter().flatten() {
        ensure!(t.dtype() == DType::F32 && t.is_beside(like), "blend", "{t:?} must be f32 on {}", like.device());
    }
    ensure!(
        by.shape() == [3] || by.shape() == [rows, 3],
        "blend",
        "there must be three coefficients, for all or for each of {rows} rows, not {:?}",
        by.shape()
    );
    ensure!(
        third.is_none_or(|t| t.len() == like.len()),
        "blend",
        "the terms {:?} and {:?} differ in size",
        like.shape(),
        third.map(Tensor::shape)
    );
    match first {
        First::Columns { matrix, ids } => {
            check::integers("blend", "ids", ids, like)?;
            ensure!(
                matrix.shape().len() == 2 && matrix.shape()[0] == d && ids.len() == rows,
                "blend",
                "{:?} ids of columns of {:?} do not go with {:?}",
                ids.shape(),
                matrix.shape(),
                like.shape()
            );
            ensure!(
                matrix.dtype() == DType::F32 && matrix.is_beside(like),
                "blend",
                "{matrix:?} must be f32 on {}",
                like.device()
            );
        }
        First::Values(x) => {
            check::compute_type("blend", like, x.dtype())?;
            ensure!(
                x.len() == like.len() && x.is_beside(like),
                "blend",
                "the first term {x:?} does not go with {like:?}"
            );
        }
    }
    match like.cuda_device() {
        Some(c) => cuda::blend(c, by, first, second, third, like),
        None => cpu::blend(by, first, second, third, like),
    }
}

/// u + w·(c − u) of `pairs` \[2·B, …\], each example with its condition c followed by itself without it u: \[B, …\] in the same
/// type, computed in f32 and rounded once. `weight` holds w, f32 \[1\], or \[B\] with that of each example; on the device.
pub fn guide(pairs: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let shape = match pairs.shape() {
        [twice, rest @ ..] if twice.is_multiple_of(2) && !pairs.is_empty() => [&[twice / 2], rest].concat(),
        other => return Err(Error::op("guide", format!("{other:?} are not pairs"))),
    };
    check::compute_type("guide", pairs, pairs.dtype())?;
    ensure!(
        (weight.shape() == [1] || weight.shape() == [shape[0]])
            && weight.dtype() == DType::F32
            && weight.is_beside(pairs),
        "guide",
        "the guidance weight must be f32 [1] or [{}] on {}, it is {weight:?}",
        shape[0],
        pairs.device()
    );
    match pairs.cuda_device() {
        Some(c) => cuda::guide(c, pairs, weight, &shape),
        None => Ok(cpu::guide(pairs.f32s(), weight.f32s(), &shape)),
    }
}

fn guide_cases(size: Size) -> Vec<Case> {
    let shapes: &[&[usize]] = match size {
        Size::Tiny => &[&[2, 3]],
        Size::Full => &[&[2, 1, 1], &[6, 5, 27], &[2, 17, 768], &[24, 4, 64]],
    };
    let make = |s: &&[usize], weights: usize| {
        Case::new("guide", format!("{s:?} by {weights}"), |t, v| Ok(t.constant(guide(v[0].value(), v[1].value())?)))
            .normal("pairs", Role::Type, s, 1.0)
            .normal("weight", Role::Data, &[weights], 3.0)
    };
    shapes.iter().flat_map(|s| [make(s, 1), make(s, s[0] / 2)]).collect()
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    // Rows, width, columns of the matrix.
    let shapes: &[[usize; 3]] = match size {
        Size::Tiny => &[[3, 2, 5]],
        Size::Full => &[[1, 1, 1], [12, 64, 10], [197, 33, 27], [37, 192, 1000], [5, 32, 30522]],
    };
    let mut out = guide_cases(size);
    for &[rows, d, v] in shapes {
        for (columns, second, third, each) in [
            (true, true, true, false),
            (true, false, true, false),
            (false, true, true, false),
            (false, true, false, false),
            (true, false, true, true),
            (false, true, true, true),
        ] {
            let kind = if columns { "columns" } else { "values" };
            let by: &[usize] = if each { &[rows, 3] } else { &[3] };
            let label = format!("[{rows}, {d}] {kind} of {v}, second {second}, third {third}, by {by:?}");
            let case = Case::new("blend", label, move |t, vars| {
                let [by, x, matrix, ids, y, z] = [0, 1, 2, 3, 4, 5].map(|i: usize| vars[i].value());
                let first = match columns {
                    true => First::Columns { matrix, ids },
                    false => First::Values(x),
                };
                Ok(t.constant(blend(by, first, second.then_some(y), third.then_some(z))?))
            });
            out.push(
                case.normal("by", Role::Data, by, 1.0)
                    .normal("x", Role::Type, &[rows, d], 1.0)
                    .normal("matrix", Role::Data, &[d, v], 1.0)
                    .ids("ids", &[rows], v as u32)
                    .normal("y", Role::Data, &[rows, d], 1.0)
                    .normal("z", Role::Data, &[rows, d], 1.0),
            );
        }
    }
    out
}
