//! Jobs that share a model step by step get what they would get alone, to the bit on the CPU: whatever joins, leaves or runs beside them.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tweedie::augment::{AugmentConfig, Transform};
use tweedie::classify::Answer;
use tweedie::config::{
    GuidanceShape, Method, NoiseKind, PosteriorMean, Rank, SampleConfig, SamplerKind, Start, Unmasking,
};
use tweedie::generate::{Text, TextRequest};
use tweedie::live::{Event, Job, JobId, LiveModel, LiveStep, Outcome, Resume};
use tweedie::model::{
    ConditionAttention, Conditioning, DenoiserConfig, DenoiserKind, Model, ModelConfig, Pool, Sizes, VitConfig,
};
use tweedie::tokenize::{Kind, Tokenizer};
use tweedie::{Classifier, Generator, Process, Schedule, ScheduleKind, Trained};
use tweedie_engine::{DType, Device, Tensor, cases};

const CPU: Device = Device::Cpu;
const CLASSES: usize = 5;
const TOKENS: usize = 6;

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::train(Kind::Chars, 99, ["abcdefgh", "hgfedcba"]).unwrap())
}

/// Weights larger than at the start of training, so that all of them count.
fn moved(mut m: Model) -> Model {
    let all: Vec<_> = m.params.iter().map(|(_, shape, id)| (shape.to_vec(), id)).collect();
    for (i, (shape, id)) in all.into_iter().enumerate() {
        let shift = cases::random(i as u32, &shape, 0.2).to_vec().unwrap();
        let moved: Vec<f32> = m.params.value(id).to_vec().unwrap().iter().zip(shift).map(|(v, s)| v + s).collect();
        m.params.set(id, &moved).unwrap();
    }
    m
}

#[derive(Clone, Copy)]
struct Like {
    text: bool,
    image: bool,
    method: Method,
    attention: ConditionAttention,
    kind: DenoiserKind,
    per_token: bool,
    direct: bool,
    evidence: bool,
}

const CLASS: Like = Like {
    text: false,
    image: true,
    method: Method::Tdd,
    attention: ConditionAttention::Full,
    kind: DenoiserKind::Transformer,
    per_token: false,
    direct: false,
    evidence: false,
};
const CAPTION: Like = Like { text: true, attention: ConditionAttention::Prefix, ..CLASS };
const TEXT: Like = Like { text: true, image: false, ..CLASS };

fn trained(like: Like) -> Rc<Trained> {
    let mut c = ModelConfig::preset("digits").unwrap();
    c.method = like.method;
    c.condition = if like.image { Conditioning::Image } else { Conditioning::None };
    c.pool = if like.text { Pool::All } else { Pool::Cls };
    c.encoder =
        VitConfig { image: 8, patch: 4, channels: 1, width: 16, depth: 1, heads: 2, drop_path: 0.0, class_tokens: 1 };
    c.denoiser = DenoiserConfig {
        condition_attention: like.attention,
        kind: like.kind,
        direct: like.direct,
        evidence: like.evidence,
        ..DenoiserConfig::new(24, 2, 2)
    };
    let tokenizer = tokenizer();
    let sizes = match like.text {
        true => Sizes { vocab: tokenizer.vocab(), tokens: TOKENS },
        false => Sizes { vocab: CLASSES, tokens: 1 },
    };
    let model = moved(Model::new(&c, sizes, &CPU, DType::F32, 3).unwrap()).with_per_token_time(like.per_token);
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, sizes.vocab).unwrap());
    Rc::new(Trained {
        tokenizer: like.text.then_some(tokenizer),
        class_names: (0..if like.text { 0 } else { CLASSES }).map(|i| format!("c{i}")).collect(),
        transform: like.image.then(|| Transform::eval(&AugmentConfig::none(), 8, 1).unwrap()),
        temperature: (!like.text).then_some(1.3),
        ..Trained::bare(model, process)
    })
}

fn image(i: u32) -> Vec<f32> {
    cases::random(100 + i, &[64], 1.0).to_vec().unwrap()
}

/// Text, tokens, bound and likeness.
type OneText = (String, Vec<u32>, Option<(f64, f64)>, Option<f64>);
/// Probability, entropy and the likeliest ones of each place.
type Numbers = Vec<(f64, f64, Vec<f64>)>;

/// What is compared: every number of the steps, and the result.
#[derive(Debug, PartialEq)]
enum End {
    Class(Answer),
    Texts(Vec<OneText>),
}

