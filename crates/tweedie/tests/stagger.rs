//! `train.stagger`, `sample.stagger`: tokens start one after another, on a path longer than one token's.

mod common;

use common::assert_gradient;
use tweedie::config::{Config, LossConfig, Method, ModelConfig, SampleConfig, SamplerKind};
use tweedie::data::Task;
use tweedie::loss::{NoiseOf, Rows, TddLoss, draw_staggered_times};
use tweedie::model::{ConditionAttention, DenoiserConfig, DenoiserKind, Input, Model, Pass, Positions, Sizes};
use tweedie::process::Times;
use tweedie::sample::{At, Denoise, Mix, Prediction, Sampler, State, sample_tokens, sample_tokens_by};
use tweedie::{Process, Result, Schedule, ScheduleKind};
use tweedie_engine::ops::token_scores::{SCORES, token_scores};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor, Var};

const CPU: Device = Device::Cpu;
const SIZES: Sizes = Sizes { vocab: 7, tokens: 4 };
const T: usize = 1000;

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::VocabAware, T, SIZES.vocab).unwrap())
}

fn rows(t: Vec<u32>) -> Rows {
    let tokens = (0..t.len() * SIZES.tokens).map(|i| (i * 5 % SIZES.vocab) as u32).collect();
    Rows::new(tokens, t)
}

/// At a row's time t of T, tokens have begun by chance alike: of a path G times as long as theirs, moment m = tG finds clean those that
/// begin at m or later, as noise those that begin at m − T or before, and the rest spread evenly over their own times.
#[test]
fn tokens_start_one_after_another() {
    const R: u32 = 20_000;
    for (stagger, t) in [(4, 500), (4, 100), (8, 900), (2, 250)] {
        let times = draw_staggered_times(&rows(vec![t; R as usize]), SIZES.tokens, (T, stagger), 3, 5);
        let count = times.len() as f64;
        let near = |what: &str, found: usize, p: f64| {
            let share = found as f64 / count;
            assert!(
                (share - p).abs() < 5.0 * (p * (1.0 - p) / count).sqrt() + 2e-3,
                "{what} of {stagger}, {t}: {share} {p}"
            );
        };
        let (path, moment) = (((stagger - 1) * T) as f64, (t as usize * stagger) as f64);
        let before = |x: f64| (x / path).clamp(0.0, 1.0);
        near("clean", times.iter().filter(|t| **t == 1).count(), 1.0 - before(moment));
        near("noise", times.iter().filter(|t| **t == T as u32).count(), before(moment - T as f64));
        let half = times.iter().filter(|t| **t > T as u32 / 2).count();
        near("beyond half", half, before(moment - T as f64 / 2.0));
    }
}

#[test]
fn with_stagger_1_all_tokens_have_the_time_of_their_row() {
    let rows = rows(vec![1, 40, 999, 1000]);
    let times = draw_staggered_times(&rows, SIZES.tokens, (T, 1), 3, 5);
    assert!(times.chunks(SIZES.tokens).zip(&rows.t).all(|(times, t)| times.iter().all(|own| own == t)));
}

#[test]
fn times_are_a_pure_function_of_seed_step_and_row() {
    let rows = rows(vec![300; 50]);
    let of = |rows: &Rows, seed, step| draw_staggered_times(rows, SIZES.tokens, (T, 4), seed, step);
    let all = of(&rows, 7, 2);
    assert_eq!(all, of(&rows, 7, 2));
    assert!(all != of(&rows, 8, 2) && all != of(&rows, 7, 3));
    assert_eq!(of(&rows.part(10..20, SIZES.tokens, SIZES.vocab), 7, 2), all[10 * SIZES.tokens..20 * SIZES.tokens]);
    // Whatever it is handed, it draws times of the process.
    assert_eq!(draw_staggered_times(&self::rows(vec![0]), 2, (0, 0), 7, 2), [1, 1]);
}

fn model(evidence: bool) -> Model {
    let mut c = ModelConfig::preset("text").unwrap();
    c.denoiser = DenoiserConfig { evidence, positions: Positions::Rotary, ..DenoiserConfig::new(24, 2, 2) };
    Model::new(&c, SIZES, &CPU, DType::F32, 5).unwrap().with_per_token_time(true).for_process(&process())
}

fn staggered() -> Rows {
    let rows = rows(vec![900, 500, 100]);
    let times = draw_staggered_times(&rows, SIZES.tokens, (T, 3), 7, 2);
    assert!(times.contains(&1) && times.iter().any(|t| (2..T as u32).contains(t)));
    Rows { times: Some(times), ..rows }
}

