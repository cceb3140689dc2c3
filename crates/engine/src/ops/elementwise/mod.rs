//! Sums and scales: `add`, `scale`, `add_broadcast` (position embeddings), `add_per_example` (time embeddings), `mean`.

mod cpu;
mod cuda;

pub(crate) use cuda::{add_into as add_into_cuda, cast as cast_cuda, column_sums as column_sums_cuda};

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var, add_or_copy};
use crate::tensor::{DType, Tensor};

crate::cuda::source!("elementwise.cu");

struct Add {
    a: Var,
    b: Var,
}

/// a + b, of one shape and type.
pub fn add(tape: &Tape, a: &Var, b: &Var) -> Result<Var> {
    ensure!(a.shape() == b.shape(), "add", "shapes differ: {:?} and {:?}", a.shape(), b.shape());
    check::alike("add", a.value(), &[b.value()])?;
    let y = match a.value().cuda_device() {
        Some(c) => cuda::add(c, a.value(), b.value())?,
        None => {
            let mut y = Buf::scratch(a.value().len());
            cpu::add(a.value().f32s(), b.value().f32s(), &mut y);
            Tensor::from_buf(y, a.shape())
        }
    };
    Ok(tape.record(y, &[a, b], || Add { a: a.clone(), b: b.clone() }))
}

impl Backward for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.a, dy.clone())?;
        grads.give(&self.b, dy.clone())
    }
}

struct Scale {
    x: Var,
    by: f32,
}

/// by·x.
pub fn scale(tape: &Tape, x: &Var, by: f32) -> Result<Var> {
    check::alike("scale", x.value(), &[])?;
    let y = scaled(x.value(), by)?;
    Ok(tape.record(y, &[x], || Scale { x: x.clone(), by }))
}

fn scaled(x: &Tensor, by: f32) -> Result<Tensor> {
    match x.cuda_device() {
        Some(c) => cuda::scale(c, x, by),
        None => {
            let mut y = Buf::scratch(x.len());
            cpu::scale(x.f32s(), by, &mut y);
            Ok(Tensor::from_buf(y, x.shape()))
        }
    }
}

impl Backward for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.x, scaled(dy, self.by)?)
    }
}

/// How the second operand of a broadcast sum is repeated: `x` is seen as (outer, mid, inner), the operand as
/// (outer, inner) or (mid·inner).
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    outer: usize,
    mid: usize,
    inner: usize,
    /// The operand has an axis `outer` (one row per example), else it is shared by all examples.
    per_example: bool,
}

struct AddSpread {
    op: &'static str,
    x: Var,
    p: Var,
    how: Spread,
}

/// `x` \[B, …\] + `p` \[…\], the same for every example (position embeddings). `p` may lead with an axis of 1.
pub fn add_broadcast(tape: &Tape, x: &Var, p: &Var) -> Result<Var> {
    let n = p.value().len();
    let tail = p.shape().strip_prefix(&[1]).filter(|_| p.shape().len() == x.shape().len()).unwrap_or(p.shape());
    ensure!(
        n > 0 && x.shape().ends_with(tail),
        "add_broadcast",
        "{:?} is not the trailing part of {:?}",
        p.shape(),
        x.shape()
    );
    let how = Spread { outer: x.value().len() / n, mid: 1, inner: n, per_example: false };
    add_spread(tape, "add_broadcast", x, p, how)
}

/// `x` \[B, N, d\] + `e` \[B, d\]: one vector per example, added to all its tokens (time embeddings).
pub fn add_per_example(tape: &Tape, x: &Var, e: &Var) -> Result<Var> {
    let &[b, n, d] = x.shape() else {
        return Err(crate::Error::op("add_per_example", format!("x must be [B, N, d], it is {:?}", x.shape())));
    };
    ensure!(e.shape() == [b, d], "add_per_example", "{:?} must be [{b}, {d}] to go with {:?}", e.shape(), x.shape());
    add_spread(tape, "add_per_example", x, e, Spread { outer: b, mid: n, inner: d, per_example: true })
}

fn add_spread(tape: &Tape, op: &'static str, x: &Var, p: &Var, how: Spread) -> Result<Var> {
    check::values(op, "x", x.value())?;
    check::beside(op, "the second operand", p.value(), x.value())?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::add_spread(c, op, x.value(), p.value(), how)?,
        None => {
            let mut y = Buf::scratch(x.value().len());
            cpu::add_spread(x.value().f32s(), p.value().f32s(), how, &mut y);
            Tensor::from_buf(y, x.shape())
        }
    };
    Ok(tape.record(y, &[x, p], || AddSpread { op, x: x.clone(), p: p.clone(), how }))
}

