//! A stream beside that of the kernels, for work that must not hold them up: collectives, and copies to and from the host.

use cudarc::driver::sys::{self, CUresult};

use super::{Cuda, Pinned, check, cu};
use crate::error::{Error, Result};

/// A point in a stream.
pub(crate) struct Mark {
    event: sys::CUevent,
    device: Cuda,
}

// SAFETY: events are driver objects that any thread may use once the context is bound there, which every method does.
unsafe impl Send for Mark {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Mark {}

impl Mark {
    fn on(device: &Cuda, stream: sys::CUstream) -> Result<Mark> {
        if device.is_capturing() {
            return Err(Error::op("mark", "nothing is communicated while a graph is captured"));
        }
        device.bind()?;
        let mut event = std::ptr::null_mut();
        cu!(cuEventCreate(&mut event, 0))?;
        let mark = Mark { event, device: device.clone() };
        cu!(cuEventRecord(mark.event, stream))?;
        Ok(mark)
    }

    /// Whether everything before it is done.
    pub fn is_done(&self) -> Result<bool> {
        self.device.bind()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { sys::cuEventQuery(self.event) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            rc => check("cuEventQuery", rc).map(|()| true),
        }
    }

    /// Milliseconds from `earlier` to this one, both done; negative where that one came later.
    pub fn since(&self, earlier: &Mark) -> Result<f32> {
        self.device.bind()?;
        let mut ms = 0.0;
        cu!(cuEventElapsedTime_v2(&mut ms, earlier.event, self.event))?;
        Ok(ms)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            let _ = cu!(cuEventDestroy_v2(self.event));
        }
    }
}

impl Cuda {
    /// A mark behind all kernels queued so far.
    pub(crate) fn mark(&self) -> Result<Mark> {
        Mark::on(self, self.0.stream)
    }

    /// Kernels queued from now on wait for `mark`; the host does not.
    pub(crate) fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.bind()?;
        cu!(cuStreamWaitEvent(self.0.stream, mark.event, 0))
    }

    /// What tells this GPU from every other in the world.
    pub(crate) fn uuid(&self) -> Result<String> {
        let mut dev = 0;
        cu!(cuDeviceGet(&mut dev, self.info().ordinal as i32))?;
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        cu!(cuDeviceGetUuid_v2(&mut uuid, dev))?;
        Ok(uuid.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect())
    }
}

/// The stream.
pub(crate) struct Side {
    stream: sys::CUstream,
    device: Cuda,
}

// SAFETY: as for marks.
unsafe impl Send for Side {}
// SAFETY: as for marks.
unsafe impl Sync for Side {}

impl Side {
    pub fn new(device: &Cuda) -> Result<Side> {
        device.bind()?;
        let mut stream = std::ptr::null_mut();
        cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(Side { stream, device: device.clone() })
    }

    /// For a library's calls: the stream, with its context bound to this thread.
    pub fn raw(&self) -> Result<*mut std::ffi::c_void> {
        self.device.bind()?;
        Ok(self.stream.cast())
    }

    /// A mark behind all that is queued here.
    pub fn mark(&self) -> Result<Mark> {
        Mark::on(&self.device, self.stream)
    }

    /// What is queued here from now on waits for `mark`.
    pub fn wait_for(&self, mark: &Mark) -> Result<()> {
        self.device.bind()?;
        cu!(cuStreamWaitEvent(self.stream, mark.event, 0))
    }

    /// Page-locked host memory for copies on this stream.
    pub fn pinned(&self, len: usize) -> Result<Pinned> {
        self.device.bind()?;
        Pinned::new(len)
    }

    /// Copy f32 values at `from` on the device to the host; done when this returns.
    pub fn download(&self, from: u64, to: &mut [f32]) -> Result<()> {
        if to.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        cu!(cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, std::mem::size_of_val(to), self.stream))?;
        cu!(cuStreamSynchronize(self.stream))
    }

    /// Copy f32 values of the host to `to` on the device; done when this returns.
    pub fn upload(&self, to: u64, from: &[f32]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        cu!(cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), std::mem::size_of_val(from), self.stream))?;
        cu!(cuStreamSynchronize(self.stream))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            let _ = cu!(cuStreamDestroy_v2(self.stream));
        }
    }
}
