//! Finding the CUDA libraries at run time. Nothing of CUDA is needed to build or to start the program; a missing or
//! broken library is an ordinary error that says where was looked.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::{cublaslt, driver, nvrtc};
use libloading::Library;

pub use crate::library::Found;
use crate::library::{absolute, beside_programs, load, named_folders};

/// What is there of CUDA; each library on its own, with the reason where it is not.
#[derive(Clone, Debug)]
pub struct Libraries {
    /// libcuda: comes with the GPU driver.
    pub driver: Result<Found, String>,
    /// libnvrtc: compiles kernels.
    pub nvrtc: Result<Found, String>,
    /// libcublasLt: matrix products.
    pub cublaslt: Result<Found, String>,
}

/// Look for the libraries (once per process).
pub fn libraries() -> &'static Libraries {
    static FOUND: OnceLock<Libraries> = OnceLock::new();
    FOUND.get_or_init(|| Libraries { driver: find_driver(), nvrtc: find_nvrtc(), cublaslt: find_cublaslt() })
}

/// Folders that hold CUDA libraries on usual installations but are not always on the loader's path: the toolkit's,
/// WSL's, and those of PyPI's `nvidia-*` packages beside any Python on the PATH.
fn folders() -> Vec<PathBuf> {
    let mut out = named_folders(&["CUDA_HOME", "CUDA_PATH"]);
    let subfolders = |p: PathBuf| {
        let mut v: Vec<PathBuf> = std::fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path()).collect();
        v.sort();
        v.reverse(); // newest version first
        v
    };
    let starts = |p: &PathBuf, s: &str| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(s));
    for p in subfolders("/usr/local".into()).into_iter().filter(|p| starts(p, "cuda")) {
        out.push(p.join("lib64"));
    }
    out.extend(["/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from));
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|v| absolute(v)).collect();
    prefixes.extend(beside_programs(&std::env::var_os("PATH").unwrap_or_default()));
    for prefix in prefixes {
        for python in subfolders(prefix.join("lib")).into_iter().filter(|p| starts(p, "python3")) {
            out.extend(subfolders(python.join("site-packages/nvidia")).into_iter().map(|p| p.join("lib")));
        }
    }
    out
}

/// Open a library where CUDA's lie. It stays open, so that a later load by its bare name (as cudarc does) finds it wherever it lies.
pub(crate) fn open(names: &[&str], symbol: &str) -> Result<(Library, String), String> {
    load(names, symbol, "TWEEDIE_CUDA_PATH", &[], folders)
}

/// As [`open`], for what cudarc binds afterwards: it panics on a missing function, so a library that is something else is refused
/// here.
fn keep_open(names: &[&str], symbol: &str) -> Result<String, String> {
    let (library, file) = open(names, symbol)?;
    std::mem::forget(library);
    Ok(file)
}

/// cudarc panics when it cannot load a library or a function, so it is asked first, and the library it then binds (by
/// bare name, so perhaps another one) is looked at too.
fn bound_by_cudarc(present: bool, library: impl FnOnce() -> &'static Library, symbol: &str) -> Result<(), String> {
    if !present {
        return Err("the library opened, but not under a name that can be bound".into());
    }
    // SAFETY: the symbol is only looked up, never called.
    let found = unsafe { library().get::<*const ()>(symbol.as_bytes()) };
    found.map(|_| ()).map_err(|_| format!("the library path holds another library of that name, without {symbol}"))
}

fn find_driver() -> Result<Found, String> {
    let file = keep_open(&["libcuda.so.1", "libcuda.so", "nvcuda.dll"], "cuDriverGetVersion")?;
    // SAFETY: asks the dynamic loader only.
    let present = unsafe { driver::sys::is_culib_present() };
    // SAFETY: called only where the library is present, so it does not panic.
    bound_by_cudarc(present, || unsafe { driver::sys::culib() }, "cuDriverGetVersion")?;
    let mut v: c_int = 0;
    // SAFETY: the library is loaded; the call writes one int.
    let rc = unsafe { driver::sys::cuDriverGetVersion(&mut v) };
    if rc != driver::sys::CUresult::CUDA_SUCCESS {
        return Err(format!("{file} does not answer: {rc:?}"));
    }
    Ok(Found { file, version: format!("CUDA {}.{}", v / 1000, v % 1000 / 10) })
}

fn find_nvrtc() -> Result<Found, String> {
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];
    let file = keep_open(&names, "nvrtcVersion")?;
    // SAFETY: asks the dynamic loader only.
    let present = unsafe { nvrtc::sys::is_culib_present() };
    // SAFETY: called only where the library is present, so it does not panic.
    bound_by_cudarc(present, || unsafe { nvrtc::sys::culib() }, "nvrtcVersion")?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is loaded; the call writes two ints.
    let rc = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    if rc != nvrtc::sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(format!("{file} does not answer: {rc:?}"));
    }
    Ok(Found { file, version: format!("{major}.{minor}") })
}

fn find_cublaslt() -> Result<Found, String> {
    let names = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "cublasLt64_13.dll", "cublasLt64_12.dll"];
    let file = keep_open(&names, "cublasLtGetVersion")?;
    // SAFETY: asks the dynamic loader only.
    let present = unsafe { cublaslt::sys::is_culib_present() };
    // SAFETY: called only where the library is present, so it does not panic.
    bound_by_cudarc(present, || unsafe { cublaslt::sys::culib() }, "cublasLtGetVersion")?;
    // SAFETY: the library is loaded; the call takes and writes nothing.
    let v = unsafe { cublaslt::sys::cublasLtGetVersion() };
    Ok(Found { file, version: format!("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100) })
}
