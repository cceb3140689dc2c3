//! An op from outside the crate: forward and backward with what is public, checked by finite differences.

use tweedie_engine::ops::elementwise;
use tweedie_engine::{Backward, DType, Device, Grads, Group, ParamsBuilder, Result, Tape, Tensor, Var, cases, check};

/// x·σ(x), and its gradient in `give` or `write_cpu`.
struct Swish {
    x: Var,
    in_place: bool,
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn swish(tape: &Tape, x: &Var, in_place: bool) -> Result<Var> {
    let y = x.value().as_f32()?.iter().map(|&x| x * sigmoid(x)).collect();
    let y = Tensor::from_f32(&Device::Cpu, x.shape(), y)?;
    Ok(tape.record(y, &[x], || Swish { x: x.clone(), in_place }))
}

impl Backward for Swish {
    fn name(&self) -> &'static str {
        "swish"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        let slope = |x: f32| sigmoid(x) * (1.0 + x * (1.0 - sigmoid(x)));
        let (x, dy) = (self.x.value().as_f32()?, dy.as_f32()?);
        let dx = || x.iter().zip(dy).map(|(&x, dy)| dy * slope(x));
        if self.in_place {
            return grads.write_cpu(&self.x, |to, add| {
                to.iter_mut().zip(dx()).for_each(|(to, d)| *to = if add { *to + d } else { d });
            });
        }
        grads.give(&self.x, Tensor::from_f32(&Device::Cpu, self.x.shape(), dx().collect())?)
    }
}

#[test]
fn an_own_op_agrees_with_finite_differences() {
    for in_place in [false, true] {
        let x = cases::random(1, &[3, 4], 1.0);
        let twice = |tape: &Tape, v: &[Var]| {
            // Two gradients for one input, the second by way of another op.
            let y = swish(tape, &v[0], in_place)?;
            elementwise::add(tape, &swish(tape, &y, in_place)?, &v[0])
        };
        assert_eq!(check::gradients(twice, &[x], 2e-3).unwrap(), 13);
    }
}

/// The gradient of a parameter is added in its flat buffer: y = swish(w) + swish(w).
#[test]
fn gradients_of_parameters_add_up() {
    for in_place in [false, true] {
        let mut b = ParamsBuilder::default();
        let id = b.add("w", &[2], Group::Decay, vec![0.0, 1.0]).unwrap();
        let mut params = b.build(&Device::Cpu, false).unwrap();
        let tape = Tape::new();
        let w = tape.param(&params, id);
        let y = elementwise::add(&tape, &swish(&tape, &w, in_place).unwrap(), &swish(&tape, &w, in_place).unwrap());
        drop(w);
        let loss = elementwise::mean(&tape, &y.unwrap()).unwrap();
        tape.backward(&loss, Some(&mut params)).unwrap();
        // The slope of swish is 1/2 at 0 and σ(1)·(1 + 1 − σ(1)) = 0.92767 at 1; the mean halves, the sum doubles.
        let got = params.grad(id).unwrap().to_vec().unwrap();
        assert!((got[0] - 0.5).abs() < 1e-6 && (got[1] - 0.927_67).abs() < 1e-5, "{got:?}");
    }
}

#[test]
fn a_wrong_slope_is_found() {
    struct Wrong(Var);
    impl Backward for Wrong {
        fn name(&self) -> &'static str {
            "wrong"
        }
        fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
            grads.give(&self.0, dy.clone())
        }
    }
    let f = |tape: &Tape, v: &[Var]| {
        let y = v[0].value().as_f32()?.iter().map(|x| x * 1.02).collect();
        let y = Tensor::from_f32(&Device::Cpu, v[0].shape(), y)?;
        Ok(tape.record(y, &[&v[0]], || Wrong(v[0].clone())))
    };
    let e = check::gradients(f, &[cases::random(1, &[3], 1.0)], 2e-3).unwrap_err().to_string();
    assert!(e.starts_with("gradients: a derivative of input 0"), "{e}");
    let e =
        check::gradients(|_, v| Ok(v[0].clone()), &[cases::random(1, &[3], 1.0), cases::random(2, &[3], 1.0)], 2e-3);
    assert!(e.unwrap_err().to_string().contains("input 1 [3] got no gradient"));
    let ids = Tensor::from_u32(&Device::Cpu, &[1], vec![0]).unwrap();
    assert!(check::gradients(|_, v| Ok(v[0].clone()), &[ids], 2e-3).is_err());
}

