//! `tweedie train`: a recipe, data, a run folder.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tweedie::config::Config;
use tweedie::data::{self, Dataset, OpenOptions, Task};
use tweedie::run_dir::{Environment, Metrics, RunDir};
use tweedie::tensorboard::EventWriter;
use tweedie::tokenize::Tokenizer;
use tweedie::train::{Event, Material, Trainer};
use tweedie::{checkpoint, interrupt, run, settings};
use tweedie_engine::Device;

use crate::failure::{Failure, Result};
use crate::recipe;
use crate::report::{self, note};
use crate::shared::looks;
use crate::shared::sequence_args::{build_tokenizer, open_sequences};

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
    /// Go on with an interrupted run
    #[arg(long, value_name = "RUN", conflicts_with_all = ["recipe", "out"])]
    resume: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D")]
    device: String,
}

/// Open the data that a configuration names.
pub fn open_data(config: &Config) -> Result<Dataset> {
    let given = |s: &str| (!s.is_empty()).then(|| s.to_string());
    let options = OpenOptions {
        classes: given(&config.data.classes).map(PathBuf::from),
        image_column: given(&config.data.image_column),
        label_column: given(&config.data.label_column),
        val_fraction: config.data.val_fraction,
        split_seed: config.seed,
        decoded_bytes: config.data.cache.bytes(),
        ..OpenOptions::default()
    };
    if config.data.path.is_empty() {
        return Err(Failure::input("no data are named").hint("tweedie train RECIPE --data PATH"));
    }
    Ok(data::open(&config.data.path, &options)?)
}

/// The first free `runs/NAME-N`.
pub fn free_folder(name: &str) -> PathBuf {
    let stem = Path::new(name).file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned());
    (1..).map(|n| PathBuf::from(format!("runs/{stem}-{n}"))).find(|p| !p.exists()).unwrap_or_default()
}

pub fn run(args: &Args) -> Result<()> {
    let resumed = args.resume.is_some();
    let (config, dir, fresh) = match (&args.resume, &args.recipe) {
        (Some(path), _) => {
            let dir = RunDir::resume(path)?;
            let text = dir.read_config()?;
            let name = dir.config_path().display().to_string();
            let mut sets = args.sets.clone();
            sets.extend(args.data.iter().map(|d| format!("data.path={}", toml_string(d))));
            (Config::of_run(&name, &text, &sets)?, Some(dir), PathBuf::new())
        }
        (None, Some(name)) => {
            let flags: Vec<(String, String)> =
                args.data.iter().map(|d| ("--data".to_string(), format!("data.path={}", toml_string(d)))).collect();
            let (config, _) = recipe::resolve(name, &args.sets, &flags)?;
            let path = args.out.clone().unwrap_or_else(|| free_folder(name));
            RunDir::check_free(&path)?;
            (config, None, path)
        }
        (None, None) => return Err(Failure::input("no recipe is named").hint("tweedie train digits")),
    };
    // Everything that can be wrong with the input is found before anything is written.
    let choice = report::open_device(&args.device)?;
    let material = open_material(&config, dir.as_ref())?;
    describe(&material);
    let latest = match &dir {
        Some(dir) => Some(checkpoint::latest(&dir.checkpoints())?),
        None => None,
    };
    let mut trainer =
        new_trainer(&config, material, &choice.device, latest.as_ref().is_some_and(|l| l.path.is_some()))?;
    trainer.notes.iter().for_each(|n| note(&format!("note: {n}")));
    let dir = match dir {
        Some(dir) => dir,
        None => RunDir::create(&fresh)?,
    };
    if let Some(latest) = latest {
        latest.notes.iter().for_each(|n| note(n));
        match latest.path {
            Some(path) => {
                run::restore(&mut trainer, &path)?;
                if trainer.best_step() == trainer.step() {
                    // A kill may have come between the checkpoint and this note.
                    checkpoint::link_best(&dir.checkpoints(), &path)?;
                }
                note(&format!("goes on from step {} ({})", trainer.step(), path.display()));
            }
            None => note("no checkpoint was written yet: starts from the beginning"),
        }
    }
    if let Some(tokenizer) = &trainer.trained.tokenizer {
        dir.write_tokenizer(&tokenizer.to_json())?;
    }
    // After the checkpoint was found to fit: a --set that does not must not spoil the run.
    dir.write_config(&settings::to_toml(&trainer.config)?)?;
    dir.write_env(&Environment::now(choice.device.to_string(), tweedie_engine::cpu::threads()))?;
    interrupt::install()?;
    train(&mut trainer, &dir, resumed)?;
    if interrupt::requested() {
        note(&format!(
            "interrupted at step {}; go on with: tweedie train --resume {}",
            trainer.step(),
            dir.path().display()
        ));
        return Err(Failure::interrupted());
    }
    println!("{}", dir.path().display());
    let run = dir.path().display();
    note(&match (trainer.validation_texts().is_some(), trainer.config.model.is_conditional()) {
        (false, _) => format!("best top-1 {:.2} %; next: tweedie eval {run}", 100.0 * trainer.best()),
        (true, true) => {
            format!("best CIDEr-D {:.3}; next: tweedie eval {run}, tweedie caption {run} IMAGE", trainer.best())
        }
        (true, false) => {
            format!("best {:.3} bits per token; next: tweedie eval {run}, tweedie generate {run}", -trainer.best())
        }
    });
    Ok(())
}

