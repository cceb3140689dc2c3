//! What an op is not made for is an error that names it, never a panic: wrong types, shapes, values and devices, for every op.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tweedie_engine::cases::{self, Case, Fault, Size};
use tweedie_engine::{DType, Device, Error, Result, Tensor};

/// Ops that cases call under the name of another, or on the way to it.
const OTHERS: [&str; 3] = ["padded", "repeat_ids", "noise"];

fn ops() -> BTreeSet<&'static str> {
    cases::all(Size::Tiny).iter().map(|c| c.op).chain(OTHERS).collect()
}

/// Run it: an error must come from an op. Returns the message, if it is refused.
fn refusal(case: &Case, values: &[Tensor], ops: &BTreeSet<&'static str>) -> Option<String> {
    let tried = || format!("{} {}: {values:?}", case.op, case.label);
    let result = catch_unwind(AssertUnwindSafe(|| case.attempt(values)));
    match result.unwrap_or_else(|_| panic!("{} panics", tried())) {
        Ok(()) => None,
        Err(Error::Op { op, message }) if ops.contains(op) => Some(format!("{op}: {message}")),
        Err(e) => panic!("{}: the error does not name the op: {e}", tried()),
    }
}

#[test]
fn wrong_inputs_are_errors_that_name_the_op() {
    let ops = ops();
    let (mut all, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for case in cases::all(Size::Tiny) {
        for wrong in case.wrong().unwrap() {
            let mut values: Vec<Tensor> = case.inputs.iter().map(|i| i.value.clone()).collect();
            values[wrong.input] = wrong.value;
            let refusal = refusal(&case, &values, &ops);
            let Fault::Type(dtype) = wrong.fault else { continue };
            let key = (case.op, case.inputs[wrong.input].name, dtype.to_string());
            if let Some(message) = refusal {
                assert!(message.contains(&key.2) && message.contains('['), "no type or shape is named: {message}");
                refused.insert(key.clone());
            }
            all.insert(key);
        }
    }
    // A reshape is the same for any type, and a cast is there to take them.
    all.retain(|(op, _, dtype)| *op != "reshape" && !(*op == "cast" && dtype == "bf16"));
    // Some options leave an input unread, so that not every case can refuse it.
    let missed: Vec<_> = all.difference(&refused).collect();
    assert!(all.len() > 100 && missed.is_empty(), "of {} wrong types these are taken: {missed:?}", all.len());
}

/// Needs a GPU: every op runs with all of its inputs there, and not with one of them on the other device.
#[test]
fn mixed_devices_are_errors_that_name_the_op() {
    let Ok(gpu) = Device::open("cuda") else {
        eprintln!("skipped: no GPU");
        return;
    };
    for case in cases::all(Size::Tiny) {
        for dtype in [DType::F32, DType::Bf16] {
            let run = case.outcome(&gpu.device, dtype);
            assert!(run.is_ok(), "{} {} in {dtype}: {}", case.op, case.label, run.err().unwrap());
        }
    }
    let ops = ops();
    for (home, away) in [(&Device::Cpu, &gpu.device), (&gpu.device, &Device::Cpu)] {
        let (mut all, mut refused) = (BTreeSet::new(), BTreeSet::new());
        for case in cases::all(Size::Tiny).into_iter().filter(|c| c.inputs.len() > 1) {
            let values: Vec<Tensor> = case.inputs.iter().map(|i| i.value.to_device(home).unwrap()).collect();
            for (i, input) in case.inputs.iter().enumerate() {
                let mut values = values.clone();
                values[i] = input.value.to_device(away).unwrap();
                all.insert((case.op, input.name));
                if refusal(&case, &values, &ops).is_some() {
                    refused.insert((case.op, input.name));
                }
            }
        }
        all.remove(&("noisy_input", "like")); // it only tells the type
        let missed: Vec<_> = all.difference(&refused).collect();
        assert!(missed.is_empty(), "beside {home}: {missed:?} may lie on {away}");
    }
}

type Call = Box<dyn Fn() -> Result<()>>;

/// Errors of calls that no case makes: the op to name, and the call.
fn refused(list: Vec<(&str, Call)>) {
    for (i, (op, call)) in list.into_iter().enumerate() {
        let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| panic!("call {i}, {op}, panics"));
        let error = result.expect_err(&format!("call {i}, {op}, is taken")).to_string();
        assert!(error.starts_with(&format!("{op}: ")), "call {i}: {error}");
    }
}

