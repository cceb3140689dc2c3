//! `tweedie train`: a recipe, data, a run folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tweedie::config::Config;
use tweedie::data::{self, Dataset, Task};
use tweedie::files::write_atomic;
use tweedie::run_dir::RunDir;
use tweedie::session::Paused;
use tweedie::train::{Evaluation, Event, Metric, SkippedEvent, StepEvent, TrainingSet};
use tweedie::{Session, interrupt};

use crate::failure::{Failure, Result};
use crate::report::{self, note};
use crate::shared::own_data::{self, OwnDataArgs};
use crate::shared::preview;
use crate::shared::recipe;

#[derive(clap::Args)]
pub struct Args {
    #[arg(required_unless_present = "resume", help = recipe::help(), long_help = recipe::long_help())]
    recipe: Option<String>,
    /// Data: a folder or file (image folders, CIFAR, MNIST, Parquet, WebDataset), or embedded:digits, embedded:shapes
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// Change a setting, e.g. --set train.epochs=50 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Folder of the run (default: runs/RECIPE-N)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Start from all weights of a run, or of one of its checkpoints, and with its tokenizer (train.init_from)
    #[arg(long, value_name = "RUN", conflicts_with = "resume")]
    init_from: Option<String>,
    /// Go on with an interrupted run
    #[arg(long, value_name = "RUN", conflicts_with_all = ["recipe", "out"])]
    resume: Option<PathBuf>,
    /// With --resume: go on although the data are not those that the run was begun with
    #[arg(long, requires = "resume")]
    other_data: bool,
    #[command(flatten)]
    own: OwnDataArgs,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
}

/// The first free `runs/NAME-N`.
pub fn free_folder(name: &str) -> PathBuf {
    let stem = Path::new(name).file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned());
    (1..).map(|n| PathBuf::from(format!("runs/{stem}-{n}"))).find(|p| !p.exists()).unwrap_or_default()
}

pub fn run(args: &Args) -> Result<()> {
    let mut session = match (&args.resume, &args.recipe) {
        (Some(path), _) => resume(path, args)?,
        (None, Some(name)) => create(name, args)?,
        (None, None) => return Err(Failure::input("no recipe is named").hint("tweedie train digits")),
    };
    session.notes().iter().for_each(|n| note(n));
    interrupt::install()?;
    train(&mut session)?;
    let run = session.dir().path().display().to_string();
    if interrupt::requested() {
        let step = session.trainer().step();
        note(&format!("interrupted at step {step}; go on with: tweedie train --resume {run}"));
        return Err(Failure::interrupted());
    }
    report::print(&format!("{run}\n"))?;
    let best = session.trainer().best().map_or(String::new(), |b| format!("best {}; ", in_words(b)));
    let next = match session.trainer().trained.task() {
        Task::Class => String::new(),
        Task::Caption => format!(", tweedie caption {run} IMAGE"),
        Task::Text => format!(", tweedie generate {run}"),
    };
    note(&format!("{best}next: tweedie eval {run}{next}"));
    Ok(())
}

/// A metric as a sentence has it.
fn in_words(m: Metric) -> String {
    match m.name {
        Metric::BITS_PER_TOKEN => format!("{:.3} {}", m.value, m.name),
        _ => m.to_string(),
    }
}

/// Everything that can be wrong with the input is found before anything is written.
fn create(recipe: &str, args: &Args) -> Result<Session> {
    if args.data.is_none() && own_data::is_data(recipe)? {
        return create_for(recipe, args);
    }
    args.own.check_unused()?;
    let flag = |name: &str, key: &str, value: &String| (name.to_string(), format!("{key}={}", toml_string(value)));
    let data = args.data.iter().map(|d| flag("--data", "data.path", d));
    let flags: Vec<_> = data.chain(args.init_from.iter().map(|r| flag("--init-from", "train.init_from", r))).collect();
    let (config, _) = recipe::resolve(recipe, &args.sets, &flags)?;
    let path = args.out.clone().unwrap_or_else(|| free_folder(recipe));
    RunDir::check_free(&path)?;
    let choice = report::open_device(&args.device)?;
    let data = open_data(&config)?;
    Ok(attended(Session::create(&path, &config, data, &choice.device)?))
}

/// A run on data for which a recipe is made; it is kept in the folder with its reasons.
fn create_for(data: &str, args: &Args) -> Result<Session> {
    let path = args.out.clone().unwrap_or_else(|| free_folder(&own_data::name(data)));
    RunDir::check_free(&path)?;
    let choice = report::open_device(&args.device)?;
    let mut sets = args.sets.clone();
    sets.extend(args.init_from.iter().map(|r| format!("train.init_from={}", toml_string(r))));
    let plan = own_data::plan(data, &args.own, &sets, true, &choice.device)?;
    let config = plan.suggestion.config(&sets)?;
    let set = open_data(&config)?;
    own_data::tell(&plan);
    let session = Session::create(&path, &config, set, &choice.device)?;
    write_atomic(&path.join("recipe.toml"), own_data::recipe(&plan, &args.own).as_bytes())?;
    Ok(attended(session))
}

fn resume(path: &Path, args: &Args) -> Result<Session> {
    args.own.check_unused()?;
    let mut sets = args.sets.clone();
    sets.extend(args.data.iter().map(|d| format!("data.path={}", toml_string(d))));
    let mut paused = Paused::open(path, &sets)?;
    if args.other_data {
        paused = paused.with_other_data();
    }
    let choice = report::open_device(&args.device)?;
    let data = paused.open_data()?;
    describe(&data);
    Ok(attended(paused.resume(data, &choice.device)?))
}

