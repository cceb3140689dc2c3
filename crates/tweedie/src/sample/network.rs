//! A network as a denoiser: the condition is computed once, for all steps and candidates.

use std::cell::{OnceCell, RefCell};

use tweedie_engine::ops::blend::guide;
use tweedie_engine::ops::{linear, tokens};
use tweedie_engine::{DType, Device, Tape, Tensor, Var};

use super::masked::Fill;
use super::state::{by_row, factors, scalars};
use super::{At, Denoise, Projection, TokenTimes};
use crate::config::NoiseKind;
use crate::error::{Error, Result};
use crate::model::{Context, Input, Model, Pass, scaled};
use crate::process::Update;

/// Name of the layer that noisy vectors go through.
const TOKEN_IN: &str = "denoiser.token_in.weight";

/// A vocabulary this many times as large as a token is wide makes the head worth sparing.
const MUCH: usize = 4;

/// The layer W of a TDD model, f32 \[d, V\].
fn input_layer(model: &Model) -> Result<Tensor> {
    let id = model.params.find(TOKEN_IN).filter(|_| model.is_tdd());
    Ok(model.params.value(id.ok_or_else(|| Error::Input("this model does not read noisy vectors".into()))?))
}

/// What draws noise for a TDD model; `None` for its twin.
pub(crate) fn projection(model: &Model, kind: NoiseKind) -> Result<Option<Projection>> {
    match model.is_tdd() {
        true if model.reads_evidence() => Ok(Some(Projection::identity(&model.device(), model.sizes().vocab)?)),
        true => Ok(Some(Projection::new(&input_layer(model)?, kind)?.beside(model.dtype()))),
        false => Ok(None),
    }
}

/// Logits of features that were made from `input`, in rows that may be longer than the vocabulary.
pub(crate) fn head(model: &Model, tape: &Tape, features: &Tensor, input: &Input) -> Result<Tensor> {
    let p = Pass::inference(tape, &model.params, model.dtype());
    if let Input::Evidence(_) = input {
        return Ok(model.logits_of(&p, &tape.constant(features.clone()), input)?.value().clone());
    }
    let (w, b) = model.head(&p);
    Ok(linear::padded(features, &w, &b)?)
}

/// Whether guiding features in place of logits saves more than it costs.
pub(crate) fn guides_features(model: &Model) -> bool {
    model.sizes().vocab >= MUCH * model.config().denoiser.width
}

/// A network and the condition of a batch.
pub struct Conditioned<'a> {
    model: &'a Model,
    /// W of TDD.
    weight: Option<Tensor>,
    context: Context,
    candidates: usize,
    /// A row for each candidate.
    plain: Context,
    /// Two rows for each candidate, with and without condition; made when a guided step first asks for it.
    pairs: OnceCell<Context>,
    /// Times met so far, each \[1, d\] as the blocks see it.
    times: RefCell<Vec<(usize, Var)>>,
    /// Those of tokens at times of their own.
    table: RefCell<Option<(Vec<usize>, Tensor)>>,
}

/// The condition of a batch, held for a graph that reads it.
pub(super) struct Kept {
    _contexts: (Context, Context, OnceCell<Context>),
    _times: RefCell<Vec<(usize, Var)>>,
}

