use super::*;
use crate::cases::random;
use crate::cpu::matmul::{matmul, n as plain, t as transposed};
use crate::device::Device;
use crate::params::{Group, ParamsBuilder};

fn tensor(shape: &[usize], v: Vec<f32>) -> Tensor {
    Tensor::from_f32(&Device::Cpu, shape, v).unwrap()
}

fn ids(v: &[u32]) -> Tensor {
    Tensor::from_u32(&Device::Cpu, &[v.len()], v.to_vec()).unwrap()
}

fn vec(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// 0, 1, 2, …: small integers, so that sums are exact and tests compare with `==`.
fn count(shape: &[usize]) -> Tensor {
    tensor(shape, (0..shape.iter().product()).map(|i: usize| i as f32).collect())
}

#[test]
fn slices_of_a_concat_give_its_parts_back() {
    let t = Tape::new();
    let (a, b) = (t.leaf(random(0, &[3, 4, 5], 1.0)), t.leaf(random(1, &[3, 2, 5], 1.0)));
    let class = t.leaf(random(2, &[1, 1, 5], 1.0));
    let all = concat(&t, &[&class, &a, &b]).unwrap();
    assert_eq!(all.shape(), [3, 7, 5]);
    assert_eq!(vec(slice(&t, &all, 1..5).unwrap().value()), vec(a.value()));
    assert_eq!(vec(slice(&t, &all, 5..7).unwrap().value()), vec(b.value()));
    assert_eq!(vec(slice(&t, &all, 0..1).unwrap().value()), vec(class.value()).repeat(3));
}

#[test]
fn gradients_of_a_concat_are_its_slices_and_a_shared_part_sums() {
    let t = Tape::new();
    let class = t.leaf(count(&[1, 1, 2]));
    let x = t.leaf(count(&[2, 2, 2]));
    let y = concat(&t, &[&class, &x]).unwrap();
    let g = t.backward_from(&y, count(&[2, 3, 2]), None).unwrap();
    // dy is 0 1 | 2 3 | 4 5 for the first example and 6 7 | 8 9 | 10 11 for the second.
    assert_eq!(vec(g.get(&class).unwrap()), [6.0, 8.0]);
    assert_eq!(vec(g.get(&x).unwrap()), [2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0]);
}

#[test]
fn a_class_parameter_gathers_its_gradient_in_the_flat_buffer() {
    let mut b = ParamsBuilder::default();
    let id = b.add("class", &[1, 1, 2], Group::NoDecay, vec![5.0, 6.0]).unwrap();
    let mut params = b.build(&Device::Cpu, false).unwrap();
    for pass in 1..=2 {
        let t = Tape::new();
        let y = concat(&t, &[&t.param(&params, id), &t.constant(count(&[2, 1, 2]))]).unwrap();
        assert_eq!(vec(y.value()), [5.0, 6.0, 0.0, 1.0, 5.0, 6.0, 2.0, 3.0]);
        t.backward_from(&y, count(&[2, 2, 2]), Some(&mut params)).unwrap();
        // Σ over both examples of dy's first token (0 1 and 4 5), added up over passes.
        let want = [4.0, 6.0].map(|g| g * pass as f32);
        assert_eq!(vec(&params.grad(id).unwrap()), want);
    }
}

#[test]
fn gradients_of_overlapping_slices_add_and_the_rest_is_zero() {
    let t = Tape::new();
    let x = t.leaf(count(&[2, 4, 1]));
    let y = concat(&t, &[&slice(&t, &x, 1..3).unwrap(), &slice(&t, &x, 2..3).unwrap()]).unwrap();
    assert_eq!(vec(y.value()), [1.0, 2.0, 2.0, 5.0, 6.0, 6.0]);
    let g = t.backward_from(&y, tensor(&[2, 3, 1], vec![1.0, 10.0, 100.0, 2.0, 20.0, 200.0]), None).unwrap();
    assert_eq!(vec(g.get(&x).unwrap()), [0.0, 1.0, 110.0, 0.0, 0.0, 2.0, 220.0, 0.0]);
}

#[test]
fn repeat_interleaves_and_its_gradient_sums_the_copies() {
    let t = Tape::new();
    let x = t.leaf(count(&[2, 2]));
    let y = repeat(&t, &x, 3).unwrap();
    assert_eq!(vec(y.value()), [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0, 2.0, 3.0]);
    assert_eq!(y.shape(), [6, 2]);
    let g = t.backward_from(&y, count(&[6, 2]), None).unwrap();
    assert_eq!(vec(g.get(&x).unwrap()), [0.0 + 2.0 + 4.0, 1.0 + 3.0 + 5.0, 6.0 + 8.0 + 10.0, 7.0 + 9.0 + 11.0]);
}

#[test]
fn mean_leaves_out_what_the_range_leaves_out() {
    let t = Tape::new();
    let x = t.leaf(tensor(&[1, 3, 2], vec![1e30, -1e30, 1.0, 2.0, 3.0, 6.0]));
    let y = mean_tokens(&t, &x, 1..3).unwrap();
    assert_eq!((y.shape(), vec(y.value())), (&[1, 1, 2][..], vec![2.0, 4.0]));
    let g = t.backward_from(&y, tensor(&[1, 1, 2], vec![8.0, 2.0]), None).unwrap();
    assert_eq!(vec(g.get(&x).unwrap()), [0.0, 0.0, 4.0, 1.0, 4.0, 1.0]);
}

#[test]
fn select_replaces_masked_examples_and_routes_their_gradient() {
    let t = Tape::new();
    let (x, other) = (t.leaf(count(&[3, 1, 2])), t.leaf(tensor(&[1, 1, 2], vec![-1.0, -2.0])));
    let y = select(&t, &x, &other, &ids(&[7, 0, 1])).unwrap();
    assert_eq!(vec(y.value()), [-1.0, -2.0, 2.0, 3.0, -1.0, -2.0]);
    let g = t.backward_from(&y, count(&[3, 1, 2]), None).unwrap();
    assert_eq!(vec(g.get(&x).unwrap()), [0.0, 0.0, 2.0, 3.0, 0.0, 0.0]);
    assert_eq!(vec(g.get(&other).unwrap()), [0.0 + 4.0, 1.0 + 5.0]);
}

/// embed(table, ids) = onehot(ids)·table, and its gradient onehotᵀ·dy.
#[test]
fn embed_is_the_product_with_one_hot_rows() {
    // Large enough that several threads share the scatter.
    let (n, v, d) = (1500, 37, 96);
    let index: Vec<u32> = (0..n as u32).map(|i| crate::rng::philox([i, 0, 0, 0], [1, 2])[0] % v as u32).collect();
    let mut onehot = vec![0.0; n * v];
    index.iter().enumerate().for_each(|(i, &id)| onehot[i * v + id as usize] = 1.0);
    let (table, dy) = (random(0, &[v, d], 1.0), random(1, &[n, d], 1.0));
    let (mut y, mut dtable) = (vec![0.0; n * d], vec![0.0; v * d]);
    matmul((n, d, v), 1.0, plain(&onehot, v), plain(table.f32s(), d), false, &mut y, d, true);
    matmul((v, d, n), 1.0, transposed(&onehot, v), plain(dy.f32s(), d), false, &mut dtable, d, true);
    let t = Tape::new();
    let w = t.leaf(table);
    let got = embed(&t, &w, &ids(&index), DType::F32).unwrap();
    assert_eq!(vec(got.value()), y);
    let g = t.backward_from(&got, dy, None).unwrap();
    for (a, b) in vec(g.get(&w).unwrap()).iter().zip(&dtable) {
        assert!((a - b).abs() < 2e-5, "{a} {b}"); // some 40 unit normals a sum, each rounded to 6e-8 of up to 20
    }
}

#[test]
fn an_id_beyond_the_table_is_named() {
    let t = Tape::new();
    let w = t.leaf(count(&[3, 2]));
    let e = embed(&t, &w, &ids(&[0, 2, 3, 1]), DType::F32).unwrap_err().to_string();
    assert!(e.contains("id 3 at position 2"), "{e}");
}

#[test]
fn wrong_shapes_are_errors() {
    let t = Tape::new();
    let x = t.leaf(count(&[2, 3, 4]));
    let leaf = |s: &[usize]| t.leaf(count(s));
    assert!(concat(&t, &[]).is_err());
    assert!(concat(&t, &[&x, &leaf(&[3, 1, 4])]).is_err());
    assert!(concat(&t, &[&x, &leaf(&[2, 1, 5])]).is_err());
    assert!(concat(&t, &[&x, &leaf(&[2, 4])]).is_err());
    let backwards = Range { start: 2, end: 1 };
    for range in [3..4, 0..4, 1..1, backwards] {
        assert!(slice(&t, &x, range.clone()).is_err() && mean_tokens(&t, &x, range).is_err());
    }
    assert!(repeat(&t, &x, 0).is_err() && repeat(&t, &leaf(&[]), 2).is_err());
    assert!(select(&t, &x, &leaf(&[2, 3, 4]), &ids(&[0, 1])).is_err());
    assert!(select(&t, &x, &leaf(&[1, 3, 4]), &ids(&[0, 1, 0])).is_err());
    assert!(select(&t, &x, &leaf(&[1, 3, 4]), &count(&[2])).is_err());
    assert!(embed(&t, &leaf(&[3, 2]), &ids(&[0]), DType::Bf16).is_err());
    assert!(embed(&t, &leaf(&[3, 2]), &count(&[2]), DType::F32).is_err());
    assert!(embed(&t, &leaf(&[6]), &ids(&[0]), DType::F32).is_err());
}
