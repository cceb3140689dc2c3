//! Losses over sequences: against direct computation from the logits, against finite differences, and by whether a small
//! network learns eight sequences by heart.

use tweedie::config::{LossConfig, LossKind, MaskWeight, Method, ModelConfig, PRESETS};
use tweedie::loss::{MddLoss, NoiseOf, Rows, TddLoss, mask_tokens, token_weights};
use tweedie::model::{
    ConditionAttention, Conditioning, DenoiserConfig, Input, Model, Pass, Pool, Sizes, VitConfig, count_parameters,
};
use tweedie::{Process, Schedule, ScheduleKind};
use tweedie_engine::optim::{AdamConfig, AdamW, warmup_cosine};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, Var, cases};

const SIZES: Sizes = Sizes { vocab: 13, tokens: 6 };
const PAD: u32 = 0;
const T: usize = 1000;

fn config(method: Method, condition: Conditioning) -> ModelConfig {
    let mut c = ModelConfig::preset("shapes").unwrap();
    (c.method, c.condition) = (method, condition);
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig::new(32, 2, 2);
    c
}

fn model(c: &ModelConfig) -> Model {
    Model::new(c, SIZES, &Device::Cpu, DType::F32, 5).unwrap()
}

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, T, SIZES.vocab).unwrap())
}

/// `k` copies each of `b` sequences that end in padding.
fn rows(b: usize, k: usize, step: u32) -> Rows {
    let n = SIZES.tokens;
    let token = |s: usize, i: usize| if i >= 2 + s % 4 { PAD } else { 1 + ((s * 5 + i * 3) % 12) as u32 };
    let r = b * k;
    Rows {
        drop: (0..r as u32).map(|i| (i % 4 == 2) as u32).collect(),
        ..Rows::new(
            (0..r).flat_map(|row| (0..n).map(move |i| token(row / k, i))).collect(),
            (0..r as u32).map(|i| 1 + (i * 389 + step * 271) % T as u32).collect(),
        )
    }
}

fn images(b: usize) -> Tensor {
    cases::random(70, &[b, 1, 8, 8], 1.0)
}

fn pass<'a>(tape: &'a Tape, m: &'a Model) -> Pass<'a> {
    Pass::inference(tape, &m.params, DType::F32)
}

/// −ln p of every clean token, in f64.
fn nats(logits: &[f32], tokens: &[u32]) -> Vec<f64> {
    let of = |(l, t): (&[f32], &u32)| {
        let max = l.iter().fold(f32::MIN, |m, x| m.max(*x)) as f64;
        l.iter().map(|x| (*x as f64 - max).exp()).sum::<f64>().ln() + max - l[*t as usize] as f64
    };
    logits.chunks_exact(SIZES.vocab).zip(tokens).map(of).collect()
}

/// Logits of the rows, computed by themselves.
fn logits(m: &Model, input: &Input, rows: &Rows, images: Option<&Tensor>) -> Vec<f32> {
    let tape = Tape::inference();
    let p = pass(&tape, m);
    let k = images.map_or(1, |i| rows.t.len() / i.shape()[0]);
    let context = m.context(&p, images, true).unwrap().rows(&tape, k, images.map(|_| &rows.drop[..])).unwrap();
    m.logits(&p, &m.features(&p, input, &rows.t, &context).unwrap()).unwrap().value().to_vec().unwrap()
}

fn item(v: &Var) -> f64 {
    v.value().item().unwrap() as f64
}

