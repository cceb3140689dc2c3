//! `[model]`, and networks by name.

use serde::{Deserialize, Serialize};

use super::vit::{Gelu, VitConfig};
use crate::error::{Error, Result};
use crate::limits::within;

/// Largest side, width, depth and number of heads: a slip of the pen must not ask for more memory than there is anywhere.
pub(crate) const MOST: usize = 1 << 16;

/// Which of the two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Tweedie Discrete Diffusion: encoder and denoiser.
    Tdd,
    /// Its masked twin: the same encoder; for one token a linear head.
    Mdd,
}

/// What of the encoder's output is the condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pool {
    /// The class token, or all of them where there are several.
    #[default]
    Cls,
    /// The mean of the patch tokens.
    Mean,
    /// Every token (captions).
    All,
}

/// What a model is told besides the noisy tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Conditioning {
    /// An image, through the encoder.
    #[default]
    Image,
    /// Nothing: there is no encoder, the denoiser sees the noisy tokens alone.
    None,
}

/// Sizes that the data decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Classes, or words of the vocabulary.
    pub vocab: usize,
    /// Tokens per example: 1 for classification.
    pub tokens: usize,
}

/// Kind of network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DenoiserKind {
    /// Condition and noisy tokens side by side through plain blocks: the paper's.
    #[default]
    Transformer,
    /// Blocks modulated by time and mean condition (DiT's adaLN-zero), beside the same tokens.
    Dit,
    /// Residual MLPs over one vector, modulated by time and condition; for single tokens.
    Mlp,
}

/// Who attends to whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConditionAttention {
    /// Plain self-attention over condition and noisy tokens: the paper's.
    #[default]
    Full,
    /// Condition tokens attend to each other alone and carry no time, so their keys are the same at every step.
    Prefix,
}

/// How noisy tokens know their places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// A learned vector per place is added, which starts as sines and cosines.
    #[default]
    Waves,
    /// Queries and keys of every block are rotated by angles that grow with the place, so that attention sees distances alone.
    /// Condition tokens are not rotated and keep their learned vectors.
    Rotary,
}

/// Shape of the denoiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenoiserConfig {
    /// Kind of network.
    #[serde(default)]
    pub kind: DenoiserKind,
    /// Width of a token.
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Who attends to whom.
    #[serde(default)]
    pub condition_attention: ConditionAttention,
    /// How noisy tokens know their places.
    #[serde(default)]
    pub positions: Positions,
    /// A direct path from the encoder's output to the head, beside the blocks, for classes: what the twin has. Off where the condition is
    /// dropped. The blocks then stand no longer between the encoder and the loss.
    #[serde(default)]
    pub direct: bool,
    /// Self-conditioning: the denoiser also reads its own prediction of a first pass; in training in half of the steps, in use always, which
    /// takes two passes for each. For both methods.
    #[serde(default)]
    pub self_condition: bool,
    /// Exact evidence: the denoiser reads what each noisy vector says by itself, by Bayes' rule, instead of the vector, and the logarithm of
    /// the same is added to its logits, so that its blocks have to learn what the other tokens and the image say alone. For up to 8192 classes,
    /// since a step then costs as much as the vocabulary is large; it goes best with labels that are not smoothed, or in the prior. TDD; MDD takes
    /// no notice.
    #[serde(default)]
    pub evidence: bool,
}

/// What of the denoising loss reaches the encoder (`loss.encoder_gradient`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncoderGradient {
    /// All of it.
    #[default]
    Full,
    /// What goes along the direct path, nothing through the denoiser's blocks.
    Direct,
    /// Nothing: the encoder and the path from it to the head learn by `loss.direct` alone, exactly as the twin's do, and the blocks learn what to
    /// add.
    None,
}

impl DenoiserConfig {
    /// The paper's kind of network in this size.
    pub fn new(width: usize, depth: usize, heads: usize) -> DenoiserConfig {
        DenoiserConfig {
            kind: DenoiserKind::default(),
            width,
            depth,
            heads,
            condition_attention: ConditionAttention::default(),
            positions: Positions::default(),
            direct: false,
            self_condition: false,
            evidence: false,
        }
    }

    /// Refuse shapes that cannot be built, naming the field.
    pub fn check(&self, tokens: usize) -> Result<()> {
        let DenoiserConfig { kind, width, depth, heads, .. } = self;
        let wrong = |what: String| Err(Error::Input(format!("model.denoiser: {what}")));
        for (name, n) in [("width", *width), ("depth", *depth), ("heads", *heads)] {
            within(&format!("model.denoiser.{name}"), n, 1..=MOST).map_err(Error::Input)?;
        }
        if width % heads != 0 {
            return wrong(format!("width = {width} must be a multiple of heads = {heads}"));
        }
        if self.direct && tokens != 1 {
            return wrong(format!("direct = true goes with classes, the data have {tokens} tokens"));
        }
        if *kind == DenoiserKind::Mlp && tokens != 1 {
            return wrong(format!("kind = \"mlp\" denoises one token, the data have {tokens}"));
        }
        if *kind != DenoiserKind::Transformer && self.condition_attention == ConditionAttention::Prefix {
            return wrong("condition_attention = \"prefix\" goes with kind = \"transformer\"".into());
        }
        if self.positions == Positions::Rotary && *kind == DenoiserKind::Mlp {
            return wrong("positions = \"rotary\" needs attention, which kind = \"mlp\" has not".into());
        }
        if self.positions == Positions::Rotary && width / heads < 2 {
            return wrong(format!(
                "positions = \"rotary\" rotates pairs: width = {width} must be above heads = {heads}"
            ));
        }
        Ok(())
    }
}

