//! Kernel files: compiled by NVRTC at first use, kept on disk by content, architecture and compiler.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, Once, PoisonError};

use cudarc::driver::sys;
use cudarc::nvrtc::sys as rtc;

use super::{Cuda, cu, libraries, lock};
use crate::error::{Error, Result};

/// Most parameters of a kernel.
pub(super) const MAX_PARAMS: usize = 32;
/// Shared memory that a block has without being asked for more, with what the kernel itself declares.
const SHARED: usize = 48 << 10;

pub(super) const PRELUDE: &str = include_str!("prelude.cu");

/// The text of one kernel file.
pub(crate) struct Source {
    pub file: &'static str,
    pub code: &'static str,
}

/// `source!("norm.cu")`: a kernel file beside the calling module.
macro_rules! source {
    ($file:literal) => {
        pub(crate) static SOURCE: $crate::cuda::Source =
            $crate::cuda::Source { file: $file, code: include_str!($file) };
    };
}
pub(crate) use source;

/// A kernel file and one of the parameters it is compiled with.
pub struct KernelFile {
    pub(super) source: &'static Source,
    /// Head size for attention, otherwise 0.
    pub variant: u32,
}

impl KernelFile {
    /// File name.
    pub fn name(&self) -> &'static str {
        self.source.file
    }
}

/// Every kernel file with every parameter in use: what a compile test must cover.
pub fn kernel_files() -> Vec<KernelFile> {
    let mut all = Vec::new();
    for (source, variants) in crate::ops::sources() {
        all.extend(variants.iter().map(|&variant| KernelFile { source, variant }));
    }
    all
}

