//! The ways to train that tables and figures compare.

use tweedie::config::{Config, LossKind, Method};

use super::scale::{TaskKind, name_of};

/// A way to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Variant {
    /// The paper's TDD, each term of its loss weighted by ᾱ_t.
    #[value(name = "tdd-weighted")]
    Weighted,
    /// The paper's TDD without these coefficients.
    #[value(name = "tdd-plain")]
    Plain,
    /// The masked twin: the same encoder with a linear head.
    #[value(name = "mdd")]
    Masked,
    /// The paper's network, trained to predict the noise.
    #[value(name = "mse-noise")]
    Noise,
    /// The paper's network, trained to predict the clean vector by squared error.
    #[value(name = "mse-x0")]
    X0,
    /// [`Variant::Plain`] on λ-hot vectors.
    #[value(name = "tdd-lambda")]
    LambdaHot,
    /// [`Variant::Weighted`] for more epochs on fewer images at a constant rate.
    #[value(name = "tdd-weighted-long")]
    LongWeighted,
    /// [`Variant::Plain`], likewise.
    #[value(name = "tdd-plain-long")]
    LongPlain,
    /// [`Variant::Masked`], likewise.
    #[value(name = "mdd-long")]
    LongMasked,
    /// TDD as the recipe has it, where that is not the paper's.
    #[value(name = "tdd-recipe")]
    Recipe,
    /// Captions by the paper's TDD.
    #[value(name = "caption-tdd")]
    CaptionTdd,
    /// Captions by its masked twin.
    #[value(name = "caption-mdd")]
    CaptionMdd,
    /// Captions by TDD as the recipe has it.
    #[value(name = "caption-tdd-recipe")]
    CaptionRecipeTdd,
    /// Captions by the twin of that.
    #[value(name = "caption-mdd-recipe")]
    CaptionRecipeMdd,
}

use Variant::*;

/// λ of the λ-hot vectors. The paper gives none.
pub const LAMBDA: f64 = 0.5;
/// Long runs see one image of so many, so many times as often.
pub const FEWER: usize = 8;

/// The paper's model as settings over a recipe: network, process, targets and sampler. What the paper leaves open (its schedule, the weight of
/// guidance) is as its code base for diffusion has it, cosine, or the recipe's.
pub const PAPER: [&str; 19] = [
    "model.denoiser.kind=transformer",
    "model.denoiser.condition_attention=full",
    "model.denoiser.positions=waves",
    "model.denoiser.direct=false",
    "model.denoiser.evidence=false",
    "model.denoiser.self_condition=false",
    "process.schedule=cosine",
    "process.lambda=1.0",
    "loss.smoothing_in=target",
    "loss.direct=0.0",
    "loss.encoder_gradient=full",
    "train.clean_tokens=0.0",
    "train.stagger=1",
    "train.pure_noise=0.0",
    "sample.sampler=argmax",
    "sample.running_mean=false",
    "sample.schedule=",
    "sample.guidance_shape=constant",
    "sample.candidates=1",
];

impl Variant {
    /// Readable part of a run's key, and the name that `--use` takes.
    pub fn id(self) -> String {
        name_of(self)
    }

    /// In tables and legends.
    pub fn name(self) -> &'static str {
        match self {
            Weighted => "TDD with coefficients",
            Plain => "TDD without coefficients",
            Masked => "MDD (linear head)",
            LongWeighted => "TDD with coefficients, long",
            LongPlain => "TDD without coefficients, long",
            LongMasked => "MDD, long",
            Noise => "regression of the noise",
            X0 => "regression of x0",
            LambdaHot => "TDD on λ-hot vectors",
            Recipe => "TDD of the recipe",
            CaptionTdd => "TDD",
            CaptionMdd => "MDD",
            CaptionRecipeTdd => "TDD of the recipe",
            CaptionRecipeMdd => "MDD of the recipe",
        }
    }

    pub fn task(self) -> TaskKind {
        match self {
            CaptionTdd | CaptionMdd | CaptionRecipeTdd | CaptionRecipeMdd => TaskKind::Captions,
            _ => TaskKind::Classes,
        }
    }

    /// Whether it is the recipe's model and not the paper's.
    pub fn is_of_recipe(self) -> bool {
        matches!(self, Recipe | CaptionRecipeTdd | CaptionRecipeMdd)
    }

    fn is_long(self) -> bool {
        matches!(self, LongWeighted | LongPlain | LongMasked)
    }

    /// Make settings this variant's; they are the paper's or the recipe's, with so many training `examples`.
    pub fn apply(self, c: &mut Config, examples: usize) {
        c.model.method = match self {
            Masked | LongMasked | CaptionMdd | CaptionRecipeMdd => Method::Mdd,
            _ => Method::Tdd,
        };
        if self.is_long() {
            let t = &mut c.train;
            c.data.train_limit = (examples / FEWER).max(t.batch);
            (t.epochs, t.warmup_epochs) = (t.epochs * FEWER, t.warmup_epochs * FEWER as f32);
            (t.eval_every, t.checkpoint_every) = (t.eval_every * FEWER, t.checkpoint_every * FEWER);
            t.min_lr = 1.0;
        }
        if self.task() == TaskKind::Captions || self == Recipe {
            return;
        }
        c.loss.weighted = matches!(self, Weighted | LongWeighted);
        c.loss.kind = match self {
            Noise => LossKind::Noise,
            X0 => LossKind::X0,
            _ => LossKind::CrossEntropy,
        };
        if self == LambdaHot {
            c.process.lambda = LAMBDA;
        }
        if matches!(self, Noise | X0) {
            // Guidance is about logits; these networks have none.
            c.sample.guidance = 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_differ_in_what_they_say() {
        let of = |v: Variant| {
            let mut c = Config::default();
            c.sample.guidance = 2.0;
            v.apply(&mut c, 1600);
            (c.model.method, c.loss.weighted, c.loss.kind, c.sample.guidance)
        };
        use LossKind::CrossEntropy;
        assert_eq!(of(Weighted), (Method::Tdd, true, CrossEntropy, 2.0));
        assert_eq!(of(Plain), (Method::Tdd, false, CrossEntropy, 2.0));
        assert_eq!(of(Masked), (Method::Mdd, false, CrossEntropy, 2.0));
        assert_eq!(of(Noise), (Method::Tdd, false, LossKind::Noise, 1.0));
        assert_eq!(of(X0), (Method::Tdd, false, LossKind::X0, 1.0));
        // The recipe's own and captions keep the coefficients of their recipe.
        let recipe = Config::default().loss.weighted;
        assert_eq!(of(Recipe), (Method::Tdd, recipe, CrossEntropy, 2.0));
        assert_eq!(of(CaptionTdd), (Method::Tdd, recipe, CrossEntropy, 2.0));
        assert_eq!(of(CaptionMdd), (Method::Mdd, recipe, CrossEntropy, 2.0));
    }

    #[test]
    fn long_runs_take_as_many_steps_at_a_constant_rate() {
        let (short, mut long) = (Config::default(), Config::default());
        LongPlain.apply(&mut long, 80 * short.train.batch);
        assert_eq!(long.data.train_limit, 10 * short.train.batch);
        assert_eq!((long.train.epochs, long.train.min_lr), (FEWER * short.train.epochs, 1.0));
        long.check().unwrap();
    }
}
