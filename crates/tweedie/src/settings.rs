//! Layered settings: defaults < recipe < environment `TWEEDIE_*` < `--set` < flags.
//!
//! Layers are merged as TOML tables, so each may give only a part of a nested table; the rest keeps the value below it.
//! Keys that the settings do not have are refused, with the nearest one that they do have; old names of keys ([`Layers::renamed`]) are
//! accepted with a note ([`on_note`]). Begin with [`Layers`]; any serializable settings will do.

mod blame;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::error::{Error, Result};
pub use crate::names::nearest;
use blame::blame;

/// Prefix of environment variables that are settings.
const ENV_PREFIX: &str = "TWEEDIE_";
/// Variables with that prefix that say something else.
pub const NOT_SETTINGS: [&str; 12] = [
    "TWEEDIE_CACHE",
    "TWEEDIE_CUDA_PATH",
    "TWEEDIE_REQUIRE_NVRTC",
    "TWEEDIE_REQUIRE_CHROMIUM",
    "TWEEDIE_REQUIRE_MPI",
    // Ranks (docs/guides/cluster.md): where MPI's library lies, and who started this process.
    "TWEEDIE_MPI_PATH",
    "TWEEDIE_LAUNCHED",
    // Of `tweedie serve`.
    "TWEEDIE_API_KEY",
    "TWEEDIE_SHARED",
    // Switches off one way of being fast (docs/speed-notes.md).
    "TWEEDIE_GRAPHS",
    // Find a kernel that failed (README.md).
    "TWEEDIE_CUDA_SYNC",
    "TWEEDIE_LAUNCH_LOG",
];
/// Most parts of a key, as in TOML itself.
const DEEPEST: usize = 80;
/// Beginning of the variables that raise a limit (see [`crate::limits`]).
const LIMITS: &str = "TWEEDIE_MAX_";

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In a recipe, by name and line.
    Recipe(String, usize),
    /// By an environment variable.
    Env(String),
    /// By `--set`.
    Set,
    /// By a flag of its own.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Source::Recipe(name, line) => write!(f, "{name}:{line}"),
            Source::Env(name) => write!(f, "environment {name}"),
            Source::Set => write!(f, "--set"),
            Source::Flag(name) => write!(f, "{name}"),
        }
    }
}

/// A setting that is not at its default, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Dotted path, such as `train.batch`.
    pub key: String,
    /// The value, as TOML.
    pub value: String,
    /// What it would be otherwise, as TOML; empty where the default has none.
    pub default: String,
    /// The highest layer that gives it.
    pub source: Source,
}

/// The layers above the defaults, lowest first.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tweedie::settings::Layers;
///
/// #[derive(Default, Serialize, Deserialize)]
/// #[serde(default)]
/// struct Mine {
///     batch: usize,
///     name: String,
/// }
///
/// let sets = ["batch=64".to_string()];
/// let layers = Layers { recipe: Some(("mine.toml", "batch = 32\nname = 'first'")), sets: &sets, ..Layers::default() };
/// let (mine, origins) = layers.load::<Mine>()?;
/// assert_eq!((mine.batch, mine.name.as_str()), (64, "first"));
/// assert_eq!(origins.iter().map(|o| o.source.to_string()).collect::<Vec<_>>(), ["--set", "mine.toml:2"]);
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Layers<'a> {
    /// A recipe: its name in messages, and its text.
    pub recipe: Option<(&'a str, &'a str)>,
    /// Environment variables; those without the prefix are ignored. [`environment`] gives those of this process.
    pub env: Vec<(String, String)>,
    /// `key=value` of `--set`.
    pub sets: &'a [String],
    /// Flags of their own: the flag as typed, and the `key=value` it stands for.
    pub flags: &'a [(String, String)],
    /// Keys that the settings accept but their default does not show (an `Option` that is `None`), with all below them.
    pub optional: &'a [&'a str],
    /// Keys that the caller reads with [`Layers::value`] and the settings do not have, such as a preset's name.
    pub directives: &'a [&'a str],
    /// Aliases: keys by an old name, and their name now. An old name is accepted in every layer, with a note ([`on_note`]); both names
    /// in one layer are refused.
    pub renamed: &'a [(&'a str, &'a str)],
}

/// One value given by one layer.
struct Assignment {
    path: Vec<String>,
    value: Value,
    source: Source,
    /// The value as the user wrote it.
    text: String,
}

