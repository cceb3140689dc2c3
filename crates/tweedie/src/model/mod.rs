//! The networks: a ViT encoder that gives the condition (unconditional models have none), and on top of it the denoiser (TDD,
//! and MDD of sequences) or a linear head (MDD of one token). Names and layouts of weights are PyTorch's. Begin with [`ModelConfig::preset`] and
//! [`Model::new`].

mod adaln;
mod build;
mod config;
mod context;
mod denoiser;
mod evidence;
mod layers;
mod pool;
mod pretrained;
mod self_condition;
mod vit;

pub use config::{
    ConditionAttention, Conditioning, DenoiserConfig, DenoiserKind, EncoderGradient, Method, ModelConfig, PRESETS,
    Pool, Positions, Sizes,
};
pub use context::{Context, Input};
pub(crate) use evidence::scaled;
pub use layers::{DropPath, Pass};
pub(crate) use pool::ContextPool;
pub use pretrained::load_encoder;
pub(crate) use pretrained::resize_patches;
pub use vit::{Gelu, VitConfig};

use std::cell::RefCell;
use std::sync::Arc;

use tweedie_engine::ops::noisy_input::NoisyTokens;
use tweedie_engine::ops::{elementwise, linear, tokens};
use tweedie_engine::{DType, Device, Params, Tape, Tensor, Var};

use crate::error::{Error, Result};
use crate::limits::{fits, within};
use build::Plan;
use context::Seen;
use denoiser::{Denoiser, DenoiserSpec, time_table};
use layers::{Ids, Linear};
use vit::Vit;

#[derive(Clone, Debug)]
enum Head {
    Denoiser(Box<Denoiser>),
    /// MDD of one token, which is always masked.
    Linear(Linear),
}

/// A network without weights: its parameters are planned, nothing is allocated.
struct Network {
    encoder: Option<Vit>,
    head: Head,
}

fn plan(config: &ModelConfig, sizes: Sizes) -> Result<(Plan, Network)> {
    let image = config.condition == Conditioning::Image;
    if image {
        config.encoder.check()?;
    }
    config.denoiser.check(sizes.tokens)?;
    if config.denoiser.direct && !image {
        let what = "direct = true leads from the image to the head: it needs";
        return Err(Error::Input(format!("model.denoiser: {what} model.condition = \"image\"")));
    }
    if config.denoiser.evidence && config.method == Method::Tdd && sizes.vocab > evidence::MOST_CLASSES {
        return Err(Error::Input(format!(
            "model.denoiser.evidence = true is for up to {} classes, the data have {}; leave it out",
            evidence::MOST_CLASSES,
            sizes.vocab
        )));
    }
    within("classes of a model", sizes.vocab, ..=1 << 24).map_err(Error::Input)?;
    within("tokens of a model", sizes.tokens, ..=1 << 16).map_err(Error::Input)?;
    if sizes.vocab < 2 || sizes.tokens == 0 {
        let Sizes { vocab, tokens } = sizes;
        let has = if tokens == 0 { "no tokens".to_string() } else { vocab.to_string() };
        return Err(Error::Input(format!("a model needs at least 2 classes, the data have {has}")));
    }
    let mut plan = Plan::default();
    let e = &config.encoder;
    let encoder = image.then(|| Vit::plan(&mut plan, "encoder", e, config.gelu));
    let head = if config.method == Method::Mdd && sizes.tokens == 1 && image {
        Head::Linear(Linear::plan(&mut plan, "head", e.width, sizes.vocab))
    } else {
        let spec = DenoiserSpec {
            vocab: sizes.vocab,
            tokens: sizes.tokens,
            masked: config.method == Method::Mdd,
            cond_dim: e.width,
            cond_tokens: match (config.condition, config.pool) {
                (Conditioning::None, _) => 0,
                (Conditioning::Image, Pool::All) => e.tokens(),
                (Conditioning::Image, Pool::Cls) => e.class_tokens,
                (Conditioning::Image, Pool::Mean) => 1,
            },
            direct_tokens: if config.pool == Pool::Mean { 1 } else { e.class_tokens },
            blocks_before: if image { e.depth } else { 0 },
        };
        Head::Denoiser(Box::new(Denoiser::plan(&mut plan, "denoiser", &config.denoiser, config.gelu, spec)))
    };
    if config.freeze_encoder {
        plan.freeze("encoder.");
    }
    Ok((plan, Network { encoder, head }))
}