impl<'a> Conditioned<'a> {
    /// Encode the images (none for an unconditional model), each for `candidates` rows. Only a `guided` one has the null
    /// condition.
    pub fn new(model: &'a Model, images: Option<&Tensor>, candidates: usize, guided: bool) -> Result<Conditioned<'a>> {
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        if guided && !model.is_conditional() {
            return Err(Error::Input("guidance needs a condition to guide to; set sample.guidance = 1".into()));
        }
        let context = model.context(&p, images, guided)?;
        let plain = context.rows(&tape, candidates, None)?;
        let projects = model.is_tdd() && !model.reads_evidence();
        let weight = if projects { Some(input_layer(model)?) } else { None };
        let (pairs, times, table) = (OnceCell::new(), RefCell::default(), RefCell::default());
        Ok(Conditioned { model, weight, context, candidates, plain, pairs, times, table })
    }

    /// What a captured graph may read, without the network.
    pub(super) fn keep(self) -> Kept {
        Kept { _contexts: (self.context, self.plain, self.pairs), _times: self.times }
    }

    /// Compute now what the first step of `rows` rows would otherwise find missing.
    pub(super) fn prepare_pairs(&self, rows: usize, guided: bool) -> Result<()> {
        if guided {
            self.pairs(&Tape::inference(), rows)?;
        }
        Ok(())
    }

    /// Two rows for each of `rows` candidates.
    fn pairs(&self, tape: &Tape, rows: usize) -> Result<&Context> {
        if let Some(c) = self.pairs.get() {
            return Ok(c);
        }
        let drop: Vec<u32> = (0..2 * rows as u32).map(|i| i % 2).collect();
        let made = self.context.rows(tape, 2 * self.candidates, Some(&drop))?;
        Ok(self.pairs.get_or_init(|| made))
    }

    /// All times of a run at once: one pass over the layers' weights instead of one for each step.
    fn embed_times(&self, times: &[usize]) -> Result<()> {
        let mut ready = self.times.borrow_mut();
        let mut missing: Vec<usize> = times.iter().copied().filter(|t| ready.iter().all(|k| k.0 != *t)).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let (tape, m) = (Tape::inference(), self.model);
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let all = m.times(&p, &missing.iter().map(|t| *t as u32).collect::<Vec<_>>())?;
        for (i, t) in missing.into_iter().enumerate() {
            ready.push((t, tape.constant(all.value().row(i)?)));
        }
        Ok(())
    }

    fn time(&self, t: usize) -> Result<Var> {
        self.embed_times(&[t])?;
        let found = self.times.borrow().iter().find(|k| k.0 == t).map(|k| k.1.clone());
        found.ok_or_else(|| Error::Input(format!("time {t} was not embedded")))
    }

    /// Per-token times \[B, N, d\]: of tokens that have one of their own that, of the others `t`.
    fn token_times(&self, tape: &Tape, t: usize, TokenTimes { which, times }: TokenTimes) -> Result<Var> {
        let own = match times {
            [one] => self.time(*one)?.value().clone(),
            many => self.time_table(many)?,
        };
        let (d, rows) = (own.width(), times.len());
        let open = tape.constant(self.time(t)?.value().reshape(&[1, 1, d])?);
        let own = tape.constant(own.reshape(&[1, rows, d])?);
        let table = tokens::concat(tape, &[&open, &own])?.value().reshape(&[1 + rows, d])?.cast(DType::F32)?;
        Ok(tokens::embed(tape, &tape.constant(table), which, self.model.dtype())?)
    }

    /// Many times, \[times, d\]; the same as at the last call are computed once.
    fn time_table(&self, times: &[usize]) -> Result<Tensor> {
        let mut table = self.table.borrow_mut();
        if let Some((of, made)) = table.as_ref()
            && of == times
        {
            return Ok(made.clone());
        }
        let (tape, m) = (Tape::inference(), self.model);
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let made = m.times(&p, &times.iter().map(|t| *t as u32).collect::<Vec<_>>())?.value().clone();
        *table = Some((times.to_vec(), made.clone()));
        Ok(made)
    }

    fn features(&self, tape: &Tape, input: &Input, rows: usize, at: At, guided: bool) -> Result<Var> {
        let m = self.model;
        let p = Pass::inference(tape, &m.params, m.dtype());
        let context = if guided { self.pairs(tape, rows)? } else { &self.plain };
        let time = match at.tokens {
            None => self.time(at.t)?,
            Some(own) if guided => {
                let which = &tokens::repeat_ids(own.which, 2)?;
                self.token_times(tape, at.t, TokenTimes { which, ..own })?
            }
            Some(own) => self.token_times(tape, at.t, own)?,
        };
        m.features_at(&p, input, &time, context)
    }

    fn forward(&self, tape: &Tape, input: &Input, rows: usize, at: At, guided: bool) -> Result<Tensor> {
        head(self.model, tape, self.features(tape, input, rows, at, guided)?.value(), input)
    }

    /// What the network reads of `noisy`: W·y_t as it is, y_t as evidence.
    fn read(&self, tape: &Tape, noisy: &Tensor, at: At) -> Result<Var> {
        if !self.model.reads_evidence() {
            return Ok(tape.constant(noisy.clone()));
        }
        let by = |t: usize| Ok::<_, Error>(Update { clean: self.model.kappa(t)? as f64, keep: 0.0, noise: 0.0 });
        let by = match at.tokens {
            None => scalars(&noisy.device(), factors(by(at.t)?))?,
            Some(own) => {
                let all: Vec<Update> =
                    std::iter::once(&at.t).chain(own.times).map(|t| by(*t)).collect::<Result<_>>()?;
                by_row(all.into_iter(), own.which)?
            }
        };
        Ok(tape.constant(scaled(noisy, &by)?))
    }

    fn input<'i>(&self, read: &'i Var) -> Input<'i> {
        if self.model.reads_evidence() { Input::Evidence(read) } else { Input::Projected(read) }
    }

    /// The head is linear, so features can be guided in place of logits: one product with the vocabulary instead of two.
    /// `input` is that of the pairs, `one` that of each example.
    fn forward_guided(&self, tape: &Tape, (input, one): (&Input, &Input), at: At, w: f32) -> Result<Tensor> {
        let weight = scalars(&self.model.device(), [w as f64])?;
        let features = self.features(tape, input, input.examples() / 2, at, true)?;
        head(self.model, tape, &guide(features.value(), &weight)?, one)
    }
}

