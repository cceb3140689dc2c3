use super::*;
use crate::cases::random;

fn vec(x: &Var) -> Vec<f32> {
    x.value().to_vec().unwrap()
}

/// `x` rotated, from a copy that others hold or in place.
fn rotated(x: &Tensor, head: usize, columns: usize, rows: Range<usize>, alone: bool) -> Vec<f32> {
    let (tape, angles) = (Tape::inference(), RotaryTable::new(&Device::Cpu, rows.len().max(1), head).unwrap());
    let own = Tensor::from_f32(&Device::Cpu, x.shape(), x.to_vec().unwrap()).unwrap();
    let held = (!alone).then(|| own.clone());
    let y = vec(&rotary(&tape, tape.constant(own), &angles, columns, rows).unwrap());
    if let Some(held) = held {
        assert_eq!(held.to_vec().unwrap(), x.to_vec().unwrap(), "what others hold is not overwritten");
    }
    y
}

/// Angles 0, 1, 2 of a head of two, and 1 and 1/100 of the pairs of a head of four.
#[test]
fn angles_by_hand() {
    let close = |got: &[f32], want: &[f64]| {
        assert!(got.iter().zip(want).all(|(g, w)| (*g as f64 - w).abs() < 1e-6), "{got:?} {want:?}");
    };
    let x = Tensor::from_f32(&Device::Cpu, &[1, 3, 2], vec![1.0, 0.0, 1.0, 0.0, 0.0, 1.0]).unwrap();
    let (s, c) = (f64::sin, f64::cos);
    close(&rotated(&x, 2, 2, 0..3, false), &[1.0, 0.0, c(1.0), s(1.0), -s(2.0), c(2.0)]);
    let x = Tensor::from_f32(&Device::Cpu, &[1, 2, 4], vec![1.0, 1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]).unwrap();
    close(&rotated(&x, 4, 4, 0..2, false)[4..], &[c(1.0), 2.0 * c(0.01), s(1.0), 2.0 * s(0.01)]);
}

/// The same query and key at all pairs of places: the product is one number per distance, and not one for all.
#[test]
fn products_depend_on_the_distance_alone() {
    let (n, head) = (40, 16);
    let (q, k) = (random(1, &[head], 1.0).to_vec().unwrap(), random(2, &[head], 1.0).to_vec().unwrap());
    let x = Tensor::from_f32(&Device::Cpu, &[1, n, 2 * head], [q, k].concat().repeat(n)).unwrap();
    let y = rotated(&x, head, 2 * head, 0..n, true);
    let product = |i: usize, j: usize| -> f64 {
        let (q, k) = (&y[i * 2 * head..][..head], &y[j * 2 * head + head..][..head]);
        q.iter().zip(k).map(|(q, k)| *q as f64 * *k as f64).sum()
    };
    let mut seen = Vec::new();
    for distance in 0..n {
        let at = |i: usize| (product(i, i + distance), product(i + distance, i));
        let (ahead, behind) = at(0);
        for i in 1..n - distance {
            // Rounding of 16 products of a few units.
            assert!((at(i).0 - ahead).abs() < 1e-5 && (at(i).1 - behind).abs() < 1e-5, "{distance} {i}");
        }
        assert!(distance == 0 || (ahead - behind).abs() > 1e-3, "before and after look the same at {distance}");
        seen.push(ahead);
    }
    assert!(seen.windows(2).all(|d| (d[0] - d[1]).abs() > 1e-4), "{seen:?}");
}

/// The gradient of the rotated values, taken as their own gradient, is what was there before; nothing else changes a bit.
#[test]
fn backward_is_the_inverse_and_the_rest_is_untouched() {
    for (shape, head, columns, rows) in
        [([2, 7, 30], 10, 20, 2..7), ([2, 5, 21], 7, 14, 0..4), ([1, 3, 8], 4, 0, 0..3), ([3, 4, 8], 4, 8, 2..2)]
    {
        let x = random(3, &shape, 1.0);
        let before = x.to_vec().unwrap();
        let y = rotated(&x, head, columns, rows.clone(), false);
        assert_eq!(y, rotated(&x, head, columns, rows.clone(), true));
        let [_, l, w] = shape;
        for (i, (before, after)) in before.iter().zip(&y).enumerate() {
            let (place, column) = (i / w % l, i % w);
            let inside = rows.contains(&place) && column < columns && column % head < head / 2 * 2;
            // At the first place all angles are 0.
            let moved = inside && place > rows.start;
            assert_eq!(before.to_bits() != after.to_bits(), moved, "{shape:?} place {place} column {column}");
        }
        let (tape, angles) = (Tape::new(), RotaryTable::new(&Device::Cpu, l, head).unwrap());
        let x = tape.leaf(x);
        let out = rotary(&tape, x.clone(), &angles, columns, rows).unwrap();
        let grads = tape.backward_from(&out, out.value().clone(), None).unwrap();
        let back = grads.get(&x).unwrap().to_vec().unwrap();
        assert!(before.iter().zip(&back).all(|(a, b)| (a - b).abs() < 1e-6 * a.abs().max(1.0)));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (tape, angles) = (Tape::inference(), RotaryTable::new(&Device::Cpu, 4, 6).unwrap());
    let refused = |columns: usize, rows: Range<usize>, word: &str| {
        let x = tape.constant(random(0, &[2, 5, 18], 1.0));
        let e = rotary(&tape, x, &angles, columns, rows).unwrap_err().to_string();
        assert!(e.contains("rotary") && e.contains(word), "{e}");
    };
    refused(7, 0..4, "whole heads");
    refused(24, 0..4, "whole heads");
    refused(12, 2..6, "rows 2..6");
    refused(12, 0..5, "4 places");
    assert!(RotaryTable::new(&Device::Cpu, 4, 1).is_err());
}
