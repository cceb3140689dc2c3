//! Every op's backward against finite differences of its forward, for every differentiable input, on the CPU.

use tweedie_engine::cases::{self, Size};
use tweedie_engine::{DType, Device, Tape, Tensor, Var, check};

#[test]
fn backward_agrees_with_finite_differences() {
    let mut checked = 0;
    for case in cases::all(Size::Tiny) {
        let moved: Vec<Tensor> = case.inputs.iter().filter(|i| i.role.has_grad()).map(|i| i.value.clone()).collect();
        let run = |tape: &Tape, moved: &[Var]| {
            let mut moved = moved.iter().cloned();
            let own = |tape: &Tape, value: &Tensor| tape.constant(value.clone());
            let of = |i: &cases::Input| {
                if i.role.has_grad() { moved.next() } else { None }.unwrap_or_else(|| own(tape, &i.value))
            };
            let vars: Vec<Var> = case.inputs.iter().map(of).collect();
            case.forward(tape, &vars)
        };
        // 2e-3: rounding of f32 outputs over steps of 1/128.
        checked += check::gradients(run, &moved, 2e-3).unwrap_or_else(|e| panic!("{} {}: {e}", case.op, case.label));
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
