//! `tweedie config explain`: what a setting is, what it may be, and which recipes change it and why. The words are those of
//! `docs/reference/settings.md`, which `scripts/settings.py` writes from the comments of the code; the reasons are the comments of the
//! recipes.

use serde::Serialize;
use tweedie::config::RENAMED;
use tweedie::recipe::RECIPES;
use tweedie::settings::{Source, nearest};

use crate::failure::{Failure, Result};
use crate::report::{self, Align, Table, note};

const PAGE: &str = include_str!("../../../../../docs/reference/settings.md");

#[derive(clap::Args)]
pub struct Args {
    /// A setting, such as train.batch, or a part of them, such as sample; nothing: all of them
    key: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A setting as the page of settings has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Setting {
    /// Such as `train.batch`.
    pub key: String,
    /// As TOML; none of what goes with one value of another setting.
    pub default: Option<String>,
    /// What it does.
    pub what: String,
    /// Of a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// What it may be, with what that means.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A recipe that changes it.
#[derive(Debug, Serialize)]
struct Use {
    recipe: &'static str,
    value: String,
    /// The comment beside it.
    why: String,
}

#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    setting: &'a Setting,
    recipes: Vec<Use>,
}

/// Text of Markdown without its marks.
fn plain(text: &str) -> String {
    text.replace('`', "").trim().to_string()
}

/// What a setting does, and its range where it has one.
fn parted(text: &str) -> (String, Option<String>) {
    match text.split_once(" Range: ") {
        Some((what, range)) => (plain(what), Some(plain(range.trim_end_matches('.')))),
        None => (plain(text), None),
    }
}

/// All settings, in the order of the page.
pub fn settings() -> Vec<Setting> {
    let mut all: Vec<Setting> = Vec::new();
    for line in PAGE.lines() {
        let (deep, text) = (line.len() - line.trim_start().len(), line.trim_start());
        if line.starts_with("## `configs/") {
            break; // one recipe line by line
        }
        let Some(text) = text.strip_prefix("- ") else { continue };
        if let Some((key, rest)) = text.strip_prefix("**`").and_then(|t| t.split_once("`** = `")) {
            let (default, text) = rest.split_once("`: ").unwrap_or((rest, ""));
            let (what, range) = parted(text);
            all.push(Setting { key: key.into(), default: Some(default.into()), what, range, values: Vec::new() });
        } else if deep == 4
            && let Some((key, text)) = text.strip_prefix('`').and_then(|t| t.split_once("`, with "))
        {
            let (what, range) = parted(&format!("with {text}"));
            all.push(Setting { key: key.into(), default: None, what, range, values: Vec::new() });
        } else if let Some(setting) = all.iter_mut().rev().find(|s| deep > 0 && s.default.is_some()) {
            setting.values.push(plain(text));
        }
    }
    all
}

/// Recipes that change a setting, with the comment beside the value.
fn uses(key: &str) -> Result<Vec<Use>> {
    let mut all = Vec::new();
    for recipe in RECIPES {
        let origins = recipe.origins()?;
        if let Some(o) = origins.iter().find(|o| o.key == key)
            && let Source::Recipe(_, line) = o.source
        {
            let line = recipe.text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
            let why = line.split_once(" # ").map_or("", |(_, why)| why.trim());
            all.push(Use { recipe: recipe.name, value: o.value.clone(), why: why.into() });
        }
    }
    Ok(all)
}

pub fn run(args: &Args) -> Result<()> {
    let all = settings();
    let asked = args.key.as_deref().unwrap_or("");
    let key = match RENAMED.iter().find(|(old, _)| *old == asked) {
        Some((old, now)) => {
            note(&format!("note: {old} is called {now} now"));
            now
        }
        None => asked.trim_end_matches('.'),
    };
    if let Some(setting) = all.iter().find(|s| s.key == key) {
        let explained = Explained { setting, recipes: uses(key)? };
        return if args.json { report::print_json(&explained) } else { report::print_words(&text(&explained)) };
    }
    let part: Vec<&Setting> =
        all.iter().filter(|s| key.is_empty() || s.key.strip_prefix(key).is_some_and(|k| k.starts_with('.'))).collect();
    if part.is_empty() {
        return Err(unknown(key, &all));
    }
    if args.json {
        return report::print_json(&part);
    }
    let mut table = Table::new(&[("setting", Align::Left), ("default", Align::Left)]);
    for s in part {
        table.row(vec![s.key.clone(), s.default.clone().unwrap_or_else(|| "–".into())]);
    }
    report::print(&(table.shown() + "\nmore of one: tweedie config explain KEY\n"))
}

fn unknown(key: &str, all: &[Setting]) -> Failure {
    let names: Vec<String> = all.iter().map(|s| s.key.clone()).collect();
    let failure = Failure::input(format!("there is no setting '{key}'"));
    match nearest(key, &names) {
        Some(name) => failure.cause(format!("did you mean '{name}'?")).hint(format!("tweedie config explain {name}")),
        None => failure.hint("tweedie config explain"),
    }
}

fn text(e: &Explained) -> String {
    let s = e.setting;
    let default = s.default.as_ref().map_or(String::new(), |d| format!(" (default {d})"));
    let mut out = format!("{}{default}\n\n{}\n", s.key, s.what);
    if let Some(range) = &s.range {
        out += &format!("\nrange: {range}\n");
    }
    if !s.values.is_empty() {
        out += "\nvalues:\n";
        s.values.iter().for_each(|v| out += &format!("  {v}\n"));
    }
    if e.recipes.is_empty() {
        out += "\nno recipe changes it\n";
    } else {
        out += "\nchanged by these recipes:\n";
        let wide = |f: fn(&Use) -> &str| e.recipes.iter().map(|u| f(u).chars().count()).max().unwrap_or(0);
        let (names, values) = (wide(|u| u.recipe), wide(|u| &u.value));
        for u in &e.recipes {
            let line = format!("  {:<names$}  {:<values$}  {}", u.recipe, u.value, u.why);
            out += &format!("{}\n", line.trim_end());
        }
    }
    let (key, value) = (&s.key, s.default.as_deref().unwrap_or("VALUE"));
    out + &format!("\nchange it: --set {key}={value}, or in a recipe\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has every key of the settings, and what is said of them is found.
    #[test]
    fn every_setting_is_explained() {
        let all = settings();
        let known = tweedie::settings::flat(&tweedie::Config::default()).unwrap();
        let missing: Vec<&String> = known.keys().filter(|k| !all.iter().any(|s| s.key == **k)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(all.iter().all(|s| !s.what.is_empty() || !s.values.is_empty()));
        let of = |key: &str| all.iter().find(|s| s.key == key).unwrap();
        assert_eq!(of("data.val_fraction").range.as_deref(), Some("0 to below 1"));
        assert!(of("data.task").values[0].starts_with("\"class\": Images with"));
        assert!(all.iter().any(|s| s.key == "augment.crop.pad" && s.default.is_none()));
        assert!(all.iter().any(|s| s.key == "model.preset"));
    }

    #[test]
    fn recipes_say_why() {
        let uses = uses("train.batch").unwrap();
        let digits = uses.iter().find(|u| u.recipe == "digits").unwrap();
        assert_eq!((digits.value.as_str(), digits.why.as_str()), ("32", "few images: small batches give enough steps"));
    }
}
