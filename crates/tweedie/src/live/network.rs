//! One pass of the network over rows that are each at a time of their own.

use std::rc::Rc;

use tweedie_engine::cuda::{Cuda, Graph};
use tweedie_engine::ops::blend::guide;
use tweedie_engine::ops::tokens;
use tweedie_engine::{DType, Device, Tape, Tensor, Var};

use crate::config::NoiseKind;
use crate::error::{Error, Result};
use crate::model::{Context, ContextPool, Input, Model, Pass};
use crate::sample::{Captured, Graphs, Projection, guides_features, head, projection};
use crate::trained::Trained;

/// What the rows of a batch show to the network.
pub(super) enum Shown {
    /// W·y_t, f32 \[R, N, d\], or y_t itself of exact evidence (TDD).
    Noisy(Tensor),
    /// Tokens, u32 \[R, N\], V where masked (MDD).
    Tokens(Tensor),
}

/// The same as the denoiser reads it.
enum Read {
    Projected(Var),
    Evidence(Var),
    Tokens(Tensor),
}

impl Read {
    fn of(m: &Model, tape: &Tape, shown: &Shown, times: &[usize]) -> Result<Read> {
        Ok(match shown {
            Shown::Noisy(y) if m.reads_evidence() => {
                let times: Vec<u32> = times.iter().map(|t| *t as u32).collect();
                Read::Evidence(tape.constant(m.evidence(y, &times)?))
            }
            Shown::Noisy(u) => Read::Projected(tape.constant(u.clone())),
            Shown::Tokens(ids) => Read::Tokens(ids.clone()),
        })
    }

    /// Every row `copies` times.
    fn repeated(&self, tape: &Tape, copies: usize) -> Result<Read> {
        Ok(match self {
            Read::Projected(u) => Read::Projected(tokens::repeat(tape, u, copies)?),
            Read::Evidence(e) => Read::Evidence(tokens::repeat(tape, e, copies)?),
            Read::Tokens(ids) => Read::Tokens(tokens::repeat_ids(ids, copies)?),
        })
    }

    fn input(&self) -> Input<'_> {
        match self {
            Read::Projected(u) => Input::Projected(u),
            Read::Evidence(e) => Input::Evidence(e),
            Read::Tokens(ids) => Input::Tokens(ids),
        }
    }
}

/// A network, and what its jobs need of it besides.
pub(super) struct Network {
    pub trained: Rc<Trained>,
    pub pool: ContextPool,
    times: Times,
    /// Of TDD: noise as each setting draws it.
    projections: Vec<(NoiseKind, Projection)>,
    /// Encoders of batches by their size, on a GPU.
    encoders: Graphs<usize, Encoder>,
}

/// The encoder of a batch of some size, captured.
struct Encoder {
    images: Tensor,
    graph: Graph,
    made: Context,
}

impl Captured for Encoder {
    fn size(&self) -> (usize, usize) {
        (self.graph.nodes(), self.graph.memory())
    }
}

/// Times as the blocks see them, each computed once.
#[derive(Default)]
struct Times {
    /// Row of the table for each time, [`UNKNOWN`] where it has none.
    rows: Vec<u32>,
    /// One after another.
    values: Vec<f32>,
    /// The same as f32 \[times, d\] on the device.
    table: Option<Tensor>,
}

const UNKNOWN: u32 = u32::MAX;

impl Times {
    fn row(&self, t: usize) -> Option<u32> {
        self.rows.get(t).copied().filter(|row| *row != UNKNOWN)
    }

    /// Know these too.
    fn learn(&mut self, model: &Model, times: impl Iterator<Item = usize>) -> Result<()> {
        let mut missing: Vec<usize> = times.filter(|t| self.row(*t).is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() {
            return Ok(());
        }
        let tape = Tape::inference();
        let p = Pass::inference(&tape, &model.params, model.dtype());
        let made = model.times(&p, &missing.iter().map(|t| *t as u32).collect::<Vec<_>>())?;
        self.values.extend(made.value().cast(DType::F32)?.to_vec()?);
        let (width, before) = (made.value().width(), self.table.as_ref().map_or(0, |table| table.shape()[0]));
        for (row, t) in (before..).zip(&missing) {
            self.rows.resize(self.rows.len().max(t + 1), UNKNOWN);
            self.rows[*t] = row as u32;
        }
        let shape = [before + missing.len(), width];
        self.table = Some(Tensor::from_f32(&model.device(), &shape, self.values.clone())?);
        Ok(())
    }

    /// Those of a batch: \[…, d\] for the shape of `times`.
    fn of(&self, tape: &Tape, shape: &[usize], times: &[usize], dtype: DType) -> Result<Var> {
        let row = |t: &usize| self.row(*t).ok_or_else(|| Error::Input(format!("time {t} is not known")));
        let ids: Vec<u32> = times.iter().map(row).collect::<Result<_>>()?;
        let Some(table) = &self.table else { return Err(Error::Input("no time is known".into())) };
        let ids = Tensor::from_u32(&table.device(), shape, ids)?;
        Ok(tokens::embed(tape, &tape.constant(table.clone()), &ids, dtype)?)
    }
}

impl Network {
    /// With room for the conditions of so many images.
    pub fn new(trained: Rc<Trained>, images: usize) -> Network {
        let pool = ContextPool::new(&trained.model, images);
        let sizes = images.next_power_of_two().ilog2() as usize + 1;
        let encoders = Graphs::new().with_room(sizes);
        Network { trained, pool, times: Times::default(), projections: Vec::new(), encoders }
    }

