//! Tensors of the library as Python sees them: by the buffer protocol on the CPU, by DLPack on any device, without a copy.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tweedie::engine::DType;
use tweedie::{Device, Error, Tensor};

use crate::errors::{raise, value};

/// DLPack's numbers.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;

/// Name of a capsule that nobody has taken, and of one that was.
const FRESH: &std::ffi::CStr = c"dltensor";
const USED: &std::ffi::CStr = c"used_dltensor";

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

/// What a capsule holds: `managed` first, so that its address is that of the whole.
#[repr(C)]
struct Exported {
    managed: DlManaged,
    sizes: Box<[i64]>,
    tensor: Tensor,
}

/// An array of the library, row-major.
#[pyclass(name = "Tensor", module = "tweedie", frozen)]
pub struct PyTensor {
    tensor: Tensor,
    sizes: Vec<isize>,
    strides: Vec<isize>,
}

impl From<Tensor> for PyTensor {
    fn from(tensor: Tensor) -> PyTensor {
        let sizes: Vec<isize> = tensor.shape().iter().map(|s| *s as isize).collect();
        let mut strides = vec![tensor.dtype().size() as isize; sizes.len()];
        for i in (1..sizes.len()).rev() {
            strides[i - 1] = strides[i] * sizes[i].max(1);
        }
        PyTensor { tensor, sizes, strides }
    }
}

impl PyTensor {
    /// The tensor.
    pub fn tensor(&self) -> Tensor {
        self.tensor.clone()
    }

    /// A tensor [rows, …] of which the first `columns` of each row are shown.
    pub fn narrow(tensor: Tensor, columns: usize) -> PyTensor {
        let mut all = PyTensor::from(tensor);
        if let Some(last) = all.sizes.last_mut() {
            *last = columns.min(all.tensor.width()) as isize;
        }
        all
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

    /// Copy an object with `__dlpack__` to a tensor on `device`, where it lies already.
    pub fn import(object: &Bound<PyAny>, device: &Device) -> PyResult<PyTensor> {
        let Device::Cuda(c) = device else { return Err(value("the model is on the CPU; hand it an array of the CPU")) };
        let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if (kind, id) != (CUDA, c.info().ordinal as i32) {
            let message = format!(
                "the tensor lies on device {id} of DLPack's kind {kind}, the model on {device}; move one of them"
            );
            return Err(value(message));
        }
        // Whoever made it has our stream wait for what is still to be written.
        let kwargs = pyo3::types::PyDict::new(object.py());
        kwargs.set_item("stream", c.stream_handle())?;
        let capsule: Bound<PyCapsule> = object.call_method("__dlpack__", (), Some(&kwargs))?.cast_into()?;
        // SAFETY: a capsule of this name holds a DLManagedTensor, which lives until its deleter is called below; the capsule is
        // renamed, so that its destructor leaves that to us.
        let managed = unsafe {
            let at = ffi::PyCapsule_GetPointer(capsule.as_ptr(), FRESH.as_ptr()).cast::<DlManaged>();
            if at.is_null() {
                return Err(PyErr::fetch(object.py()));
            }
            ffi::PyCapsule_SetName(capsule.as_ptr(), USED.as_ptr());
            &mut *at
        };
        let made = copied(&managed.tensor, c);
        if let Some(deleter) = managed.deleter {
            // SAFETY: called once, with the structure it belongs to; what was read of it is copied.
            unsafe { deleter(managed) };
        }
        Ok(PyTensor::from(made?))
    }
}

/// A copy on the same GPU.
fn copied(t: &DlTensor, c: &tweedie::engine::cuda::Cuda) -> PyResult<Tensor> {
    let n = t.ndim.max(0) as usize;
    // SAFETY: DLPack says that `shape` has `ndim` sizes, and `strides` too unless it is null.
    let (shape, strides) = unsafe {
        let strides = (!t.strides.is_null() && n > 0).then(|| std::slice::from_raw_parts(t.strides, n).to_vec());
        (if n > 0 { std::slice::from_raw_parts(t.shape, n).to_vec() } else { Vec::new() }, strides)
    };
    let shape: Vec<usize> = shape.into_iter().map(|s| s.max(0) as usize).collect();
    let dense = strides.is_none_or(|strides| {
        let mut next = 1;
        strides.iter().zip(&shape).rev().all(|(stride, size)| {
            let fits = *size == 1 || *stride == next;
            next *= *size as i64;
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
    // SAFETY: whoever made the capsule says that so many elements lie at this address, and keeps them until the deleter is called; the
    // device was compared before, and our stream was handed over to wait.
    unsafe { c.copy_of(t.data as u64 + t.byte_offset, &shape, dtype) }.map_err(|e| raise(Error::from(e)))
}

unsafe extern "C" fn delete(managed: *mut DlManaged) {
    // SAFETY: `managed` is the first field of the `Exported` that `__dlpack__` made by `Box::into_raw`; this is called once.
    let exported = unsafe { Box::from_raw(managed.cast::<Exported>()) };
    if let Device::Cuda(c) = exported.tensor.device() {
        // Whoever had it may have work queued that reads it, and the memory is used again.
        let _ = c.synchronize_all();
    }
    drop(exported);
}

/// Of a capsule that nobody took.
unsafe extern "C" fn forget(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule, whose pointer under this name is the one that `__dlpack__` put there.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
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
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = max_version; // the first version is understood by all
        if copy == Some(true) || dl_device.is_some_and(|d| d != self.device_of()) {
            return Err(PyBufferError::new_err("a tensor is shared where it lies; copy or move it afterwards"));
        }
        // Without a stream it is the legacy default one; −1: nobody waits.
        let waits = stream.unwrap_or(1);
        if let (Device::Cuda(c), 0..) = (self.tensor.device(), waits) {
            c.let_wait(waits as u64).map_err(|e| raise(e.into()))?;
        }
        let (kind, id) = self.device_of();
        let (code, bits) = match self.tensor.dtype() {
            DType::F32 => (FLOAT, 32),
            DType::Bf16 => (BFLOAT, 16),
            DType::U32 => (UINT, 32),
        };
        let size = self.tensor.dtype().size() as isize;
        let strides = self.strides.iter().map(|s| s / size);
        let sizes: Box<[i64]> = self.sizes.iter().copied().chain(strides).map(|s| s as i64).collect();
        let n = self.sizes.len();
        let tensor = DlTensor {
            data: self.address()?,
            device: DlDevice { kind, id },
            ndim: n as i32,
            dtype: DlType { code, bits, lanes: 1 },
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let managed = DlManaged { tensor, context: std::ptr::null_mut(), deleter: Some(delete) };
        let mut exported = Box::new(Exported { managed, sizes, tensor: self.tensor.clone() });
        let sizes = exported.sizes.as_mut_ptr();
        exported.managed.tensor.shape = sizes;
        // `sizes` has 2·n values, so that this is inside of it or its end.
        exported.managed.tensor.strides = sizes.wrapping_add(n);
        let pointer = Box::into_raw(exported);
        // SAFETY: the pointer is live until `delete`, which the destructor or whoever takes the capsule calls once. If there is no
        // capsule it is freed here.
        unsafe {
            let capsule = ffi::PyCapsule_New(pointer.cast(), FRESH.as_ptr(), Some(forget));
            if capsule.is_null() {
                delete(pointer.cast());
                return Err(PyErr::fetch(py));
            }
            Ok(Bound::from_owned_ptr(py, capsule))
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
        if !this.is_dense() && !asks(ffi::PyBUF_STRIDES) {
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
