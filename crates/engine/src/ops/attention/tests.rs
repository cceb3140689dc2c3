//! Attention against its definition in f64.

use proptest::prelude::*;

use super::*;
use crate::Device;
use crate::cases::random;
use crate::ops::elementwise::reshape;
use crate::ops::tokens::{concat, slice};

/// One problem: packed self-attention if `lk` is `None`.
#[derive(Clone, Debug)]
struct Problem {
    b: usize,
    lq: usize,
    lk: Option<usize>,
    h: usize,
    d: usize,
    prefix: usize,
    mask: Option<Vec<u32>>,
}

/// Output and gradients, flat: o, then d(qkv) or dq and dkv.
type Flat = Vec<Vec<f64>>;

impl Problem {
    fn keys(&self) -> usize {
        self.lk.unwrap_or(self.lq)
    }

    fn inputs(&self) -> Vec<Tensor> {
        let w = self.h * self.d;
        match self.lk {
            None => vec![random(1, &[self.b, self.lq, 3 * w], 1.0)],
            Some(lk) => vec![random(1, &[self.b, self.lq, w], 1.0), random(2, &[self.b, lk, 2 * w], 1.0)],
        }
    }

    fn d_o(&self) -> Tensor {
        random(3, &[self.b, self.lq, self.h * self.d], 1.0)
    }

    fn engine(&self) -> Flat {
        let tape = Tape::new();
        let vars: Vec<Var> = self.inputs().into_iter().map(|t| tape.leaf(t)).collect();
        let mask = self.mask.clone().map(|m| Tensor::from_u32(&Device::Cpu, &[self.b, self.keys()], m).unwrap());
        let o = match vars.as_slice() {
            [qkv] => attention(&tape, qkv, self.h, &Mask { keys: mask.as_ref(), prefix: self.prefix }),
            [q, kv] => cross_attention(&tape, q, kv, self.h, mask.as_ref()),
            _ => unreachable!(),
        }
        .unwrap();
        let out = o.value().to_vec().unwrap();
        let grads = tape.backward_from(&o, self.d_o(), None).unwrap();
        let mut flat = vec![out];
        flat.extend(vars.iter().map(|v| grads.get(v).unwrap().to_vec().unwrap()));
        flat.into_iter().map(|v| v.into_iter().map(f64::from).collect()).collect()
    }

    /// softmax(QKᵀ/√D)·V and its gradients, written down as sums over single elements.
    fn definition(&self) -> Flat {
        let (lq, lk, w, d) = (self.lq, self.keys(), self.h * self.d, self.d);
        let x: Vec<Vec<f64>> =
            self.inputs().iter().map(|t| t.to_vec().unwrap().into_iter().map(f64::from).collect()).collect();
        let d_o = self.d_o().to_vec().unwrap();
        let packed = self.lk.is_none();
        // Positions of element 0 of (b, row, head): queries in x[0], keys and values in the last tensor.
        let q_at = |b: usize, i: usize, h: usize| (b * lq + i) * if packed { 3 * w } else { w } + h * d;
        let k_at = |b: usize, j: usize, h: usize| {
            if packed { (b * lk + j) * 3 * w + w + h * d } else { (b * lk + j) * 2 * w + h * d }
        };
        let last = x.len() - 1;
        let mut o = vec![0.0; self.b * lq * w];
        let mut g: Vec<Vec<f64>> = x.iter().map(|t| vec![0.0; t.len()]).collect();
        let scale = 1.0 / (d as f64).sqrt();
        for (b, h, i) in (0..self.b).flat_map(|b| (0..self.h).flat_map(move |h| (0..lq).map(move |i| (b, h, i)))) {
            let seen: Vec<usize> = (0..lk)
                .filter(|&j| {
                    (i >= self.prefix || j < self.prefix) && self.mask.as_ref().is_none_or(|m| m[b * lk + j] != 0)
                })
                .collect();
            let q = &x[0][q_at(b, i, h)..][..d];
            let e: Vec<f64> = seen
                .iter()
                .map(|&j| (scale * (0..d).map(|c| q[c] * x[last][k_at(b, j, h) + c]).sum::<f64>()).exp())
                .collect();
            let total: f64 = e.iter().sum();
            let p: Vec<f64> = e.iter().map(|e| e / total).collect();
            let at = (b * lq + i) * w + h * d;
            for (&j, p) in seen.iter().zip(&p) {
                for c in 0..d {
                    o[at + c] += p * x[last][k_at(b, j, h) + w + c];
                }
            }
            let dp: Vec<f64> = seen
                .iter()
                .map(|&j| (0..d).map(|c| d_o[at + c] as f64 * x[last][k_at(b, j, h) + w + c]).sum())
                .collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for ((&j, p), dp) in seen.iter().zip(&p).zip(&dp) {
                let ds = scale * p * (dp - mean);
                for c in 0..d {
                    g[0][q_at(b, i, h) + c] += ds * x[last][k_at(b, j, h) + c];
                    g[last][k_at(b, j, h) + c] += ds * x[0][q_at(b, i, h) + c];
                    g[last][k_at(b, j, h) + w + c] += p * d_o[at + c] as f64;
                }
            }
        }
        let mut flat = vec![o];
        flat.extend(g);
        flat
    }

