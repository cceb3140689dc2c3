//! Classification: logits of the last step, on the host.

use tweedie_engine::cuda::{Cuda, Graph};
use tweedie_engine::{Tape, Tensor};

use super::addresses::Addresses;
use super::graphs::{Captured, GraphUse, Graphs};
use super::limits::Limits;
use super::network::{Conditioned, projection};
use super::walk::{Seen, Task, walk};
use super::{Denoise, Projection, softmax};
use crate::config::SampleConfig;
use crate::error::{Error, Result};
use crate::model::{Model, Pass};
use crate::schedule::Schedule;

/// What a sampler predicts at one step, for all examples.
pub struct Prediction<'a> {
    /// Time of the noisy vectors.
    pub t: usize,
    logits: &'a Tensor,
    guidance: Option<f32>,
    examples: usize,
    vocab: usize,
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
        Ok(l.chunks_exact(2 * width).flat_map(guide).collect())
    }
}

/// Sample `tokens` tokens for each of `examples`; `each` sees every step's prediction. Returns the last one's logits
/// \[B·N·V\].
pub fn run(
    denoiser: &dyn Denoise,
    schedule: &Schedule,
    config: &SampleConfig,
    (examples, tokens): (&[u32], usize),
    lambda: f64,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    let projection = Projection::new(denoiser.weight()?, config.noise)?;
    let addresses = Addresses::new(&projection.device(), examples, config.seed)?;
    last_of(denoiser, &projection, schedule, config, (&addresses, tokens), lambda, &mut each)?.logits()
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
        let Last { logits, guidance, examples, vocab } = self;
        Prediction { t: 0, logits, guidance: *guidance, examples: *examples, vocab: *vocab }.logits()
    }
}

fn last_of(
    denoiser: &dyn Denoise,
    projection: &Projection,
    schedule: &Schedule,
    config: &SampleConfig,
    (addresses, tokens): (&Addresses, usize),
    lambda: f64,
    each: &mut dyn FnMut(&Prediction),
) -> Result<Last> {
    let (mut last, examples, vocab) = (None, addresses.examples.len(), projection.weight().width());
    let task = Task { addresses, tokens, lambda, limits: &Limits::default(), trace: None, choose_last: false };
    walk(denoiser, projection, schedule, config, &task, |s: &Seen| {
        let Seen { t, logits, guidance, .. } = *s;
        each(&Prediction { t, logits, guidance, examples, vocab });
        if s.chosen.is_none() {
            last = Some(Last { logits: logits.clone(), guidance, examples, vocab });
        }
        Ok(())
    })?;
    last.ok_or_else(|| Error::Input("a sampler needs at least one step".into()))
}

/// A classifier ready for batches: what depends on its weights alone is computed once.
pub struct Classifier<'a> {
    model: &'a Model,
    schedule: &'a Schedule,
    lambda: f64,
    config: &'a SampleConfig,
    /// Of TDD.
    projection: Option<Projection>,
    graphs: Graphs<Vec<usize>, Recorded<'a>>,
}

/// A batch of some size as graphs: encoder and sampler apart, since votes share the encoder's.
struct Recorded<'a> {
    images: Tensor,
    addresses: Addresses,
    encode: Graph,
    /// Holds what the encoder leaves for the sampler.
    _network: Option<Conditioned<'a>>,
    walk: Option<Graph>,
    last: Last,
}

impl Captured for Recorded<'_> {
    fn size(&self) -> (usize, usize) {
        let graphs = || std::iter::once(&self.encode).chain(&self.walk);
        (graphs().map(Graph::nodes).sum(), graphs().map(Graph::memory).sum())
    }
}