#[test]
fn tdd_weighs_tokens_and_times() {
    for condition in [Conditioning::Image, Conditioning::None] {
        let m = model(&config(Method::Tdd, condition));
        let (process, rows, images) = (process(), rows(3, 4, 0), images(3));
        let images = (condition == Conditioning::Image).then_some(&images);
        let noise = Noise::new(&Device::Cpu, 1, 1, 0).unwrap();
        let sizes = (SIZES.tokens, SIZES.vocab);
        let noisy = rows.corrupt(&process, &Device::Cpu, sizes, &NoiseOf::Drawn(&noise)).unwrap();
        let loss_of = |p: &Pass, config: &LossConfig, weights: Option<Vec<f32>>| {
            let loss = TddLoss { process: &process, config, noise: NoiseOf::Drawn(&noise) };
            loss.of(p, &m, images, &Rows { weights, ..rows.clone() })
        };
        let nats = nats(&logits(&m, &Input::Noisy(&noisy), &rows, images), &rows.tokens);
        for (weighted, pad_weight) in [(false, 1.0), (true, 1.0), (false, 0.25), (true, 0.25), (false, 0.0)] {
            let w = |i: usize| if rows.tokens[i] == PAD { pad_weight as f64 } else { 1.0 };
            let a =
                |i: usize| if weighted { process.schedule().alpha_bar(rows.t[i / SIZES.tokens] as usize) } else { 1.0 };
            let total: f64 = (0..nats.len()).map(w).sum();
            let want = (0..nats.len()).map(|i| w(i) * a(i) * nats[i]).sum::<f64>() / total;
            let l = LossConfig { weighted, pad_weight, smoothing: 0.0, ..LossConfig::default() };
            let weights = token_weights(&rows.tokens, &[PAD], pad_weight);
            assert_eq!(weights.is_none(), pad_weight == 1.0);
            let tape = Tape::inference();
            let p = pass(&tape, &m);
            let loss = loss_of(&p, &l, weights).unwrap();
            assert!((item(&loss) - want).abs() < 1e-5 * want, "{condition:?} {weighted} {pad_weight}: {want}");
            if let (Some(_), 1.0) = (images, pad_weight) {
                let ones = vec![1.0; rows.tokens.len()];
                let plain = loss_of(&p, &l, Some(ones)).unwrap();
                assert_eq!(item(&plain), item(&loss));
            }
        }
        let tape = Tape::inference();
        let none = vec![0.0; rows.tokens.len()];
        let e = loss_of(&pass(&tape, &m), &LossConfig::default(), Some(none));
        assert!(e.unwrap_err().to_string().contains("pad_weight"));
    }
}

/// A batch in parts (`train.accumulate`) has the loss of the whole, though its parts weigh unlike.
#[test]
fn parts_of_a_batch_add_up_to_its_loss() {
    let all = rows(3, 4, 0);
    let weights = token_weights(&all.tokens, &[PAD], 0.25);
    let all = Rows { weights, ..all };
    let (count, process) = (all.t.len(), process());
    let noise = Noise::new(&Device::Cpu, 1, 1, 0).unwrap();
    let parts = |whole: &Rows, of: &dyn Fn(&Rows, std::ops::Range<usize>) -> f64| {
        let halves = [0..count / 2, count / 2..count];
        let part = |r: &std::ops::Range<usize>| of(&whole.part(r.clone(), SIZES.tokens, SIZES.vocab), r.clone());
        (of(whole, 0..count), halves.iter().map(part).sum::<f64>() / 2.0)
    };
    let check = |name: &str, whole: &Rows, normaliser: f64, of: &dyn Fn(&Rows, std::ops::Range<usize>) -> f64| {
        let (want, apart) = parts(whole, of);
        let (_, got) = parts(&Rows { normaliser: Some(normaliser), ..whole.clone() }, of);
        assert!((got - want).abs() < 1e-5 * want, "{name}: {got} {want}");
        assert!((apart - want).abs() > 1e-4 * want, "{name}: the parts weigh alike, which shows nothing");
    };
    let m = model(&config(Method::Tdd, Conditioning::None));
    let l = LossConfig::default();
    check("TDD", &all, TddLoss::normaliser(&all).unwrap(), &|rows, _| {
        let loss = TddLoss { process: &process, config: &l, noise: NoiseOf::Drawn(&noise) };
        item(&loss.of(&pass(&Tape::inference(), &m), &m, None, rows).unwrap())
    });
    let m = model(&config(Method::Mdd, Conditioning::None));
    let masked = mask_tokens(&all, SIZES.tokens, T, 3, 0);
    for mask_weight in [MaskWeight::Plain, MaskWeight::Inverse] {
        let l = LossConfig { mask_weight, ..LossConfig::default() };
        let of = |masked: &[bool], rows: &Rows| {
            let loss = MddLoss { steps: T, config: &l, masked };
            item(&loss.of(&pass(&Tape::inference(), &m), &m, None, rows).unwrap())
        };
        let normaliser = MddLoss { steps: T, config: &l, masked: &masked }.normaliser(&all).unwrap();
        let places = |r: std::ops::Range<usize>| r.start * SIZES.tokens..r.end * SIZES.tokens;
        check(&format!("MDD {mask_weight:?}"), &all, normaliser, &|rows, r| of(&masked[places(r)], rows));
    }
}

