//! What is told before a training begins: model, data, steps, device, folder, and how long it may take.

use console::style;
use tweedie::Session;
use tweedie::config::{Config, Method};
use tweedie::data::{Layout, Task};
use tweedie::model::count_parameters;
use tweedie::train::TrainingSet;
use tweedie_engine::{Choice, Device, cpu};

use crate::commands::bench;
use crate::failure::Result;
use crate::report::{self, in_one_line, note, terminal};

/// A step takes about this much more than its products alone: attention, norms, the optimizer, data.
const BESIDES: f64 = 2.0;
/// A training that takes longer than this on a CPU was not made for one.
const LONG: f64 = 3.0 * 3600.0;

/// What is known of data and device before the session has them.
pub struct Header {
    data: String,
    /// Classes, or classes of tokens.
    kinds: String,
    origin: String,
    test: Option<usize>,
    notes: Vec<String>,
    device: String,
}

impl Header {
    pub fn of(data: &TrainingSet, choice: &Choice) -> Header {
        let device = match &choice.device {
            Device::Cpu => format!("cpu, {}", report::threads(cpu::threads())),
            gpu => format!("{gpu}, {}", choice.reason),
        };
        match data {
            TrainingSet::Classes(d) => Header {
                data: format!("{} ({})", d.name, d.format),
                kinds: format!("{} classes", d.class_names.len()),
                origin: d.val_origin.clone(),
                test: d.test.as_ref().map(|t| t.len()),
                notes: d.notes.clone(),
                device,
            },
            TrainingSet::Sequences { set, tokenizer } => Header {
                data: format!("{} ({})", set.name, set.format),
                kinds: format!("{} classes of tokens", report::count(tokenizer.vocab())),
                origin: set.val_origin.clone(),
                // Pieces of a stream mean nothing.
                test: set.test.as_ref().filter(|_| set.layout != Layout::Packed).map(|t| t.len()),
                notes: set.notes.iter().chain(tokenizer.notes()).cloned().collect(),
                device,
            },
        }
    }

    /// Say it, and what to do if the training would take long.
    pub fn say(&self, session: &Session) -> Result<()> {
        let t = session.trainer();
        let left = t.total_steps().saturating_sub(t.step());
        let seconds = match t.trained.model.device() {
            Device::Cpu => Some(expected_of_step(&t.config)? * left as f64),
            _ => None, // known after a few steps
        };
        let mut lines = vec![
            ("model", model(&t.config)?),
            ("data", self.data(session)),
            ("steps", steps(session)),
            ("device", self.device.clone()),
            ("run", session.dir().path().display().to_string()),
        ];
        lines.extend(ranks(session).map(|words| ("ranks", words)));
        if let Some(s) = seconds {
            lines.push(("time", format!("{} here", report::roughly(s))));
        }
        for (name, words) in lines {
            note_of(name, &words);
        }
        self.notes.iter().for_each(|n| note(&format!("note: {n}")));
        if seconds.is_some_and(|s| s > LONG) {
            note(
                "note: this recipe was made for a GPU. It starts anyway; Ctrl-C saves and stops it. Quicker: --device cuda where \
                 there is a GPU, a smaller recipe, fewer epochs (--set train.epochs=N), or a recipe that fits this machine \
                 (tweedie init DATA --budget 1h)",
            );
        }
        Ok(())
    }

    fn data(&self, session: &Session) -> String {
        let t = session.trainer();
        let packed = t.config.data.task != Task::Class && t.config.data.sequence_config().layout == Layout::Packed;
        let what = match t.config.data.task {
            _ if packed => format!("windows of {} tokens", t.config.data.tokens),
            Task::Class => "images".into(),
            _ => "examples".to_string(),
        };
        let test = self.test.map_or(String::new(), |n| format!(", {} for testing", report::count(n)));
        format!(
            "{}, {}, {} {what} for training, {} for validation{test}; validation: {}",
            self.data,
            self.kinds,
            report::count(t.training_examples()),
            report::count(t.validation_examples()),
            self.origin,
        )
    }
}

/// A line of the header: a name and what there is to say, in a column of its own.
fn note_of(name: &str, words: &str) {
    const COLUMN: usize = 8;
    let name = format!("{name:<COLUMN$}");
    let words = in_one_line(words);
    if !terminal::is_living() {
        return note(&format!("{name}{words}"));
    }
    let wrapped = terminal::wrapped(&words, terminal::width().saturating_sub(COLUMN + 2).max(20));
    let indented = wrapped.replace("\n  ", &format!("\n{}", " ".repeat(COLUMN)));
    terminal::tell(&format!("{}{indented}", style(name).for_stderr().dim()));
}

fn model(c: &Config) -> Result<String> {
    let (all, denoiser) = count_parameters(&c.model, c.sizes())?;
    let (e, d) = (&c.model.encoder, &c.model.denoiser);
    let blocks = |depth: usize, width: usize| {
        format!("{depth} {} of width {width}", if depth == 1 { "block" } else { "blocks" })
    };
    let method = if c.model.method == Method::Tdd { "TDD" } else { "MDD" };
    let mut parts = Vec::new();
    if c.model.is_conditional() {
        parts.push(format!("encoder of {}", blocks(e.depth, e.width)));
    }
    match (c.data.task, c.model.method) {
        (Task::Class, Method::Mdd) => parts.push(format!("head of {}", report::count(denoiser))),
        _ => parts.push(format!("denoiser of {}", blocks(d.depth, d.width))),
    }
    Ok(format!("{method}, {} parameters: {}", report::count(all), parts.join(", ")))
}

fn steps(session: &Session) -> String {
    let t = session.trainer();
    let (epochs, total) = (t.config.train.epochs, t.total_steps());
    let from = if t.step() > 0 { format!(", {} behind", report::count(t.step())) } else { String::new() };
    let each = report::count(total / epochs.max(1));
    format!("{}{from}: {epochs} epochs of {each}, batches of {}", report::count(total), t.config.train.batch)
}

/// How many ranks there are, and what each keeps of the optimizer's state; none for one alone.
fn ranks(session: &Session) -> Option<String> {
    let t = session.trainer();
    let (comm, (kept, whole)) = (t.peers().comm()?, t.optimizer().state_bytes());
    let mb = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    let state = match kept < whole {
        true => format!("{} of {} of optimizer state here, {} saved", mb(kept), mb(whole), mb(whole - kept)),
        false => format!("{} of optimizer state each (train.shard_optimizer spreads it)", mb(whole)),
    };
    Some(format!("{} over {}; {state}", comm.size(), comm.describe()))
}

/// Seconds of a training step on the CPU.
fn expected_of_step(c: &Config) -> Result<f64> {
    Ok(BESIDES * bench::model::products_of_step(c, &Device::Cpu)?)
}
