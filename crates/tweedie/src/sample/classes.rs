//! Classification: logits of the last step, on the host.

use tweedie_engine::cuda::{Cuda, Graph};
use tweedie_engine::ops::blend::guide;
use tweedie_engine::{DType, Tape, Tensor};

use super::addresses::Addresses;
use super::denoise::Denoise;
use super::graphs::{Captured, GraphUse, Graphs};
use super::limits::Limits;
use super::network::{Conditioned, Kept, projection};
use super::reverse::Reverse;
use super::sampler::{Sampler, sampler_of};
use super::state::{Asked, Prediction, scalars};
use super::{Projection, softmax};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::model::Pass;
use crate::process::Process;
use crate::trained::{Shared, Trained};

/// Sample `tokens` tokens for each of `examples` with anything that denoises; `each` sees every step's prediction. Returns the last
/// one's logits \[B·N·V\].
pub fn sample_logits(
    denoiser: &dyn Denoise,
    process: &Process,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    config.check()?;
    let projection = Projection::of(denoiser, config.noise)?;
    let addresses = Addresses::new(&projection.device(), examples, config.seed)?;
    let sampler = sampler_of(config, denoiser.per_token_time());
    let limits = Limits::default();
    let reverse = Reverse {
        denoiser,
        projection: &projection,
        process,
        sampler: &*sampler,
        config,
        addresses: &addresses,
        tokens,
        limits: &limits,
        trace: None,
        choose_last: false,
    };
    last_of(&reverse, &mut each)?.logits()
}

/// The last step's prediction, on the device.
struct Last {
    logits: Tensor,
    guidance: Option<f32>,
    examples: usize,
    vocab: usize,
}

impl Last {
    fn logits(&self) -> Result<Vec<f32>> {
        let &Last { ref logits, guidance, examples, vocab } = self;
        Prediction { t: 0, logits, guidance, examples, vocab, asked: Asked::nothing() }.logits()
    }

    /// The same as a tensor \[B, …\] where they were computed, in rows of V or longer.
    fn tensor(&self) -> Result<Tensor> {
        let logits = self.logits.cast(DType::F32)?;
        let logits = match self.guidance {
            None => logits,
            Some(w) => guide(&logits, &scalars(&logits.device(), [w as f64])?)?,
        };
        Ok(logits.reshape(&[self.examples, logits.width()])?)
    }
}

fn last_of(reverse: &Reverse, each: &mut dyn FnMut(&Prediction)) -> Result<Last> {
    let mut last = None;
    reverse.sample(|p, taken| {
        each(p);
        if taken.is_none() {
            let &Prediction { logits, guidance, examples, vocab, .. } = p;
            last = Some(Last { logits: logits.clone(), guidance, examples, vocab });
        }
        Ok(())
    })?;
    last.ok_or_else(|| Error::Input("a sampler needs at least one step".into()))
}

/// The logarithm of the mean probability over votes, each logits \[B·V\].
pub(crate) fn mean_vote(votes: &[Vec<f32>], vocab: usize) -> Vec<f32> {
    let mut mean = vec![0.0_f64; votes.first().map_or(0, Vec::len)];
    for logits in votes {
        for (m, l) in mean.chunks_exact_mut(vocab).zip(logits.chunks_exact(vocab)) {
            m.iter_mut().zip(softmax(l)).for_each(|(m, p)| *m += p / votes.len() as f64);
        }
    }
    mean.into_iter().map(|p| p.max(1e-30).ln() as f32).collect()
}

/// A network that classifies batches of images: what depends on its weights alone is computed once, and on a GPU repeated
/// batches of one size are replayed as a captured graph.
///
/// ```
/// use tweedie::config::SampleConfig;
/// use tweedie::engine::{DType, Device, Tensor};
/// use tweedie::model::{Model, ModelConfig, Sizes};
/// use tweedie::sample::ClassSampler;
/// use tweedie::{Process, Schedule, ScheduleKind, Trained};
///
/// let sizes = Sizes { vocab: 10, tokens: 1 };
/// let model = Model::new(&ModelConfig::preset("digits")?, sizes, &Device::Cpu, DType::F32, 0)?;
/// let trained = Trained::bare(model, Process::new(Schedule::new(ScheduleKind::Cosine, 1000, 10)?));
/// let sampler = ClassSampler::new(&trained, &SampleConfig { steps: 2, ..SampleConfig::default() })?;
/// let images = Tensor::zeros(&Device::Cpu, &[2, 1, 8, 8], DType::F32)?;
/// assert_eq!(sampler.logits(&images, &[0, 1])?.len(), 2 * 10);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct ClassSampler<'a> {
    trained: Shared<'a, Trained>,
    config: SampleConfig,
    sampler: Box<dyn Sampler>,
    /// Of TDD.
    projection: Option<Projection>,
    graphs: Graphs<Vec<usize>, Recorded>,
}

/// A batch of some size as graphs: encoder and sampler apart, since votes share the encoder's.
struct Recorded {
    images: Tensor,
    addresses: Addresses,
    encode: Graph,
    /// Holds what the encoder leaves for the sampler.
    _kept: Option<Kept>,
    reverse: Option<Graph>,
    last: Last,
}

impl Captured for Recorded {
    fn size(&self) -> (usize, usize) {
        let graphs = || std::iter::once(&self.encode).chain(&self.reverse);
        (graphs().map(Graph::nodes).sum(), graphs().map(Graph::memory).sum())
    }
}

