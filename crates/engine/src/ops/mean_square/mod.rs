//! Weighted mean square error of each row: w·mean((p − t)²) over the last axis, f32 in every mode.

mod cpu;
mod cuda;

use super::check;
use crate::cases::{Case, Role, Size};
use crate::error::{Result, ensure};
use crate::tape::{Backward, Grads, Tape, Var};
use crate::tensor::Tensor;

crate::cuda::source!("mean_square.cu");

struct MeanSquare {
    prediction: Var,
    target: Tensor,
    weights: Option<Tensor>,
}

/// The loss of each row of `prediction` \[…, d\] against `target` (f32, the same shape), times `weights` (f32 \[rows\]);
/// f32 \[rows\]. No gradient flows into target and weights.
pub fn mean_square(tape: &Tape, prediction: &Var, target: &Tensor, weights: Option<&Tensor>) -> Result<Var> {
    const OP: &str = "mean_square";
    let p = prediction.value();
    check::values(OP, "the prediction", p)?;
    ensure!(target.shape() == p.shape(), OP, "the target must be f32 {:?}, it is {target:?}", p.shape());
    check::f32s(OP, "the target", target, p)?;
    if let Some(w) = weights {
        ensure!(w.len() == p.rows(), OP, "weights must be f32 [{}], they are {w:?}", p.rows());
        check::f32s(OP, "each weight", w, p)?;
    }
    let y = match p.cuda_device() {
        Some(c) => cuda::forward(c, p, target, weights)?,
        None => {
            let y = cpu::forward(p.f32s(), target.f32s(), weights.map(Tensor::f32s), p.width());
            Tensor::from_buf(y, &[p.rows()])
        }
    };
    Ok(tape.record(y, &[prediction], || MeanSquare {
        prediction: prediction.clone(),
        target: target.clone(),
        weights: weights.cloned(),
    }))
}

impl Backward for MeanSquare {
    fn name(&self) -> &'static str {
        "mean_square"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        if let Some(c) = dy.cuda_device() {
            return cuda::backward(c, self, dy, grads);
        }
        let (p, t, w) = (self.prediction.value(), self.target.f32s(), self.weights.as_ref().map(Tensor::f32s));
        grads.write_cpu(&self.prediction, |dp, acc| cpu::backward(p.f32s(), t, w, dy.f32s(), p.width(), dp, acc))
    }
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[&[usize]] = match size {
        Size::Tiny => &[&[3, 5], &[2, 1, 8], &[1, 1]],
        Size::Full => &[&[1, 1], &[3, 10], &[1, 197, 27], &[5, 197, 64], &[2, 7, 768], &[4, 2049]],
    };
    let mut out = Vec::new();
    for &s in shapes {
        let rows = s.iter().product::<usize>() / s[s.len() - 1];
        let make = |label: &str, weighted: bool, twice: bool| {
            let case = Case::new("mean_square", format!("{s:?}{label}"), move |t, v| {
                let w = weighted.then(|| v[2].value());
                let y = mean_square(t, &v[0], v[1].value(), w)?;
                if !twice {
                    return Ok(y);
                }
                // A gradient that comes second to its input: it must be added.
                crate::ops::elementwise::add(t, &y, &mean_square(t, &v[0], v[1].value(), None)?)
            });
            let case = case.normal("prediction", Role::Activation, s, 1.0).normal("target", Role::Data, s, 1.0);
            if weighted { case.normal("weights", Role::Data, &[rows], 1.0) } else { case }
        };
        out.extend([make("", false, false), make(" weights", true, false), make(" twice", true, true)]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use proptest::prelude::*;

    fn tensor(shape: &[usize], v: Vec<f32>) -> Tensor {
        Tensor::from_f32(&Device::Cpu, shape, v).unwrap()
    }

    #[test]
    fn closed_form() {
        let tape = Tape::new();
        let p = tape.leaf(tensor(&[2, 2], vec![1.0, 2.0, 3.0, 4.0]));
        let t = tensor(&[2, 2], vec![0.0, 4.0, 3.0, 1.0]);
        let y = mean_square(&tape, &p, &t, Some(&tensor(&[2], vec![1.0, 2.0]))).unwrap();
        assert_eq!(y.value().to_vec().unwrap(), [2.5, 9.0]); // (1 + 4)/2 and 2·(0 + 9)/2
        let g = tape.backward_from(&y, tensor(&[2], vec![1.0, 0.5]), None).unwrap();
        assert_eq!(g.get(&p).unwrap().to_vec().unwrap(), [1.0, -2.0, 0.0, 3.0]); // g·w·2/d·(p − t)
    }

    #[test]
    fn wrong_shapes_are_errors() {
        let tape = Tape::inference();
        let p = tape.constant(tensor(&[2, 2], vec![0.0; 4]));
        assert!(mean_square(&tape, &p, &tensor(&[4], vec![0.0; 4]), None).is_err());
        let (t, w) = (tensor(&[2, 2], vec![0.0; 4]), tensor(&[3], vec![0.0; 3]));
        let e = mean_square(&tape, &p, &t, Some(&w)).err().unwrap().to_string();
        assert!(e.starts_with("mean_square: weights must be f32 [2]"), "{e}");
    }

    proptest! {
        #[test]
        fn agrees_with_f64(rows in 1usize..200, d in 1usize..600, weighted: bool) {
            let tape = Tape::new();
            let [pv, tv] = [0, 1].map(|s| crate::cases::random(s, &[rows, d], 1.0));
            let wv = crate::cases::random(2, &[rows], 1.0);
            let dy = crate::cases::random(3, &[rows], 1.0);
            let p = tape.leaf(pv.clone());
            let y = mean_square(&tape, &p, &tv, weighted.then_some(&wv)).unwrap();
            let grads = tape.backward_from(&y, dy.clone(), None).unwrap();
            let (got, dp) = (y.value().f32s(), grads.get(&p).unwrap().f32s());
            for r in 0..rows {
                let w = if weighted { wv.f32s()[r] as f64 } else { 1.0 };
                let diff = |i: usize| (pv.f32s()[r * d + i] - tv.f32s()[r * d + i]) as f64;
                let want = w * (0..d).map(|i| diff(i).powi(2)).sum::<f64>() / d as f64;
                prop_assert!((got[r] as f64 - want).abs() < 1e-6 * (1.0 + want.abs()), "{} {want}", got[r]);
                for i in 0..d {
                    let want = dy.f32s()[r] as f64 * w * 2.0 / d as f64 * diff(i);
                    prop_assert!((dp[r * d + i] as f64 - want).abs() < 1e-6 * (1e-2 + want.abs()));
                }
            }
        }
    }
}
