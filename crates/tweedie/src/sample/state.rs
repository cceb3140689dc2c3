//! What a sampler holds in its hands: the noisy vectors of a batch, and what the network says of them.

use tweedie_engine::ops::blend::{First, blend};
use tweedie_engine::ops::choose::{Banned, Choose, Chosen, FREE, How, Numbers, choose};
use tweedie_engine::ops::elementwise;
use tweedie_engine::ops::tokens::embed;
use tweedie_engine::{DType, Device, Noise, Tape, Tensor};

use super::Projection;
use super::addresses::Addresses;
use super::confident::{Committed, Confident};
use super::limits::Limits;
use crate::config::Start;
use crate::error::{Error, Result};
use crate::process::{Process, Update};

/// A small upload.
pub(super) fn scalars<const N: usize>(device: &Device, x: [f64; N]) -> Result<Tensor> {
    Ok(Tensor::from_f32(device, &[N], x.iter().map(|x| *x as f32).collect())?)
}

/// What a network says at one step, for all examples. Nothing waits for the device until a number is asked for.
pub struct Prediction<'a> {
    /// Time of the noisy vectors.
    pub t: usize,
    pub(super) logits: &'a Tensor,
    /// A weight that is still to be applied to `logits`, which are pairs then.
    pub(super) guidance: Option<f32>,
    pub(super) examples: usize,
    pub(super) vocab: usize,
    pub(super) asked: Asked<'a>,
}

/// How tokens are chosen from a prediction.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub tokens: usize,
    /// Draws of this step, and the examples that address them.
    pub words: Option<(&'a Noise, &'a Tensor)>,
    pub banned: Option<Banned<'a>>,
    /// Tokens that stay.
    pub fixed: Option<&'a Tensor>,
    /// Log-probabilities and entropies are wanted.
    pub numbers: bool,
    /// Most likely tokens to name.
    pub top: usize,
    pub last: bool,
}

impl Asked<'_> {
    /// Only logits are of interest.
    pub fn nothing() -> Asked<'static> {
        Asked { tokens: 1, words: None, banned: None, fixed: None, numbers: false, top: 0, last: true }
    }
}

impl Prediction<'_> {
    /// Guided logits, \[B·N·V\]. This waits for the device, so ask for them only where they are needed.
    pub fn logits(&self) -> Result<Vec<f32>> {
        let mut l = self.logits.to_vec()?;
        let (long, vocab) = (self.logits.width(), self.vocab);
        if long > vocab {
            l = l.chunks_exact(long).flat_map(|row| &row[..vocab]).copied().collect();
        }
        let Some(w) = self.guidance else { return Ok(l) };
        let width = l.len() / (2 * self.examples).max(1);
        let guide = |pair: &[f32]| -> Vec<f32> {
            let (c, u) = pair.split_at(width);
            u.iter().zip(c).map(|(u, c)| w.mul_add(c - u, *u)).collect()
        };
        Ok(l.chunks_exact((2 * width).max(1)).flat_map(guide).collect())
    }

    /// Examples B, tokens of each N, classes V.
    pub fn shape(&self) -> [usize; 3] {
        [self.examples, self.asked.tokens, self.vocab]
    }

    /// The most likely token of each place.
    pub fn argmax(&self) -> Result<Clean> {
        self.choose(false, false)
    }

    /// Tokens of your own, \[B·N\], with their log-probabilities; fixed ones stay what they are.
    pub fn tokens(&self, own: &[u32]) -> Result<Clean> {
        let places = self.examples * self.asked.tokens;
        if own.len() != places {
            return Err(Error::Input(format!("{} tokens for {places} places", own.len())));
        }
        if let Some(wrong) = own.iter().find(|t| **t as usize >= self.vocab) {
            return Err(Error::Input(format!("token {wrong} is not below the vocabulary {}", self.vocab)));
        }
        let kept = self.asked.fixed.map(Tensor::to_vec_u32).transpose()?;
        let of = |(i, own): (usize, &u32)| kept.as_ref().map(|k| k[i]).filter(|k| *k != FREE).unwrap_or(*own);
        let ids = own.iter().enumerate().map(of).collect();
        let ids = Tensor::from_u32(&self.logits.device(), &[places], ids)?;
        let asked = Asked { fixed: Some(&ids), ..self.asked };
        Prediction { asked, ..*self }.choose(false, false)
    }

    /// A token drawn from the distribution of each place, by noise that belongs to example and step.
    pub fn draw(&self) -> Result<Clean> {
        self.choose(true, false)
    }

    /// As [`Prediction::draw`], from logits divided by `temperature`: below 1 nearer to the most likely token.
    pub fn draw_at(&self, temperature: f32) -> Result<Clean> {
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::Input(format!("a temperature of {temperature} must be positive")));
        }
        let tape = Tape::inference();
        let scaled = elementwise::scale(&tape, &tape.constant(self.logits.clone()), 1.0 / temperature)?;
        Prediction { logits: scaled.value(), ..*self }.choose(true, false)
    }

    /// The distributions themselves (at the last step their most likely tokens).
    pub fn mean(&self) -> Result<Clean> {
        self.choose(false, true)
    }

    fn choose(&self, drawn: bool, mean: bool) -> Result<Clean> {
        let Asked { tokens, words, banned, fixed, numbers, top, last } = self.asked;
        let how = match (drawn, words) {
            (true, Some((noise, examples))) => How::Drawn { noise, examples },
            (true, None) => return Err(Error::Input("this prediction is not one to draw tokens from".into())),
            (false, _) => How::Argmax,
        };
        let weight = self.guidance.map(|w| scalars(&self.logits.device(), [w as f64])).transpose()?;
        let choice = Choose {
            tokens,
            classes: Some(self.vocab),
            guidance: weight.as_ref(),
            how,
            banned,
            fixed,
            numbers,
            probabilities: mean && !last,
            top,
        };
        Ok(Clean(choose(self.logits, &choice)?))
    }
}

