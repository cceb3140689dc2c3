//! Tensors of the library as Python sees them: by the buffer protocol on the CPU, by DLPack on any device, without a copy. And those
//! of other libraries on a GPU.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tweedie::engine::DType;
use tweedie::engine::cuda::{Cuda, Moment};
use tweedie::{Device, Tensor};

use crate::errors::{raise, value};

/// DLPack's numbers.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// The version of what is handed out where versions are understood, and its flag of memory that is not to be written to.
const VERSION: [u32; 2] = [1, 0];
const READ_ONLY: u64 = 1;

/// The structures of dlpack.h.
#[repr(C)]
struct DlDevice {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct DlManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

#[repr(C)]
struct DlManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What a capsule may hold.
trait Managed: Sized {
    /// Name of a capsule that nobody has taken.
    const FRESH: &CStr;

    fn new(tensor: DlTensor) -> Self;
}

impl Managed for DlManaged {
    const FRESH: &CStr = c"dltensor";

    fn new(tensor: DlTensor) -> DlManaged {
        DlManaged { tensor, context: std::ptr::null_mut(), deleter: Some(delete) }
    }
}

impl Managed for DlManagedVersioned {
    const FRESH: &CStr = c"dltensor_versioned";

    fn new(tensor: DlTensor) -> DlManagedVersioned {
        let (context, flags) = (std::ptr::null_mut(), READ_ONLY);
        DlManagedVersioned { version: VERSION, context, deleter: Some(delete), flags, tensor }
    }
}

/// Name of a capsule without a version that was taken.
const USED: &CStr = c"used_dltensor";

/// What a capsule holds: `managed` first, so that its address is that of the whole.
#[repr(C)]
struct Exported<M> {
    managed: M,
    /// Sizes, then strides.
    sizes: Vec<i64>,
    tensor: Tensor,
}

/// An array of the library, row-major.
#[pyclass(name = "Tensor", module = "tweedie", frozen)]
pub struct PyTensor {
    tensor: Tensor,
    sizes: Vec<isize>,
    strides: Vec<isize>,
    /// On a GPU: when it is written.
    written: Option<Moment>,
}

impl PyTensor {
    /// Of a tensor that the work queued so far writes. On the thread that queued it.
    pub fn new(tensor: Tensor) -> tweedie::Result<PyTensor> {
        let written = match tensor.device() {
            Device::Cpu => None,
            Device::Cuda(c) => Some(c.moment()?),
        };
        let sizes: Vec<isize> = tensor.shape().iter().map(|s| *s as isize).collect();
        let mut strides = vec![tensor.dtype().size() as isize; sizes.len()];
        for i in (1..sizes.len()).rev() {
            strides[i - 1] = strides[i] * sizes[i].max(1);
        }
        Ok(PyTensor { tensor, sizes, strides, written })
    }

    /// The tensor.
    pub fn tensor(&self) -> Tensor {
        self.tensor.clone()
    }

    /// A tensor [rows, …] of which the first `columns` of each row are shown.
    pub fn narrow(tensor: Tensor, columns: usize) -> tweedie::Result<PyTensor> {
        let mut all = PyTensor::new(tensor)?;
        if let Some(last) = all.sizes.last_mut() {
            *last = columns.min(all.tensor.width()) as isize;
        }
        Ok(all)
    }

    /// Whether nothing lies between the rows.
    fn is_dense(&self) -> bool {
        self.sizes.iter().product::<isize>() == self.tensor.len() as isize
    }

    fn address(&self) -> PyResult<*mut c_void> {
        if let Some(address) = self.tensor.device_address() {
            return Ok(address as *mut c_void);
        }
        let of = |e: tweedie::engine::Error| raise(e.into());
        match self.tensor.dtype() {
            DType::F32 => Ok(self.tensor.as_f32().map_err(of)?.as_ptr() as *mut c_void),
            DType::U32 => Ok(self.tensor.as_u32().map_err(of)?.as_ptr() as *mut c_void),
            DType::Bf16 => Err(PyBufferError::new_err("bfloat16 on the CPU has no address to share")),
        }
    }

    fn device_of(&self) -> (i32, i32) {
        match self.tensor.device() {
            Device::Cpu => (CPU, 0),
            Device::Cuda(c) => (CUDA, c.info().ordinal as i32),
        }
    }

    /// As DLPack has it. Its sizes and strides are those of `kept`.
    fn described(&self, kept: &mut [i64]) -> PyResult<DlTensor> {
        let (code, bits) = match self.tensor.dtype() {
            DType::F32 => (FLOAT, 32),
            DType::Bf16 => (BFLOAT, 16),
            DType::U32 => (UINT, 32),
        };
        let (kind, id) = self.device_of();
        let n = self.sizes.len();
        Ok(DlTensor {
            data: self.address()?,
            device: DlDevice { kind, id },
            ndim: n as i32,
            dtype: DlType { code, bits, lanes: 1 },
            shape: kept.as_mut_ptr(),
            // `kept` has 2·n values, so that this is inside of it or its end.
            strides: kept.as_mut_ptr().wrapping_add(n),
            byte_offset: 0,
        })
    }

