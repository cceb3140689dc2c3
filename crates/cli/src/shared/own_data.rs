//! Recipes for own data: what `init` writes and `train DATA` trains by.

use std::path::Path;
use std::time::Duration;

use tweedie::data::Task;
use tweedie::recipe::RECIPES;
use tweedie::run_dir::RunDir;
use tweedie::suggest::{self, Facts, Plan, Request};
use tweedie_engine::Device;

use super::names::{TASKS, one_of};
use super::numbers;
use crate::failure::{Failure, Result};
use crate::report;

/// Time for a training when none is given.
const BUDGET: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct OwnDataArgs {
    /// What own data are for (default: by looking)
    #[arg(long, value_name = "TASK", value_parser = one_of::<Task>(TASKS))]
    task: Option<Task>,
    /// How long a training on own data may take, as 90s, 5m or 2h (default: 10m)
    #[arg(long, value_name = "TIME", value_parser = numbers::time)]
    budget: Option<Duration>,
}

impl OwnDataArgs {
    /// Refuse what goes with data alone.
    pub fn check_unused(&self) -> Result<()> {
        match (self.task, self.budget) {
            (None, None) => Ok(()),
            _ => Err(Failure::input("--task and --budget go with data in place of a recipe")
                .hint("tweedie train FOLDER --budget 5m, or --set data.task=caption for a recipe")),
        }
    }

    fn budget(&self) -> Duration {
        self.budget.unwrap_or(BUDGET)
    }
}

/// Whether the first argument of `train` is data; an error where it may be a recipe as well.
pub fn is_data(name: &str) -> Result<bool> {
    if name.starts_with("embedded:") {
        return Ok(true);
    }
    let there = Path::new(name).exists();
    if there && RECIPES.iter().any(|r| r.name == name) {
        return Err(Failure::input(format!("'{name}' is a recipe, and a file or folder here"))
            .hint(format!("tweedie train ./{name} for the data, tweedie train {name} --data DATA for the recipe")));
    }
    if there && RunDir::open(Path::new(name)).is_ok() {
        let hint = format!("tweedie train --resume {name}");
        return Err(Failure::input(format!("{name} is the folder of a run, not data")).hint(hint));
    }
    Ok(there && !is_recipe_file(Path::new(name)))
}

/// A TOML file is a recipe.
fn is_recipe_file(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml"))
}

/// What a run or a recipe for these data is called.
pub fn name(data: &str) -> String {
    let data = data.strip_prefix("embedded:").unwrap_or(data);
    let full = std::fs::canonicalize(data).unwrap_or_else(|_| data.into());
    full.file_stem().map_or("data".into(), |s| s.to_string_lossy().into_owned())
}

/// Look, time, choose. With `all_in` this itself counts towards the time.
pub fn plan(data: &str, own: &OwnDataArgs, sets: &[String], all_in: bool, device: &Device) -> Result<Plan> {
    report::note(&format!("looking at {data} and timing a few steps"));
    let request = Request { path: data, task: own.task, sets, seconds: own.budget().as_secs_f64(), all_in };
    Ok(suggest::suggest(&request, device)?)
}

/// The commented recipe.
pub fn recipe(plan: &Plan, own: &OwnDataArgs) -> String {
    let about = format!(
        "Made by tweedie {} for {}: a training of {}.\nEach setting says why; what is not here has its default (tweedie config show THIS).",
        env!("CARGO_PKG_VERSION"),
        report::in_one_line(&plan.facts.path),
        report::duration(own.budget().as_secs_f64())
    );
    plan.suggestion.recipe(&about)
}

/// Say what will happen.
pub fn tell(plan: &Plan) {
    summary(plan).iter().for_each(|line| report::note(line));
}

fn summary(plan: &Plan) -> [String; 2] {
    let (facts, forecast) = (&plan.facts, &plan.forecast);
    let value =
        |key: &str| plan.suggestion.settings().iter().find(|s| s.key == key).map_or("", |s| s.value.trim_matches('"'));
    let network = match facts.task {
        Task::Text => format!(
            "{} blocks of width {} over windows of {} tokens ({})",
            value("model.denoiser.depth"),
            value("model.denoiser.width"),
            value("data.tokens"),
            value("data.tokenizer")
        ),
        _ => {
            let size = value("model.encoder.image");
            let colour = if value("model.encoder.channels") == "1" { "grey" } else { "colour" };
            let words = match facts.task {
                Task::Caption => format!("; captions of {} tokens ({})", value("data.tokens"), value("data.tokenizer")),
                _ => String::new(),
            };
            format!(
                "images at {size}×{size}, {colour}; {} blocks of width {} over patches of {}{words}",
                value("model.encoder.depth"),
                value("model.encoder.width"),
                value("model.encoder.patch"),
            )
        }
    };
    let trains = format!(
        "{} epochs, {} steps of {}, {} evaluations: about {}",
        forecast.epochs,
        forecast.steps,
        value("train.batch"),
        forecast.evaluations,
        report::duration(forecast.seconds)
    );
    [format!("network: {network}"), format!("trains:  {trains}")]
}

/// What the data are, in a line.
pub fn found(facts: &Facts) -> String {
    let Facts { name, format, train, val, val_origin, classes, .. } = facts;
    match (&facts.texts, facts.task) {
        (Some(t), Task::Text) => {
            format!(
                "{name} ({format}), text: about {} bytes, {} different characters; evaluation: {val_origin}",
                t.bytes, t.characters
            )
        }
        (_, Task::Caption) => {
            format!("{name} ({format}), {train} images with captions; {val} for evaluation ({val_origin})")
        }
        _ => format!("{name} ({format}), {train} images of {classes} classes; {val} for evaluation ({val_origin})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_recipes_and_files_are_told_apart() {
        assert!(is_data("embedded:digits").unwrap());
        assert!(!is_data("digits").unwrap() && !is_data("no such thing").unwrap());
        let folder = tempfile::tempdir().unwrap();
        let recipe = folder.path().join("mine.TOML");
        std::fs::write(&recipe, "").unwrap();
        assert!(is_data(folder.path().to_str().unwrap()).unwrap() && !is_data(recipe.to_str().unwrap()).unwrap());
        assert_eq!((name("embedded:digits"), name("a/b.parquet")), ("digits".into(), "b".into()));
    }
}