/// An estimate of the clean vectors: a token for each place, or the mean of its distribution.
#[derive(Clone)]
pub struct Clean(pub(super) Chosen);

impl Clean {
    /// The tokens, \[B·N\]. This and the others below wait for the device.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        Ok(self.0.tokens.to_vec_u32()?)
    }

    /// Log-probability of each.
    pub fn log_probs(&self) -> Result<Vec<f32>> {
        Ok(self.numbers()?.log_prob.to_vec()?)
    }

    /// Entropy of the distribution of each place, in nats.
    pub fn entropies(&self) -> Result<Vec<f32>> {
        Ok(self.numbers()?.entropy.to_vec()?)
    }

    pub(super) fn ids(&self) -> &Tensor {
        &self.0.tokens
    }

    pub(super) fn numbers(&self) -> Result<&Numbers> {
        Ok(self.0.numbers()?)
    }
}

/// How y_s is made: the same for all tokens, or for each of the B·N its own.
pub enum Mix {
    /// For all.
    All(Update),
    /// For each.
    Each(Vec<Update>),
}

impl From<Update> for Mix {
    fn from(update: Update) -> Mix {
        Mix::All(update)
    }
}

/// What does not change from step to step.
pub(super) struct Batch<'a> {
    pub projection: &'a Projection,
    pub process: &'a Process,
    pub addresses: &'a Addresses,
    /// Tokens per example.
    pub tokens: usize,
    pub limits: &'a Limits,
}

/// The noisy vectors of a batch between two steps. They are held as u = W·y_t, \[B, N, d\], for the layer W that the denoiser
/// reads them through, so that a step costs the same for any vocabulary.
pub struct State<'a> {
    batch: &'a Batch<'a>,
    u: Tensor,
    /// Which tokens are shown clean, u32 \[B, N\].
    clean_flags: Option<Tensor>,
    /// Times that tokens have of their own.
    own_times: Option<Tensor>,
    per_token_time: bool,
    committed: Option<Committed>,
    /// Step `at.0` of `at.1`.
    pub(super) at: (usize, usize),
    last: bool,
    /// What the present step came to.
    pub(super) taken: Option<Clean>,
}

