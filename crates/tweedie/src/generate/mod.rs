//! From a request to texts, one way for everybody: commands, evaluation, previews, traces.
//!
//! [`Generator`] samples tokens ([`TokenSampler`]), ends texts where the data have ends, makes words of them, ranks candidates and
//! tells how each came about.

mod ends;
mod page;
mod rank;
mod score;
mod template;
mod trace;
mod wishes;

pub(crate) use ends::ending_of;
pub use ends::{bound_of_texts, bound_of_texts_along, free_ending};
pub use page::trace_page;
pub(crate) use rank::ranked;
pub use rank::{CandidateScores, consensus, score_candidates};
pub use score::TextScore;
pub use template::{infill, prompt};
pub use trace::{Step, Token};
pub use wishes::{Facts, Refusal, UsedFlags, Wishes};

use std::path::Path;
use std::rc::Rc;

use tweedie_engine::cpu::batch_invariant;
use tweedie_engine::{Device, Tensor};

use crate::config::{Precision, SampleConfig};
use crate::data::Image;
use crate::error::{Error, Result};
use crate::limits::fits;
use crate::run::{self, Weights};
use crate::sample::{GraphUse, Request, Sampler, TokenSampler};
use crate::trained::{Shared, Trained};

/// Times drawn for each bound that candidates are ranked by, unless told otherwise.
pub const RANK_DRAWS: usize = 16;

/// How many texts are worked on at a time.
pub fn batch_size(t: &Trained) -> usize {
    if t.model.device() == Device::Cpu { 32 } else { 256 }
}

/// What to write.
///
/// ```
/// use std::sync::Arc;
/// use tweedie::config::SampleConfig;
/// use tweedie::engine::{DType, Device};
/// use tweedie::generate::{TextRequest, prompt};
/// use tweedie::model::{DenoiserConfig, Model, ModelConfig, Sizes};
/// use tweedie::tokenize::{Kind, Tokenizer};
/// use tweedie::{Generator, Process, Schedule, ScheduleKind, Trained};
///
/// let tokenizer = Arc::new(Tokenizer::train(Kind::Chars, 99, ["abba", "baba"])?);
/// let sizes = Sizes { vocab: tokenizer.vocab(), tokens: 6 };
/// let config = ModelConfig { denoiser: DenoiserConfig::new(16, 1, 2), ..ModelConfig::preset("text")? };
/// let model = Model::new(&config, sizes, &Device::Cpu, DType::F32, 0)?;
/// let process = Process::new(Schedule::new(ScheduleKind::Cosine, 1000, sizes.vocab)?);
/// let fixed = prompt(&tokenizer, sizes.tokens, "ab")?;
/// let trained = Trained { tokenizer: Some(tokenizer), ..Trained::bare(model, process) };
/// let generator = Generator::new(&trained, &SampleConfig { steps: 3, ..SampleConfig::default() })?;
///
/// // Two texts of five letters, of which the first two are fixed.
/// let wanted = TextRequest { fixed: Some(&fixed), length: Some(5), ..TextRequest::new(&[0, 1]) };
/// let texts = generator.generate(&wanted)?;
/// assert!(texts.len() == 2 && texts.iter().all(|t| t[0].text.starts_with("ab") && t[0].text.len() == 5));
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct TextRequest<'a> {
    /// Images \[B, channels, side, side\] ([`Trained::images`]); `None` for an unconditional model.
    pub images: Option<&'a Tensor>,
    /// One id per text: they address the noise, so the same id gets the same text in any batch.
    pub examples: &'a [u32],
    /// A row of N tokens that all texts have, and gaps ([`prompt`], [`infill`]).
    pub fixed: Option<&'a [Option<u32>]>,
    /// Exactly this many tokens; `None`: as the model likes.
    pub length: Option<usize>,
    /// At least this many tokens, where texts have an end.
    pub min_length: usize,
    /// Tell of every step, with this many of the most likely tokens (at most 8).
    pub trace: Option<usize>,
}

impl<'a> TextRequest<'a> {
    /// A free text for each of `examples`.
    pub fn new(examples: &'a [u32]) -> TextRequest<'a> {
        TextRequest { images: None, examples, fixed: None, length: None, min_length: 1, trace: None }
    }
}

/// One text.
#[derive(Clone, Debug)]
pub struct Text {
    /// In words.
    pub text: String,
    /// In tokens, with padding behind its end.
    pub tokens: Vec<u32>,
    /// Bound on −ln p in nats with its standard error, where candidates were ranked by it.
    pub nats: Option<(f64, f64)>,
    /// Likeness to the other candidates, where they were ranked by it.
    pub consensus: Option<f64>,
    /// How it came about, if that was asked for.
    pub steps: Vec<Step>,
}

/// Rows of `tokens` as texts, which have an end or not. What stands behind one becomes padding.
pub(crate) fn texts_of(t: &Trained, tokens: &mut [u32], log_probs: &[f32], end: bool) -> Result<Vec<Text>> {
    let (tokenizer, n) = (t.tokenizer()?, t.model.sizes().tokens);
    if log_probs.iter().any(|p| p.is_nan()) {
        return Err(Error::Input("the model's predictions are not numbers; use an earlier checkpoint".into()));
    }
    if end {
        ends::pad_behind_end(tokens, n, tokenizer);
    }
    let text = |row: &[u32]| if end { tokenizer.decode(row) } else { tokenizer.decode_packed(row) };
    let one =
        |row: &[u32]| Text { text: text(row), tokens: row.to_vec(), nats: None, consensus: None, steps: Vec::new() };
    Ok(tokens.chunks_exact(n).map(one).collect())
}

/// A trained model that writes captions or texts.
///
/// ```no_run
/// use tweedie::{Generator, Image};
///
/// let generator = Generator::open("runs/captions")?;
/// let image = Image::open("photo.jpg")?;
/// println!("{}", generator.captions(&[image])?[0]);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Generator<'a> {
    trained: Shared<'a, Trained>,
    sample: SampleConfig,
    sampler: TokenSampler<'a>,
    draws: usize,
}