/// A trainer; where a checkpoint is about to give the weights, the file of pretrained ones is not needed any more.
pub fn new_trainer(config: &Config, material: Material, device: &Device, has_checkpoint: bool) -> Result<Trainer> {
    let mut start = config.clone();
    if has_checkpoint {
        start.model.pretrained.clear();
    }
    let mut trainer = Trainer::new(&start, material, device)?;
    trainer.config.model.pretrained.clone_from(&config.model.pretrained);
    Ok(trainer)
}

fn toml_string(s: &str) -> String {
    format!("{s:?}")
}

/// Open what a configuration names: classes, or sequences with their tokenizer (that of `run` if it has one).
pub fn open_material(config: &Config, run: Option<&RunDir>) -> Result<Material> {
    if config.data.task == Task::Class {
        return Ok(open_data(config)?.into());
    }
    let set = open_sequences(&config.data, config.seed)?;
    let stored = run.map(RunDir::tokenizer_path).filter(|p| p.exists());
    let tokenizer = match stored {
        Some(path) => Tokenizer::from_file(path)?,
        None => build_tokenizer(&config.data.tokenizer, &set)?,
    };
    Ok(Material::Sequences { set, tokenizer: Arc::new(tokenizer) })
}

fn describe(m: &Material) {
    match m {
        Material::Classes(d) => describe_classes(d),
        Material::Sequences { set, tokenizer } => {
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

/// Train to the end or to the first Ctrl-C, writing metrics and checkpoints into `dir`.
pub fn train(trainer: &mut Trainer, dir: &RunDir, resumed: bool) -> Result<()> {
    let started = Instant::now();
    let unit = if trainer.config.data.task == Task::Text { "texts" } else { "images" };
    train_with(trainer, dir, resumed, &|event| show(event, started.elapsed().as_secs(), unit))
}

/// As [`train`]; what happens is told to `show`.
pub fn train_with(trainer: &mut Trainer, dir: &RunDir, resumed: bool, show: &dyn Fn(&Event)) -> Result<()> {
    let from = resumed.then_some(trainer.step() as u64);
    let log = RefCell::new(Log {
        metrics: dir.metrics(from)?,
        board: EventWriter::create(dir.path(), from)?,
        show,
        failed: None,
    });
    let checkpoints = dir.checkpoints();
    let samples = dir.samples();
    let mut unseen = None;
    let keep = trainer.config.train.keep;
    let result = trainer.run(
        |event| log.borrow_mut().take(event),
        |t, best| {
            // A checkpoint is never ahead of the metrics: a resumed run does not write those again.
            log.borrow_mut().sync()?;
            let path = checkpoint::save(&checkpoints, &run::snapshot(t)?)?;
            if best {
                checkpoint::link_best(&checkpoints, &path)?;
            }
            let best = checkpoint::best(&checkpoints)?;
            checkpoint::prune(&checkpoints, keep, best.as_deref())?;
            // A picture that cannot be drawn must not end a training.
            unseen = look_at(t, &samples).err();
            Ok(path.display().to_string())
        },
        interrupt::requested,
    );
    if let Some(e) = unseen {
        note(&format!("the last look at samples was not drawn: {e}"));
    }
    log.borrow_mut().sync()?;
    Ok(result?)
}

/// The first evaluation images with predictions, as samples/step-N.png.
fn look_at(t: &mut Trainer, samples: &Path) -> Result<()> {
    let name = format!("step-{:08}", t.step());
    if let Some(source) = t.validation().cloned() {
        let looks = t.averaged(|model, c| Ok(looks::look(model, c, &source)))??;
        return report::save_figure(&looks.tiles()?, samples, &name);
    }
    let Some(source) = t.validation_texts().cloned() else { return Ok(()) };
    let text = t.averaged(|model, c| looks::texts(model, c, &source))?;
    Ok(tweedie::files::write_atomic(&samples.join(format!("{name}.txt")), text.as_bytes())?)
}

struct Log<'a> {
    metrics: Metrics,
    board: EventWriter,
    show: &'a dyn Fn(&Event),
    failed: Option<tweedie::Error>,
}

impl Log<'_> {
    fn take(&mut self, event: &Event) {
        (self.show)(event);
        let written = self.metrics.append(event).and_then(|()| match event {
            Event::Step { step, loss, lr, grad_norm, images_per_second, .. } => self.board.scalars(
                &[
                    ("train/loss", *loss),
                    ("train/lr", *lr),
                    ("train/grad_norm", *grad_norm),
                    ("train/images_per_second", *images_per_second as f32),
                ],
                *step as u64,
            ),
            Event::Eval { step, top1, ema_top1, nll, .. } => {
                let mut all = vec![("eval/top1", *top1 as f32), ("eval/nll", *nll as f32)];
                all.extend(ema_top1.map(|e| ("eval/top1_ema", e as f32)));
                self.board.scalars(&all, *step as u64)
            }
            Event::EvalText { step, metric, score, ema_score, exact, .. } => {
                let (raw, ema) = match *metric {
                    "CIDEr-D" => ("eval/cider_d", "eval/cider_d_ema"),
                    _ => ("eval/bits_per_token", "eval/bits_per_token_ema"),
                };
                let mut all = vec![(raw, *score as f32)];
                all.extend(ema_score.map(|e| (ema, e as f32)));
                all.extend(exact.map(|e| ("eval/exact", e as f32)));
                self.board.scalars(&all, *step as u64)
            }
            Event::Saved { .. } | Event::Skipped { .. } => Ok(()),
        });
        if let Err(e) = written {
            self.failed.get_or_insert(e);
        }
    }

    /// Make what was logged durable, or say why it could not be.
    fn sync(&mut self) -> tweedie::Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        self.metrics.sync()?;
        self.board.flush()
    }
}