    /// f32 sums of at most a few hundred terms of order 1: 1e-5 relative to the largest element is ten times the
    /// rounding seen.
    fn check(&self) {
        for (which, (got, want)) in self.engine().iter().zip(&self.definition()).enumerate() {
            assert_eq!(got.len(), want.len());
            let bound = 1e-5 * want.iter().fold(1.0_f64, |m, w| m.max(w.abs()));
            for (i, (g, w)) in got.iter().zip(want).enumerate() {
                assert!((g - w).abs() < bound, "{self:?}: tensor {which} element {i}: {g}, by definition {w}");
            }
        }
    }
}

fn problem(b: usize, lq: usize, lk: Option<usize>, h: usize, d: usize) -> Problem {
    Problem { b, lq, lk, h, d, prefix: 0, mask: None }
}

#[test]
fn agrees_with_the_definition_across_tiles() {
    // Longer than one tile forward and backward, plain, with a prefix that cuts a tile, and with padding.
    problem(1, 150, None, 2, 8).check();
    Problem { prefix: 70, ..problem(1, 150, None, 1, 8) }.check();
    problem(2, 140, Some(70), 1, 8).check();
    let mask = (0..300).map(|i| (i % 4 != 1) as u32).collect();
    Problem { prefix: 20, mask: Some(mask), ..problem(2, 150, None, 1, 8) }.check();
}

#[test]
fn a_query_that_sees_no_key_gives_zero_without_gradient() {
    // Example 0 hides all keys; example 1 only those of its prefix, so the rows 0 and 1 see nothing.
    let mask = vec![0, 0, 0, 0, 0, 0, 0, 7, 1, 1];
    let p = Problem { prefix: 2, mask: Some(mask), ..problem(2, 5, None, 2, 3) };
    p.check();
    let got = p.engine();
    let w = p.h * p.d;
    assert!(got[0][..(5 + 2) * w].iter().all(|&o| o == 0.0), "output {:?}", got[0]);
    assert!(got[1][..5 * 3 * w].iter().all(|&g| g == 0.0), "gradient {:?}", got[1]);
    assert!(got[0][(5 + 2) * w..].iter().all(|&o| o != 0.0));
}

