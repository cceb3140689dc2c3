//! What `caption` and `generate` share: sampling flags, templates with gaps, ranked candidates.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tweedie::config::SampleConfig;
use tweedie::data::Layout;
use tweedie::rank::{Merit, merits};
use tweedie::run::Loaded;
use tweedie::sample::{Ending, Generator, Request};
use tweedie::texts::{batch_size, end, free_ending};
use tweedie::tokenize::Tokenizer;
use tweedie_engine::Tensor;
use tweedie_figures::Picture;

use super::trace::{self, Trace};
use crate::commands::measure::eval;
use crate::failure::{Failure, Result};
use crate::shared::model_args::ModelArgs;
use crate::shared::sampling_flags::Given;

/// Candidates for each token in a trace, as many as `tweedie trace` shows by itself.
const TOP: usize = 5;

#[derive(clap::Args)]
pub struct WritingArgs {
    /// Sampling steps
    #[arg(long, value_name = "S")]
    steps: Option<usize>,
    /// Guidance weight (1: none)
    #[arg(long, value_name = "W")]
    guidance: Option<f32>,
    /// argmax, multinomial, softmax, ddim or ancestral
    #[arg(long, value_name = "NAME")]
    sampler: Option<String>,
    /// Masked twin, and TDD trained with known tokens: settle tokens at random (TDD: none before the end) or the most
    /// confident first
    #[arg(long, value_name = "NAME")]
    unmask: Option<String>,
    /// What TDD trained with known tokens shows of those not settled: from pure noise (0) to guesses with the noise of the step
    /// (1)
    #[arg(long, value_name = "SHARE")]
    guesses: Option<f32>,
    /// Follow the noise levels of another schedule
    #[arg(long, value_name = "NAME")]
    schedule: Option<String>,
    /// Seed of the sampling noise
    #[arg(long)]
    seed: Option<u64>,
    /// Text with gaps to fill: each underscore is one token, e.g. "a __ dog"; what follows the last given token is free
    #[arg(long, value_name = "TEXT")]
    infill: Option<String>,
    /// Exactly this many tokens
    #[arg(long, value_name = "N")]
    length: Option<usize>,
    /// At least this many tokens
    #[arg(long, default_value_t = 1, value_name = "N")]
    min_length: usize,
    /// Write this many and rank them
    #[arg(long, value_name = "N")]
    candidates: Option<usize>,
    /// Rank by the model's own bound on their likelihood (bound) or by how alike each is to the others (consensus)
    #[arg(long, value_name = "NAME")]
    rank: Option<String>,
    /// Write how the first text came about, step by step, as a page (.html) or as JSON (.json)
    #[arg(long, value_name = "FILE", value_parser = trace::file)]
    trace: Option<(PathBuf, trace::Form)>,
    /// Times drawn for each bound
    #[arg(long, default_value_t = 16, value_name = "N")]
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

/// The classes of `text`, or an error that names the word that has none.
fn known(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let unknown = |text: &str| tokenizer.encode(text).iter().any(|id| Some(*id) == tokenizer.unk());
    if unknown(text) {
        let word = text.split_whitespace().find(|w| unknown(w)).unwrap_or(text);
        return Err(Failure::input(format!("the model's vocabulary lacks '{word}'"))
            .hint(format!("tweedie tokenizer show RUN/tokenizer.json {word:?}")));
    }
    Ok(tokenizer.encode(text))
}

/// Tokens that a template gives, and gaps; underscores stand for one token each. Where blanks begin tokens, one right before a
/// gap is the beginning of what fills it.
fn template(tokenizer: &Tokenizer, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
    let blanks_begin = tokenizer.blanks_begin_tokens();
    let mut all = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let gap = rest.len() - rest.trim_start_matches('_').len();
        if gap > 0 {
            all.extend(vec![None; gap]);
            rest = &rest[gap..];
            continue;
        }
        let end = rest.find('_').unwrap_or(rest.len());
        let part = &rest[..end];
        let before_gap = end < rest.len() && blanks_begin;
        let part = part.strip_suffix(' ').filter(|_| before_gap).unwrap_or(part);
        if !part.is_empty() {
            all.extend(known(tokenizer, part)?.into_iter().map(Some));
        }
        rest = &rest[end..];
    }
    filled(all, n, text)
}

