//! AdamW, its average and what it skips.

use super::*;
use crate::{Device, ParamsBuilder, Tape, ops};

/// One parameter whose gradient is `g`: loss = mean(n·g·w).
fn with_grad(params: &mut Params, id: crate::ParamId, g: f32) {
    let tape = Tape::new();
    let w = tape.param(params, id);
    let n = w.value().len() as f32;
    let loss = ops::elementwise::mean(&tape, &ops::elementwise::scale(&tape, &w, g * n).unwrap()).unwrap();
    drop(w);
    tape.backward(&loss, Some(params)).unwrap();
}

fn one(value: f32, group: Group) -> (Params, crate::ParamId) {
    let mut b = ParamsBuilder::default();
    let id = b.add("w", &[3], group, vec![value; 3]).unwrap();
    (b.build(&Device::Cpu, false).unwrap(), id)
}

/// With a constant gradient both corrected moments are exact (g and g²), so each step moves by lr·(sign + decay·w).
#[test]
fn adamw_follows_the_closed_form_under_a_constant_gradient() {
    let (mut p, id) = one(2.0, Group::Decay);
    let config = AdamConfig { weight_decay: 0.1, clip: 0.0, ..AdamConfig::default() };
    let mut opt = AdamW::new(&p, config).unwrap();
    let mut want = 2.0_f64;
    for _ in 0..50 {
        with_grad(&mut p, id, 0.5);
        opt.step(&mut p, 0.01).unwrap();
        want = want * (1.0 - 0.01 * 0.1) - 0.01 * 0.5 / (0.5 + 1e-8);
        let got = p.value(id).to_vec().unwrap();
        assert!(got.iter().all(|g| (*g as f64 - want).abs() < 2e-6), "{got:?} {want}"); // 50 f32 roundings
    }
    assert_eq!(opt.stats().unwrap().steps, 50);
}

/// EMA of a linearly moving weight against its own recursion, with the warm-up of the decay.
#[test]
fn ema_follows_its_recursion() {
    let (mut p, id) = one(1.0, Group::NoDecay);
    let mut opt = AdamW::new(&p, AdamConfig { ema: 0.9, clip: 0.0, ..AdamConfig::default() }).unwrap();
    let mut want = 1.0_f64;
    for n in 1..=40 {
        with_grad(&mut p, id, -1.0);
        opt.step(&mut p, 0.1).unwrap();
        let d = (0.9_f64).min((1.0 + n as f64) / (10.0 + n as f64));
        want = d * want + (1.0 - d) * p.value(id).to_vec().unwrap()[0] as f64;
        let got = p.part(opt.ema().unwrap(), id).unwrap().to_vec().unwrap()[0] as f64;
        assert!((got - want).abs() < 1e-5, "{n}: {got} {want}");
    }
    let (raw, avg) = (p.value(id).to_vec().unwrap(), p.part(opt.ema().unwrap(), id).unwrap().to_vec().unwrap());
    opt.swap_ema(&mut p).unwrap();
    assert_eq!(p.value(id).to_vec().unwrap(), avg);
    opt.swap_ema(&mut p).unwrap();
    assert_eq!(p.value(id).to_vec().unwrap(), raw);
}

#[test]
fn clipping_bounds_the_global_norm() {
    let mut b = ParamsBuilder::default();
    let ids =
        [b.add("a", &[3], Group::Decay, vec![0.0; 3]).unwrap(), b.add("b", &[1], Group::NoDecay, vec![0.0]).unwrap()];
    let mut p = b.build(&Device::Cpu, false).unwrap();
    let mut opt = AdamW::new(&p, AdamConfig { beta1: 0.0, clip: 3.0, ..AdamConfig::default() }).unwrap();
    for id in ids {
        with_grad(&mut p, id, 5.0);
    }
    opt.step(&mut p, 0.0).unwrap();
    // norm = √(3·25 + 25) = 10, so each first moment is 5·3/10.
    assert!((opt.stats().unwrap().grad_norm - 10.0).abs() < 1e-5);
    let m = p.part(&opt.m, ids[1]).unwrap().to_vec().unwrap()[0];
    assert!((m - 1.5).abs() < 1e-5, "{m}");
}

#[test]
fn a_non_finite_gradient_changes_nothing_and_is_counted() {
    let (mut p, id) = one(1.0, Group::Decay);
    let mut opt = AdamW::new(&p, AdamConfig { ema: 0.9, ..AdamConfig::default() }).unwrap();
    with_grad(&mut p, id, 1.0);
    opt.step(&mut p, 0.1).unwrap();
    let before: Vec<Vec<f32>> = opt.buffers()[..2].iter().map(|b| b.1.to_vec().unwrap()).collect();
    let weight = p.value(id).to_vec().unwrap();
    for bad in [f32::NAN, f32::INFINITY] {
        with_grad(&mut p, id, bad);
        opt.step(&mut p, 0.1).unwrap();
    }
    let after: Vec<Vec<f32>> = opt.buffers()[..2].iter().map(|b| b.1.to_vec().unwrap()).collect();
    assert_eq!((before, weight), (after, p.value(id).to_vec().unwrap()));
    let s = opt.stats().unwrap();
    assert_eq!((s.steps, s.skipped, s.skipped_in_a_row), (1, 2, 2));
    with_grad(&mut p, id, 1.0);
    opt.step(&mut p, 0.1).unwrap();
    assert_eq!(opt.stats().unwrap().skipped_in_a_row, 0);
}

#[test]
fn frozen_parameters_stay_and_untouched_ones_have_no_gradient() {
    let mut b = ParamsBuilder::default();
    let used = b.add("used", &[2], Group::Decay, vec![1.0; 2]).unwrap();
    let idle = b.add("idle", &[2], Group::NoDecay, vec![1.0; 2]).unwrap();
    let frozen = b.add("frozen", &[2], Group::Frozen, vec![1.0; 2]).unwrap();
    let mut p = b.build(&Device::Cpu, false).unwrap();
    let mut opt = AdamW::new(&p, AdamConfig { weight_decay: 0.5, ..AdamConfig::default() }).unwrap();
    with_grad(&mut p, idle, 1.0);
    opt.step(&mut p, 0.1).unwrap();
    let moved = p.value(idle).to_vec().unwrap();
    with_grad(&mut p, used, 1.0); // the gradient of `idle` from the step before must not be used again
    opt.step(&mut p, 0.1).unwrap();
    assert_eq!(p.grad(idle).unwrap().to_vec().unwrap(), vec![0.0; 2]);
    assert_ne!(p.value(idle).to_vec().unwrap(), moved, "its momentum still moves it");
    assert_eq!(p.value(frozen).to_vec().unwrap(), vec![1.0; 2]);
}

#[test]
fn schedule_rises_then_falls() {
    assert_eq!(warmup_cosine(0, 100, 10, 1.0, 0.0), 0.1);
    assert_eq!(warmup_cosine(9, 100, 10, 1.0, 0.0), 1.0);
    assert_eq!(warmup_cosine(10, 100, 10, 1.0, 0.0), 1.0);
    assert!((warmup_cosine(55, 100, 10, 1.0, 0.2) - 0.6).abs() < 1e-6);
    assert_eq!(warmup_cosine(100, 100, 10, 1.0, 0.25), 0.25);
    assert_eq!(warmup_cosine(500, 100, 0, 1.0, 0.25), 0.25);
}
