//! Softmax over the last axis, and its logarithm cut off below: what evidence says of the classes, as chances and as logits.

mod cpu;
mod cuda;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::cpu::pool::Buf;
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

crate::cuda::source!("softmax.cu");

struct Softmax {
    x: Var,
    /// Of the logarithm: its smallest value.
    floor: Option<f32>,
}

impl Softmax {
    fn name(floor: Option<f32>) -> &'static str {
        if floor.is_some() { "log_softmax" } else { "softmax" }
    }
}

/// softmax(`x`) over the last axis, in the type of `x`.
pub fn softmax(tape: &Tape, x: &Var) -> Result<Var> {
    of(tape, x, None)
}

/// max(ln softmax(`x`), `floor`) over the last axis, in the type of `x`. No gradient flows where it is cut off.
pub fn log_softmax(tape: &Tape, x: &Var, floor: f32) -> Result<Var> {
    of(tape, x, Some(floor))
}

fn of(tape: &Tape, x: &Var, floor: Option<f32>) -> Result<Var> {
    let op = Softmax::name(floor);
    check::values(op, "x", x.value())?;
    ensure!(floor.is_none_or(|f| f < 0.0), op, "a floor of {floor:?} must be negative");
    let y = match x.value().cuda_device() {
        Some(c) => cuda::forward(c, x.value(), floor)?,
        None => {
            let mut y = Buf::scratch(x.value().len());
            cpu::forward(x.value().f32s(), floor, x.value().width(), &mut y);
            Tensor::from_buf(y, x.shape())
        }
    };
    Ok(tape.record(y, &[x], || Softmax { x: x.clone(), floor }))
}

impl Backward for Softmax {
    fn name(&self) -> &'static str {
        Softmax::name(self.floor)
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(c) = dy.cuda_device() {
            return cuda::backward(c, self, dy, grads);
        }
        let x = self.x.value();
        grads.write_cpu(&self.x, |dx, acc| cpu::backward(x.f32s(), dy.f32s(), self.floor, x.width(), dx, acc))
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[&[usize]] = match size {
        Size::Tiny => &[&[3, 5], &[2, 1, 8], &[1, 1]],
        Size::Full => &[&[1, 1], &[3, 10], &[1, 197, 27], &[5, 64, 50], &[2, 7, 768], &[4, 2049]],
    };
    // Where rounding to bf16 decides what is cut off, gradients differ by all they are: no floor among values there.
    let floor = if matches!(size, Size::Tiny) { -2.5 } else { -40.0 };
    let mut out = Vec::new();
    for &s in shapes {
        for (op, floor) in [("softmax", None), ("log_softmax", Some(floor))] {
            let label = floor.map_or(String::new(), |f| format!(", floor {f}"));
            out.push(Case::new(op, format!("{s:?}{label}"), move |t, v| of(t, &v[0], floor)).normal(
                "x",
                Role::Activation,
                s,
                1.0,
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use proptest::prelude::*;

    fn tensor(shape: &[usize], v: Vec<f32>) -> Tensor {
        Tensor::from_f32(&Device::Cpu, shape, v).unwrap()
    }

    #[test]
    fn closed_form() {
        let tape = Tape::new();
        let x = tape.leaf(tensor(&[2, 3], vec![0.0, 2_f32.ln(), 0.0, 1e5, 0.0, -1e5]));
        let y = softmax(&tape, &x).unwrap().value().to_vec().unwrap();
        assert!(y.iter().zip([0.25, 0.5, 0.25, 1.0, 0.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{y:?}");
        let l = log_softmax(&tape, &x, -16.0).unwrap();
        let want = [-4_f32.ln(), -2_f32.ln(), -4_f32.ln(), 0.0, -16.0, -16.0];
        assert!(l.value().f32s().iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{l:?}");
        let e = log_softmax(&tape, &x, 0.0).err().unwrap().to_string();
        assert!(e.starts_with("log_softmax: a floor of") && e.contains("must be negative"), "{e}");
        // Of −ln p of the second class: p − onehot, and nothing where all but one are cut off.
        let g = tape.backward_from(&l, tensor(&[2, 3], vec![0.0, -1.0, 0.0, 0.0, -1.0, 0.0]), None).unwrap();
        let want = [0.25, -0.5, 0.25, 0.0, 0.0, 0.0];
        assert!(g.get(&x).unwrap().f32s().iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
    }

    proptest! {
        #[test]
        fn agrees_with_f64(rows in 1usize..40, d in 1usize..600, scale in 0.1f32..30.0) {
            let tape = Tape::new();
            let (xv, dy) = (crate::cases::random(0, &[rows, d], scale), crate::cases::random(1, &[rows, d], 1.0));
            let x = tape.leaf(xv.clone());
            let (y, l) = (softmax(&tape, &x).unwrap(), log_softmax(&tape, &x, -16.0).unwrap());
            let grads = tape.backward_from(&y, dy.clone(), None).unwrap();
            let dx = grads.get(&x).unwrap();
            for r in 0..rows {
                let row = |t: &Tensor| t.f32s()[r * d..][..d].iter().map(|v| *v as f64).collect::<Vec<f64>>();
                let (x, g) = (row(&xv), row(&dy));
                let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let all: f64 = x.iter().map(|x| (x - most).exp()).sum();
                let p: Vec<f64> = x.iter().map(|x| (x - most).exp() / all).collect();
                let dot: f64 = p.iter().zip(&g).map(|(p, g)| p * g).sum();
                for i in 0..d {
                    prop_assert!((row(y.value())[i] - p[i]).abs() < 1e-6);
                    prop_assert!((row(l.value())[i] - (x[i] - most - all.ln()).max(-16.0)).abs() < 2e-5);
                    prop_assert!((row(dx)[i] - p[i] * (g[i] - dot)).abs() < 1e-5);
                }
            }
        }
    }
}