/// Gives whatever it is told to.
struct Gives {
    to: Var,
    what: Tensor,
    in_place: bool,
}

impl Backward for Gives {
    fn name(&self) -> &'static str {
        "gives"
    }

    fn backward(&self, _: &Tensor, grads: &mut Grads) -> Result<()> {
        if self.in_place {
            return grads.write_cpu(&self.to, |to, _| to.fill(0.0));
        }
        grads.give(&self.to, self.what.clone())
    }
}

fn backward(x: Tensor, what: Tensor, in_place: bool, other_tape: bool) -> Result<Option<Tensor>> {
    let (tape, other) = (Tape::new(), Tape::new());
    let v = tape.leaf(x);
    let to = if other_tape { other.leaf(v.value().clone()) } else { v.clone() };
    let one = Tensor::from_f32(&Device::Cpu, &[1], vec![1.0])?;
    let y = tape.record(one, &[&v], || Gives { to, what, in_place });
    Ok(tape.backward(&y, None)?.get(&v).cloned())
}

#[test]
fn gradients_that_do_not_fit_are_errors() {
    let f = |shape: &[usize]| cases::random(2, shape, 1.0);
    let bf16 = f(&[2, 3]).cast(DType::Bf16).unwrap();
    let ids = Tensor::zeros(&Device::Cpu, &[2, 3], DType::U32).unwrap();
    assert!(backward(f(&[2, 3]), f(&[2, 3]), false, false).unwrap().is_some());
    for (x, what) in [(f(&[2, 3]), f(&[6])), (f(&[2, 3]), bf16.clone()), (f(&[2, 3]), ids.clone()), (ids.clone(), ids)]
    {
        let e = backward(x, what, false, false).unwrap_err().to_string();
        assert!(e.starts_with("gives: a gradient Tensor") && e.contains("[2, 3]"), "{e}");
    }
    let e = backward(bf16, f(&[1]), true, false).unwrap_err().to_string();
    assert!(e.starts_with("gives: write_cpu") && e.contains("bf16"), "{e}");
    for in_place in [false, true] {
        let e = backward(f(&[2]), f(&[2]), in_place, true).unwrap_err().to_string();
        assert!(e.starts_with("gives: ") && e.contains("another tape"), "{e}");
    }
}

#[test]
fn tapes_and_parameters_must_belong_together() {
    let build = || {
        let mut b = ParamsBuilder::default();
        let id = b.add("w", &[2], Group::Decay, vec![1.0; 2]).unwrap();
        (b.build(&Device::Cpu, false).unwrap(), id)
    };
    let ((params, id), (mut others, _)) = (build(), build());
    let tape = Tape::new();
    let loss = elementwise::mean(&tape, &tape.param(&params, id)).unwrap();
    let e = tape.backward(&loss, Some(&mut others)).err().unwrap().to_string();
    assert!(e.contains("not among those given"), "{e}");
    let e = Tape::new().backward(&loss, None).err().unwrap().to_string();
    assert!(e.contains("another tape"), "{e}");
    let tape = Tape::new();
    let x = tape.leaf(cases::random(0, &[2], 1.0));
    let dy = Tensor::zeros(&Device::Cpu, &[2], DType::U32).unwrap();
    let e = tape.backward_from(&x, dy, None).err().unwrap().to_string();
    assert!(e.contains("u32") && e.contains("does not fit"), "{e}");
}
