//! A GPU against the CPU: every case in f32 and in bf16, twice; noise and captured graphs to the bit.

use tweedie_engine::cases::{self, Case, Outcome, Size};
use tweedie_engine::cuda::{Cuda, Uploads};
use tweedie_engine::ops::{elementwise, mean_square, norm};
use tweedie_engine::optim::{AdamConfig, AdamW};
use tweedie_engine::{DType, Device, Group, Noise, ParamsBuilder, Result, Tape, Tensor};

use super::Wanted;
use super::findings::{Check, Findings, Result as Found};
use crate::report::Progress;

/// The check of the noise streams.
pub const NOISE: &str = "noise";
/// The check of the optimizer.
pub const OPTIMIZER: &str = "optimizer";
/// The check of captured graphs.
pub const GRAPH: &str = "graph";
/// The check of copies beside the kernels.
pub const UPLOADS: &str = "uploads";

/// ‖x − reference‖ / ‖reference‖. f32: sums of up to some 10⁵ terms in another order.
const F32: Check = Check { name: "f32", bound: 1e-4 };
/// bf16 keeps 8 bits, so a value is off by up to 2⁻⁹ = 0.2 % and what is computed from several such values by a few times
/// that; ten times it is an error of another kind.
const BF16: Check = Check { name: "bf16", bound: 3e-2 };
/// Muon multiplies in bf16 fifteen times in a row, and its polynomial raises what the first roundings leave in the smallest singular
/// values by up to 3.4⁵: the update is off by 2 % (the same roundings on a CPU give 1.2 to 2.7 % for matrices of these shapes and
/// larger). Held against the way the weights went, not the weights.
const MUON: Check = Check { name: "bf16", bound: 6e-2 };
/// Its moments are sums of gradients in f32, but those are taken at weights that are off by that: 4 % of the 1 % they move.
const MUON_MOMENTS: Check = Check { name: "f32", bound: 4e-3 };
pub const BITS: Check = Check { name: "same bits", bound: 0.0 };

/// Values this much smaller than the largest of their case are what rounding leaves of a zero. Against these the
/// absolute error must keep the bound: layer norm of one value has a gradient of zero, of which f32 leaves up to 6e-8/√eps.
const NOTHING: f64 = 1e-6;
pub fn legend() -> String {
    format!(
        "f32, bf16: worst ‖x − reference‖/‖reference‖ against the CPU in f32; the bounds are {:.0e} and {:.0e},\n\
         {:.0e} of the way that Muon's weights went.\n\
         same bits: two runs on the device; noise also against the CPU; graph, sampling: replays against\n\
         direct launches.\n",
        F32.bound, BF16.bound, MUON.bound
    )
}

pub fn check(c: &Cuda, wanted: &Wanted, progress: &Progress, findings: &mut Findings) -> Result<()> {
    let device = Device::Cuda(c.clone());
    for case in cases::all(Size::Full).iter().filter(|c| wanted.has(c.op)) {
        progress.say(case.op, &case.label);
        if let Err(e) = compare(case, &device, findings) {
            findings.broken(case.op, &case.label, &e.to_string());
        }
    }
    if wanted.has(NOISE) {
        progress.say(NOISE, "");
        noise(&device, findings)?;
    }
    if wanted.has(OPTIMIZER) {
        progress.say(OPTIMIZER, "");
        optimizer(&device, findings)?;
        muon(&device, findings)?;
    }
    if wanted.has(GRAPH) {
        progress.say(GRAPH, "");
        graph(c, findings)?;
    }
    if wanted.has(UPLOADS) {
        progress.say(UPLOADS, "");
        uploads(c, findings)?;
    }
    Ok(())
}

fn compare(case: &Case, device: &Device, findings: &mut Findings) -> Result<()> {
    let run = || case.outcome(device, DType::F32);
    against(case, &case.outcome(&Device::Cpu, DType::F32)?, [run()?, run()?], F32, findings);
    // Inputs rounded to bf16 on both sides: the op is tested, not the rounding of what it is given.
    let run = || case.outcome_rounded(device, DType::Bf16);
    against(case, &case.outcome_rounded(&Device::Cpu, DType::F32)?, [run()?, run()?], BF16, findings);
    Ok(())
}

