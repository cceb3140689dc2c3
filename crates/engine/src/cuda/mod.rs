//! One CUDA device: context, stream, memory, kernels and matrix products.

mod alloc;
mod blas;
mod compiler;
mod copies;
mod exchange;
mod graph;
mod info;
mod kernels;
mod launch;
mod loader;
mod log;
mod products;
mod profile;
mod side;
mod tile_map;

use std::cell::Cell;
use std::ffi::CStr;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::sys::{self, CUresult};

pub use alloc::{Buffer, Usage};
pub(crate) use blas::{Batch, Epilogue, Gemm, Mat, even_columns};
pub(crate) use copies::Pinned;
pub use copies::Uploads;
pub use exchange::Moment;
pub use graph::Graph;
pub use info::{Info, devices};
pub use kernels::{KernelFile, cache_dir, compile, kernel_files};
pub(crate) use kernels::{Source, source};
pub(crate) use launch::{Arg, args, by_type};
pub(crate) use loader::open as open_library;
pub use loader::{Found, Libraries, libraries};
pub use profile::Spent;
pub(crate) use side::{Mark, Side};
pub(crate) use tile_map::{TileMap, Tiles};

use crate::error::{Error, Result};
use alloc::Pool;

/// The oldest driver whose entry points cover all that is called here.
const MIN_DRIVER: i32 = 12_080;

/// Turn a driver status into a [`Result`].
fn check(call: &'static str, rc: CUresult) -> Result<()> {
    if rc == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = std::ptr::null();
    // SAFETY: writes a pointer to a static string, or leaves it null.
    unsafe { sys::cuGetErrorString(rc, &mut text) };
    let words = if text.is_null() {
        "unknown error".into()
    } else {
        // SAFETY: the driver returned a static, NUL-terminated string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy()
    };
    let (sticky, mut message) = (is_sticky(rc), format!("{words} ({rc:?})"));
    if sticky {
        log::keep(&format!("{call} failed: {message}"));
        message += &log::recent();
    }
    Err(Error::Cuda { call, message, sticky })
}

/// Whether a status means that a kernel failed on the device: the context is of no use after it.
fn is_sticky(rc: CUresult) -> bool {
    use CUresult::*;
    matches!(
        rc,
        CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_CONTAINED
            | CUDA_ERROR_UNKNOWN
    )
}

/// `cu!(cuInit(0))`: call a driver function and check its status.
macro_rules! cu {
    ($f:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: driver API call; arguments are valid handles or point to live locals of the declared type.
        $crate::cuda::check(stringify!($f), unsafe { cudarc::driver::sys::$f($($arg),*) })
    };
}
use cu;

struct Inner {
    info: Info,
    context: sys::CUcontext,
    stream: sys::CUstream,
    main: Arc<Pool>,
    /// The pool that allocations go to: `main`, or a graph's own while it is captured.
    current: Mutex<Arc<Pool>>,
    /// What was copied from the host while a graph is captured: the graph's constants.
    constants: Mutex<Vec<crate::Tensor>>,
    /// Carries copies from the host beside the kernels.
    copies: OnceLock<copies::Stream>,
    /// Kernels and products queued so far.
    queued: AtomicU64,
    kernels: Mutex<kernels::Cache>,
    compiler: Mutex<compiler::Compiler>,
    /// Algorithms of products that are chosen already.
    products: Mutex<products::Products>,
    blas: OnceLock<blas::Blas>,
    /// Whether launches are timed, and those that were.
    profiling: AtomicBool,
    launches: Mutex<Vec<profile::Launch>>,
}

// SAFETY: the handles are process-wide driver objects that may be used from any thread once the context is bound there,
// which `bind` does before every call; mutable state sits behind mutexes.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

thread_local! {
    /// The context that [`Cuda::bind`] made current on this thread.
    static BOUND: Cell<sys::CUcontext> = const { Cell::new(std::ptr::null_mut()) };
}

/// A handle to one CUDA device; clones share it.
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

