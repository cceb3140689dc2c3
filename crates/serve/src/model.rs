//! What is known of a model outside of the thread that runs it: names, sizes, text and images in and out.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::{Value, json};
use tweedie::augment::{Address, Transform};
use tweedie::config::SampleConfig;
use tweedie::data::{Image, Layout, Task};
use tweedie::generate::Facts;
use tweedie::run::Loaded;
use tweedie::tokenize::Tokenizer;

use crate::error::{Problem, Result};

/// Class names that a list of models tells.
const MOST_CLASSES: usize = 1000;

/// Where a model came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// What it is loaded from.
    pub path: PathBuf,
    /// Inside the program.
    pub embedded: bool,
    /// Asked for by a request, so that another may unload it.
    pub by_request: bool,
}

/// A model in words and numbers.
#[derive(Debug)]
pub struct Described {
    /// What requests call it.
    pub name: String,
    /// What it is for.
    pub task: Task,
    /// Which wishes have a meaning.
    pub facts: Facts,
    /// Where it came from.
    pub origin: Origin,
    /// Classes of a token, V.
    pub vocab: usize,
    /// Tokens, N.
    pub tokens: usize,
    /// Of sequences: whether texts have ends.
    pub layout: Layout,
    /// Names of classes.
    pub classes: Vec<String>,
    /// Of sequences.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// Each token as it is shown.
    pub token_texts: Vec<String>,
    /// How it looks at images.
    pub transform: Option<Transform>,
    /// Its own sampling settings.
    pub sample: SampleConfig,
    /// What it was trained on.
    pub data: String,
    /// Weights.
    pub parameters: usize,
    /// Optimizer steps behind it.
    pub step: u64,
    /// The checkpoint.
    pub checkpoint: PathBuf,
    /// Where it runs.
    pub device: String,
}

impl Described {
    /// What can be told of a loaded model.
    pub fn new(name: &str, origin: Origin, loaded: &Loaded) -> tweedie::Result<Described> {
        let (t, m) = (&loaded.trained, &loaded.trained.model);
        let token_texts = match &t.tokenizer {
            Some(tokenizer) => (0..m.sizes().vocab as u32).map(|id| tokenizer.token(id)).collect(),
            None => Vec::new(),
        };
        Ok(Described {
            name: name.into(),
            task: t.task(),
            facts: Facts::of(m),
            origin,
            vocab: m.sizes().vocab,
            tokens: m.sizes().tokens,
            layout: t.layout,
            classes: t.class_names.clone(),
            tokenizer: t.tokenizer.clone(),
            token_texts,
            transform: t.transform.clone(),
            sample: loaded.config.sample.clone(),
            data: loaded.config.data.path.clone(),
            parameters: tweedie::model::count_parameters(m.config(), m.sizes())?.0,
            step: loaded.step,
            checkpoint: loaded.checkpoint.clone(),
            device: m.device().to_string(),
        })
    }

