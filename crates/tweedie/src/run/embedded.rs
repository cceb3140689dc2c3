//! Trained models that come with the program: digits, captions of drawn scenes, and Shakespeare's characters, each as TDD and as its
//! masked twin. Whatever opens a run takes `embedded:NAME` too.
//!
//! ```
//! use tweedie::{Classifier, Dataset};
//!
//! let digits = Dataset::embedded("digits")?;
//! let example = digits.final_split()?.0.get(0)?;
//! let answer = Classifier::open("embedded:digits")?.classify(&example.image)?;
//! println!("{}", answer.top(3));
//! # Ok::<(), tweedie::Error>(())
//! ```

use std::path::Path;

use tweedie_engine::Device;
pub use tweedie_models::{Embedded, Quality, SHAKESPEARE};

use crate::config::Precision;
use crate::error::{Error, Result};
use crate::run_dir::EMBEDDED;

use super::{Loaded, model_file};

/// What comes before the name in a path.
pub const PREFIX: &str = EMBEDDED;

/// All of them, with their names, what they are, and how good.
pub fn all() -> &'static [Embedded] {
    tweedie_models::MODELS
}

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().iter().map(|m| m.name)
}

/// The name in a path of the form `embedded:NAME`.
pub fn name_in(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(PREFIX)
}

/// A model by its name.
pub fn load(name: &str, device: &Device, precision: Precision) -> Result<Loaded> {
    let model = all().iter().find(|m| m.name == name).ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        Error::Input(format!("there is no embedded model '{name}'; there are {}", names.join(", ")))
    })?;
    model_file::read(format!("{PREFIX}{name}"), model.bytes, device, precision)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::data::Task;
    use crate::run;
    use crate::run::Weights;

    fn load_it(name: &str) -> Loaded {
        load(name, &Device::Cpu, Precision::Auto).unwrap()
    }

    #[test]
    fn each_is_small_quick_to_load_and_what_its_name_says() {
        for m in all() {
            assert!(m.bytes.len() < 2_300_000, "{}: {} bytes", m.name, m.bytes.len());
            let timed = |_| {
                let start = Instant::now();
                load_it(m.name);
                start.elapsed()
            };
            let quickest = (0..3).map(timed).min().unwrap();
            assert!(quickest < Duration::from_secs(1), "{}: {quickest:?}", m.name);
            let loaded = load_it(m.name);
            let (data, twin) = m.name.strip_suffix("-mdd").map_or((m.name, false), |data| (data, true));
            assert_eq!(loaded.trained.model.is_tdd(), !twin, "{}", m.name);
            let (task, is_so) = match data {
                "digits" => (Task::Class, matches!(m.quality, Quality::Accuracy(p) if p >= 97.0)),
                "shapes" => (Task::Caption, matches!(m.quality, Quality::Exact(p) if p >= 98.0)),
                _ => (Task::Text, matches!(m.quality, Quality::Bits(b) if b < 3.0)),
            };
            assert!(loaded.trained.task() == task && is_so && loaded.step > 0, "{}: {:?}", m.name, m.quality);
            assert_eq!(loaded.trained.temperature.is_some(), task == Task::Class, "{}", m.name);
            assert!(loaded.config.data.path.is_empty() || loaded.config.data.path.starts_with(PREFIX));
        }
    }

    #[test]
    fn there_are_three_and_their_twins() {
        let all: Vec<&str> = names().collect();
        assert_eq!(all, ["digits", "digits-mdd", "shapes", "shapes-mdd", "shakespeare", "shakespeare-mdd"]);
        let open = |path: &str, w| run::load(Path::new(path), w, &Device::Cpu, Precision::Auto);
        assert_eq!(open("embedded:digits", Weights::Ema).unwrap().checkpoint, Path::new("embedded:digits"));
        let why = |path, w| open(path, w).err().unwrap().to_string();
        let unknown = why("embedded:faces", Weights::Ema);
        assert!(unknown.contains("'faces'") && all.iter().all(|n| unknown.contains(n)), "{unknown}");
        assert!(why("embedded:digits", Weights::Raw).contains("averaged"));
    }
}