#[test]
fn large_scores_do_not_overflow() {
    // Scores of ±10⁴: softmax must pick the largest and stay finite.
    let qkv = vec![100.0, 100.0, 5.0, /* */ 100.0, -100.0, 7.0];
    let tape = Tape::new();
    let qkv = tape.leaf(Tensor::from_f32(&Device::Cpu, &[1, 2, 3], qkv).unwrap());
    let o = attention(&tape, &qkv, 1, &Mask::default()).unwrap();
    assert_eq!(o.value().to_vec().unwrap(), [5.0, 5.0]);
    let one = Tensor::from_f32(&Device::Cpu, &[1, 2, 1], vec![1.0; 2]).unwrap();
    let g = tape.backward_from(&o, one, None).unwrap().get(&qkv).unwrap().to_vec().unwrap();
    assert_eq!(g, [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
}

#[test]
fn a_prefix_computes_what_it_would_alone() {
    let (l, prefix, h, d) = (89, 65, 3, 64);
    let qkv = random(5, &[1, l, 3 * h * d], 1.0);
    let alone = qkv.view(0, &[1, prefix, 3 * h * d]);
    let run = |x: Tensor, prefix| {
        let tape = Tape::inference();
        let x = tape.constant(x);
        attention(&tape, &x, h, &Mask { keys: None, prefix }).unwrap().value().to_vec().unwrap()
    };
    let (both, alone) = (run(qkv, prefix), run(alone, 0));
    for (a, b) in both.iter().zip(&alone) {
        // The tiles of rows differ, so sums may round differently.
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert_eq!(alone.len(), prefix * h * d);
}

#[test]
fn the_number_of_threads_does_not_show_in_the_bits() {
    let long = Problem { prefix: 100, ..problem(1, 300, None, 3, 32) };
    for p in [problem(3, 65, None, 3, 64), long, problem(2, 90, Some(197), 2, 64)] {
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| p.engine())
        };
        let one = with(1);
        for threads in [2, 3, 5] {
            assert_eq!(one, with(threads), "{p:?} with {threads} threads");
        }
    }
}

#[test]
fn only_wanted_gradients_are_made() {
    let p = problem(2, 5, Some(7), 2, 4);
    let both = p.engine();
    for want in [0, 1] {
        let tape = Tape::new();
        let x = p.inputs();
        let vars: Vec<Var> =
            x.into_iter().enumerate().map(|(i, t)| if i == want { tape.leaf(t) } else { tape.constant(t) }).collect();
        let o = cross_attention(&tape, &vars[0], &vars[1], p.h, None).unwrap();
        let grads = tape.backward_from(&o, p.d_o(), None).unwrap();
        let got: Vec<f64> = grads.get(&vars[want]).unwrap().to_vec().unwrap().into_iter().map(f64::from).collect();
        assert_eq!(got, both[1 + want]);
        assert!(grads.get(&vars[1 - want]).is_none());
    }
}

#[test]
fn wrong_shapes_and_masks_are_refused() {
    let tape = Tape::new();
    let var = |shape: &[usize]| tape.constant(random(0, shape, 1.0));
    let plain = Mask::default();
    let message = |r: Result<Var>| r.unwrap_err().to_string();
    assert!(message(attention(&tape, &var(&[2, 5, 20]), 2, &plain)).contains("2 heads"));
    assert!(attention(&tape, &var(&[2, 5, 12]), 0, &plain).is_err());
    assert!(attention(&tape, &var(&[2, 0, 12]), 2, &plain).is_err());
    assert!(attention(&tape, &var(&[2, 5, 3, 3, 2]), 2, &plain).is_err());
    assert!(attention(&tape, &var(&[2, 5, 3, 2, 2]), 2, &plain).is_ok());
    assert!(attention(&tape, &var(&[2, 5, 12]), 2, &Mask { prefix: 6, ..plain }).is_err());
    let short = Tensor::from_u32(&Device::Cpu, &[2, 4], vec![1; 8]).unwrap();
    let wrong = message(attention(&tape, &var(&[2, 5, 12]), 2, &Mask { keys: Some(&short), prefix: 0 }));
    assert!(wrong.contains("[2, 5]"), "{wrong}");
    assert!(cross_attention(&tape, &var(&[2, 5, 8]), &var(&[2, 4, 12]), 2, None).is_err());
    assert!(cross_attention(&tape, &var(&[2, 5, 8]), &var(&[3, 4, 16]), 2, None).is_err());
    assert!(cross_attention(&tape, &var(&[2, 5, 8]), &var(&[2, 4, 16]), 3, None).is_err());
    assert!(cross_attention(&tape, &var(&[2, 5, 8]), &var(&[2, 4, 16]), 2, Some(&short)).is_ok());
}

/// Output and gradients of qkv and keys, by the op or by ops that copy every example's row beside its own keys.
fn joint(of: &[u32], rows: usize, [n, c, h, d]: [usize; 4], by_copies: bool) -> Vec<Vec<f32>> {
    let w = h * d;
    let tape = Tape::new();
    let qkv = tape.leaf(random(1, &[of.len(), n, 3 * w], 1.0));
    let keys = tape.leaf(random(2, &[rows, c, 2 * w], 1.0));
    let o = if by_copies {
        let flat = reshape(&tape, &keys, &[1, rows * c, 2 * w]).unwrap();
        let seen: Vec<Var> =
            of.iter().map(|&r| slice(&tape, &flat, r as usize * c..(r as usize + 1) * c).unwrap()).collect();
        let seen = concat(&tape, &seen.iter().collect::<Vec<_>>()).unwrap();
        let seen = reshape(&tape, &seen, &[of.len(), c, 2 * w]).unwrap();
        let thirds = reshape(&tape, &qkv, &[of.len() * n, 3, w]).unwrap();
        let part = |range: std::ops::Range<usize>| {
            let width = range.len() * w;
            reshape(&tape, &slice(&tape, &thirds, range).unwrap(), &[of.len(), n, width]).unwrap()
        };
        cross_attention(&tape, &part(0..1), &concat(&tape, &[&seen, &part(1..3)]).unwrap(), h, None).unwrap()
    } else {
        joint_attention(&tape, &qkv, &keys, &Rows::new(&Device::Cpu, of, rows).unwrap(), h).unwrap()
    };
    let out = o.value().to_vec().unwrap();
    let grads = tape.backward_from(&o, random(3, &[of.len(), n, w], 1.0), None).unwrap();
    [out].into_iter().chain([&qkv, &keys].map(|v| grads.get(v).unwrap().to_vec().unwrap())).collect()
}

#[test]
fn joint_attention_is_attention_over_copies_of_the_shared_keys() {
    let cases: [(&[u32], usize, [usize; 4]); 3] =
        [(&[0], 1, [1, 1, 1, 2]), (&[2, 0, 2, 2, 1], 3, [4, 9, 2, 5]), (&[3, 1], 5, [20, 65, 3, 8])];
    for (of, rows, sizes) in cases {
        let (got, want) = (joint(of, rows, sizes, false), joint(of, rows, sizes, true));
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.len(), want.len());
            // Only the order in which examples are added differs.
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-5), "{of:?} {sizes:?}: {got:?} {want:?}");
        }
    }
    // Nobody sees row 0 of five.
    let unseen = &joint(&[3, 1], 5, [20, 65, 3, 8], false)[2][..65 * 48];
    assert!(unseen.iter().all(|&g| g == 0.0));
}