fn against(case: &Case, reference: &Outcome, runs: [Outcome; 2], check: Check, findings: &mut Findings) {
    let largest = values(reference).map(|(_, v)| rms(v)).fold(0.0, f64::max);
    for (name, want) in values(reference) {
        let of = |o: &Outcome| values(o).find(|v| v.0 == name).map(|v| v.1.to_vec());
        let [Some(got), Some(again)] = runs.each_ref().map(of) else {
            findings.broken(case.op, &case.label, &format!("{name} is missing on the device"));
            continue;
        };
        findings.note(case.op, &case.label, &name, check, Found::Error(error(want, &got, largest)));
        findings.note(case.op, &case.label, &name, BITS, Found::SameBits(same(&got, &again)));
    }
}

/// Output and gradients by name.
fn values(o: &Outcome) -> impl Iterator<Item = (String, &[f32])> {
    let grads = o.grads.iter().map(|(name, g)| (format!("d/d{name}"), g.as_slice()));
    [("output".to_string(), o.output.as_slice())].into_iter().chain(grads)
}

pub fn rms(v: &[f32]) -> f64 {
    (v.iter().map(|x| (*x as f64).powi(2)).sum::<f64>() / v.len().max(1) as f64).sqrt()
}

/// Relative error; absolute where the reference is nothing beside the `largest` value of its case. NaN where either has one.
pub fn error(want: &[f32], got: &[f32], largest: f64) -> f64 {
    if want.len() != got.len() {
        return f64::NAN;
    }
    let difference: Vec<f32> = want.iter().zip(got).map(|(w, g)| w - g).collect();
    let size = rms(want);
    if size <= NOTHING * largest { rms(&difference) } else { rms(&difference) / size }
}

pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The same numbers on both devices, whatever the row length and the example.
fn noise(device: &Device, findings: &mut Findings) -> Result<()> {
    for n in [1, 1001, 65_536] {
        let label = format!("[5, {n}]");
        let draw = |d: &Device| -> Result<[Vec<f32>; 2]> {
            let ids = Tensor::from_u32(d, &[5], vec![0, 1, 2, 1 << 20, u32::MAX])?;
            let noise = Noise::new(d, 0x0123_4567_89ab_cdef, 7, 3)?.later(2);
            Ok([noise.normal(&ids, n)?.to_vec()?, noise.uniform(&ids, n)?.to_vec()?])
        };
        let (cpu, gpu) = (draw(&Device::Cpu)?, draw(device)?);
        for (name, (a, b)) in ["normal", "uniform"].iter().zip(cpu.iter().zip(&gpu)) {
            findings.note(NOISE, &label, name, BITS, Found::SameBits(same(a, b)));
        }
    }
    Ok(())
}

/// Weights, moments, average and counters after some steps, one of them with a gradient that is not finite.
fn optimizer(device: &Device, findings: &mut Findings) -> Result<()> {
    let run = |d: &Device| -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut builder = ParamsBuilder::default();
        let a = builder.add("a", &[33, 65], Group::Decay, cases::random(0, &[33, 65], 1.0).to_vec()?)?;
        let b = builder.add("b", &[1, 7], Group::NoDecay, cases::random(1, &[1, 7], 1.0).to_vec()?)?;
        let mut params = builder.build(d, *d != Device::Cpu)?;
        let mut opt = AdamW::new(&params, AdamConfig { weight_decay: 0.3, ema: 0.9, ..AdamConfig::default() })?;
        for step in 0..6 {
            for (i, id) in [a, b].into_iter().enumerate() {
                let g = cases::random(
                    2 * step + i as u32,
                    params.value(id).shape(),
                    if step == 3 { f32::INFINITY } else { 0.2 },
                );
                let tape = Tape::new();
                let w = tape.param(&params, id);
                let loss = mean_square::mean_square(&tape, &w, &g.to_device(d)?, None)?;
                drop(w);
                let loss = elementwise::mean(&tape, &loss)?;
                tape.backward(&loss, Some(&mut params))?;
            }
            opt.step(&mut params, 0.01)?;
        }
        let mut all = vec![("weights a", params.value(a).to_vec()?), ("weights b", params.value(b).to_vec()?)];
        for (name, t) in opt.buffers() {
            all.push((name, t.to_vec()?));
        }
        Ok(all)
    };
    let (cpu, gpu, again) = (run(&Device::Cpu)?, run(device)?, run(device)?);
    for ((name, want), ((_, got), (_, twice))) in cpu.iter().zip(gpu.iter().zip(&again)) {
        findings.note(OPTIMIZER, "6 steps", name, F32, Found::Error(error(want, got, rms(want))));
        findings.note(OPTIMIZER, "6 steps", name, BITS, Found::SameBits(same(got, twice)));
    }
    Ok(())
}

