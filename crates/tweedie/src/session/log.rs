//! What happens in a run, into its files: `metrics.jsonl`, TensorBoard's events.

use crate::error::{Error, Result};
use crate::run_dir::{Metrics, RunDir};
use crate::tensorboard::EventWriter;
use crate::train::{Event, Metric};

/// Writes events down. One that cannot be written is an error at the next checkpoint, which may not be ahead of the metrics.
pub(super) struct Log {
    metrics: Metrics,
    board: EventWriter,
    failed: Option<Error>,
}

impl Log {
    /// Start the files of a run, or go on with those of one that was `resumed` at a step.
    pub fn open(dir: &RunDir, resumed: Option<u64>) -> Result<Log> {
        let (metrics, board) = (dir.metrics(resumed)?, EventWriter::create(dir.path(), resumed)?);
        Ok(Log { metrics, board, failed: None })
    }

    pub fn take(&mut self, event: &Event) {
        if let Err(e) = self.metrics.append(event).and_then(|()| self.draw(event)) {
            self.failed.get_or_insert(e);
        }
    }

    fn draw(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Step(s) => self.board.scalars(
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
                self.board.scalars(&all, e.step as u64)
            }
            Event::Saved(_) | Event::Skipped(_) => Ok(()),
        }
    }

    /// Make what was logged durable, or say why it could not be.
    pub fn sync(&mut self) -> Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        self.metrics.sync()?;
        self.board.flush()
    }
}
