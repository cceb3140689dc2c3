//! `linear`: act(x·Wᵀ + b) (+ residual), and `mlp`: two of them as one op, whose backward fuses the activation's slope into
//! the product. Weights have PyTorch's layout, (out, in).

mod cases;
mod cpu;
mod cuda;

use super::check;
use crate::cpu::math::Act;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

crate::cuda::source!("linear.cu");

pub(crate) use cases::cases;
pub(crate) use cuda::few as few_rows_cuda;

/// A weight and its bias.
#[derive(Clone)]
pub(crate) struct Affine {
    w: Var, // (out, in)
    b: Option<Var>,
}

impl Affine {
    /// For inputs of `width` in the type and on the device of `x`.
    fn new(op: &'static str, x: &Tensor, width: usize, w: &Var, b: Option<&Var>) -> Result<Affine> {
        check::values(op, "x", x)?;
        check::values(op, "the weight", w.value())?;
        check::beside(op, "the weight", w.value(), x)?;
        let &[out, inner] = w.shape() else {
            return Err(crate::Error::op(op, format!("a weight must be [out, in], it is {:?}", w.shape())));
        };
        ensure!(inner == width, op, "weight {:?} takes inputs of width {inner}, they have {width}", w.shape());
        if let Some(b) = b {
            ensure!(b.shape() == [out], op, "bias {:?} must be [{out}] for weight {:?}", b.shape(), w.shape());
            check::beside(op, "the bias", b.value(), x)?;
        }
        check::elements(op, &[x.rows(), out])?;
        Ok(Affine { w: w.clone(), b: b.cloned() })
    }

    fn out(&self) -> usize {
        self.w.shape()[0]
    }

    fn inner(&self) -> usize {
        self.w.shape()[1]
    }
}

fn out_shape(x: &[usize], out: usize) -> Vec<usize> {
    let mut s = x.to_vec();
    match s.last_mut() {
        Some(last) => *last = out,
        None => s.push(out),
    }
    s
}

fn check_residual(op: &'static str, residual: Option<&Var>, shape: &[usize], x: &Var) -> Result<()> {
    if let Some(r) = residual {
        ensure!(r.shape() == shape, op, "residual {:?} must have the output's shape {shape:?}", r.shape());
        check::alike(op, x.value(), &[r.value()])?;
    }
    Ok(())
}