fn f32s(shape: &[usize]) -> Tensor {
    cases::random(0, shape, 1.0)
}

fn u32s(shape: &[usize]) -> Tensor {
    Tensor::zeros(&Device::Cpu, shape, DType::U32).unwrap()
}

macro_rules! refused {
    ($($op:literal => $call:expr),* $(,)?) => {
        refused(vec![$(($op, Box::new(|| $call.map(|_| ())))),*])
    };
}

#[test]
fn tensors_refuse_what_they_cannot_hold() {
    const HUGE: usize = usize::MAX / 2;
    let cpu = Device::Cpu;
    refused![
        "tensor" => Tensor::zeros(&Device::Cpu, &[HUGE, 3], DType::F32),
        "tensor" => Tensor::zeros(&Device::Cpu, &[HUGE], DType::Bf16),
        "tensor" => Tensor::from_f32(&Device::Cpu, &[HUGE, 4], vec![]),
        "tensor" => Tensor::from_f32(&Device::Cpu, &[HUGE, 4, 0], vec![]),
        "tensor" => Tensor::zeros(&Device::Cpu, &[0, HUGE, 4], DType::F32),
        "reshape" => f32s(&[0]).reshape(&[0, HUGE, 4]),
        "tensor" => Tensor::from_u32(&Device::Cpu, &[2], vec![1]),
        "tensor" => Tensor::from_bf16(&Device::Cpu, &[], vec![]),
        "reshape" => f32s(&[4]).reshape(&[HUGE, 4, HUGE]),
        "row" => f32s(&[2, 3]).row(2),
        "row" => f32s(&[2, 0]).row(0),
        "item" => f32s(&[2]).item(),
        "to_vec" => u32s(&[1]).item(),
        "to_vec_u32" => f32s(&[1]).to_vec_u32(),
        "as_f32" => u32s(&[1]).as_f32().map(|_| ()),
        "as_u32" => f32s(&[1]).as_u32().map(|_| ()),
        "cast" => f32s(&[1]).cast(DType::U32),
        "overwrite" => f32s(&[1]).overwrite(&f32s(&[1])),
        "overwrite" => f32s(&[1]).overwrite(&f32s(&[2])),
    ];
    assert_eq!(f32s(&[2, 3]).row(1).unwrap().shape(), [1, 3]);
    assert!(Tensor::zeros(&cpu, &[0, HUGE], DType::F32).unwrap().is_empty());
}

mod calls {
    use super::*;
    use tweedie_engine::ops::attention::{Mask, Rows, attention, cross_attention, joint_attention};
    use tweedie_engine::ops::choose::{Banned, Choose, How, MAX_BANNED, choose};
    use tweedie_engine::ops::cross_entropy::{Loss, Targets, linear_cross_entropy};
    use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
    use tweedie_engine::ops::rotary::{RotaryTable, rotary};
    use tweedie_engine::ops::{blend, dropout, linear, patchify, tokens, unmask};
    use tweedie_engine::optim::{AdamConfig, AdamW};
    use tweedie_engine::{Group, Noise, Params, ParamsBuilder, Tape};

    fn noise() -> Noise {
        Noise::new(&Device::Cpu, 1, 2, 3).unwrap()
    }