/// Settings from a recipe (its name in messages, its text), environment variables and `--set` arguments, and where each
/// value that is not the default came from. [`Layers`] has more to offer.
pub fn load<T: Default + Serialize + DeserializeOwned>(
    recipe: Option<(&str, &str)>,
    env: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<(T, Vec<Origin>)> {
    Layers { recipe, env: env.collect(), sets, ..Layers::default() }.load()
}

/// Where notes about old names go; before it is set, nowhere.
static NOTE: OnceLock<fn(&str)> = OnceLock::new();

/// Be told, once in a process for each, when settings use an old name of a key: "train.kfold is called train.noisy_copies now". Only
/// the first handler counts.
pub fn on_note(handler: fn(&str)) {
    let _ = NOTE.set(handler);
}

/// Settings as a TOML document.
pub fn to_toml<T: Serialize>(settings: &T) -> Result<String> {
    let wrong = |e: &dyn fmt::Display| Error::Input(format!("the settings have no TOML form: {e}"));
    let text = toml::to_string(settings).map_err(|e| wrong(&e))?;
    // Numbers beyond 2^63 can be written but not read.
    text.parse::<Table>().map_err(|e| wrong(&e))?;
    Ok(text)
}

/// Settings key by key, such as `train.batch`, with values as TOML.
pub fn flat<T: Serialize>(settings: &T) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    leaves(&table_of(settings)?, &mut Vec::new(), &mut |path, value| {
        all.insert(path.join("."), value.to_string());
    });
    Ok(all)
}

/// The environment variables of this process that may be settings.
pub fn environment() -> Vec<(String, String)> {
    let text = |s: std::ffi::OsString| s.to_string_lossy().into_owned();
    std::env::vars_os().map(|(k, v)| (text(k), text(v))).filter(|(k, _)| k.starts_with(ENV_PREFIX)).collect()
}