    fn capsule<'py, M: Managed>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let size = self.tensor.dtype().size() as isize;
        let strides = self.strides.iter().map(|s| s / size);
        let mut sizes: Vec<i64> = self.sizes.iter().copied().chain(strides).map(|s| s as i64).collect();
        let managed = M::new(self.described(&mut sizes)?);
        let pointer = Box::into_raw(Box::new(Exported { managed, sizes, tensor: self.tensor.clone() }));
        // SAFETY: the pointer is live until `delete`, which the destructor or whoever takes the capsule calls once. If there is no
        // capsule it is freed here.
        unsafe {
            let capsule = ffi::PyCapsule_New(pointer.cast(), M::FRESH.as_ptr(), Some(forget::<M>));
            if capsule.is_null() {
                delete::<M>(pointer.cast());
                return Err(PyErr::fetch(py));
            }
            Ok(Bound::from_owned_ptr(py, capsule))
        }
    }

    /// Its values one row behind the other, as they are shown.
    fn values(&self) -> PyResult<Vec<f32>> {
        let values = match &self.written {
            Some(written) => written.values(&self.tensor),
            None => self.tensor.to_vec(),
        };
        let values = values.map_err(|e| raise(e.into()))?;
        let (Some(&shown), false) = (self.sizes.last(), self.is_dense()) else { return Ok(values) };
        let rows = values.chunks_exact(self.tensor.width().max(1));
        Ok(rows.flat_map(|row| &row[..shown as usize]).copied().collect())
    }
}

/// A tensor of another library that lies on the model's GPU, held until this is dropped.
pub struct Taken(NonNull<DlManaged>);

impl Taken {
    /// Take an object with `__dlpack__`.
    pub fn new(object: &Bound<PyAny>, c: &Cuda) -> PyResult<Taken> {
        let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if (kind, id) != (CUDA, c.info().ordinal as i32) {
            let ours = c.info().ordinal;
            let message = format!(
                "the tensor lies on device {id} of DLPack's kind {kind}, the model on cuda:{ours}; move one of them"
            );
            return Err(value(message));
        }
        // Whoever made it has this stream wait for what is still to be written.
        let kwargs = pyo3::types::PyDict::new(object.py());
        kwargs.set_item("stream", c.exchange_stream().map_err(|e| raise(e.into()))?)?;
        let capsule: Bound<PyCapsule> = object.call_method("__dlpack__", (), Some(&kwargs))?.cast_into()?;
        // SAFETY: a capsule of this name holds a DLManagedTensor, which lives until its deleter is called when this is dropped; the
        // capsule is renamed, so that its destructor leaves that to us.
        unsafe {
            let at = ffi::PyCapsule_GetPointer(capsule.as_ptr(), DlManaged::FRESH.as_ptr()).cast::<DlManaged>();
            let Some(at) = NonNull::new(at) else { return Err(PyErr::fetch(object.py())) };
            if ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(object.py()));
            }
            Ok(Taken(at))
        }
    }

    /// Its address, sizes and type.
    pub fn place(&self) -> PyResult<(u64, Vec<usize>, DType)> {
        // SAFETY: it lives as long as `self`.
        let t = unsafe { &self.0.as_ref().tensor };
        let n = t.ndim.max(0) as usize;
        // SAFETY: DLPack says that `shape` has `ndim` sizes, and `strides` too unless it is null.
        let (shape, strides) = unsafe {
            let strides = (!t.strides.is_null() && n > 0).then(|| std::slice::from_raw_parts(t.strides, n));
            (if n > 0 { std::slice::from_raw_parts(t.shape, n) } else { &[] }, strides)
        };
        let dense = strides.is_none_or(|strides| {
            let mut next = 1;
            strides.iter().zip(shape).rev().all(|(stride, size)| {
                let fits = *size == 1 || *stride == next;
                next *= size;
                fits
            })
        });
        if !dense {
            return Err(value("the tensor is not contiguous; call .contiguous()"));
        }
        let dtype = match (t.dtype.code, t.dtype.bits, t.dtype.lanes) {
            (FLOAT, 32, 1) => DType::F32,
            (BFLOAT, 16, 1) => DType::Bf16,
            (UINT, 32, 1) => DType::U32,
            _ => return Err(value("a tensor on the GPU must be float32 here; call .float()")),
        };
        Ok((t.data as u64 + t.byte_offset, shape.iter().map(|s| (*s).max(0) as usize).collect(), dtype))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: called once, with the structure it belongs to; nothing looks at it any more.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: `managed` is the first field of the `Exported` that `capsule` made by `Box::into_raw`; this is called once.
    let exported = unsafe { Box::from_raw(managed.cast::<Exported<M>>()) };
    // Whoever had it may have work queued that reads it, and the memory is used again. Where the device cannot be waited for, such as
    // while a graph is recorded, it is better lost.
    if let Device::Cuda(c) = exported.tensor.device()
        && c.synchronize_all().is_err()
    {
        std::mem::forget(exported);
    }
}

