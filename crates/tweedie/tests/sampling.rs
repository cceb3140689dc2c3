//! Sampling of sequences: exact noise, given tokens, lengths, candidates, traces, and the condition computed once.
//!
//! Seeds are fixed. A bound of 5 standard errors fails by chance once in about two million comparisons.

use tweedie::config::{Method, ModelConfig, NoiseKind, PosteriorMean, SampleConfig, SamplerKind, Unmasking};
use tweedie::loss::{NoiseOf, Rows};
use tweedie::model::{ConditionAttention, Conditioning, DenoiserConfig, Input, Model, Pass, Pool, Sizes, VitConfig};
use tweedie::sample::{
    At, Conditioned, Denoise, Ending, Fill, Generated, Projection, Request, TokenSampler, cholesky, gram, sample_logits,
};
use tweedie::{Process, Schedule, ScheduleKind, Trained};
use tweedie_engine::ops::noisy_input::noisy_input;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, cases};

const CPU: Device = Device::Cpu;
const SAMPLERS: [SamplerKind; 5] =
    [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral];

fn process(vocab: usize) -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, vocab).unwrap())
}

/// A small network with random weights, larger than at the start of training so that all of them count.
fn model(method: Method, condition: Conditioning, attention: ConditionAttention, sizes: Sizes) -> Model {
    let mut c = ModelConfig::preset("digits").unwrap();
    (c.method, c.condition, c.pool) = (method, condition, Pool::All);
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig { condition_attention: attention, ..DenoiserConfig::new(24, 2, 2) };
    let mut m = Model::new(&c, sizes, &CPU, DType::F32, 3).unwrap();
    let all: Vec<_> = m.params.iter().map(|(_, s, id)| (s.to_vec(), id)).collect();
    for (i, (shape, id)) in all.into_iter().enumerate() {
        let shift = cases::random(i as u32, &shape, 0.2).to_vec().unwrap();
        let moved: Vec<f32> = m.params.value(id).to_vec().unwrap().iter().zip(shift).map(|(v, s)| v + s).collect();
        m.params.set(id, &moved).unwrap();
    }
    m
}

fn tdd(sizes: Sizes) -> Model {
    model(Method::Tdd, Conditioning::Image, ConditionAttention::Prefix, sizes)
}

fn images(n: usize) -> Tensor {
    cases::random(900, &[n, 1, 8, 8], 1.0)
}

fn config(sampler: SamplerKind, steps: usize) -> SampleConfig {
    SampleConfig { sampler, steps, seed: 5, ..SampleConfig::default() }
}

fn trained(m: Model) -> Trained {
    let vocab = m.sizes().vocab;
    Trained::bare(m, process(vocab))
}

fn generate(t: &Trained, c: &SampleConfig, r: &Request) -> Generated {
    TokenSampler::new(t, c).unwrap().generate(r).unwrap()
}

/// The largest distance, in standard errors, between the covariance of drawn noise and W·Wᵀ.
fn covariance_error(projection: &Projection, w: &[f32], d: usize) -> f64 {
    const N: usize = 40_000;
    let ids = Tensor::from_u32(&CPU, &[N], (0..N as u32).collect()).unwrap();
    let noise = Noise::new(&CPU, 3, 1, 0).unwrap();
    // Two tokens per example: the second one's noise is looked at, and must have nothing to do with the first one's.
    let n = projection.draw(&noise, &ids, 2).unwrap().to_vec().unwrap();
    let want = gram(w, d);
    let mut worst = 0.0_f64;
    for i in 0..d {
        for j in 0..d {
            let mean = |f: &dyn Fn(&[f32]) -> f64| n.chunks_exact(2 * d).map(f).sum::<f64>() / N as f64;
            let (own, cross) = (mean(&|x| x[d + i] as f64 * x[d + j] as f64), mean(&|x| x[i] as f64 * x[d + j] as f64));
            // The product of two normals has variance σ_ii·σ_jj + σ_ij².
            let (a, b, c) = (want[i * d + i], want[j * d + j], want[i * d + j]);
            worst = worst.max((own - c).abs() / ((a * b + c * c) / N as f64).sqrt());
            worst = worst.max(cross.abs() / (a * b / N as f64).sqrt());
        }
    }
    worst
}