/// The clean vector that the regression ablation is trained towards is the λ-hot one that was corrupted.
#[test]
fn the_x0_target_is_lambda_hot() {
    let m = model(&config(Method::Tdd, Conditioning::None));
    let (process, rows) = (process().with_lambda(0.5).unwrap(), rows(3, 4, 0));
    let noise = Noise::new(&Device::Cpu, 1, 1, 0).unwrap();
    let noisy = rows.corrupt(&process, &Device::Cpu, (SIZES.tokens, SIZES.vocab), &NoiseOf::Drawn(&noise)).unwrap();
    let logits = logits(&m, &Input::Noisy(&noisy), &rows, None);
    let hot = |i: usize| if rows.tokens[i / SIZES.vocab] as usize == i % SIZES.vocab { 0.5 } else { 0.0 };
    let want = logits.iter().enumerate().map(|(i, l)| (*l as f64 - hot(i)).powi(2)).sum::<f64>() / logits.len() as f64;
    let config = LossConfig { kind: LossKind::X0, weighted: false, ..LossConfig::default() };
    let loss = TddLoss { process: &process, config: &config, noise: NoiseOf::Drawn(&noise) };
    let got = item(&loss.of(&pass(&Tape::inference(), &m), &m, None, &rows).unwrap());
    assert!((got - want).abs() < 1e-5 * want, "{got} {want}");
}

#[test]
fn mdd_counts_masked_tokens() {
    for condition in [Conditioning::Image, Conditioning::None] {
        let m = model(&config(Method::Mdd, condition));
        let (rows, images) = (rows(3, 4, 0), images(3));
        let images = (condition == Conditioning::Image).then_some(&images);
        let masked = mask_tokens(&rows, SIZES.tokens, T, 9, 2);
        let seen: Vec<u32> = rows.tokens.iter().zip(&masked).map(|(t, m)| if *m { 13 } else { *t }).collect();
        let input = Tensor::from_u32(&Device::Cpu, &[12, SIZES.tokens], seen).unwrap();
        let nats = nats(&logits(&m, &Input::Tokens(&input), &rows, images), &rows.tokens);
        for (mask_weight, pad_weight) in
            [(MaskWeight::Inverse, 1.0), (MaskWeight::Inverse, 0.2), (MaskWeight::Plain, 1.0), (MaskWeight::Plain, 0.2)]
        {
            let w = |i: &usize| if rows.tokens[*i] == PAD { pad_weight as f64 } else { 1.0 };
            let hidden = || (0..nats.len()).filter(|i| masked[*i]);
            let want = match mask_weight {
                MaskWeight::Inverse => {
                    let chance = |i: &usize| rows.t[i / SIZES.tokens] as f64 / T as f64;
                    hidden().map(|i| w(&i) * nats[i] / chance(&i)).sum::<f64>()
                        / (0..nats.len()).map(|i| w(&i)).sum::<f64>()
                }
                MaskWeight::Plain => {
                    hidden().map(|i| w(&i) * nats[i]).sum::<f64>() / hidden().map(|i| w(&i)).sum::<f64>()
                }
            };
            let l = LossConfig { mask_weight, smoothing: 0.0, ..LossConfig::default() };
            let weights = token_weights(&rows.tokens, &[PAD], pad_weight);
            let tape = Tape::inference();
            let p = pass(&tape, &m);
            let loss = MddLoss { steps: T, config: &l, masked: &masked };
            let loss = loss.of(&p, &m, images, &Rows { weights, ..rows.clone() }).unwrap();
            assert!((item(&loss) - want).abs() < 1e-5 * want, "{condition:?} {mask_weight:?} {pad_weight}: {want}");
        }
    }
}