    pub fn model(&self) -> &Model {
        &self.trained.model
    }

    pub fn device(&self) -> Device {
        self.trained.model.device()
    }

    /// Whether clean tokens are shown at a time of their own.
    pub fn per_token_time(&self) -> bool {
        self.model().is_tdd() && self.model().per_token_time()
    }

    /// Be ready for steps at these times, with noise of this kind.
    pub fn prepare(&mut self, times: impl Iterator<Item = usize>, noise: NoiseKind) -> Result<()> {
        self.times.learn(&self.trained.model, times)?;
        let noise = self.drawn_as(noise);
        if self.projections.iter().all(|p| p.0 != noise)
            && let Some(made) = projection(&self.trained.model, noise)?
        {
            self.projections.push((noise, made));
        }
        Ok(())
    }

    /// How noise is drawn where that is asked for: of vectors that are read as they are there is one way.
    fn drawn_as(&self, noise: NoiseKind) -> NoiseKind {
        if self.model().reads_evidence() { NoiseKind::Auto } else { noise }
    }

    pub fn projection(&self, noise: NoiseKind) -> Result<&Projection> {
        let noise = self.drawn_as(noise);
        let found = self.projections.iter().find(|p| p.0 == noise);
        found.map(|p| &p.1).ok_or_else(|| Error::Input("this model does not read noisy vectors".into()))
    }

    /// Encode images \[B, …\] and keep the first of them at `places`, one each.
    pub fn encode(&mut self, images: &Tensor, places: &[usize]) -> Result<()> {
        let m = &self.trained.model;
        let encode = |images: &Tensor| {
            let tape = Tape::inference();
            m.context(&Pass::inference(&tape, &m.params, m.dtype()), Some(images), true)
        };
        let capture = |c: &Cuda| {
            let images = Tensor::zeros(&m.device(), images.shape(), images.dtype())?;
            let (graph, made) = c.capture(|| encode(&images))?;
            Ok(Encoder { images, graph, made })
        };
        let replay = |e: &Encoder| {
            e.images.overwrite(images)?;
            e.graph.launch()?;
            Ok(e.made.clone())
        };
        let size = images.shape().first().copied().unwrap_or(0);
        let made = self.encoders.replay_or_record(&m.device(), size, || encode(images), capture, replay)?;
        self.pool.put(&made, places)
    }

    /// Logits of rows, whose conditions lie at `places` and whose `times` are one for each or one for each token; rows may be longer than
    /// the vocabulary. With guidance `weights`, pairs and the weights on the device where those are still to be applied.
    pub fn logits(
        &self,
        shown: &Shown,
        places: &[u32],
        times: &[usize],
        weights: Option<&[f32]>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let (m, tape) = (self.model(), Tape::inference());
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let copies = if weights.is_some() { 2 } else { 1 };
        let null = self.pool.null() as u32;
        let seen: Vec<u32> = places.iter().flat_map(|place| [*place, null].into_iter().take(copies)).collect();
        let context = self.pool.rows(&tape, &seen)?;
        let each = times.len() / places.len().max(1);
        let told: Vec<usize> = times.chunks(each.max(1)).flat_map(|row| row.repeat(copies)).collect();
        let shape: &[usize] = if each > 1 { &[seen.len(), each] } else { &[seen.len()] };
        let time = self.times.of(&tape, shape, &told, m.dtype())?;
        let one = Read::of(m, &tape, shown, times)?;
        let each = one.repeated(&tape, copies)?;
        let features = m.features_at(&p, &each.input(), &time, &context)?;
        let Some(weights) = weights else { return Ok((head(m, &tape, features.value(), &each.input())?, None)) };
        let weights = Tensor::from_f32(&self.device(), &[weights.len()], weights.to_vec())?;
        match guides_features(m) {
            true => Ok((head(m, &tape, &guide(features.value(), &weights)?, &one.input())?, None)),
            false => Ok((head(m, &tape, features.value(), &each.input())?, Some(weights))),
        }
    }

    /// The masked twin of a classifier: class logits \[B·V\] of images, in one pass.
    pub fn class_logits(&self, images: &Tensor) -> Result<Vec<f32>> {
        let (m, tape) = (self.model(), Tape::inference());
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let f = m.masked_features(&p, &m.condition(&p, images)?)?;
        Ok(m.logits(&p, &f)?.value().to_vec()?)
    }
}