    #[test]
    fn sizes_and_options_that_make_no_sense() {
        const HUGE: usize = usize::MAX / 2;
        fn t() -> Tape {
            Tape::new()
        }
        fn v(shape: &[usize]) -> tweedie_engine::Var {
            t().constant(f32s(shape))
        }
        refused![
            "attention" => attention(&t(), &v(&[1, 2, 6]), 4, &Mask::default()),
            "attention" => attention(&t(), &v(&[1, 2, 6]), 0, &Mask::default()),
            "attention" => attention(&t(), &v(&[1, 2, 6]), HUGE, &Mask::default()),
            "attention" => attention(&t(), &v(&[1, 2, 6]), 1, &Mask { keys: None, prefix: 3 }),
            "attention" => attention(&t(), &v(&[1, 2, 6]), 1, &Mask { keys: Some(&f32s(&[1, 2])), prefix: 0 }),
            "cross_attention" => cross_attention(&t(), &v(&[1, 2, 6]), &v(&[1, 2, 12]), 4, None),
            "joint_attention" => joint_attention(
                &t(), &v(&[1, 2, 6]), &v(&[2, 2, 4]), &Rows::new(&Device::Cpu, &[0], 1)?, 1),
            "rows" => Rows::new(&Device::Cpu, &[3], 3),
            "rows" => Rows::new(&Device::Cpu, &[], 3),
            "rows" => Rows::new(&Device::Cpu, &[0], usize::MAX),
            "linear" => linear::linear(&t(), &v(&[2, 4]), &v(&[3, 4]), None, Some(tweedie_engine::Act::Silu), Some(&v(&[2, 3]))),
            "padded" => linear::padded(&u32s(&[2, 4]), &v(&[3, 4]), &v(&[3])),
            "rough" => linear::rough(&u32s(&[2, 4]), &f32s(&[3, 4])),
            "rough" => linear::rough(&f32s(&[2, 4]), &f32s(&[4])),
            "repeat" => tokens::repeat(&t(), &v(&[2, 4]), usize::MAX),
            "repeat" => tokens::repeat(&t(), &v(&[2, 4]), 0),
            "repeat_ids" => tokens::repeat_ids(&u32s(&[2]), usize::MAX),
            "concat" => tokens::concat(&t(), &[]),
            "slice" => tokens::slice(&t(), &v(&[2, 4, 1]), 3..5),
            "embed" => tokens::embed(&t(), &v(&[3, 2]), &u32s(&[2]), DType::U32),
            "patchify" => patchify::patchify(&t(), &v(&[1, 1, 4, 4]), 3, DType::F32),
            "patchify" => patchify::patchify(&t(), &v(&[1, 1, 4, 4]), 0, DType::F32),
            "patchify" => patchify::patchify(&t(), &v(&[1, 1, 4, 4]), 2, DType::Bf16),
            "dropout" => dropout::dropout(&t(), &v(&[2, 4]), f32::NAN, &noise(), &u32s(&[2])),
            "drop_path" => dropout::drop_path(&t(), &v(&[2, 4]), 1.0, &noise(), &u32s(&[2])),
            "rotary" => RotaryTable::new(&Device::Cpu, HUGE, 4),
            "rotary" => RotaryTable::new(&Device::Cpu, 4, 1),
            "rotary" => rotary(&t(), v(&[1, 2, 4]), &RotaryTable::new(&Device::Cpu, 1, 2)?, 4, 0..2),
            "linear_cross_entropy" => linear_cross_entropy(&t(), &v(&[2, 4]), &v(&[3, 4]), None,
                &Loss { targets: Targets::Hard(&u32s(&[2])), weights: None, smoothing: f32::NAN }, None),
            "linear_cross_entropy" => linear_cross_entropy(&t(), &v(&[2, 4]), &v(&[3, 4]), None,
                &Loss { targets: Targets::Hard(&u32s(&[2])), weights: None, smoothing: 0.0 }, Some(0)),
            "blend" => blend::blend(&f32s(&[3]), blend::First::Values(&f32s(&[2])), None, None),
            "guide" => blend::guide(&f32s(&[3, 2]), &f32s(&[1])),
            "guide" => blend::guide(&f32s(&[2, 2]), &u32s(&[1])),
        ];
        // The largest chunk there is holds all classes.
        let loss = Loss { targets: Targets::Hard(&u32s(&[2])), weights: None, smoothing: 0.0 };
        linear_cross_entropy(&t(), &v(&[2, 4]), &v(&[3, 4]), None, &loss, Some(usize::MAX)).unwrap();
    }