/// Every token is masked with its row's chance, and all are at T.
#[test]
fn masks_have_their_chance() {
    const N: usize = 40_000;
    for t in [1, 300, 900, 1000] {
        let rows = Rows::new(vec![], vec![t; N]);
        let masks = mask_tokens(&rows, 3, T, 1, 7);
        let p = t as f64 / T as f64;
        let error = (p * (1.0 - p) / (3 * N) as f64).sqrt();
        let share = masks.iter().filter(|m| **m).count() as f64 / (3 * N) as f64;
        assert!((share - p).abs() <= 5.0 * error, "t {t}: {share}");
        assert_ne!(masks == mask_tokens(&rows, 3, T, 1, 8), t < 1000);
    }
}

/// The loss along a random direction of all parameters, against the gradient.
#[test]
fn mdd_gradients_agree_with_finite_differences() {
    let mut c = config(Method::Mdd, Conditioning::Image);
    c.denoiser.condition_attention = ConditionAttention::Prefix;
    let mut m = model(&c);
    let (mut rows, images) = (rows(2, 3, 1), images(2));
    let masked = mask_tokens(&rows, SIZES.tokens, T, 4, 0);
    rows.weights = token_weights(&rows.tokens, &[PAD], 0.3);
    let l = LossConfig { mask_weight: MaskWeight::Plain, ..LossConfig::default() };
    let names: Vec<_> = m.params.iter().map(|(n, s, id)| (n.to_string(), s.to_vec(), id)).collect();
    let tape = Tape::new();
    let run = |m: &Model, tape: &Tape| {
        MddLoss { steps: T, config: &l, masked: &masked }.of(&pass(tape, m), m, Some(&images), &rows).unwrap()
    };
    let loss = run(&m, &tape);
    tape.backward(&loss, Some(&mut m.params)).unwrap();
    for (i, (name, shape, id)) in names.iter().enumerate() {
        let direction = cases::random(300 + i as u32, shape, 1.0).to_vec().unwrap();
        let grad = m.params.grad(*id).unwrap().to_vec().unwrap();
        let exact: f64 = grad.iter().zip(&direction).map(|(g, d)| *g as f64 * *d as f64).sum();
        let start = m.params.value(*id).to_vec().unwrap();
        let mut at = |h: f32| {
            let moved: Vec<f32> = start.iter().zip(&direction).map(|(v, d)| v + h * d).collect();
            m.params.set(*id, &moved).unwrap();
            item(&run(&m, &Tape::inference()))
        };
        let h = 1.0 / 512.0;
        let central = |h: f32, at: &mut dyn FnMut(f32) -> f64| (at(h) - at(-h)) / (2.0 * h as f64);
        let numeric = (4.0 * central(h, &mut at) - central(2.0 * h, &mut at)) / 3.0;
        at(0.0);
        // 1 % of the derivative; the constant covers f32 rounding of the loss (2e-7 / h).
        assert!((numeric - exact).abs() < 0.01 * exact.abs() + 5e-4, "{name}: {numeric} numeric, {exact} exact");
    }
    let embedding = names.iter().find(|n| n.0 == "denoiser.token_embed.weight").unwrap();
    assert_eq!(embedding.1, [SIZES.vocab + 1, 32]);
}

