//! What `caption` and `generate` share: sampling flags, templates with gaps, ranked candidates.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::config::{Rank, SampleConfig, SamplerKind, Unmasking};
use tweedie::generate::{Facts, RANK_DRAWS, Text, TextRequest, Wishes, batch_size, infill, prompt};
use tweedie::run::Loaded;
use tweedie::{Generator, Tensor};
use tweedie_figures::Picture;

use super::trace::{self, Trace};
use crate::failure::{Failure, Result};
use crate::shared::model_args::ModelArgs;
use crate::shared::names::{RANKS, SAMPLERS, SCHEDULES, UNMASKINGS, one_of};
use crate::shared::numbers;

/// Candidates for each token in a trace, as many as `tweedie trace` shows by itself.
const TOP: usize = 5;

#[derive(clap::Args)]
pub struct WritingArgs {
    /// Sampling steps
    #[arg(long, value_name = "S", value_parser = numbers::whole(1..=100_000))]
    steps: Option<usize>,
    /// Guidance weight (1: none)
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// How a noisy vector becomes the next one
    #[arg(long, value_name = "NAME", value_parser = one_of::<SamplerKind>(SAMPLERS))]
    sampler: Option<SamplerKind>,
    /// Masked twin, and TDD trained with clean tokens: commit tokens at random (TDD: none before the end) or the most
    /// confident first
    #[arg(long, value_name = "NAME", value_parser = one_of::<Unmasking>(UNMASKINGS))]
    unmask: Option<Unmasking>,
    /// What TDD trained with clean tokens shows of those not committed yet: from pure noise (0) to predictions with
    /// the noise of the step (1)
    #[arg(long, alias = "guesses", value_name = "SHARE")]
    uncommitted: Option<f32>,
    /// Masked twin, and TDD trained with clean tokens: the share of committed tokens that each step takes back and chooses anew
    #[arg(long, value_name = "SHARE")]
    correction: Option<f32>,
    /// TDD with per-token time: tokens start one after another, on a way so many times as long as a token's own (1: all share one
    /// time; 0: as it was trained)
    #[arg(long, value_name = "N")]
    stagger: Option<usize>,
    /// Follow the noise levels of another schedule
    #[arg(long, value_name = "NAME", value_parser = SCHEDULES)]
    schedule: Option<String>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
    /// Text with gaps to fill: each underscore is one token, e.g. "a __ dog"; what follows the last fixed token is free
    #[arg(long, value_name = "TEXT")]
    infill: Option<String>,
    /// Exactly this many tokens
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    length: Option<usize>,
    /// At least this many tokens
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = numbers::whole(0..=1 << 16))]
    min_length: usize,
    /// Write this many and rank them
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    candidates: Option<usize>,
    /// Rank by the model's own bound on their likelihood (bound) or by how alike each is to the others (consensus)
    #[arg(long, value_name = "NAME", value_parser = one_of::<Rank>(RANKS))]
    rank: Option<Rank>,
    /// Write how the first text came about, step by step, as a page (.html) or as JSON (.json)
    #[arg(long, value_name = "FILE", value_parser = trace::file)]
    trace: Option<(PathBuf, trace::Form)>,
    /// Times drawn for each bound
    #[arg(long, default_value_t = RANK_DRAWS, value_name = "N", value_parser = numbers::whole(1..=100_000))]
    draws: usize,
}

/// One text.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    pub text: String,
    /// Bound on −ln p in nats with its standard error, where candidates were ranked by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<(f64, f64)>,
    /// Likeness to the other candidates, where they were ranked by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consensus: Option<f64>,
}

impl WritingArgs {
    /// The run's sampling settings, changed by the flags.
    pub fn sample(&self, loaded: &Loaded) -> Result<SampleConfig> {
        let asked = Wishes {
            steps: self.steps,
            guidance: self.guidance,
            sampler: self.sampler,
            unmask: self.unmask,
            uncommitted: self.uncommitted,
            correction: self.correction,
            stagger: self.stagger,
            schedule: self.schedule.clone(),
            seed: self.seed,
            candidates: self.candidates,
            rank: self.rank,
            running_mean: None,
            votes: None,
        };
        Ok(asked.over(&loaded.config.sample, Facts::of(&loaded.trained.model))?)
    }

    /// Fixed tokens by `--infill`, or else by `start`.
    fn fixed(&self, loaded: &Loaded, start: Option<&str>) -> Result<Option<Vec<Option<u32>>>> {
        let (tokenizer, n) = (loaded.trained.tokenizer()?, loaded.trained.model.sizes().tokens);
        Ok(match (&self.infill, start) {
            (Some(_), Some(_)) => return Err(Failure::input("give --prompt or --infill, not both")),
            (Some(text), None) => Some(infill(tokenizer, n, text)?),
            (None, Some(text)) => Some(prompt(tokenizer, n, text)?),
            (None, None) => None,
        })
    }
}

/// A model, ready to write by the flags.
pub struct Writer<'a> {
    args: &'a WritingArgs,
    run: &'a Path,
    loaded: &'a Loaded,
    sample: &'a SampleConfig,
    generator: Generator<'a>,
    /// One row of tokens and gaps.
    fixed: Option<Vec<Option<u32>>>,
    /// A trace is asked for and not written yet.
    untraced: bool,
}

impl<'a> Writer<'a> {
    /// `sample` is what [`WritingArgs::sample`] gave; texts begin with `start`.
    pub fn new(
        args: &'a WritingArgs,
        model: &'a ModelArgs,
        loaded: &'a Loaded,
        sample: &'a SampleConfig,
        start: Option<&str>,
    ) -> Result<Writer<'a>> {
        Ok(Writer {
            args,
            run: &model.run,
            loaded,
            sample,
            generator: Generator::new(&loaded.trained, sample)?.with_draws(args.draws),
            fixed: args.fixed(loaded, start)?,
            untraced: args.trace.is_some(),
        })
    }

    /// How many examples to write for next. Candidates are a batch by themselves, and so is a text to be traced.
    pub fn batch(&self) -> usize {
        if self.sample.candidates > 1 || self.untraced { 1 } else { batch_size(&self.loaded.trained) }
    }

    /// Whether the next text will be traced.
    pub fn will_trace(&self) -> bool {
        self.untraced
    }

    /// Of each example its texts, the best first if there are several. `images` has one for each, if the model looks at
    /// them; `input` is the first of them, for a trace.
    pub fn write(
        &mut self,
        images: Option<&Tensor>,
        examples: &[u32],
        input: Option<(&Path, Picture)>,
    ) -> Result<Vec<Vec<Written>>> {
        let (args, n) = (self.args, self.loaded.trained.model.sizes().tokens);
        let (length, min_length) = (args.length, args.min_length);
        if min_length > n {
            return Err(Failure::input(format!("--min-length {min_length}: the model writes {n} tokens at most")));
        }
        let trace = self.untraced.then_some(TOP);
        let fixed = self.fixed.as_deref();
        let request = TextRequest { images, fixed, length, min_length, trace, ..TextRequest::new(examples) };
        let mut made = self.generator.generate(&request)?;
        let first = made.first_mut().and_then(|texts| texts.first_mut());
        if let (true, Some((path, form)), Some(best)) = (self.untraced, &args.trace, first) {
            let told = (best.text.clone(), std::mem::take(&mut best.steps));
            Trace::new(self.run, self.loaded, self.sample, input, told).write(path, *form)?;
            self.untraced = false;
        }
        let written = |t: Text| Written { text: t.text, nats: t.nats, consensus: t.consensus };
        Ok(made.into_iter().map(|texts| texts.into_iter().map(written).collect()).collect())
    }
}
