//! A training with its folder on disk: created or gone on with, logged, saved, pruned. Begin with [`Session::create`].

mod calibrate;
mod card;
mod keeper;
mod log;
mod snapshot;
mod together;

pub use snapshot::{restore, restore_from, snapshot};

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use tweedie_engine::Device;
use tweedie_engine::comm::Comm;

use crate::checkpoint::{self, Component, Restored};
use crate::config::Config;
use crate::data::Fingerprint;
use crate::error::{Error, Result};
use crate::peers::Peers;
use crate::run_dir::{Environment, RunDir};
use crate::settings;
use crate::tokenize::Tokenizer;
use crate::train::{Event, Metric, Trainer, TrainingSet};
use keeper::Keeper;
use log::Log;
use together::{check_same, path_of_first, restore_newest};

/// A training and the folder that it is kept in.
///
/// ```
/// use tweedie::{Classifier, Config, Dataset, Device, Session};
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path().join("mine");
///
/// let config = Config::preset("digits")?.with("train.epochs", 1)?;
/// let run = Session::create(&folder, &config, Dataset::embedded("digits")?, &Device::Cpu)?.run(|_| {})?;
/// assert!(run.is_complete());
/// let classifier = Classifier::open(&run)?;
/// assert_eq!(classifier.trained().class_names.len(), 10);
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Session {
    dir: RunDir,
    trainer: Trainer,
    /// What it is trained on looks like.
    data: Fingerprint,
    /// The step that it goes on from, if it was there before.
    resumed: Option<u64>,
    notes: Vec<String>,
    preview: Option<Preview>,
    stop: Box<dyn Fn() -> bool>,
}

/// Draws what a model in training says, into the folder of samples.
type Preview = Box<dyn FnMut(&mut Trainer, &Path) -> Result<()>>;

/// A run that came to its end, or was stopped and can be gone on with.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its folder.
    pub path: PathBuf,
    /// Optimizer steps behind it.
    pub step: usize,
    /// Those of the whole run.
    pub total_steps: usize,
    /// The best evaluation.
    pub best: Option<Metric>,
    /// What went wrong on the way without ending it.
    pub notes: Vec<String>,
}

impl Finished {
    /// Whether it was not stopped before its end.
    pub fn is_complete(&self) -> bool {
        self.step >= self.total_steps
    }
}

impl AsRef<Path> for Finished {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// A run on disk that is about to be gone on with: locked, its settings read.
pub struct Paused {
    dir: RunDir,
    config: Config,
    other_data: bool,
    peers: Peers,
}

impl Paused {
    /// The run in the folder `path`, its settings changed by `sets` (`"train.epochs=5"`).
    pub fn open(path: impl AsRef<Path>, sets: &[String]) -> Result<Paused> {
        Paused::open_with(path, sets, None)
    }

    /// As [`Paused::open`], to go on with the other ranks of a group: each of them calls this. Any number can go on with a run.
    pub fn open_with(path: impl AsRef<Path>, sets: &[String], comm: Option<Comm>) -> Result<Paused> {
        let peers = together::peers(comm);
        // The first rank locks the folder before another looks into it.
        let locked = peers.agree(if peers.is_first() { RunDir::resume(path.as_ref()).map(Some) } else { Ok(None) })?;
        let opened = locked.map_or_else(|| RunDir::open(path.as_ref()), Ok).and_then(|dir| {
            let text = dir.read_config()?;
            let config = Config::of_run(&dir.config_path().display().to_string(), &text, sets)?;
            Ok((dir, config))
        });
        let (dir, config) = peers.agree(opened)?;
        Ok(Paused { dir, config, other_data: false, peers })
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where its tokenizer lies, if it is a run of sequences: for [`TrainingSet::sequences`].
    pub fn tokenizer_path(&self) -> PathBuf {
        self.dir.tokenizer_path()
    }

    /// Open the data that its settings name, with its own tokenizer.
    pub fn open_data(&self) -> Result<TrainingSet> {
        TrainingSet::open(&self.config, Some(&self.dir.tokenizer_path()))
    }

    /// Go on even where the data differ from those that the run was begun with, which is refused otherwise ([`Error::OtherData`]).
    #[must_use]
    pub fn with_other_data(self) -> Paused {
        Paused { other_data: true, ..self }
    }

    /// Go on from its newest intact checkpoint.
    pub fn resume(self, data: impl Into<TrainingSet>, device: &Device) -> Result<Session> {
        Session::go_on(self, data.into(), device)
    }
}

impl Session {
    /// A new run in the folder `path`, which must be empty or not there yet. Everything that can be wrong with settings and data is
    /// found before anything is written.
    pub fn create(
        path: impl AsRef<Path>,
        config: &Config,
        data: impl Into<TrainingSet>,
        device: &Device,
    ) -> Result<Session> {
        Session::create_with(path, config, data, device, None)
    }

