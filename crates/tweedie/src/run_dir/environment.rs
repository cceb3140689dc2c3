//! What a run was started with and on.

use std::collections::BTreeMap;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What a run was started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// The command line.
    pub command: Vec<String>,
    /// The device, in words.
    pub device: String,
    /// Threads of computation.
    pub threads: usize,
    /// Operating system and processor.
    pub os: String,
    /// When, in UTC.
    pub time: String,
    /// How the program was built. Runs of older programs say nothing of this and of what follows.
    #[serde(default)]
    pub build: Build,
    /// Model of the processor.
    #[serde(default)]
    pub cpu: String,
    /// Model of the GPU that the run is on; empty on a CPU.
    #[serde(default)]
    pub gpu: String,
    /// Versions of CUDA's libraries where they are there: `driver`, `kernel driver`, `nvrtc`, `cublaslt`.
    #[serde(default)]
    pub libraries: BTreeMap<String, String>,
    /// Where its weights came from, if it did not start cold (`train.init_from`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFrom>,
}

/// The weights that a run started from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InitFrom {
    /// Folder of the run that they are of, as an absolute path.
    pub run: String,
    /// Its checkpoint, such as `step-00001234`.
    pub checkpoint: String,
    /// Optimizer steps behind them.
    pub step: u64,
    /// `ema` or `raw`.
    pub weights: String,
    /// That of the checkpoint's `state.json`, to know it again.
    pub crc32c: u32,
}

/// How this program was built.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// The compiler, as `rustc --version` says it.
    pub rustc: String,
    /// What it was built for, such as `x86_64-unknown-linux-gnu`.
    pub target: String,
    /// `release` or `debug`.
    pub profile: String,
    /// Features of the crate, with commas between.
    pub features: String,
    /// The commit that was checked out, if it was built in a repository. Changes on top of it are not seen.
    pub commit: String,
}

impl Build {
    /// This program.
    pub fn this() -> Build {
        Build {
            rustc: env!("BUILD_OF_TWEEDIE_RUSTC").into(),
            target: env!("BUILD_OF_TWEEDIE_TARGET").into(),
            profile: env!("BUILD_OF_TWEEDIE_PROFILE").into(),
            features: env!("BUILD_OF_TWEEDIE_FEATURES").into(),
            commit: env!("BUILD_OF_TWEEDIE_COMMIT").into(),
        }
    }
}

/// The processor, as the system names it.
fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = text.lines().filter_map(|l| l.split_once(':')).find(|(k, _)| k.trim() == "model name");
    named.map_or_else(|| std::env::consts::ARCH.into(), |(_, name)| name.trim().into())
}

/// Versions of CUDA's libraries, for a run on a GPU.
fn cuda_libraries() -> BTreeMap<String, String> {
    let found = tweedie_engine::cuda::libraries();
    let all = [("driver", &found.driver), ("nvrtc", &found.nvrtc), ("cublaslt", &found.cublaslt)];
    let version = |(name, f): (&str, &std::result::Result<tweedie_engine::cuda::Found, String>)| {
        f.as_ref().ok().map(|f| (name.to_string(), f.version.clone()))
    };
    let kernel = fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let kernel = kernel.lines().next().map(|l| ("kernel driver".to_string(), l.trim().to_string()));
    all.into_iter().filter_map(version).chain(kernel).collect()
}

impl Environment {
    /// This process, now, on the device of that name.
    pub fn now(device: impl Into<String>, threads: usize) -> Environment {
        let device = device.into();
        let gpu = device.strip_prefix("cuda:").and_then(|n| n.parse::<usize>().ok());
        let gpus = gpu.and_then(|_| tweedie_engine::cuda::devices().ok()).unwrap_or_default();
        Environment {
            version: env!("CARGO_PKG_VERSION").into(),
            command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            build: Build::this(),
            cpu: cpu_model(),
            libraries: if gpu.is_some() { cuda_libraries() } else { BTreeMap::new() },
            gpu: gpu.and_then(|n| gpus.get(n)).map_or_else(String::new, |g| g.name.clone()),
            device,
            threads,
            os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            time: utc(SystemTime::now()),
            init_from: None,
        }
    }
}

/// A moment as RFC 3339, such as `2024-02-29T12:00:00Z`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years that end with a leap day (H. Hinnant, "chrono-compatible algorithms").
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let d = day - (153 * month + 2) / 5 + 1;
    let m = if month < 10 { month + 3 } else { month - 9 };
    let y = era * 400 + year + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // From `date -u -d @N`.
        for (s, t) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_208_000, "2024-02-29T12:00:00Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(s)), t);
        }
    }
}
