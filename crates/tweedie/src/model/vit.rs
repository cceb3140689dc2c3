//! The image encoder: a ViT with timm's names.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tweedie_engine::ops::{elementwise, linear, patchify, tokens};
use tweedie_engine::{Act, Group, Tensor, Var};

use super::build::{Init, Plan};
use super::config::MOST;
use super::layers::{Block, BlockShape, Ids, Linear, Norm, Pass};
use crate::error::{Error, Result};
use crate::limits::within;

/// Which form of GELU a network uses. They differ by up to 5e-4 and are never mixed silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gelu {
    /// The exact form: timm's and PyTorch's default, needed for their weights.
    #[default]
    Erf,
    /// The tanh form, which GPU products fuse: faster.
    Tanh,
}

impl Gelu {
    pub(crate) fn act(self) -> Act {
        match self {
            Gelu::Erf => Act::GeluErf,
            Gelu::Tanh => Act::GeluTanh,
        }
    }
}

/// Shape of the encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Side of the (square) image in pixels.
    pub image: usize,
    /// Side of a patch.
    pub patch: usize,
    /// Colour channels.
    pub channels: usize,
    /// Width of a token.
    pub width: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Chance to drop a whole residual branch; grows linearly from 0 at the first block to this at the last.
    #[serde(default)]
    pub drop_path: f32,
    /// Learnable class tokens before the patches. With `pool = "cls"` each of them is a condition token of the denoiser; the
    /// linear head of MDD has their mean.
    #[serde(default = "one")]
    pub class_tokens: usize,
}

fn one() -> usize {
    1
}

/// Most class tokens: far more than anyone has tried, and few beside the patches of a large image.
const MOST_CLASS_TOKENS: usize = 256;

impl VitConfig {
    /// Patches along a side of the image.
    pub fn grid(&self) -> usize {
        self.image / self.patch.max(1)
    }

    /// Tokens that come out: patches and class tokens.
    pub fn tokens(&self) -> usize {
        self.grid().saturating_pow(2).saturating_add(self.class_tokens)
    }

    /// Refuse shapes that cannot be built, naming the field.
    pub fn check(&self) -> Result<()> {
        let VitConfig { image, patch, channels, width, depth, heads, drop_path, class_tokens } = self;
        let wrong = |what: String| Err(Error::Input(format!("model.encoder: {what}")));
        let sizes = [("image", image), ("patch", patch), ("channels", channels)];
        for (name, n) in sizes.into_iter().chain([("width", width), ("depth", depth), ("heads", heads)]) {
            within(&format!("model.encoder.{name}"), *n, 1..=MOST).map_err(Error::Input)?;
        }
        within("model.encoder.drop_path", *drop_path, 0.0..1.0).map_err(Error::Input)?;
        within("model.encoder.class_tokens", *class_tokens, 1..=MOST_CLASS_TOKENS).map_err(Error::Input)?;
        if image % patch != 0 {
            return wrong(format!("image = {image} must be a multiple of patch = {patch}"));
        }
        if width % heads != 0 {
            return wrong(format!("width = {width} must be a multiple of heads = {heads}"));
        }
        Ok(())
    }
}

/// The encoder's parameters.
#[derive(Clone, Debug)]
pub(crate) struct Vit {
    config: VitConfig,
    patch: Linear,
    cls: usize,
    pos: usize,
    blocks: Vec<Block>,
    norm: Norm,
}

impl Vit {
    pub fn plan(plan: &mut Plan, name: &str, c: &VitConfig, gelu: Gelu) -> Vit {
        let inner = c.channels * c.patch * c.patch;
        let bound = 1.0 / (inner as f32).sqrt();
        let patch = Linear {
            w: plan.add(
                format!("{name}.patch_embed.proj.weight"),
                &[c.width, c.channels, c.patch, c.patch],
                Group::Decay,
                Init::Uniform(bound),
            ),
            b: plan.add(format!("{name}.patch_embed.proj.bias"), &[c.width], Group::NoDecay, Init::Uniform(bound)),
        };
        // Several begin alike and are told apart by their positions.
        let cls = plan.add(format!("{name}.cls_token"), &[1, c.class_tokens, c.width], Group::NoDecay, Init::Zeros);
        let pos = plan.add(format!("{name}.pos_embed"), &[1, c.tokens(), c.width], Group::NoDecay, Init::Normal(0.02));
        let shape = |i: usize| BlockShape {
            width: c.width,
            heads: c.heads,
            mlp: 4 * c.width,
            act: gelu.act(),
            drop_path: c.drop_path * i as f32 / (c.depth.max(2) - 1) as f32,
            index: i as u32,
        };
        let blocks = (0..c.depth).map(|i| Block::plan(plan, &format!("{name}.blocks.{i}"), shape(i))).collect();
        let norm = Norm::plan(plan, &format!("{name}.norm"), c.width);
        Vit { config: c.clone(), patch, cls, pos, blocks, norm }
    }

    /// images \[B, C, H, W\] → tokens \[B, C + L, width\], the C class tokens first, or the `wanted` ones of them alone.
    pub fn forward(&self, p: &Pass, ids: &Ids, images: &Tensor, wanted: Range<usize>) -> Result<Var> {
        self.last(p, ids, &self.before_last(p, ids, images)?, wanted)
    }

    /// All tokens as the last block reads them.
    pub fn before_last(&self, p: &Pass, ids: &Ids, images: &Tensor) -> Result<Var> {
        let c = &self.config;
        let want = [c.channels, c.image, c.image];
        if images.shape().get(1..) != Some(&want) {
            return Err(Error::Input(format!(
                "images are {:?}, the encoder takes [B, {}, {}, {}]",
                images.shape(),
                want[0],
                want[1],
                want[2]
            )));
        }
        let t = p.tape;
        let patches = patchify::patchify(t, &t.constant(images.clone()), c.patch, p.dtype)?;
        let w = t.param(p.params, ids[self.patch.w]);
        let w = elementwise::reshape(t, &w, &[c.width, c.channels * c.patch * c.patch])?;
        let x = linear::linear(t, &patches, &w, Some(&t.param(p.params, ids[self.patch.b])), None, None)?;
        let x = tokens::concat(t, &[&t.param(p.params, ids[self.cls]), &x])?;
        let mut x = elementwise::add_broadcast(t, &x, &t.param(p.params, ids[self.pos]))?;
        if let Some((_, before)) = self.blocks.split_last() {
            for b in before {
                x = b.forward(p, ids, &x, 0, None)?;
            }
        }
        Ok(x)
    }

    /// The `wanted` tokens of the last block, normalised.
    pub fn last(&self, p: &Pass, ids: &Ids, x: &Var, wanted: Range<usize>) -> Result<Var> {
        let x = match self.blocks.last() {
            Some(last) => &last.forward_part(p, ids, x, wanted, None)?,
            None => x,
        };
        self.norm.forward(p, ids, x)
    }
}
