//! GPUs for models, one after another. A model has a handle of its own, so that several work at once; when it goes, the next one takes the
//! handle, with the kernels that are loaded and the memory that is cached there. Handles live as long as the process, and a notebook loads
//! models again and again.

use std::sync::{Mutex, PoisonError};

use tweedie::{Device, Result};

/// Handles that no model uses, with why they were chosen.
static IDLE: Mutex<Vec<(Device, String)>> = Mutex::new(Vec::new());

/// A device, handed on when this is dropped: keep it longer than all that lies there.
pub struct Lent {
    /// The device.
    pub device: Device,
    /// Why this one.
    pub reason: String,
}

/// As [`Device::open`], with a handle that is idle, if there is one.
pub fn lend(name: &str) -> Result<Lent> {
    let wanted = if matches!(name, "auto" | "cuda") { "cuda:0" } else { name };
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = idle.iter().position(|(device, _)| device.to_string() == wanted) {
        let (device, reason) = idle.swap_remove(at);
        return Ok(Lent { device, reason });
    }
    drop(idle);
    let choice = Device::open(name)?;
    Ok(Lent { device: choice.device, reason: choice.reason })
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.device != Device::Cpu {
            let own = (self.device.clone(), std::mem::take(&mut self.reason));
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(own);
        }
    }
}