impl Layers<'_> {
    /// The layers over the defaults.
    pub fn load<T: Default + Serialize + DeserializeOwned>(&self) -> Result<(T, Vec<Origin>)> {
        self.load_over(&T::default())
    }

    /// The layers over given settings, such as those of a preset.
    pub fn load_over<T: Serialize + DeserializeOwned>(&self, base: &T) -> Result<(T, Vec<Origin>)> {
        let base = table_of(base)?;
        let mut given = self.assignments(&base)?;
        for a in &given {
            self.check_key(a, &base)?;
        }
        given.retain(|a| !covers(self.directives, &a.path));
        let mut merged = base.clone();
        for a in &given {
            put(&mut merged, &a.path, a.value.clone());
        }
        let settings: T = merged.try_into().map_err(|e: toml::de::Error| blame::<T>(&base, &given, e))?;
        let origins = origins(&base, &table_of(&settings)?, &given);
        Ok((settings, origins))
    }

    /// The value of one key as text, from the highest layer that gives it.
    pub fn value(&self, key: &str) -> Result<Option<String>> {
        let path: Vec<&str> = key.split('.').collect();
        let given = self.assignments(&Table::new())?;
        Ok(given.into_iter().rev().find(|a| a.path == path).map(|a| match a.value {
            Value::String(s) => s,
            v => v.to_string(),
        }))
    }

    /// Everything given, lowest layer first.
    fn assignments(&self, base: &Table) -> Result<Vec<Assignment>> {
        let mut all = Vec::new();
        if let Some((name, text)) = self.recipe {
            recipe_assignments(name, text, &mut all)?;
        }
        let mut env: Vec<_> = self.env.iter().filter(|(k, _)| is_setting(k)).collect();
        env.sort(); // one order on every machine, for messages
        for (name, text) in env {
            if let Some(path) = name.strip_prefix(ENV_PREFIX) {
                let path = path.to_lowercase().split("__").map(String::from).collect();
                self.assign(path, text, Source::Env(name.clone()), base, &mut all);
            }
        }
        let sets = self.sets.iter().map(|s| (Source::Set, s));
        for (source, s) in sets.chain(self.flags.iter().map(|(flag, s)| (Source::Flag(flag.clone()), s))) {
            let Some((key, text)) = s.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
                return Err(Error::Input(format!(
                    "{source} {s}: expected key=value, such as --set train.batch=64",
                    s = short(s)
                )));
            };
            let path = key.trim().split('.').map(|part| part.trim().to_string()).collect();
            self.assign(path, text.trim(), source, base, &mut all);
        }
        self.rename(&mut all)?;
        Ok(all)
    }

    /// One value written as text, or the fields of an inline table.
    fn assign(&self, path: Vec<String>, text: &str, source: Source, base: &Table, out: &mut Vec<Assignment>) {
        let value = parse_value(text, get(base, &self.renamed_path(&path).unwrap_or_else(|| path.clone())));
        match &value {
            // A key that is too deep will be refused, whatever is below it.
            Value::Table(t) if !t.is_empty() && path.len() <= DEEPEST => leaves(t, &mut path.clone(), &mut |p, v| {
                out.push(Assignment { path: p.to_vec(), value: v.clone(), source: source.clone(), text: v.to_string() })
            }),
            _ => out.push(Assignment { path, value, source, text: text.to_string() }),
        }
    }

    /// What a key is called now, if `path` is an old name of it.
    fn renamed_path(&self, path: &[String]) -> Option<Vec<String>> {
        let (_, now) = self.renamed.iter().find(|(old, _)| old.split('.').eq(path.iter().map(String::as_str)))?;
        Some(now.split('.').map(String::from).collect())
    }

    /// Old names become those of now, with a note.
    fn rename(&self, all: &mut [Assignment]) -> Result<()> {
        let mut notes = Vec::new();
        for i in 0..all.len() {
            let Some(now) = self.renamed_path(&all[i].path) else { continue };
            let note = format!("{} is called {} now", all[i].path.join("."), now.join("."));
            let layer = std::mem::discriminant(&all[i].source);
            let twice = |a: &&Assignment| a.path == now && std::mem::discriminant(&a.source) == layer;
            if let Some(other) = all.iter().find(twice) {
                let (here, there) = (&all[i].source, &other.source);
                let what = if here == there { format!("{here}: {note}") } else { format!("{here}, {there}: {note}") };
                return Err(Error::Input(format!("{what}; both are given, leave out the old name")));
            }
            notes.push((note, i, now));
        }
        for (note, i, now) in notes {
            static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
            all[i].path = now;
            let first = TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(note.clone());
            if let (true, Some(tell)) = (first, NOTE.get()) {
                tell(&format!("{}: {note}", all[i].source));
            }
        }
        Ok(())
    }

    /// Refuse keys that the settings do not have.
    fn check_key(&self, a: &Assignment, base: &Table) -> Result<()> {
        let key = short(&a.path.join("."));
        if a.path.len() > DEEPEST {
            return Err(Error::Input(format!("{}: key '{key}' has {} parts", a.source, a.path.len())));
        }
        match get(base, &a.path) {
            Some(Value::Table(t)) if !a.value.is_table() => {
                let names: Vec<&str> = t.keys().map(|k| k.as_str()).collect();
                return Err(Error::Input(format!(
                    "{}: '{key}' is a table, not a value; its keys are {}",
                    a.source,
                    names.join(", ")
                )));
            }
            Some(_) => return Ok(()),
            None if covers(self.optional, &a.path) || covers(self.directives, &a.path) => return Ok(()),
            None => {}
        }
        let mut known = Vec::new();
        leaves(base, &mut Vec::new(), &mut |path, _| known.push(path.join(".")));
        known.extend(self.optional.iter().chain(self.directives).map(|k| k.to_string()));
        let help = match nearest(&key, &known) {
            Some(k) if matches!(a.source, Source::Env(_)) => {
                format!("did you mean {ENV_PREFIX}{}?", k.to_uppercase().replace('.', "__"))
            }
            Some(k) => format!("did you mean '{k}'?"),
            None => {
                // Nothing is close: show the siblings.
                let parent = a.path.split_last().and_then(|(_, p)| get(base, p)?.as_table()).unwrap_or(base);
                let names: Vec<&str> = parent.keys().map(|k| k.as_str()).collect();
                format!("known keys here: {}", names.join(", "))
            }
        };
        Err(Error::Input(format!("{}: unknown key '{key}'; {help}", a.source)))
    }
}

/// The beginning of a text that is quoted.
fn short(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_string(),
    }
}

fn is_setting(variable: &str) -> bool {
    !NOT_SETTINGS.contains(&variable) && !variable.starts_with(LIMITS)
}

/// Settings as a table, by way of text so that an f32 of 0.1 reads 0.1.
fn table_of<T: Serialize>(settings: &T) -> Result<Table> {
    to_toml(settings)?.parse().map_err(|e| Error::Input(format!("the settings have no TOML form: {e}")))
}

/// Whether `path` is one of `keys` or below one.
fn covers(keys: &[&str], path: &[String]) -> bool {
    keys.iter().any(|k| k.split('.').count() <= path.len() && k.split('.').zip(path).all(|(a, b)| a == b))
}