    /// As [`Session::create`], with the other ranks of a group: each of them calls this with the same settings and data. The first one
    /// writes the folder, which is that of its `path`.
    pub fn create_with(
        path: impl AsRef<Path>,
        config: &Config,
        data: impl Into<TrainingSet>,
        device: &Device,
        comm: Option<Comm>,
    ) -> Result<Session> {
        let peers = together::peers(comm);
        let path = &path_of_first(&peers, path.as_ref())?;
        let data = data.into();
        let fingerprint = data.fingerprint();
        let free = if peers.is_first() { RunDir::check_free(path) } else { Ok(()) };
        let trainer = peers.agree(free.and_then(|()| Trainer::share(config, data, device, peers.size())))?;
        let trainer = joined(trainer, &peers, &fingerprint)?;
        let notes = trainer.notes.iter().map(|n| format!("note: {n}")).collect();
        let made = if peers.is_first() { RunDir::create(path) } else { Ok(RunDir::of_another(path)) };
        let session = Session::begin(peers.agree(made)?, trainer, fingerprint, None, notes)?;
        if session.trainer.init_from.is_some() {
            // From here on the run can be gone on with, whatever becomes of the one it started from.
            let whole = snapshot(&session.trainer)?;
            let saved =
                if peers.is_first() { checkpoint::save(&session.dir.checkpoints(), &whole).map(drop) } else { Ok(()) };
            peers.agree(saved)?;
        }
        Ok(session)
    }

    /// Go on with the run in the folder `path`, on the data that its settings name; for data of your own see
    /// [`Session::resume_with`].
    pub fn resume(path: impl AsRef<Path>, device: &Device) -> Result<Session> {
        let paused = Paused::open(path, &[])?;
        let data = paused.open_data()?;
        paused.resume(data, device)
    }

    /// Go on with the run in the folder `path` on data of your own: those that it was begun with.
    pub fn resume_with(path: impl AsRef<Path>, data: impl Into<TrainingSet>, device: &Device) -> Result<Session> {
        Paused::open(path, &[])?.resume(data, device)
    }

    /// Go on with the run in the folder `path` by these settings, or begin it where there is none. `open` is handed the place of the
    /// run's own tokenizer.
    pub fn create_or_resume(
        path: impl AsRef<Path>,
        config: &Config,
        open: impl FnOnce(&Path) -> Result<TrainingSet>,
        device: &Device,
    ) -> Result<Session> {
        let path = path.as_ref();
        if RunDir::open(path).is_err() {
            return Session::create(path, config, open(&path.join("tokenizer.json"))?, device);
        }
        let dir = RunDir::resume(path)?;
        let data = open(&dir.tokenizer_path())?;
        let peers = Peers::default();
        Session::go_on(Paused { dir, config: config.clone(), other_data: false, peers }, data, device)
    }

