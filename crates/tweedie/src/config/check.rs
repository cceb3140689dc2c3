//! Values that make no sense.

use super::Config;
use crate::data::Task;
use crate::error::{Error, Result};
use crate::model::{ConditionAttention, Conditioning, DenoiserKind};
use crate::schedule::ScheduleKind;

impl Config {
    /// Refuse values that make no sense, naming the field.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Input(what));
        if self.model.condition == Conditioning::Image {
            self.model.encoder.check()?;
        }
        self.model.denoiser.check(self.sizes().tokens)?;
        let t = &self.train;
        for (name, v) in [("epochs", t.epochs), ("batch", t.batch), ("kfold", t.kfold), ("accumulate", t.accumulate)] {
            if v == 0 {
                return wrong(format!("train.{name} must be at least 1"));
            }
        }
        if !t.batch.is_multiple_of(t.accumulate) {
            return wrong(format!(
                "train.batch = {} must be a multiple of train.accumulate = {}",
                t.batch, t.accumulate
            ));
        }
        if self.data.task != Task::Class {
            let mix = &self.augment.mix;
            if mix.mixup_alpha > 0.0 || mix.cutmix_alpha > 0.0 {
                return wrong("augment.mix mixes classes; set its alphas to 0 for captions and text".into());
            }
            if self.data.tokens == 0 {
                return wrong("data.tokens must be at least 1".into());
            }
        }
        if t.kfold > self.process.steps {
            return wrong(format!("train.kfold = {} distinct timesteps need process.steps of at least that", t.kfold));
        }
        for (name, v) in [("condition_drop", t.condition_drop), ("ema", t.ema), ("min_lr", t.min_lr)] {
            if !(0.0..1.0).contains(&v) {
                return wrong(format!("train.{name} = {v} must lie in [0, 1)"));
            }
        }
        self.check_known()?;
        if !(t.lr > 0.0 && t.lr.is_finite()) {
            return wrong(format!("train.lr = {} must be positive", t.lr));
        }
        if !(self.process.lambda > 0.0 && self.process.lambda <= 1.0) {
            return wrong(format!("process.lambda = {} must lie in (0, 1]", self.process.lambda));
        }
        if !(0.0..1.0).contains(&self.loss.smoothing) {
            return wrong(format!("loss.smoothing = {} must lie in [0, 1)", self.loss.smoothing));
        }
        if !(0.0..=1.0).contains(&self.loss.pad_weight) {
            return wrong(format!("loss.pad_weight = {} must lie in [0, 1]", self.loss.pad_weight));
        }
        if self.process.steps == 0 {
            return wrong("process.steps = 0 must be at least 1".into());
        }
        if !(0.0..1.0).contains(&self.data.val_fraction) {
            return wrong(format!("data.val_fraction = {} must lie in [0, 1)", self.data.val_fraction));
        }
        self.sample.check()
    }

    /// Tokens that are known have a time of their own, which not every network can tell its tokens.
    fn check_known(&self) -> Result<()> {
        let known = self.train.known;
        let wrong = |why: &str| Err(Error::Input(format!("train.known = {known}: {why}")));
        if !(0.0..=1.0).contains(&known) {
            return wrong("it must lie in [0, 1]");
        }
        if self.known() == 0.0 {
            return Ok(());
        }
        if self.process.schedule == ScheduleKind::VocabAware {
            // Its first step has a spread of about .15: a token shown there is not known yet.
            return wrong(
                "known tokens are shown at the first time, which is still noisy with process.schedule = \"vocab-aware\"",
            );
        }
        let denoiser = &self.model.denoiser;
        let conditional = self.model.condition == Conditioning::Image;
        if self.sizes().tokens < 2 {
            wrong("one token leaves nothing to be told by others; it goes with captions and text")
        } else if denoiser.kind != DenoiserKind::Transformer {
            wrong("it goes with model.denoiser.kind = \"transformer\"")
        } else if conditional && denoiser.condition_attention == ConditionAttention::Full {
            wrong("condition tokens carry the time too; set model.denoiser.condition_attention = \"prefix\"")
        } else {
            Ok(())
        }
    }
}
