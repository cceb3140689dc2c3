//! What is to be trained: the variants of the method at one scale, a run for each of them and each seed.

use tweedie::config::Config;
use tweedie::data::{CacheMode, Dataset, SequenceSet};
use tweedie::settings;
use tweedie::train::{open_classes, open_sequences};

use super::Args;
use super::existing::{ExistingRun, differences};
use super::experiments;
use super::scale::{Scale, TaskKind, What, name_of};
use super::variant::{PAPER, Variant};
use crate::failure::{Failure, Result};
use crate::shared::recipe;

/// One run.
pub struct Planned {
    pub variant: Variant,
    pub seed: u64,
    pub config: Config,
    /// Name of its folder: the same settings and data, the same name.
    pub key: String,
    /// Optimizer steps to the end.
    pub steps: usize,
    /// A run that is used instead.
    pub existing: Option<ExistingRun>,
}

/// What the runs of one task share.
pub struct Task<D> {
    pub recipe: &'static str,
    /// Settings of the recipe's own model.
    pub base: Config,
    /// The same with the paper's model.
    pub paper: Config,
    /// Where the two differ.
    pub differs: Vec<String>,
    /// Epochs of the recipe.
    pub recipe_epochs: usize,
    /// The data as each seed splits them.
    pub data: Vec<D>,
}

/// All runs of a command.
pub struct Plan {
    pub scale: Scale,
    /// What to make, in the order of the paper.
    pub what: Vec<What>,
    pub runs: Vec<Planned>,
    seeds: usize,
    classes: Option<Task<Dataset>>,
    captions: Option<Task<SequenceSet>>,
}

/// Guidance where the recipe samples without. The paper does not give its weight.
const GUIDANCE: f32 = 2.0;
/// Evaluations over a run: points of a curve.
const EVALUATIONS: usize = 20;
/// Training texts that a key looks at.
const TEXTS: usize = 16;

impl Plan {
    /// `share`: of each recipe's epochs.
    pub fn new(args: &Args, share: f64) -> Result<Plan> {
        args.scale.check(args.what)?;
        let there = |w: &What| w.task().is_some_and(|p| args.scale.recipe(p).is_some());
        let what: Vec<What> = match args.what {
            What::All => experiments::ORDER.into_iter().filter(there).collect(),
            one => vec![one],
        };
        let mut variants: Vec<Variant> = Vec::new();
        for v in what.iter().flat_map(|w| experiments::needs(*w)) {
            if !variants.contains(v) {
                variants.push(*v);
            }
        }
        let seeds = args.seeds as usize;
        let mut plan = Plan { scale: args.scale, what, runs: Vec::new(), seeds, classes: None, captions: None };
        let has = |kind: TaskKind| variants.iter().any(|v| v.task() == kind);
        if has(TaskKind::Classes) {
            plan.classes = Some(task(args, share, TaskKind::Classes, |c| Ok(open_classes(c)?))?);
        }
        if has(TaskKind::Captions) {
            plan.captions = Some(task(args, share, TaskKind::Captions, |c| Ok(open_sequences(&c.data, c.seed)?))?);
        }
        // Where the recipe's model is the paper's, it is trained once.
        variants.retain(|v| !v.is_of_recipe() || plan.has_own_recipe(v.task()));
        for seed in 0..seeds {
            for &variant in &variants {
                let (mut config, examples) = match variant.task() {
                    TaskKind::Classes => (plan.classes()?.of(variant), plan.classes()?.data[seed].train()?.len()),
                    TaskKind::Captions => (plan.captions()?.of(variant), plan.captions()?.data[seed].train()?.len()),
                };
                seeded(&mut config, seed);
                variant.apply(&mut config, examples);
                let examples = match config.data.train_limit {
                    0 => examples,
                    most => examples.min(most),
                };
                let hash = match variant.task() {
                    TaskKind::Classes => fingerprint(&config, &about_classes(&plan.classes()?.data[seed])?)?,
                    TaskKind::Captions => fingerprint(&config, &about_captions(&plan.captions()?.data[seed])?)?,
                };
                let key = format!("{}-s{seed}-{hash:016x}", variant.id());
                let steps = examples / config.train.batch * config.train.epochs;
                plan.runs.push(Planned { variant, seed: seed as u64, config, key, steps, existing: None });
            }
        }
        super::existing::put(&mut plan, &args.uses)?;
        Ok(plan)
    }

