//! Recipes as arguments of commands.

use tweedie::recipe::{RECIPES, names};

pub use tweedie::recipe::resolve;

/// What `train` takes, for `-h`.
pub fn help() -> String {
    format!("Recipe ({}), or a TOML file", names())
}

/// What `train` takes, for `--help`: a line for each recipe.
pub fn long_help() -> String {
    let widest = RECIPES.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let lines: String = RECIPES.iter().map(|r| format!("\n  {:<widest$}  {}", r.name, r.about)).collect();
    format!("Recipe, or a TOML file. The recipes are{lines}")
}