/// A session as every command has it: Ctrl-C saves and stops it, and each checkpoint comes with a look at samples.
pub fn attended(session: Session) -> Session {
    session
        .stop_when(interrupt::requested)
        .with_preview(|t, samples| preview::save(t, samples).map_err(|e| tweedie::Error::Input(e.to_string())))
}

/// Open the data of a new run, and say what they are.
pub fn open_data(config: &Config) -> Result<TrainingSet> {
    let data = TrainingSet::open(config, None)?;
    describe(&data);
    Ok(data)
}

fn toml_string(s: &str) -> String {
    format!("{s:?}")
}

fn describe(data: &TrainingSet) {
    match data {
        TrainingSet::Classes(d) => describe_classes(d),
        TrainingSet::Sequences { set, tokenizer } => {
            let len = |s: &Option<data::Texts>| s.as_ref().map_or(0, |s| s.len());
            note(&format!(
                "data: {} ({}), {} examples for training, {} for validation ({}){}; {} classes of tokens",
                set.name,
                set.format,
                len(&set.train),
                len(&set.val),
                set.val_origin,
                set.test.as_ref().map_or(String::new(), |t| format!(", {} for testing", t.len())),
                tokenizer.vocab()
            ));
            set.notes.iter().chain(tokenizer.notes()).for_each(|n| note(&format!("note: {n}")));
        }
    }
}

fn describe_classes(d: &Dataset) {
    let len = |s: &Option<data::Source>| s.as_ref().map_or(0, |s| s.len());
    note(&format!(
        "data: {} ({}), {} classes, {} images for training, {} for validation ({}){}",
        d.name,
        d.format,
        d.class_names.len(),
        len(&d.train),
        len(&d.val),
        d.val_origin,
        d.test.as_ref().map_or(String::new(), |t| format!(", {} for testing", t.len()))
    ));
    d.notes.iter().for_each(|n| note(&format!("note: {n}")));
}

/// Train to the end or to the first Ctrl-C, and tell what happens.
pub fn train(session: &mut Session) -> Result<()> {
    let started = Instant::now();
    let unit = if session.trainer().trained.task() == Task::Text { "texts" } else { "images" };
    let finished = session.train(|event| show(event, started.elapsed().as_secs(), unit))?;
    finished.notes.iter().for_each(|n| note(n));
    Ok(())
}

/// Tell an event, `at` seconds after the start; examples are counted in `unit`.
fn show(event: &Event, at: u64, unit: &str) {
    match event {
        Event::Step(StepEvent { step, epoch, loss, lr, grad_norm, skipped, images_per_second, waited, eta }) => {
            let skipped = if *skipped > 0 { format!(", {skipped} steps skipped") } else { String::new() };
            note(&format!(
                "{at:>5} s  epoch {epoch:>6.2}  step {step:>6}  loss {loss:.4}  lr {lr:.1e}  |g| {grad_norm:.2}  \
                 {images_per_second:.0} {unit}/s  waited {:.0} %  {} left{skipped}",
                100.0 * waited,
                report::duration(*eta)
            ));
        }
        Event::Eval(e) => note(&format!("{at:>5} s  epoch {:>6.2}  {}", e.epoch, evaluation(e))),
        Event::Skipped(SkippedEvent { examples, cut, errors, cut_at, .. }) => {
            if !errors.is_empty() {
                let (head, named) = left_out(*examples, errors);
                note(&format!("{at:>5} s  {head}"));
                named.iter().for_each(|e| note(&format!("         {e}")));
            }
            if !cut_at.is_empty() {
                note(&format!("{at:>5} s  texts of too many tokens, cut {cut} times so far, such as:"));
                cut_at.iter().for_each(|e| note(&format!("         {e}")));
            }
        }
        Event::Warning(w) => note(&format!("{at:>5} s  warning: {}", w.message)),
        Event::Saved(_) => {}
    }
}

fn evaluation(e: &Evaluation) -> String {
    let value = |m: &Metric| match m.name {
        Metric::TOP1 => format!("{:.2} %", 100.0 * m.value),
        _ => format!("{:.3}", m.value),
    };
    let ema = e.ema.map_or(String::new(), |m| format!(", averaged weights {}", value(&m)));
    let exact = e.exact.map_or(String::new(), |x| format!(", exact {:.1} %", 100.0 * x));
    let what = if e.score.name == Metric::TOP1 { "images" } else { "sequences" };
    format!("{}{ema}{exact} on {} {what}; best {}", e.score, e.examples, value(&e.best))
}

/// Of examples that were left out, `errors` being new: their number, and those among the first few of the run.
pub fn left_out(examples: usize, errors: &[String]) -> (String, &[String]) {
    const NAMED: usize = 5;
    let before = examples.saturating_sub(errors.len());
    let named = &errors[..errors.len().min(NAMED.saturating_sub(before))];
    let more = match (named.len(), errors.len() - named.len()) {
        (_, 0) => ":".into(),
        (0, _) => ", all named in metrics.jsonl".into(),
        (_, more) => format!(", {more} more than these (metrics.jsonl names all):"),
    };
    (format!("{examples} examples left out so far{more}"), named)
}
