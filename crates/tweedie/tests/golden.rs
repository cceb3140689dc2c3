//! Losses, logits, conditions and every gradient against the PyTorch reference (`reference/torch_tdd.py`, float64, stored in float32).

use safetensors::SafeTensors;
use tweedie::config::{LossConfig, Method, ModelConfig};
use tweedie::loss::{NoiseOf, Rows, TddLoss};
use tweedie::model::{Conditioning, DenoiserConfig, Gelu, Model, Pass, Pool, Sizes, VitConfig};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::ops::tokens;
use tweedie_engine::{DType, Device, Tape, Tensor};

struct Golden<'a>(SafeTensors<'a>);

impl Golden<'_> {
    fn f32(&self, name: &str) -> Vec<f32> {
        let t = self.0.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        t.data().chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
    }

    fn ints(&self, name: &str) -> Vec<u32> {
        let t = self.0.tensor(name).unwrap();
        match t.dtype() {
            safetensors::Dtype::U8 => t.data().iter().map(|b| *b as u32).collect(),
            _ => t.data().chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().unwrap()) as u32).collect(),
        }
    }

    fn tensor(&self, name: &str, device: &Device) -> Tensor {
        let shape = self.0.tensor(name).unwrap().shape().to_vec();
        Tensor::from_f32(device, &shape, self.f32(name)).unwrap()
    }
}

/// ‖x − want‖ / ‖want‖.
fn relative(x: &[f32], want: &[f32]) -> f64 {
    assert_eq!(x.len(), want.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|d| d * d).sum::<f64>().sqrt();
    let d = norm(&mut x.iter().zip(want).map(|(x, w)| *x as f64 - *w as f64));
    let n = norm(&mut want.iter().map(|w| *w as f64));
    if n == 0.0 { d } else { d / n }
}

/// Worst relative error of loss, logits, condition and gradients.
fn worst(file: &str, device: &Device, dtype: DType) -> f64 {
    let caption = file == "caption";
    let bytes = std::fs::read(format!("{}/tests/golden/{file}.safetensors", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let g = Golden(SafeTensors::deserialize(&bytes).unwrap());
    let config = ModelConfig {
        method: Method::Tdd,
        classes: 0,
        condition: Conditioning::Image,
        pool: if caption { Pool::All } else { Pool::Mean },
        gelu: Gelu::Erf,
        encoder: VitConfig {
            image: if caption { 16 } else { 8 },
            patch: if caption { 4 } else { 2 },
            channels: if caption { 3 } else { 1 },
            width: 32,
            depth: 2,
            heads: 2,
            drop_path: 0.0,
            class_tokens: 1,
        },
        denoiser: DenoiserConfig::new(48, 2, 4),
        pretrained: String::new(),
        freeze_encoder: false,
    };
    let sizes = if caption { Sizes { vocab: 50, tokens: 6 } } else { Sizes { vocab: 10, tokens: 1 } };
    let mut model = Model::new(&config, sizes, device, dtype, 0).unwrap();
    let names: Vec<_> = model.params.iter().map(|(n, s, id)| (n.to_string(), s.to_vec(), id)).collect();
    let golden_params = g.0.names().into_iter().filter(|n| n.starts_with("param.")).count();
    assert_eq!(names.len(), golden_params, "every parameter of the reference exists here, and no other");
    for (name, shape, id) in &names {
        let key = format!("param.{name}");
        assert_eq!(g.0.tensor(&key).unwrap().shape(), shape.as_slice(), "{name}");
        model.params.set(*id, &g.f32(&key)).unwrap();
    }
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, sizes.vocab).unwrap());
    let want: Vec<f32> = (0..=1000).map(|t| process.schedule().alpha_bar(t) as f32).collect();
    assert!(relative(&want, &g.f32("alpha_bar")) < 1e-7);
    let rows = Rows { drop: g.ints("in.drop"), ..Rows::new(g.ints("in.tokens"), g.ints("in.t")) };
    let images = g.tensor("in.images", device);
    let noise = || NoiseOf::Given(g.tensor("in.eps", device));
    let mut worst = 0.0_f64;
    let mut note = |what: &str, x: &[f32], want: &[f32]| {
        let e = relative(x, want);
        assert!(e.is_finite(), "{what} is not finite");
        worst = worst.max(e);
    };
    for (name, weighted, smoothing) in [("weighted", true, 0.0), ("plain", false, 0.0), ("smoothed", true, 0.1)] {
        model.params.discard_grads();
        let tape = Tape::new();
        let loss = {
            let p = Pass { recompute: name == "smoothed", ..Pass::inference(&tape, &model.params, dtype) };
            let config = LossConfig { weighted, smoothing, ..LossConfig::default() };
            let loss = TddLoss { process: &process, config: &config, noise: noise() };
            loss.of(&p, &model, Some(&images), &rows).unwrap()
        };
        note(name, &loss.value().to_vec().unwrap(), &g.f32(&format!("out.loss.{name}")));
        if name == "plain" {
            continue;
        }
        tape.backward(&loss, Some(&mut model.params)).unwrap();
        for (param, _, id) in &names {
            let got = model.params.grad(*id).unwrap().to_vec().unwrap();
            note(param, &got, &g.f32(&format!("grad.{name}.{param}")));
        }
    }
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &model.params, dtype);
    let k = rows.t.len() / images.shape()[0];
    let cond = tokens::repeat(&tape, &model.condition(&p, &images).unwrap(), k).unwrap();
    note("condition", &cond.value().to_vec().unwrap(), &g.f32("out.cond"));
    let noisy = rows.corrupt(&process, device, (sizes.tokens, sizes.vocab), &noise()).unwrap();
    let drop = Tensor::from_u32(device, &[rows.drop.len()], rows.drop.clone()).unwrap();
    let cond = model.project_condition(&p, &cond).unwrap();
    let features = model.denoise(&p, &noisy, &rows.t, &cond, Some(&drop)).unwrap();
    note("logits", &model.logits(&p, &features).unwrap().value().to_vec().unwrap(), &g.f32("out.logits"));
    worst
}

#[test]
fn the_cpu_agrees_with_the_reference() {
    for file in ["class", "caption"] {
        let e = worst(file, &Device::Cpu, DType::F32);
        println!("{file} on the CPU in f32: {e:.1e}");
        assert!(e < 2e-4, "{file}: {e:.1e}"); // a few hundred f32 roundings through five blocks
    }
}

#[test]
fn a_gpu_agrees_with_the_reference() {
    let Ok(choice) = Device::open("cuda") else {
        println!("skipped: no usable GPU");
        return;
    };
    for file in ["class", "caption"] {
        for (dtype, bound) in [(DType::F32, 2e-4), (DType::Bf16, 3e-2)] {
            let e = worst(file, &choice.device, dtype);
            println!("{file} on the GPU in {dtype}: {e:.1e}");
            assert!(e < bound, "{file} in {dtype}: {e:.1e}");
        }
    }
}