/// The network.
///
/// ```
/// use tweedie::model::{DenoiserConfig, ModelConfig, Sizes, count_parameters};
///
/// let paper = ModelConfig::preset("vit-b16")?;
/// let small = ModelConfig { denoiser: DenoiserConfig::new(384, 2, 6), ..paper.clone() };
/// let sizes = Sizes { vocab: 1000, tokens: 1 };
/// assert!(count_parameters(&small, sizes)?.0 < count_parameters(&paper, sizes)?.0);
/// # Ok::<(), tweedie::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// TDD or its masked twin.
    #[serde(default = "default_method")]
    pub method: Method,
    /// Number of classes; 0: as many as the data have.
    #[serde(default)]
    pub classes: usize,
    /// What the model is told: `image`, or `none` for text alone (then `encoder` and `pool` have no effect).
    #[serde(default)]
    pub condition: Conditioning,
    /// What of the encoder is the condition.
    #[serde(default)]
    pub pool: Pool,
    /// Form of GELU.
    #[serde(default)]
    pub gelu: Gelu,
    /// The encoder.
    pub encoder: VitConfig,
    /// The denoiser (MDD of one token has a linear head instead).
    pub denoiser: DenoiserConfig,
    /// A safetensors file with encoder weights (timm, MAE, DeiT names); empty: none.
    #[serde(default)]
    pub pretrained: String,
    /// Do not train the encoder.
    #[serde(default)]
    pub freeze_encoder: bool,
}

fn default_method() -> Method {
    Method::Tdd
}

/// Names of [`ModelConfig::preset`].
pub const PRESETS: [&str; 12] = [
    "digits",
    "tiny",
    "cifar",
    "vit-s16",
    "vit-b16",
    "vit-l16",
    "vit-h14",
    "shapes",
    "caption-tiny",
    "coco-96",
    "caption",
    "text",
];

impl ModelConfig {
    /// Whether it is told an image.
    pub fn is_conditional(&self) -> bool {
        self.condition == Conditioning::Image
    }

    /// A network by name.
    pub fn preset(name: &str) -> Result<ModelConfig> {
        // image, patch, channels, width, depth, heads | denoiser width, depth, heads | pool
        let (e, d, pool) = match name {
            "digits" => ((8, 2, 1, 64, 4, 4), (64, 2, 4), Pool::Mean),
            "tiny" => ((32, 4, 3, 192, 6, 3), (192, 2, 3), Pool::Cls),
            "cifar" => ((32, 4, 3, 384, 7, 6), (384, 3, 6), Pool::Cls),
            "vit-s16" => ((224, 16, 3, 384, 12, 6), (384, 3, 6), Pool::Cls),
            "vit-b16" => ((224, 16, 3, 768, 12, 12), (768, 3, 12), Pool::Cls),
            "vit-l16" => ((224, 16, 3, 1024, 24, 16), (1024, 3, 16), Pool::Cls),
            "vit-h14" => ((224, 14, 3, 1280, 32, 16), (1280, 3, 16), Pool::Cls),
            // Sequences: every token of the encoder is a condition token.
            "shapes" => ((32, 8, 3, 64, 3, 4), (64, 2, 4), Pool::All),
            "caption-tiny" => ((64, 8, 3, 192, 6, 3), (192, 4, 3), Pool::All),
            "coco-96" => ((96, 12, 3, 384, 6, 6), (384, 4, 6), Pool::All),
            "caption" => ((224, 16, 3, 768, 12, 12), (768, 6, 12), Pool::All),
            // No condition: the encoder is not built.
            "text" => ((8, 2, 1, 64, 4, 4), (512, 8, 8), Pool::All),
            _ => {
                return Err(Error::Input(format!("'{name}' is not a preset; use one of {}", PRESETS.join(", "))));
            }
        };
        // Small networks are told the condition once: with all tokens of an image in every copy, most of the work of a
        // training step would be the same numbers again. The others are the paper's.
        let condition_attention = match name {
            "shapes" | "coco-96" => ConditionAttention::Prefix,
            _ => ConditionAttention::Full,
        };
        Ok(ModelConfig {
            method: Method::Tdd,
            classes: 0,
            condition: if name == "text" { Conditioning::None } else { Conditioning::Image },
            pool,
            gelu: Gelu::Erf,
            encoder: VitConfig {
                image: e.0,
                patch: e.1,
                channels: e.2,
                width: e.3,
                depth: e.4,
                heads: e.5,
                drop_path: 0.0,
                class_tokens: 1,
            },
            denoiser: DenoiserConfig { condition_attention, ..DenoiserConfig::new(d.0, d.1, d.2) },
            pretrained: String::new(),
            freeze_encoder: false,
        })
    }
}