fn texts(all: Vec<Text>) -> End {
    End::Texts(all.into_iter().map(|t| (t.text, t.tokens, t.nats, t.consensus)).collect())
}

/// A job by the front that commands use: probabilities, entropies and likeliest ones of each step, then the result.
fn alone(t: &Rc<Trained>, job: &Job) -> (Vec<Numbers>, End) {
    let images = job.image.clone().map(|v| Tensor::from_f32(&CPU, &[1, 1, 8, 8], v).unwrap());
    if t.tokenizer.is_none() {
        let c = Classifier::new(t.clone(), &job.sample).unwrap();
        let images = images.unwrap();
        let one = Classifier::new(t.clone(), &SampleConfig { votes: 1, ..job.sample.clone() }).unwrap();
        let steps = one.trace(&images, job.top).unwrap();
        let steps = steps.into_iter().map(|s| s.tokens.into_iter().map(numbers).collect()).collect();
        return (steps, End::Class(c.classify_batch(&images, &[job.example]).unwrap().remove(0)));
    }
    let g = Generator::new(t.clone(), &job.sample).unwrap();
    let ids = [job.example];
    let request = TextRequest {
        images: images.as_ref(),
        fixed: job.fixed.as_deref(),
        length: job.length,
        min_length: job.min_length,
        trace: Some(job.top),
        ..TextRequest::new(&ids)
    };
    let all = g.generate(&request).unwrap().remove(0);
    let steps = match job.sample.candidates {
        1 => all[0].steps.iter().map(|s| s.tokens.iter().cloned().map(numbers).collect()).collect(),
        _ => Vec::new(),
    };
    (steps, texts(all))
}

fn numbers(token: tweedie::generate::Token) -> (f64, f64, Vec<f64>) {
    (token.p, token.entropy, token.top.into_iter().map(|t| t.1).collect())
}

fn told(step: &LiveStep) -> Numbers {
    let of = |place: &tweedie::live::Place| (place.p, place.entropy, place.top.iter().map(|t| t.1).collect());
    step.places.iter().map(of).collect()
}

/// All jobs in one model, each joining so many steps after the one before.
fn together(t: &Rc<Trained>, jobs: &[Job], apart: usize) -> Vec<(Vec<LiveStep>, End)> {
    let mut live = LiveModel::new(t.clone(), 64).unwrap();
    let mut ids: Vec<JobId> = Vec::new();
    let (mut steps, mut ends): (HashMap<JobId, Vec<LiveStep>>, HashMap<JobId, End>) = Default::default();
    let mut left = jobs.iter().cloned().collect::<std::collections::VecDeque<_>>();
    let mut round = 0;
    while !left.is_empty() || !live.is_idle() {
        if round % apart.max(1) == 0 || live.is_idle() {
            let count = if apart == 0 { left.len() } else { 1 };
            let some: Vec<Job> = left.drain(..count.min(left.len())).collect();
            ids.extend(live.admit(some).into_iter().map(Result::unwrap));
        }
        for (id, event) in live.step().unwrap() {
            match event {
                Event::Step(step) => steps.entry(id).or_default().push(step),
                Event::Done(Outcome::Class(answer)) => drop(ends.insert(id, End::Class(answer))),
                Event::Done(Outcome::Texts(all)) => drop(ends.insert(id, texts(all))),
                Event::Failed(why) => panic!("{why}"),
            }
        }
        round += 1;
    }
    assert_eq!(live.room(), 64);
    ids.iter().map(|id| (steps.remove(id).unwrap_or_default(), ends.remove(id).unwrap())).collect()
}

fn compare(t: &Rc<Trained>, jobs: &[Job]) {
    let alone: Vec<_> = jobs.iter().map(|job| alone(t, job)).collect();
    for apart in [0, 1, 2] {
        for (i, (got, want)) in together(t, jobs, apart).into_iter().zip(&alone).enumerate() {
            assert_eq!(got.1, want.1, "job {i}, {apart} steps apart: {:?}", jobs[i].sample);
            if !want.0.is_empty() {
                let steps: Vec<_> = got.0.iter().map(told).collect();
                // A class is told with all of its probabilities by f64, its likeliest ones by the device's f32.
                let near = |a: f64, b: f64| a == b || t.tokenizer.is_none() && (a - b).abs() < 1e-6;
                assert_eq!(steps.len(), want.0.len());
                for (s, w) in steps.iter().flatten().zip(want.0.iter().flatten()) {
                    assert!(near(s.0, w.0) && near(s.1, w.1), "job {i}: {s:?} {w:?}");
                    assert!(s.2.iter().zip(&w.2).all(|(a, b)| near(*a, *b)), "job {i}: {s:?} {w:?}");
                }
            }
        }
    }
}