/// Tell an event, `at` seconds after the start; examples are counted in `unit`.
fn show(event: &Event, at: u64, unit: &str) {
    match event {
        Event::Step { step, epoch, loss, lr, grad_norm, skipped, images_per_second, waited, eta } => {
            let skipped = if *skipped > 0 { format!(", {skipped} steps skipped") } else { String::new() };
            note(&format!(
                "{at:>5} s  epoch {epoch:>6.2}  step {step:>6}  loss {loss:.4}  lr {lr:.1e}  |g| {grad_norm:.2}  \
                 {images_per_second:.0} {unit}/s  waited {:.0} %  {} left{skipped}",
                100.0 * waited,
                report::duration(*eta)
            ));
        }
        Event::Eval { epoch, top1, ema_top1, best, images, .. } => {
            let ema = ema_top1.map_or(String::new(), |e| format!(", averaged weights {:.2} %", 100.0 * e));
            note(&format!(
                "{at:>5} s  epoch {epoch:>6.2}  top-1 {:.2} %{ema} on {images} images; best {:.2} %",
                100.0 * top1,
                100.0 * best
            ));
        }
        Event::EvalText { epoch, metric, score, ema_score, exact, best, examples, .. } => {
            let ema = ema_score.map_or(String::new(), |e| format!(", averaged weights {e:.3}"));
            let exact = exact.map_or(String::new(), |e| format!(", exact {:.1} %", 100.0 * e));
            note(&format!(
                "{at:>5} s  epoch {epoch:>6.2}  {metric} {score:.3}{ema}{exact} on {examples} sequences; best {best:.3}"
            ));
        }
        Event::Skipped { examples, cut, errors, cut_at, .. } => {
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
        Event::Saved { .. } => {}
    }
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
