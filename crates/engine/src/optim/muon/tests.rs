use super::*;
use crate::cpu::pool::Buf;
use crate::optim::{AdamConfig, AdamW};
use crate::{Device, Group, ParamId, ParamsBuilder, Tape, cases, ops};

/// A matrix in f64, by rows.
#[derive(Clone)]
struct M {
    rows: usize,
    cols: usize,
    at: Vec<f64>,
}

impl M {
    fn new(rows: usize, cols: usize, f: impl Fn(usize, usize) -> f64) -> M {
        M { rows, cols, at: (0..rows * cols).map(|i| f(i / cols, i % cols)).collect() }
    }

    fn get(&self, r: usize, c: usize) -> f64 {
        self.at[r * self.cols + c]
    }

    fn times(&self, b: &M) -> M {
        M::new(self.rows, b.cols, |r, c| (0..self.cols).map(|k| self.get(r, k) * b.get(k, c)).sum())
    }

    fn transposed(&self) -> M {
        M::new(self.cols, self.rows, |r, c| self.get(c, r))
    }

    fn plus(&self, factor: f64, b: &M) -> M {
        M::new(self.rows, self.cols, |r, c| self.get(r, c) + factor * b.get(r, c))
    }

    fn scaled(&self, factor: f64) -> M {
        M::new(self.rows, self.cols, |r, c| factor * self.get(r, c))
    }

    fn norm(&self) -> f64 {
        self.at.iter().map(|x| x * x).sum::<f64>().sqrt()
    }

    /// An orthogonal matrix: three reflections I − 2·vvᵀ/‖v‖² on each other.
    fn orthogonal(n: usize, stream: u32) -> M {
        (0..3).fold(M::new(n, n, |r, c| (r == c) as usize as f64), |q, i| {
            let v = cases::random(stream + i, &[n], 1.0).to_vec().unwrap();
            let square: f64 = v.iter().map(|x| (*x as f64).powi(2)).sum();
            q.times(&M::new(n, n, |r, c| (r == c) as usize as f64 - 2.0 * v[r] as f64 * v[c] as f64 / square))
        })
    }
}

/// The polynomial as everyone writes it, always on the left.
fn newton_schulz(x: &M) -> M {
    let mut x = x.scaled(1.0 / (x.norm() + 1e-7));
    for _ in 0..5 {
        let gram = x.times(&x.transposed());
        let once = gram.times(&x);
        x = x.scaled(3.4445).plus(-4.7750, &once).plus(2.0315, &gram.times(&once));
    }
    x
}

/// U·diag(σ)·Vᵀ becomes U·diag(p(σ/‖σ‖))·Vᵀ: singular vectors stay, and singular values are those of the polynomial, near one.
#[test]
fn singular_vectors_stay_and_singular_values_go_to_one() {
    for (rows, cols) in [(24, 24), (12, 48), (48, 12)] {
        let side = rows.min(cols);
        let sigma: Vec<f64> = (0..side).map(|i| 0.05 * 1.25_f64.powi((i * 12 / side) as i32)).collect();
        let norm = sigma.iter().map(|s| s * s).sum::<f64>().sqrt();
        let want: Vec<f64> = sigma
            .iter()
            .map(|s| (0..5).fold(s / norm, |x, _| 3.4445 * x - 4.7750 * x.powi(3) + 2.0315 * x.powi(5)))
            .collect();
        assert!(want.iter().all(|s| (0.65..1.2).contains(s)), "{want:?}");
        let (u, v) = (M::orthogonal(rows, 1), M::orthogonal(cols, 5));
        let diagonal = |s: &[f64]| M::new(rows, cols, |r, c| if r == c { s[r] } else { 0.0 });
        let mut x = Buf::from(
            u.times(&diagonal(&sigma)).times(&v.transposed()).at.iter().map(|x| *x as f32).collect::<Vec<_>>(),
        );
        cpu::orthogonalise(&mut x, rows, cols);
        let got = M::new(rows, cols, |r, c| x[r * cols + c] as f64);
        let off = u.transposed().times(&got).times(&v).plus(-1.0, &diagonal(&want));
        // f32 roundings of the smallest singular value grow by up to 3.4⁵ = 480.
        assert!(off.at.iter().all(|x| x.abs() < 2e-4), "{rows}×{cols}: {}", off.norm());
    }
}