impl Generator<'static> {
    /// The model of a run folder or checkpoint, with its averaged weights and its own sampling settings, on the best device.
    pub fn open(run: impl AsRef<Path>) -> Result<Generator<'static>> {
        let device = Device::auto()?;
        let loaded = run::load(run.as_ref(), Weights::Ema, &device, Precision::Auto)?;
        Generator::new(Rc::new(loaded.trained), &loaded.config.sample)
    }
}

impl<'a> Generator<'a> {
    /// A model of captions or text, sampled by these settings.
    pub fn new(trained: impl Into<Shared<'a, Trained>>, sample: &SampleConfig) -> Result<Generator<'a>> {
        let trained = trained.into();
        trained.tokenizer()?;
        let sampler = TokenSampler::new(trained.clone(), sample)?;
        Ok(Generator { trained, sample: sample.clone(), sampler, draws: RANK_DRAWS })
    }

    /// Sample by a sampler of your own.
    #[must_use]
    pub fn with_sampler(self, sampler: impl Sampler + 'static) -> Generator<'a> {
        Generator { sampler: self.sampler.with_sampler(sampler), ..self }
    }

    /// Draw so many times for each bound that candidates are ranked by.
    #[must_use]
    pub fn with_draws(self, draws: usize) -> Generator<'a> {
        Generator { draws, ..self }
    }

    /// Whether repeated batches of one size may run as a captured graph on a GPU. The results are the same.
    #[must_use]
    pub fn with_graphs(self, wanted: bool) -> Generator<'a> {
        Generator { sampler: self.sampler.with_graphs(wanted), ..self }
    }

    /// What became of its graphs.
    pub fn graph_use(&self) -> GraphUse {
        self.sampler.graph_use()
    }

    /// The model.
    pub fn trained(&self) -> &Trained {
        &self.trained
    }

    /// A caption for each image, the best of `sample.candidates`. The noise is the same for all: a caption does not depend on what
    /// else is asked for.
    pub fn captions(&self, images: &[Image]) -> Result<Vec<String>> {
        let mut all = Vec::with_capacity(images.len());
        for part in images.chunks(batch_size(&self.trained)) {
            let (images, ids) = (self.trained.images(part)?, vec![0; part.len()]);
            let texts = self.generate(&TextRequest { images: Some(&images), ..TextRequest::new(&ids) })?;
            all.extend(texts.into_iter().filter_map(|t| t.into_iter().next()).map(|t| t.text));
        }
        Ok(all)
    }

    /// `count` texts of a model that is told nothing.
    pub fn texts(&self, count: u32) -> Result<Vec<String>> {
        let ids: Vec<u32> = (0..count).collect();
        let mut all = Vec::with_capacity(ids.len());
        for part in ids.chunks(batch_size(&self.trained)) {
            let texts = self.generate(&TextRequest::new(part))?;
            all.extend(texts.into_iter().filter_map(|t| t.into_iter().next()).map(|t| t.text));
        }
        Ok(all)
    }

    /// Of each example its `sample.candidates` texts, the best first. On the CPU they do not depend on what else is asked for, to the
    /// last bit.
    pub fn generate(&self, r: &TextRequest) -> Result<Vec<Vec<Text>>> {
        batch_invariant(|| self.generate_all(r))
    }

    fn generate_all(&self, r: &TextRequest) -> Result<Vec<Vec<Text>>> {
        let (t, k) = (&*self.trained, self.sample.candidates);
        let n = t.model.sizes().tokens;
        if r.min_length > n {
            return Err(Error::Input(format!(
                "at least {} tokens are wanted, the model writes {n} at most",
                r.min_length
            )));
        }
        let logits =
            [r.examples.len(), k, n, t.model.sizes().vocab].iter().fold(4, |b: u128, s| b.saturating_mul(*s as u128));
        fits(format!("a batch of {} × {k} texts", r.examples.len()), logits).map_err(Error::Input)?;
        let ending = ends::ending_of(t, r.length, r.min_length)?;
        let fixed = r.fixed.map(|row| row.repeat(r.examples.len()));
        let top = r.trace.map(|top| top.min(t.model.sizes().vocab));
        let request = Request {
            fixed: fixed.as_deref(),
            ending,
            candidates: k,
            trace: top,
            ..Request::new(r.images, r.examples)
        };
        let mut made = self.sampler.generate(&request)?;
        let mut all = texts_of(t, &mut made.tokens, &made.log_probs, ending.is_some())?;
        if let Some(top) = top {
            for (i, text) in all.iter_mut().enumerate() {
                text.steps = trace::steps_of(t, &made.steps, i, top)?;
            }
        }
        if k > 1 {
            let by = (k, self.sample.rank, self.draws);
            all = rank::ranked(t, (r.images, r.examples), all, &made.tokens, by)?;
        }
        let mut all = all.into_iter();
        Ok(r.examples.iter().map(|_| all.by_ref().take(k).collect()).collect())
    }
}
