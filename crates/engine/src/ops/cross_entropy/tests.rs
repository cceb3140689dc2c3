//! Closed forms, and a plain f64 implementation as oracle.

use super::*;
use crate::cases::random;
use crate::device::Device;
use proptest::prelude::*;

fn tensor(shape: &[usize], v: Vec<f32>) -> Tensor {
    Tensor::from_f32(&Device::Cpu, shape, v).unwrap()
}

fn classes(v: Vec<u32>) -> Tensor {
    Tensor::from_u32(&Device::Cpu, &[v.len()], v).unwrap()
}

fn some_classes(rows: usize, v: usize) -> Tensor {
    classes((0..rows as u32).map(|i| i.wrapping_mul(2_654_435_761) % v as u32).collect())
}

fn hard(targets: &Tensor) -> Loss<'_> {
    Loss { targets: Targets::Hard(targets), weights: None, smoothing: 0.0 }
}

/// Losses and the gradient of the logits (rows, V), straight from the definition.
fn oracle(logits: &[f64], v: usize, loss: &Loss, dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let (mut losses, mut grad) = (Vec::new(), Vec::new());
    for (r, l) in logits.chunks_exact(v).enumerate() {
        let q: Vec<f64> = match loss.targets {
            Targets::Hard(t) => (0..v).map(|k| (t.u32s()[r] as usize == k) as u8 as f64).collect(),
            Targets::Soft(t) => t.f32s()[r * v..][..v].iter().map(|&q| q as f64).collect(),
        };
        let (s, mass) = (loss.smoothing as f64, q.iter().sum::<f64>());
        let q: Vec<f64> = q.iter().map(|q| (1.0 - s) * q + s * mass / v as f64).collect();
        let w = loss.weights.map_or(1.0, |w| w.f32s()[r] as f64);
        let top = l.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = top + l.iter().map(|l| (l - top).exp()).sum::<f64>().ln();
        losses.push(w * q.iter().zip(l).map(|(q, l)| q * (lse - l)).sum::<f64>());
        grad.extend(q.iter().zip(l).map(|(q, l)| dy[r] as f64 * w * (mass * (l - lse).exp() - q)));
    }
    (losses, grad)
}

fn close(name: &str, got: &[f32], want: &[f64], scale: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((*g as f64 - w).abs() < scale * (1.0 + w.abs()), "{name}[{i}]: {g}, should be {w}");
    }
}

/// Which losses, in the words of a property test.
#[derive(Clone, Copy, Debug)]
struct Kind {
    soft: bool,
    weighted: bool,
    smoothing: f32,
}

fn with_loss(kind: Kind, rows: usize, v: usize, f: impl FnOnce(&Loss)) {
    let q = random(40, &[rows, v], 1.0).to_vec().unwrap().iter().map(|q| q.abs() / v as f32).collect();
    let (hard, soft, weights) = (some_classes(rows, v), tensor(&[rows, v], q), random(41, &[rows], 1.0));
    let targets = if kind.soft { Targets::Soft(&soft) } else { Targets::Hard(&hard) };
    f(&Loss { targets, weights: kind.weighted.then_some(&weights), smoothing: kind.smoothing });
}

fn check_plain(kind: Kind, rows: usize, v: usize, scale: f32) {
    with_loss(kind, rows, v, |loss| {
        let (value, dy) = (random(1, &[rows, v], scale), random(2, &[rows], 1.0));
        let tape = Tape::new();
        let logits = tape.leaf(value.clone());
        let y = cross_entropy(&tape, &logits, loss).unwrap();
        let grads = tape.backward_from(&y, dy.clone(), None).unwrap();
        let exact: Vec<f64> = value.f32s().iter().map(|&l| l as f64).collect();
        let (losses, grad) = oracle(&exact, v, loss, dy.f32s());
        close("loss", y.value().f32s(), &losses, 2e-6); // a few roundings of logits up to 10
        close("dlogits", grads.get(&logits).unwrap().f32s(), &grad, 2e-6);
    });
}

/// Losses, dx, dweight, dbias.
fn run_linear(rows: usize, d: usize, v: usize, loss: &Loss, chunk: Option<usize>) -> [Vec<f32>; 4] {
    let tape = Tape::new();
    let [x, w, b] = head(rows, d, v).map(|t| tape.leaf(t));
    let y = linear_cross_entropy(&tape, &x, &w, Some(&b), loss, chunk).unwrap();
    let grads = tape.backward_from(&y, random(2, &[rows], 1.0), None).unwrap();
    [y.value(), grads.get(&x).unwrap(), grads.get(&w).unwrap(), grads.get(&b).unwrap()].map(|t| t.to_vec().unwrap())
}

fn head(rows: usize, d: usize, v: usize) -> [Tensor; 3] {
    [random(3, &[rows, d], 1.0), random(4, &[v, d], 1.0), random(5, &[v], 1.0)]
}

