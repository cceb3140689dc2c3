//! Which tokens a denoiser is shown clean, and what it then reads.

use std::cell::RefCell;

use tweedie_engine::Device;

use super::super::sampler::sampler_of;
use super::*;
use crate::config::{NoiseKind, SamplerKind, Start, Unmasking};
use crate::schedule::{Schedule, ScheduleKind};

const CPU: Device = Device::Cpu;
const K: usize = 5;
const N: usize = 6;
const LAMBDA: f64 = 0.9;

/// What a step was shown: time, flags (none: no token has a time of its own), y_t.
type Shown = (usize, Option<Vec<u32>>, Vec<f32>);

/// Reads y_t itself and takes notes. Token n is class n mod K, and its logit is `sure[step][n]`.
struct Notes {
    per_token_time: bool,
    sure: Vec<[f32; N]>,
    seen: RefCell<Vec<Shown>>,
}

impl Notes {
    fn new(per_token_time: bool, sure: Vec<[f32; N]>) -> Notes {
        Notes { per_token_time, sure, seen: RefCell::default() }
    }
}

impl Denoise for Notes {
    fn vocab(&self) -> usize {
        K
    }

    fn per_token_time(&self) -> bool {
        self.per_token_time
    }

    fn logits(&self, u: &Tensor, at: At) -> Result<Tensor> {
        let mut seen = self.seen.borrow_mut();
        let sure = self.sure[seen.len() % self.sure.len()];
        let clean = at.tokens.map(|own| own.which.to_vec_u32()).transpose()?;
        assert!(at.tokens.is_none_or(|own| own.times == [Process::FIRST]));
        seen.push((at.t, clean, u.to_vec()?));
        let logit = |i: usize| if i % K == i / K % N % K { sure[i / K % N] } else { 0.0 };
        Ok(Tensor::from_f32(&CPU, u.shape(), (0..u.len()).map(logit).collect())?)
    }
}

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap()).with_lambda(LAMBDA).unwrap()
}

fn shown(notes: Notes, config: &SampleConfig, fixed: Option<&[Option<u32>]>) -> Result<Vec<Shown>> {
    let examples: Vec<u32> = (0..fixed.map_or(2, |g| g.len() / N) as u32).collect();
    let limits = Limits::new(&CPU, (examples.len(), N, K), fixed, None)?;
    let addresses = Addresses::new(&CPU, &examples, 3)?;
    let reverse = Reverse {
        denoiser: &notes,
        projection: &Projection::of(&notes, NoiseKind::Dense)?,
        process: &process(),
        sampler: &*sampler_of(config, notes.per_token_time),
        config,
        addresses: &addresses,
        tokens: N,
        limits: &limits,
        trace: None,
        choose_last: true,
    };
    reverse.sample(|_, _| Ok(()))?;
    Ok(notes.seen.into_inner())
}

/// Whether `y` is `token`'s one-hot vector at the first time: noise of that size beyond six deviations is a mistake.
fn is_clean(y: &[f32], token: usize) -> bool {
    let (signal, spread) = (process().signal(Process::FIRST), process().spread(Process::FIRST));
    assert!(spread < 0.01);
    y.iter().enumerate().all(|(k, y)| (*y as f64 - if k == token { signal } else { 0.0 }).abs() < 6.0 * spread)
}

const SAMPLERS: [SamplerKind; 5] =
    [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral];

#[test]
fn fixed_tokens_are_shown_clean_at_every_step() {
    let fixed: Vec<Option<u32>> = (0..2 * N).map(|i| (i % 4 == 1).then_some((3 * i % K) as u32)).collect();
    let flags: Vec<u32> = fixed.iter().map(|g| g.is_some() as u32).collect();
    for (sampler, start) in SAMPLERS.into_iter().flat_map(|s| [(s, Start::Noise), (s, Start::Zeros)]) {
        let config = SampleConfig { sampler, start, steps: 4, ..SampleConfig::default() };
        let of = |per_token_time, fixed| shown(Notes::new(per_token_time, vec![[1.0; N]]), &config, fixed).unwrap();
        let (free, plain, with_clean) = (of(true, None), of(false, Some(&fixed[..])), of(true, Some(&fixed[..])));
        assert_eq!((plain.len(), with_clean.len()), (4, 4));
        // A model without per-token time, and one with no clean tokens, are shown one time.
        assert!(free.iter().chain(&plain).all(|s| s.1.is_none()), "{sampler:?}");
        assert_eq!(free[0].2, plain[0].2, "{sampler:?}: fixed tokens start as noise where they cannot be shown clean");
        for (step, (t, clean, y)) in with_clean.iter().enumerate() {
            assert_eq!((*t, clean.as_ref()), (plain[step].0, Some(&flags)), "{sampler:?}");
            for (i, y) in y.chunks_exact(K).enumerate() {
                match fixed[i] {
                    Some(g) => assert!(is_clean(y, g as usize), "{sampler:?}, step {step}, token {i}: {y:?}"),
                    // The others are as ever: here they do not depend on what is fixed.
                    None => assert_eq!(y, &plain[step].2[i * K..][..K], "{sampler:?}, step {step}, token {i}"),
                }
            }
        }
    }
}

