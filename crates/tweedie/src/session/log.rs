//! What happens in a run, into its files: `metrics.jsonl`, TensorBoard's events.

use crate::error::Result;
use crate::files::write_atomic;
use crate::run_dir::{Metrics, RunDir};
use crate::tensorboard::EventWriter;
use crate::train::{Event, Metric};

/// Writes events down. Lines of metrics that cannot be written wait; curves for TensorBoard are given up.
pub(super) struct Log {
    metrics: Metrics,
    board: Option<EventWriter>,
}

impl Log {
    /// Start the files of a run, or go on with those of one that was `resumed` at a step.
    pub fn open(dir: &RunDir, resumed: Option<u64>) -> Result<Log> {
        let (metrics, board) = (dir.metrics(resumed)?, EventWriter::create(dir.path(), resumed)?);
        Ok(Log { metrics, board: Some(board) })
    }

    /// Go on in another folder, with the lines so far.
    pub fn moved(&self, to: &RunDir, step: u64) -> Result<Log> {
        write_atomic(&to.metrics_path(), &self.metrics.contents()?)?;
        Log::open(to, Some(step))
    }

    /// Note an event. What cannot be written now is tried again by [`Log::sync`], which says so.
    pub fn take(&mut self, event: &Event) {
        let _ = self.metrics.append(event);
        if self.board.as_mut().is_some_and(|b| draw(b, event).is_err()) {
            self.board = None; // half a record may be in the file: what follows it would not be read
        }
    }

    /// Make what was logged durable, or say why it could not be.
    pub fn sync(&mut self) -> Result<()> {
        self.metrics.sync()?;
        if self.board.as_mut().is_some_and(|b| b.flush().is_err()) {
            self.board = None;
        }
        Ok(())
    }
}

/// Add an event to the curves.
fn draw(board: &mut EventWriter, event: &Event) -> Result<()> {
    match event {
        Event::Step(s) => board.scalars(
            &[
                ("train/loss", s.loss),
                ("train/lr", s.lr),
                ("train/grad_norm", s.grad_norm),
                ("train/images_per_second", s.images_per_second as f32),
            ],
            s.step as u64,
        ),
        Event::Eval(e) => {
            let (raw, ema) = match e.score.name {
                Metric::TOP1 => ("eval/top1", "eval/top1_ema"),
                Metric::CIDER_D => ("eval/cider_d", "eval/cider_d_ema"),
                _ => ("eval/bits_per_token", "eval/bits_per_token_ema"),
            };
            let mut all = vec![(raw, e.score.value as f32)];
            all.extend(e.nll.map(|n| ("eval/nll", n as f32)));
            all.extend(e.ema.map(|m| (ema, m.value as f32)));
            all.extend(e.exact.map(|x| ("eval/exact", x as f32)));
            board.scalars(&all, e.step as u64)
        }
        Event::Saved(_) | Event::Skipped(_) | Event::Warning(_) => Ok(()),
    }
}
