//! Examples for finite differences and for comparing devices.

use super::{keeps_hidden, linear, mlp_keeping, padded};
use crate::cases::Role::{Activation, Type, Weight};
use crate::cases::{Case, Size};
use crate::cpu::math::Act;
use crate::device::Device;
use crate::tape::Tape;
use crate::tensor::Tensor;

/// Rows, inputs, outputs.
type Dims = [usize; 3];

fn label([m, k, n]: Dims) -> String {
    format!("[{m}, {k}] → {n}")
}

fn scale([_, k, _]: Dims) -> f32 {
    1.0 / (k as f32).sqrt()
}

fn plain(dims: Dims) -> Vec<Case> {
    let ([m, k, n], l, s) = (dims, label(dims), scale(dims));
    let base = move |label: String, act: Option<Act>| {
        Case::new("linear", label, move |t, v| linear(t, &v[0], &v[1], Some(&v[2]), act, None))
            .normal("x", Activation, &[m, k], 1.0)
            .normal("w", Weight, &[n, k], s)
            .normal("b", Weight, &[n], 1.0)
    };
    let mut out = vec![base(l.clone(), None)];
    for act in [Act::GeluErf, Act::GeluTanh, Act::Silu] {
        out.push(base(format!("{l} {act:?}"), Some(act)));
        // Without a gradient nothing is kept for it.
        out.push(
            Case::new("linear", format!("{l} {act:?}, no gradient"), move |t, v| {
                linear(t, &v[0], &v[1], Some(&v[2]), Some(act), None)
            })
            .normal("x", Type, &[m, k], 1.0)
            .normal("w", Type, &[n, k], s)
            .normal("b", Type, &[n], 1.0),
        );
    }
    out.extend([
        Case::new("linear", format!("{l} no bias"), |t, v| linear(t, &v[0], &v[1], None, None, None))
            .normal("x", Activation, &[m, k], 1.0)
            .normal("w", Weight, &[n, k], s),
        Case::new("linear", format!("{l} residual"), |t, v| linear(t, &v[0], &v[1], Some(&v[2]), None, Some(&v[3])))
            .normal("x", Activation, &[m, k], 1.0)
            .normal("w", Weight, &[n, k], s)
            .normal("b", Weight, &[n], 1.0)
            .normal("residual", Activation, &[m, n], 1.0),
    ]);
    out
}

fn for_sampling(dims: Dims) -> Vec<Case> {
    let ([m, k, n], l, s) = (dims, label(dims), scale(dims));
    vec![
        Case::new("linear", format!("{l} padded"), |t, v| {
            let y = padded(v[0].value(), &v[1], &v[2])?;
            let (long, n) = (y.width(), v[1].shape()[0]);
            let values: Vec<f32> = y.to_vec()?.chunks(long).flat_map(|row| &row[..n]).copied().collect();
            Ok(t.constant(Tensor::from_f32(&Device::Cpu, &[values.len()], values)?))
        })
        .normal("x", Type, &[m, k], 1.0)
        .normal("w", Type, &[n, k], s)
        .normal("b", Type, &[n], 1.0),
    ]
}

fn mlps(dims: Dims) -> Vec<Case> {
    let ([m, k, n], l, s) = (dims, label(dims), scale(dims));
    let mut out = Vec::new();
    for (act, kept) in [Act::GeluErf, Act::GeluTanh].into_iter().flat_map(|a| [(a, true), (a, false)]) {
        let (keeps, how): (fn(&Tape, &Tensor) -> bool, _) =
            if kept { (keeps_hidden, "") } else { (|_, _| false, ", hidden values not kept") };
        // The input is its own residual, as in a transformer block: two gradients meet.
        out.push(
            Case::new("mlp", format!("{l} {act:?}, residual{how}"), move |t, v| {
                mlp_keeping(t, &v[0], (&v[1], &v[2]), act, (&v[3], &v[4]), Some(&v[0]), keeps)
            })
            .normal("x", Activation, &[m, k], 1.0)
            .normal("w1", Weight, &[n, k], s)
            .normal("b1", Weight, &[n], 1.0)
            .normal("w2", Weight, &[k, n], 1.0 / (n as f32).sqrt())
            .normal("b2", Weight, &[k], 1.0),
        );
    }
    out
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let dims: &[Dims] = match size {
        Size::Tiny => &[[3, 4, 5], [1, 1, 1]],
        Size::Full => &[
            [1, 1, 1],
            [3, 5, 7],
            [12, 256, 48],
            [65, 192, 576],
            [197, 768, 768],
            [33, 64, 10],
            [7, 27, 64],
            [128, 384, 1536],
            [1, 768, 100],
            [2, 8, 1],
            [4, 264, 43],
            [7, 512, 96],
            [8, 64, 17],
            [9, 48, 1027],
            [3, 3072, 21],
            [2, 1536, 5],
        ],
    };
    dims.iter().flat_map(|&d| plain(d).into_iter().chain(for_sampling(d)).chain(mlps(d))).collect()
}
