//! Where a user's own code goes in: denoisers, samplers and schedules.

use tweedie::config::{LossConfig, ModelConfig, SampleConfig, SamplerKind};
use tweedie::loss::{NoiseOf, Rows, TddLoss};
use tweedie::model::{DenoiserConfig, Model, Pass, Sizes};
use tweedie::sample::{
    At, Generated, Mix, Prediction, Request, State, TokenSampler, sample_logits, sample_tokens, sample_tokens_by,
};
use tweedie::{Denoise, Process, Result, Sampler, Schedule, ScheduleKind, Times, Trained, Update};
use tweedie_engine::optim::{AdamConfig, AdamW};
use tweedie_engine::{DType, Device, Noise, Tape, Tensor};

const CPU: Device = Device::Cpu;
const PRIOR: [f64; 5] = [0.35, 0.25, 0.2, 0.15, 0.05];
const V: usize = PRIOR.len();
const EXAMPLES: [u32; 24] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];
/// Tokens per example.
const N: usize = 3;

const SAMPLERS: [SamplerKind; 5] =
    [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral];

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, V).unwrap())
}

fn config(steps: usize) -> SampleConfig {
    SampleConfig { steps, seed: 7, ..SampleConfig::default() }
}

/// Bayes' rule for independent tokens of one prior.
struct Oracle(Process);

impl Denoise for Oracle {
    fn vocab(&self) -> usize {
        V
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        assert_eq!(noisy.shape()[1..], [N, V], "it reads y_t itself");
        let y = noisy.to_vec()?;
        let p = y.chunks_exact(V).flat_map(|y| self.0.posterior(y, &PRIOR, at.t));
        Ok(Tensor::from_f32(&CPU, noisy.shape(), p.map(|p| p.max(1e-30).ln() as f32).collect())?)
    }
}

fn by(sampler: &dyn Sampler, steps: usize) -> Result<Generated> {
    let process = process();
    sample_tokens_by(sampler, &Oracle(process.clone()), &process, &config(steps), (&EXAMPLES, N), None)
}

fn built_in(sampler: SamplerKind, steps: usize, trace: Option<usize>) -> Generated {
    let (process, config) = (process(), SampleConfig { sampler, ..config(steps) });
    sample_tokens(&Oracle(process.clone()), &process, &config, (&EXAMPLES, N), trace).unwrap()
}

/// Argmax and re-noise, but only where the network is sure: other tokens start again from pure noise.
struct Patient {
    from: f32,
}

impl Sampler for Patient {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        let clean = prediction.argmax()?;
        let (sure, noise) = (state.process().renoise(at.s), Update { clean: 0.0, keep: 0.0, noise: 1.0 });
        let of = |log_p: &f32| if log_p.exp() >= self.from { sure } else { noise };
        let each = clean.log_probs()?.iter().map(of).collect();
        state.update(&clean, Mix::Each(each))
    }
}

#[test]
fn an_own_sampler_goes_the_way_of_the_built_in_one() {
    for steps in [1, 2, 12] {
        let (own, argmax) = (by(&Patient { from: 0.0 }, steps).unwrap(), built_in(SamplerKind::Argmax, steps, None));
        assert_eq!(own, argmax, "{steps} steps");
        assert_eq!((own.tokens.len(), own.log_probs.len()), (EXAMPLES.len() * N, EXAMPLES.len() * N));
    }
    assert_ne!(by(&Patient { from: 0.99 }, 12).unwrap().tokens, built_in(SamplerKind::Argmax, 12, None).tokens);
}

/// A step as a closure.
struct Step<F>(F);

impl<F: Fn(&mut State, &Prediction, Times) -> Result<()>> Sampler for Step<F> {
    fn step(&self, state: &mut State, prediction: &Prediction, at: Times) -> Result<()> {
        self.0(state, prediction, at)
    }
}

