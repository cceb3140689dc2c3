//! Trainings from Python: on a thread of their own, which tells what happens.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;
use tweedie::data::{DataError, Image, ImageSource, Item, SequenceSet, Task, TextSource};
use tweedie::progress::{self, Progress, Work};
use tweedie::recipe;
use tweedie::session::Paused;
use tweedie::suggest::{self, Request};
use tweedie::train::TrainingSet;
use tweedie::{Config, Dataset, Device, Error, Finished, Result, Session, files};

use crate::devices;
use crate::errors::{Raised, value};
use crate::images::Input;
use crate::worker::Stop;

/// What is asked for, from the JSON of `_train.py`.
#[derive(Deserialize)]
struct Spec {
    /// A recipe's name or file.
    recipe: Option<String>,
    /// Settings as TOML, in place of a recipe.
    settings: Option<String>,
    sets: Vec<String>,
    /// A path, or `embedded:NAME`.
    data: Option<String>,
    out: PathBuf,
    device: String,
    resume: bool,
    other_data: bool,
    /// Seconds, for data without a recipe.
    budget: f64,
    task: Option<Task>,
}

/// Examples of a sequence of Python's, as `_train.py` found them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Examples {
    /// Of `len` examples number i: gives its image.
    image: Option<Py<PyAny>>,
    len: usize,
    /// Of images with classes.
    labels: Option<Vec<u32>>,
    /// Of captions and texts.
    texts: Option<Vec<Vec<String>>>,
}

/// The data of a program.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Own {
    name: String,
    classes: Vec<String>,
    train: Examples,
    validation: Option<Examples>,
    test: Option<Examples>,
    hold_out: Option<f64>,
    packed: bool,
}

/// A split of [`Own`], read from any thread.
struct Source {
    examples: Examples,
    raised: Raised,
}

impl Source {
    /// Image `i`, whose Python code runs while nobody waits with the GIL.
    fn read(&self, i: usize) -> std::result::Result<Image, DataError> {
        let place = || format!("example {i}");
        let Some(get) = &self.examples.image else {
            return Err(DataError::Setting("these are texts without images".into()));
        };
        let input = Python::attach(|py| {
            let input: PyResult<Input> = get.bind(py).call1((i,)).and_then(|image| image.extract());
            match input {
                // What is no error of this one image ends the training.
                Err(e) if !is_of_the_image(py, &e) => {
                    let message = e.to_string();
                    let _ = self.raised.through::<()>(Err(e));
                    Err(message)
                }
                other => other.map_err(|e| e.to_string()),
            }
        });
        let image = input.and_then(|input| input.load().map_err(|e| e.to_string()));
        image.map_err(|message| DataError::Corrupt { place: place(), message })
    }
}

fn is_of_the_image(py: Python, e: &PyErr) -> bool {
    use pyo3::exceptions::{PyOSError, PyValueError};
    e.is_instance_of::<PyValueError>(py) || e.is_instance_of::<PyOSError>(py)
}

impl ImageSource for Source {
    fn len(&self) -> usize {
        self.examples.len
    }

    fn get(&self, i: usize) -> std::result::Result<Item, DataError> {
        Ok(Item { image: self.read(i)?, label: self.label(i) })
    }

    fn label(&self, i: usize) -> u32 {
        self.examples.labels.as_ref().and_then(|l| l.get(i)).copied().unwrap_or(u32::MAX)
    }
}

impl TextSource for Source {
    fn len(&self) -> usize {
        self.examples.len
    }

    fn texts(&self, i: usize) -> std::result::Result<Vec<String>, DataError> {
        Ok(self.examples.texts.as_ref().and_then(|t| t.get(i)).cloned().unwrap_or_default())
    }

    fn image(&self, i: usize) -> std::result::Result<Option<Image>, DataError> {
        match self.examples.image {
            Some(_) => self.read(i).map(Some),
            None => Ok(None),
        }
    }
}

