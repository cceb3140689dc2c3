//! Errors of the library: what was wrong, in the user's words, and whether it was the user's input or ours.

mod data;

use std::path::Path;

use crate::names::nearest;
pub use data::DataError;

/// Every fallible call returns this.
pub type Result<T> = std::result::Result<T, Error>;

/// A library error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Settings, arguments or files that the user can mend.
    #[error("{0}")]
    Input(String),
    /// Settings that do not fit the data, and those that would.
    #[error("{what}; it needs {}", .sets.join(", "))]
    Misfit {
        /// What does not fit.
        what: String,
        /// Changes that make it fit, as `--set` takes them: `"train.batch=16"`.
        sets: Vec<String>,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A recipe that is none.
    #[error("'{name}' is neither a recipe nor a readable file ({source}); the recipes are {recipes}")]
    NoRecipe {
        /// What was asked for.
        name: String,
        /// The names there are.
        recipes: String,
        /// Why it is not a file to read.
        source: std::io::Error,
    },
    /// Settings name no data (`data.path`).
    #[error("no data are named")]
    NoData,
    /// A run was trained on data that a program made, which no path names.
    #[error("these data (\"{name}\") were made by a program: hand them over again, or name other data")]
    OwnData {
        /// What the program called them.
        name: String,
    },
    /// A run would be gone on with on data that differ from those that it was begun with.
    #[error("{run} was begun on other data: {changes}")]
    OtherData {
        /// The folder of the run.
        run: String,
        /// What differs.
        changes: String,
    },
    /// A text holds a word that the model's vocabulary does not.
    #[error("the model's vocabulary lacks '{word}'")]
    UnknownWord {
        /// The word.
        word: String,
    },
    /// From reading data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run cannot go on: gradients or weights are no longer finite.
    #[error(
        "the training diverged at step {step}: {why}; {}. Lower train.lr, lengthen train.warmup_epochs, or use \
         train.precision = \"f32\"",
        gone_back(good)
    )]
    Diverged {
        /// What is not finite any more.
        why: String,
        /// Optimizer step at which the run stopped.
        step: usize,
        /// The checkpoint that it went back to, if there is any.
        good: Option<String>,
    },
    /// Values of a tensor that are not numbers, or without bound.
    #[error("{place}: {tensor} holds values that are not finite")]
    NotFinite {
        /// The checkpoint, or what else holds the tensor.
        place: String,
        /// Name of the tensor.
        tensor: String,
    },
    /// A training was ended by an error.
    #[error("{source}; {saved}")]
    Stopped {
        /// What ended it.
        source: Box<Error>,
        /// What of it is on disk.
        saved: String,
    },
    /// Stopped because the caller was asked to, as by Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// One of the ranks that train together could not go on, and so none does.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Which.
        rank: usize,
        /// What went wrong there.
        message: String,
        /// Whether it would have ended an evaluation's run, too.
        fatal: bool,
    },
    /// From the engine.
    #[error(transparent)]
    Engine(#[from] tweedie_engine::Error),
}

fn gone_back(good: &Option<String>) -> String {
    match good {
        Some(path) => format!("it went back to {path}, the last good checkpoint, from where --resume goes on"),
        None => "there is no good checkpoint to go back to".into(),
    }
}

impl Error {
    /// Settings that do not fit the data, with the changes that make them.
    pub(crate) fn misfit(what: impl Into<String>, sets: impl IntoIterator<Item = String>) -> Error {
        Error::Misfit { what: what.into(), sets: sets.into_iter().collect() }
    }

    /// A command to try, or settings to add, where something helps.
    pub fn hint(&self) -> Option<String> {
        use tweedie_engine::Error as Engine;
        Some(match self {
            Error::Stopped { source, .. } => return source.hint(),
            Error::Diverged { good, .. } => {
                let run = good.as_deref().and_then(|g| Path::new(g).parent()?.parent());
                let run = run.map_or("RUN".into(), |r| r.display().to_string());
                format!("tweedie train --resume {run} --set train.lr=LOWER")
            }
            Error::Data(DataError::Missing { .. }) => "tweedie data inspect PATH".into(),
            Error::NoData => "tweedie train RECIPE --data PATH".into(),
            Error::Misfit { sets, .. } => sets.iter().map(|s| format!("--set {s}")).collect::<Vec<_>>().join(" "),
            Error::UnknownWord { word } => format!("tweedie tokenizer show RUN/tokenizer.json {word:?}"),
            Error::OtherData { run, .. } => format!("tweedie train --resume {run} --other-data"),
            Error::OwnData { .. } => "--data PATH".into(),
            Error::NoRecipe { name, recipes, .. } => {
                let known: Vec<String> = recipes.split(", ").map(String::from).collect();
                match nearest(name, &known) {
                    Some(recipe) => format!("did you mean '{recipe}'? tweedie config show {recipe}"),
                    None => "tweedie config show digits".into(),
                }
            }
            Error::Engine(Engine::NoCuda(_) | Engine::Op { op: "device", .. } | Engine::Comm { op: "ranks", .. }) => {
                "tweedie devices".into()
            }
            Error::Engine(e) => return e.hint().map(String::from),
            _ => return None,
        })
    }

    /// A file error with its path.
    pub fn file(path: &Path, source: std::io::Error) -> Error {
        Error::File { path: path.display().to_string(), source }
    }
}