/// The same for Muon, with matrices of whole and of odd groups of eight, alone and three in one.
fn muon(device: &Device, findings: &mut Findings) -> Result<()> {
    let shapes: [(&'static str, [usize; 2], Group); 5] = [
        ("qkv", [192, 64], Group::Hidden { parts: 3 }),
        ("proj", [64, 64], Group::Hidden { parts: 1 }),
        ("fc1", [132, 33], Group::Hidden { parts: 1 }),
        ("fc2", [33, 132], Group::Hidden { parts: 1 }),
        ("head", [33, 65], Group::Decay),
    ];
    let run = |d: &Device| -> Result<Vec<(&'static str, Vec<f32>)>> {
        let mut builder = ParamsBuilder::default();
        let (mut ids, mut first) = (Vec::new(), Vec::new());
        for (i, (name, shape, group)) in shapes.into_iter().enumerate() {
            first.push(cases::random(i as u32, &shape, 0.1).to_vec()?);
            ids.push(builder.add(name, &shape, group, first[i].clone())?);
        }
        let mut params = builder.build(d, *d != Device::Cpu)?;
        let config = AdamConfig { weight_decay: 0.3, ema: 0.9, muon: Some(0.95), ..AdamConfig::default() };
        let mut opt = AdamW::new(&params, config)?;
        for step in 0..6 {
            for (i, id) in ids.iter().enumerate() {
                let size = if step == 3 { f32::INFINITY } else { 1.0 };
                let g = cases::random(10 * (step + 1) + i as u32, &shapes[i].1, size).to_device(d)?;
                let tape = Tape::new();
                let w = tape.param(&params, *id);
                let loss = elementwise::mean(&tape, &mean_square::mean_square(&tape, &w, &g, None)?)?;
                drop(w);
                tape.backward(&loss, Some(&mut params))?;
            }
            opt.step(&mut params, 0.01)?;
        }
        let (mut all, mut averages) = (Vec::new(), Vec::new());
        let way = |t: Tensor, first: &[f32]| -> Result<Vec<f32>> {
            Ok(t.to_vec()?.iter().zip(first).map(|(now, first)| now - first).collect())
        };
        for ((id, first), (name, ..)) in ids.iter().zip(&first).zip(shapes) {
            all.push((name, way(params.value(*id), first)?));
            if let Some(ema) = opt.ema() {
                averages.extend(way(params.part(ema, *id)?, first)?);
            }
        }
        all.push(("ema", averages));
        for (name, t) in opt.buffers().into_iter().filter(|b| b.0 != "ema") {
            all.push((name, t.to_vec()?));
        }
        Ok(all)
    };
    let (cpu, gpu, again) = (run(&Device::Cpu)?, run(device)?, run(device)?);
    for ((name, want), ((_, got), (_, twice))) in cpu.iter().zip(gpu.iter().zip(&again)) {
        let check = if ["m", "v", "state"].contains(name) { MUON_MOMENTS } else { MUON };
        findings.note(OPTIMIZER, "6 steps of Muon", name, check, Found::Error(error(want, got, rms(want))));
        findings.note(OPTIMIZER, "6 steps of Muon", name, BITS, Found::SameBits(same(got, twice)));
    }
    Ok(())
}

/// Batches that follow each other faster than the kernels that read them, some of other sizes and some still held when their
/// buffer is wanted again.
fn uploads(c: &Cuda, findings: &mut Findings) -> Result<()> {
    const ROUNDS: u32 = 12;
    let mut uploads = Uploads::new(c, 2);
    let shape = |round: u32| if round % 5 == 3 { [1, 7] } else { [64, 50_000] };
    let work = |x: &Tensor| -> Result<Tensor> {
        let tape = Tape::inference();
        let mut y = tape.constant(x.clone());
        for _ in 0..40 {
            y = elementwise::scale(&tape, &y, 1.5)?;
            y = elementwise::scale(&tape, &y, 1.0 / 1.5)?;
        }
        Ok(elementwise::add(&tape, &y, &tape.constant(x.clone()))?.value().clone())
    };
    let (mut made, mut held) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let x = uploads.put(&shape(round), &cases::random(round, &shape(round), 1.0).to_vec()?)?;
        made.push(work(&x)?);
        if round % 4 == 1 {
            held.push((round, x));
        }
    }
    for (round, got) in (0..).zip(&made) {
        let want = work(&cases::random(round, &shape(round), 1.0).to_device(&Device::Cuda(c.clone()))?)?.to_vec()?;
        findings.note(UPLOADS, &format!("batch {round}"), "output", BITS, Found::SameBits(same(&want, &got.to_vec()?)));
    }
    for (round, x) in held {
        let want = cases::random(round, &shape(round), 1.0).to_vec()?;
        findings.note(UPLOADS, &format!("batch {round}"), "input", BITS, Found::SameBits(same(&want, &x.to_vec()?)));
    }
    Ok(())
}