/// As many of the surest at every step, beside those that are fixed and do not count; committed ones stay, whatever the network
/// says of them later.
#[test]
fn the_surest_tokens_are_shown_clean() {
    let config = SampleConfig { unmask: Unmasking::Confident, uncommitted: 1.0, steps: 4, ..SampleConfig::default() };
    // At the second step the order is turned round: what is clean already does not count any more.
    let sure =
        [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 1.0, 8.0, 2.0, 7.0, 3.0], [1.0; N]];
    let check = |seen: &[Shown], want: [Option<[u32; N]>; 4], token: &dyn Fn(usize) -> usize| {
        assert_eq!(seen.len(), 4);
        for ((t, clean, y), want) in seen.iter().zip(want) {
            assert_eq!(clean.as_ref().map(|k| &k[..N]), want.as_ref().map(|w| &w[..]), "at {t}");
            let Some(clean) = clean else { continue };
            for (i, y) in y.chunks_exact(K).enumerate() {
                assert_eq!(is_clean(y, token(i % N)), clean[i] == 1, "at {t}, token {i}: {y:?}");
            }
        }
    };
    let own = |i: usize| i % K;
    // ⌈6/4⌉ of six, ⌈4/3⌉ of four, ⌈2/2⌉ of two.
    let want = [None, Some([1, 1, 0, 0, 0, 0]), Some([1, 1, 0, 0, 1, 1]), Some([1, 1, 1, 0, 1, 1])];
    for sampler in [SamplerKind::Argmax, SamplerKind::Multinomial] {
        // Logits so large that what is drawn is the most likely one.
        let sure = if sampler == SamplerKind::Argmax { sure } else { sure.map(|s| s.map(|x| x + 20.0)) };
        let config = SampleConfig { sampler, ..config.clone() };
        check(&shown(Notes::new(true, sure.to_vec()), &config, None).unwrap(), want, &own);
    }
    let fixed = [Some(4), None, None, None, None, Some(2)];
    let seen = shown(Notes::new(true, sure.to_vec()), &config, Some(&fixed)).unwrap();
    let want = [[1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 1, 1]].map(Some);
    check(&seen, want, &|i| fixed[i].map_or(own(i), |g| g as usize));
}

