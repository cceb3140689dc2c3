//! Finding the CUDA libraries at run time. Nothing of CUDA is needed to build or to start the program; a missing or
//! broken library is an ordinary error that says where was looked.
//!
//! Libraries come from absolute folders alone: what lies in the folder that a program happens to be started in must not be run.
//! Relative and empty entries of `PATH`, `CUDA_HOME` and the like are passed over, a relative `TWEEDIE_CUDA_PATH` is refused, and
//! so is one of `LD_LIBRARY_PATH` (which is the loader's, not ours) where it holds a library of such a name.

use std::ffi::{OsStr, c_int};
use std::path::{Path, PathBuf};
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

/// A folder that an environment variable names; not one that depends on where the program is started.
fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute())
}

/// Folders that environment variables name, as they are or as the root of a toolkit.
fn named_folders(variables: &[&str]) -> Vec<PathBuf> {
    variables.iter().filter_map(|v| absolute(v)).flat_map(|p| [p.clone(), p.join("lib64"), p.join("lib")]).collect()
}

/// The folder above each entry of a `PATH`, where that is absolute.
fn beside_programs(path: &OsStr) -> Vec<PathBuf> {
    std::env::split_paths(path).filter(|p| p.is_absolute()).filter_map(|p| p.parent().map(PathBuf::from)).collect()
}

/// Refuse where the loader would take a library of these names from a relative entry of its own path (an empty one is the current
/// folder too): nothing can be loaded by a bare name then.
fn refuse_relative(library_path: &OsStr, stem: &str) -> Result<(), String> {
    let text = library_path.to_string_lossy();
    // Nothing at all is not an empty entry.
    for entry in text.split([':', ';']).filter(|e| !text.is_empty() && !Path::new(e).is_absolute()) {
        let folder = if entry.is_empty() { Path::new(".") } else { Path::new(entry) };
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name());
        if let Some(found) = names.into_iter().find(|n| n.to_string_lossy().starts_with(stem)) {
            return Err(format!(
                "LD_LIBRARY_PATH has the relative entry '{entry}', and {} lies there; libraries are loaded from absolute folders \
                 only: make the entry absolute, or take it out",
                found.to_string_lossy()
            ));
        }
    }
    Ok(())
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

/// The dynamic loader's own words.
fn reason(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |s| s.to_string())
}

/// Load the first library that opens and has `symbol`: from the folder the user named, by bare name (the loader's own
/// path), then from [`folders`]. It stays open, so that a later load by its bare name (as cudarc does) finds it wherever
/// it lies.
fn open(names: &[&str], symbol: &str) -> Result<String, String> {
    let names: Vec<&str> = names.iter().copied().filter(|n| n.ends_with(".dll") == cfg!(windows)).collect();
    let given = std::env::var_os("TWEEDIE_CUDA_PATH").map(PathBuf::from).unwrap_or_default();
    if given.is_relative() && !given.as_os_str().is_empty() {
        return Err(format!("TWEEDIE_CUDA_PATH is '{}', a relative path; give the whole path", given.display()));
    }
    if !cfg!(windows) {
        // What cudarc binds goes by other endings of the same name: libcuda.so, libcuda64_12.so, …
        let stem = names.first().and_then(|n| n.split('.').next()).unwrap_or_default();
        refuse_relative(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(), stem)?;
    }
    let within = |folders: Vec<PathBuf>| {
        let all: Vec<PathBuf> = folders.iter().flat_map(|f| names.iter().map(|n| f.join(n))).collect();
        all.into_iter().filter(|p| p.exists())
    };
    let bare = names.iter().map(PathBuf::from);
    let mut reasons: Vec<String> = Vec::new();
    for place in within(named_folders(&["TWEEDIE_CUDA_PATH"])).chain(bare).chain(within(folders())) {
        // SAFETY: loading runs the library's initialisers; these are NVIDIA's own libraries, asked for by their names.
        let why = match unsafe { Library::new(&place) } {
            // cudarc panics on a missing function, so a library that is something else is refused here.
            // SAFETY: the symbol is only looked up, never called.
            Ok(lib) => match unsafe { lib.get::<*const ()>(symbol.as_bytes()) }.map(|_| ()) {
                Ok(()) => {
                    std::mem::forget(lib);
                    return Ok(place.display().to_string());
                }
                Err(_) => format!("{}: has no {symbol}, so it is not the library its name says", place.display()),
            },
            Err(e) => match reason(&e) {
                e if e.contains("No such file") && !place.is_absolute() => continue,
                e if e.contains(&*place.to_string_lossy()) => e,
                e => format!("{}: {e}", place.display()),
            },
        };
        if !reasons.contains(&why) {
            reasons.push(why);
        }
    }
    let all = names.join(" or ");
    Err(match reasons.is_empty() {
        true => format!("{all} was not found on the library path or in the usual folders"),
        false => format!("{all} was found but does not load: {}", reasons.join("; ")),
    })
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
    let file = open(&["libcuda.so.1", "libcuda.so", "nvcuda.dll"], "cuDriverGetVersion")?;
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
    let file = open(&names, "nvrtcVersion")?;
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
    let file = open(&names, "cublasLtGetVersion")?;
    // SAFETY: asks the dynamic loader only.
    let present = unsafe { cublaslt::sys::is_culib_present() };
    // SAFETY: called only where the library is present, so it does not panic.
    bound_by_cudarc(present, || unsafe { cublaslt::sys::culib() }, "cublasLtGetVersion")?;
    // SAFETY: the library is loaded; the call takes and writes nothing.
    let v = unsafe { cublaslt::sys::cublasLtGetVersion() };
    Ok(Found { file, version: format!("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn relative_entries_lead_nowhere() {
        let found = beside_programs(OsStr::new("bin:/usr/bin::./x/bin:/opt/py/bin:.:../bin"));
        assert_eq!(found, [Path::new("/usr"), Path::new("/opt/py")]);
        // Tests run in the crate's folder, which has `src` and `Cargo.toml`.
        let refused = |path: &str, stem: &str| refuse_relative(OsStr::new(path), stem).err();
        for path in ["", "/usr/lib", "/usr/lib:/lib;/opt", "src:/usr/lib", "none"] {
            assert_eq!(refused(path, "Cargo"), None, "{path}");
        }
        for path in [":/usr/lib", "/usr/lib:", "/usr/lib::/lib", ".", "src:.", "/usr/lib;./"] {
            let why = refused(path, "Cargo").unwrap_or_default();
            assert!(why.contains("LD_LIBRARY_PATH") && why.contains("Cargo.toml lies there"), "{path}: {why}");
        }
        assert!(refused("/lib:src", "lib").is_some_and(|why| why.contains("entry 'src', and lib.rs")));
    }
}