/// Numbers of parameters: all, and those of the denoiser or head.
pub fn count_parameters(config: &ModelConfig, sizes: Sizes) -> Result<(usize, usize)> {
    let (plan, _) = plan(config, sizes)?;
    Ok((plan.count(""), plan.count("denoiser.") + plan.count("head.")))
}

/// A network with weights on a device.
///
/// ```
/// use tweedie::engine::{DType, Device, Tape, Tensor};
/// use tweedie::model::{Model, ModelConfig, Pass, Sizes};
///
/// let sizes = Sizes { vocab: 10, tokens: 1 };
/// let model = Model::new(&ModelConfig::preset("digits")?, sizes, &Device::Cpu, DType::F32, 0)?;
/// let tape = Tape::inference();
/// let p = Pass::inference(&tape, &model.params, model.dtype());
/// let images = Tensor::zeros(&Device::Cpu, &[2, 1, 8, 8], DType::F32)?;
/// assert_eq!(model.condition(&p, &images)?.shape(), [2, 1, 64]); // what a denoiser is told
/// # Ok::<(), tweedie::Error>(())
/// ```
pub struct Model {
    config: ModelConfig,
    sizes: Sizes,
    network: Network,
    ids: Ids,
    /// The weights.
    pub params: Params,
    dtype: DType,
    per_token_time: bool,
    /// κ_t for t = 0 … T, of exact evidence.
    kappa: Arc<[f32]>,
    /// Features of every timestep met so far, on the device: the last holds them all. Those before it stay, since a captured
    /// graph may read them.
    times: RefCell<Vec<Tensor>>,
}

impl Model {
    /// Build and initialise. `dtype` is the type of activations: f32 anywhere, bf16 on a GPU.
    pub fn new(config: &ModelConfig, sizes: Sizes, device: &Device, dtype: DType, seed: u64) -> Result<Model> {
        let (plan, mut network) = plan(config, sizes)?;
        // Drawn on the host and then put together; on the CPU beside their gradients.
        let copies = if matches!(device, Device::Cpu) { 3 } else { 2 };
        let count = plan.count("");
        fits(format!("a model of {count} parameters"), 4 * copies * count as u128).map_err(Error::Input)?;
        if let Head::Denoiser(d) = &mut network.head {
            d.upload_constants(device)?;
        }
        let (params, ids) = plan.build(device, dtype == DType::Bf16, seed)?;
        Ok(Model {
            config: config.clone(),
            sizes,
            network,
            ids,
            params,
            dtype,
            per_token_time: false,
            kappa: Arc::new([]),
            times: RefCell::default(),
        })
    }

    /// Say whether it is trained with clean tokens at a time of their own (`train.clean_tokens`).
    #[must_use]
    pub fn with_per_token_time(self, per_token_time: bool) -> Model {
        Model { per_token_time, ..self }
    }

    /// Whether a sampler may show it clean tokens at a time of their own.
    pub fn per_token_time(&self) -> bool {
        self.per_token_time
    }

