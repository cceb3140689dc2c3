//! What a prediction says about a known token, per row of logits, without the probabilities leaving the device: the log
//! probability of the token, how far the prediction is from it, and the entropy. For measuring, so no gradient flows.

mod cpu;
mod cuda;

use crate::cases::{Case, Role, Size};
use crate::error::{Result, ensure};
use crate::ops::tokens::slice;
use crate::tensor::{DType, Tensor};

crate::cuda::source!("token_scores.cu");

/// Numbers per row.
pub const SCORES: usize = 3;

/// With p = softmax(logits) of each row of `logits` \[…, V\] and its token from `targets` (u32 \[rows\]): ln p(token),
/// ‖onehot(token) − p‖² and −Σ p·ln p, f32 \[rows, 3\]. The second is summed over the other classes, (Σ p)² + Σ p², since
/// 1 − 2·p(token) + Σ p² would lose all digits where p(token) is near 1. A token outside `0..V` is an error on the CPU; the GPU, which does not wait to look, gives NaN.
pub fn token_scores(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    const OP: &str = "token_scores";
    let (rows, v) = (logits.rows(), logits.width());
    ensure!(rows * v > 0, OP, "{logits:?} has no elements");
    ensure!(
        targets.dtype() == DType::U32 && targets.len() == rows && targets.is_beside(logits),
        OP,
        "targets must be u32 [{rows}] on {}, they are {targets:?}",
        logits.device()
    );
    super::check::compute_type(OP, logits, logits.dtype())?;
    if let Some(c) = logits.cuda_device() {
        return cuda::scores(c, logits, targets);
    }
    for (row, &t) in targets.u32s().iter().enumerate() {
        ensure!((t as usize) < v, OP, "row {row} has target {t}, but there are {v} classes");
    }
    Ok(Tensor::from_buf(cpu::scores(logits.f32s(), targets.u32s(), v), &[rows, SCORES]))
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let shapes: &[(&[usize], f32)] = match size {
        Size::Tiny => &[(&[3, 5], 1.0)],
        Size::Full => &[
            (&[1, 1], 1.0),
            (&[3, 10], 3.0),
            (&[2, 197, 27], 1.0),
            (&[5, 2049], 10.0),
            (&[1, 7, 1000], 0.1),
            (&[4, 30_522], 3.0),
        ],
    };
    // Each number by itself: beside ln p the others are small, and an error in them would not show.
    let case = |&(s, scale): &(&[usize], f32), which: usize| {
        let v = s[s.len() - 1];
        let rows = s.iter().product::<usize>() / v;
        let name = ["ln p", "distance", "entropy"][which];
        Case::new("token_scores", format!("{s:?}, logits of size {scale}: {name}"), move |t, x| {
            let all = t.constant(token_scores(x[0].value(), x[1].value())?.reshape(&[rows, SCORES, 1])?);
            slice(t, &all, which..which + 1)
        })
        .normal("logits", Role::Type, s, scale)
        .ids("targets", &[rows], v as u32)
    };
    shapes.iter().flat_map(|s| (0..SCORES).map(move |i| case(s, i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use proptest::prelude::*;

    fn of(rows: usize, v: usize, logits: Vec<f32>, targets: Vec<u32>) -> Result<Vec<f32>> {
        let logits = Tensor::from_f32(&Device::Cpu, &[rows, v], logits)?;
        token_scores(&logits, &Tensor::from_u32(&Device::Cpu, &[rows], targets)?)?.to_vec()
    }

    /// Equal logits: p = 1/V; and a certain one, with the others at −∞.
    #[test]
    fn closed_forms() {
        let s = of(1, 8, vec![3.0; 8], vec![5]).unwrap();
        let ln8 = 8_f32.ln();
        assert!(s.iter().zip([-ln8, 0.875, ln8]).all(|(a, b)| (a - b).abs() < 1e-6), "{s:?}");
        // Nearly certain: p = 1 − δ, the distance is 2·δ² with two classes.
        let s = of(1, 2, vec![0.0, -12.0], vec![0]).unwrap();
        let d = (-12_f64).exp() / (1.0 + (-12_f64).exp());
        assert!((s[1] as f64 / (2.0 * d * d) - 1.0).abs() < 1e-5 && (s[0] as f64 + d).abs() < 1e-7, "{s:?}");
        let s = of(1, 3, vec![f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY], vec![1]).unwrap();
        assert!(s.iter().zip([0.0, 0.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{s:?}");
    }

    #[test]
    fn a_target_outside_is_named() {
        let e = of(2, 3, vec![0.0; 6], vec![0, 3]).unwrap_err().to_string();
        assert!(e.contains("row 1 has target 3"), "{e}");
    }

    proptest! {
        #[test]
        fn agrees_with_f64(rows in 1usize..20, v in 1usize..3000, scale in 0.1f32..20.0) {
            let logits = crate::cases::random(0, &[rows, v], scale).to_vec().unwrap();
            let targets: Vec<u32> = (0..rows as u32).map(|i| i * 977 % v as u32).collect();
            let got = of(rows, v, logits.clone(), targets.clone()).unwrap();
            for r in 0..rows {
                let l: Vec<f64> = logits[r * v..][..v].iter().map(|x| *x as f64).collect();
                let max = l.iter().copied().fold(f64::MIN, f64::max);
                let norm = l.iter().map(|x| (x - max).exp()).sum::<f64>().ln() + max;
                let p = || l.iter().map(|x| x - norm);
                let q = (l[targets[r] as usize] - norm).exp();
                let want = [
                    q.ln(),
                    1.0 - 2.0 * q + p().map(|x| (2.0 * x).exp()).sum::<f64>(),
                    -p().map(|x| x * x.exp()).sum::<f64>(),
                ];
                for (g, w) in got[r * SCORES..].iter().zip(want) {
                    prop_assert!((*g as f64 - w).abs() < 3e-6 * (1.0 + w.abs()), "{g} {w}");
                }
            }
        }
    }
}
