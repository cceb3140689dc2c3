use super::*;
use crate::cases::random;
use crate::device::Device;

fn ids(v: &[u32]) -> Tensor {
    Tensor::from_u32(&Device::Cpu, &[v.len()], v.to_vec()).unwrap()
}

fn noise() -> Noise {
    Noise::new(&Device::Cpu, 11, 2, 3).unwrap()
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::from_f32(&Device::Cpu, shape, vec![1.0; shape.iter().product()]).unwrap()
}

fn vec(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// The mean of n values that are 1/(1−p) with probability 1−p, else 0: 1, with variance p/(1−p)/n.
#[test]
fn the_mean_is_kept_within_five_standard_errors() {
    let n = 400_000;
    let t = Tape::inference();
    for p in [0.1_f32, 0.5, 0.9] {
        let bound = 5.0 * (p as f64 / (1.0 - p as f64) / n as f64).sqrt();
        let rows: Vec<u32> = (0..n as u32).collect();
        let elements = dropout(&t, &t.constant(ones(&[4, n / 4])), p, &noise(), &ids(&rows[..4])).unwrap();
        let examples = drop_path(&t, &t.constant(ones(&[n, 1])), p, &noise(), &ids(&rows)).unwrap();
        for y in [elements, examples] {
            let v = vec(y.value());
            let mean = v.iter().map(|&x| x as f64).sum::<f64>() / n as f64;
            assert!((mean - 1.0).abs() < bound, "p = {p}: {mean}");
            assert!(v.iter().all(|&x| x == 0.0 || x == 1.0 / (1.0 - p)));
        }
    }
}

/// The mask is the noise's own: number i of row e below p means dropped.
#[test]
fn the_mask_is_that_of_the_uniform_numbers() {
    let examples = ids(&[9, 4, 1_000_000]);
    let u = vec(&noise().later(2).uniform(&examples, 7).unwrap());
    let t = Tape::inference();
    let y = dropout(&t, &t.constant(ones(&[3, 7])), 0.4, &noise().later(2), &examples).unwrap();
    let kept: Vec<bool> = vec(y.value()).iter().map(|&y| y != 0.0).collect();
    assert_eq!(kept, u.iter().map(|&u| u >= 0.4).collect::<Vec<_>>());
}

/// Dropped elements have no gradient, kept ones 1/(1−p) of it: the same mask, drawn again.
#[test]
fn backward_is_zero_exactly_where_forward_is() {
    for op in [dropout, drop_path] {
        let t = Tape::new();
        let x = t.leaf(random(0, &[64, 3, 5], 1.0));
        let examples: Vec<u32> = (0..64).map(|i| i * 17 + 3).collect();
        let y = op(&t, &x, 0.25, &noise(), &ids(&examples)).unwrap();
        let out = vec(y.value());
        assert!(out.contains(&0.0) && out.iter().any(|&v| v != 0.0));
        let dy = random(1, &[64, 3, 5], 1.0);
        let g = t.backward_from(&y, dy.clone(), None).unwrap();
        for ((y, g), dy) in out.iter().zip(vec(g.get(&x).unwrap())).zip(vec(&dy)) {
            assert_eq!(g, if *y == 0.0 { 0.0 } else { dy * (1.0 / 0.75) });
        }
    }
}

#[test]
fn an_example_has_its_mask_at_any_place_in_any_batch() {
    for op in [dropout, drop_path] {
        let t = Tape::inference();
        let mask = |examples: &[u32]| {
            let y = op(&t, &t.constant(ones(&[examples.len(), 13])), 0.5, &noise(), &ids(examples)).unwrap();
            vec(y.value())
        };
        let all: Vec<u32> = (0..40).collect();
        let in_order = mask(&all);
        let reversed = mask(&all.iter().rev().copied().collect::<Vec<_>>());
        for e in 0..40 {
            let row = &in_order[e * 13..(e + 1) * 13];
            assert_eq!(row, &reversed[(39 - e) * 13..(40 - e) * 13]);
            assert_eq!(row, mask(&[e as u32]));
        }
        // Other steps have other masks: 40 equal coins have probability 1e-12.
        let y = op(&t, &t.constant(ones(&[40, 13])), 0.5, &noise().later(1), &ids(&all)).unwrap();
        assert_ne!(vec(y.value()), in_order);
    }
}

#[test]
fn drop_path_keeps_or_drops_whole_examples() {
    let t = Tape::inference();
    let x = random(0, &[200, 3, 2], 1.0);
    let examples: Vec<u32> = (0..200).collect();
    let y = vec(drop_path(&t, &t.constant(x.clone()), 0.5, &noise(), &ids(&examples)).unwrap().value());
    let x = vec(&x);
    let mut dropped = 0;
    for (y, x) in y.chunks(6).zip(x.chunks(6)) {
        if y.iter().all(|&y| y == 0.0) {
            dropped += 1;
        } else {
            assert!(y.iter().zip(x).all(|(y, x)| *y == 2.0 * x));
        }
    }
    assert!((65..=135).contains(&dropped), "{dropped}"); // 100 ± 5 standard deviations of 7.1
}

/// A dropped element is 0 even where the input is not a number.
#[test]
fn dropped_elements_do_not_spread_infinities() {
    let t = Tape::inference();
    let x = Tensor::from_f32(&Device::Cpu, &[1, 100], vec![f32::INFINITY; 100]).unwrap();
    let y = vec(dropout(&t, &t.constant(x), 0.5, &noise(), &ids(&[0])).unwrap().value());
    assert!(y.iter().all(|y| *y == 0.0 || *y == f32::INFINITY) && y.contains(&0.0));
}

#[test]
fn zero_is_the_identity_and_other_probabilities_are_refused() {
    let t = Tape::new();
    let x = t.leaf(random(0, &[2, 3], 1.0));
    for op in [dropout, drop_path] {
        assert_eq!(vec(op(&t, &x, 0.0, &noise(), &ids(&[0, 1])).unwrap().value()), vec(x.value()));
        for p in [1.0, -0.1, f32::NAN] {
            assert!(op(&t, &x, p, &noise(), &ids(&[0, 1])).unwrap_err().to_string().contains("probability"));
        }
        assert!(op(&t, &x, 0.5, &noise(), &ids(&[0])).is_err());
        assert!(op(&t, &x, 0.5, &noise(), &random(0, &[2], 1.0)).is_err());
    }
}
