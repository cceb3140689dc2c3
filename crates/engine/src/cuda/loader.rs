//! Finding the CUDA libraries at run time. Nothing of CUDA is needed to build or to start the program; a missing or
//! broken library is an ordinary error that says where was looked.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::{cublaslt, driver, nvrtc};
use libloading::Library;

/// A CUDA library that was found: where, and its version.
#[derive(Clone, Debug)]
pub struct Found {
    /// Library file as the loader was given it.
    pub file: String,
    /// Version as the library reports it.
    pub version: String,
}

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
    let mut out = Vec::new();
    for var in ["TWEEDIE_CUDA_PATH", "CUDA_HOME", "CUDA_PATH"] {
        if let Some(p) = std::env::var_os(var).map(PathBuf::from) {
            out.extend([p.clone(), p.join("lib64"), p.join("lib")]);
        }
    }
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
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    prefixes.extend(std::env::split_paths(&path).filter_map(|p| p.parent().map(PathBuf::from)));
    for prefix in prefixes {
        for python in subfolders(prefix.join("lib")).into_iter().filter(|p| starts(p, "python3")) {
            out.extend(subfolders(python.join("site-packages/nvidia")).into_iter().map(|p| p.join("lib")));
        }
    }
    out
}

/// Load the first library that opens: by bare name (the loader's own path), then from [`folders`]. It stays open, so that
/// a later load by its bare name (as cudarc does) finds it wherever it lies.
fn open(names: &[&str]) -> Result<String, String> {
    let mut reasons = Vec::new();
    let places = names.iter().map(PathBuf::from);
    let listed = folders()
        .into_iter()
        .flat_map(|f| names.iter().map(move |n| f.join(n)).collect::<Vec<_>>())
        .filter(|p| p.exists());
    for place in places.chain(listed) {
        // SAFETY: loading runs the library's initialisers; these are NVIDIA's own libraries, asked for by their names.
        match unsafe { Library::new(&place) } {
            Ok(lib) => {
                std::mem::forget(lib);
                return Ok(place.display().to_string());
            }
            Err(e) if place.is_absolute() => reasons.push(format!("{}: {e}", place.display())),
            Err(_) => {}
        }
    }
    let mut message = format!("{} was not found on the library path or in the usual folders", names.join(" or "));
    for r in reasons {
        message += &format!("; {r}");
    }
    Err(message)
}

/// cudarc panics when it cannot load a library, so it is asked first.
fn known_to_cudarc(present: bool, name: &str) -> Result<(), String> {
    if present { Ok(()) } else { Err(format!("{name} opened, but not under a name that can be bound")) }
}

fn find_driver() -> Result<Found, String> {
    let file = open(&["libcuda.so.1", "libcuda.so", "nvcuda.dll"])?;
    // SAFETY: asks the dynamic loader only.
    known_to_cudarc(unsafe { driver::sys::is_culib_present() }, "libcuda")?;
    let mut v: c_int = 0;
    // SAFETY: the library is loaded; the call writes one int.
    let rc = unsafe { driver::sys::cuDriverGetVersion(&mut v) };
    if rc != driver::sys::CUresult::CUDA_SUCCESS {
        return Err(format!("{file} does not answer: {rc:?}"));
    }
    Ok(Found { file, version: format!("CUDA {}.{}", v / 1000, v % 1000 / 10) })
}

fn find_nvrtc() -> Result<Found, String> {
    let file = open(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll"])?;
    // SAFETY: asks the dynamic loader only.
    known_to_cudarc(unsafe { nvrtc::sys::is_culib_present() }, "libnvrtc")?;
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is loaded; the call writes two ints.
    let rc = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
    if rc != nvrtc::sys::nvrtcResult::NVRTC_SUCCESS {
        return Err(format!("{file} does not answer: {rc:?}"));
    }
    Ok(Found { file, version: format!("{major}.{minor}") })
}

fn find_cublaslt() -> Result<Found, String> {
    let file =
        open(&["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", "cublasLt64_13.dll", "cublasLt64_12.dll"])?;
    // SAFETY: asks the dynamic loader only.
    known_to_cudarc(unsafe { cublaslt::sys::is_culib_present() }, "libcublasLt")?;
    // SAFETY: the library is loaded; the call takes and writes nothing.
    let v = unsafe { cublaslt::sys::cublasLtGetVersion() };
    Ok(Found { file, version: format!("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100) })
}