/// One after the other, the splits of a builder.
macro_rules! built {
    ($builder:expr, $own:ident, $raised:ident) => {{
        let source = |examples| Source { examples, raised: $raised.clone() };
        let mut builder = $builder.train(source($own.train));
        if let Some(validation) = $own.validation {
            builder = builder.validation(source(validation));
        }
        if let Some(test) = $own.test {
            builder = builder.test(source(test));
        }
        if let Some(share) = $own.hold_out {
            builder = builder.hold_out(share);
        }
        builder
    }};
}

impl Own {
    fn open(self, config: &Config, stored: Option<&Path>, raised: &Raised) -> Result<TrainingSet> {
        if self.train.labels.is_some() {
            let classes = self.classes.clone();
            return Ok(built!(Dataset::classes(self.name.clone(), classes), self, raised).build()?.into());
        }
        let packed = self.packed;
        let set = match self.train.image {
            Some(_) => SequenceSet::captions(self.name.clone()),
            None => SequenceSet::texts(self.name.clone()),
        };
        let builder = built!(set, self, raised);
        let set = if packed { builder.packed() } else { builder }.build()?;
        TrainingSet::sequences(set, config, stored)
    }
}

/// What the training tells.
enum Told {
    /// An event or a note, as JSON.
    Event(String),
    Progress(Progress),
    Over(Box<Result<Finished>>),
}

/// Train, and tell `tell(kind, JSON)` on this thread what happens until it returns False. The finished run, as JSON.
#[pyfunction]
pub fn train(py: Python, spec: &str, own: Option<Own>, tell: &Bound<PyAny>) -> PyResult<String> {
    let spec: Spec = serde_json::from_str(spec).map_err(|e| value(e.to_string()))?;
    let (say, mut told) = channel();
    let (stop, raised) = (Stop::default(), Raised::default());
    let (asked, kept) = (stop.clone(), raised.clone());
    let work = move || {
        let over = run(spec, own, &say, &asked, &kept);
        let _ = say.send(Told::Over(Box::new(over)));
    };
    thread::Builder::new().name("tweedie train".into()).spawn(work)?;
    let finished = follow(py, &mut told, tell, &stop, &raised)?;
    let best = finished.best.map(|b| json!({"name": b.name, "value": b.value, "higher_is_better": b.higher_is_better}));
    let complete = finished.is_complete();
    let Finished { path, step, total_steps, notes, .. } = finished;
    Ok(json!({"path": path, "step": step, "total_steps": total_steps, "complete": complete, "best": best, "notes": notes})
        .to_string())
}

/// Tell what happens until it is over. An exception of whoever is told, or a signal's, stops the training, which is saved.
fn follow(
    py: Python,
    told: &mut Receiver<Told>,
    tell: &Bound<PyAny>,
    stop: &Stop,
    raised: &Raised,
) -> PyResult<Finished> {
    let mut ours: Option<PyErr> = None;
    let tell_it = |ours: &mut Option<PyErr>, kind: &str, text: &str| match tell
        .call1((kind, text))
        .and_then(|go_on| go_on.extract::<bool>())
    {
        Ok(true) => {}
        Ok(false) => stop.ask(),
        Err(e) => {
            stop.ask();
            ours.get_or_insert(e);
        }
    };
    loop {
        let waiting = &mut *told;
        match py.detach(move || waiting.recv_timeout(Duration::from_millis(20))) {
            Ok(Told::Event(json)) => tell_it(&mut ours, "event", &json),
            Ok(Told::Progress(p)) => {
                let at = json!({"work": work(p.work), "done": p.done, "of": p.of});
                tell_it(&mut ours, "progress", &at.to_string());
            }
            Ok(Told::Over(over)) => {
                return match (ours, *over) {
                    (Some(e), _) => Err(e),
                    (None, over) => {
                        raised.check()?;
                        over.map_err(|e| raised.or_raise(e))
                    }
                };
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(e) = py.check_signals() {
                    stop.ask();
                    ours.get_or_insert(e);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "the training ended early, which is a defect; its checkpoints are there",
                ));
            }
        }
    }
}

fn work(work: Work) -> &'static str {
    match work {
        Work::FirstBatch => "first batch",
        Work::FirstStep => "first step",
        Work::Steps => "steps",
        Work::Evaluation => "evaluation",
        Work::Checkpoint => "checkpoint",
        Work::Clip => "clip",
    }
}

