//! What is to be trained: the variants of the method at one scale, a run for each of them and each seed.

use tweedie::config::{Config, LossKind, Method};
use tweedie::data::Dataset;
use tweedie::settings;

use super::super::train::open_data;
use super::Args;
use super::experiments;
use crate::failure::{Failure, Result};
use crate::recipe;

/// Tables and figures of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Table 1: TDD with and without coefficients against MDD
    Main,
    /// The ablation table: loss, guidance, coefficients, sampler
    Ablation,
    /// Accuracy over sampling steps, both weightings
    Steps,
    /// Cross-entropy against regression over iterations
    Loss,
    /// TDD and MDD over epochs
    Curves,
    /// The output distribution step by step
    Heatmap,
    /// All of these
    All,
}

/// Data and networks of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scale {
    /// 8×8 digits inside the program, minutes on a CPU
    Digits,
    /// CIFAR-10, one GPU; needs --data
    Cifar10,
    /// Ten classes of ImageNet at 96×96, one GPU; needs --data
    Imagenette,
}

impl Scale {
    /// Its recipe, which is also its name.
    pub fn recipe(self) -> &'static str {
        match self {
            Scale::Digits => "digits",
            Scale::Cifar10 => "cifar10",
            Scale::Imagenette => "imagenette",
        }
    }

    /// What the numbers are about, and what they are not.
    pub fn said(self) -> &'static str {
        match self {
            Scale::Digits => "8×8 digits, not ImageNet: only the direction can be compared with the paper.",
            Scale::Cifar10 => "CIFAR-10 at 32×32, not ImageNet: only the direction can be compared with the paper.",
            Scale::Imagenette => {
                "Ten classes of ImageNet at 96×96, not all thousand at 224×224: only the direction can be compared with \
                 the paper."
            }
        }
    }
}

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// TDD, each term of its loss weighted by ᾱ_t.
    Weighted,
    /// TDD without these coefficients.
    Plain,
    /// The masked twin.
    Masked,
    /// TDD's network, trained to predict the noise.
    Noise,
    /// TDD's network, trained to predict the clean vector by squared error.
    X0,
}

impl Variant {
    /// Readable part of a run's key.
    pub fn id(self) -> &'static str {
        match self {
            Variant::Weighted => "tdd-weighted",
            Variant::Plain => "tdd-plain",
            Variant::Masked => "mdd",
            Variant::Noise => "mse-noise",
            Variant::X0 => "mse-x0",
        }
    }

    /// In tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Weighted => "TDD with coefficients",
            Variant::Plain => "TDD without coefficients",
            Variant::Masked => "MDD (linear head)",
            Variant::Noise => "regression of the noise",
            Variant::X0 => "regression of x0",
        }
    }

    fn apply(self, c: &mut Config) {
        c.model.method = if self == Variant::Masked { Method::Mdd } else { Method::Tdd };
        c.loss.weighted = self == Variant::Weighted;
        c.loss.kind = match self {
            Variant::Noise => LossKind::Noise,
            Variant::X0 => LossKind::X0,
            _ => LossKind::CrossEntropy,
        };
        if matches!(self, Variant::Noise | Variant::X0) {
            // Guidance is about logits; these networks have none.
            c.sample.guidance = 1.0;
        }
    }
}

/// One run.
pub struct Planned {
    pub variant: Variant,
    pub seed: u64,
    pub config: Config,
    /// Name of its folder: the same settings and data, the same name.
    pub key: String,
    /// Optimizer steps to the end.
    pub steps: usize,
}

/// All runs of a command.
pub struct Plan {
    pub scale: Scale,
    /// What to make, in the order of the paper.
    pub what: Vec<What>,
    pub runs: Vec<Planned>,
    /// The data as each seed splits them.
    pub data: Vec<Dataset>,
    /// Settings that all runs share.
    pub base: Config,
    /// Epochs of the recipe.
    pub recipe_epochs: usize,
}

/// Guidance where the recipe samples without. The paper does not give its weight.
const GUIDANCE: f32 = 2.0;
/// Evaluations in the course of a run: points of a curve.
const EVALUATIONS: usize = 20;