/// Of a capsule that nobody took.
unsafe extern "C" fn forget<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule, whose pointer under this name is the one that `capsule` put there.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::FRESH.as_ptr()) == 1 {
            delete::<M>(ffi::PyCapsule_GetPointer(capsule, M::FRESH.as_ptr()).cast());
        }
    }
}

#[pymethods]
impl PyTensor {
    /// The sizes of its axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.sizes)
    }

    /// "float32", "bfloat16" or "uint32".
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.tensor.dtype() {
            DType::F32 => "float32",
            DType::Bf16 => "bfloat16",
            DType::U32 => "uint32",
        }
    }

    /// "cpu" or "cuda:N".
    #[getter]
    fn device(&self) -> String {
        self.tensor.device().to_string()
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.sizes.first().map(|s| *s as usize);
        first.ok_or_else(|| PyTypeError::new_err("a tensor without axes has no length"))
    }

    fn __repr__(&self) -> String {
        let sizes = self.sizes.iter().map(isize::to_string).collect::<Vec<_>>().join(", ");
        format!("tweedie.Tensor([{sizes}], {}, {})", self.dtype(), self.device())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device_of()
    }

    /// A capsule of DLPack. `stream` waits for the work that makes the tensor.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(true) || dl_device.is_some_and(|d| d != self.device_of()) {
            return Err(PyBufferError::new_err("a tensor is shared where it lies; copy or move it afterwards"));
        }
        match (&self.written, stream) {
            // Nobody waits.
            (_, Some(-1)) | (None, None) => {}
            (None, Some(_)) => return Err(PyBufferError::new_err("a tensor on the CPU has no stream; leave it out")),
            (Some(_), Some(..=0)) => {
                let words = "a stream is 1 (the default one), 2 (that of each thread), −1 (do not wait) or its handle";
                return Err(PyBufferError::new_err(words));
            }
            (Some(written), of) => written.hold(of.unwrap_or(1) as u64).map_err(|e| raise(e.into()))?,
        }
        match max_version {
            Some((1.., _)) => self.capsule::<DlManagedVersioned>(py),
            _ => self.capsule::<DlManaged>(py),
        }
    }

    /// For NumPy, which reads what lies on the CPU by the buffer protocol instead: a copy of what lies on a GPU.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(value("an array cannot be made without a copy; leave copy=False out"));
        }
        let sizes: Vec<usize> = self.sizes.iter().map(|s| *s as usize).collect();
        let array = PyArray1::from_vec(py, py.detach(|| self.values())?).reshape(sizes)?.into_any();
        match dtype {
            Some(dtype) => array.call_method1("astype", (dtype,)),
            None => Ok(array),
        }
    }

    /// The buffer protocol, for reading, on the CPU.
    ///
    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        // SAFETY: Python hands a view that may be written to; a null object says that it is not filled.
        unsafe { (*view).obj = std::ptr::null_mut() };
        if this.tensor.device() != Device::Cpu {
            return Err(PyBufferError::new_err(
                "the tensor lies on a GPU; take it by DLPack: torch.from_dlpack(tensor)",
            ));
        }
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a tensor is for reading; copy it to write"));
        }
        let buf = this.address()?;
        let asks = |flag: c_int| flags & flag == flag;
        let (dense, plain) = (this.is_dense(), this.sizes.iter().filter(|s| **s > 1).count() < 2);
        let by_rows = asks(ffi::PyBUF_C_CONTIGUOUS) || asks(ffi::PyBUF_ANY_CONTIGUOUS) || !asks(ffi::PyBUF_STRIDES);
        if asks(ffi::PyBUF_F_CONTIGUOUS) && !(dense && plain) {
            return Err(PyBufferError::new_err("the last axis lies closest, not the first; take it by np.asarray"));
        }
        if !dense && by_rows {
            return Err(PyBufferError::new_err("the rows do not lie one behind the other; take it by np.asarray"));
        }
        let (format, itemsize) = match this.tensor.dtype() {
            DType::F32 => (c"f", 4),
            DType::U32 => (c"I", 4),
            DType::Bf16 => return Err(PyBufferError::new_err("bfloat16 has no format of the buffer protocol")),
        };
        // SAFETY: the view is Python's to fill. Data, sizes and strides belong to this frozen object, which the view holds on to.
        unsafe {
            let view = &mut *view;
            view.buf = buf;
            view.len = this.sizes.iter().product::<isize>() * itemsize;
            view.readonly = 1;
            view.itemsize = itemsize;
            view.format = if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.ndim = this.sizes.len() as c_int;
            view.shape = if asks(ffi::PyBUF_ND) { this.sizes.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.strides =
                if asks(ffi::PyBUF_STRIDES) { this.strides.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            view.suboffsets = std::ptr::null_mut();
            view.internal = std::ptr::null_mut();
            view.obj = slf.into_ptr();
        }
        Ok(())
    }
}
