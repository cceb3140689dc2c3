//! Memory of a GPU shared with other libraries of the process: PyTorch hands tensors over and takes them, without a way through the
//! host. All use the device's primary context, so that an address means the same to each.

use cudarc::driver::sys;

use super::{Cuda, cu};
use crate::error::Result;
use crate::tensor::{DType, Tensor};

impl Cuda {
    /// The driver's handle of the stream that all work is queued on.
    pub fn stream_handle(&self) -> u64 {
        self.0.stream as u64
    }

    /// Have the stream `other` (1: the legacy default one, 2: that of each thread) wait for all that is queued so far.
    pub fn let_wait(&self, other: u64) -> Result<()> {
        self.bind()?;
        let mut event = std::ptr::null_mut();
        cu!(cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
        let recorded = cu!(cuEventRecord(event, self.0.stream));
        let waits = recorded.and_then(|()| cu!(cuStreamWaitEvent(other as sys::CUstream, event, 0)));
        // The driver frees it once it has passed.
        let destroyed = cu!(cuEventDestroy_v2(event));
        waits.and(destroyed)
    }

    /// Wait for the work of all streams of this device, whoever queued it.
    pub fn synchronize_all(&self) -> Result<()> {
        self.bind()?;
        cu!(cuCtxSynchronize())
    }

    /// A copy of what lies at `address` on this device, row-major. The work is done when this returns.
    ///
    /// # Safety
    /// As many elements as `shape` says lie at `address`, on this device, and nothing writes to them before this returns; what was to
    /// write them is queued on [`Cuda::stream_handle`] or done.
    pub unsafe fn copy_of(&self, address: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let made = Tensor::cuda(self, shape, dtype)?;
        self.bind()?;
        cu!(cuMemcpyDtoDAsync_v2(made.ptr(), address, made.len() * dtype.size(), self.0.stream))?;
        self.synchronize()?;
        Ok(made)
    }
}

impl Tensor {
    /// Its address on a GPU; none on the CPU.
    pub fn device_address(&self) -> Option<u64> {
        self.cuda_device().map(|_| self.ptr())
    }
}
