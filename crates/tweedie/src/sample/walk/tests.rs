//! Which tokens a denoiser is shown as known, and what it then reads.

use std::cell::RefCell;

use super::*;
use crate::schedule::ScheduleKind;

const CPU: Device = Device::Cpu;
const K: usize = 5;
const N: usize = 6;
const LAMBDA: f64 = 0.9;

/// What a step was shown: time, flags (none: no token has a time of its own), y_t.
type Shown = (usize, Option<Vec<u32>>, Vec<f32>);

/// Reads y_t itself and takes notes. Token n is class n mod K, and its logit is `sure[step][n]`.
struct Notes {
    identity: Tensor,
    knows: bool,
    sure: Vec<[f32; N]>,
    seen: RefCell<Vec<Shown>>,
}

impl Notes {
    fn new(knows: bool, sure: Vec<[f32; N]>) -> Notes {
        let ones = (0..K * K).map(|i| if i % (K + 1) == 0 { 1.0 } else { 0.0 }).collect();
        Notes { identity: Tensor::from_f32(&CPU, &[K, K], ones).unwrap(), knows, sure, seen: RefCell::default() }
    }
}

impl Denoise for Notes {
    fn weight(&self) -> Result<&Tensor> {
        Ok(&self.identity)
    }

    fn knows(&self) -> bool {
        self.knows
    }

    fn logits(&self, u: &Tensor, at: At, _: bool) -> Result<Tensor> {
        let mut seen = self.seen.borrow_mut();
        let sure = self.sure[seen.len() % self.sure.len()];
        let known = at.known.map(|k| k.to_vec_u32()).transpose()?;
        seen.push((at.t, known, u.to_vec()?));
        let logit = |i: usize| if i % K == i / K % N % K { sure[i / K % N] } else { 0.0 };
        Ok(Tensor::from_f32(&CPU, u.shape(), (0..u.len()).map(logit).collect())?)
    }
}

fn schedule() -> Schedule {
    Schedule::new(ScheduleKind::Cosine, 1000, K).unwrap()
}

fn shown(notes: Notes, config: &SampleConfig, given: Option<&[Option<u32>]>) -> Result<Vec<Shown>> {
    let examples: Vec<u32> = (0..given.map_or(2, |g| g.len() / N) as u32).collect();
    let limits = Limits::new(&CPU, (examples.len(), N, K), given, None)?;
    let addresses = Addresses::new(&CPU, &examples, 3)?;
    let task =
        Task { addresses: &addresses, tokens: N, lambda: LAMBDA, limits: &limits, trace: None, choose_last: true };
    let projection = Projection::new(&notes.identity, crate::config::NoiseKind::Dense)?;
    walk(&notes, &projection, &schedule(), config, &task, |_| Ok(()))?;
    Ok(notes.seen.into_inner())
}

/// Whether `y` is `token`'s one-hot vector at the first time: noise of that size beyond six deviations is a mistake.
fn is_known(y: &[f32], token: usize) -> bool {
    let (signal, spread) = (LAMBDA * schedule().signal(FIRST), schedule().spread(FIRST));
    assert!(spread < 0.01);
    y.iter().enumerate().all(|(k, y)| (*y as f64 - if k == token { signal } else { 0.0 }).abs() < 6.0 * spread)
}

const SAMPLERS: [Sampler; 5] =
    [Sampler::Argmax, Sampler::Multinomial, Sampler::Softmax, Sampler::Ddim, Sampler::Ancestral];

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

/// More of the surest at every step, chosen anew each time, beside those that are given and do not count.
#[test]
fn the_surest_tokens_are_shown_clean() {
    let config = SampleConfig { sampler: Sampler::Confident, steps: 4, ..SampleConfig::default() };
    // At the second step the order is turned round: who was known before is not any more.
    let sure =
        [[6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [9.0, 1.0, 8.0, 2.0, 7.0, 3.0], [1.0; N]];
    let seen = shown(Notes::new(true, sure.to_vec()), &config, None).unwrap();
    // ⌈6·i/4⌉ of them after step i.
    let want = [None, Some([1, 1, 0, 0, 0, 0]), Some([0, 0, 0, 1, 1, 1]), Some([1, 0, 1, 1, 1, 1])];
    for ((t, known, y), want) in seen.iter().zip(want) {
        assert_eq!(known.as_ref().map(|k| &k[..N]), want.as_ref().map(|w| &w[..]), "at {t}");
        let Some(known) = known else { continue };
        for (i, y) in y.chunks_exact(K).enumerate() {
            assert_eq!(is_known(y, i % N % K), known[i] == 1, "at {t}, token {i}: {y:?}");
        }
    }
    assert_eq!(seen.len(), 4);
    let given = [Some(4), None, None, None, None, Some(2)];
    let seen = shown(Notes::new(true, sure.to_vec()), &config, Some(&given)).unwrap();
    let want = [[1, 0, 0, 0, 0, 1], [1, 1, 0, 0, 0, 1], [1, 0, 0, 1, 1, 1], [1, 0, 1, 1, 1, 1]];
    for ((t, known, y), want) in seen.iter().zip(want) {
        assert_eq!(known.as_deref(), Some(&want[..]), "at {t}");
        assert!(is_known(&y[..K], 4) && is_known(&y[5 * K..], 2), "at {t}");
    }
}

#[test]
fn a_model_that_does_not_know_is_refused() {
    let config = SampleConfig { sampler: Sampler::Confident, ..SampleConfig::default() };
    let e = shown(Notes::new(false, vec![[1.0; N]]), &config, None).unwrap_err().to_string();
    assert!(e.contains("train.known"), "{e}");
}
