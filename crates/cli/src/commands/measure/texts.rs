//! `tweedie eval` of captions and text.

mod captions;

use serde::Serialize;
use tweedie::Trained;
use tweedie::bound::BoundPath;
use tweedie::config::{Precision, Rank, SampleConfig, SamplerKind, Unmasking};
use tweedie::data::{Sequences, Task};
use tweedie::evaluate;
use tweedie::generate::{Facts, UsedFlags};
use tweedie::interrupt;
use tweedie::metrics::{Diversity, diversity};
use tweedie::model::Model;
use tweedie::run::Loaded;
use tweedie::train::open_sequences;

use super::curve;
use super::eval::{Args, Split};
use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note, terminal, warn, with_bar};
use crate::shared::names::{RANKS, UNMASKINGS, one_of};
use crate::shared::numbers;
use crate::shared::sampling_flags::meaningless;

/// Flags that only captions and text have.
#[derive(clap::Args)]
pub struct TextArgs {
    /// Captions and text: the bound on −ln p from this many times per sequence (0: none for captions, 8 for text), or from so many steps of
    /// the flow (0: 64 for each length of its path)
    #[arg(long, default_value_t = 0, value_name = "DRAWS", value_parser = numbers::whole(0..=100_000))]
    bound: usize,
    /// Captions and text: the path of the bound: shared (one time for all tokens, TDD's own), staggered:N (tokens start one after another, on a
    /// path N times as long as a token's own: of TDD trained with train.stagger or clean tokens), flow or flow:N (the flow that ddim takes steps
    /// along, without noise on the way, by the shared time or a staggered path), reveal (the masked path, one token at a time: MDD's own, and
    /// of the same TDD) or groups:N (the masked path, N tokens at a time)
    #[arg(long, value_name = "PATH", value_parser = str::parse::<BoundPath>)]
    path: Option<BoundPath>,
    /// Print this many captions with their references, or samples of text
    #[arg(long, default_value_t = 0, value_name = "N")]
    examples: usize,
    /// Text: write this many texts and measure how varied they are
    #[arg(long, default_value_t = 0, value_name = "N")]
    samples: u32,
    /// Captions: CLIPScore by the CLIP model in this folder, as transformers saves it
    #[arg(long, value_name = "FOLDER")]
    clip: Option<std::path::PathBuf>,
    /// Write captions (of the last row) and references as COCO JSON, or the samples of text, into this folder; what a classifier says
    /// of each image into this file (.csv or .jsonl)
    #[arg(long, value_name = "PATH")]
    pub out: Option<std::path::PathBuf>,
    /// Masked twin, and TDD trained with clean tokens: commit tokens at random (TDD: none before the end) or the most
    /// confident first
    #[arg(long, value_delimiter = ',', value_name = "NAME,…", value_parser = one_of::<Unmasking>(UNMASKINGS))]
    unmask: Vec<Unmasking>,
    /// What TDD shows of tokens that are not committed yet: from pure noise (0) to predictions with the noise of the step (1)
    #[arg(long, alias = "guesses", value_delimiter = ',', value_name = "SHARE,…")]
    uncommitted: Vec<f32>,
    /// Masked twin, and TDD trained with clean tokens: the share of committed tokens that each step takes back and chooses anew
    #[arg(long, value_delimiter = ',', value_name = "SHARE,…")]
    correction: Vec<f32>,
    /// TDD with per-token time: tokens start one after another, on a way so many times as long as a token's own (1: all share one
    /// time; 0: as it was trained)
    #[arg(long, value_delimiter = ',', value_name = "N,…", value_parser = numbers::whole(0..=1 << 10))]
    stagger: Vec<usize>,
    /// Captions: write this many for each image and score the best of them
    #[arg(long, value_name = "N", value_parser = numbers::whole(1..=1 << 16))]
    candidates: Option<usize>,
    /// Captions: which candidate is the best, by the model's own bound (bound) or by likeness to the others (consensus)
    #[arg(long, value_name = "NAME", value_parser = one_of::<Rank>(RANKS))]
    rank: Option<Rank>,
}

