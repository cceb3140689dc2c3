//! AdamW with clipping and EMA against PyTorch's own numbers (`reference/golden.py adamw` makes them).

use tweedie_engine::optim::{AdamConfig, AdamW};
use tweedie_engine::{Device, Group, ParamsBuilder, Tape, Tensor, ops};

#[test]
fn ten_steps_agree_with_pytorch() {
    let lines: Vec<(&str, Vec<f32>)> = include_str!("fixtures/adamw.txt")
        .lines()
        .map(|l| {
            let at = l.find(|c: char| c == '-' || c.is_ascii_digit()).unwrap();
            (l[..at].trim(), l[at..].split(' ').map(|v| v.parse().unwrap()).collect())
        })
        .collect();
    let mut builder = ParamsBuilder::default();
    let a = builder.add("a", &[1, 7], Group::Decay, lines[0].1.clone()).unwrap();
    let b = builder.add("b", &[1, 5], Group::NoDecay, lines[1].1.clone()).unwrap();
    let mut params = builder.build(&Device::Cpu, false).unwrap();
    let config = AdamConfig { weight_decay: 0.3, clip: 3.0, ema: 0.99, ..AdamConfig::default() };
    let mut opt = AdamW::new(&params, config).unwrap();
    let (mut steps, mut worst) = (0, 0.0_f32);
    for (word, values) in &lines[2..] {
        let id = if word.ends_with('a') { a } else { b };
        let got = match *word {
            "grad a" | "grad b" => {
                // The gradient of w·gᵀ with respect to w is g.
                let tape = Tape::new();
                let w = tape.param(&params, id);
                let g = tape.constant(Tensor::from_f32(&Device::Cpu, w.shape(), values.clone()).unwrap());
                let loss = ops::linear::linear(&tape, &w, &g, None, None, None).unwrap();
                drop(w);
                tape.backward(&loss, Some(&mut params)).unwrap();
                continue;
            }
            "norm" => {
                steps += 1;
                opt.step(&mut params, 0.01 * steps as f32).unwrap();
                vec![opt.stats().unwrap().grad_norm]
            }
            "value a" | "value b" => params.value(id).to_vec().unwrap(),
            "ema a" | "ema b" => params.part(opt.ema().unwrap(), id).unwrap().to_vec().unwrap(),
            other => panic!("unknown line {other}"),
        };
        assert_eq!(got.len(), values.len(), "{word}");
        for (g, w) in got.iter().zip(values) {
            worst = worst.max((g - w).abs() / w.abs().max(1.0));
        }
    }
    assert_eq!(steps, 10);
    assert!(worst < 2e-6, "largest relative difference {worst}"); // ten f32 updates of values near 1
}
