//! Sequences: tokens with their log-probabilities, by TDD or by its masked twin.

use tweedie_engine::Tensor;
use tweedie_engine::cuda::{Cuda, Graph};
use tweedie_engine::ops::choose::{Chosen, MAX_TOP};

use super::Projection;
use super::addresses::Addresses;
use super::denoise::Denoise;
use super::graphs::{Captured, GraphUse, Graphs};
use super::limits::{Ending, Limits};
use super::masked::{Filled, fill};
use super::network::{Conditioned, projection};
use super::reverse::Reverse;
use super::sampler::{Sampler, sampler_of};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::trained::{Shared, Trained};

/// Candidates of one example are this far apart in the addresses of noise: the first is the one that is drawn alone.
const CANDIDATE_SHIFT: u32 = 24;
const MAX_CANDIDATES: usize = 1 << (32 - CANDIDATE_SHIFT);

/// The id that addresses the noise of candidate `c` of `example`.
pub(crate) fn candidate_id(example: u32, c: usize) -> u32 {
    example.wrapping_add((c as u32) << CANDIDATE_SHIFT)
}

pub(crate) fn check_candidates(k: usize) -> Result<()> {
    match k == 0 || k > MAX_CANDIDATES {
        true => Err(Error::Input(format!("{k} candidates; there can be 1 to {MAX_CANDIDATES}"))),
        false => Ok(()),
    }
}

/// What to generate.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Images \[B, channels, side, side\]; `None` for an unconditional model.
    pub images: Option<&'a Tensor>,
    /// One id per text: they address the noise, so the same id gets the same text in any batch. Below 2²⁴ with candidates.
    pub examples: &'a [u32],
    /// Fixed tokens (a prompt, an infill), \[B·N\]: they are never changed.
    pub fixed: Option<&'a [Option<u32>]>,
    /// Where texts end.
    pub ending: Option<Ending>,
    /// Texts per example, each from noise of its own.
    pub candidates: usize,
    /// Tell of every step, with this many of the most likely tokens (at most 8).
    pub trace: Option<usize>,
}

impl<'a> Request<'a> {
    /// One free text for each of `examples`.
    pub fn new(images: Option<&'a Tensor>, examples: &'a [u32]) -> Request<'a> {
        Request { images, examples, fixed: None, ending: None, candidates: 1, trace: None }
    }
}

/// One step of a trace, over all rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The time that the network was told.
    pub t: usize,
    /// The tokens chosen from what it predicts; for the masked twin those revealed so far, V where masked.
    pub tokens: Vec<u32>,
    /// Log-probability of the chosen tokens.
    pub log_probs: Vec<f32>,
    /// Entropy of each prediction, in nats.
    pub entropy: Vec<f32>,
    /// The most likely tokens of each row with their log-probabilities, k for each.
    pub top: Vec<(u32, f32)>,
}

impl Traced {
    fn new(t: usize, tokens: &Tensor, c: &Chosen) -> Result<Traced> {
        let top = match &c.top {
            Some((ids, log_probs)) => ids.to_vec_u32()?.into_iter().zip(log_probs.to_vec()?).collect(),
            None => Vec::new(),
        };
        Ok(Traced {
            t,
            tokens: tokens.to_vec_u32()?,
            log_probs: c.numbers()?.log_prob.to_vec()?,
            entropy: c.numbers()?.entropy.to_vec()?,
            top,
        })
    }
}

/// Texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// \[B·candidates·N\]; candidates of an example follow each other.
    pub tokens: Vec<u32>,
    /// Log-probability of each token in the prediction it was chosen from; 0 for fixed tokens where tokens are committed one
    /// after another (the masked twin, and TDD with per-token time).
    pub log_probs: Vec<f32>,
    /// Every step, if asked for.
    pub steps: Vec<Traced>,
}