impl Denoise for Conditioned<'_> {
    fn vocab(&self) -> usize {
        self.model.sizes().vocab
    }

    fn device(&self) -> Device {
        self.model.device()
    }

    fn weight(&self) -> Result<Option<&Tensor>> {
        match &self.weight {
            None if !self.model.is_tdd() => Err(Error::Input("this model does not read noisy vectors".into())),
            weight => Ok(weight.as_ref()),
        }
    }

    fn prepare(&self, times: &[usize]) -> Result<()> {
        self.embed_times(times)
    }

    fn per_token_time(&self) -> bool {
        self.model.per_token_time()
    }

    fn guided(&self, u: &Tensor, at: At, w: f32) -> Result<Option<Tensor>> {
        if !guides_features(self.model) {
            return Ok(None);
        }
        let tape = Tape::inference();
        let one = self.read(&tape, u, at)?;
        let twice = tokens::repeat(&tape, &one, 2)?;
        self.forward_guided(&tape, (&self.input(&twice), &self.input(&one)), at, w).map(Some)
    }

    fn logits(&self, u: &Tensor, at: At) -> Result<Tensor> {
        let tape = Tape::inference();
        self.forward(&tape, &self.input(&self.read(&tape, u, at)?), u.shape()[0], at, false)
    }

    fn logits_of_pairs(&self, u: &Tensor, at: At) -> Result<Tensor> {
        let tape = Tape::inference();
        // Both passes as one batch on the same noise.
        let twice = tokens::repeat(&tape, &self.read(&tape, u, at)?, 2)?;
        self.forward(&tape, &self.input(&twice), u.shape()[0], at, true)
    }
}

impl Fill for Conditioned<'_> {
    fn device(&self) -> Device {
        self.model.device()
    }

    fn vocab(&self) -> usize {
        self.model.sizes().vocab
    }

    fn prepare(&self, times: &[usize]) -> Result<()> {
        self.embed_times(times)
    }

    fn guided(&self, ids: &Tensor, t: usize, w: f32) -> Result<Option<Tensor>> {
        if !guides_features(self.model) {
            return Ok(None);
        }
        let twice = tokens::repeat_ids(ids, 2)?;
        let (twice, one) = (Input::Tokens(&twice), Input::Tokens(ids));
        self.forward_guided(&Tape::inference(), (&twice, &one), t.into(), w).map(Some)
    }

    fn logits(&self, ids: &Tensor, t: usize, guided: bool) -> Result<Tensor> {
        let rows = ids.shape()[0];
        let ids = if guided { tokens::repeat_ids(ids, 2)? } else { ids.clone() };
        self.forward(&Tape::inference(), &Input::Tokens(&ids), rows, t.into(), guided)
    }
}