/// The vectors stay pure noise, and the tokens are what the last prediction says of them.
#[test]
fn a_sampler_that_does_nothing_gives_tokens() {
    let still = Step(|_: &mut State, p: &Prediction, at: Times| {
        assert_eq!(p.t, at.t);
        Ok(())
    });
    let got = by(&still, 4).unwrap();
    assert!(got.tokens.iter().all(|t| (*t as usize) < V) && got.log_probs.iter().all(|l| *l <= 0.0 && l.is_finite()));
    let (process, config) = (process(), config(4));
    let oracle = Oracle(process.clone());
    let traced = sample_tokens_by(&still, &oracle, &process, &config, (&EXAMPLES, N), Some(0)).unwrap();
    assert_eq!(traced.steps.iter().map(|s| s.t).collect::<Vec<_>>(), [1000, 750, 500, 250]);
    assert_eq!((&traced.tokens, &traced.steps[3].tokens), (&got.tokens, &got.tokens));
}

/// What a sampler hands over at the last step is the result.
#[test]
fn tokens_of_a_samplers_own_are_the_result() {
    let want: Vec<u32> = (0..EXAMPLES.len() * N).map(|i| (i * 2 % V) as u32).collect();
    let own = Step(|state: &mut State, p: &Prediction, at: Times| state.renoise(&p.tokens(&want)?, at.s));
    assert_eq!(by(&own, 3).unwrap().tokens, want);
}

/// Vectors may become the estimate itself, with nothing of the old and no new noise; and then each token keeps what it was.
#[test]
fn a_step_may_forget_and_add_nothing() {
    let clean = Update { clean: 1.0, keep: 0.0, noise: 0.0 };
    let all = Step(|state: &mut State, p: &Prediction, _| state.update(&p.argmax()?, clean.into()));
    let each = Step(|state: &mut State, p: &Prediction, _| {
        state.update(&p.argmax()?, Mix::Each(vec![clean; EXAMPLES.len() * N]))
    });
    let one = built_in(SamplerKind::Argmax, 1, None).tokens;
    assert_eq!(by(&all, 3).unwrap().tokens, one);
    assert_eq!(by(&all, 3).unwrap(), by(&each, 3).unwrap());
}

#[test]
fn wrong_lengths_of_a_sampler_are_refused() {
    let count = EXAMPLES.len() * N;
    for wrong in [0, 1, count - 1, count + 1] {
        let mix = Step(|state: &mut State, p: &Prediction, at: Times| {
            let each = vec![state.process().renoise(at.s); wrong];
            state.update(&p.argmax()?, Mix::Each(each))
        });
        let e = by(&mix, 3).unwrap_err().to_string();
        assert!(e.contains(&format!("{wrong} updates for {count} tokens")), "{e}");
        let tokens =
            Step(|state: &mut State, p: &Prediction, at: Times| state.renoise(&p.tokens(&vec![0; wrong])?, at.s));
        let e = by(&tokens, 3).unwrap_err().to_string();
        assert!(e.contains(&format!("{wrong} tokens for {count} places")), "{e}");
    }
    let beyond =
        Step(|state: &mut State, p: &Prediction, at: Times| state.renoise(&p.tokens(&vec![V as u32; count])?, at.s));
    assert!(by(&beyond, 3).is_err());
    let e = by(&Step(|_: &mut State, _: &Prediction, _| Err(tweedie::Error::Input("enough".into()))), 3);
    assert!(e.unwrap_err().to_string().contains("enough"));
}

/// Logits of any shape, whatever is asked; W too.
struct Shaped {
    logits: Vec<usize>,
    weight: Option<Tensor>,
}

impl Denoise for Shaped {
    fn vocab(&self) -> usize {
        V
    }

    fn weight(&self) -> Result<Option<&Tensor>> {
        Ok(self.weight.as_ref())
    }

    fn logits(&self, _: &Tensor, _: At) -> Result<Tensor> {
        Ok(Tensor::zeros(&CPU, &self.logits, DType::F32)?)
    }

    fn logits_of_pairs(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        self.logits(noisy, at)
    }
}