impl<'a> State<'a> {
    /// Pure noise, or zeros, but for fixed tokens of a denoiser with `per_token_time`.
    pub(super) fn start(batch: &'a Batch<'a>, start: Start, per_token_time: bool) -> Result<State<'a>> {
        let Batch { projection, process, addresses, tokens: n, limits } = *batch;
        let (device, weight) = (projection.device(), projection.weight());
        let (b, d) = (addresses.examples.len(), weight.shape()[0]);
        let draw = || projection.draw(&addresses.noise, &addresses.examples, n);
        let mut u = match start {
            Start::Noise => draw()?,
            Start::Zeros => Tensor::zeros(&device, &[b, n, d], DType::F32)?,
        };
        let fixed = limits.clean.as_ref().filter(|_| per_token_time);
        if let Some((flags, tokens)) = fixed {
            let open = Update { clean: 0.0, keep: 0.0, noise: if start == Start::Noise { 1.0 } else { 0.0 } };
            let by = by_row([open, process.renoise(Process::FIRST)].into_iter(), flags)?;
            let noise = if start == Start::Noise { u } else { draw()? };
            u = blend(&by, First::Columns { matrix: weight, ids: tokens }, None, Some(&noise))?.reshape(&[b, n, d])?;
        }
        let clean_flags = fixed.map(|f| f.0.clone());
        Ok(State {
            batch,
            u,
            clean_flags,
            own_times: None,
            per_token_time,
            committed: None,
            at: (0, 0),
            last: false,
            taken: None,
        })
    }

    /// Begin step `i` of `count`.
    pub(super) fn begin(&mut self, i: usize, count: usize, last: bool) {
        (self.at, self.last, self.taken) = ((i, count), last, None);
    }

    /// W·y_t, f32 \[B, N, d\]; y_t itself where the denoiser has no such layer.
    pub fn noisy(&self) -> &Tensor {
        &self.u
    }

    /// The process.
    pub fn process(&self) -> &'a Process {
        self.batch.process
    }

    /// Tokens with times of their own, as [`TokenTimes`](super::TokenTimes) has them; those are `all` where each may have another.
    pub(super) fn token_times<'t>(&self, all: &'t [usize]) -> Option<(Tensor, &'t [usize])> {
        match (&self.own_times, &self.clean_flags) {
            (Some(own), _) => Some((own.clone(), all)),
            (None, Some(flags)) => Some((flags.clone(), &[Process::FIRST])),
            _ => None,
        }
    }

    /// Tell the denoiser from the next step on that each of the B·N tokens is at a time of its own, 1 to T; it must be trained with per-token time
    /// (`train.stagger`, `train.clean_tokens`). The vectors are to be made so by [`Mix::Each`]. Fixed tokens are clean whatever is said.
    pub fn set_token_times(&mut self, times: &[usize]) -> Result<()> {
        let Batch { addresses, tokens: n, process, limits, .. } = *self.batch;
        let b = addresses.examples.len();
        if !self.per_token_time {
            let what = "this denoiser has one time for all tokens; others go with train.stagger or train.clean_tokens";
            return Err(Error::Input(what.into()));
        }
        if times.len() != b * n {
            return Err(Error::Input(format!("{} times for {} tokens", times.len(), b * n)));
        }
        if let Some(t) = times.iter().find(|t| !(1..=process.steps()).contains(*t)) {
            return Err(Error::Input(format!("the time of a token is {t}, not one of 1 to {}", process.steps())));
        }
        let fixed = limits.clean.as_ref().map(|f| f.0.to_vec_u32()).transpose()?;
        let is_fixed = |i: usize| fixed.as_ref().is_some_and(|f| f[i] != 0);
        let told = |i: usize| if is_fixed(i) { Process::FIRST } else { times[i] } as u32;
        self.own_times =
            Some(Tensor::from_u32(&self.batch.projection.device(), &[b, n], (0..b * n).map(told).collect())?);
        Ok(())
    }

    /// Seed and id of each example.
    pub(super) fn addresses(&self) -> Vec<(u64, u32)> {
        self.batch.addresses.each()
    }

    /// Tokens that stay, u32 of B·N.
    pub(super) fn fixed(&self) -> Option<&Tensor> {
        self.committed.as_ref().map(Committed::tokens).or(self.batch.limits.fixed.as_ref())
    }

    /// Commit the most confident of `clean`: from now on they are shown clean, and stay unless they are taken back. At the last step the
    /// log-probabilities become those of the predictions that committed each token.
    pub(super) fn commit(&mut self, mut clean: Clean, by: &Confident) -> Result<Clean> {
        let Batch { projection, addresses, tokens, limits, .. } = *self.batch;
        let mut committed = match self.committed.take() {
            Some(committed) => committed,
            None => Committed::new(&projection.device(), (addresses.examples.len(), tokens), limits)?,
        };
        let (i, count) = self.at;
        committed.commit(&clean, by.shares(i, count), limits.fixed.as_ref())?;
        self.clean_flags = Some(committed.flags().clone());
        if let Some(numbers) = clean.0.numbers.as_mut().filter(|_| self.last) {
            numbers.log_prob = committed.log_prob()?;
        }
        self.committed = Some(committed);
        Ok(clean)
    }

    /// y_s = λ·√ᾱ_s·`clean` + √(1−ᾱ_s)·ε: forget y_t.
    pub fn renoise(&mut self, clean: &Clean, s: usize) -> Result<()> {
        self.update(clean, self.batch.process.renoise(s).into())
    }

    /// y_s by `mix`; tokens that are shown clean go to the first time in any case. At the last step nothing is mixed: `clean` is the result.
    pub fn update(&mut self, clean: &Clean, mix: Mix) -> Result<()> {
        let places = self.batch.addresses.examples.len() * self.batch.tokens;
        if let Mix::Each(all) = &mix
            && all.len() != places
        {
            return Err(Error::Input(format!("{} updates for {places} tokens", all.len())));
        }
        let one = match &mix {
            Mix::All(u) => std::slice::from_ref(u),
            Mix::Each(all) => all,
        };
        if let Some(u) = one.iter().find(|u| factors(**u).iter().any(|x| !x.is_finite())) {
            return Err(Error::Input(format!("{u:?} is not finite")));
        }
        self.taken = Some(clean.clone());
        if self.last {
            return Ok(());
        }
        let Batch { projection, process, addresses, tokens: n, .. } = *self.batch;
        let (device, weight) = (projection.device(), projection.weight());
        let (b, d) = (addresses.examples.len(), weight.shape()[0]);
        let (keeps, draws) = match &mix {
            Mix::All(u) => (u.keep != 0.0, u.noise != 0.0),
            Mix::Each(all) => (all.iter().any(|u| u.keep != 0.0), true),
        };
        let fresh = match draws || self.clean_flags.is_some() {
            true => Some(projection.draw(&addresses.noise.later(self.at.0 as u32 + 1), &addresses.examples, n)?),
            false => None,
        };
        // The vectors lend their shape where nothing of them is kept and no noise is added.
        let before = (keeps || fresh.is_none()).then_some(&self.u);
        let by = match (&mix, &self.clean_flags) {
            (Mix::All(u), Some(flags)) => by_row([*u, process.renoise(Process::FIRST)].into_iter(), flags)?,
            (Mix::All(u), None) => scalars(&device, factors(*u))?,
            (Mix::Each(all), flags) => by_token(all, flags.as_ref(), process, &device)?,
        };
        let soft = match &clean.0.probabilities {
            Some(p) => Some(projection.project(p)?),
            None => None,
        };
        let first = match &soft {
            Some(x) => First::Values(x),
            None => First::Columns { matrix: weight, ids: clean.ids() },
        };
        self.u = blend(&by, first, before, fresh.as_ref())?.reshape(&[b, n, d])?;
        Ok(())
    }
}

