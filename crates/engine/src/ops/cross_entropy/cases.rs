//! Examples for finite differences and for comparing devices.

use super::{Loss, Targets, cross_entropy, linear_cross_entropy};
use crate::cases::{Case, Role, Size, random};
use crate::device::Device;
use crate::tape::Var;
use crate::tensor::Tensor;

#[derive(Clone, Copy)]
struct Options {
    soft: bool,
    weights: bool,
    smoothing: f32,
}

impl Options {
    /// Of the inputs that [`Options::inputs`] added, which begin at `v[0]`.
    fn loss<'a>(&self, v: &'a [Var]) -> Loss<'a> {
        let t = v[0].value();
        let targets = if self.soft { Targets::Soft(t) } else { Targets::Hard(t) };
        Loss { targets, weights: self.weights.then(|| v[1].value()), smoothing: self.smoothing }
    }

    fn inputs(&self, case: Case, rows: usize, classes: usize) -> Case {
        let case = match self.soft {
            true => case.data("targets", positive(70, &[rows, classes], 2.0 / classes as f32)),
            false => case.ids("targets", &[rows], classes as u32),
        };
        if self.weights { case.data("weights", positive(71, &[rows], 1.0)) } else { case }
    }

    fn label(&self) -> String {
        let kind = if self.soft { "soft" } else { "hard" };
        let weights = if self.weights { ", weights" } else { "" };
        format!("{kind}{weights}, smoothing {}", self.smoothing)
    }
}

const ALL: [Options; 5] = [
    Options { soft: false, weights: false, smoothing: 0.0 },
    Options { soft: false, weights: true, smoothing: 0.1 },
    Options { soft: true, weights: false, smoothing: 0.0 },
    Options { soft: true, weights: true, smoothing: 0.1 },
    Options { soft: false, weights: false, smoothing: 1.0 },
];

/// |normal|: rows of targets need not sum to 1.
fn positive(stream: u32, shape: &[usize], scale: f32) -> Tensor {
    let made = random(stream, shape, scale)
        .to_vec()
        .and_then(|v| Tensor::from_f32(&Device::Cpu, shape, v.into_iter().map(f32::abs).collect()));
    made.unwrap_or_else(|e| unreachable!("a CPU tensor of matching length: {e}"))
}

pub(crate) fn cases(size: Size) -> Vec<Case> {
    let plain: &[[usize; 2]] = match size {
        Size::Tiny => &[[3, 5], [1, 2]],
        Size::Full => &[[1, 1], [1, 10], [197, 27], [37, 1000], [5, 30522]],
    };
    // rows, d, classes, chunk, bias
    let linear: &[(usize, usize, usize, Option<usize>, bool)] = match size {
        Size::Tiny => &[(3, 4, 5, None, true), (2, 2, 67, Some(64), true), (1, 3, 2, None, false)],
        Size::Full => &[
            (1, 64, 10, None, true),
            (197, 64, 10, None, true),
            (33, 64, 27, None, false),
            (197, 64, 1000, None, true),
            (197, 65, 1000, Some(192), true),
            (33, 64, 1027, None, true),
            (5, 64, 30522, None, true),
            (5, 64, 30522, Some(8192), false),
        ],
    };
    let mut out = Vec::new();
    for o in ALL {
        for &[rows, classes] in plain {
            let label = format!("[{rows}, {classes}] {}", o.label());
            let case = Case::new("cross_entropy", label, move |t, v| cross_entropy(t, &v[0], &o.loss(&v[1..])));
            out.push(o.inputs(case.normal("logits", Role::Activation, &[rows, classes], 1.0), rows, classes));
        }
        for &(rows, d, classes, chunk, bias) in linear {
            let with = if bias { " + bias" } else { "" };
            let label = format!("[{rows}, {d}] · [{d}, {classes}]{with}, chunk {chunk:?}, {}", o.label());
            let case = Case::new("linear_cross_entropy", label, move |t, v| {
                let (b, rest) = if bias { (Some(&v[2]), &v[3..]) } else { (None, &v[2..]) };
                linear_cross_entropy(t, &v[0], &v[1], b, &o.loss(rest), chunk)
            });
            let mut case = case.normal("x", Role::Activation, &[rows, d], 1.0).normal(
                "weight",
                Role::Weight,
                &[classes, d],
                (d as f32).powf(-0.5),
            );
            if bias {
                case = case.normal("bias", Role::Weight, &[classes], 1.0);
            }
            out.push(o.inputs(case, rows, classes));
        }
    }
    // A gradient that comes second to its input: it must be added.
    let o = ALL[1];
    let (rows, d, classes) = if size == Size::Tiny { (2, 3, 5) } else { (37, 64, 130) };
    let case = Case::new("linear_cross_entropy", "twice", move |t, v| {
        let a = linear_cross_entropy(t, &v[0], &v[1], Some(&v[2]), &o.loss(&v[3..]), Some(64))?;
        let b = linear_cross_entropy(t, &v[0], &v[1], Some(&v[2]), &o.loss(&v[3..]), None)?;
        crate::ops::elementwise::add(t, &a, &b)
    });
    let case = case
        .normal("x", Role::Activation, &[rows, d], 1.0)
        .normal("weight", Role::Weight, &[classes, d], 0.5)
        .normal("bias", Role::Weight, &[classes], 1.0);
    out.push(o.inputs(case, rows, classes));
    let case = Case::new("cross_entropy", "twice", move |t, v| {
        let a = cross_entropy(t, &v[0], &o.loss(&v[1..]))?;
        crate::ops::elementwise::add(t, &a, &cross_entropy(t, &v[0], &o.loss(&v[1..]))?)
    });
    out.push(o.inputs(case.normal("logits", Role::Activation, &[rows, classes], 1.0), rows, classes));
    out
}