#[test]
fn wrong_shapes_of_a_denoiser_are_refused() {
    let b = EXAMPLES.len();
    // Of one step too: nothing may depend on a later one that finds out.
    let of = |logits: &[usize], weight: Option<&[usize]>, sampler, guidance, steps| {
        let weight = weight.map(|w| Tensor::zeros(&CPU, w, DType::F32).unwrap());
        let denoiser = Shaped { logits: logits.to_vec(), weight };
        let (process, config) = (process(), SampleConfig { sampler, guidance, ..config(steps) });
        let tokens = sample_tokens(&denoiser, &process, &config, (&EXAMPLES, N), None);
        let logits = sample_logits(&denoiser, &process, &config, (&EXAMPLES, N), |_| {});
        (tokens, logits)
    };
    for (sampler, steps) in SAMPLERS.into_iter().flat_map(|s| [(s, 1), (s, 3)]) {
        for guidance in [1.0, 2.0] {
            let twice = if guidance == 1.0 { 1 } else { 2 };
            let right = [twice * b, N, V];
            let (tokens, logits) = of(&right, None, sampler, guidance, steps);
            assert_eq!((tokens.unwrap().tokens.len(), logits.unwrap().len()), (b * N, b * N * V));
            // Rows may be longer than the vocabulary.
            let (tokens, logits) = of(&[twice * b, N, V + 3], None, sampler, guidance, steps);
            assert_eq!((tokens.unwrap().tokens.len(), logits.unwrap().len()), (b * N, b * N * V));
            for wrong in [
                &[twice * b - 1, N, V][..],
                &[twice * (b - 1), N, V],
                &[twice * (b + 1), N, V],
                &[twice * b, N - 1, V],
                &[twice * b, N, V - 1],
                &[1, 1, V],
                &[V],
                &[0, N, V],
                &[],
            ] {
                let (tokens, logits) = of(wrong, None, sampler, guidance, steps);
                let what = format!("{wrong:?}, {sampler:?}, guidance {guidance}, {steps} steps");
                assert!(tokens.is_err(), "{what}: {tokens:?}");
                assert!(logits.is_err(), "{what}: {} logits", logits.unwrap().len());
            }
            // A layer for another vocabulary, and what is no layer.
            for wrong in [&[4, V + 1][..], &[4, V - 1], &[V]] {
                let (tokens, logits) = of(&right, Some(wrong), sampler, guidance, steps);
                assert!(tokens.is_err() && logits.is_err(), "{wrong:?}, {sampler:?}: {tokens:?}");
            }
        }
    }
}

/// Looking at the steps changes nothing.
#[test]
fn a_trace_tells_of_the_same_run() {
    for sampler in SAMPLERS {
        for steps in [1, 6] {
            let plain = built_in(sampler, steps, None);
            assert!(plain.steps.is_empty());
            for top in [0, 2, V] {
                let traced = built_in(sampler, steps, Some(top));
                assert_eq!((&traced.tokens, &traced.log_probs), (&plain.tokens, &plain.log_probs), "{sampler:?}");
                assert_eq!(traced.steps.len(), steps);
                let last = traced.steps.last().unwrap();
                assert_eq!((&last.tokens, &last.log_probs), (&plain.tokens, &plain.log_probs), "{sampler:?}");
                assert!(traced.steps.iter().all(|s| s.top.len() == top * plain.tokens.len()));
            }
        }
    }
    let process = process();
    let oracle = Oracle(process.clone());
    let e = sample_tokens(&oracle, &process, &config(2), (&EXAMPLES, N), Some(V + 1)).unwrap_err();
    assert!(e.to_string().contains("at most 5"), "{e}");
}