/// At each step half of those that were committed before, those that the network now finds least likely, are open again and noisy, and as
/// many more are committed in return: ⌈6/4⌉ of six; ⌈4/2⌉ of four for one of two; all three for two of three. What is fixed stays.
#[test]
fn committed_tokens_are_taken_back() {
    let config = SampleConfig { unmask: Unmasking::Confident, uncommitted: 1.0, steps: 4, ..SampleConfig::default() };
    let corrects = SampleConfig { correction: 0.5, ..config.clone() };
    let sure =
        vec![[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 1.0, 8.0, 2.0, 7.0, 3.0], [1.0; N]];
    let of = |config: &SampleConfig, fixed| shown(Notes::new(true, sure.clone()), config, fixed).unwrap();
    let (got, plain) = (of(&corrects, None), of(&SampleConfig { unmask: Unmasking::Random, ..config }, None));
    // Of 0 and 1 the second step doubts 0; of 1, 4 and 5 the third doubts 1 and 5, however sure the earlier ones were.
    let want = [None, Some([1, 1, 0, 0, 0, 0]), Some([0, 1, 0, 0, 1, 1]), Some([1, 0, 1, 1, 1, 0])];
    assert_eq!(got.len(), 4);
    for (((t, clean, y), want), plain) in got.iter().zip(want).zip(&plain) {
        assert_eq!(clean.as_ref().map(|k| &k[..N]), want.as_ref().map(|w| &w[..]), "at {t}");
        for (i, clean) in clean.iter().flatten().enumerate() {
            let (y, plain) = (&y[i * K..][..K], &plain.2[i * K..][..K]);
            match clean {
                1 => assert!(is_clean(y, i % N % K), "at {t}, token {i}: {y:?}"),
                // One that was freed holds what it was, with the noise of the step.
                _ => assert_eq!(y, plain, "at {t}, token {i}"),
            }
        }
    }
    let fixed = [Some(4), None, None, None, None, Some(2)];
    let most = SampleConfig { correction: 0.99, steps: 20, ..corrects };
    let seen = of(&most, Some(&fixed));
    let flags: Vec<&Vec<u32>> = seen.iter().filter_map(|s| s.1.as_ref()).collect();
    assert_eq!((seen.len(), flags.len()), (20, 20), "there is something to do in more steps than tokens");
    assert!(flags.iter().all(|f| f[0] == 1 && f[5] == 1));
    let freed = flags.windows(2).filter(|f| (1..5).any(|i| f[0][i] > f[1][i])).count();
    assert!(freed > 10, "tokens were taken back {freed} times");
}

/// Open tokens are at the time that `uncommitted` says: pure noise with 0, which is the noise of a reverse process with no signal.
#[test]
fn open_tokens_hold_noise_or_predictions() {
    let sure = vec![[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]];
    let of = |uncommitted, unmask| {
        let config = SampleConfig { unmask, uncommitted, steps: 4, ..SampleConfig::default() };
        shown(Notes::new(true, sure.clone()), &config, None).unwrap()
    };
    let times = |seen: &[Shown]| seen.iter().map(|s| s.0).collect::<Vec<_>>();
    let (plain, all) = (of(0.0, Unmasking::Random), of(1.0, Unmasking::Confident));
    let (half, none) = (of(0.5, Unmasking::Confident), of(0.0, Unmasking::Confident));
    assert_eq!(times(&plain), [1000, 750, 500, 250]);
    assert_eq!(times(&all), times(&plain));
    assert_eq!(times(&half), [1000, 750, 750, 500]);
    assert_eq!(times(&none), [1000; 4]);
    let s = process().schedule().clone();
    for ((p, a), z) in plain.iter().zip(&all).zip(&none).skip(1) {
        let Some(clean) = &a.1 else { panic!("no clean token at {}", a.0) };
        assert_eq!(a.1, z.1);
        for (i, clean) in clean.iter().enumerate().filter(|k| *k.1 == 0) {
            assert_eq!(p.2[i * K..][..K], a.2[i * K..][..K], "open token {i} at {}, {clean}", a.0);
            for k in i * K..(i + 1) * K {
                let signal = if k % K == i % N % K { LAMBDA } else { 0.0 };
                let noise = (p.2[k] as f64 - signal * s.signal(p.0)) / s.spread(p.0);
                let want = signal * s.signal(1000) + noise * s.spread(1000);
                assert!((z.2[k] as f64 - want).abs() < 1e-4, "{} {want}", z.2[k]);
            }
        }
    }
}

/// More steps than tokens would find nothing to do; and the settings mean nothing to a model without per-token time, nor to samplers
/// without a token.
#[test]
fn committing_takes_a_step_for_each_token_at_most() {
    let config = SampleConfig { unmask: Unmasking::Confident, steps: 50, ..SampleConfig::default() };
    let of = |per_token_time, config: &SampleConfig| {
        shown(Notes::new(per_token_time, vec![[1.0; N]]), config, None).unwrap()
    };
    assert_eq!(of(true, &config).len(), N);
    for (per_token_time, sampler) in
        [(false, SamplerKind::Argmax), (true, SamplerKind::Softmax), (true, SamplerKind::Ancestral)]
    {
        let config = SampleConfig { sampler, ..config.clone() };
        let plain = SampleConfig { unmask: Unmasking::Random, ..config.clone() };
        assert_eq!(of(per_token_time, &config), of(false, &plain), "{sampler:?}");
    }
}