impl<'a> Classifier<'a> {
    /// `schedule` and `lambda` are those of training.
    pub fn new(
        model: &'a Model,
        schedule: &'a Schedule,
        lambda: f64,
        config: &'a SampleConfig,
    ) -> Result<Classifier<'a>> {
        let projection = projection(model, config.noise)?;
        Ok(Classifier { model, schedule, lambda, config, projection, graphs: Graphs::new() })
    }

    /// Whether repeated batches of one size may run as a captured graph on a GPU. The results are the same.
    #[must_use]
    pub fn with_graphs(mut self, wanted: bool) -> Classifier<'a> {
        self.graphs.allow(wanted);
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
                r.walk.as_ref().map_or(Ok(()), Graph::launch)?;
                r.last.logits()
            })
        };
        // One id goes with each image; anything else is refused where it is run directly.
        let key = images.shape().iter().copied().chain([examples.len()]).collect();
        self.graphs.run(&self.model.device(), key, direct, |c| self.record(c, images, examples), replay)
    }

    /// As [`Classifier::logits`], step by step: `each` sees every prediction.
    pub fn watched(&self, images: &Tensor, examples: &[u32], each: &mut dyn FnMut(&Prediction)) -> Result<Vec<f32>> {
        let Some(projection) = &self.projection else { return self.twin(images)?.logits() };
        let network = Conditioned::new(self.model, Some(images), 1, self.guided())?;
        self.voted(|seed| {
            let addresses = Addresses::new(&self.model.device(), examples, seed)?;
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
        let to = (addresses, self.model.sizes().tokens);
        last_of(network, projection, self.schedule, self.config, to, self.lambda, each)
    }

    /// The masked twin's single pass.
    fn twin(&self, images: &Tensor) -> Result<Last> {
        let (tape, m) = (Tape::inference(), self.model);
        let p = Pass::inference(&tape, &m.params, m.dtype());
        let f = m.masked_features(&p, &m.condition(&p, images)?)?;
        let logits = m.logits(&p, &f)?.value().clone();
        let (examples, vocab) = (images.shape().first().copied().unwrap_or(0), m.sizes().vocab);
        Ok(Last { logits, guidance: None, examples, vocab })
    }

    fn record(&self, c: &Cuda, images: &Tensor, examples: &[u32]) -> Result<Recorded<'a>> {
        let device = self.model.device();
        let images = Tensor::zeros(&device, images.shape(), images.dtype())?;
        let addresses = Addresses::new(&device, examples, self.config.seed)?;
        let Some(projection) = &self.projection else {
            let (encode, last) = c.capture(|| self.twin(&images))?;
            return Ok(Recorded { images, addresses, encode, _network: None, walk: None, last });
        };
        let (encode, network) = c.capture(|| {
            let network = Conditioned::new(self.model, Some(&images), 1, self.guided())?;
            network.prepare(examples.len(), self.guided())?;
            Ok::<_, Error>(network)
        })?;
        let (walk, last) = c.capture(|| self.sample(&network, projection, &addresses, &mut |_| {}))?;
        Ok(Recorded { images, addresses, encode, _network: Some(network), walk: Some(walk), last })
    }

    /// `logits` of the configured seed, or the vote over several.
    fn voted(&self, mut logits: impl FnMut(u64) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        let (votes, seed, vocab) = (self.config.votes, self.config.seed, self.model.sizes().vocab);
        if votes == 1 || self.projection.is_none() {
            return logits(seed);
        }
        let mut mean = Vec::new();
        for vote in 0..votes {
            let logits = logits(seed.wrapping_add(vote as u64))?;
            mean.resize(logits.len(), 0.0_f64);
            for (m, l) in mean.chunks_exact_mut(vocab).zip(logits.chunks_exact(vocab)) {
                m.iter_mut().zip(softmax(l)).for_each(|(m, p)| *m += p / votes as f64);
            }
        }
        Ok(mean.into_iter().map(|p| p.max(1e-30).ln() as f32).collect())
    }
}

/// [`Classifier::watched`] of one batch.
pub fn classify(
    model: &Model,
    images: &Tensor,
    examples: &[u32],
    schedule: &Schedule,
    lambda: f64,
    config: &SampleConfig,
    mut each: impl FnMut(&Prediction),
) -> Result<Vec<f32>> {
    Classifier::new(model, schedule, lambda, config)?.watched(images, examples, &mut each)
}
