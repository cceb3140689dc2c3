//! A run on disk: what a trainer writes into its folder, and how a model comes back from there.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tweedie_engine::{Device, Params};

use crate::checkpoint::{self, Chosen, Snapshot, State};
use crate::config::{Config, Optimizer, Precision};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::run_dir::RunDir;
use crate::tensors::NamedTensor;
use crate::tokenize::Tokenizer;
use crate::train::{Trainer, compute_type};
use crate::trained::Trained;

/// Which weights of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The averaged ones, if they were kept.
    Ema,
    /// The trained ones.
    Raw,
}

/// Name of the optimizer's counters in `state.json`.
const OPTIMIZER_STATE: &str = "optimizer";
/// Name there of the setting whose moments the checkpoint holds; one without it is AdamW's.
const OPTIMIZER_KIND: &str = "train.optimizer";
/// Name there of the number of classes of the tokenizer, which may be less than those of the model.
const TOKENIZER_CLASSES: &str = "tokenizer.classes";
/// Name of the step of the best evaluation there.
const BEST_STEP: &str = "best_step";

fn named(params: &Params, prefix: &str, flat: Option<&tweedie_engine::Tensor>) -> Result<Vec<NamedTensor<'static>>> {
    let mut all = Vec::new();
    for (name, shape, id) in params.iter() {
        let t = flat.map_or_else(|| Ok(params.value(id)), |f| params.part(f, id))?;
        all.push(NamedTensor::new(format!("{prefix}{name}"), shape, t.to_vec()?));
    }
    Ok(all)
}

/// Everything needed to go on bit for bit.
pub fn snapshot(t: &Trainer) -> Result<Snapshot<'static>> {
    let params = &t.trained.model.params;
    let mut optimizer = Vec::new();
    let (mut ema, mut extra) = (None, serde_json::Map::new());
    for (name, flat) in t.optimizer().buffers() {
        match name {
            "ema" => ema = Some(named(params, "", Some(flat))?),
            "state" => {
                extra.insert(OPTIMIZER_STATE.into(), serde_json::json!(flat.to_vec()?));
            }
            _ => optimizer.extend(named(params, &format!("{name}."), Some(flat))?),
        }
    }
    extra.insert(BEST_STEP.into(), t.best_step().into());
    extra.insert(OPTIMIZER_KIND.into(), serde_json::json!(t.config.train.optimizer));
    if let Some(tokenizer) = &t.trained.tokenizer {
        extra.insert(TOKENIZER_CLASSES.into(), tokenizer.vocab().into());
    }
    let stats = t.optimizer().stats()?;
    let batches = (t.total_steps() / t.config.train.epochs).max(1);
    let state = State {
        step: t.step() as u64,
        epoch: (t.step() / batches) as u64,
        batch: (t.step() % batches) as u64,
        seed: t.config.seed,
        // More is better, as in every run before: bits are noted with a minus.
        best: Some(t.best().map_or(0.0, |b| b.merit())),
        classes: t.trained.class_names.clone(),
        skipped: stats.skipped as u64,
        extra,
    };
    Ok(Snapshot { state, model: named(params, "", None)?, ema, optimizer })
}

/// Refuse a tokenizer, called `name`, that the checkpoint was not trained with, as far as numbers of classes tell. Earlier
/// versions recorded none: there the tokenizer must only fit into the model.
fn check_tokenizer(name: &str, tokenizer: &Tokenizer, state: &State, model: usize) -> Result<()> {
    let (have, wanted) = (tokenizer.vocab(), state.extra.get(TOKENIZER_CLASSES).and_then(|v| v.as_u64()));
    let why = match wanted {
        Some(n) if n != have as u64 => format!("the model was trained with a tokenizer of {n}"),
        None if have > model => format!("the model has {model}"),
        _ => return Ok(()),
    };
    Err(Error::Input(format!("{name} has {have} classes, but {why}: it is the tokenizer of another model")))
}

/// Tensors by name, each to be taken once.
struct Named<'a> {
    file: &'a Path,
    by_name: HashMap<String, NamedTensor<'static>>,
}

impl<'a> Named<'a> {
    fn new(file: &'a Path, all: Vec<NamedTensor<'static>>) -> Named<'a> {
        Named { file, by_name: all.into_iter().map(|t| (t.name.clone(), t)).collect() }
    }

    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let file = self.file.display();
        let t = self.by_name.remove(name).ok_or_else(|| {
            Error::Input(format!("{file}: there is no tensor {name}; the checkpoint belongs to another model"))
        })?;
        if t.shape != shape {
            return Err(Error::Input(format!("{file}: {name} is {:?}, the model has {shape:?}", t.shape)));
        }
        Ok(t.data.into_owned())
    }
}

fn set_weights(params: &mut Params, mut from: Named) -> Result<()> {
    let all: Vec<_> = params.iter().map(|(n, s, id)| (n.to_string(), s.to_vec(), id)).collect();
    for (name, shape, id) in all {
        let v = from.take(&name, &shape)?;
        params.set(id, &v)?;
    }
    match from.by_name.keys().next() {
        Some(extra) => Err(Error::Input(format!("{}: {extra} is not part of the model", from.file.display()))),
        None => Ok(()),
    }
}

/// Put a trainer where the checkpoint at `path` left off.
pub fn restore(t: &mut Trainer, path: &Path) -> Result<()> {
    restore_from(t, path, checkpoint::load(path)?)
}