fn sample(steps: usize, sampler: SamplerKind, seed: u64) -> SampleConfig {
    SampleConfig { steps, sampler, seed, ..SampleConfig::default() }
}

const SAMPLERS: [SamplerKind; 5] =
    [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral];

#[test]
fn classes_are_those_of_the_classifier() {
    let dit = Like { kind: DenoiserKind::Dit, direct: true, ..CLASS };
    let mlp = Like { kind: DenoiserKind::Mlp, ..CLASS };
    for like in [CLASS, dit, mlp, Like { evidence: true, ..CLASS }, Like { method: Method::Mdd, ..CLASS }] {
        let t = trained(like);
        let mut jobs: Vec<Job> = Vec::new();
        for (i, sampler) in SAMPLERS.into_iter().enumerate() {
            for (j, guidance) in [1.0, 2.5].into_iter().enumerate() {
                let mut s = SampleConfig { guidance, ..sample(3 + i, sampler, 7 * i as u64) };
                (s.votes, s.start) = (1 + (i + j) % 3, if i == 2 { Start::Zeros } else { Start::Noise });
                s.running_mean = (i + j) % 2 == 0;
                jobs.push(Job { image: Some(image(i as u32)), ..Job::new(&s) });
            }
        }
        compare(&t, &jobs);
    }
}

#[test]
fn captions_are_those_of_the_generator() {
    let full = Like { attention: ConditionAttention::Full, ..CAPTION };
    let per_token = Like { per_token: true, ..CAPTION };
    let evidence = Like { evidence: true, ..per_token };
    for like in [CAPTION, full, Like { method: Method::Mdd, ..CAPTION }, per_token, evidence] {
        let t = trained(like);
        let mut jobs: Vec<Job> = Vec::new();
        for (i, sampler) in SAMPLERS.into_iter().enumerate() {
            for (j, guidance) in [1.0, 0.5, 3.0].into_iter().enumerate() {
                let mut s = SampleConfig { guidance, ..sample(2 + i + j, sampler, i as u64) };
                s.guidance_shape = if j == 1 { GuidanceShape::Linear } else { GuidanceShape::Constant };
                s.unmask = if i % 2 == 0 { Unmasking::Confident } else { Unmasking::Random };
                s.uncommitted = 0.5 * j as f32;
                s.correction = [0.0, 0.3, 0.9][j];
                s.stagger = [1, 3, 4][j];
                (s.candidates, s.rank) = (1 + 2 * (i % 2), if j == 0 { Rank::Bound } else { Rank::Consensus });
                s.posterior_mean = [PosteriorMean::Soft, PosteriorMean::Argmax, PosteriorMean::Drawn][j];
                s.noise = [NoiseKind::Auto, NoiseKind::Dense, NoiseKind::Exact][j];
                let mut fixed = vec![None; TOKENS];
                fixed[j] = Some(5 + i as u32);
                let fixed = (i != 1).then_some(fixed);
                let length = (i == 3).then_some(4);
                let image = Some(image(i as u32));
                jobs.push(Job { image, fixed, length, example: j as u32, top: 2 + j, ..Job::new(&s) });
            }
        }
        compare(&t, &jobs);
    }
}

#[test]
fn texts_are_those_of_the_generator() {
    let [evidence, per_token] = [Like { evidence: true, ..TEXT }, Like { per_token: true, ..TEXT }];
    for like in [TEXT, Like { method: Method::Mdd, ..TEXT }, per_token, evidence] {
        let t = trained(like);
        let job = |(i, sampler): (usize, SamplerKind)| {
            let sample =
                SampleConfig { correction: 0.1 * i as f32, stagger: 1 + 2 * (i % 2), ..sample(4 + i, sampler, 1) };
            Job { example: i as u32, min_length: i, ..Job::new(&sample) }
        };
        let jobs: Vec<Job> = SAMPLERS.into_iter().enumerate().map(job).collect();
        compare(&t, &jobs);
    }
}

