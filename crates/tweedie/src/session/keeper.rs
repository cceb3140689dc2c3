//! Keeps a training on disk while it goes on: events, checkpoints, previews.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::card;
use super::log::Log;
use super::snapshot::snapshot;
use super::{Preview, write_start};
use crate::checkpoint::{self, Snapshot};
use crate::data::Fingerprint;
use crate::error::{Error, Result};
use crate::peers::Peers;
use crate::run_dir::RunDir;
use crate::train::{Event, Trainer, WarningEvent};

/// How long to wait before a checkpoint that could not be written is tried again, time after time.
const WAITS: [Duration; 3] = [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// What became of a checkpoint, as the first rank tells it.
#[derive(Clone, Serialize, Deserialize)]
enum Verdict {
    Saved(String),
    NotFinite { place: String, tensor: String },
    Failed(String),
}

/// What the first rank says of its `result`, at all of them.
fn verdict(peers: &Peers, result: Result<String>) -> Result<String> {
    if let Err(Error::Engine(e @ tweedie_engine::Error::Comm { .. })) = result {
        return Err(e.into()); // there is nobody to tell
    }
    let mine = match &result {
        Ok(path) => Verdict::Saved(path.clone()),
        Err(Error::NotFinite { place, tensor }) => Verdict::NotFinite { place: place.clone(), tensor: tensor.clone() },
        Err(e) => Verdict::Failed(e.to_string()),
    };
    let first = peers.tell(&mine)?.into_iter().next();
    match first {
        _ if peers.is_first() => result,
        Some(Verdict::Saved(path)) => Ok(path),
        Some(Verdict::NotFinite { place, tensor }) => Err(Error::NotFinite { place, tensor }),
        Some(Verdict::Failed(message)) => Err(Error::Rank { rank: 0, message, fatal: false }),
        None => Err(Error::Input("no rank says what became of a checkpoint".into())),
    }
}

/// What a training needs to be kept.
pub(super) struct Keeper<'a> {
    pub dir: &'a mut RunDir,
    pub data: &'a Fingerprint,
    /// None where another rank writes.
    pub log: Option<Log>,
    pub each: &'a mut dyn FnMut(&Event),
    pub preview: &'a mut Option<Preview>,
    /// The newest checkpoint.
    pub saved: Option<PathBuf>,
    /// Why the last look at samples was not drawn.
    pub undrawn: Option<Error>,
}

impl Keeper<'_> {
    pub fn tell(&mut self, event: &Event) {
        if let Some(log) = &mut self.log {
            (self.each)(event);
            log.take(event);
        }
    }

    /// Make what was logged durable.
    pub fn sync(&mut self) -> Result<()> {
        self.log.as_mut().map_or(Ok(()), Log::sync)
    }

    pub fn warn(&mut self, step: usize, message: String) {
        self.tell(&Event::Warning(WarningEvent { step, message }));
    }

    /// Write a checkpoint of finite values and give its path. Of several ranks the first writes it, and all get what came of it.
    pub fn save(&mut self, t: &mut Trainer, best: bool) -> Result<String> {
        if !t.peers().are_several() {
            let snapshot = snapshot(t)?;
            return self.save_snapshot(t, snapshot, best);
        }
        t.optimizer_mut().hold_ema()?; // the first rank draws samples of it alone
        let peers = t.peers().clone();
        let result = match peers.is_first() {
            // A sum that failed on the way is known by now: its gradients are in these weights.
            true => snapshot(t).and_then(|s| peers.check().and_then(|()| self.save_snapshot(t, s, best))),
            false => t
                .optimizer()
                .buffer_lens()
                .iter()
                .try_for_each(|(name, _)| Ok(t.optimizer().whole(name).map(drop)?))
                .map(|()| String::new()),
        };
        t.optimizer_mut().release_ema();
        verdict(&peers, result)
    }

    /// After some tries if need be.
    fn save_snapshot(&mut self, t: &mut Trainer, snapshot: Snapshot, best: bool) -> Result<String> {
        snapshot.check_finite(&self.dir.checkpoints())?;
        let mut waits = WAITS.iter();
        let path = loop {
            match self.stay_in_place(t).and_then(|()| self.write(t, &snapshot, best)) {
                Ok(path) => break path,
                Err(e) => std::thread::sleep(*waits.next().ok_or(e)?),
            }
        };
        self.prune(t, &path);
        if best && let Err(e) = card::write(self.dir, t, self.data) {
            self.warn(t.step(), format!("the model card was not written: {e}"));
        }
        self.saved = Some(path.clone());
        let samples = self.dir.samples();
        self.undrawn = self.preview.as_mut().and_then(|p| p(t, &samples).err());
        Ok(path.display().to_string())
    }

    fn write(&mut self, t: &Trainer, snapshot: &Snapshot, best: bool) -> Result<PathBuf> {
        // A checkpoint is never ahead of the metrics: a resumed run does not write those again.
        self.sync()?;
        if let Some(products) = t.trained.model.device().export_products() {
            self.dir.write_products(&products)?;
        }
        let checkpoints = self.dir.checkpoints();
        let path = checkpoint::save(&checkpoints, snapshot)?;
        if best {
            checkpoint::link_best(&checkpoints, &path)?;
        }
        Ok(path)
    }

    /// Remove old checkpoints, unless the newest came of a step without a finite gradient: it may be of no use. One that cannot be
    /// removed is told.
    fn prune(&mut self, t: &Trainer, newest: &Path) {
        if t.optimizer().stats().is_ok_and(|s| s.skipped_in_a_row > 0) {
            return;
        }
        let (checkpoints, keep) = (self.dir.checkpoints(), t.config.train.keep);
        let pruned = checkpoint::best(&checkpoints).and_then(|best| {
            let spared: Vec<&Path> = best.as_deref().into_iter().chain([newest]).collect();
            checkpoint::prune(&checkpoints, keep, &spared)
        });
        if let Err(e) = pruned {
            self.warn(t.step(), format!("old checkpoints were not removed: {e}"));
        }
    }

    /// Where the folder of the run is gone from its place, go on in a new one beside it, which has all that a run needs.
    fn stay_in_place(&mut self, t: &Trainer) -> Result<()> {
        if self.dir.is_in_place() {
            return Ok(());
        }
        let lost = self.dir.path().display().to_string();
        let dir = self.dir.beside()?;
        write_start(&dir, t, self.data)?;
        self.log = self.log.as_ref().map(|log| log.moved(&dir, t.step() as u64)).transpose()?;
        let new = dir.path().display().to_string();
        *self.dir = dir;
        self.warn(
            t.step(),
            format!(
                "{lost} was moved, deleted or replaced while the training went on; it goes on in {new}, with settings, metrics \
                 and all checkpoints from now on; go on with: tweedie train --resume {new}"
            ),
        );
        Ok(())
    }
}
