//! What captions or text would be trained on: counts, lengths in tokens, examples, bad rows.

use std::sync::Arc;

use rayon::prelude::*;
use serde::Serialize;
use tweedie::augment::Address;
use tweedie::config::Config;
use tweedie::data::{Layout, SequenceConfig, SequenceSet, Sequences, Task, Texts};
use tweedie::tokenize::Tokenizer;
use tweedie::train::{build_tokenizer, open_sequences};

use super::Args;
use crate::failure::Result;
use crate::report::{self, Align, Progress, Table};

/// Examples that are looked at unless all are asked for.
const SAMPLE: usize = 100_000;
/// Tokens of an example that are shown.
const SHOWN: usize = 40;
/// Bad rows that are named unless all are asked for.
const NAMED: usize = 20;

#[derive(Serialize)]
struct Split {
    name: &'static str,
    examples: usize,
    /// Sequences of an epoch: the examples, or the windows of a stream.
    sequences: usize,
    looked_at: usize,
    texts: usize,
    tokens_mean: f64,
    tokens_median: usize,
    tokens_p99: usize,
    tokens_longest: usize,
    over_long: f64,
    unknown: f64,
    /// (from, to, share of texts)
    lengths: Vec<(usize, usize, f64)>,
    bad: usize,
    bad_rows: Vec<String>,
    /// Rows with a text of more tokens than a sequence holds, if all are asked for; packed text has none.
    over_long_rows: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_size: Option<[usize; 3]>,
}