/// −ln p of the clean tokens of a row for one who knows the eight sequences (all alike) and how much each of them is at odds
/// with what the row shows: `ln_likelihood` of each.
fn exact_nats(sequences: &[Vec<u32>], ln_likelihood: &[f64], clean: &[u32]) -> Vec<f64> {
    let max = ln_likelihood.iter().copied().fold(f64::MIN, f64::max);
    let w: Vec<f64> = ln_likelihood.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = w.iter().sum();
    let p = |i: usize| sequences.iter().zip(&w).filter(|(s, _)| s[i] == clean[i]).map(|(_, w)| w).sum::<f64>() / sum;
    (0..clean.len()).map(|i| -p(i).ln()).collect()
}

/// Eight sequences learnt by heart. With images, which tell them apart, the loss goes from ln 13 = 2.6 to nearly 0; without,
/// to that of the exact posterior on the same noise and masks.
#[test]
fn a_small_network_learns_eight_sequences() {
    const STEPS: u32 = 1500;
    let n = SIZES.tokens;
    let sequences: Vec<Vec<u32>> = rows(8, 1, 0).tokens.chunks_exact(n).map(<[u32]>::to_vec).collect();
    for (method, condition, attention) in [
        (Method::Tdd, Conditioning::Image, ConditionAttention::Prefix),
        (Method::Tdd, Conditioning::None, ConditionAttention::Full),
        (Method::Mdd, Conditioning::Image, ConditionAttention::Full),
        (Method::Mdd, Conditioning::None, ConditionAttention::Full),
    ] {
        let mut c = config(method, condition);
        c.denoiser.condition_attention = attention;
        let mut m = model(&c);
        let adam = AdamConfig { weight_decay: 0.0, clip: 1.0, ..AdamConfig::default() };
        let mut opt = AdamW::new(&m.params, adam).unwrap();
        let (process, images) = (process(), images(8));
        let images = (condition == Conditioning::Image).then_some(&images);
        let l = LossConfig { smoothing: 0.0, mask_weight: MaskWeight::Plain, ..LossConfig::default() };
        let (mut losses, mut best) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            let mut rows = rows(8, 4, step);
            rows.drop.fill(0);
            let clean = |r: usize| &rows.tokens[r * n..(r + 1) * n];
            let tape = Tape::new();
            let p = pass(&tape, &m);
            let loss = match method {
                Method::Tdd => {
                    let noise = Noise::new(&Device::Cpu, 2, 1, step).unwrap();
                    let noise = NoiseOf::Drawn(&noise);
                    let y = rows.corrupt(&process, &Device::Cpu, (n, SIZES.vocab), &noise).unwrap();
                    let y = y.vectors(DType::F32).unwrap().to_vec().unwrap();
                    let (s, mut nats) = (process.schedule(), Vec::new());
                    for (r, t) in rows.t.iter().enumerate() {
                        let by = s.signal(*t as usize) / (1.0 - s.alpha_bar(*t as usize));
                        let at = |i: usize, k: u32| by * y[(r * n + i) * SIZES.vocab + k as usize] as f64;
                        let ln: Vec<f64> = sequences.iter().map(|x| (0..n).map(|i| at(i, x[i])).sum()).collect();
                        nats.extend(exact_nats(&sequences, &ln, clean(r)));
                    }
                    best.push(nats.iter().sum::<f64>() / nats.len() as f64);
                    TddLoss { process: &process, config: &l, noise }.of(&p, &m, images, &rows).unwrap()
                }
                Method::Mdd => {
                    let masked = mask_tokens(&rows, n, T, 3, step);
                    let mut nats = Vec::new();
                    for r in 0..rows.t.len() {
                        let at_odds = |x: &Vec<u32>| (0..n).any(|i| !masked[r * n + i] && x[i] != clean(r)[i]);
                        let ln: Vec<f64> = sequences.iter().map(|x| if at_odds(x) { -1e9 } else { 0.0 }).collect();
                        nats.extend(exact_nats(&sequences, &ln, clean(r)));
                    }
                    let hidden = || nats.iter().zip(&masked).filter(|x| *x.1).map(|x| *x.0);
                    best.push(hidden().sum::<f64>() / hidden().count() as f64);
                    MddLoss { steps: T, config: &l, masked: &masked }.of(&p, &m, images, &rows).unwrap()
                }
            };
            losses.push(item(&loss));
            tape.backward(&loss, Some(&mut m.params)).unwrap();
            opt.step(&mut m.params, warmup_cosine(step as usize, STEPS as usize, 20, 5e-3, 1e-4)).unwrap();
        }
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let (first, last, best) =
            (losses[0], mean(&losses[STEPS as usize - 200..]), mean(&best[STEPS as usize - 200..]));
        println!("{method:?} {condition:?}: {first:.3} → {last:.3}; without images at best {best:.3}");
        assert!(first > 2.0, "{method:?} {condition:?}: it cannot know anything at the start: {first}");
        match condition {
            Conditioning::Image => assert!(last < 0.05, "{method:?}: {last}"),
            Conditioning::None => assert!(last > best - 0.05 && last < best + 0.1, "{method:?}: {last}, best {best}"),
        }
    }
}

