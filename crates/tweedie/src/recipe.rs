//! Recipes: the settings of whole runs, by name or from a TOML file. Begin with [`Config::preset`], or [`resolve`] for what a command
//! line says.

use std::fmt::Display;
use std::path::Path;

use crate::config::{Config, ModelConfig, OPTIONAL, RENAMED};
use crate::error::{Error, Result};
use crate::files::read_to_string;
use crate::limits::SETTINGS_BYTES;
use crate::settings::{self, Layers, Origin};

/// A recipe inside the library.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// What `tweedie train` takes.
    pub name: &'static str,
    /// The settings, as TOML.
    pub text: &'static str,
    /// One line about it.
    pub about: &'static str,
}

impl Recipe {
    /// What it sets: values that differ from those of its network's preset and from the defaults, and the line that says so.
    pub fn origins(&self) -> Result<Vec<Origin>> {
        Ok(resolve_in(Vec::new(), self.name, &[], &[])?.1)
    }
}

macro_rules! recipes {
    ($($name:literal: $about:literal,)*) => {
        /// All of them.
        pub const RECIPES: &[Recipe] = &[$(Recipe {
            name: $name,
            text: include_str!(concat!("../../../configs/", $name, ".toml")),
            about: $about,
        }),*];
    };
}

recipes! {
    "digits": "embedded 8×8 digits, a minute on a CPU",
    "shapes": "captions of embedded scenes, minutes on a CPU",
    "cifar10": "CIFAR-10 from scratch, one GPU",
    "imagenette": "ten ImageNet classes at 96×96, one GPU",
    "characters": "1,000 kanji in unseen fonts, one GPU",
    "coco-96": "captions of COCO photos at 96×96, one GPU",
    "flickr8k": "captions of Flickr8k at 96×96, one GPU",
    "coco-captions": "captions of COCO at 224×224",
    "coco-224": "as near to the paper's captions as known",
    "imagenet-vl-captions": "captions of imagenet-1k-vl-enriched",
    "ptb-chars": "Penn Treebank as characters, one GPU",
    "wikitext2": "WikiText-2 as words, one GPU",
    "shakespeare": "Shakespeare as characters, a small network, one GPU",
    "imagenet-vit-b16": "the paper's run on ImageNet",
    "imagenet-vit-l16": "ViT-L/16 on ImageNet, days on one GPU",
    "imagenet-vit-h14-448": "ViT-H/14 at 448×448, weeks on one GPU",
}

/// All names, in one line.
pub fn names() -> String {
    RECIPES.iter().map(|r| r.name).collect::<Vec<_>>().join(", ")
}

/// Name and text of a recipe by name or file.
fn find(recipe: &str) -> Result<(String, String)> {
    if let Some(r) = RECIPES.iter().find(|r| r.name == recipe) {
        return Ok((format!("recipe {}", r.name), r.text.to_string()));
    }
    match read_to_string(Path::new(recipe), &SETTINGS_BYTES) {
        Ok(text) => Ok((recipe.to_string(), text)),
        Err(source) => Err(Error::NoRecipe { name: recipe.into(), recipes: names(), source }),
    }
}

/// Resolve: defaults < recipe < environment < `sets` < `flags`, each a `(flag, "key=value")`; and where each setting came from.
///
/// ```
/// use tweedie::recipe::resolve;
///
/// let (config, origins) = resolve("digits", &["train.epochs=3".into()], &[])?;
/// assert_eq!(config.train.epochs, 3);
/// assert!(origins.iter().any(|o| o.key == "train.epochs" && o.source.to_string() == "--set"));
/// # Ok::<(), tweedie::Error>(())
/// ```
pub fn resolve(recipe: &str, sets: &[String], flags: &[(String, String)]) -> Result<(Config, Vec<Origin>)> {
    resolve_in(settings::environment(), recipe, sets, flags)
}

/// As [`resolve`], of the text of a recipe that messages call `name`.
pub fn resolve_text(
    name: &str,
    text: &str,
    sets: &[String],
    flags: &[(String, String)],
) -> Result<(Config, Vec<Origin>)> {
    layered(settings::environment(), (name, text), sets, flags)
}

/// The settings of the text of a recipe, which the environment does not change.
pub(crate) fn of_text(name: &str, text: &str) -> Result<Config> {
    Ok(layered(Vec::new(), (name, text), &[], &[])?.0)
}

fn resolve_in(
    env: Vec<(String, String)>,
    recipe: &str,
    sets: &[String],
    flags: &[(String, String)],
) -> Result<(Config, Vec<Origin>)> {
    let (name, text) = find(recipe)?;
    layered(env, (&name, &text), sets, flags)
}