fn run(spec: Spec, own: Option<Own>, say: &Sender<Told>, stop: &Stop, raised: &Raised) -> Result<Finished> {
    let lent = devices::lend(&spec.device)?;
    let note = |text: &str| drop(say.send(Told::Event(json!({"event": "note", "message": text}).to_string())));
    let session = session(spec, own, &lent.device, &note, raised)?;
    session.notes().iter().for_each(|n| note(n));
    let t = session.trainer();
    let begun = json!({
        "event": "begin",
        "path": session.dir().path(),
        "device": lent.device.to_string(),
        "device_reason": lent.reason,
        "task": t.trained.task(),
        "method": if t.trained.model.is_tdd() { "tdd" } else { "mdd" },
        "step": t.step(),
        "total_steps": t.total_steps(),
        "epochs": t.config.train.epochs,
    });
    let _ = say.send(Told::Event(begun.to_string()));
    let (asked, broken) = (stop.clone(), raised.clone());
    let session = session.stop_when(move || asked.asked() || broken.is_set());
    let tell = say.clone();
    progress::watched(
        move |p| drop(tell.send(Told::Progress(p))),
        || {
            session.run(|event| {
                if let Ok(json) = serde_json::to_string(event) {
                    let _ = say.send(Told::Event(json));
                }
            })
        },
    )
}

fn session(spec: Spec, own: Option<Own>, device: &Device, note: &dyn Fn(&str), raised: &Raised) -> Result<Session> {
    let Spec { recipe, settings, sets, data, out, resume, other_data, budget, task, .. } = spec;
    if resume {
        let mut paused = Paused::open(&out, &sets)?;
        if other_data {
            paused = paused.with_other_data();
        }
        let set = match own {
            Some(own) => own.open(paused.config(), Some(&paused.tokenizer_path()), raised)?,
            None => paused.open_data()?,
        };
        return paused.resume(set, device);
    }
    let flags: Vec<(String, String)> = data.iter().map(|d| ("data".into(), format!("data.path={d:?}"))).collect();
    let config = match (recipe, settings, &data) {
        (Some(name), _, _) => recipe::resolve(&name, &sets, &flags)?.0,
        (None, Some(toml), _) => recipe::resolve_text("settings", &toml, &sets, &flags)?.0,
        (None, None, Some(data)) => {
            note(&format!("looking at {data} and timing a few steps"));
            let request = Request { path: data, task, sets: &sets, seconds: budget, all_in: true };
            let plan = suggest::suggest(&request, device)?;
            let config = plan.suggestion.config(&sets)?;
            let session = Session::create(&out, &config, TrainingSet::open(&config, None)?, device)?;
            let about = format!("Made for {data}: a training of {budget:.0} s. Each setting says why.");
            files::write_atomic(&out.join("recipe.toml"), plan.suggestion.recipe(&about).as_bytes())?;
            return Ok(session);
        }
        (None, None, None) => {
            return Err(Error::Input(format!("name a recipe for these data: {}", recipe::names())));
        }
    };
    let set = match own {
        Some(own) => own.open(&config, None, raised)?,
        None => TrainingSet::open(&config, None)?,
    };
    Session::create(&out, &config, set, device)
}

/// The settings of a recipe with changes, as JSON: every one by its key, as TOML.
#[pyfunction]
pub fn settings_of(recipe: Option<&str>, settings: Option<&str>, sets: Vec<String>) -> PyResult<String> {
    let config = match recipe {
        Some(name) => recipe::resolve(name, &sets, &[]),
        None => recipe::resolve_text("settings", settings.unwrap_or_default(), &sets, &[]),
    };
    let flat = config.and_then(|(config, _)| tweedie::settings::flat(&config)).map_err(crate::errors::raise)?;
    Ok(json!(flat).to_string())
}

/// Names and one line about each recipe.
#[pyfunction]
pub fn recipes() -> Vec<(&'static str, &'static str)> {
    recipe::RECIPES.iter().map(|r| (r.name, r.about)).collect()
}