    #[test]
    fn sampling_and_noise() {
        fn of(eps: Eps, vocab: usize) -> NoisyTokens {
            NoisyTokens { tokens: u32s(&[2, 3]), signal: f32s(&[2]), spread: f32s(&[2]), eps, vocab }
        }
        fn drawn() -> Eps {
            Eps::Drawn { noise: noise(), examples: u32s(&[2]) }
        }
        fn masked() -> unmask::Masked {
            unmask::Masked { tokens: u32s(&[2, 3]), log_prob: f32s(&[2, 3]) }
        }
        refused![
            "noisy_input" => of(drawn(), 0).vectors(DType::F32),
            "noisy_input" => of(drawn(), usize::MAX / 4).vectors(DType::F32),
            "noisy_input" => of(drawn(), 5).vectors(DType::U32),
            "noisy_input" => of(Eps::Given(u32s(&[2, 3, 5])), 5).vectors(DType::F32),
            "noisy_input" => of(Eps::Drawn { noise: noise(), examples: f32s(&[2]) }, 5).vectors(DType::F32),
            "choose" => choose(&f32s(&[2, 3]), &Choose::argmax(0)),
            "choose" => choose(&f32s(&[2, 3]), &Choose { guidance: Some(&f32s(&[1])), ..Choose::argmax(usize::MAX) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose { guidance: Some(&u32s(&[1])), ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose { classes: Some(4), ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose { top: 4, ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose { fixed: Some(&f32s(&[2])), ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose { fixed: Some(&u32s(&[3])), ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose {
                how: How::Drawn { noise: &noise(), examples: &f32s(&[2]) }, ..Choose::argmax(1) }),
            "choose" => choose(&f32s(&[2, 3]), &Choose {
                banned: Some(Banned { classes: &u32s(&[MAX_BANNED + 1]), rows: &u32s(&[2]) }), ..Choose::argmax(1) }),
            "unmask" => unmask::unmask(
                &masked(), (&u32s(&[6]), &f32s(&[6])), 0, &u32s(&[1]), unmask::Reveal::Confident),
            "unmask" => unmask::unmask(&masked(), (&u32s(&[6]), &f32s(&[6])), 0, &f32s(&[1]),
                unmask::Reveal::Random { noise: &noise(), examples: &f32s(&[2]) }),
            "remask" => unmask::remask(
                &masked(), &masked(), Some(&u32s(&[5])), 0, &f32s(&[1]), unmask::Reveal::Confident),
            "remask" => unmask::remask(&masked(), &masked(), None, 0, &u32s(&[1]), unmask::Reveal::Confident),
            "remask" => unmask::remask(&masked(), &masked(), None, 0, &f32s(&[1]),
                unmask::Reveal::Random { noise: &noise(), examples: &f32s(&[2]) }),
            "noise" => noise().normal(&f32s(&[2]), 3),
            "noise" => noise().uniform(&u32s(&[8]), usize::MAX / 4),
            "noise" => noise().normal_at(0, 0, 4),
        ];
    }

    fn params(n: usize) -> Params {
        let mut b = ParamsBuilder::default();
        b.add("w", &[n], Group::Decay, vec![1.0; n]).unwrap();
        b.build(&Device::Cpu, false).unwrap()
    }

    #[test]
    fn parameters_and_the_optimizer() {
        refused![
            "parameter" => ParamsBuilder::default().add("w", &[usize::MAX, 3], Group::Decay, vec![]),
            "parameter" => ParamsBuilder::default().add("w", &[2], Group::Decay, vec![1.0]),
            "parameter" => ParamsBuilder::default().add("w", &[0, 2], Group::Hidden { parts: 1 }, vec![]),
            "parameter" => ParamsBuilder::default().add("w", &[3, 2], Group::Hidden { parts: 2 }, vec![0.0; 6]),
            "parameters" => ParamsBuilder::default().build(&Device::Cpu, true),
            "parameter" => { let p = params(3); p.part(&f32s(&[3]), p.find("w").unwrap()) },
            "parameter" => { let mut p = params(3); let w = p.find("w").unwrap(); p.set(w, &[1.0]) },
            "optimizer" => AdamW::new(&params(3), AdamConfig::default())?.step(&mut params(300), 0.1),
            "optimizer" => AdamW::new(&params(3), AdamConfig { ema: 0.9, ..AdamConfig::default() })?
                .swap_ema(&mut params(300)),
            "optimizer" => AdamW::new(&params(3), AdamConfig::default())?.restore("m", vec![1.0]),
            "adamw" => AdamW::new(&params(3), AdamConfig { beta1: f32::NAN, ..AdamConfig::default() }),
        ];
    }
}