#[derive(Serialize)]
struct Found {
    name: String,
    format: String,
    task: Task,
    layout: Layout,
    tokenizer: String,
    classes: usize,
    tokens: usize,
    evaluation: String,
    splits: Vec<Split>,
    examples: Vec<Example>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Example {
    place: String,
    texts: Vec<String>,
    tokens: Vec<String>,
}

pub fn run(args: &Args, task: Task) -> Result<()> {
    let config = super::plan::settings(args)?;
    let mut data = args.sequence.config(&args.path, task);
    (data.memory, data.lanes) = (config.data.memory, config.data.lanes);
    let (tokenizer, tokens) = if task == Task::Caption { ("word:5000", 32) } else { ("chars", 256) };
    data.tokens = args.tokens.unwrap_or(tokens);
    data.tokenizer = args.tokenizer.clone().unwrap_or_else(|| tokenizer.into());
    let progress = Progress::new();
    progress.tick(&format!("opening {} and making a tokenizer", args.path));
    let set = open_sequences(&data, 0)?;
    let tokenizer = Arc::new(build_tokenizer(&data.tokenizer, &set)?);
    if let Some(ranks) = args.plan {
        drop(progress);
        let sequences = Sequences::new(set.train()?.clone(), tokenizer, &data.sequence_config())?;
        return super::plan::of_sequences(args, &Config { data, ..config }, sequences, ranks);
    }
    let mut notes = [set.notes.clone(), tokenizer.notes().to_vec()].concat();
    let mut splits = Vec::new();
    let is_test = set.val_origin == "the test split";
    let test = if is_test { &None } else { &set.test };
    for (name, source) in [("train", &set.train), ("evaluation", &set.val), ("test", test)] {
        let Some(source) = source else { continue };
        progress.tick(&format!("{name}: looking at {} examples", report::count(source.len())));
        let sequences = Sequences::new(source.clone(), tokenizer.clone(), &data.sequence_config());
        let windows = sequences.as_ref().map_or(0, Sequences::len);
        sequences.err().into_iter().for_each(|e| notes.push(format!("{name}: {e}")));
        splits.push(look(name, source, windows, &tokenizer, &data.sequence_config(), args.all));
    }
    drop(progress);
    let first = set.train.as_ref().or(set.val.as_ref());
    let found = Found {
        examples: first.map_or(Vec::new(), |s| examples(&set, s, &tokenizer, &data.sequence_config())),
        name: set.name.clone(),
        format: set.format.to_string(),
        task,
        layout: set.layout,
        tokenizer: data.tokenizer.clone(),
        classes: tokenizer.vocab(),
        tokens: data.tokens,
        evaluation: set.val_origin.clone(),
        splits,
        notes,
    };
    if args.json { report::print_json(&found) } else { report::print_words(&text(&found)) }
}

/// What one example shows: the lengths of its texts, unknown tokens, or why it is bad.
struct Seen {
    lengths: Vec<usize>,
    unknown: usize,
    bad: Option<String>,
    over_long: Option<String>,
}

fn look(
    name: &'static str,
    source: &Texts,
    windows: usize,
    t: &Tokenizer,
    config: &SequenceConfig,
    all: bool,
) -> Split {
    let (n, limit, lined) = (source.len(), config.tokens, config.layout == Layout::Lines);
    let step = if all { 1 } else { n.div_ceil(SAMPLE).max(1) };
    let seen: Vec<Seen> = (0..n.div_ceil(step))
        .into_par_iter()
        .map(|k| {
            let i = k * step;
            let (texts, lines) = match source.texts_and_bad(i) {
                Ok(found) => found,
                Err(e) => return Seen { lengths: vec![], unknown: 0, bad: Some(e.to_string()), over_long: None },
            };
            let ids: Vec<Vec<u32>> = texts
                .iter()
                .filter(|t| !t.trim().is_empty())
                .map(|text| t.encode(if source.is_stream() { text } else { text.trim() }))
                .collect();
            let bad = if let Some(e) = lines {
                Some(e.to_string())
            } else if ids.is_empty() && !source.is_stream() {
                Some(format!("{}: no text, or only an empty one", source.place(i)))
            } else if all {
                source.image(i).err().map(|e| e.to_string())
            } else {
                None
            };
            let unknown = ids.iter().flatten().filter(|&&id| Some(id) == t.unk()).count();
            let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
            let longest = lengths.iter().copied().max().filter(|&n| n > limit && all && lined);
            let over_long = longest.map(|n| format!("{}: {n} tokens where {limit} fit", source.place(i)));
            Seen { lengths, unknown, bad, over_long }
        })
        .collect();
    let mut lengths: Vec<usize> = seen.iter().flat_map(|s| s.lengths.iter().copied()).collect();
    lengths.sort_unstable();
    let texts = lengths.len();
    let at = |q: f64| lengths.get(((texts as f64 - 1.0) * q).round().max(0.0) as usize).copied().unwrap_or(0);
    let total: usize = lengths.iter().sum();
    let share = |n: usize, of: usize| if of == 0 { 0.0 } else { n as f64 / of as f64 };
    let longest = at(1.0);
    // Ten bars of whole numbers.
    let width = at(0.999).div_ceil(10).max(1);
    let bars = (0..10).map(|b| {
        let (from, to) = (b * width, if b == 9 { longest.max((b + 1) * width - 1) } else { (b + 1) * width - 1 });
        let inside = lengths.partition_point(|&l| l <= to) - lengths.partition_point(|&l| l < from);
        (from, to, share(inside, texts))
    });
    let bad: Vec<&String> = seen.iter().filter_map(|s| s.bad.as_ref()).collect();
    Split {
        name,
        examples: n,
        sequences: windows,
        looked_at: seen.len(),
        texts,
        tokens_mean: share(total, texts),
        tokens_median: at(0.5),
        tokens_p99: at(0.99),
        tokens_longest: longest,
        over_long: share(texts - lengths.partition_point(|&l| l <= limit), texts),
        unknown: share(seen.iter().map(|s| s.unknown).sum(), total),
        lengths: if source.is_stream() { Vec::new() } else { bars.collect() },
        bad: bad.len(),
        bad_rows: bad.into_iter().take(if all { usize::MAX } else { NAMED }).cloned().collect(),
        over_long_rows: seen.iter().filter_map(|s| s.over_long.clone()).collect(),
        first_size: source.image(0).ok().flatten().map(|i| [i.width, i.height, i.channels]),
    }
}

/// Five, spread over the split.
fn examples(set: &SequenceSet, source: &Texts, t: &Arc<Tokenizer>, config: &SequenceConfig) -> Vec<Example> {
    let Ok(sequences) = Sequences::new(source.clone(), t.clone(), config) else { return Vec::new() };
    let n = sequences.len();
    let example = |k: usize| {
        let i = k * n / 5;
        let mut ids = vec![0; config.tokens];
        sequences.write(Address { seed: 0, epoch: 0, example: i as u32 }, false, &mut ids).ok()?;
        let end = ids.iter().position(|&id| id == t.pad()).unwrap_or(ids.len());
        let texts = match set.layout {
            Layout::Packed => vec![t.decode_packed(&ids)],
            Layout::Lines => sequences.references(i).ok()?,
        };
        let tokens = ids[..end].iter().map(|&id| t.token(id)).collect();
        Some(Example { place: sequences.place(i), texts, tokens })
    };
    (0..5.min(n)).filter_map(example).collect()
}

fn text(f: &Found) -> String {
    let what = if f.task == Task::Caption { "captions" } else { "text" };
    let layout = if f.layout == Layout::Packed { ", packed" } else { "" };
    let mut out = format!("{} ({}), {what}{layout}; evaluation: {}\n", f.name, f.format, f.evaluation);
    out += &format!("tokenizer {}: {} classes; {} tokens a sequence\n\n", f.tokenizer, f.classes, f.tokens);
    let number = |n: usize| n.to_string();
    let percent = |x: f64| format!("{:.2} %", x * 100.0);
    let packed = f.layout == Layout::Packed;
    let names: &[&str] = match packed {
        true => &["split", "windows", "tokens", "unknown", "bad"], // examples of a stream are pieces without meaning
        false => &["split", "examples", "texts", "mean", "median", "99 %", "longest", "over-long", "unknown", "bad"],
    };
    let columns: Vec<(&str, Align)> =
        names.iter().enumerate().map(|(i, n)| (*n, if i == 0 { Align::Left } else { Align::Right })).collect();
    let mut table = Table::new(&columns);
    for s in &f.splits {
        let mut row = vec![s.name.to_string()];
        if packed {
            let total = s.tokens_mean * s.texts as f64 * s.examples as f64 / s.looked_at.max(1) as f64;
            row.extend([number(s.sequences), format!("{total:.0}")]);
        } else {
            let lengths = [s.tokens_median, s.tokens_p99, s.tokens_longest].map(number);
            row.extend([number(s.examples), number(s.texts), format!("{:.1}", s.tokens_mean)]);
            row.extend(lengths);
            row.push(percent(s.over_long));
        }
        row.extend([percent(s.unknown), number(s.bad)]);
        table.row(row);
    }
    out += &table.shown();
    for s in f.splits.iter().filter(|s| s.looked_at < s.examples) {
        out += &format!(
            "{}: {} of {} examples were looked at; --all looks at every one\n",
            s.name, s.looked_at, s.examples
        );
    }
    if let Some(s) = f.splits.first().filter(|s| !s.lengths.is_empty()) {
        out += &format!("\nlength in tokens, {}\n", s.name);
        let most = s.lengths.iter().map(|l| l.2).fold(1e-9, f64::max);
        for (from, to, share) in &s.lengths {
            let bar = "█".repeat((share / most * 40.0).round() as usize);
            out += &format!("{:>5}–{to:<5} {:>6.2} % {bar}\n", from, share * 100.0);
        }
    }
    out += "\n";
    for e in &f.examples {
        out += &format!("{}\n", e.place);
        e.texts.iter().for_each(|t| out += &format!("  {}\n", t.trim_end().replace('\n', "\n  ")));
        let more = if e.tokens.len() > SHOWN { "|…" } else { "" };
        out += &format!("  → {}{more}\n", e.tokens[..e.tokens.len().min(SHOWN)].join("|"));
    }
    for s in &f.splits {
        s.bad_rows.iter().for_each(|b| out += &format!("bad: {b}\n"));
        if s.bad > s.bad_rows.len() {
            let more = s.bad - s.bad_rows.len();
            out += &format!("and {more} more bad rows in {}; --all names all\n", s.name);
        }
        s.over_long_rows.iter().for_each(|b| out += &format!("over-long: {b}\n"));
    }
    f.notes.iter().for_each(|n| out += &format!("note: {n}\n"));
    out
}
