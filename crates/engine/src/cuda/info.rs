//! Which devices there are, and what they can do.

use std::ffi::CStr;

use cudarc::driver::sys::CUdevice_attribute as Attr;

use super::{cu, libraries};
use crate::error::{Error, Result};

/// Facts about a device.
#[derive(Clone, Debug)]
pub struct Info {
    /// Position among the devices.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// Compute capability, e.g. (9, 0).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Memory in bytes.
    pub memory: usize,
    /// L2 cache in bytes.
    pub l2: usize,
    /// Largest shared memory of one block.
    pub shared_per_block: usize,
}

impl Info {
    /// The compiler's name of this chip, e.g. `sm_80`; for Hopper with the instructions that it alone has, `sm_90a`.
    pub fn arch(&self) -> String {
        let only = if self.capability == (9, 0) { "a" } else { "" };
        format!("sm_{}{}{only}", self.capability.0, self.capability.1)
    }
}

/// Facts about every device, without using any of them.
pub fn devices() -> Result<Vec<Info>> {
    libraries().driver.as_ref().map_err(|e| Error::NoCuda(e.clone()))?;
    cu!(cuInit(0)).map_err(|e| Error::NoCuda(format!("the driver does not start: {e}")))?;
    let mut n = 0;
    cu!(cuDeviceGetCount(&mut n))?;
    (0..n).map(device_info).collect()
}

fn device_info(ordinal: i32) -> Result<Info> {
    let mut dev = 0;
    cu!(cuDeviceGet(&mut dev, ordinal))?;
    let mut name = [0_i8; 128];
    cu!(cuDeviceGetName(name.as_mut_ptr().cast(), 127, dev))?;
    let mut memory = 0;
    cu!(cuDeviceTotalMem_v2(&mut memory, dev))?;
    let get = |a: Attr| -> Result<i32> {
        let mut v = 0;
        cu!(cuDeviceGetAttribute(&mut v, a, dev))?;
        Ok(v)
    };
    Ok(Info {
        ordinal: ordinal as usize,
        // SAFETY: the driver wrote a NUL-terminated name of at most 127 bytes.
        name: unsafe { CStr::from_ptr(name.as_ptr().cast()) }.to_string_lossy().into_owned(),
        capability: (
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attr::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: get(Attr::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        memory,
        l2: get(Attr::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        shared_per_block: get(Attr::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
    })
}
