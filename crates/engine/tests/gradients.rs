//! Every op's backward against finite differences of its forward, for every differentiable input, on the CPU.

use tweedie_engine::cases::{self, Case, Size};
use tweedie_engine::{DType, Device, Tape, Tensor};

/// Σ dy·f(inputs) in f64, with input `which` shifted by `step` along `direction`.
fn projected(case: &Case, dy: &[f32], which: usize, direction: &[f32], step: f32) -> f64 {
    let tape = Tape::inference();
    let mut vars = Vec::new();
    for (i, input) in case.inputs.iter().enumerate() {
        let mut value = input.value.clone();
        if i == which {
            let v = value.to_vec().unwrap();
            let moved = v.iter().zip(direction).map(|(v, d)| v + step * d).collect();
            value = Tensor::from_f32(&Device::Cpu, value.shape(), moved).unwrap();
        }
        vars.push(tape.constant(value));
    }
    let out = case.forward(&tape, &vars).unwrap().value().to_vec().unwrap();
    out.iter().zip(dy).map(|(o, d)| *o as f64 * *d as f64).sum()
}

#[test]
fn backward_agrees_with_finite_differences() {
    let mut checked = 0;
    for case in cases::all(Size::Tiny) {
        let name = format!("{} {}", case.op, case.label);
        let out = case.outcome(&Device::Cpu, DType::F32).unwrap();
        let shape = [out.output.len()];
        let dy = case.output_gradient(&shape).to_vec().unwrap();
        for (which, input) in case.inputs.iter().enumerate().filter(|(_, i)| i.role.has_grad()) {
            let n = input.value.len();
            let (_, grad) = out
                .grads
                .iter()
                .find(|g| g.0 == input.name)
                .unwrap_or_else(|| panic!("{name}: no gradient for {}", input.name));
            assert_eq!(grad.len(), n, "{name}: gradient of {} has the wrong size", input.name);
            let norm = (grad.iter().map(|g| (*g as f64).powi(2)).sum::<f64>() / n as f64).sqrt();
            // Up to 24 single coordinates and one direction that touches all of them.
            let mut directions: Vec<Vec<f32>> =
                (0..n.min(24)).map(|i| (0..n).map(|j| (j == i * n / n.min(24)) as u8 as f32).collect()).collect();
            directions.push((0..n).map(|i| if i * 7 % 3 == 0 { 1.0 } else { -0.5 }).collect());
            for d in &directions {
                // Richardson extrapolation of central differences: truncation falls as h⁴, so h can be large enough
                // that f32 rounding of the outputs (1e-7 · |f| / h) stays small.
                let central = |h: f32| {
                    (projected(&case, &dy, which, d, h) - projected(&case, &dy, which, d, -h)) / (2.0 * h as f64)
                };
                let numeric = (4.0 * central(1.0 / 128.0) - central(1.0 / 64.0)) / 3.0;
                let exact: f64 = grad.iter().zip(d).map(|(g, d)| *g as f64 * *d as f64).sum();
                let length = d.iter().map(|x| (*x as f64).powi(2)).sum::<f64>().sqrt();
                // 2e-3 of the gradient's own scale; the constant covers rounding where the gradient itself vanishes.
                let bound = length * (2e-3 * norm.max(exact.abs() / length) + 2e-4);
                assert!(
                    (numeric - exact).abs() < bound,
                    "{name}: d/d{}: finite difference {numeric}, backward {exact}",
                    input.name
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "only {checked} derivatives were checked");
}

/// An op that is missing from the cases would be tested nowhere.
#[test]
fn every_full_case_runs_and_is_finite() {
    for case in cases::all(Size::Full) {
        let out = case.outcome(&Device::Cpu, DType::F32).unwrap_or_else(|e| panic!("{} {}: {e}", case.op, case.label));
        let differentiable = case.inputs.iter().filter(|i| i.role.has_grad()).count();
        assert_eq!(out.grads.len(), differentiable, "{} {}: a gradient is missing", case.op, case.label);
        let all = out.grads.iter().flat_map(|g| &g.1).chain(&out.output);
        assert!(all.into_iter().all(|v| v.is_finite()), "{} {}: not finite", case.op, case.label);
    }
}
