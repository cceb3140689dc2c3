//! Flags of every command that uses a trained model: which run, which of its weights, where, and how to print.

use std::path::{Path, PathBuf};

use tweedie::config::Precision;
use tweedie::run::{self, Loaded, Weights};

use crate::failure::Result;
use crate::report::{self, note};

#[derive(clap::Args)]
pub struct ModelArgs {
    /// Run folder, one checkpoint in it, a file that export wrote, or a model that comes with the program: embedded:NAME
    pub run: PathBuf,
    /// The weights as trained, not their average
    #[arg(long, display_order = 900)]
    raw: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_name = "D", display_order = 901)]
    device: String,
    /// Print JSON
    #[arg(long, display_order = 902)]
    pub json: bool,
}

impl ModelArgs {
    /// Open the device and the run, and say on stderr what there is to know about them.
    pub fn load(&self) -> Result<Loaded> {
        self.load_run(&self.run)
    }

    /// As [`ModelArgs::load`], computing in `precision`.
    pub fn load_as(&self, precision: Precision) -> Result<Loaded> {
        self.load_run_as(&self.run, precision)
    }

    /// Another run, by the same flags.
    pub fn load_run(&self, run: &Path) -> Result<Loaded> {
        self.load_run_as(run, Precision::Auto)
    }

    fn load_run_as(&self, run: &Path, precision: Precision) -> Result<Loaded> {
        let choice = report::open_device(&self.device)?;
        let loaded = run::load(run, self.weights(), &choice.device, precision)?;
        loaded.notes.iter().for_each(|n| note(n));
        Ok(loaded)
    }

    /// Those that are used.
    pub fn weights(&self) -> Weights {
        if self.raw { Weights::Raw } else { Weights::Ema }
    }

    /// Probabilities whose temperature was never fitted are told of as such.
    pub fn say_if_uncalibrated(&self, loaded: &Loaded) {
        if loaded.trained.temperature.is_none() {
            let (run, raw) = (self.run.display(), if self.raw { " --raw" } else { "" });
            note(&format!(
                "note: no temperature was fitted for these weights, probabilities are the network's own; to fit one: tweedie eval {run}{raw} \
                 --calibrate"
            ));
        }
    }
}
