//! A warm start (`train.init_from`): all weights of a run trained before, for a new run with an optimizer, a schedule and data
//! of its own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::checkpoint::{self, Chosen, Component};
use crate::config::{Config, Method, ModelConfig, Weights};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::model::{Conditioning, Model, Pool, Positions, resize_patches};
use crate::run::{Named, set_weights};
use crate::run_dir::{InitFrom, RunDir};
use crate::settings;
use crate::tensors::{self, NamedTensor};
use crate::tokenize::{Tokenizer, TokenizerSpec};

/// Settings of a network that say nothing about its weights.
const FREE: [&str; 5] = ["classes", "pretrained", "freeze_encoder", "encoder.image", "encoder.drop_path"];

/// Settings under which the same weights compute something else: taken, and told.
const TOLD: [&str; 2] = ["gelu", "denoiser.condition_attention"];

/// A run that another one starts from.
pub(super) struct Source<'a> {
    /// As the settings name it: a run, or one of its checkpoints.
    path: &'a Path,
    dir: RunDir,
    is_checkpoint: bool,
    config: Config,
}

impl<'a> Source<'a> {
    /// The run that `config` starts from; none for a cold start.
    pub fn of(config: &'a Config) -> Result<Option<Source<'a>>> {
        let path = match config.train.init_from.as_str() {
            "" => return Ok(None),
            path => Path::new(path),
        };
        let (dir, is_checkpoint) = RunDir::around(path).map_err(|e| Error::Input(format!("train.init_from: {e}")))?;
        let name = dir.config_path().display().to_string();
        let source = Source { path, is_checkpoint, config: Config::of_run(&name, &dir.read_config()?, &[])?, dir };
        let (there, here) = (source.config.data.task, config.data.task);
        if there != here {
            let [there, here] = [there, here].map(|t| format!("{t:?}").to_lowercase());
            return Err(source.wrong(format!("it has data.task = \"{there}\", these settings \"{here}\"")));
        }
        Ok(Some(source))
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        Error::Input(format!("train.init_from: {}: {what}", self.path.display()))
    }

    /// Its tokenizer, which the new run must have too: a token is a column of its first layer and a row of its last.
    pub fn tokenizer(&self, wanted: &str) -> Result<Tokenizer> {
        let own = Tokenizer::from_file(self.dir.tokenizer_path())?;
        if wanted.is_empty() {
            return Ok(own);
        }
        let to_do = "set data.tokenizer = \"\" to take that of the run (on the command line: --set data.tokenizer=)";
        match wanted.parse::<TokenizerSpec>()? {
            TokenizerSpec::File(file) => match own.first_difference(&Tokenizer::from_file(&file)?) {
                None => Ok(own),
                Some(what) => {
                    Err(self.wrong(format!("data.tokenizer = \"{wanted}\" is not its tokenizer ({what}); {to_do}")))
                }
            },
            // Trained on other texts it would be another one: the run's own is the one that is meant.
            spec if self.config.data.tokenizer.parse::<TokenizerSpec>().is_ok_and(|s| s == spec) => Ok(own),
            _ => {
                let was = match self.config.data.tokenizer.as_str() {
                    "" => "a tokenizer of its own".to_string(),
                    was => format!("data.tokenizer = \"{was}\""),
                };
                Err(self.wrong(format!(
                    "it was trained with {was}, these settings say \"{wanted}\": its weights mean nothing with another \
                     vocabulary; {to_do}"
                )))
            }
        }
    }

    /// Put its weights into `model`, which is built by the resolved settings `config`. Says where they came from, and what the user
    /// should know.
    pub fn load(
        &self,
        model: &mut Model,
        config: &Config,
        class_names: &[String],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(InitFrom, Vec<String>)> {
        let mut notes = self.compare(config)?;
        if let Some(tokenizer) = tokenizer
            && let Some(what) = Tokenizer::from_file(self.dir.tokenizer_path())?.first_difference(tokenizer)
        {
            return Err(self.wrong(format!("the data have another tokenizer ({what}); open them with that of the run")));
        }
        let averaged = config.train.init_weights == Weights::Ema;
        let Chosen { path, state, mut weights } = match self.is_checkpoint {
            true => checkpoint::load_weights(self.path, averaged)?,
            false => {
                let found = checkpoint::load_best(&self.dir.checkpoints(), averaged)?;
                notes.extend(found.notes);
                found.checkpoint.ok_or_else(|| self.wrong("it holds no intact checkpoint"))?
            }
        };
        if state.classes != class_names {
            let file = path.join(Component::Ema.file());
            let hint = format!("for its encoder alone set model.pretrained = \"{}\"", file.display());
            return Err(self.wrong(format!("its classes are not those of the data ({hint})")));
        }
        if let Some(tensor) = tensors::first_not_finite(&weights) {
            return Err(self.wrong(format!("{tensor} of {} holds values that are not finite", path.display())));
        }
        if config.model.is_conditional() {
            resize(&mut weights, &self.config.model, &config.model, &mut notes);
        }
        set_weights(&mut model.params, Named::new(&path, weights))?;
        let has_averaged = path.join(Component::Ema.file()).is_file();
        let from = InitFrom {
            run: std::path::absolute(self.dir.path()).unwrap_or_else(|_| self.dir.path().into()).display().to_string(),
            checkpoint: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            step: state.step,
            weights: if averaged && has_averaged { "ema" } else { "raw" }.into(),
            crc32c: checkpoint::fingerprint(&path)?,
        };
        let which = if from.weights == "ema" { "averaged weights" } else { "weights" };
        notes.insert(0, format!("starts from the {which} of {}", path.display()));
        Ok((from, notes))
    }

    /// Refuse a network that the weights do not fit, naming every setting that differs; gives notes on the others.
    fn compare(&self, config: &Config) -> Result<Vec<String>> {
        let (there, here) = (&self.config, config);
        let mut differ = Vec::new();
        let mut notes = Vec::new();
        let (before, now) = (flat(&there.model)?, flat(&here.model)?);
        for (key, value) in &now {
            let was = before.get(key);
            if was == Some(value) || FREE.contains(&key.as_str()) || unused(here, key) {
                continue;
            }
            let was = was.map_or_else(|| "nothing".into(), |v| v.to_string());
            match TOLD.contains(&key.as_str()) {
                true => notes.push(format!("model.{key} is {value} here, the weights were trained with {was}")),
                false => differ.push(format!("model.{key} = {was} (here {value})")),
            }
        }
        let (was, is) = (there.sizes(), here.sizes());
        if was.tokens != is.tokens && here.model.denoiser.positions == Positions::Waves {
            differ.push(format!("data.tokens = {} (here {})", was.tokens, is.tokens));
        }
        // Of classes the names are compared, which says more.
        if was.vocab != is.vocab && here.data.task != Task::Class {
            differ.push(format!("model.classes = {} (here {})", was.vocab, is.vocab));
        }
        if !differ.is_empty() {
            return Err(self.wrong(format!("its weights fit no other network than its own; set {}", differ.join(", "))));
        }
        if there.process != here.process && here.model.method == Method::Tdd {
            notes.push("[process] differs: the weights were trained with other noise levels".into());
        }
        Ok(notes)
    }
}

/// Whether a setting has no effect on the network: that of an encoder or a denoiser which is not there.
fn unused(config: &Config, key: &str) -> bool {
    let (m, classes) = (&config.model, config.data.task == Task::Class);
    let no_encoder = m.condition == Conditioning::None && (key == "pool" || key.starts_with("encoder."));
    let of_tdd = key == "denoiser.evidence" || classes && key.starts_with("denoiser.");
    no_encoder || m.method == Method::Mdd && of_tdd
}

/// Settings by their keys with dots.
fn flat(model: &ModelConfig) -> Result<BTreeMap<String, toml::Value>> {
    fn visit(table: toml::Table, before: &str, out: &mut BTreeMap<String, toml::Value>) {
        for (name, value) in table {
            let key = format!("{before}{name}");
            match value {
                toml::Value::Table(t) => visit(t, &format!("{key}."), out),
                value => _ = out.insert(key, value),
            }
        }
    }
    let table = settings::to_toml(model)?.parse();
    let mut out = BTreeMap::new();
    visit(table.map_err(|e| Error::Input(format!("the settings have no TOML form: {e}")))?, "", &mut out);
    Ok(out)
}

/// Fit what is stored for each patch to another size of image, as for pretrained encoders: the encoder's positions, and where
/// every token is a condition token the denoiser's positions and null condition of them.
fn resize(weights: &mut [NamedTensor], there: &ModelConfig, here: &ModelConfig, notes: &mut Vec<String>) {
    let (from, to) = (there.encoder.grid(), here.encoder.grid());
    if from == to {
        return;
    }
    let all = here.pool == Pool::All;
    for t in weights.iter_mut() {
        if t.name == "encoder.pos_embed" || all && ["denoiser.pos_embed", "denoiser.null_cond"].contains(&&*t.name) {
            resize_patches(t, here.encoder.class_tokens, from, to);
        }
    }
    notes.push(format!("positions are resized from {from} × {from} to {to} × {to} patches (bicubic)"));
}
