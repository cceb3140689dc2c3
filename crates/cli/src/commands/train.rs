//! `tweedie train`: a recipe, data, a run folder.

mod header;
mod launch;
mod view;

pub use view::View;

use std::path::{Path, PathBuf};
use std::time::Instant;

use tweedie::data::Task;
use tweedie::files::write_atomic;
use tweedie::run_dir::RunDir;
use tweedie::session::Paused;
use tweedie::train::{Metric, TrainingSet};
use tweedie::{Session, interrupt, progress};

use crate::failure::{Failure, Result};
use crate::report::{self, Progress, note, terminal};
use crate::shared::own_data::{self, OwnDataArgs};
use crate::shared::preview;
use crate::shared::ranks::{CommArgs, Place};
use crate::shared::recipe;
use header::Header;

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
    /// auto, cpu, cuda or cuda:N; of several ranks on a machine, auto and cuda give each the next GPU
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
    /// Start one process per GPU, on so many GPUs of this machine, and train on all of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    gpus: Option<u16>,
    #[command(flatten)]
    comm: CommArgs,
}

/// The first free `runs/NAME-N`.
pub fn free_folder(name: &str) -> PathBuf {
    let stem = Path::new(name).file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned());
    (1..).map(|n| PathBuf::from(format!("runs/{stem}-{n}"))).find(|p| !p.exists()).unwrap_or_default()
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(gpus) = args.gpus {
        return launch::run(usize::from(gpus));
    }
    let place = args.comm.meet(&args.device)?;
    place.attend(|| run_at(&place, args))
}

/// The work of one rank.
fn run_at(place: &Place, args: &Args) -> Result<()> {
    let (mut session, header) = match (&args.resume, &args.recipe) {
        (Some(path), _) => resume(path, args, place)?,
        (None, Some(name)) => create(name, args, place)?,
        (None, None) => return Err(Failure::input("no recipe is named").hint("tweedie train digits")),
    };
    if place.rank() > 0 {
        return follow(&mut session, args);
    }
    let run = session.dir().path().display().to_string();
    if args.resume.is_some() && is_finished(&session) {
        return finished_before(&session, &run);
    }
    terminal::catch_interrupts("step")?;
    header.say(&session)?;
    session.notes().iter().for_each(|n| note(n));
    let started = Instant::now();
    train(&mut session)?;
    if interrupt::requested() || !is_finished(&session) {
        let step = session.trainer().step();
        terminal::stopped(&format!("interrupted at step {step}; go on with:\ntweedie train --resume {run}"));
        return Err(Failure::interrupted());
    }
    report::print(&format!("{run}\n"))?;
    let best = session.trainer().best().map_or(String::new(), |b| format!(", best {}", in_words(b)));
    note(&format!("trained in {}{best}", report::duration(started.elapsed().as_secs_f64())));
    note(&format!("next:{}", next(&session, &run)));
    Ok(())
}

/// A rank that is not the first trains the same run; of that, only the first one talks.
fn follow(session: &mut Session, args: &Args) -> Result<()> {
    if args.resume.is_some() && is_finished(session) {
        return Ok(());
    }
    terminal::catch_interrupts("step")?;
    session.train(|_| {})?;
    if is_finished(session) { Ok(()) } else { Err(Failure::interrupted()) }
}

/// What to do with a trained model.
fn next(session: &Session, run: &str) -> String {
    let more = match session.trainer().trained.task() {
        Task::Class => format!("\ntweedie classify {run} IMAGE"),
        Task::Caption => format!("\ntweedie caption {run} IMAGE"),
        Task::Text => format!("\ntweedie generate {run}"),
    };
    format!("\ntweedie eval {run}{more}")
}

fn is_finished(session: &Session) -> bool {
    session.trainer().step() >= session.trainer().total_steps()
}

/// There is nothing to go on with: say so, and what can be done.
fn finished_before(session: &Session, run: &str) -> Result<()> {
    let epochs = session.trainer().config.train.epochs;
    note(&format!("{run} is finished: all {epochs} epochs ({} steps) are behind it", session.trainer().step()));
    note(&format!("next:{}", next(session, run)));
    note(&format!("to train on:\ntweedie train --resume {run} --set train.epochs={}", 2 * epochs));
    report::print(&format!("{run}\n"))
}