#[test]
fn exact_and_dense_noise_have_the_covariance_of_the_layer() {
    let (d, v) = (10, 60);
    // Rows of different size that depend on each other.
    let mut w = cases::random(1, &[d, v], 0.3).to_vec().unwrap();
    for i in 1..d {
        for k in 0..v {
            w[i * v + k] = w[i * v + k] * (1.0 + 0.2 * i as f32) + 0.7 * w[(i - 1) * v + k];
        }
    }
    let weight = Tensor::from_f32(&CPU, &[d, v], w.clone()).unwrap();
    for kind in [NoiseKind::Dense, NoiseKind::Exact] {
        let e = covariance_error(&Projection::new(&weight, kind).unwrap(), &w, d);
        assert!(e < 5.0, "{kind:?}: {e} standard errors");
    }
    // Power: a transposed factor and one that is five percent too large are far outside.
    let l = cholesky(&gram(&w, d), d).unwrap();
    let wrong = |l: Vec<f32>| covariance_error(&Projection::with_factor(&weight, Some(l)).unwrap(), &w, d);
    let transposed = wrong((0..d * d).map(|k| l[k % d * d + k / d] as f32).collect());
    let larger = wrong(l.iter().map(|x| 1.05 * *x as f32).collect());
    assert!(transposed > 10.0 && larger > 10.0, "transposed {transposed}, five percent larger {larger}");
}

/// Tokens that a random network chooses at its first step, as counts by class.
fn first_tokens(m: &Model, projection: &Projection, examples: std::ops::Range<u32>) -> Vec<f64> {
    let Sizes { vocab, tokens } = m.sizes();
    let network = Conditioned::new(m, None, 1, false).unwrap();
    let mut counts = vec![0.0; vocab];
    let ids: Vec<u32> = examples.collect();
    for ids in ids.chunks(2000) {
        let ids = Tensor::from_u32(&CPU, &[ids.len()], ids.to_vec()).unwrap();
        let u = projection.draw(&Noise::new(&CPU, 8, 2, 0).unwrap(), &ids, tokens).unwrap();
        let logits = Denoise::logits(&network, &u, 500.into()).unwrap().to_vec().unwrap();
        for l in logits.chunks_exact(vocab) {
            let best = (0..vocab).fold(0, |b, k| if l[k] > l[b] { k } else { b });
            counts[best] += 1.0;
        }
    }
    counts
}

/// χ² of two samples, over classes that occur at least 50 times; with its degrees of freedom.
fn two_samples(a: &[f64], b: &[f64]) -> (f64, usize) {
    let (na, nb) = (a.iter().sum::<f64>(), b.iter().sum::<f64>());
    let used = a.iter().zip(b).filter(|(a, b)| *a + *b >= 50.0);
    let terms: Vec<f64> = used.map(|(a, b)| (a * (nb / na).sqrt() - b * (na / nb).sqrt()).powi(2) / (a + b)).collect();
    (terms.iter().sum(), terms.len() - 1)
}

/// A bound that χ² with `k` degrees of freedom exceeds with probability 1e-4 (Wilson and Hilferty).
fn bound(k: usize) -> f64 {
    let h = 2.0 / (9.0 * k as f64);
    k as f64 * (1.0 - h + 3.719 * h.sqrt()).powi(3)
}

#[test]
fn a_network_chooses_alike_under_exact_and_dense_noise() {
    let m = model(Method::Tdd, Conditioning::None, ConditionAttention::Full, Sizes { vocab: 60, tokens: 2 });
    let w = m.params.value(m.params.find("denoiser.token_in.weight").unwrap());
    let of = |kind| Projection::new(&w, kind).unwrap();
    let dense = first_tokens(&m, &of(NoiseKind::Dense), 0..30_000);
    // Other examples: independent samples.
    let exact = first_tokens(&m, &of(NoiseKind::Exact), 30_000..60_000);
    let (x, k) = two_samples(&dense, &exact);
    assert!(k >= 10, "only {k} classes occur: {dense:?}");
    assert!(x < bound(k), "χ² {x} with {k} degrees of freedom");
    // Power: a transposed factor has the right total size and is noticed all the same.
    let l = cholesky(&gram(&w.to_vec().unwrap(), 24), 24).unwrap();
    let transposed = (0..24 * 24).map(|k| l[k % 24 * 24 + k / 24] as f32).collect();
    let wrong = Projection::with_factor(&w, Some(transposed)).unwrap();
    let (x, k) = two_samples(&dense, &first_tokens(&m, &wrong, 30_000..60_000));
    assert!(x > bound(k), "χ² {x} with {k} degrees of freedom does not notice");
}