fn check_linear(kind: Kind, rows: usize, d: usize, v: usize, chunk: Option<usize>) {
    with_loss(kind, rows, v, |loss| {
        let [x, w, b] = head(rows, d, v).map(|t| t.to_vec().unwrap());
        let at = |m: &[f32], r: usize, i: usize| m[r * d + i] as f64;
        let logits: Vec<f64> = (0..rows * v)
            .map(|i| b[i % v] as f64 + (0..d).map(|j| at(&x, i / v, j) * at(&w, i % v, j)).sum::<f64>())
            .collect();
        let (losses, dl) = oracle(&logits, v, loss, random(2, &[rows], 1.0).f32s());
        let mut dx = vec![0.0; rows * d];
        let mut dw = vec![0.0; v * d];
        let mut db = vec![0.0; v];
        for (i, g) in dl.iter().enumerate() {
            let (r, k) = (i / v, i % v);
            db[k] += g;
            for j in 0..d {
                dx[r * d + j] += g * at(&w, k, j);
                dw[k * d + j] += g * at(&x, r, j);
            }
        }
        let got = run_linear(rows, d, v, loss, chunk);
        // f32 products of length d and sums over rows; logits here reach about 4·√d.
        for (name, (got, want)) in ["loss", "dx", "dw", "db"].iter().zip(got.iter().zip([losses, dx, dw, db])) {
            close(name, got, &want, 2e-5);
        }
    });
}

fn kinds() -> impl Strategy<Value = Kind> {
    (any::<bool>(), any::<bool>(), prop_oneof![Just(0.0_f32), Just(0.1), Just(1.0)])
        .prop_map(|(soft, weighted, smoothing)| Kind { soft, weighted, smoothing })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn plain_agrees_with_f64(kind in kinds(), rows in 1usize..20, v in prop_oneof![Just(1), Just(2), Just(10), Just(27), Just(1000)]) {
        check_plain(kind, rows, v, 3.0);
    }

    #[test]
    fn linear_agrees_with_f64(
        kind in kinds(),
        rows in 1usize..20,
        d in 1usize..40,
        v in prop_oneof![Just(1), Just(2), Just(10), Just(27), Just(64), Just(130), Just(1000)],
        chunk in prop_oneof![Just(None), Just(Some(1)), Just(Some(64)), Just(Some(100)), Just(Some(512))],
    ) {
        check_linear(kind, rows, d, v, chunk);
    }
}

#[test]
fn a_bert_vocabulary_agrees_with_f64() {
    for soft in [false, true] {
        let kind = Kind { soft, weighted: true, smoothing: 0.1 };
        check_plain(kind, 3, 30_522, 3.0);
        check_linear(kind, 3, 8, 30_522, None);
        check_linear(kind, 3, 8, 30_522, Some(8192));
    }
}

#[test]
fn many_rows_on_all_threads_agree_with_f64() {
    let kind = Kind { soft: false, weighted: false, smoothing: 0.0 };
    check_plain(kind, 700, 197, 3.0);
    check_linear(kind, 300, 16, 1300, None);
}

/// Kept logits, logits computed again, and any chunk: the same sums in another order.
#[test]
fn chunks_do_not_change_the_result() {
    let targets = some_classes(11, 1000);
    let loss = Loss { smoothing: 0.1, ..hard(&targets) };
    let want = run_linear(11, 24, 1000, &loss, None);
    for chunk in [1, 64, 65, 192, 960, 1000, 1 << 20] {
        for (w, g) in want.iter().zip(run_linear(11, 24, 1000, &loss, Some(chunk))) {
            let w: Vec<f64> = w.iter().map(|&w| w as f64).collect();
            close("chunked", &g, &w, 2e-6);
        }
    }
}

#[test]
fn uniform_logits_cost_ln_v_whatever_the_target() {
    for v in [1_usize, 2, 10, 27, 1000, 30_522] {
        let tape = Tape::inference();
        let logits = tape.constant(tensor(&[2, v], vec![-3.0; 2 * v]));
        let t = classes(vec![0, v as u32 - 1]);
        for smoothing in [0.0, 0.1] {
            let y = cross_entropy(&tape, &logits, &Loss { smoothing, ..hard(&t) }).unwrap();
            for y in y.value().to_vec().unwrap() {
                assert!((y - (v as f32).ln()).abs() < 1e-5, "{y} for {v} classes");
            }
        }
    }
}

/// l = (ln 1, ln 3): p = (¼, ¾).
#[test]
fn the_gradient_is_p_minus_q() {
    let tape = Tape::new();
    let logits = tape.leaf(tensor(&[1, 2], vec![0.0, 3.0_f32.ln()]));
    let t = classes(vec![0]);
    let y = cross_entropy(&tape, &logits, &hard(&t)).unwrap();
    close("loss", y.value().f32s(), &[4.0_f64.ln()], 1e-6);
    let g = tape.backward(&y, None).unwrap();
    close("gradient", g.get(&logits).unwrap().f32s(), &[-0.75, 0.75], 1e-6);
}

