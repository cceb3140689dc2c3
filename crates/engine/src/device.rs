//! Where tensors live and ops run.

use std::fmt;

use crate::cuda::Cuda;
use crate::error::{Error, Result};

/// A place to compute.
///
/// ```
/// use tweedie_engine::{DType, Device, Tensor};
///
/// # fn main() -> tweedie_engine::Result<()> {
/// let best = Device::open("auto")?; // the first usable GPU, else the CPU
/// println!("{}: {}", best.device, best.reason);
/// let zeros = Tensor::zeros(&best.device, &[2, 2], DType::F32)?;
/// assert_eq!(zeros.device(), best.device);
/// assert_eq!(zeros.to_device(&Device::Cpu)?.as_f32()?, [0.0; 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq)]
pub enum Device {
    /// This machine's processor, f32.
    Cpu,
    /// An NVIDIA GPU.
    Cuda(Cuda),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Device::Cpu => write!(f, "cpu"),
            Device::Cuda(c) => write!(f, "cuda:{}", c.info().ordinal),
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A device and one sentence on why it was chosen.
pub struct Choice {
    /// The device.
    pub device: Device,
    /// Why this one.
    pub reason: String,
}

impl Device {
    /// A usable GPU, else the CPU.
    pub fn auto() -> Result<Device> {
        Ok(Device::open("auto")?.device)
    }

    /// Open `cpu`, `cuda`, `cuda:N` or `auto`. `auto` takes the first usable GPU, else the CPU, and says why; an
    /// explicit `cuda` never falls back.
    pub fn open(name: &str) -> Result<Choice> {
        let cuda = |n: usize| {
            Cuda::open(n).map(|c| {
                let info = c.info();
                let reason = format!("{}, {:.0} GiB", info.name, info.memory as f64 / (1_u64 << 30) as f64);
                Choice { device: Device::Cuda(c), reason }
            })
        };
        match name {
            "cpu" => Ok(Choice { device: Device::Cpu, reason: format!("{} threads", crate::cpu::threads()) }),
            "auto" => Ok(cuda(0).unwrap_or_else(|why| Choice { device: Device::Cpu, reason: why.to_string() })),
            "cuda" => cuda(0),
            _ => match name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                Some(n) => cuda(n),
                None => Err(Error::op("device", format!("'{name}' is not a device; use auto, cpu, cuda or cuda:N"))),
            },
        }
    }

    /// Wait until everything queued on this device is done.
    pub fn synchronize(&self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(c) => c.synchronize(),
        }
    }

    /// The algorithms that matrix products were computed with so far, as text; a CPU has no choice of them. A run that keeps it
    /// and gives it to [`Device::import_products`] before it goes on computes the same bits.
    pub fn export_products(&self) -> Option<String> {
        match self {
            Device::Cpu => None,
            Device::Cuda(c) => Some(c.export_products()),
        }
    }

    /// Compute matrix products by these algorithms. An error where the text is damaged or from another GPU, driver or library:
    /// then they are chosen as if there were none.
    pub fn import_products(&self, text: &str) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(c) => c.import_products(text),
        }
    }

    /// What is to be said about the device's caches on disk; each note is given once.
    pub fn take_notes(&self) -> Vec<String> {
        match self {
            Device::Cpu => Vec::new(),
            Device::Cuda(c) => c.take_notes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_refused_and_cpu_is_always_there() {
        assert!(Device::open("gpu").err().unwrap().to_string().contains("auto, cpu, cuda"));
        assert!(Device::open("cuda:x").is_err());
        assert_eq!(Device::open("cpu").unwrap().device, Device::Cpu);
        assert!(!Device::open("auto").unwrap().reason.is_empty());
    }

    #[test]
    fn an_absent_gpu_is_an_error_not_a_panic() {
        assert!(matches!(Device::open("cuda:4096"), Err(Error::NoCuda(_))));
    }
}
