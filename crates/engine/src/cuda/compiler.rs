//! Compiled kernel files: from disk, or by NVRTC, several at a time. The first one that is missing starts the others too: on a
//! new machine they are all missing, and one after the other they take a quarter of a minute.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::kernels::{KernelFile, Source, cache_dir, compile_source, fingerprint, kernel_files, write_cache};
use super::libraries;
use crate::error::{Error, Result};

/// The head size that most networks have.
const USUAL_HEAD: u32 = 64;

type Compiling = JoinHandle<Result<Vec<u8>>>;

/// Compiles for one kind of GPU.
pub(super) struct Compiler {
    arch: String,
    folder: Option<PathBuf>,
    /// Files under way; none before the first is missing.
    started: Option<HashMap<(&'static str, u32), Compiling>>,
}

impl Compiler {
    pub fn new(arch: String) -> Compiler {
        Compiler { arch, folder: cache_dir(), started: None }
    }

    /// Where a compiled file lies on disk: its name tells content, GPU and compiler.
    fn path(&self, source: &Source, variant: u32) -> Option<PathBuf> {
        let libs = libraries();
        let version =
            |f: &std::result::Result<super::Found, String>| f.as_ref().map(|f| f.version.clone()).unwrap_or_default();
        let key = fingerprint(&[
            super::kernels::PRELUDE,
            source.code,
            &variant.to_string(),
            &self.arch,
            &version(&libs.nvrtc),
            &version(&libs.driver),
        ]);
        let name = format!("{}-{variant}-{}-{key}.cubin", source.file, self.arch);
        self.folder.as_ref().map(|d| d.join(name))
    }

    /// What lies on disk.
    pub fn kept(&self, source: &Source, variant: u32) -> Option<Vec<u8>> {
        std::fs::read(self.path(source, variant)?).ok()
    }

    /// Compile, whatever lies on disk.
    pub fn make(&mut self, source: &'static Source, variant: u32) -> Result<Vec<u8>> {
        if self.started.is_none() {
            self.start(source.file, variant);
        }
        let under_way = self.started.as_mut().and_then(|all| all.remove(&(source.file, variant)));
        match under_way.map(JoinHandle::join) {
            Some(Ok(made)) => made,
            Some(Err(_)) => Err(Error::op("compile", format!("the thread that compiled {} failed", source.file))),
            None => compile_and_keep(source, variant, &self.arch, self.path(source, variant).as_deref()),
        }
    }

    /// Begin with all other files that most programs use.
    fn start(&mut self, file: &str, variant: u32) {
        let attention = ["attention.cu", "attention_short.cu", "attention_group.cu", "attention_group_bwd.cu"];
        let hopper = self.arch.ends_with('a');
        let usual = |f: &KernelFile| {
            let needed = hopper || !f.name().starts_with("attention_group");
            f.variant == 0 || (attention.contains(&f.name()) && f.variant == USUAL_HEAD && needed)
        };
        let mut all = HashMap::new();
        for f in kernel_files().into_iter().filter(usual) {
            let path = self.path(f.source, f.variant);
            if (f.name() == file && f.variant == variant) || path.as_ref().is_some_and(|p| p.exists()) {
                continue;
            }
            let (arch, key) = (self.arch.clone(), (f.name(), f.variant));
            let work = move || compile_and_keep(f.source, f.variant, &arch, path.as_deref());
            // Where no thread is to be had, the file is compiled when it is needed.
            if let Ok(handle) = std::thread::Builder::new().name("compile".into()).spawn(work) {
                all.insert(key, handle);
            }
        }
        self.started = Some(all);
    }
}

impl Drop for Compiler {
    /// The compiler must not be torn down under a thread that is in it.
    fn drop(&mut self) {
        for (_, handle) in self.started.take().into_iter().flatten() {
            let _ = handle.join();
        }
    }
}

fn compile_and_keep(source: &Source, variant: u32, arch: &str, path: Option<&Path>) -> Result<Vec<u8>> {
    let cubin = compile_source(source, variant, arch)?;
    if let Some(path) = path {
        write_cache(path, &cubin);
    }
    Ok(cubin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_file_starts_the_others_and_all_are_kept() {
        if libraries().nvrtc.is_err() {
            return; // tests/kernels.rs says whether that is an error
        }
        let folder = std::env::temp_dir().join(format!("tweedie-compiler-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let new = || Compiler { arch: "sm_90".into(), folder: Some(folder.clone()), started: None };
        let files = kernel_files();
        let of = |name: &str| files.iter().find(|f| f.name() == name).unwrap();
        let (first, second) = (of("blend.cu"), of("pad.cu"));
        let mut compiler = new();
        assert_eq!(compiler.kept(first.source, 0), None);
        let made = compiler.make(first.source, 0).unwrap();
        assert!(made.starts_with(b"\x7fELF"));
        let others: Vec<_> = compiler.started.as_ref().unwrap().keys().copied().collect();
        assert!(others.contains(&("pad.cu", 0)) && others.contains(&("attention.cu", 64)), "{others:?}");
        assert!(!others.contains(&("blend.cu", 0)) && !others.contains(&("attention.cu", 32)), "{others:?}");
        let waited = compiler.make(second.source, 0).unwrap();
        drop(compiler);
        let compiler = new();
        assert_eq!(compiler.kept(first.source, 0), Some(made));
        assert_eq!(compiler.kept(second.source, 0), Some(waited));
        assert!(others.iter().all(|(name, variant)| compiler.kept(of(name).source, *variant).is_some()));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