fn inputs<'a>(base: &[&'a Var], optional: &[Option<&'a Var>]) -> Vec<&'a Var> {
    base.iter().copied().chain(optional.iter().copied().flatten()).collect()
}

struct Linear {
    x: Var,
    layer: Affine,
    act: Option<(Act, Tensor)>, // with the pre-activation
    residual: Option<Var>,
}

/// act(x·wᵀ + b) for `x` \[…, in\], `w` \[out, in\], `b` \[out\]; or x·wᵀ + b + residual. Not both an activation and a residual.
pub fn linear(tape: &Tape, x: &Var, w: &Var, b: Option<&Var>, act: Option<Act>, residual: Option<&Var>) -> Result<Var> {
    let layer = Affine::new("linear", x.value(), x.value().width(), w, b)?;
    let shape = out_shape(x.shape(), layer.out());
    ensure!(act.is_none() || residual.is_none(), "linear", "a residual is added to a product without activation");
    check_residual("linear", residual, &shape, x)?;
    let r = residual.map(Var::value);
    let inputs = inputs(&[x, w], &[b, residual]);
    let (y, pre) = match x.value().cuda_device() {
        Some(c) => cuda::forward(c, x.value(), &layer, act, r, &shape, inputs.iter().any(|v| v.needs_grad()))?,
        None => cpu::forward(x.value(), &layer, act, r, &shape),
    };
    let act = act.zip(pre);
    Ok(tape.record(y, &inputs, || Linear { x: x.clone(), layer, act, residual: residual.cloned() }))
}

/// x·wᵀ + b as in [`linear`], whose rows may be longer than `out` on a GPU: there each starts at a multiple of 16 bytes, so that
/// whoever reads them can load 16 at a time. What lies beyond `out` is not written. For sampling only, so nothing is recorded on
/// a tape.
pub fn padded(x: &Tensor, w: &Var, b: &Var) -> Result<Tensor> {
    let layer = Affine::new("padded", x, x.width(), w, Some(b))?;
    let (y, _) = match x.cuda_device() {
        Some(c) => {
            let width = cuda::aligned_width(x.rows(), layer.out());
            cuda::forward(c, x, &layer, None, None, &out_shape(x.shape(), width), false)?
        }
        None => cpu::forward(x, &layer, None, None, &out_shape(x.shape(), layer.out())),
    };
    Ok(y)
}

/// x·wᵀ of f32 `x` \[…, in\] and `w` \[out, in\], of which three digits are enough: on a GPU tensor cores do it, in TF32. For
/// sampling only, so nothing is recorded on a tape.
pub fn rough(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let tape = Tape::inference();
    let w = tape.constant(w.clone());
    check::f32s("rough", "x", x, x)?;
    check::f32s("rough", "the weight", w.value(), x)?;
    let layer = Affine::new("rough", x, x.width(), &w, None)?;
    match x.cuda_device() {
        Some(c) => cuda::rough(c, x, w.value(), &out_shape(x.shape(), layer.out())),
        None => Ok(linear(&tape, &tape.constant(x.clone()), &w, None, None, None)?.value().clone()),
    }
}

impl Backward for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(r) = &self.residual {
            grads.give(r, dy.clone())?;
        }
        match dy.cuda_device() {
            Some(c) => {
                let d = match &self.act {
                    Some((act, pre)) => cuda::act_backward(c, *act, pre, dy)?,
                    None => dy.clone(),
                };
                cuda::backward_weights(c, &self.layer, self.x.value(), &d, grads)?;
                cuda::backward_input(c, &self.layer, &self.x, &d, grads)
            }
            None => {
                let d = match &self.act {
                    Some((act, pre)) => cpu::act_backward(*act, pre, dy),
                    None => dy.clone(),
                };
                cpu::backward_weights(&self.layer, self.x.value(), &d, grads)?;
                cpu::backward_input(&self.layer, &self.x, &d, grads)
            }
        }
    }
}

struct Mlp {
    x: Var,
    up: Affine,
    down: Affine,
    act: Act,
    pre: Tensor,
    /// act(pre); `None`: computed again from it.
    hidden: Option<Tensor>,
    residual: Option<Var>,
}

/// Hidden values of more bytes than this are computed again in the backward pass on a GPU, unless there is room for them: a
/// quarter of what a transformer's block keeps, for one more pass over them. Smaller ones cost more time than memory.
const KEPT: usize = 64 << 20;
/// Share of the device's memory that is room for them: 2 GB of an H200, six of twelve blocks of a ViT-B at batch 256.
const ROOM: usize = 72;

fn keeps_hidden(tape: &Tape, hidden: &Tensor) -> bool {
    let bytes = hidden.len() * hidden.dtype().size();
    let room = hidden.cuda_device().map_or(usize::MAX, |c| c.info().memory / ROOM);
    bytes <= KEPT || tape.spares(bytes, room)
}

/// act(x·w1ᵀ + b1)·w2ᵀ + b2 (+ residual).
pub fn mlp(
    tape: &Tape,
    x: &Var,
    first: (&Var, &Var),
    act: Act,
    second: (&Var, &Var),
    residual: Option<&Var>,
) -> Result<Var> {
    mlp_keeping(tape, x, first, act, second, residual, keeps_hidden)
}