    /// The settings it was built from.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Vocabulary and tokens.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Type of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.params.device()
    }

    /// Whether it denoises noisy vectors (TDD) or fills in masked tokens (MDD).
    pub fn is_tdd(&self) -> bool {
        self.config.method == Method::Tdd
    }

    /// Whether it has a denoiser: always, but for MDD of one token, which is a linear head.
    pub fn has_denoiser(&self) -> bool {
        matches!(self.network.head, Head::Denoiser(_))
    }

    /// Whether the encoder's output goes straight to the head, too.
    pub fn has_direct_path(&self) -> bool {
        self.config.denoiser.direct && self.has_denoiser()
    }

    /// Whether it has an encoder and so needs images.
    pub fn is_conditional(&self) -> bool {
        self.network.encoder.is_some()
    }

    /// The condition \[B, C, width\] of images \[B, channels, side, side\].
    pub fn condition(&self, p: &Pass, images: &Tensor) -> Result<Var> {
        let encoder = self.encoder()?;
        let (n, class) = (self.config.encoder.tokens(), self.config.encoder.class_tokens);
        let wanted = match (self.config.pool, &self.network.head) {
            // A linear head reads no patches.
            (Pool::Cls, _) | (Pool::All, Head::Linear(_)) => 0..class,
            _ => 0..n,
        };
        let z = encoder.forward(p, &self.ids, images, wanted)?;
        Ok(match self.config.pool {
            Pool::Cls => z,
            Pool::Mean => tokens::mean_tokens(p.tape, &z, class..n)?,
            Pool::All => z,
        })
    }

    /// What a direct path reads of the condition, and what the blocks do, which has no gradient. The first is computed as the twin computes it,
    /// not as a part of the second: both learn the same numbers then, on the CPU to the bit.
    fn condition_of_path_alone(&self, p: &Pass, images: &Tensor) -> Result<(Var, Var)> {
        if self.config.pool != Pool::All {
            let z = self.condition(p, images)?;
            return Ok((z.clone(), p.tape.constant(z.value().clone())));
        }
        let (encoder, c) = (self.encoder()?, &self.config.encoder);
        let x = encoder.before_last(p, &self.ids, images)?;
        let path = encoder.last(p, &self.ids, &x, 0..c.class_tokens)?;
        let tape = Tape::inference();
        let quiet = Pass { tape: &tape, drop: p.drop.clone(), ..*p };
        let all = encoder.last(&quiet, &self.ids, &tape.constant(x.value().clone()), 0..c.tokens())?;
        Ok((path, p.tape.constant(all.value().clone())))
    }

    fn encoder(&self) -> Result<&Vit> {
        self.network.encoder.as_ref().ok_or_else(|| {
            Error::Input("this model is unconditional (model.condition = \"none\"): it takes no images".into())
        })
    }

    fn denoiser(&self) -> Result<&Denoiser> {
        match &self.network.head {
            Head::Denoiser(d) => Ok(d),
            Head::Linear(_) => Err(Error::Input("this model is a masked twin (MDD): it has no denoiser".into())),
        }
    }

    fn denoiser_prior(&self) -> Option<usize> {
        self.denoiser().ok().and_then(Denoiser::prior)
    }

    /// The condition in the denoiser's own width, once for all copies and steps: \[B, C, d\].
    pub fn project_condition(&self, p: &Pass, cond: &Var) -> Result<Var> {
        self.denoiser()?.condition(p, &self.ids, cond)
    }

    /// Everything that noisy tokens see of `images` \[B, …\] and that does not depend on them: computed once for all noisy
    /// copies and all steps. `null` adds the learned null condition, which dropped rows and guidance need. An unconditional
    /// model takes no images.
    pub fn context(&self, p: &Pass, images: Option<&Tensor>, null: bool) -> Result<Context> {
        self.context_of(p, images, null, EncoderGradient::Full)
    }

    /// As [`Model::context`], where a loss may keep its gradient from the encoder.
    pub(crate) fn context_of(
        &self,
        p: &Pass,
        images: Option<&Tensor>,
        null: bool,
        reaches: EncoderGradient,
    ) -> Result<Context> {
        let d = self.denoiser()?;
        match (images, self.is_conditional()) {
            (None, true) => Err(Error::Input("this model needs images".into())),
            (None, false) => Ok(Context { seen: Seen::Nothing, direct: None }),
            (Some(images), _) => {
                let (path, blocks) = match reaches {
                    EncoderGradient::Full => {
                        let encoded = self.condition(p, images)?;
                        (encoded.clone(), encoded)
                    }
                    _ => self.condition_of_path_alone(p, images)?,
                };
                d.context(p, &self.ids, &path, &blocks, null)
            }
        }
    }

    /// Features \[B, N, width\] of tokens at times `t`, one for each example or B·N for their tokens, ready for the head.
    /// `context` has a row for each example ([`Context::rows`]).
    pub fn features(&self, p: &Pass, input: &Input, t: &[u32], context: &Context) -> Result<Var> {
        let (mut time, n) = (self.times(p, t)?, self.sizes.tokens);
        if t.len() != input.examples() && t.len() == input.examples() * n {
            time = elementwise::reshape(p.tape, &time, &[t.len() / n, n, time.value().width()])?;
        }
        self.features_at(p, input, &time, context)
    }

    /// Times as the denoiser's blocks see them, \[B, d\].
    pub fn times(&self, p: &Pass, t: &[u32]) -> Result<Var> {
        self.denoiser()?.times(p, &self.ids, &self.time_features(p, t)?)
    }

    /// As [`Model::features`], with times of [`Model::times`]: one for each example, \[1, d\] for all, or
    /// \[B, N, d\] with one for each token (transformers whose condition carries no time).
    pub fn features_at(&self, p: &Pass, input: &Input, time: &Var, context: &Context) -> Result<Var> {
        self.denoiser()?.features(p, &self.ids, input, time, context)
    }

    /// As [`Model::features`], with the projected condition beside the noisy tokens in every block: what `context` saves
    /// time on. `drop` (u32 \[B\]) marks examples that get the null condition instead.
    pub fn denoise(&self, p: &Pass, noisy: &NoisyTokens, t: &[u32], cond: &Var, drop: Option<&Tensor>) -> Result<Var> {
        let own = match drop {
            Some(mask) => tokens::select(p.tape, cond, &self.denoiser()?.null(p, &self.ids)?, mask)?,
            None => cond.clone(),
        };
        self.features(p, &Input::Noisy(noisy), t, &Context { seen: Seen::Tokens { own, null: None }, direct: None })
    }

    /// Features \[B, 256\] of timesteps: rows of a table, since computing them anew costs more than a training step.
    fn time_features(&self, p: &Pass, t: &[u32]) -> Result<Tensor> {
        let most = t.iter().copied().max().unwrap_or(0) as usize;
        let mut tables = self.times.borrow_mut();
        if tables.last().is_none_or(|t| t.shape()[0] <= most) {
            tables.push(time_table(&self.device(), (most + 1).max(1001))?);
        }
        let Some(table) = tables.last() else { return Err(Error::Input("no timesteps".into())) };
        let ids = Tensor::from_u32(&self.device(), &[t.len()], t.to_vec())?;
        Ok(tokens::embed(p.tape, &p.tape.constant(table.clone()), &ids, self.dtype)?.value().clone())
    }

    /// Weight and bias of the last layer, for a loss that never holds all logits.
    pub fn head(&self, p: &Pass) -> (Var, Var) {
        match &self.network.head {
            Head::Denoiser(d) => d.head(p, &self.ids),
            Head::Linear(l) => (p.tape.param(p.params, self.ids[l.w]), p.tape.param(p.params, self.ids[l.b])),
        }
    }

    /// As [`Model::head`], of the direct path alone.
    pub(crate) fn head_of_path(&self, p: &Pass) -> Result<(Var, Var)> {
        self.denoiser()?.head_of_path(p, &self.ids)
    }

    /// As [`Model::head`], for a loss that must not move what the direct path says of its own.
    pub(crate) fn head_of_blocks(&self, p: &Pass) -> Result<(Var, Var)> {
        self.denoiser()?.head_of_blocks(p, &self.ids)
    }

    /// Logits \[…, V\] of features (denoiser) or of the condition (linear head).
    pub fn logits(&self, p: &Pass, features: &Var) -> Result<Var> {
        match &self.network.head {
            Head::Denoiser(d) => d.logits(p, &self.ids, features),
            Head::Linear(l) => l.forward(p, &self.ids, features, None),
        }
    }

    /// Logits \[B, 1, V\] of the direct path alone, where there is one (`model.denoiser.direct`): no denoising.
    pub fn direct_logits(&self, p: &Pass, images: &Tensor) -> Result<Option<Var>> {
        if !self.has_direct_path() {
            return Ok(None);
        }
        match self.context_of(p, Some(images), false, EncoderGradient::None)?.direct() {
            Some(direct) => {
                let (w, bias) = self.head_of_path(p)?;
                Ok(Some(linear::linear(p.tape, direct, &w, Some(&bias), None, None)?))
            }
            None => Ok(None),
        }
    }

    /// MDD's features: the condition of its single, always masked token, \[B, width\]; of several class tokens their mean.
    pub fn masked_features(&self, p: &Pass, cond: &Var) -> Result<Var> {
        let several = self.config.pool != Pool::Mean && self.config.encoder.class_tokens > 1;
        let mean =
            several.then(|| tokens::mean_tokens(p.tape, cond, 0..self.config.encoder.class_tokens)).transpose()?;
        let cond = mean.as_ref().unwrap_or(cond);
        let &[b, 1, d] = cond.shape() else {
            return Err(Error::Input(format!(
                "the masked twin of a classifier pools to one token, not {:?}",
                cond.shape()
            )));
        };
        Ok(elementwise::reshape(p.tape, cond, &[b, d])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_model_has_the_papers_size() {
        let c = ModelConfig::preset("vit-b16").unwrap();
        let (all, denoiser) = count_parameters(&c, Sizes { vocab: 1000, tokens: 1 }).unwrap();
        assert_eq!(((all as f64 / 1e5).round() / 10.0, (denoiser as f64 / 1e5).round() / 10.0), (110.0, 24.2));
        let twin = ModelConfig { method: Method::Mdd, ..c };
        let (all, head) = count_parameters(&twin, Sizes { vocab: 1000, tokens: 1 }).unwrap();
        assert_eq!((all, head), (86_567_656, 769_000)); // timm's vit_base_patch16_224
    }

    #[test]
    fn every_preset_and_variant_can_be_planned() {
        for name in PRESETS {
            for kind in [DenoiserKind::Transformer, DenoiserKind::Dit, DenoiserKind::Mlp] {
                let mut c = ModelConfig::preset(name).unwrap();
                c.denoiser = DenoiserConfig { kind, condition_attention: ConditionAttention::Full, ..c.denoiser };
                assert!(count_parameters(&c, Sizes { vocab: 10, tokens: 1 }).unwrap().0 > 0);
            }
        }
        assert!(ModelConfig::preset("vit-x").unwrap_err().to_string().contains("vit-b16"));
    }

    #[test]
    fn impossible_shapes_name_the_field() {
        let mut c = ModelConfig::preset("digits").unwrap();
        c.encoder.patch = 3;
        let e = count_parameters(&c, Sizes { vocab: 10, tokens: 1 }).unwrap_err().to_string();
        assert!(e.contains("image = 8") && e.contains("patch = 3"), "{e}");
        let mut c = ModelConfig::preset("shapes").unwrap();
        assert!(count_parameters(&c, Sizes { vocab: 10, tokens: 4 }).is_ok());
        c.denoiser.kind = DenoiserKind::Dit;
        let e = count_parameters(&c, Sizes { vocab: 10, tokens: 4 }).unwrap_err().to_string();
        assert!(e.contains("condition_attention"), "{e}");
        let mut c = ModelConfig::preset("digits").unwrap();
        c.denoiser.positions = Positions::Rotary;
        assert!(count_parameters(&c, Sizes { vocab: 10, tokens: 1 }).is_ok());
        c.denoiser.heads = c.denoiser.width;
        let e = count_parameters(&c, Sizes { vocab: 10, tokens: 1 }).unwrap_err().to_string();
        assert!(e.contains("positions = \"rotary\"") && e.contains("heads"), "{e}");
        (c.denoiser.heads, c.denoiser.kind) = (1, DenoiserKind::Mlp);
        let e = count_parameters(&c, Sizes { vocab: 10, tokens: 1 }).unwrap_err().to_string();
        assert!(e.contains("positions = \"rotary\"") && e.contains("kind = \"mlp\""), "{e}");
        let c = ModelConfig::preset("digits").unwrap();
        assert!(count_parameters(&c, Sizes { vocab: 1, tokens: 1 }).unwrap_err().to_string().contains("2 classes"));
    }
}