fn loss(m: &Model, tape: &Tape, rows: &Rows, weighted: bool) -> Var {
    let (noise, config) =
        (Noise::new(&CPU, 1, 1, 0).unwrap(), LossConfig { weighted, smoothing: 0.0, ..LossConfig::default() });
    let loss = TddLoss { process: &process(), config: &config, noise: NoiseOf::Drawn(&noise) };
    loss.of(&Pass::inference(tape, &m.params, DType::F32), m, None, rows).unwrap()
}

/// Against the network's own words about each token at its own time, weighed by hand; clean tokens count too, as the bound asks of them.
#[test]
fn the_loss_is_that_of_tokens_at_their_own_times() {
    for evidence in [false, true] {
        let (m, rows) = (model(evidence), staggered());
        let times = rows.times.clone().unwrap();
        let noise = Noise::new(&CPU, 1, 1, 0).unwrap();
        let noisy = rows.corrupt(&process(), &CPU, (SIZES.tokens, SIZES.vocab), &NoiseOf::Drawn(&noise)).unwrap();
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &m.params, DType::F32);
        let read = evidence.then(|| tape.constant(m.evidence(&noisy.vectors(DType::F32).unwrap(), &times).unwrap()));
        let input = read.as_ref().map_or(Input::Noisy(&noisy), Input::Evidence);
        let features = m.features(&p, &input, &times, &m.context(&p, None, false).unwrap()).unwrap();
        let logits = m.logits_of(&p, &features, &input).unwrap();
        let scores =
            token_scores(logits.value(), &noisy.tokens.reshape(&[times.len()]).unwrap()).unwrap().to_vec().unwrap();
        for weighted in [false, true] {
            let weight = |i: usize| if weighted { process().schedule().alpha_bar(times[i] as usize) } else { 1.0 };
            let nats = scores.chunks_exact(SCORES).enumerate().map(|(i, s)| -weight(i) * s[0] as f64);
            let want = nats.sum::<f64>() / times.len() as f64;
            let got = loss(&m, &tape, &rows, weighted).value().item().unwrap() as f64;
            assert!((got - want).abs() < 1e-5 * want, "evidence {evidence}, weighted {weighted}: {got} {want}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for evidence in [false, true] {
        let (mut m, rows) = (model(evidence), staggered());
        let tape = Tape::new();
        let start = loss(&m, &tape, &rows, false);
        tape.backward(&start, Some(&mut m.params)).unwrap();
        for name in ["denoiser.token_in.weight", "denoiser.time_mlp.0.weight", "denoiser.head.weight"] {
            let id = m.params.find(name).unwrap();
            let every = m.params.value(id).len() / 6;
            let value = |m: &Model| loss(m, &Tape::inference(), &rows, false).value().item().unwrap();
            assert_gradient(&mut m, name, every, &format!("{name}, evidence {evidence}"), value);
        }
    }
}

/// p(a, b) of two bits that mostly agree.
const PAIRS: [[f64; 2]; 2] = [[0.45, 0.02], [0.13, 0.40]];

/// The exact posterior of each of two bits, given the noisy vectors of both, each at a time of its own.
struct Pairs {
    process: Process,
    per_token_time: bool,
}

impl Denoise for Pairs {
    fn vocab(&self) -> usize {
        2
    }

    fn per_token_time(&self) -> bool {
        self.per_token_time
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let y = noisy.to_vec()?;
        let which = at.tokens.map(|own| own.which.to_vec_u32()).transpose()?;
        let time = |token: usize| match (&which, at.tokens) {
            (Some(which), Some(own)) if which[token] > 0 => own.times[which[token] as usize - 1],
            _ => at.t,
        };
        let mut logits = Vec::with_capacity(y.len());
        for (example, y) in y.chunks_exact(4).enumerate() {
            let seen = |i: usize, k: usize| self.process.evidence(time(2 * example + i)) * y[2 * i + k] as f64;
            let ln = |a: usize, b: usize| PAIRS[a][b].ln() + seen(0, a) + seen(1, b);
            let add = |x: f64, y: f64| x.max(y) + (-(x - y).abs()).exp().ln_1p();
            logits.extend([
                add(ln(0, 0), ln(0, 1)),
                add(ln(1, 0), ln(1, 1)),
                add(ln(0, 0), ln(1, 0)),
                add(ln(0, 1), ln(1, 1)),
            ]);
        }
        Ok(Tensor::from_f32(&CPU, noisy.shape(), logits.into_iter().map(|l| l as f32).collect())?)
    }
}

/// Along any path posterior steps with the exact prediction come to the joint distribution, the more steps the nearer.
#[test]
fn posterior_steps_along_a_staggered_path_reach_the_joint_distribution() {
    const EXAMPLES: u32 = 20_000;
    let process = Process::new(Schedule::new(ScheduleKind::VocabAware, T, 2).unwrap());
    let oracle = Pairs { process: process.clone(), per_token_time: true };
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    for stagger in [1, 2, 5] {
        let config = SampleConfig {
            sampler: SamplerKind::Ancestral,
            steps: 60 * stagger,
            stagger,
            seed: 4,
            ..SampleConfig::default()
        };
        let made = sample_tokens(&oracle, &process, &config, (&ids, 2), None).unwrap();
        for (a, b) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let found = made.tokens.chunks_exact(2).filter(|t| **t == [a, b]).count() as f64 / EXAMPLES as f64;
            let want = PAIRS[a as usize][b as usize];
            // Five standard errors, and what is left of the size of the steps.
            let near = 5.0 * (want * (1.0 - want) / EXAMPLES as f64).sqrt() + 0.01;
            assert!((found - want).abs() < near, "{stagger}: {found} of {a}, {b}, not {want}");
        }
        // What an example gets does not depend on its batch.
        let few = sample_tokens(&oracle, &process, &config, (&ids[40..50], 2), None).unwrap();
        assert_eq!(few.tokens, made.tokens[80..100]);
    }
}