#[derive(Default)]
pub(super) struct Cache {
    functions: HashMap<(&'static str, u32, &'static str), Function>,
    modules: HashMap<(&'static str, u32), sys::CUmodule>,
}

#[derive(Clone, Copy)]
pub(super) struct Function {
    pub handle: sys::CUfunction,
    shared: usize, // dynamic shared memory it is set up for
    /// Bytes of each of its parameters, as many as there are; `None` where the driver does not tell.
    pub params: Option<Params>,
}

/// Bytes of the parameters of a kernel.
pub(super) type Params = ([u8; MAX_PARAMS], usize);

/// What the driver knows of a kernel's parameters.
fn params_of(f: sys::CUfunction) -> Option<Params> {
    let mut sizes = [0; MAX_PARAMS];
    for i in 0..=MAX_PARAMS {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: driver API call; the function is loaded, the rest are live locals.
        match unsafe { sys::cuFuncGetParamInfo(f, i, &mut offset, &mut size) } {
            sys::CUresult::CUDA_SUCCESS => *sizes.get_mut(i)? = u8::try_from(size).ok()?,
            // Past the last one.
            sys::CUresult::CUDA_ERROR_INVALID_VALUE if i > 0 => return Some((sizes, i)),
            _ => return None,
        }
    }
    None
}

/// Threads that are inside the compiler, and whether the process ends. Its library is torn down at exit, and a thread that is still in it then
/// takes the process down with it.
static INSIDE: (Mutex<(usize, bool)>, Condvar) = (Mutex::new((0, false)), Condvar::new());

struct Inside;

impl Inside {
    fn enter() -> Result<Inside> {
        wait_at_exit();
        let mut inside = lock(&INSIDE.0);
        if inside.1 {
            return Err(Error::op("compile", "the program is ending"));
        }
        inside.0 += 1;
        Ok(Inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        lock(&INSIDE.0).0 -= 1;
        INSIDE.1.notify_all();
    }
}

/// Have the process wait for the compiler when it exits; before threads that compile are started.
pub(super) fn wait_at_exit() {
    static ONCE: Once = Once::new();
    if libraries().nvrtc.is_err() {
        return;
    }
    ONCE.call_once(|| {
        // The compiler loads more of itself when it is first used. What was registered last goes first at exit, so waiting has to be registered
        // after all of its own.
        let _ = compile_text(c"extern \"C\" __global__ void nothing() {}", c"nothing.cu", &[]);
        OWNER.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the handler is a function of this program that does not unwind. Without it nothing waits, as before.
        let _registered = unsafe { atexit(wait_for_compilers) };
    });
}

/// The process whose threads are counted.
static OWNER: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" {
    /// Of the C library: have `f` called when the process exits.
    fn atexit(f: extern "C" fn()) -> c_int;
}

/// Let no thread into the compiler any more, and wait for those that are in it.
extern "C" fn wait_for_compilers() {
    if OWNER.load(Ordering::Relaxed) != std::process::id() {
        return; // a fork has the count, but not the threads
    }
    let mut inside = lock(&INSIDE.0);
    inside.1 = true;
    while inside.0 > 0 {
        inside = INSIDE.1.wait(inside).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Compile a kernel file for `arch` (such as `sm_90`); needs libnvrtc but no GPU.
pub fn compile(file: &KernelFile, arch: &str) -> Result<Vec<u8>> {
    compile_source(file.source, file.variant, arch)
}

fn rtc_check(call: &'static str, rc: rtc::nvrtcResult) -> Result<()> {
    if rc == rtc::nvrtcResult::NVRTC_SUCCESS {
        Ok(())
    } else {
        Err(Error::Cuda { call, message: format!("{rc:?}"), sticky: false })
    }
}

pub(super) fn compile_source(source: &Source, variant: u32, arch: &str) -> Result<Vec<u8>> {
    libraries().nvrtc.as_ref().map_err(|e| Error::NoCuda(e.clone()))?;
    let _inside = Inside::enter()?;
    let text = |s: String| CString::new(s).map_err(|e| Error::op("compile", e.to_string()));
    let code = text(format!("{PRELUDE}#line 1 \"{}\"\n{}", source.file, source.code))?;
    let name = text(source.file.to_string())?;
    let mut options = vec![text(format!("--gpu-architecture={arch}"))?, text("--std=c++17".into())?];
    if variant != 0 {
        options.push(text(format!("-DHEAD_DIM={variant}"))?);
    }
    let failed = |log| Error::Compile { file: source.file.into(), arch: arch.into(), log };
    compile_text(&code, &name, &options)?.map_err(failed)
}

/// The cubin of `code`, or what the compiler has against it.
fn compile_text(code: &CStr, name: &CStr, options: &[CString]) -> Result<std::result::Result<Vec<u8>, String>> {
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings are NUL-terminated and outlive the calls; the buffers have the sizes NVRTC just reported; the
    // program is destroyed once, on every path.
    unsafe {
        rtc_check(
            "nvrtcCreateProgram",
            rtc::nvrtcCreateProgram(&mut program, code.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null()),
        )?;
        let rc = rtc::nvrtcCompileProgram(program, options.len() as i32, options.as_ptr());
        let result = if rc == rtc::nvrtcResult::NVRTC_SUCCESS {
            let mut n = 0;
            rtc_check("nvrtcGetCUBINSize", rtc::nvrtcGetCUBINSize(program, &mut n)).and_then(|()| {
                let mut cubin = vec![0_u8; n];
                rtc_check("nvrtcGetCUBIN", rtc::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()))?;
                Ok(Ok(cubin))
            })
        } else {
            let mut n = 0;
            rtc::nvrtcGetProgramLogSize(program, &mut n);
            let mut log = vec![0_u8; n.max(1)];
            rtc::nvrtcGetProgramLog(program, log.as_mut_ptr().cast());
            let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
            Ok(Err(format!("{rc:?}\n{log}")))
        };
        rtc::nvrtcDestroyProgram(&mut program);
        result
    }
}

/// FNV-1a over 128 bits: names cache files by content.
pub(super) fn fingerprint(parts: &[&str]) -> String {
    checksum(&parts.iter().map(|p| p.as_bytes()).collect::<Vec<_>>())
}

/// The same of bytes.
pub(super) fn checksum(parts: &[&[u8]]) -> String {
    let mut h: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for p in parts {
        for &b in p.iter().chain(&[0xff]) {
            h = (h ^ b as u128).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    format!("{h:032x}")
}

/// Folder for compiled kernels and tuned products: `$TWEEDIE_CACHE`, else the user's cache folder. It is made where it
/// is missing; `None` where it cannot be.
pub fn cache_dir() -> Option<PathBuf> {
    let base = std::env::var_os("TWEEDIE_CACHE").map(PathBuf::from).or_else(|| {
        let xdg = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        xdg.or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"))).map(|p| p.join("tweedie"))
    })?;
    std::fs::create_dir_all(&base).ok()?;
    Some(base)
}

/// Write a cache file so that a reader never sees half of it, whatever other processes write there. A cache that cannot be
/// written is no error: the work is done again next time.
pub(super) fn write_cache(path: &std::path::Path, data: &[u8]) {
    let _ = crate::files::write_atomic_shared(path, data);
}

fn load_module(cubin: &[u8]) -> Result<sys::CUmodule> {
    let mut module = std::ptr::null_mut();
    cu!(cuModuleLoadData(&mut module, cubin.as_ptr().cast()))?;
    Ok(module)
}

impl Cuda {
    fn module(&self, source: &'static Source, variant: u32) -> Result<sys::CUmodule> {
        let mut compiler = lock(&self.0.compiler);
        if let Some(module) = compiler.kept(source, variant).and_then(|cubin| load_module(&cubin).ok()) {
            return Ok(module);
        }
        load_module(&compiler.make(source, variant)?)
    }

    pub(super) fn kernel(
        &self,
        source: &'static Source,
        variant: u32,
        name: &'static str,
        shared: usize,
    ) -> Result<Function> {
        let mut cache = lock(&self.0.kernels);
        let key = (source.file, variant, name);
        let mut f = match cache.functions.get(&key) {
            Some(f) => *f,
            None => {
                let module = match cache.modules.get(&(source.file, variant)) {
                    Some(m) => *m,
                    None => {
                        let m = self.module(source, variant)?;
                        cache.modules.insert((source.file, variant), m);
                        m
                    }
                };
                let c_name = CString::new(name).map_err(|e| Error::op("kernel", e.to_string()))?;
                let mut handle = std::ptr::null_mut();
                cu!(cuModuleGetFunction(&mut handle, module, c_name.as_ptr())).map_err(|e| Error::Cuda {
                    call: "cuModuleGetFunction",
                    message: format!("{name} in {}: {e}", source.file),
                    sticky: e.is_sticky(),
                })?;
                let (attr, mut own) = (sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 0);
                cu!(cuFuncGetAttribute(&mut own, attr, handle))?;
                let shared = SHARED.saturating_sub(usize::try_from(own).unwrap_or(0));
                Function { handle, shared, params: params_of(handle) }
            }
        };
        if shared > f.shared {
            let attr = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes =
                i32::try_from(shared).map_err(|_| Error::op(name, format!("{shared} bytes of shared memory")))?;
            cu!(cuFuncSetAttribute(f.handle, attr, bytes))?;
            f.shared = shared;
        }
        cache.functions.insert(key, f);
        Ok(f)
    }

    /// Blocks of a kernel that run at the same time, on the whole device: what a kernel that shares out its work itself
    /// is launched with.
    pub(crate) fn resident_blocks(
        &self,
        source: &'static Source,
        variant: u32,
        name: &'static str,
        threads: usize,
        shared: usize,
    ) -> Result<usize> {
        self.bind()?;
        let f = self.kernel(source, variant, name, shared)?.handle;
        let mut blocks = 0;
        cu!(cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, f, threads as i32, shared))?;
        Ok(blocks.max(1) as usize * self.info().multiprocessors)
    }
}