impl Backward for AddSpread {
    fn name(&self) -> &'static str {
        self.op
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.x, dy.clone())?;
        if !self.p.needs_grad() {
            return Ok(());
        }
        match dy.cuda_device() {
            Some(c) => {
                // A parameter's gradient is f32; that of an activation has its own type.
                let Some(dst) = grads.dst_cuda(&self.p, self.p.value().dtype())? else { return Ok(()) };
                cuda::sum_spread(c, dy, &dst, self.how)
            }
            None => {
                let sum = cpu::sum_spread(dy.f32s(), self.how);
                grads.write_cpu(&self.p, |dst, acc| add_or_copy(dst, &sum, acc))
            }
        }
    }
}

struct Mean {
    x: Var,
}

/// The mean of all elements, one f32 number of shape \[\].
pub fn mean(tape: &Tape, x: &Var) -> Result<Var> {
    check::values("mean", "x", x.value())?;
    let y = match x.value().cuda_device() {
        Some(c) => cuda::mean(c, x.value())?,
        None => {
            // f64: the order of a long f32 sum would show in the loss.
            let s: f64 = x.value().f32s().iter().map(|&v| v as f64).sum();
            Tensor::from_f32(&crate::Device::Cpu, &[], vec![(s / x.value().len() as f64) as f32])?
        }
    };
    Ok(tape.record(y, &[x], || Mean { x: x.clone() }))
}

impl Backward for Mean {
    fn name(&self) -> &'static str {
        "mean"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let x = self.x.value();
        match dy.cuda_device() {
            Some(c) => {
                let t = Tensor::cuda(c, x.shape(), x.dtype())?;
                cuda::fill_from(c, &t, dy, 1.0 / x.len() as f32)?;
                grads.give(&self.x, t)
            }
            None => {
                let v = dy.f32s()[0] / x.len() as f32;
                let mut b = Buf::scratch(x.len());
                b.fill(v);
                grads.give(&self.x, Tensor::from_buf(b, x.shape()))
            }
        }
    }
}

struct Cast {
    x: Var,
}

/// Convert between f32 and bf16; the gradient converts back.
pub fn cast(tape: &Tape, x: &Var, dtype: DType) -> Result<Var> {
    let y = x.value().cast(dtype)?;
    Ok(tape.record(y, &[x], || Cast { x: x.clone() }))
}

impl Backward for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.x, dy.cast(self.x.value().dtype())?)
    }
}

struct Reshape {
    x: Var,
}

/// The same data under another shape.
pub fn reshape(tape: &Tape, x: &Var, shape: &[usize]) -> Result<Var> {
    let y = x.value().reshape(shape)?;
    Ok(tape.record(y, &[x], || Reshape { x: x.clone() }))
}

impl Backward for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        grads.give(&self.x, dy.reshape(self.x.shape())?)
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    use Role::{Activation, Weight};
    let shapes: &[[usize; 3]] = match size {
        Size::Tiny => &[[2, 3, 4], [1, 1, 1]],
        Size::Full => &[[1, 1, 1], [2, 3, 5], [4, 197, 192], [3, 17, 64], [33, 65, 384]],
    };
    let mut out = Vec::new();
    for &s in shapes {
        let [b, n, d] = s;
        let l = format!("{s:?}");
        out.extend([
            Case::new("add", &l, |t, v| add(t, &v[0], &v[1]))
                .normal("a", Activation, &s, 1.0)
                .normal("b", Activation, &s, 1.0),
            Case::new("scale", &l, |t, v| scale(t, &v[0], -0.75)).normal("x", Activation, &s, 1.0),
            Case::new("add_broadcast", &l, |t, v| add_broadcast(t, &v[0], &v[1]))
                .normal("x", Activation, &s, 1.0)
                .normal("p", Weight, &[1, n, d], 1.0),
            Case::new("add_per_example", &l, |t, v| add_per_example(t, &v[0], &v[1]))
                .normal("x", Activation, &s, 1.0)
                .normal("e", Activation, &[b, d], 1.0),
            Case::new("mean", &l, |t, v| mean(t, &v[0])).normal("x", Activation, &s, 1.0),
            Case::new("cast", &l, |t, v| cast(t, &v[0], DType::F32)).normal("x", Activation, &s, 1.0),
            Case::new("reshape", &l, move |t, v| reshape(t, &v[0], &[b * n, d])).normal("x", Activation, &s, 1.0),
        ]);
        // The same value twice, and again later: shared gradients must be copied before they are added to. Not for a single
        // element: 3x + y may cancel, and then one bf16 rounding is a large part of what is left.
        if b * n * d > 1 {
            let twice = Case::new("add", format!("{l} x+x, then +y"), |t, v| {
                let y = add(t, &v[0], &v[0])?;
                add(t, &y, &add(t, &v[0], &v[1])?)
            });
            out.push(twice.normal("x", Activation, &s, 1.0).normal("y", Activation, &s, 1.0));
        }
    }
    out
}