/// All probabilities of a step are the distributions whose entropies and likeliest tokens are told, and telling them changes nothing.
#[test]
fn probabilities_are_those_of_the_entropies() {
    for like in [CAPTION, Like { method: Method::Mdd, ..CAPTION }, Like { per_token: true, ..CAPTION }] {
        let t = trained(like);
        let vocab = t.model.sizes().vocab;
        for guidance in [1.0, 2.5] {
            let s = SampleConfig { guidance, ..sample(4, SamplerKind::Multinomial, 3) };
            let job = Job { image: Some(image(2)), ..Job::new(&s) };
            let plain = together(&t, std::slice::from_ref(&job), 0).remove(0);
            let told = together(&t, &[Job { probabilities: true, ..job }], 0).remove(0);
            assert_eq!(told.1, plain.1);
            for (step, without) in told.0.iter().zip(&plain.0) {
                assert_eq!((&step.places, &without.probabilities), (&without.places, &None));
                let all = step.probabilities.as_ref().unwrap();
                assert_eq!(all.len(), TOKENS * vocab);
                for (p, place) in all.chunks_exact(vocab).zip(&step.places) {
                    let entropy = -p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>();
                    assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-5);
                    assert!((entropy - place.entropy).abs() < 1e-4, "{entropy} and {}", place.entropy);
                }
            }
        }
    }
}

/// More rows than the direct kernel of products takes on its own account.
#[test]
fn hundreds_of_rows_change_nothing() {
    let t = trained(CAPTION);
    let jobs: Vec<Job> = (0..50)
        .map(|i| Job {
            image: Some(image(i)),
            ..Job::new(&SampleConfig { guidance: 2.0, ..sample(2, SamplerKind::Argmax, 3) })
        })
        .collect();
    for (got, job) in together(&t, &jobs, 0).iter().zip(&jobs).step_by(7) {
        assert_eq!(got.1, alone(&t, job).1);
    }
}

/// A run that is gone on with from any of its steps ends as it did.
#[test]
fn a_run_can_be_gone_on_with() {
    for (method, per_token) in [(Method::Tdd, false), (Method::Mdd, false), (Method::Tdd, true)] {
        let t = trained(Like { method, per_token, ..CAPTION });
        for sampler in [SamplerKind::Argmax, SamplerKind::Multinomial] {
            let unmask = Unmasking::Confident;
            let correction = if method == Method::Tdd { 0.4 } else { 0.0 };
            let sample = SampleConfig { guidance: 2.0, unmask, correction, ..sample(6, sampler, 5) };
            let job = Job { image: Some(image(1)), ..Job::new(&sample) };
            let whole = together(&t, std::slice::from_ref(&job), 0).remove(0);
            for step in 1..6 {
                let mask = t.model.sizes().vocab as u32;
                let tokens = whole.0[step - 1].places.iter().map(|p| p.id.unwrap_or(mask)).collect();
                let committed = whole.0[step - 1].places.iter().map(|p| p.committed).collect();
                let rest = Job { resume: Some(Resume { step, tokens, committed }), ..job.clone() };
                let got = together(&t, &[rest], 0).remove(0);
                assert_eq!(got.1, whole.1, "{method:?} {sampler:?} from step {step}");
                assert_eq!(got.0[0].step, step + 1);
            }
        }
        let refuse = |sampler, resume: Resume| {
            let job = Job { image: Some(image(1)), resume: Some(resume), ..Job::new(&sample(6, sampler, 5)) };
            LiveModel::new(t.clone(), 4).unwrap().admit(vec![job]).remove(0).unwrap_err().to_string()
        };
        let tokens = vec![0; TOKENS];
        assert!(
            refuse(SamplerKind::Argmax, Resume { step: 6, tokens: tokens.clone(), ..Resume::default() })
                .contains("1 to 5")
        );
        assert!(
            refuse(SamplerKind::Argmax, Resume { step: 2, tokens: vec![0; 2], ..Resume::default() })
                .contains("2 tokens")
        );
        assert!(
            refuse(SamplerKind::Argmax, Resume { step: 2, tokens: vec![99; TOKENS], ..Resume::default() })
                .contains("99")
        );
        if method == Method::Mdd {
            let unmask = Unmasking::Confident;
            let corrects = SampleConfig { correction: 0.1, unmask, ..sample(6, SamplerKind::Argmax, 5) };
            let resume = Some(Resume { step: 2, tokens: tokens.clone(), ..Resume::default() });
            let job = Job { image: Some(image(1)), resume, ..Job::new(&corrects) };
            let said = LiveModel::new(t.clone(), 4).unwrap().admit(vec![job]).remove(0).unwrap_err().to_string();
            assert!(said.contains("go on with correction 0"), "{said}");
        }
        if method == Method::Tdd {
            assert!(
                refuse(SamplerKind::Ddim, Resume { step: 2, tokens, ..Resume::default() }).contains("carries more")
            );
        }
    }
}