/// Queries, keys and values on top of each other, a wide and a tall matrix, and one that is AdamW's.
fn model() -> (Params, Vec<ParamId>) {
    let mut b = ParamsBuilder::default();
    let shapes: [(&str, [usize; 2], Group); 4] = [
        ("qkv", [15, 5], Group::Hidden { parts: 3 }),
        ("fc2", [5, 20], Group::Hidden { parts: 1 }),
        ("fc1", [20, 5], Group::Hidden { parts: 1 }),
        ("head", [7, 5], Group::Decay),
    ];
    let add = |(i, (name, shape, group)): (usize, (&str, [usize; 2], Group))| {
        b.add(name, &shape, group, cases::random(i as u32, &shape, 0.5).to_vec().unwrap()).unwrap()
    };
    let ids = shapes.into_iter().enumerate().map(add).collect();
    (b.build(&Device::Cpu, false).unwrap(), ids)
}

/// Gradients of the `step`th step, the same whatever the weights; `factor` scales them.
fn give_grads(params: &mut Params, ids: &[ParamId], step: u32, factor: f32) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    for (i, id) in ids.iter().enumerate() {
        let g = cases::random(100 + 10 * step + i as u32, params.value(*id).shape(), 0.3);
        let tape = Tape::new();
        let w = tape.param(params, *id);
        // Σ g·w, so that the gradient is g itself.
        let flat = |x: &crate::Var| ops::elementwise::reshape(&tape, x, &[1, g.len()]).unwrap();
        let product =
            ops::linear::linear(&tape, &flat(&tape.constant(g.clone())), &flat(&w), None, None, None).unwrap();
        let loss = ops::elementwise::mean(&tape, &ops::elementwise::scale(&tape, &product, factor).unwrap()).unwrap();
        drop((w, product));
        tape.backward(&loss, Some(params)).unwrap();
        all.push(g.to_vec().unwrap());
    }
    all
}

const CONFIG: AdamConfig =
    AdamConfig { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, clip: 1.0, ema: 0.9, muon: Some(0.95) };

/// Three steps against the definition in f64, each third of `qkv` for itself; `head` and what AdamW alone would make of it.
#[test]
fn steps_follow_the_definition() {
    let (mut p, ids) = model();
    let mut opt = AdamW::new(&p, CONFIG).unwrap();
    let (mut plain, _) = model();
    let mut adamw = AdamW::new(&plain, AdamConfig { muon: None, ..CONFIG }).unwrap();
    let parts: [(usize, usize, usize, usize); 5] =
        [(0, 0, 5, 5), (0, 1, 5, 5), (0, 2, 5, 5), (1, 0, 5, 20), (2, 0, 20, 5)];
    let take = |of: &[f32], (_, third, rows, cols): (usize, usize, usize, usize)| {
        M::new(rows, cols, |r, c| of[(third * rows + r) * cols + c] as f64)
    };
    let value = |p: &Params, i: usize| p.value(ids[i]).to_vec().unwrap();
    let mut w: Vec<M> = parts.iter().map(|at| take(&value(&p, at.0), *at)).collect();
    let mut m: Vec<M> = w.iter().map(|w| w.scaled(0.0)).collect();
    let lr = 0.02;
    for step in 0..3 {
        let g = give_grads(&mut p, &ids, step, 1.0);
        give_grads(&mut plain, &ids, step, 1.0);
        opt.step(&mut p, lr).unwrap();
        adamw.step(&mut plain, lr).unwrap();
        let norm = g.iter().flatten().map(|x| (*x as f64).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 1.0, "clipping must have something to do");
        for (i, at) in parts.iter().enumerate() {
            let g = take(&g[at.0], *at).scaled(1.0 / (norm + 1e-6));
            m[i] = m[i].scaled(0.95).plus(1.0, &g);
            let o = newton_schulz(&g.plus(0.95, &m[i]));
            let rate = lr as f64 * 0.2 * (at.2.max(at.3) as f64).sqrt();
            w[i] = w[i].scaled(1.0 - lr as f64 * 0.1).plus(-rate, &o);
            let off = w[i].plus(-1.0, &take(&value(&p, at.0), *at)).norm();
            // f32 roundings, times up to 480 in the polynomial, in an update of norm rate·√5 ≈ 0.03.
            assert!(off < 1e-5, "{at:?} after step {step}: {off:.1e}");
            let off = m[i].plus(-1.0, &take(&p.part(&opt.m, ids[at.0]).unwrap().to_vec().unwrap(), *at)).norm();
            assert!(off < 1e-6, "momentum of {at:?}: {off:.1e}");
        }
    }
    assert_eq!(value(&p, 3), plain.value(ids[3]).to_vec().unwrap(), "the head is AdamW's");
    assert_ne!(value(&p, 0), plain.value(ids[0]).to_vec().unwrap());
    for id in &ids[..3] {
        assert!(p.part(&opt.v, *id).unwrap().to_vec().unwrap().iter().all(|v| *v == 0.0), "Muon has no second moment");
    }
}

