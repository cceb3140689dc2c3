//! From a recipe's name, settings and flags to a resolved configuration.

use tweedie::config::{Config, ModelConfig, OPTIONAL};
use tweedie::settings::{self, Layers, Origin};

use crate::failure::{Failure, Result};

/// Recipes inside the program: name, text, one line about it.
pub const RECIPES: [(&str, &str, &str); 11] = [
    ("digits", include_str!("../../../configs/digits.toml"), "embedded 8×8 digits, a minute on a CPU"),
    ("shapes", include_str!("../../../configs/shapes.toml"), "captions of embedded scenes, minutes on a CPU"),
    ("cifar10", include_str!("../../../configs/cifar10.toml"), "CIFAR-10 from scratch, one GPU"),
    ("imagenette", include_str!("../../../configs/imagenette.toml"), "ten ImageNet classes at 96×96, one GPU"),
    ("coco-96", include_str!("../../../configs/coco-96.toml"), "captions of COCO photos at 96×96, one GPU"),
    ("flickr8k", include_str!("../../../configs/flickr8k.toml"), "captions of Flickr8k at 96×96, one GPU"),
    ("coco-captions", include_str!("../../../configs/coco-captions.toml"), "captions of COCO at 224×224"),
    (
        "imagenet-vl-captions",
        include_str!("../../../configs/imagenet-vl-captions.toml"),
        "captions of ImageNet (imagenet-1k-vl-enriched)",
    ),
    ("ptb-chars", include_str!("../../../configs/ptb-chars.toml"), "Penn Treebank as characters, one GPU"),
    ("wikitext2", include_str!("../../../configs/wikitext2.toml"), "WikiText-2 as words, one GPU"),
    ("imagenet-vit-b16", include_str!("../../../configs/imagenet-vit-b16.toml"), "the paper's run on ImageNet"),
];

/// All names, in one line.
fn names() -> String {
    RECIPES.map(|r| r.0).join(", ")
}

/// What `train` takes, for `-h`.
pub fn help() -> String {
    format!("Recipe ({}), or a TOML file", names())
}

/// What `train` takes, for `--help`: a line for each recipe.
pub fn long_help() -> String {
    let widest = RECIPES.iter().map(|r| r.0.len()).max().unwrap_or(0);
    let lines: String = RECIPES.iter().map(|(name, _, what)| format!("\n  {name:<widest$}  {what}")).collect();
    format!("Recipe, or a TOML file. The recipes are{lines}")
}

/// A recipe by name or file.
fn text(recipe: &str) -> Result<(String, String)> {
    if let Some((name, text, _)) = RECIPES.iter().find(|r| r.0 == recipe) {
        return Ok((format!("recipe {name}"), text.to_string()));
    }
    match std::fs::read_to_string(recipe) {
        Ok(text) => Ok((recipe.to_string(), text)),
        Err(e) => Err(Failure::input(format!("'{recipe}' is neither a recipe nor a readable file"))
            .cause(e.to_string())
            .cause(format!("the recipes are {}", names()))
            .hint("tweedie config show digits")),
    }
}

/// Resolve: defaults < recipe < environment < `--set` < flags.
pub fn resolve(recipe: &str, sets: &[String], flags: &[(String, String)]) -> Result<(Config, Vec<Origin>)> {
    let (name, text) = text(recipe)?;
    let layers = Layers {
        recipe: Some((&name, &text)),
        env: settings::environment(),
        sets,
        flags,
        optional: &OPTIONAL,
        directives: &["model.preset"],
    };
    let mut base = Config::default();
    if let Some(preset) = layers.value("model.preset")? {
        base.model = ModelConfig::preset(&preset)?;
    }
    let (config, origins) = layers.load_over(&base)?;
    let config: Config = config;
    config.check()?;
    Ok((config, origins))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_resolves() {
        for (name, ..) in RECIPES {
            let (config, _) = resolve(name, &[], &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(config.train.epochs > 0);
        }
    }
}
