//! A trained network against the oracle.

use super::*;

/// Images that say nothing, with labels in the given numbers.
fn blank(numbers: &[usize]) -> Dataset {
    let labels: Vec<u32> = numbers.iter().enumerate().flat_map(|(k, n)| vec![k as u32; *n]).collect();
    let source: Source = Arc::new(MemorySource::new("blank", 8, 8, 1, vec![128; 64 * labels.len()], labels).unwrap());
    Dataset {
        name: "blank".into(),
        format: Format::Custom,
        class_names: (0..numbers.len()).map(|k| k.to_string()).collect(),
        channels: 1,
        train: Some(source.clone()),
        val: Some(source),
        val_origin: String::new(),
        test: None,
        notes: Vec::new(),
    }
}

/// Logits of noisy rows the sampler's way; guided, each with its condition followed by itself without.
fn by_sampler(trainer: &mut Trainer, images: &Tensor, noisy: &NoisyTokens, t: u32, guided: bool) -> Vec<f32> {
    let of = |x: &Trained, _: &Config| {
        let network = Conditioned::new(&x.model, Some(images), 1, guided)?;
        let tape = Tape::inference();
        let (w, zero) = (network.weight()?.unwrap().clone(), Tensor::zeros(&Device::Cpu, &[32], DType::F32)?);
        let u = noisy_input(&tape, noisy, &tape.constant(w), &tape.constant(zero), DType::F32)?;
        let (u, at) = (u.value(), (t as usize).into());
        let logits = if guided { network.logits_of_pairs(u, at) } else { Denoise::logits(&network, u, at) };
        Ok(logits?.to_vec()?)
    };
    trainer.averaged(of).unwrap()
}

/// The same by training's way, with the null condition where `drop` is 1.
fn by_training(trainer: &mut Trainer, images: &Tensor, noisy: &NoisyTokens, t: u32, drop: u32) -> Vec<f32> {
    let of = |x: &Trained, _: &Config| {
        let (tape, m, rows) = (Tape::inference(), &x.model, images.shape()[0]);
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let cond = m.project_condition(&p, &m.condition(&p, images)?)?;
        let drop = Tensor::from_u32(&Device::Cpu, &[rows], vec![drop; rows])?;
        let f = m.denoise(&p, noisy, &vec![t; rows], &cond, Some(&drop))?;
        Ok(m.logits(&p, &f)?.value().to_vec()?)
    };
    trainer.averaged(of).unwrap()
}

/// A network that sees no condition learns the oracle of the label frequencies: the prior at t = T, the posterior before.
#[test]
fn a_small_network_learns_the_oracle() {
    const PRIOR: [f64; 3] = [0.5, 0.3, 0.2];
    const ROWS: usize = 256;
    let mut c = Config { loss: LossConfig { smoothing: 0.0, ..LossConfig::default() }, ..Config::default() };
    c.data.workers = 1;
    c.model.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 32, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.model.denoiser = DenoiserConfig::new(32, 1, 2);
    c.train = TrainConfig { epochs: 60, batch: 100, noisy_copies: 8, lr: 1e-2, ema: 0.98, ..TrainConfig::default() };
    let mut trainer = Trainer::new(&c, blank(&[200, 120, 80]), &Device::Cpu).unwrap();
    let mut loader = trainer.loader().unwrap();

    let ids: Vec<u32> = (0..ROWS as u32).collect();
    let images = Tensor::from_f32(&Device::Cpu, &[ROWS, 1, 8, 8], {
        let first = loader.next().unwrap().unwrap();
        let one = first.images[..64].to_vec();
        trainer.train_step(&first).unwrap();
        one.repeat(ROWS)
    })
    .unwrap();
    // Distance to the prior of the mean prediction at pure noise.
    let from_prior = |trainer: &mut Trainer| -> f64 {
        let logits = trainer
            .averaged(|t, _| {
                ClassSampler::new(t, &config(SamplerKind::Argmax, 1, 0))?.watched(&images, &ids, &mut |_| {})
            })
            .unwrap();
        let mut mean = [0.0; 3];
        logits.chunks_exact(3).for_each(|l| mean.iter_mut().zip(softmax(l)).for_each(|(m, p)| *m += p / ROWS as f64));
        mean.iter().zip(PRIOR).map(|(m, p)| (m - p).abs()).fold(0.0, f64::max)
    };
    let untrained = from_prior(&mut trainer);
    assert!(untrained > 0.1, "the measure cannot tell a network that knows nothing: {untrained}");
    for batch in loader {
        trainer.train_step(&batch.unwrap()).unwrap();
    }
    assert_eq!(trainer.step(), trainer.total_steps());
    let trained = from_prior(&mut trainer);
    assert!(trained < 0.05, "the prior is off by {trained}");

    // On the way, where y_t and the prior both count: mean total variation between network and oracle.
    let process = trainer.trained.process.clone();
    let oracle = Oracle::new(&PRIOR, &process);
    for t in [300, 600, 800] {
        let tokens = ids.iter().map(|i| draw(&PRIOR, uniform(t, *i)) as u32).collect();
        let rows = Rows::new(tokens, vec![t; ROWS]);
        let noise = NoiseOf::Drawn(&Noise::new(&Device::Cpu, 11, 1, t).unwrap());
        let noisy = rows.corrupt(&process, &Device::Cpu, (1, 3), &noise).unwrap();
        let want = oracle.of(&noisy.vectors(DType::F32).unwrap().to_vec().unwrap(), t as usize);
        let got = by_sampler(&mut trainer, &images, &noisy, t, false);
        let variation = |(a, b): (&[f32], &[f32])| {
            softmax(a).into_iter().zip(softmax(b)).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
        };
        let mean = got.chunks_exact(3).zip(want.chunks_exact(3)).map(variation).sum::<f64>() / ROWS as f64;
        assert!(mean < 0.08, "t {t}: network and oracle differ by {mean}");
        let pairs = by_sampler(&mut trainer, &images, &noisy, t, true);
        let [with, without] = [0, 1].map(|drop| by_training(&mut trainer, &images, &noisy, t, drop));
        for (i, pair) in pairs.chunks_exact(6).enumerate() {
            for k in 0..3 {
                let [a, b, c] = [got[3 * i + k], with[3 * i + k], without[3 * i + k]];
                let close = |x: f32, y: f32| (x - y).abs() < 1e-4 * (1.0 + y.abs());
                assert!(close(a, b) && close(pair[k], b) && close(pair[3 + k], c), "{a} {b} {c} {pair:?}");
            }
        }
        assert!(with.iter().zip(&without).any(|(a, b)| (a - b).abs() > 1e-3), "the null condition changes nothing");
    }
}
