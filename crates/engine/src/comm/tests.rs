//! Gradients and optimizer over ranks against one rank that has them all.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::{Comm, Keep, Layout, Reducer, threads};
use crate::cases::random;
use crate::ops::{elementwise, linear, mean_square};
use crate::optim::{AdamConfig, AdamW};
use crate::{Backward, Device, Grads, Group, ParamId, Params, ParamsBuilder, Result, Tape, Tensor, Var};

const RANKS: usize = 3;

/// Three layers, the last of which only the second rank uses, and something frozen.
fn params() -> (Params, Vec<ParamId>) {
    let mut b = ParamsBuilder::default();
    let hidden = Group::Hidden { parts: 1 };
    let mut add = |name: &str, shape: &[usize], group, seed| {
        b.add(name, shape, group, random(seed, shape, 1.0).to_vec().unwrap()).unwrap()
    };
    let ids = vec![
        add("in", &[24, 16], Group::Decay, 1),
        add("block.0", &[24, 24], hidden, 2),
        add("block.1", &[24, 24], hidden, 3),
        add("bias", &[24], Group::NoDecay, 4),
        add("rare", &[24, 24], hidden, 5),
        add("frozen", &[9], Group::Frozen, 6),
    ];
    (b.build(&Device::Cpu, false).unwrap(), ids)
}

/// Passes its gradient on, and notes what was sent by then.
struct Probe {
    x: Var,
    comm: Comm,
    sent: Rc<Cell<u64>>,
}

impl Backward for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn backward(&self, dy: &Tensor, grads: &mut Grads) -> Result<()> {
        self.sent.set(self.comm.usage().bytes);
        grads.give(&self.x, dy.clone())
    }
}

/// The loss of one rank's rows at one step; the probe lies between the first layer and the others.
fn loss(
    tape: &Tape,
    p: &Params,
    ids: &[ParamId],
    (rank, step): (usize, usize),
    probe: Option<(&Comm, &Rc<Cell<u64>>)>,
) -> Var {
    let x = tape.constant(random((10 + rank + RANKS * step) as u32, &[5, 16], 1.0));
    let layer = |x: &Var, id: usize| {
        let (w, b) = (tape.param(p, ids[id]), tape.param(p, ids[3]));
        linear::linear(tape, x, &w, Some(&b), None, None).unwrap()
    };
    let mut h = layer(&x, 0);
    if let Some((comm, sent)) = probe {
        let op = || Probe { x: h.clone(), comm: comm.clone(), sent: sent.clone() };
        h = tape.record(h.value().clone(), &[&h], op);
    }
    let h = layer(&layer(&h, 1), 2);
    let h = if rank == 1 { layer(&h, 4) } else { h };
    let target = random(9, h.shape(), 1.0);
    let square = mean_square::mean_square(tape, &h, &target, None).unwrap();
    elementwise::scale(tape, &elementwise::mean(tape, &square).unwrap(), 0.1).unwrap()
}

fn config(muon: bool) -> AdamConfig {
    AdamConfig { weight_decay: 0.1, clip: 0.5, ema: 0.9, muon: muon.then_some(0.95), ..AdamConfig::default() }
}

/// Weights, moments and average after some steps.
type Ended = Vec<Vec<f32>>;

fn ended(p: &Params, opt: &AdamW) -> Ended {
    let buffer = |name| opt.whole(name).unwrap().to_vec().unwrap();
    vec![p.values.to_vec().unwrap(), buffer("m"), buffer("v"), buffer("ema"), vec![opt.stats().unwrap().grad_norm]]
}

fn alone(muon: bool) -> Ended {
    let (mut p, ids) = params();
    let mut opt = AdamW::new(&p, config(muon)).unwrap();
    for step in 0..4 {
        for rank in 0..RANKS {
            let tape = Tape::new();
            let loss = loss(&tape, &p, &ids, (rank, step), None);
            tape.backward(&loss, Some(&mut p)).unwrap();
        }
        opt.step(&mut p, 0.01).unwrap();
    }
    ended(&p, &opt)
}

/// The same by ranks, with the bytes that were sent when the backward pass came to the first layer, and those of a whole step.
fn together(muon: bool, keep: Keep, bucket: usize) -> Vec<(Ended, u64, u64)> {
    let rank = |comm: Comm| {
        let (mut p, ids) = params();
        let layout = Arc::new(Layout::new(&p, RANKS, bucket, keep).unwrap());
        let mut opt = AdamW::sharded(&p, config(muon), (comm.clone(), layout.clone()), false).unwrap();
        let mut reducer = Reducer::new(comm.clone(), layout);
        let sent = Rc::new(Cell::new(0));
        let (mut early, mut all) = (0, 0);
        for step in 0..4 {
            let before = comm.usage().bytes;
            let tape = Tape::new();
            let loss = loss(&tape, &p, &ids, (comm.rank(), step), Some((&comm, &sent)));
            tape.backward_reduced(&loss, &mut p, &mut reducer).unwrap();
            reducer.finish(&mut p).unwrap();
            (early, all) = (sent.get() - before, comm.usage().bytes - before);
            opt.apply(&mut p, 0.01).unwrap();
        }
        (ended(&p, &opt), early, all)
    };
    std::thread::scope(|s| {
        let running: Vec<_> = threads(RANKS).into_iter().map(|c| s.spawn(move || rank(c))).collect();
        running.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

#[test]
fn ranks_update_as_one_does() {
    for (muon, keeps) in [(false, [Keep::All, Keep::Flat]), (true, [Keep::All, Keep::Matrices])] {
        let want = alone(muon);
        for keep in keeps {
            for bucket in [1, 4000, 1 << 30] {
                for (got, ..) in together(muon, keep, bucket) {
                    for (w, g) in want.iter().zip(&got) {
                        let near = w.iter().zip(g).all(|(w, g)| (w - g).abs() <= 2e-4 * w.abs().max(0.1));
                        assert!(near, "muon {muon}, {keep:?}, buckets of {bucket}");
                    }
                }
            }
        }
    }
}

#[test]
fn gradients_are_on_their_way_before_the_backward_pass_ends() {
    for (_, early, all) in together(false, Keep::All, 1) {
        assert!(early > all / 4 && early < all, "{early} of {all} bytes");
    }
    for (_, early, _) in together(false, Keep::All, 1 << 30) {
        assert!(early < 24 * 24 * 4 * 8, "one bucket of all matrices waits for the first: {early}");
    }
}

/// Everything is kept by one rank, or by all of them.
#[test]
fn shares_cover_the_buffers_once() {
    let (p, _) = params();
    for keep in [Keep::All, Keep::Flat, Keep::Matrices] {
        for size in 1..6 {
            let layout = Layout::new(&p, size, 3000, keep).unwrap();
            let mut alone = vec![0; p.flat_len()];
            let mut shared = vec![0; p.flat_len()];
            for rank in 0..size {
                for (range, only) in layout.kept_by(rank) {
                    let count = if only { &mut alone } else { &mut shared };
                    count[range].iter_mut().for_each(|c| *c += 1);
                }
            }
            let right = |i: usize| (alone[i], shared[i]) == (1, 0) || (alone[i], shared[i]) == (0, size);
            assert!((0..p.flat_len()).all(right), "{keep:?} {size}");
            let kept: Vec<usize> = (0..size).map(|r| layout.kept_by(r).iter().map(|k| k.0.len()).sum()).collect();
            assert!(keep != Keep::Flat || size == 1 || kept.iter().all(|k| *k < p.flat_len()), "{kept:?}");
        }
    }
}
