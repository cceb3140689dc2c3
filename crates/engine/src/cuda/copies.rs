//! Copies from the host beside the kernels: a stream of their own, and pinned memory that it reads.
//!
//! A copy from ordinary (pageable) memory waits, in the host's thread, for all kernels queued before it: the device then idles
//! while bytes travel. From pinned memory on another stream they travel while the kernels of the step before still run.

use std::ffi::c_void;

use cudarc::driver::sys;

use super::{Cuda, cu};
use crate::cpu::par;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor, elements};

pub(super) struct Stream(sys::CUstream);

impl Cuda {
    pub(super) fn copies(&self) -> Result<sys::CUstream> {
        if let Some(s) = self.0.copies.get() {
            return Ok(s.0);
        }
        self.bind()?;
        let mut stream = std::ptr::null_mut();
        cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        Ok(self.0.copies.get_or_init(|| Stream(stream)).0)
    }

    /// Copy to `to` past the kernels, which must not use that memory; done when this returns.
    pub(super) fn copy_aside<T: Copy>(&self, to: u64, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let stream = self.copies()?;
        self.bind()?;
        cu!(cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), std::mem::size_of_val(data), stream))?;
        cu!(cuStreamSynchronize(stream))
    }
}

/// An event that nobody times.
struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Event> {
        let mut e = std::ptr::null_mut();
        cu!(cuEventCreate(&mut e, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))?;
        Ok(Event(e))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = cu!(cuEventDestroy_v2(self.0));
    }
}

/// Page-locked host memory of some f32 values.
pub(crate) struct Pinned {
    at: *mut f32,
    len: usize,
}

// SAFETY: plain host memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// The context must be bound.
    pub(super) fn new(len: usize) -> Result<Pinned> {
        let mut at: *mut c_void = std::ptr::null_mut();
        cu!(cuMemAllocHost_v2(&mut at, len.max(1) * 4))?;
        Ok(Pinned { at: at.cast(), len })
    }

    pub fn values(&mut self) -> &mut [f32] {
        // SAFETY: the driver gave `len` aligned values, freed only with `self`; every bit pattern is an f32.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = cu!(cuMemFreeHost(self.at.cast()));
    }
}

struct Slot {
    host: Pinned,
    tensor: Tensor,
    /// On the copy stream, behind the last copy: the host memory may be filled again.
    copied: Event,
    /// On the stream of kernels, behind the last one that reads the tensor: it may be overwritten.
    used: Event,
}

/// Buffers that batches are uploaded through, in turn. What [`Uploads::put`] returns is read by kernels queued before the next
/// call of it; a tensor that is still held then is left alone and replaced by another.
pub struct Uploads {
    device: Cuda,
    slots: Vec<Option<Slot>>,
    /// Where the next batch goes; the one before it may still be in use.
    next: usize,
}

// SAFETY: events are driver objects that any thread may use once the context is bound there, which every method does.
unsafe impl Send for Uploads {}

impl Uploads {
    /// `slots` buffers; two are enough to copy one batch while another is computed on.
    pub fn new(device: &Cuda, slots: usize) -> Uploads {
        Uploads { device: device.clone(), slots: (0..slots.max(2)).map(|_| None).collect(), next: 0 }
    }

    /// Start to copy `data`; kernels queued from now on see it under `shape`.
    pub fn put(&mut self, shape: &[usize], data: &[f32]) -> Result<Tensor> {
        let c = &self.device;
        let len = elements("upload", shape)?;
        if len != data.len() || c.is_capturing() {
            let why = format!("{} values for {shape:?}; nothing is uploaded while a graph is captured", data.len());
            return Err(Error::op("upload", why));
        }
        let copies = c.copies()?;
        c.bind()?;
        let count = self.slots.len();
        // All kernels that read the batch before this one are queued by now.
        if let Some(before) = &self.slots[(self.next + count - 1) % count] {
            cu!(cuEventRecord(before.used.0, c.0.stream))?;
        }
        let place = &mut self.slots[self.next];
        self.next = (self.next + 1) % count;
        let fits = |s: &Slot| s.host.len == len && s.tensor.is_unique();
        if let Some(s) = place.take() {
            cu!(cuEventSynchronize(s.copied.0))?; // also before its host memory is freed
            *place = Some(s).filter(fits);
        }
        let slot = match place {
            Some(s) => s,
            None => {
                let tensor = Tensor::cuda(c, &[len], DType::F32)?;
                let made = Slot { host: Pinned::new(len)?, tensor, copied: Event::new()?, used: Event::new()? };
                // The allocator hands out memory that kernels queued before may still be using.
                cu!(cuEventRecord(made.used.0, c.0.stream))?;
                place.insert(made)
            }
        };
        par::rows(slot.host.values(), 1, 1, |first, part| part.copy_from_slice(&data[first..first + part.len()]));
        cu!(cuStreamWaitEvent(copies, slot.used.0, 0))?;
        cu!(cuMemcpyHtoDAsync_v2(slot.tensor.ptr(), slot.host.at.cast(), len * 4, copies))?;
        cu!(cuEventRecord(slot.copied.0, copies))?;
        cu!(cuStreamWaitEvent(c.0.stream, slot.copied.0, 0))?;
        slot.tensor.reshape(shape)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        // Copies may still read the pinned memory. The tensors' memory is safe: kernels queued later wait for the copies.
        if let Ok(copies) = self.device.copies()
            && self.device.bind().is_ok()
        {
            let _ = cu!(cuStreamSynchronize(copies));
        }
    }
}
