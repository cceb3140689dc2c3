//! Bounds along the paths of texts: the masked one, staggered ones, and the deterministic flow.

use tweedie::bound::{
    BoundPath, FlowBound, MddBound, Predict, RevealBound, Score, StaggeredBound, TddBound, TokenBatch,
};
use tweedie::model::Input;
use tweedie::sample::{At, Denoise, draw};
use tweedie::{Process, Result, Schedule, ScheduleKind};
use tweedie_engine::{DType, Device, Tensor};

use crate::{entropy, score, uniform};

/// Three tokens that depend on each other, p(a, b, c) over two classes each, with the exact posterior in the network's place: whatever the
/// times of the tokens are, or whichever are masked.
struct Triples(Process);

const TRIPLES: [f64; 8] = [0.40, 0.02, 0.03, 0.05, 0.04, 0.02, 0.04, 0.40];

/// Bit i of a triple.
fn bit(triple: usize, i: usize) -> u32 {
    (triple >> i) as u32 & 1
}

impl Triples {
    /// Of token i, where `seen` has ln p of what is seen of token i, were it k.
    fn posterior(i: usize, seen: &dyn Fn(usize, u32) -> f64) -> [f64; 2] {
        let first = i / 3 * 3;
        let l = |t: usize| TRIPLES[t].ln() + (0..3).map(|j| seen(first + j, bit(t, j))).sum::<f64>();
        let most = (0..8).map(l).fold(f64::MIN, f64::max);
        let mut p = [1e-300; 2];
        (0..8).for_each(|t| p[bit(t, i % 3) as usize] += (l(t) - most).exp());
        let sum = p[0] + p[1];
        p.map(|p| p / sum)
    }

    /// −Σ p ln p of the tokens `of`, a bit each.
    fn entropy_of(of: usize) -> f64 {
        let mut sums = [0.0; 8];
        TRIPLES.iter().enumerate().for_each(|(t, p)| sums[t & of] += p);
        entropy(&sums)
    }

    /// The mean over orders of Σ over groups of Σ_i H(token i | the groups before): what the best network of independent tokens can reach.
    fn bound(group: usize) -> f64 {
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let of = |order: &[usize; 3]| {
            let mut seen = 0;
            let mut sum = 0.0;
            for group in order.chunks(group) {
                sum += group.iter().map(|i| Self::entropy_of(seen | 1 << i) - Self::entropy_of(seen)).sum::<f64>();
                seen |= group.iter().map(|i| 1 << i).sum::<usize>();
            }
            sum
        };
        orders.iter().map(of).sum::<f64>() / 6.0
    }
}

impl Predict for Triples {
    fn scores(&self, input: &Input, t: &[u32], clean: &Tensor) -> Result<Vec<Score>> {
        let clean = clean.to_vec_u32()?;
        // ln p of what is seen of token i, were it k.
        let seen: Box<dyn Fn(usize, u32) -> f64> = match input {
            Input::Noisy(noisy) => {
                let (y, each) = (noisy.vectors(DType::F32)?.to_vec()?, clean.len() / t.len());
                let times = t.to_vec();
                Box::new(move |i, k| self.0.evidence(times[i / each] as usize) * y[2 * i + k as usize] as f64)
            }
            Input::Tokens(ids) => {
                let ids = ids.to_vec_u32()?;
                Box::new(move |i, k| if [k, 2].contains(&ids[i]) { 0.0 } else { f64::NEG_INFINITY })
            }
            Input::Projected(_) | Input::Evidence(_) => panic!("nothing is projected here"),
        };
        Ok((0..clean.len()).map(|i| score(&Triples::posterior(i, &seen), clean[i])).collect())
    }
}

