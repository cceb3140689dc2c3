//! `tweedie eval` of captions and text.

use std::path::Path;

use serde::Serialize;
use serde_json::json;
use tweedie::config::{Rank, SampleConfig, Sampler, Unmasking};
use tweedie::data::{Sequences, Task};
use tweedie::metrics::captions::{CaptionScores, Intervals};
use tweedie::metrics::{Diversity, diversity};
use tweedie::run::Loaded;
use tweedie::texts::{self, Captions};

use super::eval::{Args, Split};
use super::sequence_args::open_sequences;
use super::train::note;
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table};

/// Draws of the bootstrap.
const DRAWS: usize = 1000;

/// Flags that only captions and text have.
#[derive(clap::Args)]
pub struct TextArgs {
    /// Captions and text: the bound on −ln p from this many times per sequence (0: none for captions, 8 for text)
    #[arg(long, default_value_t = 0, value_name = "DRAWS")]
    bound: usize,
    /// Captions: print this many with their references
    #[arg(long, default_value_t = 0, value_name = "N")]
    examples: usize,
    /// Captions: write captions (of the last row) and references as COCO JSON into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<std::path::PathBuf>,
    /// Masked twin: reveal tokens at random or the most confident first
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    unmask: Vec<String>,
    /// Captions: write this many for each image and score the best of them
    #[arg(long, value_name = "N")]
    candidates: Option<usize>,
    /// Captions: which candidate is the best, by the model's own bound (bound) or by likeness to the others (consensus)
    #[arg(long, value_name = "NAME")]
    rank: Option<String>,
}

#[derive(Serialize)]
struct Row {
    sampler: Sampler,
    #[serde(skip_serializing_if = "Option::is_none")]
    unmask: Option<Unmasking>,
    steps: usize,
    guidance: f32,
    candidates: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<Rank>,
    exact: f64,
    #[serde(flatten)]
    scores: CaptionScores,
    intervals: Intervals,
    diversity: Diversity,
    skipped: usize,
}

/// A bound in nats and bits per token and, where the tokens are characters or decode to them, per character.
#[derive(Serialize)]
struct Bound {
    sequences: usize,
    tokens: f64,
    nats_per_token: f64,
    error: f64,
    bits_per_token: f64,
    bits_per_char: f64,
    bits_per_char_error: f64,
    chars: u64,
}

/// The split that `args` names.
fn sequences(args: &Args, loaded: &Loaded) -> Result<(Sequences, String)> {
    let set = open_sequences(&loaded.config.data, loaded.config.seed)?;
    let (texts, origin) = match args.split {
        Split::Final => set.final_split()?,
        Split::Val => (set.val()?, set.val_origin.as_str()),
        Split::Train => (set.train()?, "the training split"),
    };
    let tokenizer = loaded.trained.tokenizer()?.clone();
    Ok((Sequences::new(texts.clone(), tokenizer, &loaded.config.data.sequence_config())?, origin.into()))
}

/// Flags that mean nothing for this model are refused: a table should not seem to answer them.
fn check(args: &Args, loaded: &Loaded) -> Result<()> {
    let text = loaded.config.data.task == Task::Text;
    let tdd = loaded.trained.model.is_tdd();
    for (given, flag, why) in [
        (text && !args.steps.is_empty(), "--steps", "text is measured by its bound, which needs no sampler"),
        (text && !args.sampler.is_empty(), "--sampler", "text is measured by its bound, which needs no sampler"),
        (text && !args.guidance.is_empty(), "--guidance", "text is measured by its bound, which needs no sampler"),
        (args.votes.is_some(), "--votes", "captions are not voted on"),
        (args.start.is_some(), "--start", "sequences start from noise"),
        (args.per_class, "--per-class", "sequences have no classes"),
        (tdd && !args.text.unmask.is_empty(), "--unmask", "this model masks nothing"),
        (!tdd && args.schedule.is_some(), "--schedule", "masking has no noise levels"),
    ] {
        if given {
            return Err(Failure::input(format!("{flag} has no meaning here: {why}")));
        }
    }
    Ok(())
}

