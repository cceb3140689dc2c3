//! What a loss is about: noisy copies of examples, with their times and whatever is special about their tokens.

use tweedie_engine::ops::noisy_input::{Eps, NoisyTokens};
use tweedie_engine::{Device, Noise, Tensor, rng};

use crate::error::Result;
use crate::process::Process;

/// One noisy copy per row; rows of one image follow each other.
///
/// ```
/// use tweedie::loss::{Rows, token_weights};
///
/// let rows = Rows::new(vec![3, 1, 0, 4, 0, 0], vec![1, 700]); // three tokens each, at times 1 and 700
/// let rows = Rows { weights: token_weights(&rows.tokens, &[0], 0.1), ..rows };
/// let second = rows.part(1..2, 3, 10);
/// assert_eq!((second.tokens, second.weights), (vec![4, 0, 0], Some(vec![1.0, 0.1, 0.1])));
/// ```
#[derive(Clone, Debug)]
pub struct Rows {
    /// Clean tokens, \[rows·N\].
    pub tokens: Vec<u32>,
    /// Timestep of each row, 1..=T.
    pub t: Vec<u32>,
    /// Rows that lose their condition.
    pub drop: Vec<u32>,
    /// Ids that address each row's noise.
    pub examples: Vec<u32>,
    /// Targets of the cross-entropy where they are not the clean tokens: a distribution per token, \[rows·N·V\].
    pub targets: Option<Vec<f32>>,
    /// With `loss.smoothing_in = "prior"`, of mixed images: the chance of each class before anything is seen, smoothed, \[rows·N·V\]. `None`:
    /// the clean token, smoothed.
    pub prior: Option<Vec<f32>>,
    /// With `loss.direct`, of mixed images: what the direct path alone is trained to say, \[rows·V\]. `None`: the clean token.
    pub direct: Option<Vec<f32>>,
    /// Tokens that are shown clean, \[rows·N\]: at the first timestep, whatever that of their row. `None`: no per-token times.
    pub clean: Option<Vec<bool>>,
    /// Timestep of each token, \[rows·N\], where they start one after another (`train.stagger`); that of its row then says nothing.
    pub times: Option<Vec<u32>>,
    /// A weight per clean token, \[rows·N\], such as less for padding ([`token_weights`]); `None`: 1 for all.
    pub weights: Option<Vec<f32>>,
    /// Of a part of a batch: tokens over their weight in the whole batch ([`TddLoss::normaliser`](super::TddLoss::normaliser), [`MddLoss::normaliser`](super::MddLoss::normaliser)), so that the mean
    /// over parts is the loss of the batch. `None`: these rows are all there is.
    pub normaliser: Option<f64>,
}

impl Rows {
    /// Rows of clean tokens at times `t`, with nothing else special about them: their noise is addressed by their number.
    pub fn new(tokens: Vec<u32>, t: Vec<u32>) -> Rows {
        let rows = t.len();
        Rows {
            tokens,
            t,
            drop: vec![0; rows],
            examples: (0..rows as u32).collect(),
            targets: None,
            prior: None,
            direct: None,
            clean: None,
            times: None,
            weights: None,
            normaliser: None,
        }
    }

    /// y_t of `n` tokens a row over `vocab` classes; where tokens may be clean, each at its own time.
    pub fn corrupt(
        &self,
        process: &Process,
        device: &Device,
        (n, vocab): (usize, usize),
        noise: &NoiseOf,
    ) -> Result<NoisyTokens> {
        let b = self.t.len();
        let eps = match noise {
            NoiseOf::Drawn(noise) => {
                Eps::Drawn { noise: (*noise).clone(), examples: Tensor::from_u32(device, &[b], self.examples.clone())? }
            }
            NoiseOf::Given(eps) => Eps::Given(eps.clone()),
        };
        let tokens = Tensor::from_u32(device, &[b, n], self.tokens.clone())?;
        match self.per_token() {
            true => process.corrupt(tokens, &self.token_times(n), vocab, eps),
            false => process.corrupt(tokens, &self.t, vocab, eps),
        }
    }

    /// Some of the rows, of `n` tokens over `vocab` classes; of a range that reaches beyond them, those that there are.
    pub fn part(&self, range: std::ops::Range<usize>, n: usize, vocab: usize) -> Rows {
        fn of<T: Copy>(all: &[T], rows: &std::ops::Range<usize>, width: usize) -> Vec<T> {
            let at = |row: usize| row.saturating_mul(width).min(all.len());
            all.get(at(rows.start)..at(rows.end)).unwrap_or_default().to_vec()
        }
        Rows {
            tokens: of(&self.tokens, &range, n),
            t: of(&self.t, &range, 1),
            drop: of(&self.drop, &range, 1),
            examples: of(&self.examples, &range, 1),
            targets: self.targets.as_ref().map(|q| of(q, &range, n.saturating_mul(vocab))),
            prior: self.prior.as_ref().map(|q| of(q, &range, n.saturating_mul(vocab))),
            direct: self.direct.as_ref().map(|q| of(q, &range, vocab)),
            clean: self.clean.as_ref().map(|k| of(k, &range, n)),
            times: self.times.as_ref().map(|t| of(t, &range, n)),
            weights: self.weights.as_ref().map(|w| of(w, &range, n)),
            normaliser: self.normaliser,
        }
    }