/// Sample `tokens` tokens for each of `examples` with anything that denoises; `trace`: tell of every step, with this many of the most
/// likely tokens.
pub fn sample_tokens(
    denoiser: &dyn Denoise,
    process: &Process,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    trace: Option<usize>,
) -> Result<Generated> {
    sample_tokens_by(
        &*sampler_of(config, denoiser.per_token_time()),
        denoiser,
        process,
        config,
        (examples, tokens),
        trace,
    )
}

/// As [`sample_tokens`], by a sampler of your own.
pub fn sample_tokens_by(
    sampler: &dyn Sampler,
    denoiser: &dyn Denoise,
    process: &Process,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    trace: Option<usize>,
) -> Result<Generated> {
    config.check()?;
    check_trace(trace, denoiser.vocab())?;
    let projection = Projection::of(denoiser, config.noise)?;
    let addresses = Addresses::new(&projection.device(), examples, config.seed)?;
    let limits = Limits::default();
    let reverse = Reverse {
        denoiser,
        projection: &projection,
        process,
        sampler,
        config,
        addresses: &addresses,
        tokens,
        limits: &limits,
        trace,
        choose_last: true,
    };
    let mut steps = Vec::new();
    let (tokens, log_probs) = tokens_of(&reverse, &mut |t, tokens, chosen| {
        if trace.is_some() {
            steps.push(Traced::new(t, tokens, chosen)?);
        }
        Ok(())
    })?;
    Ok(Generated { tokens: tokens.to_vec_u32()?, log_probs: log_probs.to_vec()?, steps })
}

fn check_trace(trace: Option<usize>, vocab: usize) -> Result<()> {
    let most = MAX_TOP.min(vocab);
    match trace.unwrap_or(0) > most {
        true => Err(Error::Input(format!("a trace tells of at most {most} tokens"))),
        false => Ok(()),
    }
}

/// What sees the tokens of every step, with its time.
type Each<'a> = &'a mut dyn FnMut(usize, &Tensor, &Chosen) -> Result<()>;

/// Tokens and log-probabilities that a reverse process comes to, on the device.
fn tokens_of(reverse: &Reverse, each: Each) -> Result<(Tensor, Tensor)> {
    let mut last = None;
    reverse.sample(|p, taken| {
        let Some(clean) = taken else { return Ok(()) };
        each(p.t, clean.ids(), &clean.0)?;
        // Handles to what lies on the device; only the last is read.
        last = clean.0.numbers.as_ref().map(|n| (clean.0.tokens.clone(), n.log_prob.clone()));
        Ok(())
    })?;
    last.ok_or_else(|| Error::Input("a sampler needs at least one step".into()))
}

/// A network that generates sequences of tokens: what depends on its weights alone is computed once, and on a GPU repeated
/// batches of one size are replayed as a captured graph.
///
/// ```
/// use tweedie::config::SampleConfig;
/// use tweedie::engine::{DType, Device};
/// use tweedie::model::{DenoiserConfig, Model, ModelConfig, Sizes};
/// use tweedie::sample::{Request, TokenSampler};
/// use tweedie::{Process, Schedule, ScheduleKind, Trained};
///
/// let config = ModelConfig { denoiser: DenoiserConfig::new(16, 1, 2), ..ModelConfig::preset("text")? };
/// let model = Model::new(&config, Sizes { vocab: 10, tokens: 4 }, &Device::Cpu, DType::F32, 0)?;
/// let trained = Trained::bare(model, Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 10)?));
/// let sampler = TokenSampler::new(&trained, &SampleConfig { steps: 3, ..SampleConfig::default() })?;
/// let two = sampler.generate(&Request::new(None, &[0, 1]))?;
/// assert!(two.tokens.len() == 8 && two.tokens.iter().all(|t| *t < 10));
/// // What an example gets depends on its id, not on its batch.
/// assert_eq!(sampler.generate(&Request::new(None, &[1]))?.tokens, two.tokens[4..]);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct TokenSampler<'a> {
    trained: Shared<'a, Trained>,
    config: SampleConfig,
    sampler: Box<dyn Sampler>,
    /// Of TDD.
    projection: Option<Projection>,
    graphs: Graphs<Key, Recorded>,
}

