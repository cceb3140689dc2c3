//! Runs that were trained elsewhere, used instead of training: `--use NAME=RUN`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde_json::Value;
use tweedie::checkpoint;
use tweedie::config::Config;
use tweedie::data;
use tweedie::run_dir::RunDir;

use super::plan::{Plan, Planned};
use super::scale::{TaskKind, name_of};
use super::variant::Variant;
use crate::failure::{Failure, Result};
use crate::report::note;

/// A run that was there already.
pub struct ExistingRun {
    pub path: PathBuf,
    /// Its last checkpoint, or the one that was named.
    pub checkpoint: PathBuf,
    pub step: u64,
    /// Epochs that it was to be trained for.
    pub epochs: usize,
    /// Settings of training in which it is not what the plan would have trained.
    pub differs: Vec<String>,
}

/// Put each of `NAME=RUN` in its place of the plan. A run that only another WHAT needs is left aside, unopened.
pub fn put(plan: &mut Plan, uses: &[String]) -> Result<()> {
    for text in uses {
        let (name, path) = text.split_once('=').filter(|(n, p)| !n.is_empty() && !p.is_empty()).ok_or_else(|| {
            Failure::input(format!("--use {text}: a name, = and a run's folder are needed")).hint(names(plan))
        })?;
        let place = plan.runs.iter().position(|r| is_called(name, r.variant, r.seed));
        if place.is_none() && is_elsewhere(plan, name) {
            let what: Vec<String> = plan.what.iter().map(|w| name_of(*w)).collect();
            note(&format!("--use {text}: not needed for {}", what.join(", ")));
            continue;
        }
        let Some(place) = place else {
            return Err(Failure::input(format!("--use {text}: this plan has no run called {name}")).hint(names(plan)));
        };
        if plan.runs[place].existing.is_some() {
            return Err(Failure::input(format!("--use names {name} twice")));
        }
        let existing = open(&plan.runs[place], Path::new(path))?;
        let classes = match plan.runs[place].variant.task() {
            TaskKind::Classes => Some(&plan.classes()?.data[plan.runs[place].seed as usize].class_names),
            TaskKind::Captions => None,
        };
        if classes.is_some_and(|c| checkpoint::load_state(&existing.checkpoint).is_ok_and(|s| s.classes != *c)) {
            return Err(Failure::input(format!("--use {text}: its classes are not those of the data")));
        }
        plan.runs[place].existing = Some(existing);
    }
    Ok(())
}

/// `NAME-sSEED`; that of seed 0 also without.
fn is_called(name: &str, variant: Variant, seed: u64) -> bool {
    name == format!("{}-s{seed}", variant.id()) || (seed == 0 && name == variant.id())
}

/// Whether another WHAT of the same scale and seeds has a run of this name, so that one list of runs serves them all.
fn is_elsewhere(plan: &Plan, name: &str) -> bool {
    let of_scale = |v: &Variant| plan.scale.recipe(v.task()).is_some();
    let called = |v: Variant| (0..plan.seeds() as u64).any(|seed| is_called(name, v, seed));
    Variant::value_variants().iter().copied().filter(of_scale).any(called)
}

/// The names that this plan has, for a hint.
fn names(plan: &Plan) -> String {
    let here = |v: &&Variant| plan.runs.iter().any(|r| r.variant == **v);
    let all: Vec<String> = Variant::value_variants().iter().filter(here).map(|v| v.id()).collect();
    format!("names of this plan: {} (of seed N: NAME-sN)", all.join(", "))
}

/// A run folder or one checkpoint of it, if it is of the kind that is wanted.
fn open(wanted: &Planned, path: &Path) -> Result<ExistingRun> {
    let (dir, is_checkpoint) = RunDir::around(path)?;
    let run = dir.path().to_path_buf();
    let config = Config::of_run(&dir.config_path().display().to_string(), &dir.read_config()?, &[])?;
    if let Some(why) = misfit(&wanted.config, &config) {
        return Err(Failure::input(format!("--use {}={}: {why}", wanted.variant.id(), path.display())));
    }
    let checkpoint = match is_checkpoint {
        true => path.to_path_buf(),
        false => checkpoint::latest(&dir.checkpoints())?
            .path
            .ok_or_else(|| Failure::input(format!("{}: it holds no intact checkpoint", run.display())))?,
    };
    let step = checkpoint::load_state(&checkpoint)?.step;
    let differs = told_differences(&wanted.config, &config)?;
    Ok(ExistingRun { path: run, checkpoint, step, epochs: config.train.epochs, differs })
}