    fn go_on(paused: Paused, data: TrainingSet, device: &Device) -> Result<Session> {
        let Paused { dir, config, other_data, peers } = paused;
        let fingerprint = data.fingerprint();
        let changes = dir.read_fingerprint().map(|before| before.changes(&fingerprint)).unwrap_or_default();
        let run = dir.path().display().to_string();
        peers.agree(check_tokenizer(&dir, &data).and_then(|()| match changes.is_empty() || other_data {
            true => Ok(()),
            false => Err(Error::OtherData { run, changes: changes.join("; ") }),
        }))?;
        let checkpoints = dir.checkpoints();
        let begun = peers.agree(checkpoint::any(&checkpoints))?;
        let mut start = config.clone();
        if begun {
            // The checkpoint gives the weights: the file of pretrained ones or the run they came from is not needed any more.
            start.model.pretrained.clear();
            start.train.init_from.clear();
        }
        // Before anything is computed: the same algorithms give the same bits.
        let refused = dir.read_products().and_then(|text| device.import_products(&text).err());
        let trainer = peers.agree(Trainer::share(&start, data, device, peers.size()))?;
        let mut trainer = joined(trainer, &peers, &fingerprint)?;
        trainer.config.model.pretrained.clone_from(&config.model.pretrained);
        trainer.config.train.init_from.clone_from(&config.train.init_from);
        let mut notes: Vec<String> = trainer.notes.iter().map(|n| format!("note: {n}")).collect();
        notes.extend(changes.iter().map(|c| format!("note: other data: {c}")));
        notes.extend(refused.map(|e| format!("note: {e}")));
        let mut restored = restore_newest(&peers, &mut trainer, &checkpoints)?;
        match &restored.path {
            Some(_) if !peers.is_first() => {}
            Some(path) => {
                notes.extend(restored.notes);
                // What was passed over must not count as the newest checkpoint any more.
                for passed in &restored.passed {
                    notes.push(match checkpoint::put_aside(passed) {
                        Ok(to) => format!("{} is called {} now", passed.display(), to.display()),
                        Err(e) => format!("it could not be put aside: {e}"),
                    });
                }
                if trainer.best_step() == trainer.step() {
                    // A kill may have come between the checkpoint and this note.
                    checkpoint::link_best(&checkpoints, path)?;
                }
                notes.push(format!("goes on from step {} ({})", trainer.step(), path.display()));
            }
            None if begun => {
                // Only the first rank knows why.
                let why = restored.misfit.take().unwrap_or_else(|| salvage(&dir, &restored));
                return peers.agree(if peers.is_first() { Err(why) } else { Ok(()) }).and(Err(Error::Interrupted));
            }
            None => notes.push("no checkpoint was written yet: starts from the beginning".into()),
        }
        let step = trainer.step() as u64;
        Session::begin(dir, trainer, fingerprint, Some(step), notes)
    }

    /// Write what a run is started with. A resumed one comes here after its checkpoint was found to fit: a setting that does not must
    /// not spoil the run.
    fn begin(
        dir: RunDir,
        trainer: Trainer,
        data: Fingerprint,
        resumed: Option<u64>,
        notes: Vec<String>,
    ) -> Result<Session> {
        let peers = trainer.peers();
        peers.agree(if peers.is_first() { write_start(&dir, &trainer, &data) } else { Ok(()) })?;
        Ok(Session { dir, trainer, data, resumed, notes, preview: None, stop: Box::new(|| false) })
    }

    /// Asked after every step, and once more after an evaluation: true saves and ends the run.
    #[must_use]
    pub fn stop_when(self, stop: impl Fn() -> bool + 'static) -> Session {
        Session { stop: Box::new(stop), ..self }
    }

    /// Called after each checkpoint with the folder of samples, to draw what the model says. One that fails does not end the run.
    #[must_use]
    pub fn with_preview(self, preview: impl FnMut(&mut Trainer, &Path) -> Result<()> + 'static) -> Session {
        Session { preview: Some(Box::new(preview)), ..self }
    }

    /// What there is to say about how it was set up.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The folder.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The training.
    pub fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// The model in training, to look at it with its averaged weights ([`Trainer::averaged`]).
    pub fn trainer_mut(&mut self) -> &mut Trainer {
        &mut self.trainer
    }

    /// Train to the end, or until it is stopped. `each` sees what happens.
    pub fn run(mut self, each: impl FnMut(&Event)) -> Result<Finished> {
        self.train(each)
    }

