//! Values that make no sense.

use std::ops::Bound::{Excluded, Included};

use tweedie_engine::Device;

use super::sample::{MOST_STAGGER, MOST_STEPS};
use super::{Config, LossKind};
use crate::data::Task;
use crate::error::{Error, Result};
use crate::limits::{fits, within};
use crate::model::{ConditionAttention, Conditioning, DenoiserKind, EncoderGradient, Method};
use crate::schedule::ScheduleKind;

impl Config {
    /// Refuse values that make no sense, naming the field.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Input(what));
        if self.model.condition == Conditioning::Image {
            self.model.encoder.check()?;
        }
        self.model.denoiser.check(self.sizes().tokens)?;
        self.check_ranges().map_err(Error::Input)?;
        self.augment.check()?;
        let t = &self.train;
        if !t.batch.is_multiple_of(t.accumulate) {
            return wrong(format!(
                "train.batch = {} must be a multiple of train.accumulate = {}",
                t.batch, t.accumulate
            ));
        }
        if t.batch < t.accumulate * t.shards {
            return wrong(format!(
                "train.batch = {} is less than train.shards = {} of train.accumulate = {} parts each",
                t.batch, t.shards, t.accumulate
            ));
        }
        if self.data.task != Task::Class {
            let mix = &self.augment.mix;
            if mix.mixup_alpha > 0.0 || mix.cutmix_alpha > 0.0 {
                return wrong(
                    "augment.mix.mixup_alpha and cutmix_alpha mix classes; set them to 0 for captions and text".into(),
                );
            }
            if self.data.tokens == 0 {
                return wrong("data.tokens must be at least 1".into());
            }
        }
        if t.noisy_copies > self.process.steps {
            return wrong(format!(
                "train.noisy_copies = {} distinct timesteps need process.steps of at least that",
                t.noisy_copies
            ));
        }
        if !t.init_from.is_empty() && !self.model.pretrained.is_empty() {
            let what = "train.init_from gives the weights of the whole model, model.pretrained those of its encoder";
            return wrong(format!("{what}; set one of the two"));
        }
        self.check_token_times()?;
        self.check_evidence()?;
        self.check_direct()?;
        self.sample.check_running_mean(self.sizes().tokens)?;
        self.sample.check()
    }

    /// Every number in its range. The upper ends are beyond all use; what they keep out is a slip of the pen.
    fn check_ranges(&self) -> std::result::Result<(), String> {
        const MANY: usize = 1_000_000_000;
        let (data, model, process, loss, t) = (&self.data, &self.model, &self.process, &self.loss, &self.train);
        within("data.val_fraction", data.val_fraction, 0.0..1.0)?;
        within("data.train_limit", data.train_limit, 0..=MANY)?;
        within("data.workers", data.workers, 0..=1024)?;
        within("data.memory", data.memory, 1..=1 << 24)?;
        within("data.lanes", data.lanes, 0..=1 << 16)?;
        within("data.tokens", data.tokens, 0..=1 << 16)?;
        within("model.classes", model.classes, 0..=1 << 24)?;
        within("process.steps", process.steps, 1..=MOST_STEPS)?;
        within("process.lambda", process.lambda, (Excluded(0.0), Included(1.0)))?;
        within("loss.smoothing", loss.smoothing, 0.0..1.0)?;
        within("loss.direct", loss.direct, 0.0..=1e3)?;
        within("loss.pad_weight", loss.pad_weight, 0.0..=1.0)?;
        within("train.epochs", t.epochs, 1..=1_000_000)?;
        within("train.batch", t.batch, 1..=1 << 20)?;
        within("train.accumulate", t.accumulate, 1..=1 << 20)?;
        within("train.shards", t.shards, 0..=1 << 16)?;
        within("train.bucket_mb", t.bucket_mb, 1..=1 << 16)?;
        within("train.noisy_copies", t.noisy_copies, 1..=1 << 16)?;
        within("train.lr", t.lr, (Excluded(0.0), Included(1e18)))?; // one that is too high is for the run to notice
        within("train.min_lr", t.min_lr, 0.0..=1.0)?;
        within("train.warmup_epochs", t.warmup_epochs, 0.0..=1e6)?;
        within("train.weight_decay", t.weight_decay, 0.0..=1e3)?;
        within("train.beta2", t.beta2, 0.0..1.0)?;
        within("train.clip", t.clip, 0.0..=1e9)?;
        within("train.ema", t.ema, 0.0..1.0)?;
        within("train.pure_noise", t.pure_noise, 0.0..=1.0)?;
        within("train.condition_drop", t.condition_drop, 0.0..1.0)?;
        within("train.stagger", t.stagger, 1..=MOST_STAGGER)?;
        within("train.eval_every", t.eval_every, 0..=MANY)?;
        within("train.eval_images", t.eval_images, 0..=MANY)?;
        within("train.checkpoint_every", t.checkpoint_every, 0..=MANY)?;
        within("train.keep", t.keep, 0..=MANY)?;
        within("train.max_skipped", t.max_skipped, 1..=1_000_000_000)?;
        within("train.log_every", t.log_every, 0..=MANY)
    }

    /// Refuse what cannot fit into the memory of this machine: the images and tokens of a batch. A lower bound, so that whatever
    /// may fit is left to be tried.
    pub fn check_memory(&self, device: &Device) -> Result<()> {
        let (t, e, d) = (&self.train, &self.model.encoder, &self.model.denoiser);
        let product = |sizes: &[usize]| sizes.iter().fold(4, |n: u128, s| n.saturating_mul(*s as u128));
        let image = self.model.condition == Conditioning::Image;
        let images = if image { product(&[t.batch, e.channels, e.image, e.image]) } else { 0 };
        fits(format!("a batch of {} images of {1} × {1} pixels", t.batch, e.image), images).map_err(Error::Input)?;
        if matches!(device, Device::Cuda(_)) {
            return Ok(()); // its own memory says so itself
        }
        let (part, copies) = (t.batch / t.accumulate.max(1), self.sizes().tokens.saturating_mul(t.noisy_copies));
        let blocks = |depth: usize| if t.recompute { 1 } else { depth };
        let encoder = if image { product(&[part, e.tokens(), e.width, blocks(e.depth)]) } else { 0 };
        let denoiser = product(&[part, copies, d.width, blocks(d.depth)]);
        let both = images.saturating_add(encoder).saturating_add(denoiser);
        let what =
            format!("a step of train.batch = {}, train.noisy_copies = {} with this network", t.batch, t.noisy_copies);
        fits(what, both).map_err(Error::Input)
    }

    /// What is said of the direct path needs one; the twin of the same settings has none, and none of this.
    fn check_direct(&self) -> Result<()> {
        let (loss, wrong) = (&self.loss, |what: &str| Err(Error::Input(what.into())));
        if self.model.method == Method::Mdd {
            return Ok(());
        }
        let used = loss.direct > 0.0 || loss.encoder_gradient != EncoderGradient::Full;
        if used && !self.model.denoiser.direct {
            return wrong("loss.direct and loss.encoder_gradient need model.denoiser.direct = true");
        }
        if loss.encoder_gradient == EncoderGradient::None && loss.direct == 0.0 && !self.model.freeze_encoder {
            return wrong("loss.encoder_gradient = \"none\" leaves the encoder untrained; set loss.direct = 1");
        }
        Ok(())
    }

    /// Exact evidence is of classes: it has nothing to add to a regressed vector.
    fn check_evidence(&self) -> Result<()> {
        let used = self.model.denoiser.evidence && self.model.method == Method::Tdd;
        if used && self.loss.kind != LossKind::CrossEntropy {
            let what = "model.denoiser.evidence = true goes with loss.kind = \"cross-entropy\"";
            return Err(Error::Input(format!("{what}; a regression has no use for it")));
        }
        Ok(())
    }

    /// Clean and staggered tokens have times of their own, and not every network can tell its tokens one each.
    fn check_token_times(&self) -> Result<()> {
        let (share, stagger) = (self.train.clean_tokens, self.train.stagger);
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Input(format!("train.clean_tokens = {share}: it must lie in [0, 1]")));
        }
        let (clean, staggered) = (self.clean_tokens() > 0.0, self.stagger() > 1);
        let path = self.sample.stagger;
        let setting = match (clean, staggered) {
            (false, false) if path > 1 && self.model.method == Method::Tdd => {
                return Err(Error::Input(format!(
                    "sample.stagger = {path}: all tokens of this model have one time; train it with train.stagger or \
                     train.clean_tokens"
                )));
            }
            (false, false) => return Ok(()),
            (true, true) => {
                let what =
                    "train.clean_tokens and train.stagger each give tokens times of their own; set one of the two";
                return Err(Error::Input(what.into()));
            }
            (true, false) => format!("train.clean_tokens = {share}"),
            (false, true) => format!("train.stagger = {stagger}"),
        };
        let wrong = |why: &str| Err(Error::Input(format!("{setting}: {why}")));
        if clean && self.process.schedule == ScheduleKind::VocabAware {
            // Its first step has a spread of about .15: a token shown there is not clean yet.
            return wrong(
                "clean tokens are shown at the first time, which is still noisy with process.schedule = \"vocab-aware\"",
            );
        }
        if staggered && self.train.pure_noise > 0.0 {
            return wrong("tokens have times of their own, and train.pure_noise goes with one time for all");
        }
        let denoiser = &self.model.denoiser;
        let conditional = self.model.condition == Conditioning::Image;
        if self.sizes().tokens < 2 {
            wrong("with one token there are no others to tell of it; it goes with captions and text")
        } else if denoiser.kind != DenoiserKind::Transformer {
            wrong("it goes with model.denoiser.kind = \"transformer\"")
        } else if conditional && denoiser.condition_attention == ConditionAttention::Full {
            wrong("condition tokens carry the time too; set model.denoiser.condition_attention = \"prefix\"")
        } else {
            Ok(())
        }
    }
}