/// What a captured run depends on besides the settings: sizes of the batch, and which limits there are.
#[derive(PartialEq)]
struct Key {
    images: Option<Vec<usize>>,
    examples: usize,
    candidates: usize,
    limits: (bool, bool),
}

/// What a run reads and a captured one finds at the same place each time.
struct Inputs {
    images: Option<Tensor>,
    candidates: usize,
    limits: Limits,
    /// Of the masked twin: the tokens it starts from.
    start: Option<Tensor>,
}

/// A batch of some size as a graph.
struct Recorded {
    inputs: Inputs,
    addresses: Addresses,
    graph: Graph,
    tokens: Tensor,
    log_probs: Tensor,
}

impl Captured for Recorded {
    fn size(&self) -> (usize, usize) {
        (self.graph.nodes(), self.graph.memory())
    }
}

impl<'a> TokenSampler<'a> {
    /// With the sampler that the settings name.
    pub fn new(trained: impl Into<Shared<'a, Trained>>, config: &SampleConfig) -> Result<TokenSampler<'a>> {
        config.check()?;
        let trained = trained.into();
        let config = trained.sampling(config);
        let projection = projection(&trained.model, config.noise)?;
        let sampler = sampler_of(&config, trained.model.per_token_time());
        let mut graphs = Graphs::new();
        if !sampler.is_capturable() {
            graphs.allow(false);
        }
        Ok(TokenSampler { trained, config, sampler, projection, graphs })
    }

    /// Sample by `sampler` instead. The masked twin has none: it reveals tokens by its own settings.
    #[must_use]
    pub fn with_sampler(mut self, sampler: impl Sampler + 'static) -> TokenSampler<'a> {
        if !sampler.is_capturable() {
            self.graphs.allow(false);
        }
        TokenSampler { sampler: Box::new(sampler), ..self }
    }

    /// Generate. Nothing waits for the device before the end, unless a trace is asked for.
    pub fn generate(&self, r: &Request) -> Result<Generated> {
        let (ids, inputs) = self.inputs(r)?;
        let device = self.trained.model.device();
        let read = |tokens: &Tensor, log_probs: &Tensor, steps| -> Result<Generated> {
            Ok(Generated { tokens: tokens.to_vec_u32()?, log_probs: log_probs.to_vec()?, steps })
        };
        let direct = || {
            let mut steps = Vec::new();
            let addresses = Addresses::new(&device, &ids, self.config.seed)?;
            let (tokens, log_probs) = self.sample(&inputs, &addresses, r.trace, &mut |t, tokens, chosen| {
                if r.trace.is_some() {
                    steps.push(Traced::new(t, tokens, chosen)?);
                }
                Ok(())
            })?;
            read(&tokens, &log_probs, steps)
        };
        if r.trace.is_some() {
            return direct(); // a trace is read back step by step
        }
        let images = r.images.map(|i| i.shape().to_vec());
        let key = Key { images, examples: ids.len(), candidates: r.candidates, limits: inputs.limits.kinds() };
        let record = |c: &Cuda| self.record(c, &ids, &inputs);
        self.graphs.replay_or_record(&device, key, direct, record, |recorded: &Recorded| {
            recorded.inputs.overwrite(&inputs)?;
            recorded.addresses.overwrite(&ids, self.config.seed)?;
            recorded.graph.launch()?;
            read(&recorded.tokens, &recorded.log_probs, Vec::new())
        })
    }

    /// What is wanted, checked and on the device: the ids of all rows, and what the run reads.
    fn inputs(&self, r: &Request) -> Result<(Vec<u32>, Inputs)> {
        let model = &self.trained.model;
        let sizes = model.sizes();
        let (b, n, k) = (r.examples.len(), sizes.tokens, r.candidates);
        check_candidates(k)?;
        if r.images.is_some_and(|i| i.shape().first() != Some(&b)) {
            return Err(Error::Input(format!("{b} ids do not go with images {:?}", r.images.map(Tensor::shape))));
        }
        check_trace(r.trace, sizes.vocab)?;
        let ids: Vec<u32> = r.examples.iter().flat_map(|e| (0..k).map(|c| candidate_id(*e, c))).collect();
        let fixed = r.fixed.map(|g| g.chunks(n).flat_map(|row| row.repeat(k)).collect::<Vec<_>>());
        let device = model.device();
        let limits = Limits::new(&device, (b * k, n, sizes.vocab), fixed.as_deref(), r.ending.as_ref())?;
        let start = match model.is_tdd() {
            true => None,
            false => Some(limits.start(&device, (b * k, n), sizes.vocab as u32)?),
        };
        Ok((ids, Inputs { images: r.images.cloned(), candidates: k, limits, start }))
    }

    /// Tokens and their log-probabilities, on the device.
    fn sample(
        &self,
        inputs: &Inputs,
        addresses: &Addresses,
        trace: Option<usize>,
        each: Each,
    ) -> Result<(Tensor, Tensor)> {
        let (Trained { model, process, .. }, config, limits) = (&*self.trained, &self.config, &inputs.limits);
        // An unconditional model shows nothing to any row, so that its context serves any number of them.
        let network = Conditioned::new(model, inputs.images.as_ref(), inputs.candidates, config.guidance != 1.0)?;
        let (Some(projection), None) = (&self.projection, &inputs.start) else {
            let Some(start) = &inputs.start else { return Err(Error::Input("there is nothing to start from".into())) };
            let each = |f: &Filled| each(f.t, &f.state.tokens, f.chosen);
            let state = fill(&network, process, config, addresses, start, limits, trace.unwrap_or(0), each)?;
            return Ok((state.tokens, state.log_prob));
        };
        let reverse = Reverse {
            denoiser: &network,
            projection,
            process,
            sampler: &*self.sampler,
            config,
            addresses,
            tokens: model.sizes().tokens,
            limits,
            trace,
            choose_last: true,
        };
        tokens_of(&reverse, each)
    }

    fn record(&self, c: &Cuda, ids: &[u32], like: &Inputs) -> Result<Recorded> {
        let device = self.trained.model.device();
        let place = |t: &Tensor| Tensor::zeros(&device, t.shape(), t.dtype());
        let inputs = Inputs {
            images: like.images.as_ref().map(place).transpose()?,
            candidates: like.candidates,
            limits: like.limits.place()?,
            start: like.start.as_ref().map(place).transpose()?,
        };
        let addresses = Addresses::new(&device, ids, self.config.seed)?;
        let (graph, (tokens, log_probs)) =
            c.capture(|| self.sample(&inputs, &addresses, None, &mut |_, _, _| Ok(())))?;
        Ok(Recorded { inputs, addresses, graph, tokens, log_probs })
    }

    /// Whether repeated batches of one size may run as a captured graph on a GPU. The results are the same.
    #[must_use]
    pub fn with_graphs(mut self, wanted: bool) -> TokenSampler<'a> {
        self.graphs.allow(wanted && self.sampler.is_capturable());
        self
    }

    /// What became of its graphs.
    pub fn graph_use(&self) -> GraphUse {
        self.graphs.usage()
    }
}

impl Inputs {
    /// Take the values of `from`, which has the same sizes and kinds.
    fn overwrite(&self, from: &Inputs) -> Result<()> {
        for (to, from) in [(&self.images, &from.images), (&self.start, &from.start)] {
            if let (Some(to), Some(from)) = (to, from) {
                to.overwrite(from)?;
            }
        }
        self.limits.overwrite(&from.limits)
    }
}