/// The sampler's way (projected input, keys and values of the condition kept) against training's joint pass.
/// At pure noise it sees that a token is more likely 0 than 1, at less noise only what it is shown.
struct Echo(Process);

impl Denoise for Echo {
    fn vocab(&self) -> usize {
        2
    }

    fn logits(&self, noisy: &Tensor, at: At) -> tweedie::Result<Tensor> {
        let pure = at.t == self.0.steps();
        let (prior, echo) = if pure { (1.0, 1.5) } else { (0.0, 0.5) };
        let y = noisy.to_vec()?;
        let logits = y.iter().enumerate().map(|(i, y)| echo * y + if i % 2 == 0 { prior } else { 0.0 }).collect();
        Ok(Tensor::from_f32(&CPU, noisy.shape(), logits)?)
    }
}

/// The running mean is that of what the network said at the steps, which goes by the mean itself, and it keeps what was seen at pure noise.
#[test]
fn a_running_mean_keeps_what_the_first_steps_saw() {
    let echo = Echo(process(2));
    let examples: Vec<u32> = (0..400).collect();
    let right = |running_mean, steps| {
        let config = SampleConfig { running_mean, ..config(SamplerKind::Argmax, steps) };
        let (mut told, mut last) = (Vec::new(), Vec::new());
        last.extend(
            sample_logits(&echo, &echo.0, &config, (&examples, 1), |p| told.push(p.logits().unwrap())).unwrap(),
        );
        assert_eq!(told.len(), steps);
        assert_eq!(told.last(), Some(&last), "the result is what the last step was told as");
        last.chunks_exact(2).filter(|l| l[0] > l[1]).count()
    };
    assert_eq!(right(false, 1), right(true, 1), "of one step it is that step");
    let [alone, mean] = [false, true].map(|m| right(m, 8));
    assert!(mean > alone + 20, "{mean} and {alone} of 400 right");

    let two = SampleConfig { running_mean: true, ..config(SamplerKind::Argmax, 3) };
    let e = sample_logits(&echo, &echo.0, &two, (&examples, 2), |_| ()).unwrap_err().to_string();
    assert!(e.contains("sample.running_mean") && e.contains("2 are sampled"), "{e}");
}

#[test]
fn a_cached_condition_gives_the_same_logits() {
    let sizes = Sizes { vocab: 11, tokens: 5 };
    for attention in [ConditionAttention::Prefix, ConditionAttention::Full] {
        let m = model(Method::Tdd, Conditioning::Image, attention, sizes);
        let (b, k) = (3, 2);
        let network = Conditioned::new(&m, Some(&images(b)), k, true).unwrap();
        for t in [1000_u32, 400, 1] {
            let r = b * k;
            let rows = Rows::new((0..r * 5).map(|i| (i * 7 % 11) as u32).collect(), vec![t; r]);
            let noise = Noise::new(&CPU, 5, 1, 0).unwrap();
            let noisy = rows.corrupt(&process(11), &CPU, (5, 11), &NoiseOf::Drawn(&noise)).unwrap();
            let tape = Tape::inference();
            let p = Pass::inference(&tape, &m.params, DType::F32);
            let zero = tape.constant(Tensor::zeros(&CPU, &[24], DType::F32).unwrap());
            let w = tape.constant(network.weight().unwrap().unwrap().clone());
            let u = noisy_input(&tape, &noisy, &w, &zero, DType::F32).unwrap();
            let cond = m.project_condition(&p, &m.condition(&p, &images(b)).unwrap()).unwrap();
            let cond = tweedie_engine::ops::tokens::repeat(&tape, &cond, k).unwrap();
            let joint = |drop: u32| {
                let drop = Tensor::from_u32(&CPU, &[r], vec![drop; r]).unwrap();
                let f = m.denoise(&p, &noisy, &rows.t, &cond, Some(&drop)).unwrap();
                m.logits(&p, &f).unwrap().value().to_vec().unwrap()
            };
            let plain = Denoise::logits(&network, u.value(), (t as usize).into()).unwrap().to_vec().unwrap();
            let pairs = network.logits_of_pairs(u.value(), (t as usize).into()).unwrap().to_vec().unwrap();
            let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs()));
            let (with, without) = (joint(0), joint(1));
            assert!(close(&plain, &with), "{attention:?} at {t}");
            let width = 5 * 11;
            for (i, pair) in pairs.chunks_exact(2 * width).enumerate() {
                assert!(close(&pair[..width], &with[i * width..][..width]), "{attention:?} at {t}, row {i}");
                assert!(close(&pair[width..], &without[i * width..][..width]), "{attention:?} at {t}, row {i}, null");
            }
            assert!(!close(&with, &without));
        }
    }
}