impl PartialEq for Cuda {
    fn eq(&self, other: &Cuda) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Cuda {
    /// Open device `ordinal`. Fails with the reason where a library, the driver or the device is missing or too old.
    pub fn open(ordinal: usize) -> Result<Cuda> {
        let all = devices()?;
        let info = all.get(ordinal).cloned().ok_or_else(|| {
            Error::NoCuda(match all.len() {
                0 => "the driver works but sees no GPU".into(),
                n => format!("there is no device {ordinal}; the driver sees {n}, numbered from 0"),
            })
        })?;
        let libs = libraries();
        let (nvrtc, _) = match (&libs.nvrtc, &libs.cublaslt) {
            (Ok(n), Ok(b)) => (n, b),
            (Err(e), _) | (_, Err(e)) => return Err(Error::NoCuda(e.clone())),
        };
        if info.capability.0 < 8 {
            return Err(Error::NoCuda(format!(
                "{} has compute capability {}.{}; bf16 tensor cores need 8.0 (Ampere) or newer",
                info.name, info.capability.0, info.capability.1
            )));
        }
        let mut driver = 0;
        cu!(cuDriverGetVersion(&mut driver))?;
        let major: i32 = nvrtc.version.split('.').next().and_then(|v| v.parse().ok()).unwrap_or(0);
        if driver < MIN_DRIVER {
            return Err(Error::NoCuda(format!(
                "the driver supports CUDA {}.{}; {}.{} or newer is needed: update the GPU driver",
                driver / 1000,
                driver % 1000 / 10,
                MIN_DRIVER / 1000,
                MIN_DRIVER % 1000 / 10
            )));
        }
        if major > driver / 1000 {
            return Err(Error::NoCuda(format!(
                "libnvrtc is {} but the driver only supports CUDA {}.{}; update the driver or install libnvrtc {}",
                nvrtc.version,
                driver / 1000,
                driver % 1000 / 10,
                driver / 1000
            )));
        }
        let mut dev = 0;
        cu!(cuDeviceGet(&mut dev, ordinal as i32))?;
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        cu!(cuDevicePrimaryCtxRetain(&mut context, dev))?;
        cu!(cuCtxSetCurrent(context))?;
        cu!(cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        let main = Arc::new(Pool::default());
        let compiler = Mutex::new(compiler::Compiler::new(info.arch()));
        let products = Mutex::new(products::Products::open(&info.name));
        Ok(Cuda(Arc::new(Inner {
            info,
            compiler,
            products,
            context,
            stream,
            current: Mutex::new(main.clone()),
            main,
            constants: Mutex::default(),
            copies: OnceLock::new(),
            queued: AtomicU64::new(0),
            kernels: Mutex::default(),
            blas: OnceLock::new(),
            profiling: AtomicBool::new(false),
            launches: Mutex::default(),
        })))
    }

    /// Facts about this device.
    pub fn info(&self) -> &Info {
        &self.0.info
    }

    /// Make the context current on this thread (remembered, so it costs a comparison).
    fn bind(&self) -> Result<()> {
        if BOUND.get() != self.0.context {
            cu!(cuCtxSetCurrent(self.0.context))?;
            BOUND.set(self.0.context);
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let pool = lock(&self.0.current).clone();
        self.alloc_in(pool, bytes)
    }

    #[track_caller]
    fn alloc_in(&self, pool: Arc<Pool>, bytes: usize) -> Result<Buffer> {
        self.bind()?;
        let mut state = lock(&pool.0);
        let ptr = match state.take(bytes) {
            Some((p, _)) => p,
            None => {
                let by = Location::caller();
                let other = (!Arc::ptr_eq(&pool, &self.0.main)).then_some(&*self.0.main);
                let refused = |f: [usize; 4]| self.no_room(by, bytes, f);
                let Some(size) = alloc::State::segment_size(bytes) else { return Err(refused([0; 4])) };
                let p = self.driver_alloc(&mut state, other, size)?.map_err(refused)?;
                state.add_segment(p, size);
                state.take(bytes).map(|b| b.0).unwrap_or(p)
            }
        };
        drop(state);
        Ok(Buffer::new(ptr, pool, self.clone()))
    }

    /// Memory from the driver for a pool in `state`; a graph's pool may take it from the `main` one. Where there is none: bytes in
    /// use, free, in all, and those that would fit.
    fn driver_alloc(
        &self,
        state: &mut alloc::State,
        main: Option<&Pool>,
        size: usize,
    ) -> Result<std::result::Result<u64, [usize; 4]>> {
        let mut p = 0;
        // Anything but a lack of memory is an error of its own: after a failed kernel this call fails too.
        // SAFETY: driver API call; the context is bound, `p` is a live local.
        let ask = |p: &mut u64| match unsafe { sys::cuMemAlloc_v2(p, size) } {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Ok(false),
            rc => check("cuMemAlloc_v2", rc).map(|()| true),
        };
        if ask(&mut p)? {
            return Ok(Ok(p));
        }
        // Free what is cached but unused, then try once more.
        match main {
            // A capture began when the device was idle, and blocks that a graph's own pool has free are still in its kernels.
            Some(main) => self.free(lock(&main.0).take_idle_segments()),
            None => {
                if !self.is_capturing() {
                    self.synchronize()?;
                }
                self.free(state.take_idle_segments());
            }
        }
        if ask(&mut p)? {
            return Ok(Ok(p));
        }
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
        let used = state.usage().used + main.map_or(0, |m| lock(&m.0).usage().used);
        Ok(Err([used, free, total, state.largest().max(free)]))
    }

    /// The error of a request by the code at `by`.
    fn no_room(&self, by: &Location, wanted: usize, [used, free, total, fits]: [usize; 4]) -> Error {
        Error::OutOfMemory { by: alloc::asked_by(by.file()), wanted, used, free, total, fits }
    }

    /// Give segments back to the driver. Errors have no one to go to: the memory is lost with the process.
    fn free(&self, segments: Vec<u64>) {
        if !segments.is_empty() && self.bind().is_ok() {
            for a in segments {
                let _ = cu!(cuMemFree_v2(a));
            }
        }
    }

    /// Memory held by tensors and by the cache.
    pub fn usage(&self) -> Usage {
        lock(&self.0.main.0).usage()
    }

    /// Start a new peak measurement from the present use.
    pub fn reset_peak(&self) {
        lock(&self.0.main.0).reset_peak();
    }

    /// Free and total memory of the device, as the driver sees it.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }

    pub(crate) fn upload<T: Copy>(&self, to: &Buffer, data: &[T]) -> Result<()> {
        self.upload_to(to.ptr(), data)
    }

    pub(crate) fn upload_to<T: Copy>(&self, to: u64, data: &[T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.is_capturing() {
            // A captured copy would read the host memory again at every replay, long after it is gone.
            return Err(Error::op(
                "upload",
                "what lies on the device cannot be overwritten from the host while a graph is captured; do it before",
            ));
        }
        self.bind()?;
        let bytes = std::mem::size_of_val(data);
        let copy = || cu!(cuMemcpyHtoDAsync_v2(to, data.as_ptr().cast(), bytes, self.0.stream));
        self.queue("upload", [bytes, 0, 0], 0, 0, copy)
    }

    pub(crate) fn download<T: Copy>(&self, from: u64, data: &mut [T]) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if self.is_capturing() {
            return Err(Error::op("download", "nothing can be read back while a graph is captured"));
        }
        self.bind()?;
        cu!(cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), from, std::mem::size_of_val(data), self.0.stream))?;
        self.synchronize()
    }

    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        self.queue("copy", [bytes, 0, 0], 0, 0, || cu!(cuMemcpyDtoDAsync_v2(to, from, bytes, self.0.stream)))
    }