/// Why a run cannot stand in for another: it is of another task, method or loss.
fn misfit(wanted: &Config, have: &Config) -> Option<String> {
    let task = |c: &Config| match c.data.task {
        data::Task::Class => "classes",
        data::Task::Caption => "captions",
        data::Task::Text => "text",
    };
    if task(wanted) != task(have) {
        return Some(format!("it is about {}, not {}", task(have), task(wanted)));
    }
    let say = |name: &str, have: String, want: String| Some(format!("its {name} is {have}, not {want}"));
    if have.model.method != wanted.model.method {
        let name = |c: &Config| format!("{:?}", c.model.method).to_uppercase();
        return say("method", name(have), name(wanted));
    }
    if have.loss.kind != wanted.loss.kind {
        return say("loss.kind", format!("{:?}", have.loss.kind), format!("{:?}", wanted.loss.kind));
    }
    let tdd = wanted.model.method == tweedie::config::Method::Tdd;
    if tdd && (have.train.clean_tokens > 0.0) != (wanted.train.clean_tokens > 0.0) {
        return say("train.clean_tokens", have.train.clean_tokens.to_string(), wanted.train.clean_tokens.to_string());
    }
    let tdd_classes = wanted.data.task == data::Task::Class && tdd;
    let cross_entropy = wanted.loss.kind == tweedie::config::LossKind::CrossEntropy;
    if tdd_classes && cross_entropy && have.loss.weighted != wanted.loss.weighted {
        return say("loss.weighted", have.loss.weighted.to_string(), wanted.loss.weighted.to_string());
    }
    None
}

/// Settings that differ, as `key = have (plan: want)`.
fn told_differences(wanted: &Config, have: &Config) -> Result<Vec<String>> {
    let differ = differences(wanted, have)?;
    Ok(differ.into_iter().map(|d| format!("{} = {} (plan: {})", d.key, d.have, d.want)).collect())
}

/// A setting in which two runs are not alike.
pub struct Difference {
    pub key: String,
    pub have: String,
    pub want: String,
}

/// Settings that differ. How a model is sampled is the plan's choice, and places do not matter.
pub fn differences(wanted: &Config, have: &Config) -> Result<Vec<Difference>> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    flatten("", &as_written(wanted)?, &mut a);
    flatten("", &as_written(have)?, &mut b);
    let ignored = |k: &str| {
        let places = ["data.path", "data.workers", "data.cache", "data.image_folder", "model.classes", "model.preset"];
        let over_training =
            ["train.eval_every", "train.eval_images", "train.checkpoint_every", "train.keep", "train.log_every"];
        k.starts_with("sample.") || places.contains(&k) || over_training.contains(&k)
    };
    let differ = a.into_iter().filter(|(k, _)| !ignored(k)).filter_map(|(key, want)| {
        let have = b.iter().find(|o| o.0 == key).map_or("nothing".to_string(), |o| o.1.clone());
        (have != want).then_some(Difference { key, have, want })
    });
    Ok(differ.collect())
}

/// Through text: a value made directly would hold the 0.8 of an f32 as 0.800000011920929.
fn as_written(config: &Config) -> Result<Value> {
    Ok(serde_json::from_str(&serde_json::to_string(config)?)?)
}

fn flatten(prefix: &str, v: &Value, out: &mut Vec<(String, String)>) {
    match v {
        Value::Object(map) => map.iter().for_each(|(k, v)| {
            let key = if prefix.is_empty() { k.clone() } else { format!("{prefix}.{k}") };
            flatten(&key, v, out);
        }),
        other => out.push((prefix.to_string(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tweedie::config::Method;

    #[test]
    fn what_does_not_fit_is_refused_and_what_differs_is_told() {
        let wanted = Config::default();
        let with = |f: &dyn Fn(&mut Config)| {
            let mut c = wanted.clone();
            f(&mut c);
            c
        };
        assert_eq!(misfit(&wanted, &wanted), None);
        let masked = with(&|c| c.model.method = Method::Mdd);
        assert_eq!(misfit(&wanted, &masked).unwrap(), "its method is MDD, not TDD");
        let weighted = with(&|c| c.loss.weighted = !c.loss.weighted);
        assert!(misfit(&wanted, &weighted).unwrap().starts_with("its loss.weighted"));
        assert_eq!(
            misfit(&wanted, &with(&|c| c.train.clean_tokens = 0.8)).unwrap(),
            "its train.clean_tokens is 0.8, not 0"
        );
        let captions = with(&|c| c.data.task = data::Task::Caption);
        assert!(misfit(&wanted, &captions).unwrap().contains("captions, not classes"));
        let longer = with(&|c| {
            c.train.epochs += 1;
            c.sample.steps += 1;
            c.data.path = "elsewhere".into();
        });
        let epochs = wanted.train.epochs;
        assert_eq!(
            told_differences(&wanted, &longer).unwrap(),
            [format!("train.epochs = {} (plan: {epochs})", epochs + 1)]
        );
        // Numbers are those that a user would write.
        let clean = with(&|c| c.train.clean_tokens = 0.8);
        assert_eq!(told_differences(&wanted, &clean).unwrap(), ["train.clean_tokens = 0.8 (plan: 0.0)"]);
        assert_eq!(told_differences(&clean, &wanted).unwrap(), ["train.clean_tokens = 0.0 (plan: 0.8)"]);
    }
}