#[test]
fn joint_attention_refuses_what_does_not_go_together() {
    let tape = Tape::new();
    let var = |shape: &[usize]| tape.constant(random(0, shape, 1.0));
    let rows = Rows::new(&Device::Cpu, &[1, 0], 2).unwrap();
    assert!(joint_attention(&tape, &var(&[2, 3, 12]), &var(&[2, 5, 8]), &rows, 2).is_ok());
    let wrong = joint_attention(&tape, &var(&[2, 3, 12]), &var(&[3, 5, 8]), &rows, 2).unwrap_err().to_string();
    assert!(wrong.contains("[3, 5, 8]"), "{wrong}");
    assert!(joint_attention(&tape, &var(&[1, 3, 12]), &var(&[2, 5, 8]), &rows, 2).is_err());
    assert!(joint_attention(&tape, &var(&[2, 3, 12]), &var(&[2, 5, 12]), &rows, 2).is_err());
    assert!(joint_attention(&tape, &var(&[2, 3, 12]), &var(&[2, 5, 8]), &rows, 5).is_err());
    assert!(Rows::new(&Device::Cpu, &[2, 0], 2).is_err() && Rows::new(&Device::Cpu, &[], 2).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn agrees_with_the_definition(
        b in 1usize..3, l in 1usize..40, other in proptest::option::of(1usize..40), h in 1usize..4, d in 1usize..20,
        cut in 0.0..1.0_f64, masked: bool, bits in proptest::collection::vec(0u32..3, 80),
    ) {
        let prefix = if other.is_some() { 0 } else { (cut * l as f64) as usize };
        let mut p = Problem { prefix, ..problem(b, l, other, h, d) };
        p.mask = masked.then(|| bits[..b * p.keys()].to_vec());
        p.check();
    }
}