    /// Whether the recipe of a task has another model than the paper.
    pub fn has_own_recipe(&self, kind: TaskKind) -> bool {
        match kind {
            TaskKind::Classes => self.classes.as_ref().is_some_and(|t| !t.differs.is_empty()),
            TaskKind::Captions => self.captions.as_ref().is_some_and(|t| !t.differs.is_empty()),
        }
    }

    /// Those of `variants` that there are.
    pub fn those(&self, variants: &[Variant]) -> Vec<Variant> {
        variants.iter().copied().filter(|v| self.runs.iter().any(|r| r.variant == *v)).collect()
    }

    /// Number of seeds.
    pub fn seeds(&self) -> usize {
        self.seeds
    }

    /// Classification, which an experiment has asked for.
    pub fn classes(&self) -> Result<&Task<Dataset>> {
        self.classes.as_ref().ok_or_else(|| Failure::ours("the plan has no classification"))
    }

    /// Captions, which an experiment has asked for.
    pub fn captions(&self) -> Result<&Task<SequenceSet>> {
        self.captions.as_ref().ok_or_else(|| Failure::ours("the plan has no captions"))
    }

    /// The tasks that it has.
    pub fn tasks(&self) -> Vec<TaskKind> {
        let has = |p: &TaskKind| match p {
            TaskKind::Classes => self.classes.is_some(),
            TaskKind::Captions => self.captions.is_some(),
        };
        [TaskKind::Classes, TaskKind::Captions].into_iter().filter(has).collect()
    }

    /// What the numbers are about.
    pub fn said(&self) -> String {
        let all: Vec<&str> = self.tasks().into_iter().map(|p| self.scale.said(p)).collect();
        all.join(" ")
    }
}

impl<D> Task<D> {
    /// Settings that a variant begins with.
    fn of(&self, variant: Variant) -> Config {
        if variant.is_of_recipe() { self.base.clone() } else { self.paper.clone() }
    }
}

fn seeded(config: &mut Config, seed: usize) {
    config.seed = seed as u64;
    config.sample.seed = seed as u64;
}

/// A task's settings, and its data for every seed.
fn task<D>(args: &Args, share: f64, kind: TaskKind, open: impl Fn(&Config) -> Result<D>) -> Result<Task<D>> {
    let recipe = args.scale.recipe(kind).ok_or_else(|| Failure::ours("a task without a recipe"))?;
    let (base, recipe_epochs) = settings_of(args, share, kind, recipe, &[])?;
    let (paper, _) = settings_of(args, share, kind, recipe, &PAPER)?;
    let differ = differences(&paper, &base)?;
    let differs =
        differ.into_iter().map(|d| format!("{} = {} (the paper: {})", d.key, d.have, d.want)).collect::<Vec<_>>();
    let of = |seed: usize| {
        let mut config = base.clone();
        seeded(&mut config, seed);
        open(&config)
    };
    let data = (0..args.seeds as usize).map(of).collect::<Result<_>>()?;
    Ok(Task { recipe, base, paper, differs, recipe_epochs, data })
}

