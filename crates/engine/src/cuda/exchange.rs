//! Memory of a GPU shared with other libraries of the process: PyTorch hands tensors over and takes them, without a way through the
//! host. All use the device's primary context, so that an address means the same to each.
//!
//! Other libraries call from threads of their own, while the thread that owns the device may be recording a graph. So nothing here
//! touches the stream of kernels but [`Cuda::moment`] and [`Cuda::copy_of`], which are the owner's to call.

use cudarc::driver::sys;

use super::graph::RECORDING;
use super::{BOUND, Cuda, cu, lock};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// A point in the stream of kernels, for streams of others to wait for.
pub struct Moment {
    event: sys::CUevent,
    device: Cuda,
}

// SAFETY: events are driver objects that any thread may use once the context is bound there, which every method does.
unsafe impl Send for Moment {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Moment {}

impl Moment {
    /// Have the stream `other` (1: the legacy default one, 2: that of each thread) wait until it has come.
    pub fn hold(&self, other: u64) -> Result<()> {
        self.device.within(|| cu!(cuStreamWaitEvent(other as sys::CUstream, self.event, 0)))
    }

    /// The values of an f32 tensor, once this moment has come.
    pub fn values(&self, tensor: &Tensor) -> Result<Vec<f32>> {
        if tensor.dtype() != DType::F32 || tensor.cuda_device() != Some(&self.device) {
            return Err(Error::op("values", format!("{tensor:?} is not f32 on this device")));
        }
        let mut values = vec![0.0_f32; tensor.len()];
        if values.is_empty() {
            return Ok(values);
        }
        self.device.within(|| {
            let (copies, bytes) = (self.device.copies()?, std::mem::size_of_val(&values[..]));
            cu!(cuStreamWaitEvent(copies, self.event, 0))?;
            cu!(cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), tensor.ptr(), bytes, copies))?;
            cu!(cuStreamSynchronize(copies))
        })?;
        Ok(values)
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        // The driver frees it once it has passed. Errors at this point have no one to go to.
        let _ = self.device.within(|| cu!(cuEventDestroy_v2(self.event)));
    }
}

impl Cuda {
    /// Run `f` with the context current on this thread. Afterwards the thread has the one that it had before: other libraries ask
    /// the driver which device is theirs.
    fn within<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        cu!(cuCtxPushCurrent_v2(self.0.context))?;
        let done = f();
        let mut popped = std::ptr::null_mut();
        let ended = cu!(cuCtxPopCurrent_v2(&mut popped));
        BOUND.set(std::ptr::null_mut());
        let done = done?;
        ended.map(|()| done)
    }

    /// A stream for others to have wait until what they hand over is written: its driver's handle. Kernels do not run on it.
    pub fn exchange_stream(&self) -> Result<u64> {
        self.within(|| self.copies()).map(|s| s as u64)
    }

    /// The point behind all that is queued so far. Not while a graph is captured.
    pub fn moment(&self) -> Result<Moment> {
        if self.is_capturing() {
            return Err(Error::op("moment", "nothing is handed over while a graph is captured"));
        }
        self.within(|| {
            let mut event = std::ptr::null_mut();
            cu!(cuEventCreate(&mut event, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
            let moment = Moment { event, device: self.clone() };
            cu!(cuEventRecord(event, self.0.stream))?;
            Ok(moment)
        })
    }

    /// Wait for the work of all streams of this device, whoever queued it.
    pub fn synchronize_all(&self) -> Result<()> {
        let _alone = lock(&RECORDING);
        self.within(|| cu!(cuCtxSynchronize()))
    }

    /// A copy of what lies at `address` on this device, row-major. The work is done when this returns.
    ///
    /// # Safety
    /// As many elements as `shape` says lie at `address`, on this device, and nothing writes to them before this returns; what was to
    /// write them is done, or [`Cuda::exchange_stream`] was made to wait for it.
    pub unsafe fn copy_of(&self, address: u64, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let made = Tensor::cuda(self, shape, dtype)?;
        if made.is_empty() {
            return Ok(made);
        }
        // The allocator hands out memory that kernels queued before may still be using.
        let free = self.moment()?;
        self.within(|| {
            let copies = self.copies()?;
            cu!(cuStreamWaitEvent(copies, free.event, 0))?;
            cu!(cuMemcpyDtoDAsync_v2(made.ptr(), address, made.len() * dtype.size(), copies))?;
            cu!(cuStreamSynchronize(copies))
        })?;
        Ok(made)
    }
}

impl Tensor {
    /// Its address on a GPU; none on the CPU.
    pub fn device_address(&self) -> Option<u64> {
        self.cuda_device().map(|_| self.ptr())
    }
}