    /// As [`Session::run`], and keep the model.
    ///
    /// After [`Error::Diverged`] the model is that of the last good checkpoint, from which another call would go on.
    pub fn train(&mut self, mut each: impl FnMut(&Event)) -> Result<Finished> {
        let Session { dir, trainer, data, resumed, preview, stop, .. } = self;
        let peers = trainer.peers().clone();
        let log = peers.agree(if peers.is_first() { Log::open(dir, *resumed).map(Some) } else { Ok(None) })?;
        let keeper = RefCell::new(Keeper { dir, data, log, each: &mut each, preview, saved: None, undrawn: None });
        let result =
            trainer.fit(|event| keeper.borrow_mut().tell(event), |t, best| keeper.borrow_mut().save(t, best), &*stop);
        let mut keeper = keeper.into_inner();
        let result = match result {
            Err(Error::Diverged { why, step, .. }) => Err(go_back(&mut keeper, trainer, why, step)),
            result => result,
        };
        let synced = keeper.sync();
        let undrawn = keeper.undrawn.map(|e| format!("the last look at samples was not drawn: {e}"));
        // More steps would go on from here.
        *resumed = Some(trainer.step() as u64);
        result?;
        synced?;
        let (calibrated, uncarded) = match peers.is_first() {
            true => (calibrate::at_the_end(dir, trainer, &**stop), card::write(dir, trainer, data).err()),
            false => (None, None),
        };
        let uncarded = uncarded.map(|e| format!("the model card was not written: {e}"));
        Ok(Finished {
            path: dir.path().to_path_buf(),
            step: trainer.step(),
            total_steps: trainer.total_steps(),
            best: trainer.best(),
            notes: undrawn.into_iter().chain(calibrated).chain(uncarded).collect(),
        })
    }
}

/// A trainer with the other ranks of its group, which have the same settings, data and program.
fn joined(trainer: Trainer, peers: &Peers, data: &Fingerprint) -> Result<Trainer> {
    check_same(peers, &trainer, data)?;
    match peers.comm() {
        Some(comm) => trainer.with_comm(comm.clone()),
        None => Ok(trainer),
    }
}

/// What a run is started with.
fn write_start(dir: &RunDir, trainer: &Trainer, data: &Fingerprint) -> Result<()> {
    if let Some(tokenizer) = &trainer.trained.tokenizer {
        dir.write_tokenizer(&tokenizer.to_json())?;
    }
    dir.write_config(&settings::to_toml(&trainer.config)?)?;
    dir.write_fingerprint(data)?; // after what makes the folder a run: a kill in between must leave one that can be gone on with
    let device = trainer.trained.model.device().to_string();
    let env = Environment::now(device, tweedie_engine::cpu::threads());
    dir.write_env(&Environment { init_from: trainer.init_from.clone(), ..env })
}

/// Put a training that diverged at `step` where its last good checkpoint left off, and give what it ends with.
fn go_back(keeper: &mut Keeper, t: &mut Trainer, why: String, step: usize) -> Error {
    let restored = restore_newest(&t.peers().clone(), t, &keeper.dir.checkpoints());
    let good = restored.ok().and_then(|r| r.path).map(|p| p.display().to_string());
    let message = match &good {
        Some(path) => format!("diverged at step {step} ({why}); went back to {path}"),
        None => format!("diverged at step {step} ({why}); there is no good checkpoint to go back to"),
    };
    // Told at the step gone back to: lines of later ones are dropped when the run goes on.
    keeper.warn(if good.is_some() { t.step() } else { step }, message);
    Error::Diverged { why, step, good }
}

/// Why a run all of whose checkpoints are damaged is not gone on with, and what of it is left.
fn salvage(dir: &RunDir, restored: &Restored) -> Error {
    let mut left = Vec::new();
    for path in &restored.passed {
        let parts = checkpoint::intact_components(path);
        let files: Vec<&str> = parts.iter().map(|p| p.file()).collect();
        let weights = parts.iter().find(|p| matches!(p, Component::Model | Component::Ema));
        if let Some(weights) = weights {
            let file = path.join(weights.file());
            let used = match checkpoint::load_state(path) {
                Ok(_) => format!("tweedie eval {}, or ", path.display()),
                Err(_) => String::new(),
            };
            let files = files.join(" and ");
            left.push(format!("{files} of {} ({used}--set model.pretrained={})", path.display(), file.display()));
        }
    }
    left.push(format!("{}", dir.config_path().display()));
    if let Ok(lines) = dir.read_metrics() {
        left.push(format!("{} ({} lines)", dir.metrics_path().display(), lines.len()));
    }
    Error::Input(format!(
        "none of the {} checkpoints of {} can be gone on with: {}. Nothing was changed. Intact are {}. To begin anew: tweedie train {} \
         --out OTHER",
        restored.passed.len(),
        dir.path().display(),
        restored.notes.join("; "),
        left.join(", "),
        dir.config_path().display()
    ))
}

/// A run goes on with the tokenizer that it began with: token by token the same.
fn check_tokenizer(dir: &RunDir, data: &TrainingSet) -> Result<()> {
    let (TrainingSet::Sequences { tokenizer, .. }, path) = (data, dir.tokenizer_path()) else { return Ok(()) };
    if !path.exists() {
        return Ok(());
    }
    match Tokenizer::from_file(&path)?.first_difference(tokenizer) {
        Some(what) => Err(Error::Input(format!(
            "{} is not the tokenizer of these data: {what}; open them with that file",
            path.display()
        ))),
        None => Ok(()),
    }
}
