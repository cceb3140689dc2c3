//! Recipes as arguments of commands.

use tweedie::recipe::{RECIPES, names};

pub use tweedie::recipe::resolve;

/// What `train` takes, for `-h`.
pub fn help() -> String {
    format!("Recipe ({}), a TOML file, or data: a folder or file for which a recipe is made", names())
}

/// What `train` takes, for `--help`: a line for each recipe.
pub fn long_help() -> String {
    let widest = RECIPES.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let lines: String = RECIPES.iter().map(|r| format!("\n  {:<widest$}  {}", r.name, r.about)).collect();
    format!(
        "Recipe, a TOML file, or data: a folder or file for which a recipe is made, as by `tweedie init` (where a name is \
         a recipe and a path, write ./NAME). The recipes are{lines}"
    )
}