/// As long as the model's texts, or an error that says that there is no room.
fn filled(mut all: Vec<Option<u32>>, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
    if all.len() > n {
        return Err(Failure::input(format!("'{text}' has {} tokens, the model writes {n}", all.len())));
    }
    all.resize(n, None);
    Ok(all)
}

impl WritingArgs {
    /// The run's sampling settings, changed by the flags.
    pub fn sample(&self, loaded: &Loaded, conditional: bool) -> Result<SampleConfig> {
        let mut s = loaded.config.sample.clone();
        s.steps = self.steps.unwrap_or(s.steps);
        s.guidance = self.guidance.unwrap_or(s.guidance);
        s.seed = self.seed.unwrap_or(s.seed);
        s.schedule = self.schedule.clone().unwrap_or(s.schedule);
        if let Some(name) = &self.sampler {
            s.sampler = eval::sampler(name)?;
        }
        if let Some(name) = &self.unmask {
            s.unmask = eval::parse("way to unmask", name, "random or confident")?;
        }
        s.guesses = self.guesses.unwrap_or(s.guesses);
        s.candidates = self.candidates.unwrap_or(s.candidates);
        if let Some(name) = &self.rank {
            s.rank = eval::parse("way to rank", name, "bound or consensus")?;
        }
        if !conditional && self.guidance.is_some_and(|g| g != 1.0) {
            return Err(Failure::input("--guidance needs an image to guide to; leave it out for text alone"));
        }
        if s.steps == 0 || s.candidates == 0 || self.draws == 0 {
            return Err(Failure::input("--steps, --candidates and --draws must be at least 1"));
        }
        if !(0.0..=1.0).contains(&s.guesses) {
            return Err(Failure::input("--guesses must lie in [0, 1]"));
        }
        let given = Given {
            sampler: self.sampler.is_some(),
            unmask: self.unmask.is_some(),
            guesses: self.guesses.is_some(),
            schedule: self.schedule.is_some(),
        };
        given.check(&loaded.trained.model, std::slice::from_ref(&s))?;
        Ok(s)
    }