    pub(crate) fn memset_zero(&self, at: u64, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.bind()?;
        self.queue("zero", [bytes, 0, 0], 0, 0, || cu!(cuMemsetD8Async(at, 0, bytes, self.0.stream)))
    }

    /// Wait until everything queued so far is done.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        cu!(cuStreamSynchronize(self.0.stream))
    }

    fn count(&self) {
        self.0.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Kernels and products queued or captured since the device was opened. A replay of a graph adds nothing.
    pub fn queued(&self) -> u64 {
        self.0.queued.load(Ordering::Relaxed)
    }

    /// Milliseconds that the device needs for what `f` queues.
    pub fn time(&self, f: impl FnOnce() -> Result<()>) -> Result<f32> {
        self.bind()?;
        let (mut a, mut b) = (std::ptr::null_mut(), std::ptr::null_mut());
        cu!(cuEventCreate(&mut a, 0))?;
        cu!(cuEventCreate(&mut b, 0))?;
        cu!(cuEventRecord(a, self.0.stream))?;
        let done = f();
        cu!(cuEventRecord(b, self.0.stream))?;
        cu!(cuEventSynchronize(b))?;
        let mut ms = 0.0;
        let timed = cu!(cuEventElapsedTime_v2(&mut ms, a, b));
        cu!(cuEventDestroy_v2(a))?;
        cu!(cuEventDestroy_v2(b))?;
        done?;
        timed?;
        Ok(ms)
    }
}

/// A poisoned lock means that another thread panicked while it held plain bookkeeping data; that data is still sound.
fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
