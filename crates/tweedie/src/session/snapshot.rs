//! A training as a checkpoint, and back.

use std::path::Path;

use tweedie_engine::Params;

use crate::checkpoint::{self, Snapshot, State};
use crate::config::Optimizer;
use crate::error::{Error, Result};
use crate::run::{Named, TOKENIZER_CLASSES, check_tokenizer, set_weights};
use crate::tensors::NamedTensor;
use crate::train::Trainer;

/// Name of the optimizer's counters in `state.json`.
const OPTIMIZER_STATE: &str = "optimizer";
/// Name there of the setting whose moments the checkpoint holds; one without it is AdamW's.
const OPTIMIZER_KIND: &str = "train.optimizer";
/// Name there of the number of shards, where gradients are summed by them.
const SHARDS: &str = "train.shards";
/// Name of the step of the best evaluation there.
const BEST_STEP: &str = "best_step";

fn named(params: &Params, prefix: &str, flat: Option<&tweedie_engine::Tensor>) -> Result<Vec<NamedTensor<'static>>> {
    let mut all = Vec::new();
    for (name, shape, id) in params.iter() {
        let t = flat.map_or_else(|| Ok(params.value(id)), |f| params.part(f, id))?;
        all.push(NamedTensor::new(format!("{prefix}{name}"), shape, t.to_vec()?));
    }
    Ok(all)
}

/// Everything needed to go on bit for bit. With `train.shard_optimizer` all ranks call this.
pub fn snapshot(t: &Trainer) -> Result<Snapshot<'static>> {
    let params = &t.trained.model.params;
    let mut optimizer = Vec::new();
    let (mut ema, mut extra) = (None, serde_json::Map::new());
    for (name, _) in t.optimizer().buffer_lens() {
        let flat = &t.optimizer().whole(name)?;
        match name {
            "ema" => ema = Some(named(params, "", Some(flat))?),
            "state" => {
                extra.insert(OPTIMIZER_STATE.into(), serde_json::json!(flat.to_vec()?));
            }
            _ => optimizer.extend(named(params, &format!("{name}."), Some(flat))?),
        }
    }
    extra.insert(BEST_STEP.into(), t.best_step().into());
    extra.insert(OPTIMIZER_KIND.into(), serde_json::json!(t.config.train.optimizer));
    if t.config.train.shards > 0 {
        extra.insert(SHARDS.into(), t.config.train.shards.into());
    }
    if let Some(tokenizer) = &t.trained.tokenizer {
        extra.insert(TOKENIZER_CLASSES.into(), tokenizer.vocab().into());
    }
    let stats = t.optimizer().stats()?;
    let batches = (t.total_steps() / t.config.train.epochs).max(1);
    let state = State {
        step: t.step() as u64,
        epoch: (t.step() / batches) as u64,
        batch: (t.step() % batches) as u64,
        seed: t.config.seed,
        // More is better, as in every run before: bits are noted with a minus.
        best: Some(t.best().map_or(0.0, |b| b.score())),
        classes: t.trained.class_names.clone(),
        skipped: stats.skipped as u64,
        extra,
    };
    Ok(Snapshot { state, model: named(params, "", None)?, ema, optimizer })
}

/// Put a trainer where the checkpoint at `path` left off.
pub fn restore(t: &mut Trainer, path: &Path) -> Result<()> {
    restore_from(t, path, checkpoint::load(path)?)
}

/// Put a trainer where a checkpoint left off that was read from `path`, as by [`checkpoint::load_latest`].
pub fn restore_from(t: &mut Trainer, path: &Path, s: Snapshot<'static>) -> Result<()> {
    if s.state.classes != t.trained.class_names {
        return Err(Error::Input(format!("{}: its classes are not those of the data", path.display())));
    }
    if let Some(tokenizer) = &t.trained.tokenizer {
        let name = format!("{}: the tokenizer at hand", path.display());
        check_tokenizer(&name, tokenizer, &s.state, t.config.model.classes)?;
    }
    let was = s.state.extra.get(OPTIMIZER_KIND).cloned().unwrap_or_else(|| serde_json::json!(Optimizer::Adamw));
    let now = serde_json::json!(t.config.train.optimizer);
    if was != now {
        let what = format!("its moments belong to train.optimizer = {was}, which is {now} now");
        return Err(Error::Input(format!("{}: {what}; go on with {was}, or begin a new run", path.display())));
    }
    let was = s.state.extra.get(SHARDS).and_then(|v| v.as_u64()).unwrap_or(0);
    let now = t.config.train.shards as u64;
    if was != now {
        let what = format!(
            "it was written with train.shards = {was}, which is {now} now: another number of shards than before"
        );
        return Err(Error::Input(format!("{}: {what}; go on with {was}, or begin a new run", path.display())));
    }
    set_weights(&mut t.trained.model.params, Named::new(path, s.model))?;
    let mut optimizer = Named::new(path, s.optimizer);
    let mut ema = s.ema.map(|e| Named::new(path, e));
    for (name, length) in t.optimizer().buffer_lens() {
        let mut take = |n: &str, shape: &[usize]| match name {
            "ema" => match &mut ema {
                Some(e) => e.take(n, shape),
                None => Err(Error::Input(format!("{}: it holds no averaged weights", path.display()))),
            },
            _ => optimizer.take(&format!("{name}.{n}"), shape),
        };
        let values = match name {
            "state" => {
                let v = s.state.extra.get(OPTIMIZER_STATE).cloned().unwrap_or_default();
                let counters: Vec<Option<f32>> = serde_json::from_value(v)
                    .map_err(|e| Error::Input(format!("{}: optimizer counters: {e}", path.display())))?;
                if counters.len() != length {
                    let wrong = format!("{} optimizer counters, {length} are expected", counters.len());
                    return Err(Error::Input(format!("{}: {wrong}", path.display())));
                }
                // JSON has null for the norm of a gradient that was not finite.
                counters.into_iter().map(|c| c.unwrap_or(f32::NAN)).collect()
            }
            _ => {
                let mut failed = None;
                let flat = t.trained.model.params.flatten(|n, shape| {
                    take(n, shape).or_else(|e| {
                        failed.get_or_insert(e);
                        Ok(vec![0.0; shape.iter().product()])
                    })
                })?;
                if let Some(e) = failed {
                    return Err(e);
                }
                flat
            }
        };
        t.optimizer_mut().restore(name, values)?;
    }
    let best_step = s.state.extra.get(BEST_STEP).and_then(|v| v.as_u64()).unwrap_or(0);
    let best = s.state.best.map(|score| (t.metric(0.0).with_score(score), best_step as usize));
    t.set_position(s.state.step as usize, best.filter(|b| b.1 > 0));
    Ok(())
}