    /// Given tokens by `--infill`, or else by `start`.
    fn given(&self, loaded: &Loaded, start: Option<&str>) -> Result<Option<Vec<Option<u32>>>> {
        let text = match (&self.infill, start) {
            (Some(_), Some(_)) => return Err(Failure::input("give --prompt or --infill, not both")),
            (Some(text), None) => text,
            (None, Some(text)) => return Ok(Some(prompt(loaded, text)?)),
            (None, None) => return Ok(None),
        };
        let t = &loaded.trained;
        Ok(Some(template(t.tokenizer()?, t.model.sizes().tokens, text)?))
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
    given: Option<Vec<Option<u32>>>,
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
        let t = &loaded.trained;
        Ok(Writer {
            args,
            run: &model.run,
            loaded,
            sample,
            generator: Generator::new(&t.model, &t.schedule, t.lambda, sample)?,
            given: args.given(loaded, start)?,
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
        let (args, k) = (self.args, self.sample.candidates);
        let t = &self.loaded.trained;
        let (tokenizer, n) = (t.tokenizer()?, t.model.sizes().tokens);
        let lines = self.loaded.config.data.sequence_config().layout == Layout::Lines || args.length.is_some();
        let (length, min_length) = (args.length, args.min_length);
        if min_length > n {
            return Err(Failure::input(format!("--min-length {min_length}: the model writes {n} tokens at most")));
        }
        let ending = lines.then(|| Ending { length, min_length, ..free_ending(tokenizer) });
        let given = self.given.as_ref().map(|row| row.repeat(examples.len()));
        let trace = self.untraced.then_some(TOP.min(t.model.sizes().vocab));
        let request =
            Request { given: given.as_deref(), ending, candidates: k, trace, ..Request::new(images, examples) };
        let generated = self.generator.generate(&request)?;
        let mut made = generated.tokens.clone();
        if lines {
            end(&mut made, n, tokenizer);
        }
        let text = |row: &[u32]| if lines { tokenizer.decode(row) } else { tokenizer.decode_packed(row) };
        let mut all: Vec<Written> =
            made.chunks_exact(n).map(|row| Written { text: text(row), nats: None, consensus: None }).collect();
        let mut order: Vec<usize> = (0..all.len()).collect();
        if k > 1 {
            let merit = merits(t, images, examples, &made, k, self.sample.rank, args.draws)?;
            for (i, w) in all.iter_mut().enumerate() {
                match &merit {
                    Merit::Nats(nats) => w.nats = Some(nats[i]),
                    Merit::Consensus(likeness) => w.consensus = Some(likeness[i]),
                }
            }
            order.chunks_mut(k).for_each(|o| o.sort_by(|a, b| merit.of(*b).total_cmp(&merit.of(*a))));
        }
        if let (Some(top), Some((path, form)), Some(&best)) = (trace, &args.trace, order.first()) {
            let steps = trace::steps_of(self.loaded, &generated, best, top)?;
            let told = (all[best].text.clone(), steps);
            Trace::new(self.run, self.loaded, self.sample, input, told).write(path, *form)?;
            self.untraced = false;
        }
        Ok(order.chunks(k).map(|o| o.iter().map(|&i| all[i].clone()).collect()).collect())
    }
}

/// Tokens at the start. Underscores of a prompt are text.
fn prompt(loaded: &Loaded, text: &str) -> Result<Vec<Option<u32>>> {
    let t = &loaded.trained;
    let ids = known(t.tokenizer()?, text)?;
    filled(ids.into_iter().map(Some).collect(), t.model.sizes().tokens, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::tokenize::Kind;

    #[test]
    fn underscores_are_gaps_of_one_token_each() {
        let t = Tokenizer::train(Kind::Word, 50, ["a red dog on grass", "a red dog on grass"]).unwrap();
        let id = |w: &str| Some(t.encode(w)[0]);
        let row = template(&t, 7, "a __ dog on _").unwrap();
        assert_eq!(row, [id("a"), None, None, id("dog"), id("on"), None, None]);
        assert!(template(&t, 3, "a ____").unwrap_err().to_string().contains("5 tokens"));
        assert!(template(&t, 5, "a zebra").unwrap_err().to_string().contains("lacks"));
    }

    /// The given parts of a template as text, and `_` for each gap.
    fn shown(t: &Tokenizer, text: &str) -> String {
        let row = template(t, 64, text).unwrap();
        let end = row.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
        row[..end].chunk_by(|a, b| a.is_some() && b.is_some()).fold(String::new(), |all, part| {
            let ids: Vec<u32> = part.iter().flatten().copied().collect();
            all + &if ids.is_empty() { "_".to_string() } else { t.decode(&ids) }
        })
    }

    #[test]
    fn blanks_stay_with_the_tokens_they_belong_to() {
        let texts = ["A red dog on the grass", "A red dog on the grass", "A dog"];
        let bpe = Tokenizer::train(Kind::Bpe, 290, texts).unwrap();
        for (given, want) in [
            ("A __ dog", "A__ dog"), // the blank before a gap begins what fills it
            ("A __dog", "A__dog"),
            ("A__ dog", "A__ dog"),
            ("A  __ dog", "A __ dog"),
            (" A _ _ dog on the ", " A__ dog on the "),
        ] {
            assert_eq!(shown(&bpe, given), want, "{given:?}");
        }
        let row = template(&bpe, 9, "A __ dog").unwrap();
        let want = [bpe.encode("A"), bpe.encode(" dog")].map(|ids| ids.into_iter().map(Some).collect::<Vec<_>>());
        assert_eq!(row[..1 + 2 + want[1].len()], [&want[0][..], &[None, None], &want[1]].concat());
        let chars = Tokenizer::train(Kind::Chars, 99, texts).unwrap();
        for given in ["A __ dog", "A __dog", " A _ _ dog on the "] {
            assert_eq!(shown(&chars, given), given);
        }
        for kind in [Kind::Word, Kind::WordPiece, Kind::Space] {
            let t = Tokenizer::train(kind, 60, texts).unwrap();
            assert_eq!(template(&t, 9, "A __ dog ").unwrap(), template(&t, 9, "A__dog").unwrap(), "{kind}");
        }
    }
}