/// `keeps` says whether hidden values are kept for the backward pass on a GPU.
fn mlp_keeping(
    tape: &Tape,
    x: &Var,
    (w1, b1): (&Var, &Var),
    act: Act,
    (w2, b2): (&Var, &Var),
    residual: Option<&Var>,
    keeps: fn(&Tape, &Tensor) -> bool,
) -> Result<Var> {
    let up = Affine::new("mlp", x.value(), x.value().width(), w1, Some(b1))?;
    let down = Affine::new("mlp", x.value(), up.out(), w2, Some(b2))?;
    let (mid, shape) = (out_shape(x.shape(), up.out()), out_shape(x.shape(), down.out()));
    check_residual("mlp", residual, &shape, x)?;
    let r = residual.map(Var::value);
    let inputs = inputs(&[x, w1, b1, w2, b2], &[residual]);
    let (hidden, pre, y) = match x.value().cuda_device() {
        Some(c) => {
            let wanted = inputs.iter().any(|v| v.needs_grad());
            let (h, pre) = cuda::forward(c, x.value(), &up, Some(act), None, &mid, wanted)?;
            let (y, _) = cuda::forward(c, &h, &down, None, r, &shape, false)?;
            (h, pre, y)
        }
        None => {
            let (h, pre) = cpu::forward(x.value(), &up, Some(act), None, &mid);
            let (y, _) = cpu::forward(&h, &down, None, r, &shape);
            (h, pre, y)
        }
    };
    let pre = pre.unwrap_or_else(|| hidden.clone());
    let keep = hidden.cuda_device().is_none() || keeps(tape, &hidden);
    let hidden = keep.then_some(hidden);
    Ok(tape.record(y, &inputs, || Mlp { x: x.clone(), up, down, act, pre, hidden, residual: residual.cloned() }))
}

impl Backward for Mlp {
    fn name(&self) -> &'static str {
        "mlp"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(r) = &self.residual {
            grads.give(r, dy.clone())?;
        }
        match dy.cuda_device() {
            Some(c) => {
                let d = match &self.hidden {
                    Some(hidden) => {
                        cuda::backward_weights(c, &self.down, hidden, dy, grads)?;
                        cuda::backward_hidden(c, &self.down, self.act, &self.pre, dy)?
                    }
                    None => {
                        let (d, hidden) = cuda::backward_hidden_again(c, &self.down, self.act, &self.pre, dy)?;
                        cuda::backward_weights(c, &self.down, &hidden, dy, grads)?;
                        d
                    }
                };
                cuda::backward_weights(c, &self.up, self.x.value(), &d, grads)?;
                cuda::backward_input(c, &self.up, &self.x, &d, grads)
            }
            None => {
                let Some(hidden) = &self.hidden else {
                    return Err(crate::Error::op("mlp", "the hidden values were not kept"));
                };
                cpu::backward_weights(&self.down, hidden, dy, grads)?;
                let d = cpu::backward_hidden(&self.down, self.act, &self.pre, dy);
                cpu::backward_weights(&self.up, self.x.value(), &d, grads)?;
                cpu::backward_input(&self.up, &self.x, &d, grads)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn errors_name_the_shapes() {
        let t = Tape::new();
        let v = |s: &[usize]| t.constant(Tensor::zeros(&Device::Cpu, s, crate::DType::F32).unwrap());
        let e = linear(&t, &v(&[2, 3]), &v(&[5, 4]), None, None, None).unwrap_err().to_string();
        assert!(e.contains("[5, 4]") && e.contains("width 4, they have 3"), "{e}");
        let e = linear(&t, &v(&[2, 4]), &v(&[5, 4]), Some(&v(&[4])), None, None).unwrap_err().to_string();
        assert!(e.contains("[4] must be [5]"), "{e}");
        let e = linear(&t, &v(&[2, 4]), &v(&[5, 4]), None, None, Some(&v(&[2, 4]))).unwrap_err().to_string();
        assert!(e.contains("residual [2, 4]"), "{e}");
    }

    /// Outside of training a weight is kept transposed; new values must reach it.
    #[test]
    fn a_changed_weight_is_read_anew() {
        let mut b = crate::ParamsBuilder::default();
        let w = b.add("w", &[3, 2], crate::Group::Decay, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let mut params = b.build(&Device::Cpu, false).unwrap();
        let run = |params: &crate::Params| {
            let t = Tape::inference();
            let x = t.constant(Tensor::from_f32(&Device::Cpu, &[1, 2], vec![10.0, 1.0]).unwrap());
            let bias = t.constant(Tensor::from_f32(&Device::Cpu, &[3], vec![0.0, 0.0, 100.0]).unwrap());
            linear(&t, &x, &t.param(params, w), Some(&bias), None, None).unwrap().value().to_vec().unwrap()
        };
        assert_eq!(run(&params), [12.0, 34.0, 156.0]);
        assert_eq!(run(&params), [12.0, 34.0, 156.0]);
        params.set(w, &[0.0, 1.0, 0.0, 2.0, 0.0, 3.0]).unwrap();
        assert_eq!(run(&params), [1.0, 2.0, 103.0]);
    }
}