impl<'a> ClassSampler<'a> {
    /// With the sampler that the settings name.
    pub fn new(trained: impl Into<Shared<'a, Trained>>, config: &SampleConfig) -> Result<ClassSampler<'a>> {
        config.check()?;
        let trained = trained.into();
        let projection = projection(&trained.model, config.noise)?;
        let sampler = sampler_of(config, trained.model.per_token_time());
        Ok(ClassSampler { trained, config: config.clone(), sampler, projection, graphs: Graphs::new() })
    }

    /// Sample by `sampler` instead. The masked twin has none: it is one pass.
    #[must_use]
    pub fn with_sampler(mut self, sampler: impl Sampler + 'static) -> ClassSampler<'a> {
        if !sampler.is_capturable() {
            self.graphs.allow(false);
        }
        ClassSampler { sampler: Box::new(sampler), ..self }
    }

    /// Whether repeated batches of one size may run as a captured graph on a GPU. The results are the same.
    #[must_use]
    pub fn with_graphs(mut self, wanted: bool) -> ClassSampler<'a> {
        self.graphs.allow(wanted && self.sampler.is_capturable());
        self
    }

    /// What became of its graphs.
    pub fn graph_use(&self) -> GraphUse {
        self.graphs.usage()
    }

    /// Class logits \[B·V\] of images: sampled for TDD, one pass for its twin. With votes, the logarithm of the mean
    /// probability.
    pub fn logits(&self, images: &Tensor, examples: &[u32]) -> Result<Vec<f32>> {
        let direct = || self.watched(images, examples, &mut |_| {});
        let replay = |r: &Recorded| {
            r.images.overwrite(images)?;
            r.encode.launch()?;
            self.voted(|seed| {
                r.addresses.overwrite(examples, seed)?;
                r.reverse.as_ref().map_or(Ok(()), Graph::launch)?;
                r.last.logits()
            })
        };
        // One id goes with each image; anything else is refused where it is run directly.
        let key = images.shape().iter().copied().chain([examples.len()]).collect();
        self.graphs.replay_or_record(
            &self.trained.model.device(),
            key,
            direct,
            |c| self.record(c, images, examples),
            replay,
        )
    }

    /// As [`ClassSampler::logits`] of one draw, as a tensor \[B, …\] on the model's device, in rows of V or longer.
    pub fn logits_tensor(&self, images: &Tensor, examples: &[u32]) -> Result<Tensor> {
        let Some(projection) = &self.projection else { return self.twin(images)?.tensor() };
        let network = Conditioned::new(&self.trained.model, Some(images), 1, self.guided())?;
        let addresses = Addresses::new(&self.trained.model.device(), examples, self.config.seed)?;
        self.sample(&network, projection, &addresses, &mut |_| {})?.tensor()
    }

    /// As [`ClassSampler::logits`], step by step: `each` sees every prediction.
    pub fn watched(&self, images: &Tensor, examples: &[u32], each: &mut dyn FnMut(&Prediction)) -> Result<Vec<f32>> {
        let Some(projection) = &self.projection else { return self.twin(images)?.logits() };
        let network = Conditioned::new(&self.trained.model, Some(images), 1, self.guided())?;
        self.voted(|seed| {
            let addresses = Addresses::new(&self.trained.model.device(), examples, seed)?;
            self.sample(&network, projection, &addresses, each)?.logits()
        })
    }

    fn guided(&self) -> bool {
        self.config.guidance != 1.0
    }

    fn sample(
        &self,
        network: &Conditioned,
        projection: &Projection,
        addresses: &Addresses,
        each: &mut dyn FnMut(&Prediction),
    ) -> Result<Last> {
        let limits = Limits::default();
        let reverse = Reverse {
            denoiser: network,
            projection,
            process: &self.trained.process,
            sampler: &*self.sampler,
            config: &self.config,
            addresses,
            tokens: self.trained.model.sizes().tokens,
            limits: &limits,
            trace: None,
            choose_last: false,
        };
        last_of(&reverse, each)
    }

    /// The masked twin's single pass.
    fn twin(&self, images: &Tensor) -> Result<Last> {
        let (tape, m) = (Tape::inference(), &self.trained.model);
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let f = m.masked_features(&p, &m.condition(&p, images)?)?;
        let logits = m.logits(&p, &f)?.value().clone();
        let (examples, vocab) = (images.shape().first().copied().unwrap_or(0), m.sizes().vocab);
        Ok(Last { logits, guidance: None, examples, vocab })
    }

    fn record(&self, c: &Cuda, images: &Tensor, examples: &[u32]) -> Result<Recorded> {
        let device = self.trained.model.device();
        let images = Tensor::zeros(&device, images.shape(), images.dtype())?;
        let addresses = Addresses::new(&device, examples, self.config.seed)?;
        let Some(projection) = &self.projection else {
            let (encode, last) = c.capture(|| self.twin(&images))?;
            return Ok(Recorded { images, addresses, encode, _kept: None, reverse: None, last });
        };
        let (encode, network) = c.capture(|| {
            let network = Conditioned::new(&self.trained.model, Some(&images), 1, self.guided())?;
            network.prepare_pairs(examples.len(), self.guided())?;
            Ok::<_, Error>(network)
        })?;
        let (reverse, last) = c.capture(|| self.sample(&network, projection, &addresses, &mut |_| {}))?;
        Ok(Recorded { images, addresses, encode, _kept: Some(network.keep()), reverse: Some(reverse), last })
    }

    /// `logits` of the configured seed, or the vote over several.
    fn voted(&self, mut logits: impl FnMut(u64) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let (votes, seed, vocab) = (self.config.votes, self.config.seed, self.trained.model.sizes().vocab);
        if votes == 1 || self.projection.is_none() {
            return logits(seed);
        }
        if votes == 0 {
            return Err(Error::Input("sample.votes = 0: there must be at least one".into()));
        }
        let all: Result<Vec<_>> = (0..votes).map(|vote| logits(seed.wrapping_add(vote as u64))).collect();
        Ok(mean_vote(&all?, vocab))
    }
}