#[test]
fn a_skipped_step_changes_nothing() {
    let (mut p, ids) = model();
    let mut opt = AdamW::new(&p, CONFIG).unwrap();
    give_grads(&mut p, &ids, 0, 1.0);
    opt.step(&mut p, 0.02).unwrap();
    let all = |p: &Params, opt: &AdamW| {
        let mut all = vec![p.values.to_vec().unwrap()];
        all.extend(opt.buffers().iter().filter(|b| b.0 != "state").map(|b| b.1.to_vec().unwrap()));
        all
    };
    let before = all(&p, &opt);
    give_grads(&mut p, &ids, 1, f32::INFINITY);
    opt.step(&mut p, 0.02).unwrap();
    assert_eq!(before, all(&p, &opt));
    assert_eq!(opt.stats().unwrap().skipped, 1);
}

/// What a checkpoint holds is all there is: restored into a fresh optimizer, the next steps have the same bits.
#[test]
fn a_restored_optimizer_goes_on_with_the_same_bits() {
    let (mut p, ids) = model();
    let mut opt = AdamW::new(&p, CONFIG).unwrap();
    let (mut q, _) = model();
    let mut other = None;
    for step in 0..4 {
        if step == 2 {
            let mut fresh = AdamW::new(&q, CONFIG).unwrap();
            for id in &ids {
                q.set(*id, &p.value(*id).to_vec().unwrap()).unwrap();
            }
            for (name, t) in opt.buffers() {
                fresh.restore(name, t.to_vec().unwrap()).unwrap();
            }
            other = Some(fresh);
        }
        give_grads(&mut p, &ids, step, 1.0);
        opt.step(&mut p, 0.02).unwrap();
        if let Some(other) = &mut other {
            give_grads(&mut q, &ids, step, 1.0);
            other.step(&mut q, 0.02).unwrap();
        }
    }
    assert_eq!(p.values.to_vec().unwrap(), q.values.to_vec().unwrap());
}

/// Without Muon the group makes no difference: the same bits as for [`Group::Decay`].
#[test]
fn adamw_treats_hidden_matrices_as_all_that_is_decayed() {
    let run = |group: Group| {
        let mut b = ParamsBuilder::default();
        let ids = [
            b.add("w", &[12, 4], group, cases::random(0, &[12, 4], 0.5).to_vec().unwrap()).unwrap(),
            b.add("head", &[7, 5], Group::Decay, cases::random(1, &[7, 5], 0.5).to_vec().unwrap()).unwrap(),
        ];
        let mut p = b.build(&Device::Cpu, false).unwrap();
        let mut opt = AdamW::new(&p, AdamConfig { muon: None, clip: 0.0, ..CONFIG }).unwrap();
        for step in 0..3 {
            give_grads(&mut p, &ids, step, 1.0);
            opt.step(&mut p, 0.02).unwrap();
        }
        ids.map(|id| p.value(id).to_vec().unwrap())
    };
    assert_eq!(run(Group::Decay), run(Group::Hidden { parts: 3 }));
}

#[test]
fn a_matrix_that_does_not_consist_of_its_parts_is_refused() {
    let add = |shape: &[usize], parts| {
        ParamsBuilder::default().add("qkv", shape, Group::Hidden { parts }, vec![0.0; shape.iter().product()])
    };
    for (shape, parts) in [(&[7, 3][..], 3), (&[6], 3), (&[6, 3], 0)] {
        assert!(add(shape, parts).unwrap_err().to_string().contains("qkv"));
    }
    assert!(add(&[6, 3], 3).is_ok());
    let (p, _) = model();
    assert!(AdamW::new(&p, AdamConfig { muon: Some(1.0), ..CONFIG }).is_err());
}
