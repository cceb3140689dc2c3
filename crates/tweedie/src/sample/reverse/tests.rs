//! Which tokens a denoiser is shown as known, and what it then reads.

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
    knows: bool,
    sure: Vec<[f32; N]>,
    seen: RefCell<Vec<Shown>>,
}

impl Notes {
    fn new(knows: bool, sure: Vec<[f32; N]>) -> Notes {
        Notes { knows, sure, seen: RefCell::default() }
    }
}

impl Denoise for Notes {
    fn vocab(&self) -> usize {
        K
    }

    fn knows(&self) -> bool {
        self.knows
    }

    fn logits(&self, u: &Tensor, at: At) -> Result<Tensor> {
        let mut seen = self.seen.borrow_mut();
        let sure = self.sure[seen.len() % self.sure.len()];
        let known = at.known.map(|k| k.to_vec_u32()).transpose()?;
        seen.push((at.t, known, u.to_vec()?));
        let logit = |i: usize| if i % K == i / K % N % K { sure[i / K % N] } else { 0.0 };
        Ok(Tensor::from_f32(&CPU, u.shape(), (0..u.len()).map(logit).collect())?)
    }
}

fn process() -> Process {
    Process::new(Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap()).with_lambda(LAMBDA).unwrap()
}

fn shown(notes: Notes, config: &SampleConfig, given: Option<&[Option<u32>]>) -> Result<Vec<Shown>> {
    let examples: Vec<u32> = (0..given.map_or(2, |g| g.len() / N) as u32).collect();
    let limits = Limits::new(&CPU, (examples.len(), N, K), given, None)?;
    let addresses = Addresses::new(&CPU, &examples, 3)?;
    let reverse = Reverse {
        denoiser: &notes,
        projection: &Projection::of(&notes, NoiseKind::Dense)?,
        process: &process(),
        sampler: &*sampler_of(config, notes.knows),
        config,
        addresses: &addresses,
        tokens: N,
        limits: &limits,
        trace: None,
        choose_last: true,
    };
    reverse.run(|_, _| Ok(()))?;
    Ok(notes.seen.into_inner())
}

/// Whether `y` is `token`'s one-hot vector at the first time: noise of that size beyond six deviations is a mistake.
fn is_known(y: &[f32], token: usize) -> bool {
    let (signal, spread) = (process().signal(Process::FIRST), process().spread(Process::FIRST));
    assert!(spread < 0.01);
    y.iter().enumerate().all(|(k, y)| (*y as f64 - if k == token { signal } else { 0.0 }).abs() < 6.0 * spread)
}

const SAMPLERS: [SamplerKind; 5] =
    [SamplerKind::Argmax, SamplerKind::Multinomial, SamplerKind::Softmax, SamplerKind::Ddim, SamplerKind::Ancestral];

#[test]
fn given_tokens_are_shown_clean_at_every_step() {
    let given: Vec<Option<u32>> = (0..2 * N).map(|i| (i % 4 == 1).then_some((3 * i % K) as u32)).collect();
    let flags: Vec<u32> = given.iter().map(|g| g.is_some() as u32).collect();
    for (sampler, start) in SAMPLERS.into_iter().flat_map(|s| [(s, Start::Noise), (s, Start::Zeros)]) {
        let config = SampleConfig { sampler, start, steps: 4, ..SampleConfig::default() };
        let of = |knows, given| shown(Notes::new(knows, vec![[1.0; N]]), &config, given).unwrap();
        let (free, plain, knowing) = (of(true, None), of(false, Some(&given[..])), of(true, Some(&given[..])));
        assert_eq!((plain.len(), knowing.len()), (4, 4));
        // A model that does not know, and one with nothing to know, are shown one time.
        assert!(free.iter().chain(&plain).all(|s| s.1.is_none()), "{sampler:?}");
        assert_eq!(free[0].2, plain[0].2, "{sampler:?}: given tokens start as noise where they cannot be known");
        for (step, (t, known, y)) in knowing.iter().enumerate() {
            assert_eq!((*t, known.as_ref()), (plain[step].0, Some(&flags)), "{sampler:?}");
            for (i, y) in y.chunks_exact(K).enumerate() {
                match given[i] {
                    Some(g) => assert!(is_known(y, g as usize), "{sampler:?}, step {step}, token {i}: {y:?}"),
                    // The others are as ever: here they do not depend on what is given.
                    None => assert_eq!(y, &plain[step].2[i * K..][..K], "{sampler:?}, step {step}, token {i}"),
                }
            }
        }
    }
}