/// The masked twin's pairs: with the condition as without guidance, then with the null condition.
#[test]
fn guided_pairs_of_the_masked_twin_are_two_passes() {
    let (b, n, v) = (2, 5, 11);
    let sizes = Sizes { vocab: v, tokens: n };
    let m = model(Method::Mdd, Conditioning::Image, ConditionAttention::Prefix, sizes);
    let network = Conditioned::new(&m, Some(&images(b)), 1, true).unwrap();
    let ids = Tensor::from_u32(&CPU, &[b, n], (0..(b * n) as u32).map(|i| i * 5 % 12).collect()).unwrap();
    let of = |guided| Fill::logits(&network, &ids, 300, guided).unwrap().to_vec().unwrap();
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &m.params, DType::F32);
    let null = m.context(&p, Some(&images(b)), true).unwrap().rows(&tape, 1, Some(&vec![1; b])).unwrap();
    let null = m.features(&p, &Input::Tokens(&ids), &vec![300; b], &null).unwrap();
    let null = m.logits(&p, &null).unwrap().value().to_vec().unwrap();
    let (plain, pairs) = (of(false), of(true));
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5 * (1.0 + b.abs()));
    for (i, pair) in pairs.chunks_exact(2 * n * v).enumerate() {
        let (with, without) = pair.split_at(n * v);
        assert!(close(with, &plain[i * n * v..]) && close(without, &null[i * n * v..]), "row {i}");
    }
    assert!(!close(&plain, &null));
}

/// With a large vocabulary features are guided in place of logits; the head is linear, so only rounding differs.
#[test]
fn guided_features_give_guided_logits() {
    let (b, n, v, d) = (3, 5, 100, 24);
    let same = |pairs: Tensor, guided: Option<Tensor>, what: &str| {
        let guided = guided.expect("100 classes are four times 24").to_vec().unwrap();
        for (i, pair) in pairs.to_vec().unwrap().chunks_exact(2 * n * v).enumerate() {
            let (c, u) = pair.split_at(n * v);
            for ((c, u), got) in c.iter().zip(u).zip(&guided[i * n * v..]) {
                let want = u + 3.0 * (c - u);
                // Sums of 24 terms, five times as large by the weights 3 and −2.
                assert!((want - got).abs() < 5e-5 * (1.0 + want.abs()), "{what}, example {i}: {got} {want}");
            }
        }
    };
    let u = cases::random(7, &[b, n, d], 1.0);
    let ids = Tensor::from_u32(&CPU, &[b, n], (0..(b * n) as u32).map(|i| i * 37 % 101).collect()).unwrap();
    for attention in [ConditionAttention::Full, ConditionAttention::Prefix] {
        let of = |method, vocab| model(method, Conditioning::Image, attention, Sizes { vocab, tokens: n });
        let (tdd, mdd, few) = (of(Method::Tdd, v), of(Method::Mdd, v), of(Method::Tdd, 20));
        let [tdd, mdd, few] = [&tdd, &mdd, &few].map(|m| Conditioned::new(m, Some(&images(b)), 1, true).unwrap());
        let pairs = tdd.logits_of_pairs(&u, 300.into()).unwrap();
        same(pairs, Denoise::guided(&tdd, &u, 300.into(), 3.0).unwrap(), &format!("{attention:?}"));
        let pairs = Fill::logits(&mdd, &ids, 300, true).unwrap();
        same(pairs, Fill::guided(&mdd, &ids, 300, 3.0).unwrap(), &format!("{attention:?}, the twin"));
        assert!(Denoise::guided(&few, &u, 300.into(), 3.0).unwrap().is_none());
    }
}