/// A sampler of one's own sets the times that tokens have; a denoiser that cannot be told them refuses.
#[test]
fn a_sampler_may_set_the_times_of_tokens() {
    struct FirstAhead(usize);
    impl Sampler for FirstAhead {
        fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
            let clean = prediction.argmax()?;
            let times: Vec<usize> =
                (0..2 * prediction.shape()[0]).map(|i| if i % 2 == 0 { self.0 } else { at.s.max(1) }).collect();
            let each = times.iter().map(|t| state.process().renoise(*t)).collect();
            state.update(&clean, Mix::Each(each))?;
            state.set_token_times(&times)
        }
    }
    let process = Process::new(Schedule::new(ScheduleKind::VocabAware, T, 2).unwrap());
    let of = |per_token_time, t| {
        let oracle = Pairs { process: process.clone(), per_token_time };
        sample_tokens_by(&FirstAhead(t), &oracle, &process, &SampleConfig::default(), (&[1, 2, 3], 2), None)
    };
    assert_eq!(of(true, 1).unwrap().tokens.len(), 6);
    for (per_token_time, t, word) in [(false, 1, "train.stagger"), (true, 0, "is 0"), (true, T + 1, "1001")] {
        let e = of(per_token_time, t).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
}

#[test]
fn what_does_not_go_with_it_is_refused() {
    let mut ok = Config::default();
    ok.data.task = Task::Caption;
    ok.data.tokens = 5;
    ok.model = ModelConfig::preset("shapes").unwrap();
    ok.model.denoiser.condition_attention = ConditionAttention::Prefix;
    (ok.train.stagger, ok.process.schedule) = (4, ScheduleKind::VocabAware);
    let refused = |change: &dyn Fn(&mut Config), word: &str| {
        let mut c = ok.clone();
        change(&mut c);
        let e = c.check().unwrap_err().to_string();
        assert!(e.contains("train.stagger") && e.contains(word), "{e}");
    };
    refused(&|c| c.train.stagger = 0, "0");
    refused(&|c| c.train.stagger = 5000, "5000");
    refused(&|c| c.data.task = Task::Class, "captions");
    refused(&|c| c.model.denoiser.condition_attention = ConditionAttention::Full, "prefix");
    refused(&|c| c.train.clean_tokens = 0.5, "one of the two");
    refused(&|c| c.train.pure_noise = 0.5, "pure_noise");
    let dit = |c: &mut Config| {
        c.model.denoiser = DenoiserConfig { kind: DenoiserKind::Dit, ..DenoiserConfig::new(24, 2, 2) };
    };
    refused(&dit, "transformer");
    let mut untrained = ok.clone();
    (untrained.train.stagger, untrained.sample.stagger) = (1, 4);
    let e = untrained.check().unwrap_err().to_string();
    assert!(e.contains("sample.stagger = 4") && e.contains("train.stagger"), "{e}");
    let mut twin = ok.clone();
    twin.model.method = Method::Mdd;
    assert_eq!((ok.stagger(), twin.stagger(), twin.per_token_time()), (4, 1, false));
    // Rows are checked, too.
    let (m, rows) = (model(false), staggered());
    let wrong = |rows: Rows| {
        let (tape, config, noise) = (Tape::inference(), LossConfig::default(), Noise::new(&CPU, 1, 1, 0).unwrap());
        let loss = TddLoss { process: &process(), config: &config, noise: NoiseOf::Drawn(&noise) };
        loss.of(&Pass::inference(&tape, &m.params, DType::F32), &m, None, &rows).err().unwrap().to_string()
    };
    assert!(wrong(Rows { times: Some(vec![1; 3]), ..rows.clone() }).contains("3 times of tokens"));
    assert!(wrong(Rows { times: Some(vec![1001; 12]), ..rows.clone() }).contains("1001"));
    assert!(wrong(Rows { clean: Some(vec![false; 12]), ..rows }).contains("clean tokens"));
}
