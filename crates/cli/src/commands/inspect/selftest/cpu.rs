//! The CPU has no other device to be held against: its gradients are held against finite differences of its outputs, and
//! its results on one thread against those on several.

use tweedie_engine::cases::{self, Case, Size};
use tweedie_engine::{DType, Device, Result, Tape, Tensor, cpu};

use super::Wanted;
use super::findings::{Check, Findings, Result as Found};
use crate::report::{self, Progress};

/// In parts of the gradient's root mean square plus 0.1, which covers f32 rounding of the outputs where it vanishes.
const DIFFERENCE: Check = Check { name: "finite difference", bound: 2e-3 };
const THREADS: Check = Check { name: "1 thread = several", bound: 0.0 };

pub fn legend() -> String {
    format!(
        "finite difference: |numeric − backward| along one direction through all elements, in parts of the gradient's size;\n\
         the bound is {:.0e}. 1 thread = several: output and gradients have the same bits on 1 and on {} threads.\n",
        DIFFERENCE.bound,
        several()
    )
}

fn several() -> usize {
    cpu::threads().max(3) // also on a machine with one core: what counts is how the work is split
}

pub fn check(wanted: &Wanted, progress: &Progress, findings: &mut Findings) -> Result<()> {
    for case in cases::all(Size::Tiny).iter().filter(|c| wanted.has(c.op)) {
        progress.say("finite differences", &format!("{} {}", case.op, case.label));
        if let Err(e) = differences(case, findings) {
            findings.broken(case.op, &case.label, &e.to_string());
        }
    }
    let prints = |threads| {
        let op = wanted.0.clone();
        progress.say(&format!("all cases with {}", report::threads(threads)), "");
        cpu::with_threads(threads, move || fingerprints(&Wanted(op)))
    };
    let (one, many) = (prints(1)?, prints(several())?);
    for (a, b) in one.iter().zip(&many) {
        match (&a.values, &b.values) {
            (Ok(x), Ok(y)) => {
                for ((name, x), (_, y)) in x.iter().zip(y) {
                    findings.note(a.op, &a.label, name, THREADS, Found::SameBits(x == y));
                }
            }
            (Err(e), _) | (_, Err(e)) => findings.broken(a.op, &a.label, e),
        }
    }
    Ok(())
}

/// Σ dy·f(inputs) in f64, with input `which` shifted by `step` along `direction`.
fn projected(case: &Case, dy: &[f32], which: usize, direction: &[f32], step: f32) -> Result<f64> {
    let tape = Tape::inference();
    let mut vars = Vec::new();
    for (i, input) in case.inputs.iter().enumerate() {
        let mut value = input.value.clone();
        if i == which {
            let moved = value.to_vec()?.iter().zip(direction).map(|(v, d)| v + step * d).collect();
            value = Tensor::from_f32(&Device::Cpu, value.shape(), moved)?;
        }
        vars.push(tape.constant(value));
    }
    let out = case.forward(&tape, &vars)?.value().to_vec()?;
    Ok(out.iter().zip(dy).map(|(o, d)| *o as f64 * *d as f64).sum())
}

/// Each gradient of `case` along one direction that touches all elements.
fn differences(case: &Case, findings: &mut Findings) -> Result<()> {
    let out = case.outcome(&Device::Cpu, DType::F32)?;
    let dy = case.output_gradient(&[out.output.len()]).to_vec()?;
    for (which, input) in case.inputs.iter().enumerate().filter(|(_, i)| i.role.has_grad()) {
        let value = format!("d/d{}", input.name);
        let Some((_, grad)) = out.grads.iter().find(|g| g.0 == input.name) else {
            findings.broken(case.op, &case.label, &format!("{value} is missing"));
            continue;
        };
        let direction: Vec<f32> = (0..grad.len()).map(|i| if i * 7 % 3 == 0 { 1.0 } else { -0.5 }).collect();
        let central = |h: f32| -> Result<f64> {
            let (up, down) =
                (projected(case, &dy, which, &direction, h)?, projected(case, &dy, which, &direction, -h)?);
            Ok((up - down) / (2.0 * h as f64))
        };
        // Richardson: truncation falls as h⁴, so h can be large enough that f32 rounding of the outputs stays small.
        let numeric = (4.0 * central(1.0 / 128.0)? - central(1.0 / 64.0)?) / 3.0;
        let exact: f64 = grad.iter().zip(&direction).map(|(g, d)| *g as f64 * *d as f64).sum();
        let length = direction.iter().map(|x| (*x as f64).powi(2)).sum::<f64>().sqrt();
        let rms = (grad.iter().map(|g| (*g as f64).powi(2)).sum::<f64>() / grad.len() as f64).sqrt();
        let error = (numeric - exact).abs() / (length * (rms.max(exact.abs() / length) + 0.1));
        findings.note(case.op, &case.label, &value, DIFFERENCE, Found::Error(error));
    }
    Ok(())
}

struct Print {
    op: &'static str,
    label: String,
    values: std::result::Result<Vec<(String, u64)>, String>,
}

/// FNV-1a over the bits: what is left of each value, since all of them together are gigabytes.
fn fingerprint(v: &[f32]) -> u64 {
    v.iter().fold(0xcbf2_9ce4_8422_2325, |h, x| (h ^ x.to_bits() as u64).wrapping_mul(0x0100_0000_01b3))
}

fn fingerprints(wanted: &Wanted) -> Vec<Print> {
    let print = |case: Case| {
        let values = case.outcome(&Device::Cpu, DType::F32).map_err(|e| e.to_string()).map(|o| {
            let grads = o.grads.iter().map(|(name, g)| (format!("d/d{name}"), fingerprint(g)));
            [("output".to_string(), fingerprint(&o.output))].into_iter().chain(grads).collect()
        });
        Print { op: case.op, label: case.label, values }
    };
    cases::all(Size::Full).into_iter().filter(|c| wanted.has(c.op)).map(print).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie_engine::cases::Role;
    use tweedie_engine::{Backward, Grads, ops};

    struct Silent;
    impl Backward for Silent {
        fn name(&self) -> &'static str {
            "silent"
        }
        fn backward(&self, _: &Tensor, _: &mut Grads) -> Result<()> {
            Ok(())
        }
    }

    /// The check must be able to fail: an op whose output is 2x but whose gradient is that of x, and one without any.
    #[test]
    fn a_wrong_gradient_fails() {
        let wrong = Case::new("wrong", "[5]", |t, v| {
            let hidden = t.constant(v[0].value().clone()); // x again, but without its gradient
            ops::elementwise::add(t, &v[0], &hidden)
        });
        let mut findings = Findings::default();
        differences(&wrong.normal("x", Role::Activation, &[5], 1.0), &mut findings).unwrap();
        assert_eq!(findings.failures().len(), 1, "{:?}", findings.rows());
        let silent = Case::new("silent", "[5]", |t, v| Ok(t.record(v[0].value().clone(), &[&v[0]], || Silent)));
        differences(&silent.normal("x", Role::Activation, &[5], 1.0), &mut findings).unwrap();
        assert_eq!(findings.failures().len(), 2);
    }

    #[test]
    fn fingerprints_see_one_bit_and_order() {
        assert_ne!(fingerprint(&[0.0, 1.0]), fingerprint(&[-0.0, 1.0]));
        assert_ne!(fingerprint(&[0.0, 1.0]), fingerprint(&[1.0, 0.0]));
    }
}
