//! A trained model, back from the folder of its run or from a file: [`load`].

pub mod embedded;
pub mod model_file;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tweedie_engine::{Device, Params};

use crate::checkpoint::{self, Chosen, State};
use crate::config::{Config, Precision};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::run_dir::RunDir;
use crate::tensors::{self, NamedTensor};
use crate::tokenize::Tokenizer;
use crate::trained::Trained;

pub use crate::config::Weights;

/// Name there of the number of classes of the tokenizer, which may be less than those of the model.
pub(crate) const TOKENIZER_CLASSES: &str = "tokenizer.classes";
/// Refuse a tokenizer, called `name`, that the checkpoint was not trained with, as far as numbers of classes tell. Earlier
/// versions recorded none: there the tokenizer must only fit into the model.
pub(crate) fn check_tokenizer(name: &str, tokenizer: &Tokenizer, state: &State, model: usize) -> Result<()> {
    let (have, wanted) = (tokenizer.vocab(), state.extra.get(TOKENIZER_CLASSES).and_then(|v| v.as_u64()));
    let why = match wanted {
        Some(n) if n != have as u64 => format!("the model was trained with a tokenizer of {n}"),
        None if have > model => format!("the model has {model}"),
        _ => return Ok(()),
    };
    Err(Error::Input(format!("{name} has {have} classes, but {why}: it is the tokenizer of another model")))
}

/// Tensors by name, each to be taken once.
pub(crate) struct Named<'a> {
    file: &'a Path,
    by_name: HashMap<String, NamedTensor<'static>>,
}

impl<'a> Named<'a> {
    pub fn new(file: &'a Path, all: Vec<NamedTensor<'static>>) -> Named<'a> {
        Named { file, by_name: all.into_iter().map(|t| (t.name.clone(), t)).collect() }
    }

    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
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

pub(crate) fn set_weights(params: &mut Params, mut from: Named) -> Result<()> {
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

/// A model that was trained before, with its settings.
pub struct Loaded {
    /// Network, schedule and class names.
    pub trained: Trained,
    /// Settings of its run.
    pub config: Config,
    /// The checkpoint or file it came from, or `embedded:NAME`.
    pub checkpoint: PathBuf,
    /// Optimizer steps behind it.
    pub step: u64,
    /// Things worth saying.
    pub notes: Vec<String>,
}

/// Load a model: from a run folder (its best checkpoint, else the newest intact one), from one checkpoint folder, from a
/// [file](model_file), or one that comes with the program (`embedded:NAME`, [`embedded`]).
pub fn load(path: &Path, weights: Weights, device: &Device, precision: Precision) -> Result<Loaded> {
    let embedded = embedded::name_in(path);
    let single = embedded.is_some() || model_file::is_named_so(path);
    if single && weights == Weights::Raw {
        return Err(Error::Input(format!("{} holds averaged weights alone; leave out --raw", path.display())));
    }
    match embedded {
        Some(name) => embedded::load(name, device, precision),
        None if single => model_file::load(path, device, precision),
        None => load_folder(path, weights, device, precision),
    }
}

fn load_folder(path: &Path, weights: Weights, device: &Device, precision: Precision) -> Result<Loaded> {
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
    // The run's own algorithms of products give its own bits. Those of another GPU or library are no use, and none are needed.
    let _ = dir.read_products().map(|text| device.import_products(&text));
    let Chosen { path: checkpoint, state, weights: values } = chosen;
    if let Some(tensor) = tensors::first_not_finite(&values) {
        return Err(Error::Input(format!(
            "{}: {tensor} holds values that are not finite: the training had diverged there; pass an earlier checkpoint \
             ({}/step-N), or train again with a lower train.lr",
            checkpoint.display(),
            dir.checkpoints().display()
        )));
    }
    let tokenizer = match config.data.task {
        Task::Class => None,
        _ => {
            let file = dir.tokenizer_path();
            let tokenizer = Tokenizer::from_file(&file)?;
            check_tokenizer(&file.display().to_string(), &tokenizer, &state, config.model.classes)?;
            Some(tokenizer)
        }
    };
    let temperature = dir.read_calibration(state.step, weights).map(|c| c.temperature);
    let (step, classes) = (state.step, state.classes);
    Parts { config, step, classes, weights: values, tokenizer, temperature }
        .assemble(checkpoint, notes, device, precision)
}

/// What a model is put together from.
pub(crate) struct Parts {
    pub config: Config,
    pub step: u64,
    /// Names of classes.
    pub classes: Vec<String>,
    pub weights: Vec<NamedTensor<'static>>,
    pub tokenizer: Option<Tokenizer>,
    pub temperature: Option<f64>,
}

impl Parts {
    /// The model, of which messages say that it lies at `checkpoint`.
    pub fn assemble(
        self,
        checkpoint: PathBuf,
        notes: Vec<String>,
        device: &Device,
        precision: Precision,
    ) -> Result<Loaded> {
        let Parts { config, step, classes, weights, tokenizer, temperature } = self;
        let dtype = precision.dtype(device)?;
        let mut model = Model::new(&config.model, config.sizes(), device, dtype, config.seed)?
            .with_per_token_time(config.per_token_time());
        set_weights(&mut model.params, Named::new(&checkpoint, weights))?;
        let mut trained = Trained::new(&config, model, classes, tokenizer.map(Arc::new))?;
        trained.temperature = temperature;
        Ok(Loaded { trained, config, checkpoint, step, notes })
    }
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