fn get<'a>(table: &'a Table, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let value = table.get(first)?;
    if rest.is_empty() { Some(value) } else { get(value.as_table()?, rest) }
}

/// Set one value, merging tables.
fn put(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => match (table.get_mut(last), value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                new.into_iter().for_each(|(k, v)| put(old, &[k], v));
            }
            (_, value) => {
                table.insert(last.clone(), value);
            }
        },
        [first, rest @ ..] => {
            let below = table.entry(first.clone()).or_insert_with(|| Value::Table(Table::new()));
            if !below.is_table() {
                *below = Value::Table(Table::new());
            }
            if let Value::Table(t) = below {
                put(t, rest, value);
            }
        }
    }
}

/// Call `f` for everything that is not a table (empty tables included).
fn leaves<'a>(table: &'a Table, path: &mut Vec<String>, f: &mut impl FnMut(&[String], &'a Value)) {
    for (k, v) in table {
        path.push(k.clone());
        match v {
            Value::Table(t) if !t.is_empty() => leaves(t, path, f),
            _ => f(path, v),
        }
        path.pop();
    }
}

/// A TOML value, or else the text itself. Where the setting is text, only quotes make it anything but verbatim, so that
/// a folder may be called 2024; where it is a number, Rust's forms (`.5`) are understood too.
fn parse_value(text: &str, default: Option<&Value>) -> Value {
    let parsed = format!("x = {text}").parse::<Table>().ok().filter(|t| t.len() == 1).and_then(|mut t| t.remove("x"));
    match (default, parsed) {
        (Some(Value::String(_)), Some(v)) if !v.is_str() => Value::String(text.into()),
        (_, Some(v)) => v,
        (Some(Value::Float(_)), None) => text.parse().map_or_else(|_| Value::String(text.into()), Value::Float),
        (_, None) => Value::String(text.into()),
    }
}

/// Every value of a recipe with its line.
fn recipe_assignments(name: &str, text: &str, out: &mut Vec<Assignment>) -> Result<()> {
    let ends: Vec<usize> = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i).collect();
    let line_of = |at: usize| ends.partition_point(|end| *end < at) + 1;
    let syntax = |e: toml::de::Error| {
        let (line, quoted) = match e.span() {
            Some(span) => {
                let line = line_of(span.start);
                (line, text.lines().nth(line - 1).unwrap_or_default().trim())
            }
            None => (1, ""),
        };
        Error::Input(format!("{name}:{line}: this is not TOML: {}: {}", e.message(), short(quoted)))
    };
    let spans = DeTable::parse(text).map_err(syntax)?;
    let values: Table = text.parse().map_err(syntax)?;
    let mut lines = BTreeMap::new();
    spanned_leaves(spans.get_ref(), &mut Vec::new(), &mut |path, at| {
        lines.insert(path.to_vec(), line_of(at));
    });
    let start = out.len();
    leaves(&values, &mut Vec::new(), &mut |path, value| {
        let source = Source::Recipe(name.into(), lines.get(path).copied().unwrap_or(1));
        out.push(Assignment { path: path.to_vec(), value: value.clone(), source, text: value.to_string() });
    });
    // The first fault to be reported is the first in the file.
    out[start..].sort_by_key(|a| lines.get(&a.path).copied());
    Ok(())
}

fn spanned_leaves(table: &DeTable, path: &mut Vec<String>, f: &mut impl FnMut(&[String], usize)) {
    for (k, v) in table.iter() {
        path.push(k.get_ref().to_string());
        match v.get_ref() {
            DeValue::Table(t) if !t.is_empty() => spanned_leaves(t, path, f),
            _ => f(path, k.span().start),
        }
        path.pop();
    }
}

/// What differs from the base, by key, and the last layer that gave it.
fn origins(base: &Table, now: &Table, given: &[Assignment]) -> Vec<Origin> {
    let mut all = Vec::new();
    leaves(now, &mut Vec::new(), &mut |path, value| {
        let default = get(base, path);
        // A list or inline table is given as a whole, or by something below it.
        let by = given.iter().rev().find(|a| a.path.starts_with(path) || path.starts_with(&a.path));
        if let (Some(a), true) = (by, default != Some(value)) {
            let default = default.map(|d| d.to_string()).unwrap_or_default();
            all.push(Origin { key: path.join("."), value: value.to_string(), default, source: a.source.clone() });
        }
    });
    all
}

#[cfg(test)]
mod tests;