/// A token that is pinned in the middle of a run stays; freed again it is the sampler's.
#[test]
fn tokens_can_be_pinned_in_the_middle() {
    for like in [CAPTION, Like { method: Method::Mdd, ..CAPTION }, Like { per_token: true, ..CAPTION }] {
        let t = trained(like);
        let s = SampleConfig { candidates: 2, unmask: Unmasking::Confident, ..sample(6, SamplerKind::Argmax, 5) };
        let mut live = LiveModel::new(t.clone(), 8).unwrap();
        let id = live.admit(vec![Job { image: Some(image(1)), ..Job::new(&s) }]).remove(0).unwrap();
        live.step().unwrap();
        live.step().unwrap();
        live.pin(id, 1, Some(7)).unwrap();
        live.pin(id, 3, Some(6)).unwrap();
        let events = live.step().unwrap();
        let Event::Step(step) = &events[0].1 else { panic!("{events:?}") };
        let places = &step.places;
        assert!((places[1].id, places[1].fixed, places[3].id) == (Some(7), true, Some(6)), "{places:?}");
        live.pin(id, 3, None).unwrap();
        assert!(live.pin(id, 6, Some(1)).is_err() && live.pin(id, 0, Some(99)).is_err());
        assert!(live.pin(JobId(99), 0, Some(1)).is_err());
        let mut last = None;
        while !live.is_idle() {
            last = live.step().unwrap().pop();
        }
        let Some((_, Event::Done(Outcome::Texts(texts)))) = last else { panic!("{last:?}") };
        assert!(texts.len() == 2 && texts.iter().all(|t| t.tokens[1] == 7), "{texts:?}");
    }
}

#[test]
fn a_job_that_leaves_frees_its_place() {
    let t = trained(CAPTION);
    let mut live = LiveModel::new(t.clone(), 3).unwrap();
    let job = |i: u32| Job { image: Some(image(i)), ..Job::new(&sample(5, SamplerKind::Argmax, 0)) };
    let first: Vec<JobId> = live.admit((0..3).map(job).collect()).into_iter().map(Result::unwrap).collect();
    assert_eq!(live.room(), 0);
    live.step().unwrap();
    live.remove(first[1]);
    assert_eq!(live.room(), 1);
    let id = live.admit(vec![job(7)]).remove(0).unwrap();
    let mut ends = HashMap::new();
    while !live.is_idle() {
        for (id, event) in live.step().unwrap() {
            if let Event::Done(Outcome::Texts(all)) = event {
                ends.insert(id, texts(all));
            }
        }
    }
    assert_eq!(ends.len(), 3);
    assert_eq!(ends[&id], alone(&t, &job(7)).1, "it took the place of another image");
    assert_eq!(ends[&first[2]], alone(&t, &job(2)).1);
}

/// What is wrong with a job is said of it; the others begin.
#[test]
fn wrong_jobs_are_refused_alone() {
    let t = trained(CAPTION);
    let mut live = LiveModel::new(t.clone(), 8).unwrap();
    let good = Job { image: Some(image(0)), ..Job::new(&sample(2, SamplerKind::Argmax, 0)) };
    let with = |change: &dyn Fn(&mut Job)| {
        let mut job = good.clone();
        change(&mut job);
        job
    };
    let jobs = vec![
        with(&|j| j.image = None),
        good.clone(),
        with(&|j| j.image = Some(vec![0.0; 3])),
        with(&|j| j.sample.steps = 0),
        with(&|j| j.length = Some(TOKENS + 1)),
        with(&|j| j.fixed = Some(vec![Some(999); TOKENS])),
        with(&|j| j.sample.candidates = 1 << 10),
    ];
    let said: Vec<_> = live.admit(jobs).into_iter().map(|r| r.map_err(|e| e.to_string())).collect();
    assert_eq!(said.iter().filter(|r| r.is_ok()).count(), 1);
    for (i, words) in [(0, "image"), (2, "3 values"), (3, "steps"), (4, "length"), (5, "999"), (6, "candidates")] {
        assert!(said[i].as_ref().unwrap_err().contains(words), "{i}: {:?}", said[i]);
    }
    let text = trained(TEXT);
    for (change, words) in [
        (SampleConfig { guidance: 2.0, ..sample(2, SamplerKind::Argmax, 0) }, "guidance"),
        (SampleConfig { running_mean: true, ..sample(2, SamplerKind::Argmax, 0) }, "sample.running_mean"),
    ] {
        let e =
            LiveModel::new(text.clone(), 1).unwrap().admit(vec![Job::new(&change)]).remove(0).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    }
}