/// The recipe with `model` and what this command changes for every run, which has the last word.
fn settings_of(args: &Args, share: f64, kind: TaskKind, recipe: &str, model: &[&str]) -> Result<(Config, usize)> {
    let own = match kind {
        TaskKind::Classes => &args.class_sets,
        TaskKind::Captions => &args.caption_sets,
    };
    let model = model.iter().map(|s| s.to_string());
    let sets: Vec<String> = model.chain(args.sets.iter().chain(own).cloned()).collect();
    let resolve = |path: Option<&String>| {
        let flags: Vec<_> = path.map(|d| ("--data".to_string(), format!("data.path={d:?}"))).into_iter().collect();
        recipe::resolve(recipe, &sets, &flags).map(|r| r.0).map_err(|f| one_task(args, recipe, f.into()))
    };
    let mut c = match kind {
        TaskKind::Classes => resolve(args.data.as_ref())?,
        TaskKind::Captions => {
            let c = resolve(args.caption_data.as_ref())?;
            // --data is for both where one path can be: what a recipe brings along stays.
            if c.data.path.is_empty() { resolve(args.data.as_ref())? } else { c }
        }
    };
    if c.data.path.is_empty() {
        let (what, scale) = (name_of(args.what), name_of(args.scale));
        return Err(Failure::input(format!("--scale {scale} needs data"))
            .hint(format!("tweedie reproduce {what} --scale {scale} --data PATH")));
    }
    let recipe_epochs = c.train.epochs;
    let epochs = args.epochs.unwrap_or(((recipe_epochs as f64 * share) as usize).max(1));
    if epochs != recipe_epochs {
        // A shorter run warms up for the same share of it.
        c.train.warmup_epochs *= epochs as f32 / recipe_epochs as f32;
        c.train.epochs = epochs;
    }
    if kind == TaskKind::Classes {
        c.train.eval_every = c.train.epochs.div_ceil(EVALUATIONS);
        if c.sample.guidance == 1.0 {
            c.sample.guidance = GUIDANCE;
        }
    }
    c.check()?;
    Ok((c, recipe_epochs))
}

/// A setting that one task does not take is one for the other alone.
fn one_task(args: &Args, recipe: &str, failure: Failure) -> Failure {
    match args.what {
        What::All if !args.sets.is_empty() => failure
            .hint(format!("that is of the recipe {recipe}; --class-set and --caption-set change one task's runs")),
        _ => failure,
    }
}

/// What tells data apart, beside settings: sizes of the splits and the names of the classes.
fn about_classes(data: &Dataset) -> Result<String> {
    let sizes = [data.train()?.len(), data.val()?.len(), data.final_split()?.0.len()];
    Ok(format!("{sizes:?}\n{:?}", data.class_names))
}

/// What tells captions apart: sizes of the splits and the first texts.
fn about_captions(data: &SequenceSet) -> Result<String> {
    let sizes = [data.train()?.len(), data.val()?.len(), data.final_split()?.0.len()];
    let texts: Vec<String> = data.training_texts()?.take(TEXTS).collect();
    Ok(format!("{sizes:?}\n{texts:?}"))
}

/// A hash of settings and data, without where the data lie and how they are read.
fn fingerprint(config: &Config, data: &str) -> Result<u64> {
    let mut c = config.clone();
    c.data.path.clear();
    c.data.image_folder.clear();
    c.data.workers = 0;
    c.data.cache = CacheMode::Auto;
    // The line is taken out: runs made before there was a cache keep their keys.
    let settings = settings::to_toml(&c)?.replace("cache = \"auto\"\n", "");
    let text = format!("{settings}\n{data}");
    // FNV-1a: the standard library's hashes may change with its version, a folder's name must not.
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_follows_settings_and_not_places() {
        let config = Config::default();
        let data = open_classes(&config).unwrap();
        let key = |f: &dyn Fn(&mut Config)| {
            let mut c = config.clone();
            f(&mut c);
            fingerprint(&c, &about_classes(&data).unwrap()).unwrap()
        };
        let same = key(&|_| {});
        assert_eq!(same, key(&|c| c.data.path = "elsewhere".into()));
        assert_eq!(same, key(&|c| c.data.workers = 7));
        assert_eq!(same, key(&|c| c.data.cache = CacheMode::Off));
        assert_ne!(same, key(&|c| c.train.lr *= 2.0));
        assert_ne!(same, key(&|c| c.seed = 1));
        let mut smaller = data.clone();
        smaller.train = smaller.val.clone();
        assert_ne!(same, fingerprint(&config, &about_classes(&smaller).unwrap()).unwrap());
    }
}