/// Every sampler of both methods, guided or not.
fn every(sizes: Sizes, mut f: impl FnMut(&Trained, &SampleConfig, &str)) {
    let tdd = trained(tdd(sizes));
    for sampler in SAMPLERS {
        for (guidance, posterior_mean) in
            [(1.0, PosteriorMean::Soft), (2.0, PosteriorMean::Argmax), (1.0, PosteriorMean::Drawn)]
        {
            let c = SampleConfig { guidance, posterior_mean, ..config(sampler, 6) };
            f(&tdd, &c, &format!("{sampler:?}, guidance {guidance}, {posterior_mean:?}"));
        }
    }
    let per_token = trained(tdd.model.with_per_token_time(true));
    for (sampler, guidance, unmask) in [
        (SamplerKind::Argmax, 1.0, Unmasking::Confident),
        (SamplerKind::Multinomial, 2.0, Unmasking::Confident),
        (SamplerKind::Argmax, 1.0, Unmasking::Random),
        (SamplerKind::Ddim, 2.0, Unmasking::Random),
    ] {
        let c = SampleConfig { guidance, unmask, uncommitted: 0.5, correction: 0.4, ..config(sampler, 6) };
        f(&per_token, &c, &format!("per-token time, {sampler:?}, {unmask:?}, guidance {guidance}"));
    }
    let mdd = trained(model(Method::Mdd, Conditioning::Image, ConditionAttention::Prefix, sizes));
    for unmask in [Unmasking::Random, Unmasking::Confident] {
        for (guidance, sampler) in [(1.0, SamplerKind::Multinomial), (2.0, SamplerKind::Argmax)] {
            let c = SampleConfig { guidance, unmask, ..config(sampler, 6) };
            f(&mdd, &c, &format!("masked, {unmask:?}, guidance {guidance}"));
        }
    }
}

#[test]
fn given_tokens_are_never_changed() {
    let (sizes, b) = (Sizes { vocab: 60, tokens: 6 }, 3);
    let fixed: Vec<Option<u32>> = (0..b * 6).map(|i| (i % 3 == 1).then_some((i * 11 % 60) as u32)).collect();
    every(sizes, |t, c, name| {
        let images = images(b);
        let r = Request { fixed: Some(&fixed), trace: Some(3), ..Request::new(Some(&images), &[0, 1, 2]) };
        let got = generate(t, c, &r);
        assert_eq!(got.steps.len(), 6, "{name}");
        for tokens in got.steps.iter().map(|s| &s.tokens).chain([&got.tokens]) {
            for (g, t) in fixed.iter().zip(tokens) {
                assert!(g.is_none_or(|g| g == *t), "{name}: {g:?} became {t}");
            }
        }
        assert!(got.tokens.iter().all(|t| (*t as usize) < 60), "{name}: {:?}", got.tokens);
        // They matter: the others see them.
        let free = generate(t, c, &Request::new(Some(&images), &[0, 1, 2]));
        assert_ne!(free.tokens, got.tokens, "{name}");
        let last = &got.steps[5];
        assert_eq!((last.top.len(), last.entropy.len()), (3 * b * 6, b * 6), "{name}");
        assert!(last.entropy.iter().all(|h| (0.0..=60_f32.ln() + 1e-4).contains(h)), "{name}");
    });
}

#[test]
fn texts_end_where_they_should() {
    let (sizes, b) = (Sizes { vocab: 7, tokens: 8 }, 4);
    let images = images(b);
    let request = |length, min_length| Request {
        ending: Some(Ending { eos: 5, pad: 6, unk: Some(2), length, min_length }),
        trace: Some(0),
        ..Request::new(Some(&images), &[0, 1, 2, 3])
    };
    let is_end = |t: &u32| *t == 5 || *t == 6;
    let (mut early, mut unknown, mut runs) = (0, 0, 0);
    every(sizes, |t, c, name| {
        for length in [0, 3, 8] {
            let got = generate(t, c, &request(Some(length), 0));
            for row in got.tokens.chunks_exact(8) {
                assert_eq!(row.iter().position(is_end), (length < 8).then_some(length), "{name}: {row:?}");
                assert!(row.iter().skip(length).enumerate().all(|(i, t)| *t == if i == 0 { 5 } else { 6 }), "{row:?}");
            }
        }
        let ends_early = |g: &Generated| g.tokens.chunks_exact(8).filter(|r| r[..4].iter().any(is_end)).count();
        let at_least = generate(t, c, &request(None, 4));
        assert_eq!(ends_early(&at_least), 0, "{name}");
        early += ends_early(&generate(t, c, &request(None, 0)));
        assert!(!at_least.tokens.contains(&2), "{name}: {:?}", at_least.tokens);
        let free = generate(t, c, &Request::new(Some(&images), &[0, 1, 2, 3]));
        unknown += free.tokens.contains(&2) as usize;
        runs += 1;
    });
    // Without the limit there would be something to forbid.
    assert!(early > runs / 2, "{early} early ends in {runs} runs");
    assert!(unknown > runs / 4, "{unknown} of {runs} runs wrote the mark for unknown words");
}