pub(crate) fn factors(u: Update) -> [f64; 3] {
    [u.clean, u.keep, u.noise]
}

/// Factors \[B·N, 3\] of tokens, each `which` of the `updates` (u32 \[B, N\]).
pub(super) fn by_row(updates: impl Iterator<Item = Update>, which: &Tensor) -> Result<Tensor> {
    let table: Vec<f32> = updates.flat_map(factors).map(|x| x as f32).collect();
    let (tape, rows) = (Tape::inference(), table.len() / 3);
    let table = Tensor::from_f32(&which.device(), &[rows, 3], table)?;
    let by = embed(&tape, &tape.constant(table), which, DType::F32)?;
    Ok(by.value().reshape(&[which.len(), 3])?)
}

/// Factors \[B·N, 3\] of tokens that each have their own, but for clean ones.
fn by_token(each: &[Update], flags: Option<&Tensor>, process: &Process, device: &Device) -> Result<Tensor> {
    let flags = flags.map(Tensor::to_vec_u32).transpose()?;
    let is_clean = |i: usize| flags.as_ref().is_some_and(|f| f[i] != 0);
    let of = |i: usize| factors(if is_clean(i) { process.renoise(Process::FIRST) } else { each[i] });
    Ok(Tensor::from_f32(device, &[each.len(), 3], (0..each.len()).flat_map(of).map(|x| x as f32).collect())?)
}
