//! `train.clean_tokens`: tokens that are next to clean beside others at their copy's time.

use tweedie::config::{Config, LossConfig, Method, ModelConfig, SampleConfig, SamplerKind, Unmasking};
use tweedie::data::Task;
use tweedie::loss::{NoiseOf, Rows, TddLoss, draw_clean_tokens};
use tweedie::model::{
    ConditionAttention, Conditioning, DenoiserConfig, DenoiserKind, Input, Model, Pass, Pool, Sizes, VitConfig,
};
use tweedie::sample::{At, Conditioned, Denoise, Generated, Request, TokenSampler, TokenTimes};
use tweedie::{Process, Schedule, ScheduleKind, Trained};
use tweedie_engine::ops::noisy_input::noisy_input;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, cases};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 11, tokens: 5 };
const ROWS: usize = 4;

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, SIZES.vocab).unwrap())
}

fn model(condition: Conditioning, attention: ConditionAttention) -> Model {
    let mut c = ModelConfig::preset("digits").unwrap();
    (c.condition, c.pool) = (condition, Pool::All);
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig { condition_attention: attention, ..DenoiserConfig::new(24, 2, 2) };
    Model::new(&c, SIZES, &CPU, DType::F32, 3).unwrap().with_per_token_time(true)
}

/// The kinds that can have per-token time.
fn models() -> [Model; 2] {
    [model(Conditioning::Image, ConditionAttention::Prefix), model(Conditioning::None, ConditionAttention::Full)]
}

fn images(m: &Model, count: usize) -> Option<Tensor> {
    m.is_conditional().then(|| cases::random(9, &[count, 1, 8, 8], 1.0))
}

fn rows(clean: Option<Vec<bool>>) -> Rows {
    Rows {
        drop: vec![0, 1, 0, 0],
        examples: (10..10 + ROWS as u32).collect(),
        clean,
        ..Rows::new((0..ROWS * SIZES.tokens).map(|i| (i * 7 % SIZES.vocab) as u32).collect(), vec![1000, 700, 400, 90])
    }
}

fn some_clean() -> Vec<bool> {
    (0..ROWS * SIZES.tokens).map(|i| i % 3 == 1).collect()
}

/// The time of token `i`, said in another way.
fn time_of(rows: &Rows, i: usize) -> usize {
    if rows.clean.as_ref().is_some_and(|k| k[i]) { 1 } else { rows.t[i / SIZES.tokens] as usize }
}

/// y = λ√ᾱ·onehot + √(1−ᾱ)·ε of each token, with the ᾱ of its own time.
#[test]
fn every_token_has_its_own_level() {
    let (process, rows, lambda) = (process(), rows(Some(some_clean())), 0.8);
    let (s, process) = (process.schedule().clone(), process.with_lambda(lambda).unwrap());
    let (n, v) = (SIZES.tokens, SIZES.vocab);
    let eps = cases::random(4, &[ROWS, n, v], 1.0);
    let y = rows.corrupt(&process, &CPU, (n, v), &NoiseOf::Given(eps.clone())).unwrap();
    let (y, eps) = (y.vectors(DType::F32).unwrap().to_vec().unwrap(), eps.to_vec().unwrap());
    for (i, y) in y.into_iter().enumerate() {
        let t = time_of(&rows, i / v);
        let hot = if rows.tokens[i / v] as usize == i % v { lambda * s.signal(t) } else { 0.0 };
        let want = hot + s.spread(t) * eps[i] as f64;
        assert!((y as f64 - want).abs() < 1e-6, "token {} at {t}: {y} {want}", i / v);
    }
}

/// The loss and all gradients.
fn loss(m: &mut Model, rows: &Rows, weighted: bool) -> (f64, Vec<Vec<f32>>) {
    let images = images(m, ROWS / 2);
    let tape = Tape::new();
    m.params.discard_grads();
    let loss = {
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let noise = Noise::new(&CPU, 5, 1, 0).unwrap();
        let l = LossConfig { weighted, smoothing: 0.0, ..LossConfig::default() };
        let loss = TddLoss { process: &process(), config: &l, noise: NoiseOf::Drawn(&noise) };
        loss.of(&p, m, images.as_ref(), rows).unwrap()
    };
    let value = loss.value().item().unwrap() as f64;
    tape.backward(&loss, Some(&mut m.params)).unwrap();
    let ids: Vec<_> = m.params.iter().map(|(_, _, id)| id).collect();
    (value, ids.into_iter().map(|id| m.params.grad(id).unwrap().to_vec().unwrap()).collect())
}