#[test]
fn candidates_and_batches_do_not_change_a_text() {
    let sizes = Sizes { vocab: 60, tokens: 5 };
    let images = images(3);
    let one = Tensor::from_f32(&CPU, &[1, 1, 8, 8], images.to_vec().unwrap()[64..128].to_vec()).unwrap();
    every(sizes, |t, c, name| {
        let all = generate(t, c, &Request { candidates: 3, ..Request::new(Some(&images), &[7, 8, 9]) });
        assert_eq!((all.tokens.len(), all.log_probs.len()), (3 * 3 * 5, 3 * 3 * 5), "{name}");
        let alone = generate(t, c, &Request::new(Some(&one), &[8]));
        assert_eq!(all.tokens[3 * 5..4 * 5], alone.tokens, "{name}");
        for (a, b) in all.log_probs[3 * 5..4 * 5].iter().zip(&alone.log_probs) {
            assert!((a - b).abs() < 1e-4, "{name}: {a} {b}"); // products of another batch size round differently
        }
        assert!(all.log_probs.iter().all(|l| *l <= 1e-6 && l.is_finite()), "{name}");
        let texts: Vec<&[u32]> = all.tokens[..15].chunks_exact(5).collect();
        // Argmax of the surest tokens of the masked twin is the one thing in which nothing is drawn.
        let drawn = t.model.is_tdd() || c.unmask == Unmasking::Random || c.sampler == SamplerKind::Multinomial;
        assert_eq!(texts[0] != texts[1] || texts[1] != texts[2], drawn, "{name}: {texts:?}");
    });
}

/// The exact sampler handles a vocabulary of which no vector is ever made, and tells wrong requests apart.
#[test]
fn large_vocabularies_and_wrong_requests() {
    let m = model(Method::Tdd, Conditioning::None, ConditionAttention::Full, Sizes { vocab: 20_000, tokens: 4 });
    let m = trained(m);
    for sampler in SAMPLERS {
        let c = config(sampler, 3);
        let g = TokenSampler::new(&m, &c).unwrap();
        let got = g.generate(&Request::new(None, &[0, 1])).unwrap();
        assert!(got.tokens.iter().all(|t| *t < 20_000) && got.steps.is_empty());
        assert_eq!(got, g.generate(&Request::new(None, &[0, 1])).unwrap());
        let message = |r: &Request| g.generate(r).unwrap_err().to_string();
        let ids = [0, 1];
        let plain = Request::new(None, &ids);
        assert!(message(&Request { candidates: 0, ..plain }).contains("candidates"));
        assert!(message(&Request { trace: Some(9), ..plain }).contains("at most 8"));
        assert!(message(&Request { fixed: Some(&[None; 3]), ..plain }).contains("3 fixed tokens"));
        assert!(message(&Request { fixed: Some(&[Some(20_000); 8]), ..plain }).contains("20000"));
        let ending = |length| Some(Ending { eos: 1, pad: 0, unk: None, length, min_length: 0 });
        assert!(message(&Request { ending: ending(Some(5)), ..plain }).contains("length of 5"));
        let fixed = [None, None, Some(3), None, None, None, None, None];
        let r = Request { ending: ending(Some(2)), fixed: Some(&fixed), ..plain };
        assert!(message(&r).contains("place 2 lies after the end"));
        assert!(message(&Request::new(None, &[])).contains("nothing to sample"));
        let guided = SampleConfig { guidance: 2.0, ..c.clone() };
        let e = TokenSampler::new(&m, &guided).unwrap().generate(&plain).unwrap_err();
        assert!(e.to_string().contains("sample.guidance"), "{e}");
    }
}
