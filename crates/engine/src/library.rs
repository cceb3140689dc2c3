//! Finding libraries at run time. Nothing of them is needed to build or to start the program; a missing or broken one is an
//! ordinary error that says where was looked.
//!
//! Libraries come from absolute folders alone: what lies in the folder that a program happens to be started in must not be run.
//! Relative and empty entries of `PATH`, `CUDA_HOME` and the like are passed over, a relative `TWEEDIE_CUDA_PATH` is refused, and
//! so is one of `LD_LIBRARY_PATH` (which is the loader's, not ours) where it holds a library of such a name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::Library;

/// A library that was found: where, and its version.
#[derive(Clone, Debug)]
pub struct Found {
    /// Library file as the loader was given it.
    pub file: String,
    /// Version as the library reports it.
    pub version: String,
}

/// A folder that an environment variable names; not one that depends on where the program is started.
pub(crate) fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute())
}

/// Folders that environment variables name, as they are or as the root of a toolkit.
pub(crate) fn named_folders(variables: &[&str]) -> Vec<PathBuf> {
    variables.iter().filter_map(|v| absolute(v)).flat_map(|p| [p.clone(), p.join("lib64"), p.join("lib")]).collect()
}

/// The folder above each entry of a `PATH`, where that is absolute.
pub(crate) fn beside_programs(path: &OsStr) -> Vec<PathBuf> {
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

/// The dynamic loader's own words.
fn reason(e: &libloading::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), |s| s.to_string())
}

/// Load the first library that opens and has `symbol`: from the folder that the user named in the variable `given`, from those in
/// `first`, by bare name (the loader's own path), then from those in `then`. With its file as the loader was given it.
pub(crate) fn load(
    names: &[&str],
    symbol: &str,
    given: &str,
    first: &[PathBuf],
    then: impl FnOnce() -> Vec<PathBuf>,
) -> Result<(Library, String), String> {
    let names: Vec<&str> = names.iter().copied().filter(|n| n.ends_with(".dll") == cfg!(windows)).collect();
    let named = std::env::var_os(given).map(PathBuf::from).unwrap_or_default();
    if named.is_relative() && !named.as_os_str().is_empty() {
        return Err(format!("{given} is '{}', a relative path; give the whole path", named.display()));
    }
    if !cfg!(windows) {
        // What is bound later goes by other endings of the same name: libcuda.so, libcuda64_12.so, …
        let stem = names.first().and_then(|n| n.split('.').next()).unwrap_or_default();
        refuse_relative(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(), stem)?;
    }
    let within = |folders: Vec<PathBuf>| {
        let all: Vec<PathBuf> = folders.iter().flat_map(|f| names.iter().map(|n| f.join(n))).collect();
        all.into_iter().filter(|p| p.exists())
    };
    let bare = names.iter().map(PathBuf::from);
    let mut reasons: Vec<String> = Vec::new();
    for place in within(named_folders(&[given])).chain(within(first.to_vec())).chain(bare).chain(within(then())) {
        // SAFETY: loading runs the library's initialisers; these are NVIDIA's and MPI's own libraries, asked for by their names.
        let why = match unsafe { Library::new(&place) } {
            // SAFETY: the symbol is only looked up, never called.
            Ok(lib) => match unsafe { lib.get::<*const ()>(symbol.as_bytes()) }.map(|_| ()) {
                Ok(()) => return Ok((lib, place.display().to_string())),
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