impl Plan {
    pub fn new(args: &Args) -> Result<Plan> {
        let (base, recipe_epochs) = base(args)?;
        let what = match args.what {
            What::All => experiments::ORDER.to_vec(),
            one => vec![one],
        };
        let mut variants: Vec<Variant> = Vec::new();
        for v in what.iter().flat_map(|w| experiments::needs(*w)) {
            if !variants.contains(v) {
                variants.push(*v);
            }
        }
        let mut plan = Plan { scale: args.scale, what, runs: Vec::new(), data: Vec::new(), base, recipe_epochs };
        for seed in 0..u64::from(args.seeds.get()) {
            let mut config = plan.base.clone();
            config.seed = seed;
            config.sample.seed = seed;
            let data = open_data(&config)?;
            for &variant in &variants {
                let mut config = config.clone();
                variant.apply(&mut config);
                let key = format!("{}-s{seed}-{:016x}", variant.id(), fingerprint(&config, &data)?);
                let steps = data.train()?.len() / config.train.batch * config.train.epochs;
                plan.runs.push(Planned { variant, seed, config, key, steps });
            }
            plan.data.push(data);
        }
        Ok(plan)
    }

    /// Number of seeds.
    pub fn seeds(&self) -> usize {
        self.data.len()
    }
}

/// The recipe with what this command changes for every run.
fn base(args: &Args) -> Result<(Config, usize)> {
    let name = args.scale.recipe();
    let mut flags = Vec::new();
    flags.extend(args.data.iter().map(|d| ("--data".to_string(), format!("data.path={d:?}"))));
    let (mut c, _) = recipe::resolve(name, &args.sets, &flags)?;
    if c.data.path.is_empty() {
        return Err(Failure::input(format!("--scale {name} needs data"))
            .hint(format!("tweedie reproduce {} --scale {name} --data PATH", what_name(args.what))));
    }
    let recipe_epochs = c.train.epochs;
    if let Some(n) = args.epochs {
        // A shorter run warms up for the same share of it.
        c.train.warmup_epochs *= n.get() as f32 / recipe_epochs as f32;
        c.train.epochs = n.get();
    }
    c.train.eval_every = c.train.epochs.div_ceil(EVALUATIONS);
    if c.sample.guidance == 1.0 {
        c.sample.guidance = GUIDANCE;
    }
    c.check()?;
    Ok((c, recipe_epochs))
}

/// As it is typed.
pub fn what_name(what: What) -> String {
    use clap::ValueEnum;
    what.to_possible_value().map_or(String::new(), |v| v.get_name().to_string())
}

/// A hash of settings and data, without where the data lie and how many threads read them.
fn fingerprint(config: &Config, data: &Dataset) -> Result<u64> {
    let mut c = config.clone();
    c.data.path.clear();
    c.data.workers = 0;
    let settings = settings::to_toml(&c)?;
    let sizes = [data.train()?.len(), data.val()?.len(), data.final_split()?.0.len()];
    let text = format!("{settings}\n{sizes:?}\n{:?}", data.class_names);
    // FNV-1a: the standard library's hashes may change with its version, a folder's name must not.
    Ok(text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_follows_settings_and_not_places() {
        let config = Config::default();
        let data = open_data(&config).unwrap();
        let key = |f: &dyn Fn(&mut Config)| {
            let mut c = config.clone();
            f(&mut c);
            fingerprint(&c, &data).unwrap()
        };
        let same = key(&|_| {});
        assert_eq!(same, key(&|c| c.data.path = "elsewhere".into()));
        assert_eq!(same, key(&|c| c.data.workers = 7));
        assert_ne!(same, key(&|c| c.train.lr *= 2.0));
        assert_ne!(same, key(&|c| c.seed = 1));
        let mut smaller = data.clone();
        smaller.train = smaller.val.clone();
        assert_ne!(same, fingerprint(&config, &smaller).unwrap());
    }

    #[test]
    fn variants_differ_in_what_they_say() {
        let of = |v: Variant| {
            let mut c = Config::default();
            c.sample.guidance = 2.0;
            v.apply(&mut c);
            (c.model.method, c.loss.weighted, c.loss.kind, c.sample.guidance)
        };
        use LossKind::{CrossEntropy, Noise, X0};
        assert_eq!(of(Variant::Weighted), (Method::Tdd, true, CrossEntropy, 2.0));
        assert_eq!(of(Variant::Plain), (Method::Tdd, false, CrossEntropy, 2.0));
        assert_eq!(of(Variant::Masked), (Method::Mdd, false, CrossEntropy, 2.0));
        assert_eq!(of(Variant::Noise), (Method::Tdd, false, Noise, 1.0));
        assert_eq!(of(Variant::X0), (Method::Tdd, false, X0, 1.0));
    }
}