    /// The weight of token `i`. Clean tokens tell of others; there is nothing to predict about themselves.
    pub(super) fn open_weight(&self, i: usize) -> f32 {
        let clean = self.clean.as_ref().is_some_and(|k| k.get(i).copied().unwrap_or(false));
        if clean { 0.0 } else { self.weights.as_ref().map_or(1.0, |w| w.get(i).copied().unwrap_or(0.0)) }
    }

    /// Whether tokens have times of their own.
    pub(super) fn per_token(&self) -> bool {
        self.clean.is_some() || self.times.is_some()
    }

    /// The timestep of each of `n` tokens of each row, \[rows·N\].
    pub(super) fn token_times(&self, n: usize) -> Vec<u32> {
        if let Some(times) = &self.times {
            return times.clone();
        }
        let clean = |i: usize| self.clean.as_ref().is_some_and(|k| k.get(i) == Some(&true));
        (0..self.t.len() * n).map(|i| if clean(i) { Process::FIRST as u32 } else { self.t[i / n] }).collect()
    }
}

/// Where the noise of a batch comes from.
pub enum NoiseOf<'a> {
    /// Drawn on the device.
    Drawn(&'a Noise),
    /// Given, \[rows, N, V\].
    Given(Tensor),
}

/// Weights of clean tokens for a loss over sequences: `pad_weight` for the ids in `pads`, 1 for the others. `None` if that is
/// 1 for all.
pub fn token_weights(tokens: &[u32], pads: &[u32], pad_weight: f32) -> Option<Vec<f32>> {
    let weight = |t: &u32| if pads.contains(t) { pad_weight } else { 1.0 };
    (pad_weight != 1.0 && !pads.is_empty()).then(|| tokens.iter().map(weight).collect())
}

/// Stream of the moments at which tokens start, and of those in between the times of a row.
const STAGGER: u32 = 0x57a6;

/// The time of each token of `rows`, \[rows·N\], on a path `stagger` times as long as a process of `steps` steps, along which they start one
/// after another; a pure function of seed, training step, row and place.
pub fn draw_staggered_times(rows: &Rows, n: usize, (steps, stagger): (usize, usize), seed: u64, step: u32) -> Vec<u32> {
    let key = [seed as u32, (seed >> 32) as u32];
    let uniform =
        |example: u32, place: u32| rng::uniform_of(rng::philox([place, example, step, STAGGER], key)[0]) as f64;
    let of = |(example, t): (&u32, &u32)| {
        // The row's time, of `steps` times, as a moment of the path.
        let within = ((uniform(*example, u32::MAX) * stagger as f64) as usize).min(stagger.saturating_sub(1));
        let (example, moment) = (*example, (*t as usize).saturating_sub(1) * stagger + within + 1);
        let begin = move |place| start_of(uniform(example, place), (steps, stagger));
        (0..n as u32).map(move |place| staggered(moment, begin(place), steps))
    };
    rows.examples.iter().zip(&rows.t).flat_map(of).collect()
}

/// A path of `stagger`·T moments goes from the last of them, where all tokens are pure noise, to the first, where all are clean, and each token
/// has T = `steps` moments of its own on it: the moment before them, 0 to (`stagger` − 1)·T, for `u` uniform in \[0, 1). With `stagger` 1 all have
/// one time; the larger it is, the nearer are they to coming to light one by one.
pub(crate) fn start_of(u: f64, (steps, stagger): (usize, usize)) -> usize {
    (u * (stagger.saturating_sub(1) * steps + 1) as f64) as usize
}

/// The time at `moment` of a token whose own moments come after `start`.
pub(crate) fn staggered(moment: usize, start: usize, steps: usize) -> u32 {
    moment.saturating_sub(start).clamp(1, steps.max(1)) as u32
}

/// Stream of the clean tokens.
const CLEAN: u32 = 0x6b17;

/// Which tokens of `rows` are clean, \[rows·N\]: none of a row, or with chance `share` each with one and the same chance that is
/// uniform over rows; a pure function of seed, training step, row and place.
pub fn draw_clean_tokens(rows: &Rows, n: usize, share: f32, seed: u64, step: u32) -> Vec<bool> {
    let key = [seed as u32, (seed >> 32) as u32];
    let words = |example: u32, place: u32| rng::philox([place, example, step, CLEAN], key);
    let of = |example: u32| {
        let row = words(example, u32::MAX);
        let chance = if rng::uniform_of(row[0]) < share { rng::uniform_of(row[1]) } else { 0.0 };
        (0..n as u32).map(move |place| rng::uniform_of(words(example, place)[0]) < chance)
    };
    rows.examples.iter().flat_map(|e| of(*e)).collect()
}