#[test]
fn huge_and_masked_logits_stay_finite() {
    let tape = Tape::new();
    let masked = f32::NEG_INFINITY;
    let logits = tape.leaf(tensor(&[3, 3], vec![1e4, -1e4, 0.0, 1e4, 1e4, -1e4, masked, 2.0, 2.0]));
    let t = classes(vec![1, 0, 2]);
    let y = cross_entropy(&tape, &logits, &hard(&t)).unwrap();
    close("loss", y.value().f32s(), &[2e4, 2.0_f64.ln(), 2.0_f64.ln()], 1e-6);
    let g = tape.backward_from(&y, tensor(&[3], vec![1.0; 3]), None).unwrap();
    let want = [1.0, -1.0, 0.0, -0.5, 0.5, 0.0, 0.0, 0.5, -0.5];
    close("gradient", g.get(&logits).unwrap().f32s(), &want, 1e-6);
}

/// A whole chunk of masked classes must not poison the running sum.
#[test]
fn a_masked_chunk_counts_for_nothing() {
    let v = 130;
    for masked in [0..64, 64..128, 128..130] {
        let tape = Tape::new();
        let (x, w) = (tape.leaf(tensor(&[1, 1], vec![1.0])), tape.leaf(tensor(&[v, 1], vec![0.0; v])));
        let bias = (0..v).map(|k| if masked.contains(&k) { f32::NEG_INFINITY } else { 0.0 }).collect();
        let b = tape.leaf(tensor(&[v], bias));
        let t = classes(vec![if masked.start == 0 { 100 } else { 0 }]);
        let y = linear_cross_entropy(&tape, &x, &w, Some(&b), &hard(&t), Some(64)).unwrap();
        close("loss", y.value().f32s(), &[((v - masked.len()) as f64).ln()], 1e-6);
        let g = tape.backward(&y, None).unwrap();
        assert!(g.get(&w).unwrap().f32s().iter().all(|g| g.is_finite()));
    }
}

#[test]
fn a_frozen_weight_still_passes_the_gradient_on() {
    let t = some_classes(5, 100);
    let want = run_linear(5, 6, 100, &hard(&t), Some(64));
    let tape = Tape::new();
    let [x, w, b] = head(5, 6, 100);
    let (x, w, b) = (tape.leaf(x), tape.constant(w), tape.constant(b));
    let y = linear_cross_entropy(&tape, &x, &w, Some(&b), &hard(&t), Some(64)).unwrap();
    let grads = tape.backward_from(&y, random(2, &[5], 1.0), None).unwrap();
    assert_eq!(grads.get(&x).unwrap().f32s(), want[1]);
    assert!(grads.get(&w).is_none() && grads.get(&b).is_none());
}

#[test]
fn wrong_inputs_are_errors_that_name_the_fault() {
    let tape = Tape::inference();
    let logits = tape.constant(tensor(&[2, 3], vec![0.0; 6]));
    let fails = |loss: &Loss, words: &str| {
        let e = cross_entropy(&tape, &logits, loss).expect_err(words).to_string();
        assert!(e.starts_with("cross_entropy: ") && e.contains(words), "{e}");
    };
    let (good, beyond, short) = (classes(vec![0, 2]), classes(vec![2, 3]), classes(vec![0]));
    let float = tensor(&[2], vec![0.0; 2]);
    fails(&hard(&beyond), "row 1 has target 3, but there are 3 classes");
    fails(&hard(&short), "targets must be u32 [2]");
    fails(&hard(&float), "targets must be u32 [2]");
    fails(&Loss { targets: Targets::Soft(&float), ..hard(&good) }, "targets must be f32 [2, 3]");
    fails(&Loss { weights: Some(&good), ..hard(&good) }, "weights must be f32 [2]");
    fails(&Loss { smoothing: 1.5, ..hard(&good) }, "smoothing 1.5");
    fails(&Loss { smoothing: f32::NAN, ..hard(&good) }, "smoothing NaN");
    let x = tape.constant(tensor(&[2, 4], vec![0.0; 8]));
    let w = tape.constant(tensor(&[3, 5], vec![0.0; 15]));
    assert!(linear_cross_entropy(&tape, &x, &w, None, &hard(&good), None).is_err());
    let w = tape.constant(tensor(&[3, 4], vec![0.0; 12]));
    assert!(linear_cross_entropy(&tape, &x, &w, Some(&x), &hard(&good), None).is_err());
    assert!(linear_cross_entropy(&tape, &x, &w, None, &hard(&good), Some(0)).is_err());
    let e = linear_cross_entropy(&tape, &x, &w, None, &hard(&beyond), None).err().unwrap().to_string();
    assert!(e.contains("row 1 has target 3"), "{e}");
}