pub fn run(args: &Args, loaded: &Loaded) -> Result<()> {
    check(args, loaded)?;
    let (source, origin) = sequences(args, loaded)?;
    note(&format!("{}: step {}, {} sequences ({origin})", loaded.checkpoint.display(), loaded.step, source.len()));
    match loaded.config.data.task {
        Task::Caption => captions(args, loaded, &source),
        _ => {
            let draws = if args.text.bound == 0 { 8 } else { args.text.bound };
            let b = bound(args, loaded, &source, draws)?;
            if args.json { report::print_json(&b) } else { report::print(&bound_text(&b)) }
        }
    }
}

fn bound(args: &Args, loaded: &Loaded, source: &Sequences, draws: usize) -> Result<Bound> {
    let (b, chars) = texts::bound(&loaded.trained, source, &loaded.config, draws, args.limit)?;
    let (estimate, tokens) = (b.per_token(), b.weight.iter().sum::<f64>());
    let bits = estimate.in_bits();
    let per_char = tokens / chars.max(1) as f64;
    Ok(Bound {
        sequences: b.nats.len(),
        tokens,
        nats_per_token: estimate.mean,
        error: estimate.error,
        bits_per_token: bits.mean,
        bits_per_char: bits.mean * per_char,
        bits_per_char_error: bits.error * per_char,
        chars,
    })
}

fn bound_text(b: &Bound) -> String {
    use Align::Right;
    let heads = ["sequences", "tokens", "nats/token", "±", "bits/token", "bits/char", "±"];
    let mut t = Table::new(&heads.map(|h| (h, Right)));
    t.row(vec![
        b.sequences.to_string(),
        format!("{:.0}", b.tokens),
        format!("{:.4}", b.nats_per_token),
        format!("{:.4}", b.error),
        format!("{:.4}", b.bits_per_token),
        format!("{:.4}", b.bits_per_char),
        format!("{:.4}", b.bits_per_char_error),
    ]);
    format!("{}\nUpper bounds on −log p; ±: one standard error.\n", t.render())
}

fn captions(args: &Args, loaded: &Loaded, source: &Sequences) -> Result<()> {
    let tdd = loaded.trained.model.is_tdd();
    let mut base = loaded.config.sample.clone();
    base.seed = args.seed.unwrap_or(base.seed);
    base.schedule = args.schedule.clone().unwrap_or(base.schedule);
    base.candidates = args.text.candidates.unwrap_or(base.candidates);
    if let Some(name) = &args.text.rank {
        base.rank = super::eval::parse("way to rank", name, "bound or consensus")?;
    }
    let or = |given: Vec<SampleConfig>, base: &SampleConfig| if given.is_empty() { vec![base.clone()] } else { given };
    let mut settings = vec![base];
    // Every combination of what the flags list.
    for axis in 0..4 {
        let mut next = Vec::new();
        for s in &settings {
            let changed: Vec<SampleConfig> = match axis {
                0 => {
                    let all = args.sampler.iter().map(|n| super::eval::sampler(n));
                    all.map(|x| Ok(SampleConfig { sampler: x?, ..s.clone() })).collect::<Result<_>>()?
                }
                1 => args.guidance.iter().map(|&guidance| SampleConfig { guidance, ..s.clone() }).collect(),
                2 => args.steps.iter().map(|&steps| SampleConfig { steps, ..s.clone() }).collect(),
                _ => {
                    let all = args
                        .text
                        .unmask
                        .iter()
                        .map(|n| super::eval::parse::<Unmasking>("way to unmask", n, "random or confident"));
                    all.map(|x| Ok(SampleConfig { unmask: x?, ..s.clone() })).collect::<Result<_>>()?
                }
            };
            next.extend(or(changed, s));
        }
        settings = next;
    }
    if settings.iter().any(|s| s.steps == 0 || s.candidates == 0) {
        return Err(Failure::input("--steps and --candidates must be at least 1"));
    }
    let (mut rows, mut last) = (Vec::new(), Captions::default());
    for s in &settings {
        last = texts::captions(&loaded.trained, source, &loaded.config, s, args.limit)?;
        let scores = last.scores()?;
        rows.push(Row {
            sampler: s.sampler,
            unmask: (!tdd).then_some(s.unmask),
            steps: s.steps,
            guidance: s.guidance,
            candidates: s.candidates,
            rank: (s.candidates > 1).then_some(s.rank),
            exact: last.exact(),
            intervals: scores.bootstrap(DRAWS, 0),
            scores,
            diversity: diversity(&last.texts),
            skipped: last.skipped.count(),
        });
    }
    last.skipped.errors.values().take(5).for_each(|e| note(&format!("left out: {e}")));
    if let Some(dir) = &args.text.out {
        write(dir, &last)?;
    }
    let bound = match args.text.bound {
        0 => None,
        draws => Some(bound(args, loaded, source, draws)?),
    };
    if args.json {
        let shown: Vec<_> = examples(source, &last, args.text.examples)
            .map(|(place, text, refs)| json!({ "place": place, "caption": text, "references": refs }))
            .collect();
        return report::print_json(&json!({ "rows": rows, "bound": bound, "examples": shown }));
    }
    report::print(&table(&rows))?;
    for (place, text, refs) in examples(source, &last, args.text.examples) {
        report::print(&format!("\n{place}\n  {text}\n  ({})\n", refs.join(" | ")))?;
    }
    match bound {
        Some(b) => report::print(&format!("\n{}", bound_text(&b))),
        None => Ok(()),
    }
}