#[test]
fn unconditional_models_have_no_encoder() {
    for method in [Method::Tdd, Method::Mdd] {
        let m = model(&config(method, Conditioning::None));
        assert!(m.params.iter().all(|(n, ..)| n.starts_with("denoiser.") && !n.contains("cond")));
        assert!(!m.is_conditional() && m.has_denoiser());
        let tape = Tape::inference();
        let p = pass(&tape, &m);
        assert!(m.context(&p, Some(&images(1)), false).unwrap_err().to_string().contains("takes no images"));
    }
    // One token of an image is the linear head, as for classifiers.
    let c = config(Method::Mdd, Conditioning::Image);
    let one =
        Model::new(&ModelConfig { pool: Pool::Mean, ..c }, Sizes { vocab: 5, tokens: 1 }, &Device::Cpu, DType::F32, 0);
    assert!(!one.unwrap().has_denoiser());
}

#[test]
fn a_wrong_form_of_input_is_named() {
    let m = model(&config(Method::Tdd, Conditioning::None));
    let tape = Tape::inference();
    let p = pass(&tape, &m);
    let context = m.context(&p, None, false).unwrap();
    let ids = Tensor::from_u32(&Device::Cpu, &[1, 6], vec![0; 6]).unwrap();
    let e = m.features(&p, &Input::Tokens(&ids), &[5], &context).unwrap_err().to_string();
    assert!(e.contains("noisy vectors"), "{e}");
    let wide = tape.constant(cases::random(0, &[1, 4, 32], 1.0));
    let e = m.features(&p, &Input::Projected(&wide), &[5], &context).unwrap_err().to_string();
    assert!(e.contains("6 per example"), "{e}");
}

/// The sizes that the presets for sequences are documented with.
#[test]
fn presets_for_sequences_have_their_sizes() {
    let millions = |name: &str, vocab, tokens| {
        assert!(PRESETS.contains(&name));
        let (all, _) = count_parameters(&ModelConfig::preset(name).unwrap(), Sizes { vocab, tokens }).unwrap();
        all as f64 / 1e6
    };
    for (name, vocab, tokens, want) in [
        ("shapes", 26, 16, 0.3),
        ("caption-tiny", 8000, 24, 7.7),
        ("coco-96", 8000, 24, 24.5),
        ("caption", 30_522, 32, 176.9),
        ("text", 27, 256, 25.8),
    ] {
        let has = millions(name, vocab, tokens);
        assert!((has - want).abs() < 0.05, "{name}: {has:.2} M");
    }
}