#[test]
fn where_nothing_is_clean_all_is_as_with_one_time() {
    for mut m in models() {
        let shared = loss(&mut m, &rows(None), true);
        let own = loss(&mut m, &rows(Some(vec![false; ROWS * SIZES.tokens])), true);
        assert!((shared.0 - own.0).abs() < 1e-6, "{} {}", shared.0, own.0);
        for (a, b) in shared.1.iter().flatten().zip(own.1.iter().flatten()) {
            // Times of tokens are summed after the layers that make them, not before.
            assert!((a - b).abs() < 1e-5 * (1.0 + a.abs()), "{a} {b}");
        }
        let clean = loss(&mut m, &rows(Some(some_clean())), true);
        assert!((clean.0 - shared.0).abs() > 1e-3, "{} {}", clean.0, shared.0);
    }
}

/// Against logits computed by the sampler's way into the network, and weighed by hand.
#[test]
fn the_loss_weighs_open_tokens_by_their_time() {
    for mut m in models() {
        let (process, mut rows) = (process(), rows(Some(some_clean())));
        (rows.t, rows.drop) = (vec![400; ROWS], vec![0; ROWS]); // one time for all open tokens, as a sampler has it
        let (n, v) = (SIZES.tokens, SIZES.vocab);
        let images = images(&m, ROWS / 2);
        let network = Conditioned::new(&m, images.as_ref(), 2, false).unwrap();
        let noise = Noise::new(&CPU, 5, 1, 0).unwrap();
        let noisy = rows.corrupt(&process, &CPU, (n, v), &NoiseOf::Drawn(&noise)).unwrap();
        let tape = Tape::inference();
        let zero = tape.constant(Tensor::zeros(&CPU, &[24], DType::F32).unwrap());
        let weight = network.weight().unwrap().unwrap().clone();
        let u = noisy_input(&tape, &noisy, &tape.constant(weight), &zero, DType::F32);
        let flags = rows.clean.iter().flatten().map(|k| *k as u32).collect();
        let flags = Tensor::from_u32(&CPU, &[ROWS, n], flags).unwrap();
        let at = At { t: 400, tokens: Some(TokenTimes { which: &flags, times: &[1] }) };
        let logits = Denoise::logits(&network, u.unwrap().value(), at).unwrap().to_vec().unwrap();
        let nats = |i: usize| {
            let l = &logits[i * v..][..v];
            l.iter().map(|x| (*x as f64).exp()).sum::<f64>().ln() - l[rows.tokens[i] as usize] as f64
        };
        let open: Vec<usize> = (0..ROWS * n).filter(|i| !some_clean()[*i]).collect();
        for weighted in [false, true] {
            let weight = |i: usize| if weighted { process.schedule().alpha_bar(time_of(&rows, i)) } else { 1.0 };
            let want = open.iter().map(|i| weight(*i) * nats(*i)).sum::<f64>() / open.len() as f64;
            let got = loss(&mut m, &rows, weighted).0;
            assert!((got - want).abs() < 1e-5 * want, "{weighted}: {got} {want}");
        }
        // Where all is clean there is nothing to learn.
        let (value, grads) = loss(&mut m, &Rows { clean: Some(vec![true; ROWS * n]), ..rows }, false);
        assert!(value == 0.0 && grads.iter().flatten().all(|g| *g == 0.0));
    }
}

/// A share of rows has some; in these each token has one chance, uniform over rows: two of a row are both clean in a third of
/// them, not in a quarter.
#[test]
fn clean_tokens_have_their_chances() {
    const R: usize = 60_000;
    let rows = Rows { t: vec![500; R], examples: (0..R as u32).collect(), ..rows(None) };
    let share = 0.4;
    let clean = draw_clean_tokens(&rows, 3, share, 7, 2);
    let near = |count: usize, p: f64| (count as f64 / R as f64 - p).abs() < 5.0 * (p * (1.0 - p) / R as f64).sqrt();
    for n in 0..3 {
        assert!(near(clean.iter().skip(n).step_by(3).filter(|k| **k).count(), 0.4 / 2.0));
    }
    assert!(near(clean.chunks_exact(3).filter(|k| k[0] && k[2]).count(), 0.4 / 3.0));
    assert!(!draw_clean_tokens(&rows, 3, 0.0, 7, 2).contains(&true));
    // A pure function of seed, step and row.
    assert_eq!(clean, draw_clean_tokens(&rows, 3, share, 7, 2));
    assert!(clean != draw_clean_tokens(&rows, 3, share, 8, 2) && clean != draw_clean_tokens(&rows, 3, share, 7, 3));
    let later = Rows { t: vec![1; 10], examples: (100..110).collect(), ..rows };
    assert_eq!(draw_clean_tokens(&later, 3, share, 7, 2), clean[300..330]);
}