/// As many of the surest at every step, beside those that are given and do not count; settled ones stay, whatever the network
/// says of them later.
#[test]
fn the_surest_tokens_are_shown_clean() {
    let config = SampleConfig { unmask: Unmasking::Confident, guesses: 1.0, steps: 4, ..SampleConfig::default() };
    // At the second step the order is turned round: who is known already does not count any more.
    let sure =
        [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 1.0, 8.0, 2.0, 7.0, 3.0], [1.0; N]];
    let check = |seen: &[Shown], want: [Option<[u32; N]>; 4], token: &dyn Fn(usize) -> usize| {
        assert_eq!(seen.len(), 4);
        for ((t, known, y), want) in seen.iter().zip(want) {
            assert_eq!(known.as_ref().map(|k| &k[..N]), want.as_ref().map(|w| &w[..]), "at {t}");
            let Some(known) = known else { continue };
            for (i, y) in y.chunks_exact(K).enumerate() {
                assert_eq!(is_known(y, token(i % N)), known[i] == 1, "at {t}, token {i}: {y:?}");
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
    let given = [Some(4), None, None, None, None, Some(2)];
    let seen = shown(Notes::new(true, sure.to_vec()), &config, Some(&given)).unwrap();
    let want = [[1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1], [1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 1, 1]].map(Some);
    check(&seen, want, &|i| given[i].map_or(own(i), |g| g as usize));
}

/// Open tokens are at the time that `guesses` says: pure noise with 0, which is the noise of a walk with no signal.
#[test]
fn open_tokens_hold_noise_or_guesses() {
    let sure = vec![[6.0, 5.0, 4.0, 3.0, 2.0, 1.0]];
    let of = |guesses, unmask| {
        let config = SampleConfig { unmask, guesses, steps: 4, ..SampleConfig::default() };
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
        let Some(known) = &a.1 else { panic!("nothing known at {}", a.0) };
        assert_eq!(a.1, z.1);
        for (i, known) in known.iter().enumerate().filter(|k| *k.1 == 0) {
            assert_eq!(p.2[i * K..][..K], a.2[i * K..][..K], "open token {i} at {}, {known}", a.0);
            for k in i * K..(i + 1) * K {
                let signal = if k % K == i % N % K { LAMBDA } else { 0.0 };
                let noise = (p.2[k] as f64 - signal * s.signal(p.0)) / s.spread(p.0);
                let want = signal * s.signal(1000) + noise * s.spread(1000);
                assert!((z.2[k] as f64 - want).abs() < 1e-4, "{} {want}", z.2[k]);
            }
        }
    }
}

/// More steps than tokens would find nothing to do; and the settings mean nothing to a model that does not know, nor to samplers
/// without a token.
#[test]
fn settling_takes_a_step_for_each_token_at_most() {
    let config = SampleConfig { unmask: Unmasking::Confident, steps: 50, ..SampleConfig::default() };
    let of = |knows, config: &SampleConfig| shown(Notes::new(knows, vec![[1.0; N]]), config, None).unwrap();
    assert_eq!(of(true, &config).len(), N);
    for (knows, sampler) in [(false, SamplerKind::Argmax), (true, SamplerKind::Softmax), (true, SamplerKind::Ancestral)]
    {
        let config = SampleConfig { sampler, ..config.clone() };
        let plain = SampleConfig { unmask: Unmasking::Random, ..config.clone() };
        assert_eq!(of(knows, &config), of(false, &plain), "{sampler:?}");
    }
}
