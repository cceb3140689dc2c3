//! What `caption` and `generate` share: sampling flags, templates with gaps, candidates ranked by the model's own bound.

use serde::Serialize;
use tweedie::config::SampleConfig;
use tweedie::run::Loaded;
use tweedie::sample::{Ending, Generator, Request};
use tweedie::texts::bound_of;
use tweedie::tokenize::{Tokenizer, UNK};
use tweedie_engine::Tensor;

use crate::failure::{Failure, Result};

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
    /// Masked twin: reveal tokens at random or the most confident first
    #[arg(long, value_name = "NAME")]
    unmask: Option<String>,
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
    /// Write this many and rank them by the model's own bound on their likelihood
    #[arg(long, default_value_t = 1, value_name = "N")]
    candidates: usize,
    /// Times drawn for each bound
    #[arg(long, default_value_t = 16, value_name = "N")]
    draws: usize,
}

/// One text.
#[derive(Clone, Debug, Serialize)]
pub struct Written {
    pub text: String,
    /// Bound on −ln p in nats with its standard error, where candidates were ranked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<(f64, f64)>,
}

/// Tokens that a template gives, and gaps; underscores stand for one token each.
fn template(tokenizer: &Tokenizer, n: usize, text: &str) -> Result<Vec<Option<u32>>> {
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
        let ids = tokenizer.encode(&rest[..end]);
        if ids.iter().any(|id| tokenizer.token(*id) == UNK) {
            return Err(Failure::input(format!("the model's vocabulary lacks a word of '{}'", rest[..end].trim()))
                .hint(format!("tweedie tokenizer show RUN/tokenizer.json {:?}", rest[..end].trim())));
        }
        all.extend(ids.into_iter().map(Some));
        rest = &rest[end..];
    }
    if all.len() > n {
        return Err(Failure::input(format!("'{text}' has {} tokens, the model writes {n}", all.len())));
    }
    all.resize(n, None);
    Ok(all)
}

impl WritingArgs {
    /// The run's sampling settings, changed by the flags.
    pub fn sample(&self, base: &SampleConfig) -> Result<SampleConfig> {
        let mut s = base.clone();
        s.steps = self.steps.unwrap_or(s.steps);
        s.guidance = self.guidance.unwrap_or(s.guidance);
        s.seed = self.seed.unwrap_or(s.seed);
        s.schedule = self.schedule.clone().unwrap_or(s.schedule);
        if let Some(name) = &self.sampler {
            s.sampler = super::eval::sampler(name)?;
        }
        if let Some(name) = &self.unmask {
            s.unmask = super::eval::parse("way to unmask", name, "random or confident")?;
        }
        if s.steps == 0 || self.candidates == 0 || self.draws == 0 {
            return Err(Failure::input("--steps, --candidates and --draws must be at least 1"));
        }
        Ok(s)
    }

    /// Given tokens by `--infill`, or else by `start`.
    pub fn given(&self, loaded: &Loaded, start: Option<&str>) -> Result<Option<Vec<Option<u32>>>> {
        let text = match (&self.infill, start) {
            (Some(_), Some(_)) => return Err(Failure::input("give --prompt or --infill, not both")),
            (Some(text), None) => text,
            (None, Some(text)) => return Ok(Some(prompt(loaded, text)?)),
            (None, None) => return Ok(None),
        };
        let t = &loaded.trained;
        Ok(Some(template(t.tokenizer()?, t.model.sizes().tokens, text)?))
    }

    /// Texts for one example, the likeliest first if there are several. `images` is of one image, if the model looks at one.
    pub fn write(
        &self,
        loaded: &Loaded,
        generator: &Generator,
        images: Option<&Tensor>,
        example: u32,
        given: Option<&[Option<u32>]>,
    ) -> Result<Vec<Written>> {
        let t = &loaded.trained;
        let (tokenizer, n) = (t.tokenizer()?, t.model.sizes().tokens);
        let lines = images.is_some() || self.length.is_some();
        let ending = lines.then(|| Ending {
            eos: tokenizer.eos(),
            pad: tokenizer.pad(),
            length: self.length,
            min_length: self.min_length,
        });
        let examples = [example];
        let request = Request { given, ending, candidates: self.candidates, ..Request::new(images, &examples) };
        let made = generator.generate(&request)?;
        let text = |row: &[u32]| if lines { tokenizer.decode(row) } else { tokenizer.decode_packed(row) };
        let mut all: Vec<Written> =
            made.tokens.chunks_exact(n).map(|row| Written { text: text(row), nats: None }).collect();
        if self.candidates > 1 {
            let k = self.candidates;
            let images = match images {
                Some(i) => {
                    let shape = [&[k], &i.shape()[1..]].concat();
                    Some(Tensor::from_f32(&i.device(), &shape, i.to_vec()?.repeat(k))?)
                }
                None => None,
            };
            // The same noise for all of them, so that the text makes the difference.
            let same = vec![example; k];
            let b = bound_of(t, &t.model.device(), images.as_ref(), &made.tokens, &same, tokenizer, self.draws)?;
            all.iter_mut().enumerate().for_each(|(i, w)| w.nats = Some((b.nats[i], b.error[i])));
            all.sort_by(|a, b| a.nats.map_or(0.0, |n| n.0).total_cmp(&b.nats.map_or(0.0, |n| n.0)));
        }
        Ok(all)
    }
}

/// Tokens at the start.
fn prompt(loaded: &Loaded, text: &str) -> Result<Vec<Option<u32>>> {
    let t = &loaded.trained;
    // Underscores of a prompt are text.
    let (tokenizer, n) = (t.tokenizer()?, t.model.sizes().tokens);
    let ids = tokenizer.encode(text);
    if ids.iter().any(|id| tokenizer.token(*id) == UNK) {
        return Err(Failure::input(format!("the model's vocabulary lacks a part of '{text}'")));
    }
    if ids.len() > n {
        return Err(Failure::input(format!("the prompt has {} tokens, the model writes {n}", ids.len())));
    }
    let mut all: Vec<Option<u32>> = ids.into_iter().map(Some).collect();
    all.resize(n, None);
    Ok(all)
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
}