/// Fixed tokens stay, and a token's probability is that of the prediction that committed it: with one step that of the plain
/// sampler, and with more the one told of by the step.
#[test]
fn settled_tokens_come_with_their_probabilities() {
    let c = SampleConfig { unmask: Unmasking::Confident, steps: 5, uncommitted: 0.5, ..SampleConfig::default() };
    let fixed: Vec<Option<u32>> = (0..2 * SIZES.tokens).map(|i| (i % 3 == 0).then_some(i as u32)).collect();
    let ways = [(SamplerKind::Argmax, 0.0), (SamplerKind::Multinomial, 0.6)];
    for (m, (sampler, correction)) in models().into_iter().zip(ways) {
        let c = SampleConfig { sampler, correction, ..c.clone() };
        let images = images(&m, 2);
        let trained = Trained::bare(m, process());
        let generate = |c: &SampleConfig, r: &Request| -> Generated {
            TokenSampler::new(&trained, c).unwrap().generate(r).unwrap()
        };
        let r = Request { fixed: Some(&fixed), trace: Some(0), ..Request::new(images.as_ref(), &[0, 1]) };
        let got = generate(&c, &r);
        for (i, (token, log_prob)) in got.tokens.iter().zip(&got.log_probs).enumerate() {
            match fixed[i] {
                Some(g) => assert_eq!((*token, *log_prob), (g, 0.0)),
                None => {
                    let told = got.steps.iter().any(|s| s.tokens[i] == *token && s.log_probs[i] == *log_prob);
                    assert!(told && *log_prob < 0.0, "token {i}: {token} {log_prob}");
                }
            }
        }
        let quiet = Request { trace: None, ..r };
        let again = generate(&c, &quiet);
        assert_eq!((again.tokens, again.log_probs), (got.tokens, got.log_probs));
        let one = |unmask| {
            let c = SampleConfig { unmask, steps: 1, ..c.clone() };
            generate(&c, &Request::new(images.as_ref(), &[0, 1]))
        };
        assert_eq!(one(Unmasking::Confident), one(Unmasking::Random));
    }
}

#[test]
fn what_cannot_know_is_refused() {
    let mut ok = Config::default();
    ok.data.task = Task::Caption;
    ok.data.tokens = 5;
    ok.model = ModelConfig::preset("shapes").unwrap();
    ok.model.denoiser.condition_attention = ConditionAttention::Prefix;
    ok.train.clean_tokens = 0.5;
    ok.check().unwrap();
    let refused = |change: &dyn Fn(&mut Config), word: &str| {
        let mut c = ok.clone();
        change(&mut c);
        let e = c.check().unwrap_err().to_string();
        assert!(e.contains("train.clean_tokens") && e.contains(word), "{e}");
    };
    refused(&|c| c.train.clean_tokens = 1.5, "[0, 1]");
    refused(&|c| c.data.task = Task::Class, "captions");
    refused(&|c| c.process.schedule = ScheduleKind::VocabAware, "vocab-aware");
    refused(&|c| c.model.denoiser.condition_attention = ConditionAttention::Full, "prefix");
    let dit = |c: &mut Config| {
        c.model.denoiser = DenoiserConfig { kind: DenoiserKind::Dit, ..DenoiserConfig::new(24, 2, 2) };
    };
    refused(&dit, "transformer");
    // The twin of a recipe differs from it in its method alone.
    let mut twin = ok.clone();
    (twin.model.method, twin.model.denoiser.condition_attention) = (Method::Mdd, ConditionAttention::Full);
    twin.check().unwrap();
    assert_eq!((ok.clean_tokens(), twin.clean_tokens()), (0.5, 0.0));
    // And by the network itself.
    let m = model(Conditioning::Image, ConditionAttention::Full);
    let tape = Tape::inference();
    let p = Pass::inference(&tape, &m.params, DType::F32);
    let rows = rows(Some(some_clean()));
    let eps = cases::random(4, &[ROWS, SIZES.tokens, SIZES.vocab], 1.0);
    let y = rows.corrupt(&process(), &CPU, (SIZES.tokens, SIZES.vocab), &NoiseOf::Given(eps)).unwrap();
    let context = m.context(&p, images(&m, ROWS).as_ref(), false).unwrap();
    let e = m.features(&p, &Input::Noisy(&y), &[1; ROWS * 5], &context).unwrap_err().to_string();
    assert!(e.contains("condition_attention"), "{e}");
}