/// A curve of one's own from the first training step to the samples: two sequences learnt by heart come out again.
#[test]
fn an_own_schedule_trains_and_samples() {
    const STEPS: u32 = 250;
    let sequences = [[1, 4, 2, 5], [3, 0, 5, 2]];
    let sizes = Sizes { vocab: 6, tokens: 4 };
    let process = Process::new(Schedule::from_alpha_bar(|u| (1.0 - u).powi(3), 200).unwrap());
    let mut c = ModelConfig::preset("text").unwrap();
    c.denoiser = DenoiserConfig::new(32, 2, 2);
    let mut model = Model::new(&c, sizes, &CPU, DType::F32, 1).unwrap();
    let mut adam = AdamW::new(&model.params, AdamConfig { weight_decay: 0.0, ..AdamConfig::default() }).unwrap();
    let loss_config = LossConfig { smoothing: 0.0, ..LossConfig::default() };
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let rows = 32;
        let tokens = (0..rows).flat_map(|r| sequences[r % 2]).collect();
        let times = (0..rows as u32).map(|r| 1 + (r * 61 + step * 37) % 200).collect();
        let noise = Noise::new(&CPU, 3, 1, step).unwrap();
        let tape = Tape::new();
        let loss = {
            let p = Pass::inference(&tape, &model.params, DType::F32);
            let loss = TddLoss { process: &process, config: &loss_config, noise: NoiseOf::Drawn(&noise) };
            loss.of(&p, &model, None, &Rows::new(tokens, times)).unwrap()
        };
        losses.push(loss.value().item().unwrap());
        tape.backward(&loss, Some(&mut model.params)).unwrap();
        adam.step(&mut model.params, 5e-3).unwrap();
    }
    let mean = |x: &[f32]| x.iter().sum::<f32>() / x.len() as f32;
    let (first, last) = (mean(&losses[..5]), mean(&losses[STEPS as usize - 50..]));
    assert!(last < 0.3 * first, "{first} to {last}");

    let trained = Trained::bare(model, process);
    for sampler in SAMPLERS {
        let config = SampleConfig { sampler, ..config(10) };
        let got = TokenSampler::new(&trained, &config).unwrap().generate(&Request::new(None, &EXAMPLES)).unwrap();
        let placed = |(i, t): (usize, &u32)| sequences.iter().any(|s| s[i % 4] == *t);
        let wrong = got.tokens.iter().enumerate().filter(|x| !placed(*x)).count();
        let whole = sequences.map(|s| got.tokens.chunks_exact(4).filter(|text| **text == s).count());
        println!("{sampler:?}: {whole:?} whole ones of 24, {wrong} tokens in a wrong place");
        assert!(wrong <= 1, "{sampler:?}: {:?}", got.tokens);
        // Places that know nothing of each other would make whole ones in an eighth of all: half of 24 once in a million runs.
        assert!(whole[0] + whole[1] >= 12, "{sampler:?}: {whole:?} of {:?}", got.tokens);
        assert!(whole[0] > 0 && whole[1] > 0, "{sampler:?}: {whole:?}");
    }
}

/// Steps at times that the process has, to 0 at last; updates of finite numbers.
#[test]
fn impossible_steps_and_updates_of_a_sampler_are_refused() {
    struct At(Vec<Times>);
    impl Sampler for At {
        fn step(&self, state: &mut State, p: &Prediction, at: Times) -> Result<()> {
            assert_eq!(p.shape(), [EXAMPLES.len(), N, V]);
            state.renoise(&p.draw_at(0.3)?, at.s)
        }

        fn steps(&self, _: Vec<Times>) -> Vec<Times> {
            self.0.clone()
        }
    }
    let steps = |all: &[(usize, usize)]| by(&At(all.iter().map(|&(t, s)| Times { t, s }).collect()), 3);
    // There and back is fine.
    assert!(steps(&[(1000, 400), (400, 700), (700, 200), (200, 0)]).is_ok());
    for wrong in [&[][..], &[(1000, 500)], &[(1000, 0), (500, 0)], &[(0, 0)], &[(1001, 0)], &[(9, 9999), (9, 0)]] {
        assert!(steps(wrong).is_err(), "{wrong:?}");
    }
    let nan = Update { clean: f64::NAN, keep: 0.0, noise: 1.0 };
    let e = by(&Step(|state: &mut State, p: &Prediction, _| state.update(&p.argmax()?, nan.into())), 3);
    assert!(e.unwrap_err().to_string().contains("finite"));
    let cold = Step(|state: &mut State, p: &Prediction, at: Times| state.renoise(&p.draw_at(0.0)?, at.s));
    assert!(by(&cold, 3).unwrap_err().to_string().contains("temperature"));
}
