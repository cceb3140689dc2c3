//! `[process]`.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::process::Process;
use crate::schedule::ScheduleKind;

/// The diffusion process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// Shape of the noise schedule.
    pub schedule: ScheduleKind,
    /// Number of steps T.
    pub steps: usize,
    /// λ of λ-hot labels, in (0, 1].
    pub lambda: f64,
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig { schedule: ScheduleKind::Cosine, steps: 1000, lambda: 1.0 }
    }
}

impl ProcessConfig {
    /// The process of these settings for so many classes.
    pub fn build(&self, vocab: usize) -> Result<Process> {
        Process::of_kind(self.schedule, self.steps, vocab, self.lambda)
    }
}