/// Place, caption and references of the first `n`.
fn examples<'a>(
    source: &'a Sequences,
    c: &'a Captions,
    n: usize,
) -> impl Iterator<Item = (String, &'a String, &'a Vec<String>)> {
    let all = c.indices.iter().zip(&c.texts).zip(&c.references);
    all.take(n).map(|((i, text), refs)| (source.place(*i as usize), text, refs))
}

fn table(rows: &[Row]) -> String {
    use Align::{Left, Right};
    let heads = [
        ("sampler", Left),
        ("steps", Right),
        ("guidance", Right),
        ("best of", Left),
        ("CIDEr-D", Right),
        ("95 %", Left),
        ("BLEU-1", Right),
        ("BLEU-4", Right),
        ("ROUGE-L", Right),
        ("exact %", Right),
        ("unique %", Right),
        ("repeated word %", Right),
        ("images", Right),
    ];
    let mut t = Table::new(&heads);
    for r in rows {
        let sampler = match &r.unmask {
            None => name(r.sampler),
            Some(u) => format!("MDD {}, {}", name(u), name(r.sampler)),
        };
        let s = &r.scores;
        t.row(vec![
            sampler,
            r.steps.to_string(),
            r.guidance.to_string(),
            r.rank.map_or("1".into(), |rank| format!("{} by {}", r.candidates, name(rank))),
            format!("{:.3}", s.cider_d),
            format!("{:.3}–{:.3}", r.intervals.cider_d[0], r.intervals.cider_d[1]),
            format!("{:.3}", s.bleu[0]),
            format!("{:.3}", s.bleu[3]),
            format!("{:.3}", s.rouge_l),
            format!("{:.1}", 100.0 * r.exact),
            format!("{:.1}", 100.0 * r.diversity.unique),
            format!("{:.1}", 100.0 * r.diversity.repeated),
            s.images.to_string(),
        ]);
    }
    t.render()
}

/// A setting by the name it has in configurations.
fn name(v: impl Serialize) -> String {
    serde_json::to_value(v).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}

/// `captions.json` as COCO wants results, `references.json` as COCO gives captions: what `tweedie score` reads.
fn write(dir: &Path, c: &Captions) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let captions: Vec<_> =
        c.indices.iter().zip(&c.texts).map(|(i, text)| json!({ "image_id": i, "caption": text })).collect();
    let images: Vec<_> = c.indices.iter().map(|i| json!({ "id": i })).collect();
    let refs = c.indices.iter().zip(&c.references).flat_map(|(i, refs)| refs.iter().map(move |r| (i, r)));
    let annotations: Vec<_> =
        refs.enumerate().map(|(id, (i, r))| json!({ "id": id, "image_id": i, "caption": r })).collect();
    for (name, value) in [
        ("captions.json", json!(captions)),
        ("references.json", json!({ "images": images, "annotations": annotations })),
    ] {
        tweedie::files::write_atomic(&dir.join(name), &serde_json::to_vec(&value)?)?;
    }
    note(&format!("wrote {}", dir.display()));
    Ok(())
}