impl TextArgs {
    /// What the network is computed in: the flow takes small differences, which drown in bf16.
    pub fn precision(&self) -> Precision {
        match self.path {
            Some(BoundPath::Flow(_)) => Precision::F32,
            _ => Precision::Auto,
        }
    }

    /// Refuse what means nothing for a classifier.
    pub fn check_classes(&self) -> Result<()> {
        const CLASSES: &str = "this model knows classes; the flag is for captions and text";
        let given = [
            (self.bound > 0, "--bound"),
            (self.path.is_some(), "--path"),
            (self.examples > 0, "--examples"),
            (self.samples > 0, "--samples"),
            (self.clip.is_some(), "--clip"),
            (!self.unmask.is_empty(), "--unmask"),
            (!self.uncommitted.is_empty(), "--uncommitted"),
            (!self.correction.is_empty(), "--correction"),
            (!self.stagger.is_empty(), "--stagger"),
            (self.candidates.is_some(), "--candidates"),
            (self.rank.is_some(), "--rank"),
        ];
        given.into_iter().find(|g| g.0).map_or(Ok(()), |(_, flag)| Err(meaningless(flag, CLASSES)))
    }
}

/// A bound in nats and bits per token and, where the tokens are characters or decode to them, per character.
#[derive(Serialize)]
struct Bound {
    path: String,
    sequences: usize,
    tokens: f64,
    nats_per_token: f64,
    error: f64,
    bits_per_token: f64,
    bits_per_char: f64,
    bits_per_char_error: f64,
    chars: u64,
    /// Share of tokens that stand for what the vocabulary lacks.
    unknown: f64,
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

/// Flags that mean nothing for this task are refused: a table should not seem to answer them. Those of the sampler are left to
/// [`settings`].
fn check(args: &Args, loaded: &Loaded) -> Result<()> {
    const BOUND: &str = "text is measured by its bound, which needs no sampler; see --samples";
    let text = loaded.config.data.task == Task::Text;
    let quiet = text && args.text.samples == 0;
    let unbounded = !text && args.text.bound == 0;
    for (given, flag, why) in [
        (unbounded && args.text.path.is_some(), "--path", "it is the path of a bound; see --bound"),
        (quiet && !args.steps.is_empty(), "--steps", BOUND),
        (quiet && !args.sampler.is_empty(), "--sampler", BOUND),
        (quiet && !args.text.unmask.is_empty(), "--unmask", BOUND),
        (quiet && !args.text.uncommitted.is_empty(), "--uncommitted", BOUND),
        (quiet && !args.text.correction.is_empty(), "--correction", BOUND),
        (quiet && !args.text.stagger.is_empty(), "--stagger", BOUND),
        (quiet && args.seed.is_some(), "--seed", BOUND),
        (quiet && args.schedule.is_some(), "--schedule", BOUND),
        (quiet && args.text.examples > 0, "--examples", BOUND),
        (quiet && args.text.out.is_some(), "--out", BOUND),
        (text && !args.guidance.is_empty(), "--guidance", "there is no image to guide to"),
        (text && args.text.clip.is_some(), "--clip", "there are no images"),
        (text && args.twin.is_some(), "--twin", "text is measured one run at a time"),
        (text && args.figure.is_some(), "--figure", "it draws scores of classes and captions"),
        (text && args.text.candidates.is_some(), "--candidates", "samples of text are not chosen among"),
        (!text && args.text.samples > 0, "--samples", "captions are of the images there are; see --limit"),
        (args.votes.is_some(), "--votes", "captions are not voted on"),
        (
            !args.running_mean.is_empty(),
            "--running-mean",
            "later steps see the other words, which a mean of all steps would wash out",
        ),
        (args.start.is_some(), "--start", "sequences start from noise"),
        (args.per_class, "--per-class", "sequences have no classes"),
        (args.calibrate, "--calibrate", "a temperature is fitted for classes"),
        (args.mistakes.is_some(), "--mistakes", "sequences have no classes to mistake"),
    ] {
        if given {
            return Err(meaningless(flag, why));
        }
    }
    curve::check(args)
}

pub fn run(args: &Args, loaded: &Loaded) -> Result<()> {
    check(args, loaded)?;
    if let Some(path) = args.text.path {
        path.check(&loaded.trained)?;
    }
    let settings = settings(args, loaded)?;
    terminal::catch_interrupts("batch")?;
    let (source, origin) = sequences(args, loaded)?;
    note(&format!("{}: step {}, {} sequences ({origin})", loaded.checkpoint.display(), loaded.step, source.len()));
    match loaded.config.data.task {
        Task::Caption => captions::run(args, loaded, &source, &settings),
        _ => text(args, loaded, &source, &settings),
    }
}

/// Say what Ctrl-C has left undone.
fn stopped(e: tweedie::Error, what: &str) -> Failure {
    if matches!(e, tweedie::Error::Interrupted) {
        terminal::stopped(&format!("interrupted while {what}; nothing was measured. --limit N takes fewer"));
    }
    e.into()
}

#[derive(Serialize)]
struct TextReport {
    #[serde(flatten)]
    bound: Bound,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<Samples>,
}

/// Texts that the model wrote.
#[derive(Serialize)]
struct Samples {
    sampler: SamplerKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    unmask: Option<Unmasking>,
    #[serde(rename = "guesses", skip_serializing_if = "Option::is_none")] // the key of earlier versions
    uncommitted: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correction: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stagger: Option<usize>,
    steps: usize,
    seed: u64,
    diversity: Diversity,
    examples: Vec<String>,
}

fn text(args: &Args, loaded: &Loaded, source: &Sequences, settings: &[SampleConfig]) -> Result<()> {
    let draws = if args.text.bound == 0 { path_of(args, &loaded.trained).usual_draws() } else { args.text.bound };
    let [sample] = settings else {
        return Err(Failure::input("samples of text are written in one way; give one of --steps, --sampler, --unmask"));
    };
    let samples = match args.text.samples {
        0 => None,
        n => Some(samples(args, loaded, sample, n)?),
    };
    let report = TextReport { bound: bound(args, loaded, source, draws)?, samples };
    if args.model.json {
        return report::print_json(&report);
    }
    report::print(&bound_text(&report.bound))?;
    let Some(s) = &report.samples else { return Ok(()) };
    report::print(&format!("\n{}", samples_text(s)))?;
    s.examples.iter().try_for_each(|text| report::print(&format!("\n{text}\n")))
}

fn samples(args: &Args, loaded: &Loaded, sample: &SampleConfig, n: u32) -> Result<Samples> {
    let mut made = with_bar("writing samples", || evaluate::samples(&loaded.trained, sample, n, &interrupt::requested))
        .map_err(|e| stopped(e, "samples were written"))?;
    if let Some(dir) = &args.text.out {
        std::fs::create_dir_all(dir)?;
        tweedie::files::write_atomic(&dir.join("samples.json"), &serde_json::to_vec_pretty(&made)?)?;
        note(&format!("wrote {}", dir.display()));
    }
    let diversity = diversity(&made);
    made.truncate(args.text.examples);
    Ok(Samples {
        sampler: sample.sampler,
        unmask: (!loaded.trained.model.is_tdd()).then_some(sample.unmask),
        uncommitted: uncommitted(&loaded.trained.model, sample),
        correction: correction(&loaded.trained.model, sample),
        stagger: stagger(&loaded.trained, sample),
        steps: steps_taken(&loaded.trained.model, sample),
        seed: sample.seed,
        diversity,
        examples: made,
    })
}

fn samples_text(s: &Samples) -> String {
    use Align::{Left, Right};
    let heads = ["steps", "texts", "distinct-1", "distinct-2", "distinct-3", "self-BLEU-4", "unique %"];
    let mut t = Table::new(&[vec![("sampler", Left)], heads.map(|h| (h, Right)).to_vec()].concat());
    let d = &s.diversity;
    let mut cells = vec![
        sampler_name((s.sampler, s.unmask, s.uncommitted, s.correction, s.stagger)),
        s.steps.to_string(),
        d.captions.to_string(),
    ];
    cells.extend(d.distinct.iter().chain([&d.self_bleu4]).map(|v| format!("{v:.4}")));
    cells.push(format!("{:.1}", 100.0 * d.unique));
    t.row(cells);
    t.shown()
}

fn path_of(args: &Args, t: &Trained) -> BoundPath {
    args.text.path.unwrap_or(BoundPath::own(t))
}

fn bound(args: &Args, loaded: &Loaded, source: &Sequences, draws: usize) -> Result<Bound> {
    let (t, stop) = (&loaded.trained, &interrupt::requested);
    let path = path_of(args, t);
    let evaluate::Bounded { bounds: b, chars, unknown, skipped } =
        with_bar("bound", || evaluate::bounds_along(path, t, source, &loaded.config, (draws, args.limit), stop))
            .map_err(|e| stopped(e, "the bound was computed"))?;
    skipped.errors.values().take(5).for_each(|e| warn(&format!("left out: {e}")));
    let (estimate, tokens) = (b.per_token(), b.weight.iter().sum::<f64>());
    let bits = estimate.in_bits();
    let per_char = tokens / chars.max(1) as f64;
    let unknown = unknown as f64 / tokens.max(1.0);
    if unknown > 0.0 {
        note(&format!(
            "note: {:.2} % of the tokens stand for text that the model's vocabulary lacks; the bound is on these marks, not on that text",
            100.0 * unknown
        ));
    }
    Ok(Bound {
        path: path.to_string(),
        sequences: b.nats.len(),
        tokens,
        nats_per_token: estimate.mean,
        error: estimate.error,
        bits_per_token: bits.mean,
        bits_per_char: bits.mean * per_char,
        bits_per_char_error: bits.error * per_char,
        chars,
        unknown,
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
    format!("{}\nUpper bounds on −log p ({}); ±: one standard error.\n", t.shown(), b.path)
}

/// Every combination of what the flags list, over the run's own settings; flags that change nothing are refused.
fn settings(args: &Args, loaded: &Loaded) -> Result<Vec<SampleConfig>> {
    let settings = combined(args, loaded)?;
    let used = UsedFlags {
        sampler: !args.sampler.is_empty(),
        unmask: !args.text.unmask.is_empty(),
        uncommitted: !args.text.uncommitted.is_empty(),
        correction: !args.text.correction.is_empty(),
        stagger: !args.text.stagger.is_empty(),
        schedule: args.schedule.is_some(),
    };
    used.check(Facts::of(&loaded.trained.model), &settings)?;
    Ok(settings)
}

/// Every combination of what the flags list.
fn combined(args: &Args, loaded: &Loaded) -> Result<Vec<SampleConfig>> {
    let mut base = loaded.config.sample.clone();
    base.seed = args.seed.unwrap_or(base.seed);
    base.schedule = args.schedule.clone().unwrap_or(base.schedule);
    base.candidates = args.text.candidates.unwrap_or(base.candidates);
    base.rank = args.text.rank.unwrap_or(base.rank);
    let or = |given: Vec<SampleConfig>, base: &SampleConfig| if given.is_empty() { vec![base.clone()] } else { given };
    let mut settings = vec![base];
    for axis in 0..7 {
        let mut next = Vec::new();
        for s in &settings {
            let changed: Vec<SampleConfig> = match axis {
                0 => args.sampler.iter().map(|&sampler| SampleConfig { sampler, ..s.clone() }).collect(),
                1 => args.guidance.iter().map(|&guidance| SampleConfig { guidance, ..s.clone() }).collect(),
                2 => args.steps.iter().map(|&steps| SampleConfig { steps, ..s.clone() }).collect(),
                3 => {
                    args.text.uncommitted.iter().map(|&uncommitted| SampleConfig { uncommitted, ..s.clone() }).collect()
                }
                4 => args.text.correction.iter().map(|&correction| SampleConfig { correction, ..s.clone() }).collect(),
                5 => args.text.stagger.iter().map(|&stagger| SampleConfig { stagger, ..s.clone() }).collect(),
                _ => args.text.unmask.iter().map(|&unmask| SampleConfig { unmask, ..s.clone() }).collect(),
            };
            next.extend(or(changed, s));
        }
        settings = next;
    }
    if settings.iter().any(|s| s.steps == 0 || s.candidates == 0) {
        return Err(Failure::input("--steps and --candidates must be at least 1"));
    }
    if settings.iter().any(|s| !(0.0..=1.0).contains(&s.uncommitted)) {
        return Err(Failure::input("--uncommitted must lie in [0, 1]"));
    }
    if settings.iter().any(|s| !(0.0..1.0).contains(&s.correction)) {
        return Err(Failure::input("--correction must lie in [0, 1)"));
    }
    Ok(settings)
}

/// A sampler, its commit order, what is shown of open tokens, the share of committed ones that is taken back, and the length of a staggered path.
type Way = (SamplerKind, Option<Unmasking>, Option<f32>, Option<f32>, Option<usize>);

fn sampler_name((sampler, unmask, uncommitted, correction, stagger): Way) -> String {
    let corrects = correction.map_or(String::new(), |c| format!(", correction {c}"));
    let staggers = stagger.map_or(String::new(), |n| format!(", staggered {n}"));
    let order = match (unmask, uncommitted) {
        (None, None) => name(sampler),
        (None, Some(g)) => format!("confident, {}, uncommitted {g}", name(sampler)),
        // The masked twin takes the most likely token where it does not draw.
        (Some(u), _) => match sampler {
            SamplerKind::Softmax | SamplerKind::Ddim => format!("MDD {}, {}", name(u), name(SamplerKind::Argmax)),
            _ => format!("MDD {}, {}", name(u), name(sampler)),
        },
    };
    order + &corrects + &staggers
}

/// Steps that a model takes by these settings.
fn steps_taken(model: &Model, s: &SampleConfig) -> usize {
    let tokens = model.sizes().tokens;
    if model.is_tdd() { s.steps_taken(model.per_token_time(), tokens) } else { s.steps_masked(tokens) }
}

/// Passes of the network for a text.
fn passes(model: &Model, s: &SampleConfig) -> usize {
    steps_taken(model, s) * passes_of_step(model, s) * s.candidates
}

/// Guidance takes two passes a step, and so does self-conditioning.
pub fn passes_of_step(model: &Model, s: &SampleConfig) -> usize {
    let two = |on: bool| if on { 2 } else { 1 };
    two(s.guidance != 1.0) * two(model.config().denoiser.self_condition)
}

/// The share of committed tokens that a step takes back, where a model commits them one after another.
fn correction(model: &Model, s: &SampleConfig) -> Option<f32> {
    let commits = !model.is_tdd() || model.per_token_time() && s.commits();
    (commits && s.correction > 0.0).then_some(s.correction)
}

/// How many times as long as a token's own the way is, where tokens start one after another.
fn stagger(trained: &Trained, s: &SampleConfig) -> Option<usize> {
    let stagger = trained.sampling(s).stagger;
    (trained.model.per_token_time() && !s.commits() && stagger > 1).then_some(stagger)
}

/// What is shown of tokens that are not committed, where a TDD model commits them one after another.
fn uncommitted(model: &Model, s: &SampleConfig) -> Option<f32> {
    (model.per_token_time() && s.commits()).then_some(s.uncommitted)
}

/// A setting by the name it has in configurations.
fn name(v: impl Serialize) -> String {
    serde_json::to_value(v).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default()
}
