use super::*;
use crate::device::Device;

fn leaf(t: &Tape, shape: &[usize], v: &[f32]) -> Var {
    t.leaf(Tensor::from_f32(&Device::Cpu, shape, v.to_vec()).unwrap())
}

fn vec(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

// Small integers: every result is exact.
#[test]
fn modulate_by_hand() {
    let t = Tape::new();
    let x = leaf(&t, &[2, 2, 1], &[1.0, 2.0, 3.0, 4.0]);
    let (shift, scale) = (leaf(&t, &[2, 1], &[10.0, 20.0]), leaf(&t, &[2, 1], &[0.0, 2.0]));
    let y = modulate(&t, &x, &shift, &scale).unwrap();
    assert_eq!(vec(y.value()), [11.0, 12.0, 29.0, 32.0]);
    let dy = Tensor::from_f32(&Device::Cpu, &[2, 2, 1], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    let g = t.backward_from(&y, dy, None).unwrap();
    assert_eq!(vec(g.get(&x).unwrap()), [1.0, 2.0, 9.0, 12.0]); // dy·(1 + scale)
    assert_eq!(vec(g.get(&shift).unwrap()), [3.0, 7.0]); // Σ dy
    assert_eq!(vec(g.get(&scale).unwrap()), [1.0 + 4.0, 9.0 + 16.0]); // Σ dy·x
}

#[test]
fn gate_by_hand() {
    let t = Tape::new();
    let x = leaf(&t, &[1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let y = leaf(&t, &[1, 2, 2], &[5.0, 6.0, 7.0, 8.0]);
    let g = leaf(&t, &[1, 1, 2], &[10.0, -1.0]);
    let out = gate(&t, &x, &y, &g).unwrap();
    assert_eq!(vec(out.value()), [51.0, -4.0, 73.0, -4.0]);
    let dy = Tensor::from_f32(&Device::Cpu, &[1, 2, 2], vec![1.0, 2.0, 3.0, 4.0]).unwrap();
    let grads = t.backward_from(&out, dy, None).unwrap();
    assert_eq!(vec(grads.get(&x).unwrap()), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(vec(grads.get(&y).unwrap()), [10.0, -2.0, 30.0, -4.0]); // g·dy
    assert_eq!(vec(grads.get(&g).unwrap()), [5.0 + 21.0, 12.0 + 32.0]); // Σ dy·y
}

/// adaLN-zero: at initialisation shift, scale and gate are 0 and a block is the identity.
#[test]
fn zeros_change_nothing() {
    let t = Tape::new();
    let x = t.leaf(crate::cases::random(0, &[3, 5, 7], 1.0));
    let zero = leaf(&t, &[3, 7], &[0.0; 21]);
    let y = modulate(&t, &x, &zero, &zero).unwrap();
    assert_eq!(vec(y.value()), vec(x.value()));
    assert_eq!(vec(gate(&t, &x, &y, &zero).unwrap().value()), vec(x.value()));
}

#[test]
fn wrong_shapes_are_errors() {
    let t = Tape::new();
    let x = leaf(&t, &[1, 2, 2], &[0.0; 4]);
    let (good, bad) = (leaf(&t, &[1, 2], &[0.0; 2]), leaf(&t, &[2, 1], &[0.0; 2]));
    let e = modulate(&t, &x, &good, &bad).unwrap_err().to_string();
    assert!(e.contains("scale [2, 1]") && e.contains("[1, 2, 2]"), "{e}");
    assert!(modulate(&t, &x, &bad, &good).is_err() && modulate(&t, &good, &good, &good).is_err());
    assert!(gate(&t, &x, &x, &bad).is_err() && gate(&t, &x, &good, &good).is_err());
}