    /// "tdd" or "mdd".
    pub fn method(&self) -> &'static str {
        if self.facts.tdd { "tdd" } else { "mdd" }
    }

    /// "class", "caption" or "text".
    pub fn task_name(&self) -> &'static str {
        match self.task {
            Task::Class => "class",
            Task::Caption => "caption",
            Task::Text => "text",
        }
    }

    /// How a token is shown.
    pub fn token_text(&self, id: u32) -> &str {
        let names = if self.tokenizer.is_some() { &self.token_texts } else { &self.classes };
        names.get(id as usize).map_or("", String::as_str)
    }

    /// The tokenizer, or an error that says that there is none.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>> {
        let none = || Problem::field("model", format!("{} classifies images; it knows no text", self.name));
        self.tokenizer.as_ref().ok_or_else(none)
    }

    /// An image as the network reads it.
    pub fn values(&self, image: Image) -> Result<Vec<f32>> {
        let none = || Problem::field("image", format!("{} takes no images", self.name));
        let transform = self.transform.as_ref().ok_or_else(none)?;
        let mut values = vec![0.0; transform.values()];
        transform.apply(image, Address { seed: 0, epoch: 0, example: 0 }, &mut values);
        Ok(values)
    }

    /// Steps that are taken by these settings.
    pub fn steps_taken(&self, sample: &SampleConfig) -> usize {
        match (self.task, self.facts.tdd) {
            (Task::Class, false) => 1,
            (_, false) => sample.steps_masked(self.tokens),
            _ => sample.steps_taken(self.facts.per_token_time, self.tokens),
        }
    }

    /// The text of tokens, of which some may be masked.
    pub fn text_of(&self, ids: &[Option<u32>]) -> String {
        let Some(tokenizer) = &self.tokenizer else {
            return ids.first().copied().flatten().map_or(String::new(), |id| self.token_text(id).into());
        };
        let spaced = !tokenizer.blanks_begin_tokens() && !tokenizer.keeps_lines();
        let mut parts: Vec<String> = Vec::new();
        for part in ids.chunk_by(|a, b| a.is_some() == b.is_some()) {
            let known: Vec<u32> = part.iter().flatten().copied().collect();
            let ends = self.layout == Layout::Lines && known.iter().any(|t| *t == tokenizer.eos());
            parts.push(match (known.is_empty(), self.layout) {
                (true, _) if spaced => vec!["_"; part.len()].join(" "),
                (true, _) => "_".repeat(part.len()),
                (false, Layout::Lines) => tokenizer.decode(&known),
                (false, Layout::Packed) => tokenizer.decode_packed(&known),
            });
            if ends {
                break;
            }
        }
        parts.retain(|p| !p.is_empty());
        parts.join(if spaced { " " } else { "" })
    }

    /// The entry of a list of models, among which is perhaps its twin.
    pub fn entry(&self, all: &[Arc<Described>]) -> Value {
        let image = self.transform.as_ref().map(|t| json!({"side": t.size(), "channels": t.channels()}));
        let classes = (!self.classes.is_empty()).then(|| self.classes.iter().take(MOST_CLASSES).collect::<Vec<_>>());
        let layout = self.tokenizer.as_ref().map(|_| match self.layout {
            Layout::Lines => "lines",
            Layout::Packed => "stream",
        });
        json!({
            "name": self.name,
            "task": self.task_name(),
            "method": self.method(),
            "twin": self.twin(all),
            "origin": if self.origin.embedded { "embedded" } else { "run" },
            "vocab": self.vocab,
            "tokens": self.tokens,
            "per_token_time": self.facts.per_token_time,
            "layout": layout,
            "classes": classes,
            "image": image,
            "sample": self.sample,
            "parameters": self.parameters,
            "step": self.step,
            "device": self.device,
            "about": self.about(),
        })
    }

    fn about(&self) -> String {
        let name = tweedie::embedded::name_in(&self.origin.path);
        if let Some(model) = tweedie::embedded::all().iter().find(|m| Some(m.name) == name) {
            return model.about.to_string();
        }
        let what = match self.task {
            Task::Class => format!("says which of {} classes is on an image", self.vocab),
            Task::Caption => format!("says in up to {} tokens what is on an image", self.tokens),
            Task::Text => format!("writes text of {} tokens", self.tokens),
        };
        let how = if self.facts.tdd { "out of Gaussian noise" } else { "by uncovering masked tokens" };
        format!("It {what}, {how}; trained on {}.", self.data)
    }

    /// The other method on the same data: by its name, else by what it is.
    fn twin<'a>(&self, all: &'a [Arc<Described>]) -> Option<&'a str> {
        let alike = |o: &&Arc<Described>| {
            (o.task, o.vocab, o.tokens, &o.data) == (self.task, self.vocab, self.tokens, &self.data)
                && o.facts.tdd != self.facts.tdd
        };
        let named =
            |o: &&Arc<Described>| o.name == format!("{}-mdd", self.name) || self.name == format!("{}-mdd", o.name);
        let twins = || all.iter().filter(alike);
        twins().find(named).or_else(|| twins().next()).map(|o| o.name.as_str())
    }
}

/// The models that requests can name.
#[derive(Default)]
pub struct Registry(RwLock<Vec<Arc<Described>>>);

impl Registry {
    /// All of them.
    pub fn all(&self) -> Vec<Arc<Described>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Add one, in place of one of the same name.
    pub fn put(&self, model: Arc<Described>) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match all.iter_mut().find(|m| m.name == model.name) {
            Some(old) => *old = model,
            None => all.push(model),
        }
    }

    /// Take one away.
    pub fn remove(&self, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).retain(|m| m.name != name);
    }

    /// One by its name, or an error that tells the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<Described>> {
        let all = self.all();
        all.iter().find(|m| m.name == name).cloned().ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|m| m.name.as_str()).collect();
            let shown: String = name.chars().take(80).collect();
            let there =
                if names.is_empty() { "none is loaded".into() } else { format!("there are {}", names.join(", ")) };
            Problem {
                field: Some("model".into()),
                ..Problem::not_found(format!("no model is called {shown:?}; {there}"))
            }
        })
    }
}