/// A captured chain of kernels, replayed on other inputs and other noise, against the same chain launched directly.
fn graph(c: &Cuda, findings: &mut Findings) -> Result<()> {
    let device = Device::Cuda(c.clone());
    let (rows, d) = (5, 96);
    let put = |stream, shape: &[usize]| cases::random(stream, shape, 1.0).to_device(&device);
    let (x, gain, bias) = (put(0, &[rows, d])?, put(1, &[d])?, put(2, &[d])?);
    let ids = Tensor::from_u32(&device, &[rows], (0..rows as u32).collect())?;
    let noise = Noise::new(&device, 1, 2, 3)?;
    let chain = || -> Result<Tensor> {
        let tape = Tape::inference();
        let [x, gain, bias] = [&x, &gain, &bias].map(|t| tape.constant(t.clone()));
        let mut y = x;
        for step in 0..3 {
            let z = tape.constant(noise.later(step).normal(&ids, d)?);
            y = norm::layer_norm(&tape, &elementwise::add(&tape, &y, &z)?, &gain, &bias, 1e-6)?;
            // Host data become constants of the graph, in memory that none of its kernels writes.
            let shift = tape.constant(Tensor::from_f32(&device, &[rows, d], vec![step as f32; rows * d])?);
            y = elementwise::add(&tape, &y, &shift)?;
        }
        Ok(y.value().clone())
    };
    chain()?; // compiles the kernels
    let (graph, out) = c.capture(chain)?;
    for round in 0..3 {
        x.overwrite(&cases::random(10 + round, &[rows, d], 1.0))?;
        noise.reset(9, 2, round)?;
        graph.launch()?;
        let (replayed, direct) = (out.to_vec()?, chain()?.to_vec()?);
        findings.note(GRAPH, &format!("replay {round}"), "output", BITS, Found::SameBits(same(&replayed, &direct)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_and_absolute_only_where_the_reference_is_nothing() {
        assert!((error(&[3.0, 4.0], &[3.0, 4.5], 1.0) - 0.1).abs() < 1e-12);
        assert!((error(&[0.0], &[0.25], 1.0) - 0.25).abs() < 1e-12);
        assert!((error(&[1e-9], &[2e-9], 1e-9) - 1.0).abs() < 1e-6, "a small value is not nothing by itself");
        assert!(error(&[1.0], &[f32::NAN], 1.0).is_nan() && error(&[1.0], &[], 1.0).is_nan());
    }

    /// The comparison itself, with the CPU in the place of the device.
    #[test]
    fn a_device_that_agrees_passes_and_one_that_does_not_fails() {
        let case = &cases::all(Size::Tiny)[0];
        let run = || case.outcome(&Device::Cpu, DType::F32).unwrap();
        let mut findings = Findings::default();
        against(case, &run(), [run(), run()], F32, &mut findings);
        assert!(findings.failures().is_empty() && !findings.rows().is_empty());
        let mut off = run();
        off.grads[0].1[0] += 0.1;
        against(case, &run(), [off, run()], F32, &mut findings);
        assert_eq!(findings.failures().len(), 2, "{:?}", findings.failures()); // its size and its bits
        let mut less = run();
        less.grads.clear();
        against(case, &run(), [less, run()], F32, &mut findings);
        assert!(findings.failures().last().unwrap().contains("missing"));
    }
}