/// Put a trainer where a checkpoint left off that was read from `path`, as by [`checkpoint::load_latest`].
pub fn restore_from(t: &mut Trainer, path: &Path, s: Snapshot<'static>) -> Result<()> {
    if s.state.classes != t.trained.class_names {
        return Err(Error::Input(format!("{}: its classes are not those of the data", path.display())));
    }
    if let Some(tokenizer) = &t.trained.tokenizer {
        let name = format!("{}: the tokenizer at hand", path.display());
        check_tokenizer(&name, tokenizer, &s.state, t.config.model.classes)?;
    }
    let was = s.state.extra.get(OPTIMIZER_KIND).cloned().unwrap_or_else(|| serde_json::json!(Optimizer::Adamw));
    let now = serde_json::json!(t.config.train.optimizer);
    if was != now {
        let what = format!("its moments belong to train.optimizer = {was}, which is {now} now");
        return Err(Error::Input(format!("{}: {what}; go on with {was}, or begin a new run", path.display())));
    }
    set_weights(&mut t.trained.model.params, Named::new(path, s.model))?;
    let mut optimizer = Named::new(path, s.optimizer);
    let mut ema = s.ema.map(|e| Named::new(path, e));
    let names: Vec<&'static str> = t.optimizer().buffers().iter().map(|b| b.0).collect();
    for name in names {
        let mut take = |n: &str, shape: &[usize]| match name {
            "ema" => match &mut ema {
                Some(e) => e.take(n, shape),
                None => Err(Error::Input(format!("{}: it holds no averaged weights", path.display()))),
            },
            _ => optimizer.take(&format!("{name}.{n}"), shape),
        };
        let values = match name {
            "state" => {
                let v = s.state.extra.get(OPTIMIZER_STATE).cloned().unwrap_or_default();
                serde_json::from_value(v)
                    .map_err(|e| Error::Input(format!("{}: optimizer counters: {e}", path.display())))?
            }
            _ => {
                let mut failed = None;
                let flat = t.trained.model.params.flatten(|n, shape| {
                    take(n, shape).or_else(|e| {
                        failed.get_or_insert(e);
                        Ok(vec![0.0; shape.iter().product()])
                    })
                })?;
                if let Some(e) = failed {
                    return Err(e);
                }
                flat
            }
        };
        t.optimizer_mut().restore(name, values)?;
    }
    let best_step = s.state.extra.get(BEST_STEP).and_then(|v| v.as_u64()).unwrap_or(0);
    let best = s.state.best.map(|merit| (t.metric(0.0).with_merit(merit), best_step as usize));
    t.set_position(s.state.step as usize, best.filter(|b| b.1 > 0));
    Ok(())
}

/// A model that was trained before, with its settings.
pub struct Loaded {
    /// Network, schedule and class names.
    pub trained: Trained,
    /// Settings of its run.
    pub config: Config,
    /// The checkpoint it came from.
    pub checkpoint: PathBuf,
    /// Optimizer steps behind it.
    pub step: u64,
    /// Things worth saying.
    pub notes: Vec<String>,
}

/// Load a model from a run folder (its best checkpoint, else the newest intact one) or from one checkpoint folder.
pub fn load(path: &Path, weights: Weights, device: &Device, precision: Precision) -> Result<Loaded> {
    let (dir, is_checkpoint) = RunDir::around(path)?;
    let text = dir.read_config()?;
    let name = dir.config_path().display().to_string();
    let config = Config::of_run(&name, &text, &[])?;
    let averaged = weights == Weights::Ema;
    let (chosen, notes) = match is_checkpoint {
        true => (checkpoint::load_weights(path, averaged)?, Vec::new()),
        false => {
            let found = checkpoint::load_best(&dir.checkpoints(), averaged)?;
            let chosen = found.checkpoint.ok_or_else(|| {
                let why: String = found.notes.iter().map(|n| format!("; {n}")).collect();
                Error::Input(format!("{}: it holds no intact checkpoint{why}", dir.path().display()))
            })?;
            (chosen, found.notes)
        }
    };
    let Chosen { path: checkpoint, state, weights } = chosen;
    let dtype = compute_type(precision, device)?;
    let tokenizer = match config.data.task {
        Task::Class => None,
        _ => {
            let file = dir.tokenizer_path();
            let tokenizer = Tokenizer::from_file(&file)?;
            check_tokenizer(&file.display().to_string(), &tokenizer, &state, config.model.classes)?;
            Some(Arc::new(tokenizer))
        }
    };
    let mut model =
        Model::new(&config.model, config.sizes(), device, dtype, config.seed)?.knowing(config.known() > 0.0);
    set_weights(&mut model.params, Named::new(&checkpoint, weights))?;
    let trained = Trained::new(&config, model, state.classes, tokenizer)?;
    Ok(Loaded { trained, config, checkpoint, step: state.step, notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::Kind;

    #[test]
    fn a_tokenizer_of_another_model_is_refused() {
        let tokenizer = Tokenizer::train(Kind::Chars, 99, ["abc"]).unwrap(); // 6 classes
        let recorded =
            |n: u64| State { extra: [(TOKENIZER_CLASSES.into(), n.into())].into_iter().collect(), ..State::default() };
        let check = |state: &State, model| check_tokenizer("t.json", &tokenizer, state, model);
        assert!(check(&recorded(6), 6).is_ok());
        assert!(check(&recorded(6), 9).is_ok(), "a model may have more classes than its tokenizer");
        let e = check(&recorded(7), 9).unwrap_err().to_string();
        assert!(e.contains("t.json has 6 classes") && e.contains("a tokenizer of 7"), "{e}");
        // A run of an earlier version.
        assert!(check(&State::default(), 9).is_ok());
        let e = check(&State::default(), 5).unwrap_err().to_string();
        assert!(e.contains("t.json has 6 classes") && e.contains("the model has 5"), "{e}");
    }
}
