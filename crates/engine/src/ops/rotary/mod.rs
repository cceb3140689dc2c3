//! Rotary position embeddings: queries and keys are rotated by angles that grow with their place, so that their products
//! depend on distances alone.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{check, elementwise};
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::device::Device;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

crate::cuda::source!("rotary.cu");

/// Cosines and sines of the angles of every place, on a device. Made once: nothing is copied from the host when they are used.
#[derive(Clone, Debug)]
pub struct RotaryTable {
    /// f32 \[places, 2, head/2\]: cosines, then sines.
    table: Tensor,
    head: usize,
}

impl RotaryTable {
    /// Angles of `places` places for heads of `head` columns: pair i of place l is rotated by l·10000^(−2i/head).
    pub fn new(device: &Device, places: usize, head: usize) -> Result<RotaryTable> {
        ensure!(
            places > 0 && head > 1,
            "rotary",
            "{places} places and heads of {head} columns: there is nothing to rotate"
        );
        let half = head / 2;
        let mut v = Vec::with_capacity(check::elements("rotary", &[places, 2, half])?);
        for l in 0..places {
            let angle = |i: usize| l as f64 * 10_000_f64.powf(-2.0 * i as f64 / head as f64);
            v.extend((0..half).map(|i| angle(i).cos() as f32));
            v.extend((0..half).map(|i| angle(i).sin() as f32));
        }
        Ok(RotaryTable { table: Tensor::from_f32(device, &[places, 2, half], v)?, head })
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.table.shape()[0]
    }
}

/// What is rotated, and which way.
#[derive(Clone, Debug)]
struct Rotation {
    angles: RotaryTable,
    columns: usize,
    rows: Range<usize>,
    back: bool,
}

struct Rotary {
    x: Var,
    rotation: Rotation,
}

/// `x` \[B, L, W\] where the first `columns` columns (whole heads; two thirds of packed queries, keys and values) of the rows
/// `rows` are rotated: in each head the pairs (i, i + head/2), by the angles of the row's place, which is 0 at `rows.start`.
/// The last column of an odd head, other columns and other rows stay as they are. An `x` that nobody else holds is overwritten.
pub fn rotary(tape: &Tape, mut x: Var, angles: &RotaryTable, columns: usize, rows: Range<usize>) -> Result<Var> {
    let [_, l, w] = check::tokens("rotary", x.value())?;
    check::compute_type("rotary", x.value(), x.value().dtype())?;
    let (head, places) = (angles.head, angles.places());
    ensure!(
        columns <= w && columns.is_multiple_of(head),
        "rotary",
        "{columns} columns of x {:?} are not whole heads of {head}",
        x.shape()
    );
    ensure!(
        rows.start <= rows.end && rows.end <= l && rows.len() <= places,
        "rotary",
        "rows {rows:?} of x {:?} must exist and be no more than the {places} places",
        x.shape()
    );
    ensure!(
        angles.table.is_beside(x.value()),
        "rotary",
        "the angles lie on {}, x on {}",
        angles.table.device(),
        x.value().device()
    );
    let rotation = Rotation { angles: angles.clone(), columns, rows, back: false };
    let y = match x.value().cuda_device() {
        Some(c) => cuda::rotate(c, x.value(), &rotation)?,
        None => match x.value_mut().f32s_mut() {
            Some(v) => {
                cpu::rotate(v, l, w, &rotation);
                x.value().clone()
            }
            None => rotated_copy(x.value(), &rotation),
        },
    };
    Ok(tape.record(y, &[&x], || Rotary { x: x.clone(), rotation: Rotation { back: true, ..rotation } }))
}

fn rotated_copy(x: &Tensor, rotation: &Rotation) -> Tensor {
    let mut y = Buf::scratch(x.len());
    y.copy_from_slice(x.f32s());
    cpu::rotate(&mut y, x.shape()[1], x.width(), rotation);
    Tensor::from_buf(y, x.shape())
}

impl Backward for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    /// A rotation's transpose is its inverse: the same pairs by the negative angles.
    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if !self.x.needs_grad() {
            return Ok(());
        }
        let dx = match dy.cuda_device() {
            Some(c) => cuda::rotate(c, dy, &self.rotation)?,
            None => rotated_copy(dy, &self.rotation),
        };
        grads.give(&self.x, dx)
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    // Shape of x, size of a head, columns and rows to rotate.
    type Example = ([usize; 3], usize, usize, Range<usize>);
    let examples: Vec<Example> = match size {
        Size::Tiny => vec![([2, 3, 6], 2, 4, 1..3), ([1, 2, 7], 3, 6, 0..2)],
        Size::Full => vec![
            ([1, 1, 2], 2, 2, 0..1),
            ([3, 5, 7], 3, 6, 1..5),
            ([2, 197, 192], 64, 128, 0..197),
            ([3, 197, 192], 32, 128, 65..197),
            ([2, 65, 264], 16, 240, 1..64), // a width that is no multiple of 16
            ([2, 17, 129], 43, 86, 3..17),
            ([5, 33, 72], 24, 48, 0..33), // halves of 12
            ([2, 9, 768], 64, 768, 4..4),
            ([2, 256, 1536], 64, 1024, 0..256),
        ],
    };
    let mut out = Vec::new();
    for (shape, head, columns, rows) in examples {
        for alone in [false, true] {
            let label = format!("{shape:?} heads of {head}, {columns} columns, rows {rows:?}, in place {alone}");
            let rows = rows.clone();
            let run = move |t: &Tape, v: &[Var]| {
                let angles = RotaryTable::new(&v[0].value().device(), rows.len().max(1), head)?;
                // A sum is nobody else's.
                let x = if alone { elementwise::add(t, &v[0], &v[0])? } else { v[0].clone() };
                rotary(t, x, &angles, columns, rows.clone())
            };
            out.push(Case::new("rotary", label, run).normal("x", Role::Activation, &shape, 1.0));
        }
    }
    out
}