fn layered(
    env: Vec<(String, String)>,
    recipe: (&str, &str),
    sets: &[String],
    flags: &[(String, String)],
) -> Result<(Config, Vec<Origin>)> {
    let layers = Layers {
        recipe: Some(recipe),
        env,
        sets,
        flags,
        optional: &OPTIONAL,
        directives: &["model.preset"],
        renamed: &RENAMED,
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

impl Config {
    /// The settings of a recipe, by name or from a TOML file. The environment does not change them.
    ///
    /// ```
    /// use tweedie::Config;
    ///
    /// let config = Config::preset("digits")?.with("train.epochs", 5)?.with("model.method", "mdd")?;
    /// assert_eq!(config.train.epochs, 5);
    /// assert!(config.with("train.epochz", 5).unwrap_err().to_string().contains("train.epochs"));
    /// # Ok::<(), tweedie::Error>(())
    /// ```
    pub fn preset(recipe: &str) -> Result<Config> {
        Ok(resolve_in(Vec::new(), recipe, &[], &[])?.0)
    }

    /// With one setting changed, as `--set` does it.
    pub fn with(self, key: &str, value: impl Display) -> Result<Config> {
        let (text, change) = (settings::to_toml(&self)?, [(format!("{key} = {value}"), format!("{key}={value}"))]);
        let layers = Layers {
            recipe: Some(("these settings", &text)),
            flags: &change,
            optional: &OPTIONAL,
            renamed: &RENAMED,
            ..Layers::default()
        };
        Ok(layers.load::<Config>()?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MaskWeight, SamplerKind, Unmasking};
    use crate::data::Task;
    use crate::model::{ConditionAttention, DenoiserKind, Method, Sizes, count_parameters};

    /// Parameters of the paper's table, counted; the recipes say the same numbers.
    #[test]
    fn recipes_of_the_papers_table_have_its_sizes() {
        for (name, side, of_twin, tdd, denoiser, papers) in [
            ("imagenet-vit-b16", 224, 86_567_656, 109_982_440, 24_183_784, 87),
            ("imagenet-vit-l16", 224, 304_326_632, 345_507_816, 42_206_184, 305),
            ("imagenet-vit-h14-448", 448, 633_028_840, 696_957_160, 65_209_320, 632),
        ] {
            let recipe = RECIPES.iter().find(|r| r.name == name).unwrap();
            let c = Config::preset(name).unwrap().model;
            let count = |method| {
                count_parameters(&ModelConfig { method, ..c.clone() }, Sizes { vocab: 1000, tokens: 1 }).unwrap()
            };
            let (all, head) = count(Method::Tdd);
            let twin = count(Method::Mdd).0;
            assert_eq!((c.encoder.image, all, head, twin), (side, tdd, denoiser, of_twin), "{name}");
            assert!(twin.abs_diff(papers * 1_000_000) < 1_100_000, "{name}: {twin}");
            let millions = |n: usize| format!("{:.1} M", n as f64 / 1e6);
            let said = format!("{} parameters, {} of them in the denoiser", millions(all), millions(head));
            assert!(recipe.text.contains(&said), "{name}: {said}");
        }
    }

    /// The twin of captions is trained and drawn as suits it best; the paper's recipe draws it as the paper does.
    #[test]
    fn recipes_of_captions_have_a_twin_that_is_treated_well() {
        for r in RECIPES {
            let c = Config::preset(r.name).unwrap();
            if c.data.task == Task::Caption {
                assert_eq!(c.loss.mask_weight, MaskWeight::Plain, "{}", r.name);
                assert_eq!(c.sample.unmask == Unmasking::Random, r.name == "coco-224", "{}", r.name);
            }
        }
        let c = Config::preset("coco-224").unwrap();
        assert_eq!((c.sample.sampler, c.sample.steps, c.train.clean_tokens), (SamplerKind::Argmax, 100, 0.0));
        let d = &c.model.denoiser;
        assert_eq!((d.kind, d.condition_attention), (DenoiserKind::Transformer, ConditionAttention::Full));
        // Warm-started from the paper's pre-training without another word.
        let before = Config::preset("imagenet-vl-captions").unwrap();
        assert_eq!((before.data.tokenizer, before.data.tokens), (c.data.tokenizer, c.data.tokens));
        assert_eq!((before.model.gelu, before.model.denoiser), (c.model.gelu, c.model.denoiser));
        // What an error of a warm start says to do.
        assert_eq!(resolve("coco-224", &["data.tokenizer=".into()], &[]).unwrap().0.data.tokenizer, "");
    }

    #[test]
    fn every_recipe_resolves() {
        for r in RECIPES {
            let (config, _) = resolve(r.name, &[], &[]).unwrap_or_else(|e| panic!("{}: {e}", r.name));
            assert!(config.train.epochs > 0);
        }
        let e = Config::preset("digit").unwrap_err().to_string();
        assert!(e.contains("neither a recipe nor a readable file"), "{e}");
    }
}