/// Along the masked path the exact posterior reaches the entropy, one token at a time; in groups it pays for what tokens of a group tell of
/// each other, to the closed form; TDD and its twin alike. The shared time, from one example to the next, is another bound.
#[test]
fn the_masked_path_reaches_the_entropy_one_token_at_a_time() {
    const EXAMPLES: u32 = 4000;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let triple = |e: &u32| draw(&TRIPLES, uniform(5, *e));
    let tokens: Vec<u32> = ids.iter().map(triple).flat_map(|t| [0, 1, 2].map(|i| bit(t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    let whole = Triples::entropy_of(0b111);
    assert!((Triples::bound(1) - whole).abs() < 1e-12);
    let alone: f64 = (0..3).map(|i| Triples::entropy_of(1 << i)).sum();
    assert!(
        (Triples::bound(3) - alone).abs() < 1e-12
            && Triples::bound(2) > whole + 0.05
            && alone > Triples::bound(2) + 0.05
    );
    for group in [1, 2, 3, 9] {
        let want = Triples::bound(group.min(3)) / 3.0;
        let tdd = RevealBound { process: &process, group, draws: 12, seed: 3 };
        let tdd = tdd.of(&predict, &Device::Cpu, &batch).unwrap();
        let mdd = MddBound { steps: 1000, draws: 12, seed: 3 };
        let mdd = mdd.of_groups(group, &predict, &Device::Cpu, &batch).unwrap();
        for (name, all) in [("TDD", &tdd), ("MDD", &mdd)] {
            let e = all.per_token();
            println!("{name}, groups of {group}: {:.4} ± {:.4}, closed form {want:.4}", e.mean, e.error);
            assert!(
                (e.mean - want).abs() < 5.0 * e.error + 1e-3,
                "{name}, {group}: {} ± {}, not {want}",
                e.mean,
                e.error
            );
            assert!(e.error < 0.01, "{name}: too noisy to say anything");
            let sum: f64 = all.tokens[..3].iter().sum();
            assert!((sum - all.nats[0]).abs() < 1e-9 * (1.0 + sum));
        }
        // The same stages: the same numbers, but for what the oracle reads into noise at T, where ᾱ is not quite 0.
        let apart = tdd.nats.iter().zip(&mdd.nats).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart < 0.05, "TDD and MDD differ by {apart}");
    }
    // What an example gets does not depend on its batch.
    let few = TokenBatch { tokens: &tokens[..30], examples: &ids[..10], ..batch };
    let bound = RevealBound { process: &process, group: 1, draws: 4, seed: 3 };
    let all = bound.of(&predict, &Device::Cpu, &batch).unwrap();
    assert_eq!(bound.of(&predict, &Device::Cpu, &few).unwrap().nats[..], all.nats[..10]);
    assert!(RevealBound { group: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
    assert!(RevealBound { draws: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
    let shared = TddBound::new(&process, 2, 32, 3).unwrap().of(&predict, &Device::Cpu, &batch).unwrap().per_token();
    assert!(shared.mean > whole / 3.0 - 5.0 * shared.error, "{} ± {}, entropy {whole}", shared.mean, shared.error);
}

/// Whichever tokens are ahead of others, and by how much, the exact posterior reaches the entropy: all paths tell the same. One moment of all
/// tokens is the shared time's.
#[test]
fn every_staggered_path_reaches_the_entropy() {
    const EXAMPLES: u32 = 4000;
    let process = Process::new(Schedule::new(ScheduleKind::VocabAware, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let tokens: Vec<u32> =
        ids.iter().map(|e| draw(&TRIPLES, uniform(5, *e))).flat_map(|t| [0, 1, 2].map(|i| bit(t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    // Of these examples: what the draws alone must reach.
    let nats: f64 = tokens.chunks(3).map(|t| -TRIPLES[(t[0] + 2 * t[1] + 4 * t[2]) as usize].ln()).sum();
    let want = nats / tokens.len() as f64;
    let bound = StaggeredBound { process: &process, stagger: 1, draws: 24, seed: 3 };
    for stagger in [1, 2, 5, 40] {
        let got = StaggeredBound { stagger, ..bound }.of(&predict, &Device::Cpu, &batch).unwrap();
        let e = got.of_these();
        println!("{stagger}: {:.4} ± {:.4}, entropy {want:.4}", e.mean, e.error);
        assert!((e.mean - want).abs() < 5.0 * e.error + 2e-3, "{stagger}: {} ± {}, not {want}", e.mean, e.error);
        assert!(e.error < 0.01, "{stagger}: too noisy to say anything");
        let sum: f64 = got.tokens[..3].iter().sum();
        assert!((sum - got.nats[0]).abs() < 1e-9 * (1.0 + sum));
    }
    // What an example gets does not depend on its batch.
    let few = TokenBatch { tokens: &tokens[..30], examples: &ids[..10], ..batch };
    let of = |batch| StaggeredBound { stagger: 3, ..bound }.of(&predict, &Device::Cpu, batch).unwrap().nats;
    assert_eq!(of(&few)[..], of(&batch)[..10]);
    assert!(StaggeredBound { draws: 0, ..bound }.of(&predict, &Device::Cpu, &few).is_err());
}

/// The exact posterior as a denoiser, at the time of each token.
impl Denoise for Triples {
    fn vocab(&self) -> usize {
        2
    }

    fn per_token_time(&self) -> bool {
        true
    }

    fn logits(&self, noisy: &Tensor, at: At) -> Result<Tensor> {
        let y = noisy.to_vec()?;
        let times: Vec<usize> = match at.tokens {
            None => vec![at.t; y.len() / 2],
            Some(own) => own
                .which
                .to_vec_u32()?
                .into_iter()
                .map(|w| if w == 0 { at.t } else { own.times[w as usize - 1] })
                .collect(),
        };
        let seen = |i: usize, k: u32| self.0.evidence(times[i]) * y[2 * i + k as usize] as f64;
        let of = |i: usize| Triples::posterior(i, &seen).map(|p| p.ln() as f32);
        Ok(Tensor::from_f32(&Device::Cpu, noisy.shape(), (0..times.len()).flat_map(of).collect())?)
    }
}

/// Along the flow each text pays for where it ends alone, so that the bound of the exact posterior comes to each text's own −ln p.
#[test]
fn the_flow_reaches_the_entropy() {
    const EXAMPLES: u32 = 400;
    let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 2).unwrap());
    let predict = Triples(process.clone());
    let ids: Vec<u32> = (0..EXAMPLES).collect();
    let texts: Vec<usize> = ids.iter().map(|e| draw(&TRIPLES, uniform(5, *e))).collect();
    let tokens: Vec<u32> = texts.iter().flat_map(|t| [0, 1, 2].map(|i| bit(*t, i))).collect();
    let batch = TokenBatch { tokens: &tokens, n: 3, vocab: 2, examples: &ids, weights: None };
    let off = |stagger: usize, steps: usize| {
        let got = FlowBound { process: &process, stagger, steps, seed: 3 }.of(&predict, &batch).unwrap();
        assert_eq!(got.tokens.len(), tokens.len());
        let off: Vec<f64> = got.nats.iter().zip(&texts).map(|(nats, t)| nats + TRIPLES[*t].ln()).collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        let spread = off.iter().map(|x| (x - mean).powi(2)).sum::<f64>().sqrt() / off.len() as f64;
        (mean, spread)
    };
    for stagger in [1, 3] {
        let (mean, error) = off(stagger, 256 * stagger);
        assert!(mean.abs() < 5.0 * error + 2e-3 && error < 5e-3, "stagger {stagger}: off by {mean:.4} ± {error:.4}");
        // What a step gets wrong can be seen: few steps are not a bound's end.
        let few = off(stagger, 16 * stagger);
        assert!(few.0.abs() > mean.abs(), "stagger {stagger}: {few:?}");
    }
    let refused = FlowBound { process: &process, stagger: 3, steps: 47, seed: 0 }.of(&predict, &batch).unwrap_err();
    assert!(refused.to_string().contains("48 or more"), "{refused}");
    let wrong = TokenBatch { vocab: 3, ..batch };
    assert!(FlowBound { process: &process, stagger: 1, steps: 16, seed: 0 }.of(&predict, &wrong).is_err());
}

#[test]
fn paths_have_names() {
    for (name, path) in [
        ("shared", BoundPath::Shared),
        ("staggered:1", BoundPath::Shared),
        ("staggered:4", BoundPath::Staggered(4)),
        ("reveal", BoundPath::Masked(1)),
        ("groups:4", BoundPath::Masked(4)),
        ("flow", BoundPath::Flow(1)),
        ("flow:4", BoundPath::Flow(4)),
    ] {
        assert_eq!(name.parse(), Ok(path));
    }
    assert_eq!((BoundPath::Shared.usual_draws(), BoundPath::Flow(4).usual_draws()), (8, 256));
    assert!(
        BoundPath::Masked(1).to_string().contains("masked path")
            && BoundPath::Masked(4).to_string().contains("4 tokens")
    );
    for name in
        ["", "groups", "groups:0", "groups:-1", "groups:99999999", "masked", "staggered:0", "staggered:1025", "flow:0"]
    {
        let e = name.parse::<BoundPath>().unwrap_err();
        assert!(e.contains("groups:N"), "{e}");
    }
}
