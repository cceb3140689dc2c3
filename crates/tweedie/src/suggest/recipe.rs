//! Settings with the reason of each, and the commented recipe that they make.

use std::fmt::Display;

use crate::config::Config;
use crate::error::Result;
use crate::recipe;

/// A setting and why it has its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As `--set` names it.
    pub key: String,
    /// The value, as TOML writes it.
    pub value: String,
    /// Why, in a few words.
    pub why: String,
}

/// Settings of a run, each with its reason.
///
/// ```
/// use tweedie::suggest::Suggestion;
///
/// let mut s = Suggestion::default();
/// s.set("train.epochs", 12, "fills two minutes");
/// s.text("data.path", "embedded:digits", "");
/// assert!(s.recipe("Digits.").contains("[train]\nepochs = 12  # fills two minutes\n"));
/// assert_eq!(s.config(&[])?.train.epochs, 12);
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suggestion {
    settings: Vec<Setting>,
}

/// Tables of a recipe, in the order that it is read in.
const TABLES: [&str; 9] =
    ["data", "augment", "model", "model.encoder", "model.denoiser", "process", "loss", "train", "sample"];

impl Suggestion {
    /// All of them.
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Set a number, a truth value or a piece of TOML; what was there before is replaced.
    pub fn set(&mut self, key: &str, value: impl Display, why: impl Into<String>) {
        let setting = Setting { key: key.into(), value: value.to_string(), why: why.into() };
        match self.settings.iter_mut().find(|s| s.key == key) {
            Some(s) => *s = setting,
            None => self.settings.push(setting),
        }
    }

    /// Set a text.
    pub fn text(&mut self, key: &str, value: &str, why: impl Into<String>) {
        self.set(key, toml::Value::from(value), why);
    }

    /// The settings, changed by `sets` (`"train.epochs=5"`) as `tweedie train` changes those of a recipe.
    pub fn config(&self, sets: &[String]) -> Result<Config> {
        Ok(recipe::resolve_text("the suggested recipe", &self.recipe(""), sets, &[])?.0)
    }

    /// The settings alone, whatever the environment says.
    pub(super) fn bare(&self) -> Result<Config> {
        recipe::of_text("the suggested recipe", &self.recipe(""))
    }

    /// As a recipe: TOML with each reason beside its setting, below the lines of `about`.
    pub fn recipe(&self, about: &str) -> String {
        let mut out: String = about.lines().map(|l| format!("# {l}").trim_end().to_string() + "\n").collect();
        for table in TABLES {
            let inside: Vec<(&str, &Setting)> =
                self.settings.iter().filter_map(|s| Some((in_table(s, table)?, s))).collect();
            if inside.is_empty() {
                continue;
            }
            if !out.is_empty() {
                out += "\n";
            }
            out += &format!("[{table}]\n");
            let lines: Vec<(String, &str)> =
                inside.iter().map(|(key, s)| (format!("{key} = {}", s.value), s.why.as_str())).collect();
            // A long value does not push the reasons of the others to the right.
            let widest = lines.iter().map(|(l, _)| l.chars().count()).filter(|&n| n <= 40).max().unwrap_or(0);
            for (line, why) in lines {
                out += match why {
                    "" => format!("{line}\n"),
                    why => format!("{line:<widest$}  # {}\n", why.replace(char::is_control, " ")),
                }
                .as_str();
            }
        }
        out
    }
}

/// Four decimals, and at least one.
pub(super) fn decimals(x: f64) -> String {
    let text = format!("{x:.4}");
    let short = text.trim_end_matches('0');
    if short.ends_with('.') { format!("{short}0") } else { short.to_string() }
}

/// The key inside a table, if the setting stands in it.
fn in_table<'a>(s: &'a Setting, table: &str) -> Option<&'a str> {
    let key = s.key.strip_prefix(table)?.strip_prefix('.')?;
    (!key.contains('.')).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_is_commented_and_read_back() {
        let mut s = Suggestion::default();
        s.text("data.path", "my \"own\"\\data", "yours\nall");
        s.set("model.encoder.image", 28, "the images' own");
        s.set("train.lr", 0.01, "");
        s.set("train.lr", 0.02, "replaced");
        let text = s.recipe("About\n\nthis.");
        assert!(text.starts_with("# About\n#\n# this.\n\n[data]\n"), "{text}");
        assert!(text.contains("[model.encoder]\nimage = 28  # the images' own\n"), "{text}");
        assert!(text.contains("  # yours all\n"), "{text}");
        assert_eq!(text.matches("lr = ").count(), 1);
        let c = s.config(&["train.batch=16".into()]).unwrap();
        assert_eq!((c.data.path.as_str(), c.model.encoder.image, c.train.batch), ("my \"own\"\\data", 28, 16));
        assert_eq!(c.train.lr, 0.02);
    }
}