/// A metric as a sentence has it.
fn in_words(m: Metric) -> String {
    match m.name {
        Metric::BITS_PER_TOKEN => format!("{:.3} {}", m.value, m.name),
        _ => m.to_string(),
    }
}

/// Everything that can be wrong with the input is found before anything is written.
fn create(recipe: &str, args: &Args, place: &Place) -> Result<(Session, Header)> {
    if args.data.is_none() && own_data::is_data(recipe)? {
        return create_for(recipe, args, place);
    }
    args.own.check_unused()?;
    let flag = |name: &str, key: &str, value: &String| (name.to_string(), format!("{key}={}", toml_string(value)));
    let data = args.data.iter().map(|d| flag("--data", "data.path", d));
    let flags: Vec<_> = data.chain(args.init_from.iter().map(|r| flag("--init-from", "train.init_from", r))).collect();
    let (config, _) = recipe::resolve(recipe, &args.sets, &flags)?;
    let path = args.out.clone().unwrap_or_else(|| free_folder(recipe));
    RunDir::check_free(&path)?;
    let data = opening(&config.data.path, || TrainingSet::open(&config, None))?;
    let header = Header::of(&data, &place.choice);
    let session = Session::create_with(&path, &config, data, &place.choice.device, place.comm.clone())?;
    Ok((attended(session), header))
}

/// A run on data for which a recipe is made; it is kept in the folder with its reasons.
fn create_for(data: &str, args: &Args, place: &Place) -> Result<(Session, Header)> {
    let path = args.out.clone().unwrap_or_else(|| free_folder(&own_data::name(data)));
    RunDir::check_free(&path)?;
    let mut sets = args.sets.clone();
    sets.extend(args.init_from.iter().map(|r| format!("train.init_from={}", toml_string(r))));
    let plan = own_data::plan(data, &args.own, &sets, true, &place.choice.device)?;
    let config = place.of_first(&plan.suggestion.config(&sets)?)?;
    let set = opening(&config.data.path, || TrainingSet::open(&config, None))?;
    own_data::tell(&plan);
    let header = Header::of(&set, &place.choice);
    let session = Session::create_with(&path, &config, set, &place.choice.device, place.comm.clone())?;
    if place.rank() == 0 {
        write_atomic(&path.join("recipe.toml"), own_data::recipe(&plan, &args.own).as_bytes())?;
    }
    Ok((attended(session), header))
}

fn resume(path: &Path, args: &Args, place: &Place) -> Result<(Session, Header)> {
    args.own.check_unused()?;
    let mut sets = args.sets.clone();
    sets.extend(args.data.iter().map(|d| format!("data.path={}", toml_string(d))));
    let mut paused = Paused::open_with(path, &sets, place.comm.clone())?;
    if args.other_data {
        paused = paused.with_other_data();
    }
    let data = opening(&paused.config().data.path, || paused.open_data())?;
    let header = Header::of(&data, &place.choice);
    Ok((attended(paused.resume(data, &place.choice.device)?), header))
}

/// A session as every command has it: Ctrl-C saves and stops it, and each checkpoint comes with a look at samples.
pub fn attended(session: Session) -> Session {
    session
        .stop_when(interrupt::requested)
        .with_preview(|t, samples| preview::save(t, samples).map_err(|e| tweedie::Error::Input(e.to_string())))
}

/// Open data, which may take a while: files are listed, a tokenizer is trained.
pub fn opening(path: &str, open: impl FnOnce() -> tweedie::Result<TrainingSet>) -> Result<TrainingSet> {
    let progress = Progress::new();
    progress.tick(&format!("opening the data: {path}"));
    Ok(open()?)
}

fn toml_string(s: &str) -> String {
    format!("{s:?}")
}

/// Train to the end or to the first Ctrl-C, and show it.
pub fn train(session: &mut Session) -> Result<()> {
    let view = View::new(session);
    watch(session, &view)
}

/// As [`train`], shown by `view`.
pub fn watch(session: &mut Session, view: &View) -> Result<()> {
    let at = view.clone();
    let finished = progress::watched(move |p| at.at(p), || session.train(|event| view.tell(event)))?;
    finished.notes.iter().for_each(|n| note(n));
    Ok(())
}
